package late

import (
	"crypto/rand"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
)

// Role is the use of a late word.
type Role string

// The roles of late words.
const (
	Input  Role = "input"  // path of a file that the tool reads for the sample
	Output Role = "output" // path, or beginning of paths, of files that the tool writes
	Label  Role = "label"  // other text, for example a read group
)

// compressions are extensions that follow another extension.
var compressions = []string{".gz", ".bgz", ".bz2", ".xz", ".zst", ".lz4"}

// extension returns the extension of a path, with the extension of a compression.
func extension(path string) string {
	base := filepath.Base(path)
	ext := filepath.Ext(base)
	if slices.Contains(compressions, ext) {
		ext = filepath.Ext(strings.TrimSuffix(base, ext)) + ext
	}
	return ext
}

// Shape returns a word with its changing parts replaced by one letter: letters and digits
// outside the extension. In a word without letters only the digits change.
func (r Role) Shape(word string) string {
	b := []byte(word)
	blank := byte('x')
	if !strings.ContainsFunc(word, func(c rune) bool { return alnum(c) && (c < '0' || c > '9') }) {
		blank = 'd'
	}
	end := len(b)
	if r != Label {
		end -= len(extension(word))
	}
	for i := range end {
		if alnum(rune(b[i])) {
			b[i] = blank
		}
	}
	return string(b[:end]) + "|" + string(b[end:])
}

func alnum(c rune) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// letters are the bytes that Other puts in place of letters and digits, in their order.
const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// lettersFor returns the bytes that may replace the bytes of a word.
func (r Role) lettersFor(word string) string {
	if shape := r.Shape(word); !strings.Contains(shape[:strings.LastIndexByte(shape, '|')], "x") {
		return letters[1:10] // a number that does not begin with 0
	}
	return letters
}

// Other returns a random word of the same shape that differs from word in every letter
// that is not fixed.
func (r Role) Other(word string) string {
	b := []byte(word)
	from := r.lettersFor(word)
	shape := r.Shape(word)
	for i := range strings.LastIndexByte(shape, '|') {
		if !alnum(rune(word[i])) {
			continue
		}
		for b[i] == word[i] {
			b[i] = from[random(len(from))]
		}
	}
	return string(b)
}

func random(n int) int {
	v, err := rand.Int(rand.Reader, big.NewInt(int64(n)))
	if err != nil {
		panic(err) // it never fails on Linux
	}
	return int(v.Int64())
}

// Contrast returns words as Other does, whose order is the reverse of the order of words,
// wherever their first letters decide it. The first letters are low ones, digits mostly, or
// high ones: two contrasts and the words themselves lie on both sides of most constants
// that a tool compares them with. First letters in avoid, by word, are not used.
func Contrast(words []string, roles []Role, high bool, avoid map[int][]byte) []string {
	all := make([]string, len(words))
	for k, w := range words {
		all[k] = roles[k].Other(w)
	}
	for _, set := range []string{letters, letters[1:10]} {
		var members []int // words with these letters, in descending order
		used := ""
		for k, w := range words {
			if first := strings.IndexFunc(w, alnum); first >= 0 && roles[k].lettersFor(w) == set {
				members = append(members, k)
				used += w[first:first+1] + string(avoid[k])
			}
		}
		slices.SortStableFunc(members, func(i, j int) int { return strings.Compare(words[j], words[i]) })
		var free []byte
		for _, c := range []byte(set) {
			if strings.IndexByte(used, c) < 0 {
				free = append(free, c)
			}
		}
		if len(free) < len(members) {
			continue // random ones serve
		}
		if n := max(len(members), 10); n < len(free) && high {
			free = free[len(free)-n:]
		} else if n < len(free) {
			free = free[:n]
		}
		for len(free) > len(members) {
			k := random(len(free))
			free = slices.Delete(free, k, k+1)
		}
		for i, k := range members {
			all[k] = withFirstLetters(all[k], roles[k].Shape(words[k]), free[i])
		}
	}
	return all
}

// withFirstLetters exchanges the first letter of each component of a path, where its shape
// lets it change.
func withFirstLetters(word, shape string, letter byte) string {
	b := []byte(word)
	begins := true
	for i := range strings.LastIndexByte(shape, '|') {
		if b[i] == '/' {
			begins = true
		} else if begins && alnum(rune(b[i])) {
			b[i] = letter
			begins = false
		}
	}
	return string(b)
}

// Low reports whether the first letter or digit of a word is in the first half of letters.
func Low(word string) bool {
	return strings.TrimLeftFunc(word, func(c rune) bool { return !alnum(c) }) < "M"
}
