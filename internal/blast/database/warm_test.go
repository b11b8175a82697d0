package database

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// localDatabase writes a local copy with the description of holdingOf and its record into home.
func localDatabase(t *testing.T, home, name, id string) *Description {
	t.Helper()
	data := filepath.Join(home, name, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		t.Fatal(err)
	}
	d := smallDescription(id)
	for _, f := range d.Files {
		if err := os.WriteFile(filepath.Join(data, f.Name), make([]byte, f.Size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"lock", "change"} {
		if err := os.WriteFile(filepath.Join(home, name, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(writeJSON(filepath.Join(data, DescriptionFile), d), writeRecord(filepath.Join(home, name), &Record{Format: recordFormat, Name: name, Data: data})); err != nil {
		t.Fatal(err)
	}
	return d
}

// memory makes a directory in memory, which PREMIX_BLAST_RAM names.
func memory(t *testing.T) string {
	t.Helper()
	shm, err := os.MkdirTemp("/dev/shm", "premix-test-")
	if err != nil {
		t.Skipf("there is no tmpfs to write to: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(shm) })
	ram := filepath.Join(shm, "blast")
	t.Setenv("PREMIX_BLAST_RAM", ram)
	return ram
}

// inMemoryNow returns the names of the directories in memory.
func inMemoryNow(t *testing.T, ram string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(ram)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Killed processes leave databases in memory that no record wants. They are removed once no search
// uses them. Databases of other homes are not.
func TestSweepRAM(t *testing.T) {
	ram, home := memory(t), t.TempDir()
	localDatabase(t, home, "wanted", "0a")
	if _, err := Warm(t.Context(), home, "wanted", 0); err != nil {
		t.Fatal(err)
	}
	leave := func(home, name, id string) *Holding {
		x := local(home, name, smallDescription(id))
		for i := range 2 { // the third is missing: the process was killed before
			if err := x.Load(t.Context(), i, content); err != nil {
				t.Fatal(err)
			}
		}
		return x
	}
	leave(home, "wanted", "0b") // by an update
	leave(home, "removed", "0c")
	leave(t.TempDir(), "other", "0d")
	used, err := leave(home, "used", "0e").Open(0, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"wanted-0f", "unknown-0a", ".new-1"} { // of a version that had no holdings
		if err := errors.Join(os.MkdirAll(filepath.Join(ram, dir, "data"), 0o755), os.WriteFile(filepath.Join(ram, dir, "lock"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(ram, "wanted-files"), 0o755); err != nil { // of the user
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(ram, ".new-1"), long, long); err != nil {
		t.Fatal(err)
	}
	if err := sweepRAM(home); err != nil {
		t.Fatal(err)
	}
	if got, want := inMemoryNow(t, ram), []string{"other-0d", "unknown-0a", "used-0e", "wanted-0a", "wanted-files"}; !slices.Equal(got, want) {
		t.Errorf("in memory are %q, want %q", got, want)
	}
	for _, f := range used.Fragments {
		if !exists(f.Path + ".nal") {
			t.Errorf("%s is gone from under a search", f.Path)
		}
	}
	if err := used.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := WarmAll(t.Context(), home, 0); err != nil {
		t.Fatal(err)
	}
	if got, want := inMemoryNow(t, ram), []string{"other-0d", "unknown-0a", "wanted-0a", "wanted-files"}; !slices.Equal(got, want) {
		t.Errorf("after the search in memory are %q, want %q", got, want)
	}
}

// A database that a version without holdings has loaded is used, and not loaded again.
func TestWarmTakesOver(t *testing.T) {
	ram, home := memory(t), t.TempDir()
	d := localDatabase(t, home, "x", "0a")
	if _, err := Warm(t.Context(), home, "x", 0); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(ram, "x-0a")
	// Its directory had no description, and its lock no content.
	if err := errors.Join(os.Remove(filepath.Join(at, DescriptionFile)), os.Truncate(filepath.Join(at, "lock"), 0)); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(filepath.Join(at, "data/v1.nsq"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := WarmAll(t.Context(), home, 0)
	if err != nil || len(list) != 1 || list[0].Err != nil || list[0].Resident.InMemory != d.Bytes() {
		t.Fatalf("%+v, %v", list, err)
	}
	if after, err := os.Stat(filepath.Join(at, "data/v1.nsq")); err != nil || !os.SameFile(before, after) {
		t.Errorf("a file was loaded again (%v)", err)
	}
	if freed, err := Evict(home, "x"); err != nil || freed != d.Bytes() || exists(ram) {
		t.Errorf("freed %d, %v", freed, err)
	}
}

// An eviction that is killed while it waits for a search does not disturb it. The database can be
// resident again after the search.
func TestWarmAfterKilledEviction(t *testing.T) {
	memory(t)
	home := t.TempDir()
	d := localDatabase(t, home, "x", "0a")
	if _, err := Warm(t.Context(), home, "x", 0); err != nil {
		t.Fatal(err)
	}
	search, err := Open(home, "x")
	if err != nil || !search.Resident {
		t.Fatalf("%+v, %v", search, err)
	}
	x := local(home, "x", d)
	for i := range d.Fragments {
		if err := os.WriteFile(x.leaving(i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if cold, err := Open(home, "x"); err != nil || cold.Resident || cold.Close() != nil {
		t.Errorf("a search opens a database that leaves: %+v, %v", cold, err)
	}
	type result struct {
		*Resident
		error
	}
	done := make(chan result, 1)
	go func() {
		r, err := Warm(t.Context(), home, "x", 0)
		done <- result{r, err}
	}()
	select {
	case r := <-done:
		t.Errorf("it does not wait for the search: %+v", r)
	case <-time.After(100 * time.Millisecond):
	}
	for _, f := range search.Fragments {
		if !exists(f.Path + ".nal") {
			t.Errorf("%s is gone from under a search", f.Path)
		}
	}
	if err := search.Close(); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.error != nil || r.InMemory != d.Bytes() {
		t.Errorf("%+v", r)
	}
}

// A failure leaves nothing in memory, and the record as it was.
func TestWarmFails(t *testing.T) {
	ram, home := memory(t), t.TempDir()
	localDatabase(t, home, "x", "0a")
	if err := os.Truncate(filepath.Join(home, "x/data/v2.nsq"), 3); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err := Warm(t.Context(), home, "x", 0); !errors.As(err, &e) || e.Kind != Damaged {
		t.Errorf("a short file: %v", err)
	}
	if r, err := readRecord(home, "x"); err != nil || r.Warm || len(inMemoryNow(t, ram)) > 0 {
		t.Errorf("%+v, %v, in memory are %q", r, err, inMemoryNow(t, ram))
	}
}

// Files belong to the volume with the longest name that they begin with.
func TestDivided(t *testing.T) {
	d := &Description{Fragments: []Range{{Volumes: []string{"x"}}, {Volumes: []string{"x.000", "x.001.00"}}, {Volumes: []string{"y"}}}}
	for _, f := range []string{"x.nsq", "x.000.nsq", "x.001.00.nin", "y.nsq", "all.ndb", "z"} {
		d.Files = append(d.Files, DataFile{Name: f, Size: 1})
	}
	files, shared := d.divided()
	names := func(list []DataFile) (names []string) {
		for _, f := range list {
			names = append(names, f.Name)
		}
		return names
	}
	for i, want := range [][]string{{"x.nsq"}, {"x.000.nsq", "x.001.00.nin"}, {"y.nsq"}} {
		if got := names(files[i]); !slices.Equal(got, append(want, "all.ndb", "z")) || shared != 2 {
			t.Errorf("fragment %d has %q, want %q, of which all need %d", i, got, want, shared)
		}
	}
}
