package cache

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"premix/internal/kit/unmount"
)

// mountXFS mounts a new XFS, which can share blocks, and unmounts it at the end of the
// test.
func mountXFS(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		t.Skip("mkfs.xfs is missing (package xfsprogs)")
	}
	img, dir := filepath.Join(t.TempDir(), "xfs"), t.TempDir()
	f, err := os.Create(img)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(320 << 20); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.xfs", "-q", "-m", "reflink=1", img}, {"mount", "-o", "loop", img, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			if args[0] == "mount" && strings.Contains(string(out), "loop") {
				t.Skipf("no loop device can be had: %s", out)
			}
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unmount.Dir(dir); err != nil { // this also frees its loop device
			t.Errorf("umount: %v", err)
		}
	})
	return dir
}

// If the file system can share blocks, a chunk that is copied from another tree takes no
// room of its own.
func TestSharedBlocks(t *testing.T) {
	dir := filepath.Join(mountXFS(t), "cache")
	w := newWorld()
	a := w.publish(t, shape{seed: 95, chunks: 40, mean: 100_000, page: 4096})
	// The same chunks follow one block of other data, so that all of them keep their
	// alignment to blocks.
	b := sample{chunks: append(a.chunks[:0:0], a.chunks...)}
	first := make([]byte, block)
	fill(newRand(96), first)
	b.chunks = append(b.chunks, b.chunks[0])
	copy(b.chunks[1:], a.chunks)
	b.chunks[0].Digest, b.chunks[0].Size = w.add(first), block
	b.image = append(append(b.image, first...), a.image...)
	for at, i := int64(0), 0; i < len(b.chunks); i++ {
		b.offs = append(b.offs, at)
		at += b.chunks[i].Size
	}
	b.digest = w.index(t, b, 0, 4096)

	c := openCache(t, dir, Options{})
	ta, tb := openTree(t, c, a.digest, w), openTree(t, c, b.digest, w)
	if err := ta.Complete(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	readAll(t, tb, b)
	settle(t, c)
	readAll(t, tb, b)
	st := tb.Stats()
	// A chunk that is in the tree several times is copied from one of its places, whose
	// alignment may differ.
	if st.SharedBytes < int64(len(a.image))*3/4 || st.Corrupt != 0 {
		t.Errorf("%d bytes of %d share their blocks: %+v", st.SharedBytes, len(a.image), st)
	}
	// Punching holes in one image leaves the other unchanged.
	if err := ta.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Drop(a.digest); err != nil {
		t.Fatal(err)
	}
	before := w.requests.Load()
	readAll(t, tb, b)
	if n := w.requests.Load() - before; n != 0 || tb.Stats().Corrupt != 0 {
		t.Errorf("%d requests after the other tree was dropped, %+v", n, tb.Stats())
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}
