package queue

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"premix/internal/engine"
)

func submitArray(t *testing.T, q *Queue, s *Spec, o BatchOptions) *Submitted {
	t.Helper()
	b, err := q.Submit(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(s, nil); err != nil {
		t.Fatal(err)
	}
	done, err := b.Commit()
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// checkElement checks an element of the array of TestArray.
func checkElement(t *testing.T, q *Queue, a *Array, first, i, index int) {
	t.Helper()
	task, number := first+i, strconv.Itoa(index)
	got, err := q.Spec(task)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"echo", "<0>t0;", "x" + number + "<2"}; !slices.Equal(got.Argv, want) || got.Name != "n" || got.Note != "note" || got.Group != "g" || got.Array != nil {
		t.Errorf("element %d: %+v", index, got)
	}
	if want := map[string]string{"A": "000" + strconv.Itoa(task) + number, "B": "<1>"}; !reflect.DeepEqual(got.Env, want) {
		t.Errorf("element %d: %v; want %v", index, got.Env, want)
	}
	if want := "o-" + ("000" + number)[len(number):]; index < 1000 && got.Stdout != want {
		t.Errorf("element %d: %s; want %s", index, got.Stdout, want)
	}
	if at, ok := a.Element(index); !ok || at != i {
		t.Errorf("index %d is element %d, %v", index, at, ok)
	}
	if name, err := NamesOf(q.Dir).Of(task); err != nil || name.Name != "n" || name.Group != "g" {
		t.Errorf("element %d: %+v, %v", index, name, err)
	}
	if held := q.Held(task); held != (i != 2 && i != 4 && i != 5) {
		t.Errorf("element %d: held %v", index, held)
	}
}

// For every reader an element of an array is the same task as one from a separate line, even after
// the index is rebuilt.
func TestArray(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	q, err := Open(dir, "test", true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { q.Close() }()
	submitArray(t, q, &Spec{Command: "true"}, BatchOptions{})
	indices := []int{0, 3, 6, 7, 8, 1000}
	a := NewArray(indices, "<0>t0;", "<1>")
	if a.Mark != "<2>" {
		t.Fatal(a.Mark)
	}
	s := &Spec{Argv: []string{"echo", "<0>t0;", "x" + a.Place(ElementIndex, 0) + "<2"}, Name: "n", Env: map[string]string{"A": a.Place(ElementTask, 4) + a.Place(ElementIndex, 0), "B": "<1>"},
		Stdout: "o-" + a.Place(ElementIndex, 3), Options: Options{Group: "g"}, Note: "note", Array: a}
	done := submitArray(t, q, s, BatchOptions{Held: true})
	if done.First != 2 || done.Tasks != len(indices) {
		t.Fatalf("%+v", done)
	}
	submitArray(t, q, &Spec{Command: "false"}, BatchOptions{})
	if _, err := q.Release(&Selection{Tasks: [][2]int{{4, 4}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Cancel(&Selection{Tasks: [][2]int{{6, 7}}}); err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T, q *Queue) {
		for i, index := range indices {
			checkElement(t, q, a, done.First, i, index)
		}
		if c := q.Census(1, 8); c.Counts != [4]int{6, 0, 0, 2} || c.Held != 3 {
			t.Errorf("%+v", c)
		}
		if first, last, array, err := q.Batch(4); first != 2 || last != 7 || array == nil || err != nil {
			t.Errorf("%d %d %v %v", first, last, array, err)
		}
		if _, _, array, err := q.Batch(8); array != nil || err != nil {
			t.Errorf("%v %v", array, err)
		}
		for task, want := range map[int]string{1: "true", 8: "false"} {
			if s, err := q.Spec(task); err != nil || s.Command != want {
				t.Errorf("task %d: %+v, %v", task, s, err)
			}
		}
	}
	check(t, q)
	if n, err := os.ReadFile(filepath.Join(engine.State(dir), tasksFile)); err != nil || len(n) > 1000 {
		t.Errorf("%d bytes, %v", len(n), err)
	}
	index := q.indexPath()
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(index); err != nil {
		t.Fatal(err)
	}
	if q, err = Open(dir, "test", false); err != nil {
		t.Fatal(err)
	}
	check(t, q)
}

func TestArrayIndices(t *testing.T) {
	for _, indices := range [][]int{{5}, {1, 2, 3}, {0, 2, 4, 5, 6, 9}, {1, 5, 100, 200, 300, 301}, {7, 7 + 1<<20}} {
		a := NewArray(indices)
		if err := a.check(); err != nil || a.Len() != len(indices) {
			t.Errorf("%v: %d, %v", indices, a.Len(), err)
		}
		for i, index := range indices {
			if got := a.Index(i); got != index {
				t.Errorf("%v: element %d is %d", indices, i, got)
			}
			if slices.Contains(indices, index+1) {
				continue
			}
			if at, ok := a.Element(index + 1); ok {
				t.Errorf("%v: there is an element %d with index %d", indices, at, index+1)
			}
		}
	}
	for _, a := range []Array{{}, {Mark: "m"}, {Indices: [][3]int{{1, 2, 1}}}, {Mark: "m", Indices: [][3]int{{2, 1, 1}}}, {Mark: "m", Indices: [][3]int{{1, 2, 0}}},
		{Mark: "m", Indices: [][3]int{{-1, 2, 1}}}, {Mark: "m", Indices: [][3]int{{1, 5, 1}, {5, 6, 1}}}, {Mark: "m", Indices: [][3]int{{0, 1<<31 - 1, 1}, {1 << 31, 1 << 32, 1}}}} {
		if a.check() == nil {
			t.Errorf("%+v counts as good", a)
		}
	}
}

// A batch consists of either an array or lines.
func TestArrayAmongLines(t *testing.T) {
	q, err := Open(filepath.Join(t.TempDir(), "d"), "test", true)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for _, specs := range [][]*Spec{{{Command: "a"}, {Command: "b", Array: NewArray([]int{1})}}, {{Command: "b", Array: NewArray([]int{1, 2})}, {Command: "a"}}} {
		b, err := q.Submit(BatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Add(specs[0], nil); err != nil {
			t.Fatal(err)
		}
		if err := b.Add(specs[1], nil); err == nil {
			t.Error("it takes an array beside a line")
		}
		b.Abort()
	}
}

// A directory of another user cannot make its reader keep more tasks than a limit, even with short
// lines that claim many tasks.
func TestArraysOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a directory of another user needs root")
	}
	dir := filepath.Join(t.TempDir(), "d")
	q, err := Open(dir, "test", true)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	const n = maxForeign / 2
	add := func(n int) {
		a := &Array{Indices: [][3]int{{1, n, 1}}, Mark: "<0>"}
		submitArray(t, q, &Spec{Command: "true", Array: a}, BatchOptions{Held: true})
	}
	others := func() error {
		if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, 65534, 65534))
		}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
				return errors.Join(err, os.Lchown(path, 0, 0))
			}); err != nil {
				t.Fatal(err)
			}
		}()
		theirs, err := Open(dir, "test", false)
		if err == nil {
			theirs.Close()
		}
		return err
	}
	add(n)
	add(n)
	if err := others(); err != nil {
		t.Fatalf("as many as the limit: %v", err)
	}
	add(1)
	var bad *engine.DirError
	if err := others(); !errors.As(err, &bad) || bad.Reason != "is of another user, and has arrays of more than 1048576 tasks" {
		t.Fatalf("more than the limit: %v", err)
	}
	if counts := q.Counts(); counts[Waiting] != 2*n+1 {
		t.Errorf("its own user has %v tasks", counts)
	}
	if err := (&Array{Indices: [][3]int{{1, MaxElements + 1, 1}}, Mark: "<0>"}).check(); err == nil {
		t.Error("an array has more elements than the limit")
	}
}
