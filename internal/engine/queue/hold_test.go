package queue

import (
	"testing"
)

// Held tasks are not picked before they are released, even after the directory is opened again.
func TestHold(t *testing.T) {
	dir := t.TempDir()
	q, err := Open(dir, "v1", true)
	if err != nil {
		t.Fatal(err)
	}
	b, err := q.Submit(BatchOptions{Held: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := b.First(); n != 1 {
		t.Errorf("the first number is %d", n)
	}
	for range 3 {
		if err := b.Add(&Spec{Command: "true", Note: "kept", Env: map[string]string{"X": "a\xffb"}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	p := q.Picker(nil)
	pick := func() int {
		t.Helper()
		task, err := p.Next(func(*Task) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		if task == nil {
			return 0
		}
		if task.Note != "kept" || task.Env["X"] != "a\xffb" {
			t.Errorf("%+v", task.Spec)
		}
		return task.Number
	}
	if n := pick(); n != 0 {
		t.Errorf("task %d is picked", n)
	}
	change := func(f func(*Selection) (int, error), want int, tasks ...[2]int) {
		t.Helper()
		if n, err := f(&Selection{Tasks: tasks}); err != nil || n != want {
			t.Errorf("%d, %v; want %d", n, err, want)
		}
		p.Refresh()
	}
	change(q.Release, 1, [2]int{2, 2})
	change(q.Hold, 1, [2]int{2, 3}) // 3 was held before
	if n := pick(); n != 0 {
		t.Errorf("task %d is picked", n)
	}
	change(q.Release, 2, [2]int{1, 2})
	if q.Held(2) || !q.Held(3) || q.Held(4) {
		t.Error("the wrong ones are held")
	}
	if a, b := pick(), pick(); a != 1 && b != 1 || a != 2 && b != 2 || pick() != 0 {
		t.Errorf("%d and %d are picked", a, b)
	}
	x, err := q.Why(3)
	if err != nil || x.Why != "it is held until it is released" {
		t.Errorf("%v %v", x, err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if q, err = Open(dir, "v1", false); err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if q.Held(2) || !q.Held(3) {
		t.Error("it is not known any more which ones are held")
	}
	if r, err := q.Record(3); r != nil || err != nil {
		t.Errorf("%v %v", r, err)
	}
}
