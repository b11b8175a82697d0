package queue

import (
	"fmt"
	"strings"
	"testing"
)

// NamesOf returns the names of tasks without opening the queue, in any order, including tasks of
// later batches.
func TestNames(t *testing.T) {
	dir := t.TempDir() + "/d"
	q := open(t, dir)
	var text strings.Builder
	for i := 1; i <= 700; i++ {
		fmt.Fprintf(&text, "echo %d\n", i)
	}
	submit(t, q, BatchOptions{Options: Options{Group: "first"}}, Input{}, text.String())
	n := NamesOf(dir)
	check := func(task int, name, group string) {
		t.Helper()
		got, err := n.Of(task)
		if err != nil || got.Name != name || got.Group != group || got.User == "" {
			t.Errorf("task %d: %+v %v", task, got, err)
		}
	}
	for _, task := range []int{700, 1, 256, 257, 512, 513, 2, 699} {
		check(task, fmt.Sprintf("echo %d", task), "first")
	}
	if _, err := n.Of(701); err == nil {
		t.Error("there is a task 701")
	}
	submit(t, q, BatchOptions{Options: Options{Group: "second", Memory: 7 << 20, Cores: 2}}, Input{}, "sleep 1\n")
	check(701, "sleep 1", "second")
	if got, _ := n.Of(701); got.Memory != 7<<20 || got.Cores != 2 {
		t.Errorf("%+v", got)
	}
	check(300, "echo 300", "first")
}
