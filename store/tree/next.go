package tree

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"premix/store/object"
)

const (
	// NextDir is where it lies below a store's root which tags are mounted after others.
	NextDir = "next"
	// maxNext bounds how many tags may come next, and how long a row of them is.
	maxNext = 256
)

// NextPath returns the file that lists which tags are mounted after this one, below a
// store's root: those of the layers that lie on it in some image. A line has one
// reference; lines are sorted. It is a hint and not signed: who follows it asks for tags
// that he verifies like any other.
func (r Ref) NextPath() string {
	return NextDir + "/" + object.Sum([]byte(r.String())).String()[:32]
}

// MarshalNext returns the content of such a file, without those beyond what one may have.
func MarshalNext(refs []Ref) []byte {
	refs = slices.Clone(refs)
	slices.SortFunc(refs, func(a, b Ref) int { return cmp.Compare(a.String(), b.String()) })
	refs = slices.Compact(refs)
	var b bytes.Buffer
	for _, r := range refs[:min(len(refs), maxNext)] {
		fmt.Fprintln(&b, r)
	}
	return b.Bytes()
}

// ParseNext reads such a file.
func ParseNext(content []byte) ([]Ref, error) {
	var refs []Ref
	for line := range strings.Lines(string(content)) {
		r, err := ParseRef(strings.TrimSuffix(line, "\n"))
		if err != nil || !r.Digest.IsZero() || len(refs) == maxNext {
			return nil, invalid("list of next tags", "line %d: %.80q", len(refs)+1, line)
		}
		refs = append(refs, r)
	}
	return refs, nil
}

// Row returns the tags that are mounted after ref, one after the other, for as long as
// there is one alone that can come next. file returns the content of a file below a
// store's root, nil where there is none.
func Row(ref Ref, file func(path string) []byte) []Ref {
	var row []Ref
	for len(row) < maxNext {
		next, err := ParseNext(file(ref.NextPath()))
		if err != nil || len(next) != 1 || slices.Contains(row, next[0]) {
			break
		}
		ref = next[0]
		row = append(row, ref)
	}
	return row
}
