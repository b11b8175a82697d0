package late

import (
	"crypto/rand"
	"fmt"
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
func (r Role) Other(word string) string { return r.other(word, r.lettersFor(word)) }

// other does the same as Other, with letters of a set.
func (r Role) other(word, set string) string {
	b := []byte(word)
	shape := r.Shape(word)
	for i := range strings.LastIndexByte(shape, '|') {
		if !alnum(rune(word[i])) {
			continue
		}
		for b[i] == word[i] {
			b[i] = set[random(len(set))]
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

// Letters are the letters of a contrast. A tool may ask for the class of a letter, or change
// capital letters into small ones, which the letters of one class do not show.
type Letters int

// The letters of contrasts. Words with fixed digits alone have digits in all of them.
const (
	LowFirst  Letters = iota // low first letters, digits mostly, and any others
	HighFirst                // high first letters, and any others
	Digits                   // low first letters, and digits behind them
	Small                    // high first letters, and small letters behind them
	Capitals                 // capital letters
)

// sets are the first letters and the other letters of contrasts.
var sets = map[Letters]struct{ first, others string }{
	LowFirst:  {letters, letters},
	HighFirst: {letters, letters},
	Digits:    {letters, letters[:10]},
	Small:     {letters, letters[36:]},
	Capitals:  {letters[10:36], letters[10:36]},
}

// LettersOf returns the letters of a preparation, from its number. Preparation 1 is on one
// side of the words of preparation 0, of which first is the first one. Preparation 2 is on
// the other side, preparation 3 has capital letters, and later ones have letters by chance.
func LettersOf(number int, first string) Letters {
	low := number%2 == 1 != Low(first)
	switch {
	case number == 3:
		return Capitals
	case number < 3 && !low:
		return Small
	case number < 3:
		return Digits
	case low:
		return LowFirst
	}
	return HighFirst
}

// firstLetters returns the letters that first letters of a contrast are chosen from, for a
// number of words. free are the letters that may be used, in their order.
func (l Letters) firstLetters(free []byte, words int) []byte {
	n := max(words, 10)
	switch {
	case n >= len(free) || l == Capitals:
		return free
	case l == HighFirst || l == Small:
		return free[len(free)-n:]
	}
	return free[:n]
}

// Contrast returns words as Other does, whose order is the reverse of the order of words,
// wherever their first letters decide it. Two contrasts with low and with high first
// letters, and the words themselves, lie on both sides of most constants that a tool
// compares them with. First letters in avoid, by word, are not used. Equal words of equal
// shape stay equal.
func Contrast(words []string, roles []Role, use Letters, avoid map[int][]byte) []string {
	all := make([]string, len(words))
	for k, w := range words {
		set := roles[k].lettersFor(w)
		if set == letters {
			set = sets[use].others
		}
		all[k] = roles[k].other(w, set)
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
		from := set
		if set == letters {
			from = sets[use].first
		}
		var free []byte
		for _, c := range []byte(from) {
			if strings.IndexByte(used, c) < 0 {
				free = append(free, c)
			}
		}
		if len(free) < len(members) {
			continue // random ones serve
		}
		free = slices.Clone(use.firstLetters(free, len(members)))
		for len(free) > len(members) {
			k := random(len(free))
			free = slices.Delete(free, k, k+1)
		}
		for i, k := range members {
			all[k] = withFirstLetters(all[k], words[k], roles[k].Shape(words[k]), free[i])
		}
	}
	for k, w := range words {
		if use == Digits && roles[k].lettersFor(w) == letters {
			all[k] = withLetter(all[k], w, roles[k].Shape(w))
		}
		for j := range k {
			if words[j] == words[k] && roles[j].Shape(words[j]) == roles[k].Shape(words[k]) {
				all[k] = all[j]
				break
			}
		}
	}
	return all
}

// withFirstLetters exchanges the first letter of each component of a path, where its shape
// lets it change and own does not have the same letter there: each letter of a contrast
// differs from the letter of own.
func withFirstLetters(word, own, shape string, letter byte) string {
	b := []byte(word)
	begins := true
	for i := range strings.LastIndexByte(shape, '|') {
		if b[i] == '/' {
			begins = true
		} else if begins && alnum(rune(b[i])) {
			if own[i] != letter {
				b[i] = letter
			}
			begins = false
		}
	}
	return string(b)
}

// withLetter puts a letter, one of the hexadecimal digits, at the end of a word other than
// own whose letters are all digits. A tool could take the word for a number, which words
// with a letter never are. A word of one character stays a digit.
func withLetter(word, own, shape string) string {
	b := []byte(word[:strings.LastIndexByte(shape, '|')])
	digit := func(c rune) bool { return c >= '0' && c <= '9' }
	last := strings.LastIndexFunc(string(b), digit)
	if last <= strings.IndexFunc(string(b), digit) || strings.ContainsFunc(string(b), func(c rune) bool { return alnum(c) && !digit(c) }) {
		return word
	}
	for b[last] = own[last]; b[last] == own[last]; {
		b[last] = "abcdef"[random(6)]
	}
	return string(b) + word[len(b):]
}

// Low reports whether the first letter or digit of a word is in the first half of letters.
func Low(word string) bool {
	return strings.TrimLeftFunc(word, func(c rune) bool { return !alnum(c) }) < "M"
}

// Relations describes the relations of words: which of them is equal to, or a part of,
// which other. A tool may compare its words with each other.
func Relations(words []string) string {
	var b strings.Builder
	for i, w := range words {
		for j, v := range words {
			switch {
			case i == j:
			case w == v:
				fmt.Fprintf(&b, "%d=%d ", i, j)
			case strings.Contains(w, v):
				fmt.Fprintf(&b, "%d>%d ", i, j)
			}
		}
	}
	return b.String()
}
