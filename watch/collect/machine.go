package collect

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// machine is what collectors look at.
type machine struct {
	*catalogue
	root string           // see the package's words
	now  func() time.Time // by the monotonic clock, of any date: for differences
	wall func() time.Time
}

func (m *machine) path(name string) string { return filepath.Join("/", m.root, name) }

// read returns what is in a file of the machine.
func (m *machine) read(name string) (string, error) {
	b, err := os.ReadFile(m.path(name))
	return string(b), err
}

// number reads a count as the kernel writes it; 0 for what is none, such as "max".
func number(s string) float64 {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return float64(v)
}

// pairs calls f with the first and second word of each line, as in
// `nr_throttled 3`.
func pairs(text string, f func(key string, value float64)) {
	for line := range strings.Lines(text) {
		key, rest, ok := strings.Cut(line, " ")
		if !ok {
			continue
		}
		word, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		f(key, number(word))
	}
}

// kept is a map of things that are seen in each turn. What was not seen in a turn is
// forgotten, so that a thing that comes again begins anew.
type kept[T any] struct {
	things map[string]*keptThing[T]
	turn   uint64
}

type keptThing[T any] struct {
	value *T
	turn  uint64
}

// get returns what is kept of a thing, made where it is new.
func (k *kept[T]) get(key string, make_ func() *T) *T {
	t := k.things[key]
	if t == nil {
		if k.things == nil {
			k.things = make(map[string]*keptThing[T])
		}
		t = &keptThing[T]{value: make_()}
		k.things[key] = t
	}
	t.turn = k.turn
	return t.value
}

// sweep ends a turn: gone is called, if it is not nil, for what was not seen in it.
func (k *kept[T]) sweep(gone func(key string, t *T)) {
	for key, t := range k.things {
		if t.turn != k.turn {
			delete(k.things, key)
			if gone != nil {
				gone(key, t.value)
			}
		}
	}
	k.turn++
}
