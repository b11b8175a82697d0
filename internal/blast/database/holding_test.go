package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// holdingOf opens holdings in memory, and the holding of a small database.
func holdingOf(t *testing.T) (dir string, h *Holdings, x *Holding) {
	t.Helper()
	shm, err := os.MkdirTemp("/dev/shm", "premix-test-")
	if err != nil {
		t.Skipf("there is no tmpfs to write to: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(shm) })
	dir = filepath.Join(shm, "node")
	if h, err = OpenHoldings(dir); err != nil {
		t.Fatal(err)
	}
	d := smallDescription("0123")
	if x, err = h.Add("db", d); err != nil {
		t.Fatal(err)
	}
	return dir, h, x
}

// smallDescription describes a database of three fragments with one volume each and a shared file.
func smallDescription(id string) *Description {
	d := &Description{Format: descriptionFormat, ID: id, Type: Nucl, Title: "t", Sequences: 3, Letters: 30, Files: []DataFile{{Name: "all.ndb", Size: 5}}}
	for i, v := range []string{"v0", "v1", "v2"} {
		d.Fragments = append(d.Fragments, Range{Volumes: []string{v}, First: int64(i), Sequences: 1, Letters: 10})
		d.Files = append(d.Files, DataFile{Name: v + ".nsq", Size: 10})
	}
	return d
}

// content writes as many bytes as a file should have.
func content(_ context.Context, name string, to *os.File) error {
	n := 10
	if name == "all.ndb" {
		n = 5
	}
	_, err := to.Write(make([]byte, n))
	return err
}

func TestHolding(t *testing.T) {
	dir, h, x := holdingOf(t)
	files := func() (list []string) {
		entries, err := os.ReadDir(filepath.Join(dir, "db-0123/data"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, e.Name())
		}
		return list
	}
	broken := errors.New("the network is gone")
	if err := x.Load(t.Context(), 0, func(ctx context.Context, name string, to *os.File) error {
		if name == "v0.nsq" {
			return broken
		}
		return content(ctx, name, to)
	}); !errors.Is(err, broken) || x.Has(0) {
		t.Errorf("a broken copy: %v", err)
	}
	if err := x.Load(t.Context(), 0, func(_ context.Context, _ string, to *os.File) error { _, err := to.WriteString("short"); return err }); err == nil || x.Has(0) {
		t.Error("a short file is accepted")
	}
	for _, i := range []int{0, 2} {
		if err := x.Load(t.Context(), i, content); err != nil {
			t.Fatal(err)
		}
	}
	if got := x.Fragments(); !slices.Equal(got, []int{0, 2}) || x.Bytes() != 25 || !slices.Equal(files(), []string{"all.ndb", "v0.nsq", "v2.nsq"}) {
		t.Errorf("%v, %d bytes, %v", got, x.Bytes(), files())
	}
	if _, err := x.Open(0, 2); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open of a fragment that is not here: %v", err)
	}
	// A second process cannot open the holdings at the same time. A later process finds them.
	if _, err := OpenHoldings(dir); err == nil {
		t.Error("two processes have the same fragments")
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "torn-9"), 0o755); err != nil {
		t.Fatal(err)
	}
	h, err := OpenHoldings(dir)
	if err != nil {
		t.Fatal(err)
	}
	if x = h.Get("db", "0123"); x == nil || !slices.Equal(x.Fragments(), []int{0, 2}) || len(h.All()) != 1 {
		t.Fatalf("after a restart: %+v", h.All())
	}
	// A fragment in use stays until it is closed, and no other search gets it.
	d, err := x.Open(2, 3)
	if err != nil {
		t.Fatal(err)
	}
	dropped := make(chan error, 1)
	go func() { dropped <- x.Drop(2) }()
	for x.Has(2) {
		time.Sleep(time.Millisecond)
	}
	if _, err := x.Open(2, 3); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open of a fragment that is being dropped: %v", err)
	}
	if !exists(d.Fragments[0].Path + ".nal") {
		t.Error("the alias of a fragment in use is gone: a program that begins now fails")
	}
	if !slices.Contains(files(), "v2.nsq") {
		t.Error("a fragment in use is gone")
	}
	if err := errors.Join(d.Close(), <-dropped); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(files(), []string{"all.ndb", "v0.nsq"}) {
		t.Errorf("after a drop: %v", files())
	}
	if err := h.Remove(x); err != nil || len(h.All()) != 0 {
		t.Errorf("remove: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "db-0123")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the removal: %v", err)
	}
}

// What a killed process leaves of unfinished fragments is removed, and a fragment with a file of
// another size does not count.
func TestTidy(t *testing.T) {
	dir, h, x := holdingOf(t)
	for i := range 3 {
		if err := x.Load(t.Context(), i, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "db-0123")
	for _, err := range []error{
		os.Truncate(filepath.Join(at, "data/v1.nsq"), 9),
		os.WriteFile(filepath.Join(at, "alias/002.leaving"), nil, 0o600), // it was being dropped
		os.WriteFile(filepath.Join(at, "data/.v0.nsq-torn"), []byte("torn"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	h, err := OpenHoldings(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	x = h.Get("db", "0123")
	if got := x.Fragments(); !slices.Equal(got, []int{0}) || x.Bytes() != 15 {
		t.Errorf("fragments %v of %d bytes", got, x.Bytes())
	}
	entries, err := os.ReadDir(filepath.Join(at, "data"))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
	for i := range 3 {
		if err := x.Load(t.Context(), i, content); err != nil || !x.Has(i) {
			t.Errorf("fragment %d is not loaded again: %v", i, err)
		}
	}
}

// A node removes the fragments that a killed node was to drop, and only these.
func TestSweepHoldings(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "premix-test-")
	if err != nil {
		t.Skipf("there is no tmpfs to write to: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(shm) })
	name := func(home string) string {
		return filepath.Join(shm, fmt.Sprintf("premix-blast-%d-%s-node", os.Geteuid(), home))
	}
	begin := func(home string, drop bool) *Holdings {
		h, err := OpenHoldings(name(home))
		if err == nil {
			err = h.SetDrop(drop)
		}
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	running := begin("running", true)
	defer running.Close()
	for home, drop := range map[string]bool{"killed": true, "kept": false, "changed": true} {
		if err := begin(home, drop).Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := begin("changed", false).Close(); err != nil {
		t.Fatal(err)
	}
	own := begin("own", true)
	defer own.Close()
	removed, err := SweepHoldings(name("own"))
	if err != nil || !slices.Equal(removed, []string{name("killed")}) {
		t.Errorf("removed %q, %v", removed, err)
	}
	for home, there := range map[string]bool{"running": true, "kept": true, "changed": true, "own": true, "killed": false} {
		if _, err := os.Stat(name(home)); (err == nil) != there {
			t.Errorf("%s: %v", home, err)
		}
	}
}
