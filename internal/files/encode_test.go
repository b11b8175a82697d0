package files

import (
	"bytes"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// written writes rows as a worker does, and returns the table.
func written(t *testing.T, rows []Entry) *Table {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scan.parquet")
	w, err := newWriter(path)
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(w)
	for _, e := range rows {
		time := func(ns int64) unix.StatxTimestamp {
			s := ns / 1e9
			if ns%1e9 < 0 {
				s--
			}
			return unix.StatxTimestamp{Sec: s, Nsec: uint32(ns - s*1e9)}
		}
		st := unix.Statx_t{Size: uint64(e.Size), Blocks: uint64(e.Allocated / 512), Mode: uint16(e.Mode), Uid: uint32(e.UID), Gid: uint32(e.GID), Nlink: uint32(e.Links), Ino: uint64(e.Inode),
			Dev_major: unix.Major(uint64(e.Device)), Dev_minor: unix.Minor(uint64(e.Device)), Atime: time(e.Accessed), Mtime: time(e.Modified), Ctime: time(e.Changed), Btime: time(e.Born)}
		if err := g.add(e.Dir, []byte(e.Name), e.Type[0], e.Entries, e.Error, &st); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.flush(); err != nil {
		t.Fatal(err)
	}
	w.say(keyFormat, tableFormat)
	w.say(keyRoots, `["/"]`)
	w.say(keyStarted, "2026-01-01T00:00:00Z")
	w.say(keyFinished, "2026-01-01T00:00:00Z")
	if err := w.close(nil); err != nil {
		t.Fatal(err)
	}
	return opened(t, path)
}

// The rows that are read are equal to the written ones, with any encoding of a column.
func TestEncodings(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	huge := []int64{math.MinInt64, math.MaxInt64, 0, -1, 1}
	for name, c := range map[string]struct {
		rows int
		row  func(i int, e *Entry)
	}{
		"none": {0, nil},
		"one":  {1, func(int, *Entry) {}},
		"a page and one more": {pageRows + 1, func(i int, e *Entry) {
			e.Size = int64(i)
		}},
		"constant over two groups": {groupRows + 5, func(int, *Entry) {}},
		"all modes and types": {9000, func(i int, e *Entry) {
			e.Mode, e.Type = int32(i%0o10000), string("fdlbcps?"[i%8])
		}},
		"no value twice": {2 * pageRows, func(i int, e *Entry) {
			e.Dir, e.Name = "/"+strconv.Itoa(i), strconv.Itoa(-i)
			e.Size, e.Allocated, e.Entries, e.Inode, e.Modified, e.Born = r.Int64(), 512*r.Int64N(1<<40), r.Int64(), int64(r.Uint64()), r.Int64(), -r.Int64()
			e.UID, e.GID, e.Links = int64(r.Uint32()), int64(r.Uint32()), int64(r.Uint32())
			e.Error = "of " + e.Name
		}},
		"the ends of the range": {1000, func(i int, e *Entry) {
			e.Size, e.Inode, e.Entries = huge[i%5], huge[r.IntN(5)], huge[r.IntN(5)]
		}},
		"few values, and then many": {groupRows + groupRows/2, func(i int, e *Entry) {
			if e.Modified = int64(i % 50); i > 3*pageRows {
				e.Modified = r.Int64()
			}
			e.Size = int64(r.IntN(mostKnown + 1000)) // the dictionary fills up gradually
			e.Accessed = -int64(i / 3)
			e.Name = strconv.Itoa(i) + string(make([]byte, i%4))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			want := make([]Entry, c.rows)
			for i := range want {
				want[i] = Entry{Dir: "/a/b", Name: "n", Type: "f", Entries: -1, Mode: 0o644, Links: 1, Device: int64(unix.Mkdev(8, 1)), Modified: 1e18 + 5}
				c.row(i, &want[i])
			}
			tab := written(t, want)
			if tab.Rows != int64(c.rows) {
				t.Fatalf("%d rows of %d", tab.Rows, c.rows)
			}
			i := 0
			if err := tab.Each(func(e *Entry) error {
				if *e != want[i] {
					t.Fatalf("row %d is %+v in place of %+v", i, *e, want[i])
				}
				i++
				return nil
			}); err != nil || i != c.rows {
				t.Fatal(i, err)
			}
			g, first := tab.NewGroup(), 0
			for n := range tab.Groups() {
				g.Reset(n)
				var e Entry
				for _, row := range []int{0, g.Rows() / 2, g.Rows() - 1} {
					if err := g.Entry(int32(row), &e); err != nil || e != want[first+row] {
						t.Fatalf("row %d of group %d is %+v in place of %+v: %v", row, n, e, want[first+row], err)
					}
				}
				for _, column := range intColumns {
					values, err := g.Ints(column)
					least, most, ok := g.Bounds(column)
					if err != nil || !ok || least != slices.Min(values) || most != slices.Max(values) {
						t.Errorf("column %d of group %d is said to be in %d to %d (%v), and is in %d to %d: %v", column, n, least, most, ok, slices.Min(values), slices.Max(values), err)
					}
				}
				first += g.Rows()
			}
		})
	}
}

// Blocks hold all written bytes, and hold it again after a reset without new memory.
func TestBlocks(t *testing.T) {
	var b blocks
	for range 2 {
		var want []byte
		for n := range 40 {
			p := bytes.Repeat([]byte{byte(n)}, n*n*7)
			b.write(p)
			want = append(want, p...)
		}
		if got := bytes.Join(b.list, nil); !bytes.Equal(got, want) || b.size != len(want) {
			t.Fatalf("%d bytes, size %d, want %d", len(got), b.size, len(want))
		}
		if b.reset(); b.size != 0 || len(b.list) != 0 || len(b.free) != len(want)/blockSize+1 {
			t.Fatalf("after a reset: size %d, %d blocks, %d free", b.size, len(b.list), len(b.free))
		}
	}
}
