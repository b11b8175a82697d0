package pilot

import (
	"fmt"
	"maps"
	"premix/internal/kit/exit"
	"premix/internal/kit/units"
	"slices"
	"strconv"
	"strings"
)

// ParseOptions reads options as a command line gives them, KEY=VALUE. Those that every
// engine has go into o; the rest is for the engine.
func (o *Options) ParseOptions(list []string) (rest map[string]string, err error) {
	rest = make(map[string]string)
	for _, text := range list {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, exit.Errorf(exit.Usage, "as in --engine-opt jobs=8", "--engine-opt %q is not of the form KEY=VALUE", text)
		}
		bad := func(err error) error {
			return exit.Errorf(exit.Usage, "see the page of the engine in the documentation", "--engine-opt %s: %v", text, err)
		}
		switch key {
		case "jobs", "cores":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return nil, bad(fmt.Errorf("%q is not a whole number from 1", value))
			}
			if key == "jobs" {
				o.Jobs = n
			} else {
				o.Cores = n
			}
		case "target", "answer":
			d, err := units.ParseDuration(value)
			if err != nil {
				return nil, bad(err)
			}
			if key == "target" {
				o.Target = d
			} else {
				o.Answer = d
			}
		case "memory":
			if o.Memory, err = units.ParseMemory(value); err != nil {
				return nil, bad(err)
			}
		default:
			if _, twice := rest[key]; twice {
				return nil, bad(fmt.Errorf("it is given twice"))
			}
			rest[key] = value
		}
	}
	return rest, nil
}

// UnknownOption returns the error for options that an engine does not know; nil if rest is
// empty.
func UnknownOption(engine string, rest map[string]string, known ...string) error {
	if len(rest) == 0 {
		return nil
	}
	known = append(known, "answer", "cores", "jobs", "memory", "target")
	slices.Sort(known)
	return exit.Errorf(exit.Usage, "it has "+strings.Join(known, ", "), "%s has no option %s", engine, slices.Sorted(maps.Keys(rest))[0])
}
