package collect

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// machine is the machine that collectors measure.
type machine struct {
	*catalogue
	root string           // defined in the package documentation
	now  func() time.Time // by the monotonic clock, from any origin: for differences
	wall func() time.Time
}

func (m *machine) path(name string) string { return filepath.Join("/", m.root, name) }

// read returns the content of a file of the machine.
func (m *machine) read(name string) (string, error) {
	b, err := os.ReadFile(m.path(name))
	return string(b), err
}

// number parses a count as the kernel writes it; it returns 0 for other text, for example
// "max".
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

// kept is a map of the things found in each turn. A thing that was not found in a turn is
// removed, so that its counters start again if it comes back.
type kept[T any] struct {
	things map[string]*keptThing[T]
	turn   uint64
}

type keptThing[T any] struct {
	value *T
	turn  uint64
}

// get returns the entry of a thing, and creates it if it is new.
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

// sweep ends a turn: it removes things not found in it, and calls gone for each, if gone is
// not nil.
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
