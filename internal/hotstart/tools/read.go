package tools

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Role is the part that a word plays in a command.
type Role string

// The roles of words. Input, Output and Label change from sample to sample.
const (
	Program   Role = "program"
	Option    Role = "option" // a flag, a subcommand, or the name of an option
	Value     Role = "value"
	Data      Role = "data"
	Input     Role = "input"
	Output    Role = "output"
	Label     Role = "label"
	readGroup Role = "read-group"
)

// Late reports whether words of the role change from sample to sample.
func (r Role) Late() bool { return r == Input || r == Output || r == Label }

// Word is a part of an argument: bytes [From,To) of argument Arg.
type Word struct {
	Arg, From, To int
	Role          Role
}

// Reading is the result of reading a command with a description.
type Reading struct {
	Rates []string // regular expressions of parts of output files with times and rates
	Words []Word   // in order; the bytes between them belong to the command
	Unfit string   // why the command starts plainly; empty if it may start hot
}

// Late returns the words that change from sample to sample.
func (r Reading) Late() []Word {
	return slices.DeleteFunc(slices.Clone(r.Words), func(w Word) bool { return !w.Role.Late() })
}

// descriptors is the directory of the files of a process that it has inherited.
const descriptors = "/dev/fd/"

// standard is the name that many programs take for standard input or output.
const standard = "-"

// Read gives each word of a command its role.
func (t *Tool) Read(argv []string) Reading {
	r := reader{argv: argv, at: 1, d: &t.description}
	r.add(0, 0, Program)
	if t.Commands != nil {
		if len(argv) < 2 {
			return r.unfit("it has no subcommand")
		}
		if r.d = t.Commands[argv[1]]; r.d == nil {
			return r.unfit("%s %s is not in the catalogue", filepath.Base(argv[0]), argv[1])
		}
		if r.d.Unfit[""] != "" {
			return r.unfit("%s", r.d.Unfit[""])
		}
		r.add(1, 0, Option)
		r.at = 2
	}
	r.Rates = r.d.Rates
	r.read()
	if r.Unfit == "" && !r.input {
		return r.unfit("the command names no input")
	}
	return r.Reading
}

type reader struct {
	Reading
	argv  []string
	at    int
	d     *description
	place int  // of the next argument in d.Arguments
	input bool // an input has been seen
}

func (r *reader) unfit(format string, args ...any) Reading {
	if r.Unfit == "" {
		r.Unfit = fmt.Sprintf(format, args...)
	}
	return r.Reading
}

// read gives roles to the words from r.at on.
func (r *reader) read() {
	for options := true; r.at < len(r.argv) && r.Unfit == ""; {
		word := r.argv[r.at]
		switch {
		case options && word == "--" && r.d.Style == styleGetopt:
			options = false
			r.add(r.at, 0, Option)
			r.at++
		case options && len(word) > 1 && word[0] == '-':
			r.option(word)
		default:
			r.argument()
		}
	}
}

// option reads the option at r.at, and its values.
func (r *reader) option(word string) {
	if role, known := r.d.role(word); known {
		r.at++
		r.add(r.at-1, 0, Option)
		r.value(word, role)
		return
	}
	if r.d.Style == styleWords {
		r.unknown(word)
		return
	}
	if strings.HasPrefix(word, "--") {
		name, value, found := strings.Cut(word, "=")
		role, known := r.d.role(name)
		if !found || !known {
			r.unknown(name)
			return
		}
		if role.Name == "" { // a flag with an optional value
			role.Name = Value
		}
		r.refuse(name, value)
		r.take(r.at, len(name)+1, role)
		r.at++
		return
	}
	// A word of letters, where the last option may be followed by its value.
	for i := 1; i < len(word); i++ {
		name := "-" + word[i:i+1]
		role, known := r.d.role(name)
		switch {
		case !known:
			r.unknown(name)
			return
		case role.Name == "":
			r.refuse(name, "")
		case i+1 < len(word):
			r.refuse(name, word[i+1:])
			r.take(r.at, i+1, role)
			r.at++
			return
		default:
			r.add(r.at, 0, Option)
			r.at++
			r.value(name, role)
			return
		}
	}
	r.add(r.at, 0, Option)
	r.at++
}

