package queue

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Array makes the line of a spec stand for many tasks, its elements. It is the only line of
// its batch. The texts of an element are those of the spec, with each place replaced by a
// number of the element; see [Array.Place].
type Array struct {
	Indices [][3]int `json:"indices"` // ranges: first, last and step, in order
	Mark    string   `json:"mark"`    // begins a place; it is nowhere else in the spec
}

// Numbers of an element for which there are places.
const (
	ElementTask  = 't' // its task
	ElementIndex = 'i'
)

// MaxElements is the highest number of elements of an array.
const MaxElements = 1 << 20

// maxForeign is the highest number of elements of all arrays in a directory of another user.
// A line of that user would else take as much memory of the reader as it claims to need.
const maxForeign = MaxElements

// NewArray returns an array with these indices, which are in order. Its mark is in none of the
// texts.
func NewArray(indices []int, texts ...string) *Array {
	a := &Array{}
	for i := 0; i < len(indices); {
		step, end := 1, i
		if i+1 < len(indices) {
			step = indices[i+1] - indices[i]
			for end+1 < len(indices) && indices[end+1]-indices[end] == step {
				end++
			}
		}
		a.Indices = append(a.Indices, [3]int{indices[i], indices[end], step})
		i = end + 1
	}
	for n := 0; ; n++ {
		a.Mark = "<" + strconv.FormatInt(int64(n), 36) + ">"
		if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, a.Mark) }) {
			return a
		}
	}
}

// Place returns a text in whose place an element has one of its numbers, with zeros up to a
// width.
func (a *Array) Place(number byte, width int) string {
	return a.Mark + string(number) + strconv.Itoa(width) + ";"
}

// Len returns the number of elements.
func (a *Array) Len() int {
	n := 0
	for _, r := range a.Indices {
		n += (r[1]-r[0])/r[2] + 1
	}
	return n
}

// Index returns the index of an element, which counts from 0.
func (a *Array) Index(element int) int {
	for _, r := range a.Indices {
		n := (r[1]-r[0])/r[2] + 1
		if element < n {
			return r[0] + element*r[2]
		}
		element -= n
	}
	return 0
}

// Element returns the element with an index; ok is false if there is none.
func (a *Array) Element(index int) (element int, ok bool) {
	for _, r := range a.Indices {
		if index >= r[0] && index <= r[1] && (index-r[0])%r[2] == 0 {
			return element + (index-r[0])/r[2], true
		}
		element += (r[1]-r[0])/r[2] + 1
	}
	return 0, false
}

// Expand returns a text of an element.
func (a *Array) Expand(text string, task, element int) string {
	if !strings.Contains(text, a.Mark) {
		return text
	}
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, a.Mark)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		place, rest, _ := strings.Cut(after, ";")
		number := task
		if strings.HasPrefix(place, string(rune(ElementIndex))) {
			number = a.Index(element)
		}
		width, _ := strconv.Atoi(place[min(1, len(place)):])
		fmt.Fprintf(&b, "%0*d", min(width, 20), number)
		text = rest
	}
}

// check returns the mistake in an array, or nil.
func (a *Array) check() error {
	if a.Mark == "" || len(a.Indices) == 0 {
		return errors.New("an array without a mark or an index")
	}
	n := 0
	for i, r := range a.Indices {
		if r[0] < 0 || r[1] < r[0] || r[1] > math.MaxInt32 || r[2] < 1 || i > 0 && r[0] <= a.Indices[i-1][1] {
			return errors.New("the indices of an array are not in order")
		}
		if n += (r[1]-r[0])/r[2] + 1; n > MaxElements {
			return fmt.Errorf("an array has more than %d elements", MaxElements)
		}
	}
	return nil
}

// tasks returns the number of tasks of a spec.
func (s *Spec) tasks() int {
	if s.Array == nil {
		return 1
	}
	return s.Array.Len()
}

// element returns the spec of an element of an array. s stays as it is.
func (s *Spec) element(task, element int) *Spec {
	a, one := s.Array, *s
	one.Array = nil
	for _, text := range []*string{&one.Command, &one.Stdin, &one.Stdout, &one.Stderr, &one.Name} {
		*text = a.Expand(*text, task, element)
	}
	one.Argv = slices.Clone(s.Argv)
	for i := range one.Argv {
		one.Argv[i] = a.Expand(one.Argv[i], task, element)
	}
	one.Env = maps.Clone(s.Env)
	for k, v := range one.Env {
		if strings.Contains(v, a.Mark) {
			one.Env[k] = a.Expand(v, task, element)
		}
	}
	return &one
}

// Batch returns the numbers of the first and the last task that were submitted together with
// a task, and the spec of the array that they are; nil if they are not one.
func (q *Queue) Batch(task int) (first, last int, array *Spec, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, ok := q.entry(task)
	if !ok {
		return 0, 0, nil, q.noTask(task)
	}
	o := q.list[e.order]
	first, last = o.First, o.First+o.Tasks-1
	if o.Array {
		array, err = q.array(&e)
	}
	return first, last, array, err
}

// array returns the spec of the array of an entry. The caller holds mu, and changes nothing in
// the spec.
func (q *Queue) array(e *entry) (*Spec, error) {
	if q.latest != nil && q.latestAt == e.spec {
		return q.latest, nil
	}
	s, err := q.readSpec(e)
	if err == nil && s.Array == nil {
		err = q.damaged(tasksFile)
	}
	if err != nil {
		return nil, err
	}
	q.latest, q.latestAt = s, e.spec
	return s, nil
}

// Census counts tasks of a range, and is for callers that ask often: it takes the lock once.
type Census struct {
	Counts [4]int // by State
	Held   int    // tasks that wait and are held
}

// Census counts the tasks from first to last.
func (q *Queue) Census(first, last int) (c Census) {
	q.mu.Lock()
	defer q.mu.Unlock()
	entries := q.entries()
	for t := max(first, 1); t <= min(last, entries.len()); t++ {
		e := entries.at(t)
		s := e.state()
		c.Counts[s]++
		if s == Waiting && e.flags&flagHeld != 0 {
			c.Held++
		}
	}
	return c
}

// HeldFrom returns ranges of tasks from first to last that wait and are held, without the
// tasks that skip reports: at most as many tasks as most.
func (q *Queue) HeldFrom(first, last, most int, skip func(task int) bool) (ranges [][2]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	entries := q.entries()
	for t := max(first, 1); t <= min(last, entries.len()) && most > 0; t++ {
		e := entries.at(t)
		if e.flags&flagHeld == 0 || e.state() != Waiting || skip(t) {
			continue
		}
		most--
		if n := len(ranges); n > 0 && ranges[n-1][1] == t-1 {
			ranges[n-1][1] = t
		} else {
			ranges = append(ranges, [2]int{t, t})
		}
	}
	return ranges
}

// Moves returns a number that is another one when the state of a task, as this process has
// read it, may have changed.
func (q *Queue) Moves() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.moves
}

// Moved returns the states of all tasks, and the tasks whose state differs from the state in
// seen, which is an earlier result. New tasks waited before.
func (q *Queue) Moved(seen []State) (now []State, tasks []int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	entries := q.entries()
	for i := range entries.len() {
		e := entries.at(i + 1)
		s := e.state()
		if i >= len(seen) {
			seen = append(seen, Waiting)
		}
		if seen[i] != s {
			seen[i] = s
			tasks = append(tasks, i+1)
		}
	}
	return seen, tasks
}
