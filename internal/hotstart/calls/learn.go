package calls

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/internal/hotstart/tools"
)

// pattern is the state of the calls of a program that the catalogue does not describe.
//
// Which words of this program are late? A word that names an existing file before the
// call is an input. A word that named a file or a directory after the previous call is an
// output. Any other word may change the work of the tool (--mode fast), and two
// preparations with random letters do not show this. So in another word only the tokens of
// the sample's name are late: tokens of the name of an input that are not in the names of
// the inputs of all calls. A path with one of these tokens is an output. The rest belongs
// to the command.
type pattern struct {
	Calls  int                `json:"calls"`
	Last   time.Time          `json:"last"`
	Argv   []string           `json:"argv"`   // of the last call
	Dir    string             `json:"dir"`    // of the last call
	Late   map[int]tools.Role `json:"late"`   // arguments that have changed; Label: tokens of them
	Common []string           `json:"common"` // tokens of the inputs of all calls
}

// learn compares a call with earlier calls of the same pattern. It returns the late words,
// or the reason why they are not known yet, and whether a snapshot should be prepared.
func learn(dir string, c Call, note bool) (Plan, bool) {
	path := filepath.Join(dir, "patterns", patternKey(c))
	p, known := &pattern{}, true
	if err := load(path, p); err != nil || len(p.Argv) != len(c.Argv) || p.Late == nil {
		known = false // or damaged
		*p = pattern{Late: map[int]tools.Role{}}
	}
	changed := !known || p.Calls < unknownCalls
	if known && p.compare(c) {
		changed = true
	}
	p.Calls++
	p.Last, p.Argv, p.Dir = time.Now().UTC(), c.Argv, c.Dir
	if note && changed {
		if !known {
			bound(filepath.Join(dir, "patterns"))
		}
		if save(path, p) != nil {
			return Plan{Reason: "the call cannot be recorded"}, false
		}
	}
	if len(p.Late) == 0 {
		return Plan{Reason: fmt.Sprintf("the tool is not in the catalogue, and no word of its calls has changed (calls: %d)", p.Calls)}, false
	}
	words := p.words(c)
	if !slices.ContainsFunc(words, func(w tools.Word) bool { return w.Role == tools.Input }) {
		return Plan{Reason: "the tool is not in the catalogue, and no changing word of its calls names a file"}, false
	}
	return Plan{Words: words}, p.Calls >= unknownCalls
}

// RecordOutput notes that an argument of a call names an output. The output was there before a
// call, as where a pipeline runs again, and learn took it for an input. It reports whether
// this is new: calls of a program in the catalogue have no pattern.
func RecordOutput(c Call, arg int) bool {
	dir, err := Dir()
	if err != nil {
		return false
	}
	path, p := filepath.Join(dir, "patterns", patternKey(c)), &pattern{}
	if load(path, p) != nil || p.Late[arg] != tools.Input {
		return false
	}
	p.Late[arg] = tools.Output
	return save(path, p) == nil
}

