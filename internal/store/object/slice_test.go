package object

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// sliceSizes are sizes around which the shape of BLAKE3's tree changes.
var sliceSizes = []int{
	1, 1023, 1024, 1025, 2048, 3000, 4096, 5 * 1024, 15*1024 + 7, 16 << 10, 16<<10 + 1, 17 << 10, 31 << 10,
	32 << 10, 33<<10 + 5, 100000, 256 << 10, 300 << 10, 1<<20 - 1, 1 << 20,
}

func TestSlicesVerify(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, size := range sliceSizes {
		content := random(size)
		d, n := Sum(content), Leaves(int64(size))
		for range 20 {
			var runs []Run
			for at := r.IntN(n); at < n; {
				to := at + 1 + r.IntN(min(n-at, 40))
				runs = append(runs, Run{at, to})
				at = to + 1 + r.IntN(20)
			}
			slice := AppendSlice([]byte("before"), content, runs)[len("before"):]
			if got := SliceSize(int64(size), runs); got != int64(len(slice)) {
				t.Fatalf("%d bytes, %v: a slice of %d bytes, SliceSize says %d", size, runs, len(slice), got)
			}
			i := 0
			err := OpenSlice(d, int64(size), runs, slice, func(off int64, data []byte) {
				from, to := runs[i].bytes(int64(size))
				if off != from || !bytes.Equal(data, content[from:to]) {
					t.Errorf("%d bytes, %v: run %d has %d bytes at %d", size, runs, i, len(data), off)
				}
				i++
			})
			if err != nil || i != len(runs) {
				t.Fatalf("%d bytes, %v: %d runs, %v", size, runs, i, err)
			}
		}
	}
}

// A change of any byte of a slice is detected, and OpenSlice returns no byte before it has
// verified the slice.
func TestSlicesAreNotBelieved(t *testing.T) {
	content := random(200<<10 + 77)
	d, size := Sum(content), int64(len(content))
	runs := []Run{{0, 1}, {7, 40}, {199, 201}}
	slice := AppendSlice(nil, content, runs)
	refused := func(what string, runs []Run, slice []byte) {
		t.Helper()
		err := OpenSlice(d, size, runs, slice, func(int64, []byte) { t.Errorf("%s: bytes were given", what) })
		if !IsCorrupt(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for at := 0; at < len(slice); at += 97 {
		slice[at] ^= 1
		refused("a bit is wrong", runs, slice)
		slice[at] ^= 1
	}
	refused("it is short", runs, slice[:len(slice)-1])
	refused("it is long", runs, append(slice[:len(slice):len(slice)], 0))
	refused("other leaves of as many bytes", []Run{{0, 1}, {8, 41}, {199, 201}}, slice)
	for _, runs := range [][]Run{nil, {{1, 1}}, {{-1, 2}}, {{0, 202}}, {{3, 4}, {4, 5}}, {{5, 6}, {1, 2}}} {
		refused("leaves that cannot be", runs, slice)
	}
	if err := OpenSlice(d, size, []Run{{0, Leaves(size)}}, content, func(int64, []byte) {}); err != nil {
		t.Errorf("all of it: %v", err)
	}
	other := bytes.Clone(content)
	other[5] ^= 1
	refused("all of it, wrong", []Run{{0, Leaves(size)}}, other)
}

func FuzzOpenSlice(f *testing.F) {
	f.Add([]byte("x"), int64(3000), 1, 2)
	f.Fuzz(func(t *testing.T, slice []byte, size int64, from, to int) {
		if size < 0 || size > MaxContent {
			return
		}
		err := OpenSlice(Sum([]byte("something else")), size, []Run{{from, to}}, slice, func(int64, []byte) {})
		if !IsCorrupt(err) {
			t.Errorf("it passes: %v", err)
		}
	})
}
