package inplace

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"premix/internal/hotstart/late"
	"premix/internal/hotstart/procstate"
)

// Role is the use of a late word.
type Role = late.Role

// The roles of late words.
const (
	Input  = late.Input
	Output = late.Output
	Label  = late.Label
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
	Rates   []string // regular expressions: where they match in output files, numbers are not compared

	// Running is true if the call has begun. Directories then has the indexes of the outputs in
	// Words that were directories before, and Pipes the indexes of the inputs that were pipes.
	Running            bool
	Directories, Pipes []int

	Stdin, Stdout, Stderr *os.File
	// Inherited is nil for a call of this process. Prepare in another process than the
	// caller's needs the caller's.
	Inherited *procstate.Inherited
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

// inherited returns the state that the tool of the call inherits.
func (c *Call) inherited() procstate.Inherited {
	if c.Inherited != nil {
		return *c.Inherited
	}
	return procstate.Current()
}

// commandLines returns the arguments as the kernel keeps them, and as tools print them.
// They count as late words, after the late words of the call.
func commandLines(argv []string) []string {
	return []string{strings.Join(argv, "\x00") + "\x00", strings.Join(argv, " ")}
}

// wideWords returns the late words, exact variables and the directory as programs keep them in
// arrays of wchar_t. They count as late words, before the directory itself. Bytes that are not
// ASCII are in memory in another way, which the comparison finds.
func wideWords(words, exact []string, dir string) []string {
	var all []string
	for _, text := range append(slices.Concat(words, exact), dir) {
		wide := make([]byte, 4*len(text))
		for i := range len(text) {
			wide[4*i] = text[i]
		}
		all = append(all, string(wide))
	}
	return all
}

// isDirectory reports whether the late word k is an output that is a directory before the call.
func (c *Call) isDirectory(k int) bool {
	if c.Words[k].Role != Output {
		return false
	}
	if c.Running {
		return slices.Contains(c.Directories, k)
	}
	return kindAt(resolve(c.Dir, c.words()[k])) == "dir"
}

// isPipe reports whether the late word k is an input that is a pipe, as a shell makes it for
// <(command).
func (c *Call) isPipe(k int) bool {
	if c.Words[k].Role != Input {
		return false
	}
	if c.Running {
		return slices.Contains(c.Pipes, k)
	}
	return kindAt(resolve(c.Dir, c.words()[k])) == "pipe"
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

// oneFile returns a reason if an input of a call and another of its files, or one of its
// streams, are one file, or "". Placeholders are different files, and a tool may ask whether
// its files are.
func (c *Call) oneFile() string {
	type file struct {
		name  string
		info  os.FileInfo
		input bool
	}
	var all []file
	for i, text := range c.words() {
		if c.Words[i].Role == Label {
			continue
		}
		if info, err := os.Stat(resolve(c.Dir, text)); err == nil {
			all = append(all, file{text, info, c.Words[i].Role == Input})
		}
	}
	for _, f := range []*os.File{c.Stdin, c.Stdout, c.Stderr} {
		if f == nil {
			continue
		}
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			all = append(all, file{f.Name(), info, false})
		}
	}
	for i, f := range all {
		for _, other := range all[:i] {
			if (f.input || other.input) && os.SameFile(f.info, other.info) {
				return fmt.Sprintf("%s and %s are one file", other.name, f.name)
			}
		}
	}
	return ""
}

// isLate reports whether a variable of the environment is late.
func (c *Call) isLate(name string) bool {
	return slices.Contains(alwaysLate, name) || slices.Contains(c.LateEnv, name)
}

// keyVersion changes when snapshots of earlier versions must not be found.
const keyVersion = 13

// Key identifies the calls that can share a snapshot, without the fingerprint.
func Key(c Call) (string, error) {
	if err := c.check(); err != nil {
		return "", err
	}
	var shapes []string
	for i, text := range c.words() {
		w := c.Words[i]
		shapes = append(shapes, fmt.Sprintf("%d %s %s", w.Arg, w.Role, w.Role.Shape(text)))
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
	relations := late.Relations(c.words())
	h := blake3.New()
	if err := json.NewEncoder(h).Encode([]any{keyVersion, os.Geteuid(), os.Getegid(), c.Exe, c.withWords(blank), shapes, relations, env, c.inherited()}); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}