// patternKey identifies calls whose words may be compared.
func patternKey(c Call) string {
	h := fnv.New128a()
	fmt.Fprintf(h, "%q %d", c.Exe, len(c.Argv))
	script := !interprets(c.Exe)
	for i, arg := range c.Argv[1:] {
		switch at := valueAt(arg); {
		case at > 0 && (script || arg[0] == '-'), len(arg) > 1 && arg[0] == '-':
			name, _, found := strings.Cut(arg, "=")
			fmt.Fprintf(h, " %d %q %v", i, name, found)
		case !script:
			script = true
			fmt.Fprintf(h, " %d %q", i, arg)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// interpreters are the names, without versions, of programs whose first argument that is not
// an option names a script, and so the work.
var interpreters = []string{"python", "pypy", "perl", "Rscript", "ruby", "julia", "java", "node", "bash", "sh", "dash"}

// interprets reports whether a program is an interpreter. Its name may have a version.
func interprets(exe string) bool {
	name := strings.TrimRight(filepath.Base(exe), ".0123456789")
	return slices.Contains(interpreters, name)
}

// compare finds arguments that differ from the arguments of the previous call, and reports
// whether it found something new.
func (p *pattern) compare(c Call) bool {
	found := false
	for i, arg := range c.Argv {
		if i == 0 || arg == p.Argv[i] || p.Late[i] != "" && p.Late[i] != tools.Label {
			continue
		}
		role := tools.Label
		if info := p.stat(c.Dir, arg); info != nil && info.Mode().IsRegular() {
			role = tools.Input
		} else if p.stat(p.Dir, p.Argv[i]) != nil {
			role = tools.Output
		}
		if role != p.Late[i] {
			p.Late[i], found = role, true
		}
	}
	common := p.Common
	if common == nil {
		common = p.inputTokens(p.Argv)
	}
	now := p.inputTokens(c.Argv)
	common = slices.DeleteFunc(slices.Clone(common), func(t string) bool { return !slices.Contains(now, t) })
	if p.Common == nil || len(common) < len(p.Common) {
		p.Common, found = common, true
	}
	return found
}

// stat describes the file that an argument names, or returns nil.
func (p *pattern) stat(dir, arg string) os.FileInfo {
	path := arg[valueAt(arg):]
	if path == "" {
		return nil
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

// inputTokens returns the tokens of the inputs among the arguments.
func (p *pattern) inputTokens(argv []string) []string {
	list := []string{}
	for i, role := range p.Late {
		if role == tools.Input && i < len(argv) {
			list = append(list, fileTokens(argv[i])...)
		}
	}
	return list
}

// fileTokens returns the tokens of a path that can be names: no endings, no single
// characters, no small numbers.
func fileTokens(path string) []string {
	dir, base := filepath.Split(path)
	base, _, _ = strings.Cut(base, ".")
	text := dir + base
	var list []string
	for _, at := range tokens(text) {
		if t := text[at[0]:at[1]]; len(t) > 2 || len(t) == 2 && strings.Trim(t, "0123456789") != "" {
			list = append(list, t)
		}
	}
	return list
}

// valueAt returns the offset of the value in --name=value, and in name=value, or 0.
func valueAt(arg string) int {
	name, _, found := strings.Cut(arg, "=")
	if !found || !strings.HasPrefix(arg, "-") && !isName(name) {
		return 0
	}
	return len(name) + 1
}

// isName reports whether a text can be the name in name=value.
func isName(text string) bool {
	for i, c := range []byte(text) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '.' && c != '-') {
			return false
		}
	}
	return text != ""
}

// tokens returns the places of the runs of letters and digits in a text. The letter after
// a backslash is not part of a run, as in \t.
func tokens(text string) [][2]int {
	var list [][2]int
	in := func(i int) bool {
		b := text[i]
		return b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z'
	}
	for i := 0; i < len(text); {
		if text[i] == '\\' {
			i += 2
			continue
		}
		started := i
		for i < len(text) && in(i) {
			i++
		}
		if i > started {
			list = append(list, [2]int{started, i})
		} else {
			i++
		}
	}
	return list
}

// isPath reports whether a text looks like the path of a file that is yet to be written:
// it has an extension or a directory, and no characters of other texts.
func isPath(text string) bool {
	return strings.ContainsAny(text, "./") && !strings.ContainsFunc(text, func(r rune) bool {
		return !strings.ContainsRune("._/+-", r) && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	})
}

// words returns the late words of a call.
func (p *pattern) words(c Call) []tools.Word {
	sample := slices.DeleteFunc(p.inputTokens(c.Argv), func(t string) bool { return slices.Contains(p.Common, t) })
	var list []tools.Word
	for i, arg := range c.Argv {
		switch p.Late[i] {
		case "":
		case tools.Label:
			if at := valueAt(arg); isPath(arg[at:]) && slices.ContainsFunc(fileTokens(arg[at:]), func(t string) bool { return slices.Contains(sample, t) }) && p.stat(c.Dir, filepath.Dir(arg[at:])) != nil {
				list = append(list, tools.Word{Arg: i, From: at, To: len(arg), Role: tools.Output})
				continue
			}
			for _, at := range tokens(arg) {
				if slices.Contains(sample, arg[at[0]:at[1]]) {
					list = append(list, tools.Word{Arg: i, From: at[0], To: at[1], Role: tools.Label})
				}
			}
		default:
			if valueAt(arg) < len(arg) {
				list = append(list, tools.Word{Arg: i, From: valueAt(arg), To: len(arg), Role: p.Late[i]})
			}
		}
	}
	return list
}
