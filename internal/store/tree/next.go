package tree

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"premix/internal/store/object"
)

const (
	// NextDir is the directory, below a store's root, of the lists of tags that are
	// mounted after others.
	NextDir = "next"
	// maxNext bounds the number of tags in such a list, and the length of a Row.
	maxNext = 256
)

// NextPath returns the path, below a store's root, of the list of tags that are mounted
// after this one: the tags of layers that lie directly on its layer in some image. Each
// line has one reference; lines are sorted. The list is a hint and is not signed: a
// reader asks for the tags in it and verifies them like any others.
func (r Ref) NextPath() string {
	return NextDir + "/" + object.Sum([]byte(r.String())).String()[:32]
}

// MarshalNext returns the content of the list of next tags. It drops references beyond
// the limit of a list.
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

// ParseNext decodes a list of next tags.
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

// NextRefs returns the tags that are mounted after ref, in order, as long as each has only
// one next tag. file returns the content of a file below a store's root, or nil if
// there is none.
func NextRefs(ref Ref, file func(path string) []byte) []Ref {
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
