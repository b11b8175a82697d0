package inplace

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"premix/internal/hotstart/around"
)

// Role is the use of a late word.
type Role string

// The roles of late words.
const (
	Input  Role = "input"  // path of a file that the tool reads for the sample
	Output Role = "output" // path, or beginning of paths, of files that the tool writes
	Label  Role = "label"  // other text, for example a read group
)

// Word is a part of an argument that changes from call to call: the bytes [From, To)
// of Call.Argv[Arg].
type Word struct {
	Arg      int
	From, To int
	Role     Role
}

// PadSize is the size up to which the value of a late variable can be served, bytes, a
// zero byte at its end included.
const PadSize = 1024

// Call is one command as its caller would execute it.
type Call struct {
	Exe     string   // absolute path of the program
	Argv    []string // Argv[0] included
	Env     []string // KEY=VALUE, complete
	Dir     string   // working directory, absolute
	Words   []Word   // late words; they do not overlap
	LateEnv []string // names of variables whose values change from call to call

	Stdin, Stdout, Stderr *os.File
	// Around is nil for a call of this process. Prepare in another process than the
	// caller's needs the caller's.
	Around *around.Around
}

// alwaysLate are variables that shells set, and that change from call to call.
var alwaysLate = []string{"PWD", "OLDPWD", "SHLVL", "_"}

// words returns the texts of the late words.
func (c *Call) words() []string {
	var all []string
	for _, w := range c.Words {
		all = append(all, c.Argv[w.Arg][w.From:w.To])
	}
	return all
}

// withWords returns the arguments with other late words, which may be of other lengths.
func (c *Call) withWords(words []string) []string {
	argv := slices.Clone(c.Argv)
	order := make([]int, len(c.Words))
	for i := range order {
		order[i] = i
	}
	// Replace from the end: replacing a word moves the bytes after it.
	slices.SortFunc(order, func(i, j int) int { return c.Words[j].From - c.Words[i].From })
	for _, k := range order {
		w := c.Words[k]
		argv[w.Arg] = argv[w.Arg][:w.From] + words[k] + argv[w.Arg][w.To:]
	}
	return argv
}

// around returns the state that the tool of the call inherits.
func (c *Call) around() around.Around {
	if c.Around != nil {
		return *c.Around
	}
	return around.Own()
}

// commandLines returns the arguments as the kernel keeps them, and as tools print them.
// They count as late words, after the late words of the call.
func commandLines(argv []string) []string {
	return []string{strings.Join(argv, "\x00") + "\x00", strings.Join(argv, " ")}
}

// commandForms is the number of commandLines.
const commandForms = 2

// check returns an error if a call is malformed.
func (c *Call) check() error {
	if len(c.Argv) == 0 || !filepath.IsAbs(c.Exe) || !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("the call of %q has no arguments, or a relative path of its program or directory", c.Exe)
	}
	for i, w := range c.Words {
		if w.Arg <= 0 || w.Arg >= len(c.Argv) || w.From < 0 || w.To > len(c.Argv[w.Arg]) || w.From >= w.To {
			return fmt.Errorf("late word %d is not a part of an argument", i)
		}
		for _, o := range c.Words[:i] {
			if o.Arg == w.Arg && o.From < w.To && w.From < o.To {
				return fmt.Errorf("late words overlap in argument %d", w.Arg)
			}
		}
	}
	return nil
}

// isLate reports whether a variable of the environment is late.
func (c *Call) isLate(name string) bool {
	return slices.Contains(alwaysLate, name) || slices.Contains(c.LateEnv, name)
}

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

// shape returns a word with its changing parts replaced by one letter: letters and digits
// outside the extension. In a word without letters only the digits change.
func (r Role) shape(word string) string {
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

// letters are the bytes that other puts in place of letters and digits, in their order.
const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// lettersFor returns the bytes that may replace the bytes of a word.
func (r Role) lettersFor(word string) string {
	if shape := r.shape(word); !strings.Contains(shape[:strings.LastIndexByte(shape, '|')], "x") {
		return letters[1:10] // a number that does not begin with 0
	}
	return letters
}

// other returns a random word of the same shape that differs from word in every letter
// that is not fixed.
func (r Role) other(word string) string {
	b := []byte(word)
	from := r.lettersFor(word)
	shape := r.shape(word)
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

// contrast returns words as other does, whose order is the reverse of the order of words,
// wherever their first letters decide it. The first letters are low ones, digits mostly, or
// high ones: two contrasts and the words themselves lie on both sides of most constants
// that a tool compares them with. First letters in avoid, by word, are not used.
func contrast(words []string, roles []Role, high bool, avoid map[int][]byte) []string {
	all := make([]string, len(words))
	for k, w := range words {
		all[k] = roles[k].other(w)
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
			all[k] = withFirstLetters(all[k], roles[k].shape(words[k]), free[i])
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

// keyVersion changes when snapshots of earlier versions must not be found.
const keyVersion = 5

// Key identifies the calls that can share a snapshot, without the fingerprint.
func Key(c Call) (string, error) {
	if err := c.check(); err != nil {
		return "", err
	}
	var shapes []string
	for i, text := range c.words() {
		w := c.Words[i]
		shapes = append(shapes, fmt.Sprintf("%d %s %s", w.Arg, w.Role, w.Role.shape(text)))
	}
	blank := make([]string, len(shapes))
	for i := range blank {
		blank[i] = "\x00"
	}
	var env []string
	for _, kv := range c.Env {
		name, _, _ := strings.Cut(kv, "=")
		if c.isLate(name) {
			kv = name
		}
		env = append(env, kv)
	}
	h := blake3.New()
	if err := json.NewEncoder(h).Encode([]any{keyVersion, os.Geteuid(), os.Getegid(), c.Exe, c.withWords(blank), shapes, env, c.around()}); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}
