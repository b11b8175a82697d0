package queue

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"premix/internal/kit/regex"
)

// Resources are numbers of things that tasks hold besides cores and memory, such as GPUs, by
// name.
type Resources map[string]int

var resourceForm = regex.Lazy(`^[a-z][a-z0-9_]{0,31}$`)

// String returns the resources in the form that [ParseResources] reads: "fpga=1,gpu=2".
func (r Resources) String() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if r[name] != 0 {
			list = append(list, name+"="+strconv.Itoa(r[name]))
		}
	}
	return strings.Join(list, ",")
}

// check returns the mistake in resources, or nil.
func (r Resources) check() error {
	for _, name := range slices.Sorted(maps.Keys(r)) {
		switch {
		case !resourceForm().MatchString(name):
			return fmt.Errorf("%q is not a name of a resource: it is a letter, and then letters, digits and _, all small", name)
		case r[name] < 0 || r[name] > maxResource:
			return fmt.Errorf("%s=%d is not between 0 and %d", name, r[name], maxResource)
		}
	}
	return nil
}

// maxResource is the largest number of one resource.
const maxResource = 100_000

// ParseResources reads resources in the form NAME=N,NAME=N.
func ParseResources(text string) (Resources, error) {
	r := make(Resources)
	for part := range strings.SplitSeq(text, ",") {
		name, number, ok := strings.Cut(part, "=")
		n, err := strconv.Atoi(number)
		if _, twice := r[name]; !ok || err != nil || twice {
			return nil, fmt.Errorf("%q is not of the form NAME=N", part)
		}
		r[name] = n
	}
	return r, r.check()
}
