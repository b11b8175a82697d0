package collect

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/calls"
)

func TestStarts(t *testing.T) {
	b := newBench(t)
	home := t.TempDir()
	t.Setenv("PREMIX_HOME", home)
	dir, err := calls.Dir()
	if err != nil {
		t.Fatal(err)
	}
	c := newStarts(b.machine)
	c.tables = func() []startsTable { return []startsTable{{"ann", os.Geteuid(), dir}} }
	collect := func() error {
		b.sink = &recorder{}
		return c.Collect(t.Context(), time.Now(), b.sink)
	}
	if err := collect(); err != nil || len(b.sink.samples) > 0 {
		t.Fatalf("a user without a table: %v, %v", b.sink.samples, err)
	}
	calls.RecordStart(calls.Start{Tool: "bwa", Start: "cold", Why: "first"})
	calls.RecordStart(calls.Start{Tool: "bwa", Start: "hot", Saved: 1.5, Bytes: 3000})
	if err := collect(); err != nil {
		t.Fatal(err)
	}
	b.sink.want(t, map[string]float64{`task.week_hot_starts{user="ann"}`: 1, `task.week_cold_starts{user="ann"}`: 1, `task.week_saved{user="ann"}`: 1.5, `task.week_not_loaded{user="ann"}`: 3000})
	calls.RecordStart(calls.Start{Tool: "bwa", Start: "hot", Saved: 2})
	// Append a start on another machine with the same home directory, and a start in an
	// earlier week.
	f, err := os.OpenFile(calls.StartsFile(dir), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"time":"2999-01-01T00:00:00Z","node":"other.invalid","tool":"bwa","start":"hot","saved":100}
{"time":"1999-01-01T00:00:00Z","node":"` + calls.ThisMachine().Name() + `","tool":"bwa","start":"hot","saved":100}
`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := collect(); err != nil {
		t.Fatal(err)
	}
	b.sink.want(t, map[string]float64{`task.week_hot_starts{user="ann"}`: 2, `task.week_cold_starts{user="ann"}`: 1, `task.week_saved{user="ann"}`: 3.5})

	// Files of another user, links and pipes are not read.
	file := calls.StartsFile(dir)
	other := filepath.Join(home, "other")
	for name, replace := range map[string]func() error{
		"link": func() error { return os.Symlink(other, file) },
		"pipe": func() error { return unix.Mkfifo(file, 0o600) },
	} {
		if err := os.WriteFile(other, []byte(`{"time":"2999-01-01T00:00:00Z","node":"`+calls.ThisMachine().Name()+`","start":"hot","saved":100}`+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		if err := collect(); err == nil || len(b.sink.samples) > 0 {
			t.Errorf("%s: %v, %v", name, b.sink.samples, err)
		}
	}
	if err := errors.Join(os.Remove(file), os.WriteFile(file, nil, 0o600), os.Truncate(file, 1<<30)); err != nil {
		t.Fatal(err)
	}
	if err := collect(); err == nil || len(b.sink.samples) > 0 {
		t.Errorf("a table of 1 GiB: %v, %v", b.sink.samples, err)
	}
	c.tables = func() []startsTable { return []startsTable{{"eve", os.Geteuid() + 1, dir}} }
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	calls.RecordStart(calls.Start{Tool: "bwa", Start: "hot", Saved: 2})
	if err := collect(); err == nil || len(b.sink.samples) > 0 {
		t.Errorf("a table of another user: %v, %v", b.sink.samples, err)
	}
}

func TestAllTables(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o777); err != nil {
		t.Fatal(err)
	}
	text := "ann:x:4242:4242::/home/ann:/bin/sh\nshort:x:1\nodd:x:4243:1::home:/bin/sh\n"
	if err := os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	got := allTables(root)
	if len(got) != 1 || got[0] != (startsTable{"ann", 4242, filepath.Join(root, "home/ann/.cache/premix/calls")}) {
		t.Errorf("the tables are %v", got)
	}
}
