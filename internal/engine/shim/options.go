package shim

import (
	"fmt"
	"strings"
)

// argument is whether an option has an argument.
type argument int

const (
	none argument = iota
	required
	optional // only as --option=value, or -ovalue
)

// option is one option of a client.
type option struct {
	name  string // without --
	short byte   // 0: none
	arg   argument
	use   use
}

// use is how premix treats an option.
type use int

const (
	// used: it is honoured.
	used use = iota
	// site: it names something of a cluster, for example a partition. There is only one
	// machine: the clients show the value again, and it has no effect.
	site
	// moot: it makes no difference on one machine without the service.
	moot
	// refused: ignoring it would give another job than the requested one.
	refused
)

// given is an option that was given.
type given struct {
	*option
	value string
}

// optionError is a mistake in the arguments of a client.
type optionError struct {
	reason string
	hint   string
}

func (e *optionError) Error() string { return e.reason }

// Hint returns the hint for the user.
func (e *optionError) Hint() string { return e.hint }

// parseOptions parses arguments like getopt_long(3): a long name may be shortened
// where it stays unique. With inOrder, options end at the first argument
// that is not an option.
func parseOptions(table []option, args []string, inOrder bool) (list []given, rest []string, err error) {
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		switch {
		case a == "--":
			return list, append(rest, args...), nil
		case strings.HasPrefix(a, "--"):
			var g given
			if g, args, err = longOption(table, a[2:], args); err != nil {
				return nil, nil, err
			}
			list = append(list, g)
		case len(a) > 1 && a[0] == '-':
			var some []given
			if some, args, err = shortOptions(table, a[1:], args); err != nil {
				return nil, nil, err
			}
			list = append(list, some...)
		default:
			rest = append(rest, a)
			if inOrder {
				return list, append(rest, args...), nil
			}
		}
	}
	return list, rest, nil
}

// longOption parses NAME or NAME=VALUE, and takes the value from args otherwise.
func longOption(table []option, text string, args []string) (given, []string, error) {
	name, value, has := strings.Cut(text, "=")
	o, err := find(table, name)
	switch {
	case err != nil:
		return given{}, nil, err
	case has && o.arg == none:
		return given{}, nil, &optionError{fmt.Sprintf("option '--%s' doesn't allow an argument", o.name), ""}
	case has || o.arg != required:
		return given{o, value}, args, nil
	case len(args) == 0:
		return given{}, nil, &optionError{fmt.Sprintf("option '--%s' requires an argument", o.name), ""}
	}
	return given{o, args[0]}, args[1:], nil
}

// shortOptions parses letters, of which the last may have its value behind it or in args.
func shortOptions(table []option, letters string, args []string) (list []given, _ []string, err error) {
	for k := 0; k < len(letters); k++ {
		o := findShort(table, letters[k])
		switch {
		case o == nil:
			return nil, nil, &optionError{fmt.Sprintf("invalid option -- '%c'", letters[k]), ""}
		case o.arg == none:
			list = append(list, given{o, ""})
			continue
		}
		value := letters[k+1:]
		if value == "" && o.arg == required {
			if len(args) == 0 {
				return nil, nil, &optionError{fmt.Sprintf("option requires an argument -- '%c'", letters[k]), ""}
			}
			value, args = args[0], args[1:]
		}
		return append(list, given{o, value}), args, nil
	}
	return list, args, nil
}

func find(table []option, name string) (*option, error) {
	var found *option
	for i := range table {
		o := &table[i]
		if o.name == name {
			return o, nil
		}
		if name != "" && strings.HasPrefix(o.name, name) {
			if found != nil {
				return nil, &optionError{fmt.Sprintf("option '--%s' is ambiguous", name), fmt.Sprintf("it may be --%s or --%s", found.name, o.name)}
			}
			found = o
		}
	}
	if found == nil {
		return nil, &optionError{fmt.Sprintf("unrecognized option '--%s'", name), "premix does not know what it would change; premix help slurm-shim lists the options it does"}
	}
	return found, nil
}

func findShort(table []option, c byte) *option {
	for i := range table {
		if table[i].short == c {
			return &table[i]
		}
	}
	return nil
}

// words cuts a line of options into words, as sbatch does with a line of #SBATCH:
// quotes join, a backslash takes the next character as it is, and # ends it.
func words(line string) ([]string, error) {
	var list []string
	var word strings.Builder
	in := false
	quote := byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
			in = true
		case quote != 0:
			if c == quote {
				quote = 0
			} else {
				word.WriteByte(c)
			}
		case c == '"' || c == '\'':
			quote, in = c, true
		case c == ' ' || c == '\t' || c == '\r':
			if in {
				list = append(list, word.String())
				word.Reset()
				in = false
			}
		case c == '#' && !in:
			return list, nil
		default:
			word.WriteByte(c)
			in = true
		}
	}
	if quote != 0 {
		return nil, &optionError{"a quote is not closed", "close it: " + line}
	}
	if in {
		list = append(list, word.String())
	}
	return list, nil
}
