package ondisk_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/kit/ondisk"
)

func empty(t *testing.T, dir string) {
	t.Helper()
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("the directory has %d entries (%v)", len(list), err)
	}
}

// A sorter gives the same order with any memory, and with more runs than are merged at once.
func TestSorter(t *testing.T) {
	dir := t.TempDir()
	for _, memory := range []int{1 << 20, 5000, 300} {
		r := rand.New(rand.NewPCG(1, 2))
		s := ondisk.NewSorter(dir, memory)
		var want [][]byte
		for range 20_000 {
			rec := make([]byte, r.IntN(20))
			for i := range rec {
				rec[i] = byte(r.IntN(4))
			}
			want = append(want, rec)
			if err := s.Add(rec); err != nil {
				t.Fatal(err)
			}
		}
		slices.SortFunc(want, bytes.Compare)
		n := 0
		for rec, err := range s.Sorted() {
			if err != nil {
				t.Fatal(err)
			}
			if n >= len(want) || !bytes.Equal(rec, want[n]) {
				t.Fatalf("memory %d: record %d is %q", memory, n, rec)
			}
			n++
		}
		if n != len(want) {
			t.Errorf("memory %d: %d records of %d", memory, n, len(want))
		}
		empty(t, dir)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A map finds all keys in it and no others, also where many begin with the same bytes.
func TestMap(t *testing.T) {
	dir := t.TempDir()
	for _, alike := range []bool{false, true} {
		m := ondisk.NewMap(dir, 100)
		key := func(i int) ondisk.Key {
			k := sha256.Sum256(binary.LittleEndian.AppendUint64(nil, uint64(i)))
			if alike {
				copy(k[:8], "the same")
			}
			return k
		}
		const n = 20_000
		for i := range n {
			if err := m.Put(key(i), uint64(i)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range n + 1000 {
			v, ok, err := m.Get(key(i))
			if err != nil || ok != (i < n) || ok && v != uint64(i) {
				t.Fatalf("key %d: %d, %t, %v", i, v, ok, err)
			}
		}
		empty(t, dir)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An array keeps all records, however they are changed.
func TestArray(t *testing.T) {
	a, err := ondisk.NewArray(t.TempDir(), 40)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	r := rand.New(rand.NewPCG(3, 4))
	want := map[int64]uint64{}
	for range 100_000 {
		i, v := r.Int64N(1_000_000), r.Uint64()
		b, err := a.Change(i)
		if err != nil {
			t.Fatal(err)
		}
		if got := binary.LittleEndian.Uint64(b[32:]); got != want[i] {
			t.Fatalf("record %d is %d instead of %d", i, got, want[i])
		}
		binary.LittleEndian.PutUint64(b[32:], v)
		want[i] = v
	}
	for i, v := range want {
		b, err := a.Read(i)
		if err != nil || binary.LittleEndian.Uint64(b[32:]) != v {
			t.Fatalf("record %d: %x, %v", i, b, err)
		}
	}
}

// A reader returns what was appended, across the borders of buffers.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	f, err := ondisk.NewFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	empty(t, dir)
	r := rand.New(rand.NewPCG(5, 6))
	var recs [][]byte
	var at []int64
	for range 2000 {
		rec := bytes.Repeat([]byte{byte(r.Uint32())}, r.IntN(1<<r.IntN(18)))
		at = append(at, f.Size())
		f.Write(binary.AppendUvarint(nil, uint64(len(rec))))
		f.Write(rec)
		recs = append(recs, rec)
	}
	in := f.Reader(0, 1000)
	for i, rec := range recs {
		if off := in.Offset(); off != at[i] {
			t.Fatalf("record %d begins at %d, not %d", i, off, at[i])
		}
		if got := in.Bytes(); !bytes.Equal(got, rec) {
			t.Fatalf("record %d has %d bytes, not %d (%v)", i, len(got), len(rec), in.Err())
		}
	}
	if in.More() || in.Err() != nil {
		t.Errorf("more at the end, or %v", in.Err())
	}
	for range 2000 {
		i := r.IntN(len(recs))
		in.MoveTo(at[i])
		if got := in.Bytes(); !bytes.Equal(got, recs[i]) {
			t.Fatalf("record %d has %d bytes, not %d (%v)", i, len(got), len(recs[i]), in.Err())
		}
	}
	if err := f.Truncate(at[1000]); err != nil {
		t.Fatal(err)
	}
	f.Write([]byte("end"))
	in = f.Reader(at[1000], 100)
	if got := in.Next(3); string(got) != "end" || in.More() {
		t.Errorf("%q behind the truncation", got)
	}
}

// A full disk is an ENOSPC of the call that met it, or of a later one.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("ondisk-test", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("this machine does not permit a small tmpfs: %v", err)
	}
	defer unix.Unmount(dir, 0)
	s := ondisk.NewSorter(dir, 64<<10)
	defer s.Close()
	m := ondisk.NewMap(dir, 500)
	defer m.Close()
	a, err := ondisk.NewArray(dir, 40)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for name, add := range map[string]func(i int) error{
		"sorter": func(i int) error { return s.Add(sha256.New().Sum([]byte{byte(i)})) },
		"map": func(i int) error {
			return m.Put(sha256.Sum256(binary.LittleEndian.AppendUint64(nil, uint64(i))), 1)
		},
		"array": func(i int) error { _, err := a.Change(int64(i) * 1000); return err },
	} {
		var err error
		for i := 0; i < 100_000 && err == nil; i++ {
			err = add(i)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s on a full disk: %v", name, err)
		}
	}
}
