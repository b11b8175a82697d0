package calls

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/tools"
)

// pattern is what is known of the calls of a program that the catalogue does not describe.
type pattern struct {
	Calls int                `json:"calls"`
	Last  time.Time          `json:"last"`
	Argv  []string           `json:"argv"`  // of the last call
	Late  map[int]tools.Role `json:"late"`  // arguments that have changed -> the roles of their late words
	Parts map[int][]int      `json:"parts"` // of split arguments: numbers of the late parts
}

// learn compares a call with those before that have the same pattern. It returns the late
// words, or the reason why they are not known yet, and whether a snapshot is due.
func learn(dir string, c Call, note bool) (Plan, bool) {
	path := filepath.Join(dir, "patterns", patternKey(c))
	p, known := &pattern{}, true
	if err := load(path, p); err != nil || len(p.Argv) != len(c.Argv) || p.Late == nil || p.Parts == nil {
		known = false // or damaged
		*p = pattern{Late: map[int]tools.Role{}, Parts: map[int][]int{}}
	}
	changed := !known || p.Calls < unknownCalls
	if known && p.compare(c) {
		changed = true
	}
	p.Calls++
	p.Last, p.Argv = time.Now().UTC(), c.Argv
	if note && changed {
		if !known {
			bound(filepath.Join(dir, "patterns"))
		}
		if save(path, p) != nil {
			return Plan{Reason: "the call cannot be noted"}, false
		}
	}
	if len(p.Late) == 0 {
		return Plan{Reason: fmt.Sprintf("the tool is not in the catalogue, and %d calls of it were alike", p.Calls)}, false
	}
	words := p.words(c.Argv)
	if !slices.ContainsFunc(words, func(w tools.Word) bool { return w.Role == tools.Input }) {
		return Plan{Reason: "the tool is not in the catalogue, and no word of its calls that changes names a file"}, false
	}
	return Plan{Words: words}, p.Calls >= unknownCalls
}

// patternKey identifies calls whose words may be compared.
func patternKey(c Call) string {
	h := fnv.New128a()
	fmt.Fprintf(h, "%q %d", c.Exe, len(c.Argv))
	for i, arg := range c.Argv {
		if name, _, found := strings.Cut(arg, "="); strings.HasPrefix(arg, "-") && len(arg) > 1 {
			fmt.Fprintf(h, " %d %q %v", i, name, found)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// compare finds arguments that differ from those of the call before, and reports whether
// it has found something new.
func (p *pattern) compare(c Call) bool {
	found := false
	for i, arg := range c.Argv {
		if i == 0 || arg == p.Argv[i] {
			continue
		}
		before := p.Late[i]
		role := roleOf(c, arg)
		switch {
		case before == "":
			p.Late[i], found = role, true
		case role != before && role != tools.Label && before == tools.Label:
			p.Late[i], found = role, true
		}
		if p.Late[i] != tools.Label {
			continue
		}
		// Of a text only the parts that differ are late.
		a, b := parts(p.Argv[i]), parts(arg)
		if len(a) != len(b) {
			continue // all of it
		}
		for k := range a {
			if p.Argv[i][a[k][0]:a[k][1]] != arg[b[k][0]:b[k][1]] && !slices.Contains(p.Parts[i], k) {
				p.Parts[i], found = append(p.Parts[i], k), true
			}
		}
	}
	return found
}

// roleOf guesses the role of an argument that changes from call to call, before the
// program runs: of a file that is there, of one whose directory is there, or of a text.
func roleOf(c Call, arg string) tools.Role {
	path := arg[valueAt(arg):]
	if path == "" {
		return tools.Label
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(c.Dir, path)
	}
	if st, err := os.Stat(path); err == nil {
		if st.Mode().IsRegular() {
			return tools.Input
		}
		return tools.Output
	}
	// A file that is yet to be written has a name with an extension or a directory.
	if st, err := os.Stat(filepath.Dir(path)); err == nil && st.IsDir() && strings.ContainsAny(arg[valueAt(arg):], "./") {
		return tools.Output
	}
	return tools.Label
}

// valueAt is where the value of --name=value begins, or 0.
func valueAt(arg string) int {
	if strings.HasPrefix(arg, "-") {
		return strings.IndexByte(arg, '=') + 1
	}
	return 0
}

// parts are the letters, digits, '_' and '.' that stand together in a text. The letter
// behind a backslash stands alone, as in \t.
func parts(text string) [][2]int {
	var list [][2]int
	in := func(i int) bool {
		b := text[i]
		return b == '_' || b == '.' || b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z'
	}
	for i := 0; i < len(text); {
		if text[i] == '\\' {
			i += 2
			continue
		}
		begun := i
		for i < len(text) && in(i) {
			i++
		}
		if i > begun {
			list = append(list, [2]int{begun, i})
		} else {
			i++
		}
	}
	return list
}

// words are the late words of a call.
func (p *pattern) words(argv []string) []tools.Word {
	var list []tools.Word
	for i, arg := range argv {
		role := p.Late[i]
		switch {
		case role == "":
		case role == tools.Label && len(p.Parts[i]) > 0 && len(parts(arg)) > slices.Max(p.Parts[i]):
			all := parts(arg)
			for k, at := range all {
				if slices.Contains(p.Parts[i], k) {
					list = append(list, tools.Word{Arg: i, From: at[0], To: at[1], Role: role})
				}
			}
		case valueAt(arg) < len(arg):
			list = append(list, tools.Word{Arg: i, From: valueAt(arg), To: len(arg), Role: role})
		}
	}
	return list
}
