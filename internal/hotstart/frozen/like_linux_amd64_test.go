package frozen

import (
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFreezeLike freezes one process several times. Digests that are copied from the first image
// must be equal to computed ones, even if the bytes of one of the two differ.
func TestFreezeLike(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Use one processor, because the kernel writes the number of the processor into the memory of
	// each thread (rseq(2)).
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	defer unix.SchedSetaffinity(0, &all)
	for i := range 1024 {
		if all.IsSet(i) && one.Count() == 0 {
			one.Set(i)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p, base := template(t, dir, build(t, "state"), "64")
	src := Source{Proc: p, Base: base, Dir: dir}
	freeze := func(s Source, f *os.File) *Image {
		t.Helper()
		im, err := Freeze(s, f)
		if err != nil {
			t.Fatal(err)
		}
		return im
	}
	create := func() *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), "pages"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	pages := create()
	first := freeze(src, pages)
	alike := func(name string) *Image {
		t.Helper()
		like := src
		like.Like = &Like{Image: first, Pages: pages}
		got, want := freeze(like, nil), freeze(src, nil)
		if !reflect.DeepEqual(got.Pieces, want.Pieces) || !reflect.DeepEqual(got.Maps, want.Maps) || got.PageBytes != want.PageBytes {
			t.Errorf("%s: the image differs from an image that is digested", name)
		}
		return got
	}
	count := func(im *Image) (n int) {
		for i := range im.Maps {
			n += len(differing(relative(first, &first.Maps[i]), relative(im, &im.Maps[i]), func(Extent) bool { return false }))
		}
		return n
	}
	alike("equal memory")

	i := slices.IndexFunc(first.Maps, func(v VMA) bool { return v.Kind == KindPaged && v.Size() > 2*pieceSize })
	if i < 0 {
		t.Fatal("the process has no large memory")
	}
	v := first.Maps[i]
	at := v.Start + pieceSize + 3*stepSize + 17 // within a piece, but not in its first step
	b := make([]byte, 1)
	if err := p.Read(at, b); err != nil {
		t.Fatal(err)
	}
	own := b[0]
	if err := p.Write(at, []byte{own ^ 1}); err != nil {
		t.Fatal(err)
	}
	if n := count(alike("another byte in the process")); n == 0 {
		t.Error("a byte that differs was not seen")
	}
	if err := p.Write(at, []byte{own}); err != nil {
		t.Fatal(err)
	}
	if n := count(alike("the same byte again")); n > 0 {
		t.Errorf("%d parts of the same memory differ", n)
	}
	if _, err := pages.WriteAt([]byte{own ^ 1}, v.Page+int64(at-v.Start)); err != nil {
		t.Fatal(err)
	}
	alike("another byte in the page file")
	if err := pages.Truncate(v.Page + pieceSize); err != nil {
		t.Fatal(err)
	}
	alike("a page file that is cut")

	// The process ends after this.
	before := resident(t, p.Pid)
	src.Ends, pages = true, create()
	last := freeze(src, pages)
	if !reflect.DeepEqual(last.Pieces, first.Pieces) {
		t.Error("the process that ends has other digests")
	}
	if err := Verify(pages, last.Pieces); err != nil {
		t.Error(err)
	}
	if after := resident(t, p.Pid); before-after < int64(v.Size())/2 {
		t.Errorf("%d kB were resident before, and %d after the process was frozen", before>>10, after>>10)
	}
}

// resident returns the resident memory of a process in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/" + itoa(pid) + "/statm")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * pageSize
}