func (r *reader) unknown(name string) { r.unfit("the option %s is not in the catalogue", name) }

// refuse sets Unfit if an option, or the option with this value, is unfit.
func (r *reader) refuse(name, value string) {
	for _, what := range []string{name, name + " " + value} {
		if reason := r.d.Unfit[what]; reason != "" {
			r.unfit("%s: %s", what, reason)
		}
	}
}

// value reads the values of an option, which begin at r.at.
func (r *reader) value(name string, role role) {
	if role.Name == "" {
		r.refuse(name, "")
		return
	}
	for n := 0; n == 0 || role.Several; n++ {
		if r.at >= len(r.argv) || n > 0 && r.d.known(r.argv[r.at]) {
			if n == 0 {
				r.unfit("the option %s has no value", name)
			}
			return
		}
		r.refuse(name, r.argv[r.at])
		r.take(r.at, 0, role)
		r.at++
	}
}

// argument reads the argument at r.at.
func (r *reader) argument() {
	if r.place >= len(r.d.Arguments) {
		r.unfit("the argument %s is not in the catalogue", r.argv[r.at])
		return
	}
	role := r.d.Arguments[r.place]
	if !role.Several {
		r.place++
	}
	r.take(r.at, 0, role)
	r.at++
}

// take gives a role to an argument from a byte on.
func (r *reader) take(arg, from int, role role) {
	text := r.argv[arg][from:]
	if from > 0 {
		r.Words = append(r.Words, Word{arg, 0, from, Option})
	}
	if role.Name == readGroup {
		r.readGroup(arg, from)
		return
	}
	if !role.List {
		r.part(arg, from, len(r.argv[arg]), role.Name)
		return
	}
	for _, part := range strings.Split(text, ",") {
		r.part(arg, from, from+len(part), role.Name)
		from += len(part) + 1
	}
}

// part gives a role to a part of an argument. Standard input and output, and empty parts,
// belong to the command.
func (r *reader) part(arg, from, to int, role Role) {
	text := r.argv[arg][from:to]
	if role == Input {
		r.input = true
	}
	pipe := role == Input && strings.HasPrefix(text, descriptors) // as a shell makes it for <(command)
	if role.Late() && (text == standard || text == "" || strings.HasPrefix(text, "/dev/") && !pipe || strings.HasPrefix(text, "/proc/")) {
		role = Value
	}
	r.Words = append(r.Words, Word{arg, from, to, role})
}

func (r *reader) add(arg, from int, role Role) {
	r.Words = append(r.Words, Word{arg, from, len(r.argv[arg]), role})
}

// groupTags are the fields of a read group whose values name the sample or its run. Others,
// such as the platform, belong to the command.
var groupTags = []string{"ID:", "SM:", "LB:", "PU:", "BC:", "DT:"}

// readGroup finds the labels in a read group: in values of fields that are separated by
// tabs, by the two characters \t, by spaces or by commas.
func (r *reader) readGroup(arg, from int) {
	text := r.argv[arg]
	separator := func(i int) int {
		switch {
		case text[i] == '\t', text[i] == ' ', text[i] == ',':
			return 1
		case strings.HasPrefix(text[i:], `\t`):
			return 2
		}
		return 0
	}
	started := len(r.Words)
	for i, field := from, true; i < len(text); {
		if n := separator(i); n > 0 {
			i, field = i+n, true
			continue
		}
		end := i
		for end < len(text) && separator(end) == 0 {
			end++
		}
		if field && end-i > 3 && slices.Contains(groupTags, text[i:i+3]) {
			r.Words = append(r.Words, Word{arg, i + 3, end, Label})
		}
		i, field = end, false
	}
	if len(r.Words) == started {
		r.Words = append(r.Words, Word{arg, from, len(text), Value})
	}
}
