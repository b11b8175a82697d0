package queue

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzTables opens a task directory of another user. The tasks must be those in the tables, and a
// claim in a table must not make premix allocate much memory.
func FuzzTables(f *testing.F) {
	f.Add([]byte(`{"table":"orders","format":1}`+"\n"), []byte(""), []byte(""))
	seed := f.TempDir()
	q, err := Open(seed, "test", true)
	if err != nil {
		f.Fatal(err)
	}
	in, err := filepath.Rel(seed, q.path(""))
	if err != nil {
		f.Fatal(err)
	}
	if _, err := trySubmit(q, BatchOptions{}, Input{}, "a\nb\n"); err != nil {
		f.Fatal(err)
	}
	if _, err := q.Cancel(&Selection{}); err != nil {
		f.Fatal(err)
	}
	q.Close()
	names := []string{"orders.jsonl", "tasks.jsonl", "journal-0001.jsonl"}
	var text [3][]byte
	for i, name := range names {
		text[i], _ = os.ReadFile(q.path(name)) // there may be no journal yet
	}
	f.Add(text[0], text[1], text[2])
	f.Add(text[0], text[1], []byte(`{"table":"task","format":1}`+"\n"+`{"task":1,"try":1,"cause":"exit","error":"x","log":"../../x","stderr_length":5}`+"\n"))
	f.Fuzz(func(t *testing.T, orders, tasks, journal []byte) {
		dir := t.TempDir()
		at := filepath.Join(dir, in)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, b := range [][]byte{orders, tasks, journal} {
			if err := os.WriteFile(filepath.Join(at, names[i]), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		q, err := Open(dir, "test", false)
		if err != nil {
			return
		}
		defer q.Close()
		list, err := q.Tasks(&Selection{})
		if err != nil {
			return
		}
		for i, task := range list {
			if task.Task < 1 || task.Tries < 0 || i > 0 && task.Task <= list[i-1].Task {
				t.Fatalf("task %+v after %+v", task, list[max(0, i-1)])
			}
			if i < 3 {
				if why, err := q.Why(task.Task); err == nil && why.Task != task.Task {
					t.Errorf("task %d: %+v", task.Task, why)
				}
			}
		}
	})
}

// FuzzInput reads task files. A file without mistakes has tasks.
func FuzzInput(f *testing.F) {
	for _, text := range []string{"gzip a\n", `{"command":"gzip a","array":"1-3","cores":2,"memory":"1G","after":["x"]}` + "\n", "a,b\n1,2\n", "a\tb\n1\t\n", "\x00", `{"command":["a"]}`} {
		for _, format := range []Format{Lines, JSONL, CSV, TSV} {
			f.Add(text, string(format), "echo {}")
		}
	}
	f.Fuzz(func(t *testing.T, text, format, template string) {
		in := &Input{Name: "tasks", Format: Format(format), Template: template}
		b := &Batch{q: &Queue{}, o: BatchOptions{Options: Options{Group: DefaultGroup}}, known: map[string]int{}}
		if _, err := b.note(DefaultGroup, nil); err != nil {
			t.Fatal(err)
		}
		if err := in.Read(bytes.NewReader([]byte(text)), b); err == nil && b.tasks == 0 {
			t.Errorf("%q as %s has no tasks, and no mistake", text, format)
		}
	})
}
