package inplace

import (
	"fmt"
	"path/filepath"
	"strings"

	"premix/internal/hotstart/late"
)

// How late variables are served that a tool has copied.
//
// Most tools leave their environment where the kernel has put it, and the values of late
// variables have room there for values of other lengths. Interpreters copy it (Python, Perl,
// R): the lengths of the values then decide the places of all memory after them. A
// preparation that fails for such a reason is made again with exact variables, whose values
// are late words: a snapshot serves values of the same lengths, as of the directories that
// Nextflow makes.

// exact is a late variable that a tool may have copied.
type exact struct {
	Name  string
	Kind  exactKind
	Value string // its shape, or its value for exactSame
}

// exactKind is the way in which the value of an exact variable may change.
type exactKind string

const (
	exactWord exactKind = "word"      // it is a late word, of one shape
	exactDir  exactKind = "directory" // it is the working directory
	// It is the same in all calls. Another directory has other files, and interpreters have
	// one object for all texts of one letter, as SHLVL has it.
	exactSame exactKind = "same"
)

// exactKinds returns the late variables of a call, in the order of its environment, and the
// values of those that are late words.
func exactKinds(c *Call) (all []exact, words []string) {
	for _, kv := range c.Env {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok || !c.isLate(name):
		case value == c.Dir:
			all = append(all, exact{Name: name, Kind: exactDir})
		case len(value) < 2 || name != formerDir && isDirectory(value):
			all = append(all, exact{name, exactSame, value})
		default:
			shape := Label.Shape(value)
			if isDirectory(value) {
				shape += "directory" // a shell asks for it
			}
			all = append(all, exact{name, exactWord, shape})
			words = append(words, value)
		}
	}
	return all, words
}

// formerDir is the variable with the directory in which a shell was before. It is a late word
// although it names a directory: tasks of pipelines have others, and do not use them.
const formerDir = "OLDPWD"

func isDirectory(path string) bool { return filepath.IsAbs(path) && kindAt(path) == "dir" }

// exactWords returns the names of the exact variables that are late words.
func (p *plan) exactWords() (names []string) {
	for _, e := range p.Exact {
		if e.Kind == exactWord {
			names = append(names, e.Name)
		}
	}
	return names
}

// fitsExact returns the reason why the frozen process cannot have the exact variables of a
// call, or "".
func (p *plan) fitsExact(c *Call) string {
	if len(p.Exact) == 0 {
		return ""
	}
	kinds, values := exactKinds(c)
	for i, e := range p.Exact {
		if i >= len(kinds) || kinds[i] != e {
			return fmt.Sprintf("the tool may have copied its environment, and the variable %s has a value of another form than at the preparation", e.Name)
		}
	}
	if late.Relations(append(c.words(), values...)) != p.Relations {
		return "the tool may have copied its environment, and parts of the command are in other variables than at the preparation"
	}
	return ""
}
