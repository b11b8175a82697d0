package cache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
)

// du returns the disk usage of everything below a directory, as du(1) counts it.
func du(t testing.TB, dir string) int64 {
	t.Helper()
	var n int64
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the cache has removed it
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		n += info.Sys().(*syscall.Stat_t).Blocks * 512
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// agreesWithDu waits until a cache reports the same disk usage as du(1) of its directory.
// It has to wait because file systems allocate lists of extents at any moment when they
// write back.
func agreesWithDu(t testing.TB, c *Cache, dir string) {
	t.Helper()
	waitFor(t, "what du counts", func() bool { return c.Status().Used == du(t, dir) })
}

// keepsTo waits until a cache is within its quota. File systems allocate blocks when they
// write back, and the cache makes room for them within a second: see maintainLoop.
func keepsTo(t testing.TB, c *Cache, quota func() int64) {
	t.Helper()
	waitFor(t, "what the quota allows", func() bool { return c.Status().Used <= quota() })
}

func TestQuotaIsWhatDuCounts(t *testing.T) {
	const quota = 2 << 20
	w, dir := newWorld(), t.TempDir()
	c := openCache(t, dir, Options{Quota: quota})
	for seed := range uint64(4) {
		s := w.publish(t, shape{seed: 20 + seed, chunks: 150, mean: 9000, page: 40, holes: true})
		tr := openTree(t, c, s.digest, w)
		for off := int64(0); off < int64(len(s.image)); off += 20_000 {
			mustRead(t, tr, s, off, 20_000)
			if du(t, dir) <= quota {
				continue
			}
			// du looks at one file after the other. It may have counted a chunk of one file
			// before its eviction, and then the chunk that replaced it in another file.
			// File systems also allocate lists of extents when they write back. The cache
			// notices this within a second and makes room: see maintainLoop.
			settle(t, c)
			waitFor(t, "what the quota allows", func() bool { return du(t, dir) <= quota })
		}
		settle(t, c)
		agreesWithDu(t, c, dir)
		if seed%2 == 0 {
			if err := tr.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	st := c.Status()
	if st.Evicted == 0 || st.Used < quota/2 {
		t.Errorf("%d evicted, %d bytes used of %d", st.Evicted, st.Used, quota)
	}
	// The oldest tree is closed and has no chunks left.
	if len(st.Trees) > 3 {
		t.Errorf("%d trees are left", len(st.Trees))
	}
}

// Chunks of a few bytes share blocks with their neighbours. When all of them are evicted,
// no block stays allocated.
func TestSharedBlocksAreFreed(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 30, chunks: 500, mean: 1500, page: 17, holes: true})
	c := openCache(t, dir, Options{})
	tr := openTree(t, c, s.digest, w)
	readAll(t, tr, s)
	settle(t, c)
	n := 0
	for c.evict(c.disk, 1, maxGeneration) {
		if n++; n%20 == 0 {
			for i := range s.chunks {
				if pg, j := tr.loadedPageOf(i); pg.present(j) {
					if !tr.readWhole(pg, j, make([]byte, pg.size(j))) {
						t.Fatalf("evicting damaged chunk %d", i)
					}
				}
			}
		}
	}
	if got := tr.Stats().PresentBytes - tr.holes.Load(); got != 0 {
		t.Errorf("%d bytes are still present", got)
	}
	if got := allocatedAt(tr.ImagePath()); got != 0 {
		t.Errorf("%d bytes are still allocated", got)
	}
	readAll(t, tr, s)
}

func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 31, chunks: 40, mean: 20_000, page: 4096})
	c := openCache(t, dir, Options{})
	tr := openTree(t, c, s.digest, w)
	readAll(t, tr, s)
	settle(t, c)
	use := func(c *Cache, tr *Tree, chunks ...int) {
		for _, i := range chunks {
			mustRead(t, tr, s, s.offs[i], s.chunks[i].Size)
		}
	}
	present := func(tr *Tree, i int) bool {
		pg, j := tr.loadedPageOf(i)
		return pg.present(j)
	}
	evictDown := func(c *Cache, tr *Tree, to int64) {
		for tr.kept.Load() > to && c.evict(c.disk, 1, maxGeneration) {
		}
	}
	use(c, tr, 7, 3, 20, 11, 30)
	evictDown(c, tr, 5)
	for _, i := range []int{7, 3, 20, 11, 30} {
		if !present(tr, i) {
			t.Errorf("chunk %d was used last, and is gone", i)
		}
	}
	use(c, tr, 7, 3)
	// The order of use survives a restart of the process.
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = openCache(t, dir, Options{})
	tr = openTree(t, c, s.digest, w)
	evictDown(c, tr, 2)
	for _, i := range []int{7, 3} {
		if !present(tr, i) {
			t.Errorf("after another opening, chunk %d was used last, and is gone", i)
		}
	}
}

// With a quota smaller than a file, smaller than a chunk, or of one byte, reads still
// succeed.
func TestTinyQuota(t *testing.T) {
	for _, quota := range []int64{1, 20_000, 60_000, 100_000} {
		w, dir := newWorld(), t.TempDir()
		s := w.publish(t, shape{seed: 32, chunks: 30, mean: 60_000, page: 4096})
		c := openCache(t, dir, Options{Quota: quota})
		tr := openTree(t, c, s.digest, w)
		for off := int64(0); off < int64(len(s.image)); off += 4096 {
			mustRead(t, tr, s, off, 4096)
		}
		settle(t, c)
		// Small reads do not fetch a chunk for each of them.
		for d, n := range w.fetches() {
			if n > 3 { // at the start of the chunk, at its end, and in between
				t.Errorf("quota %d: object %s was fetched %d times", quota, d.Short(), n)
			}
		}
		keepsTo(t, c, func() int64 {
			own := du(t, dir) - tr.meta.Load()
			if im := tr.image.Load(); im != nil {
				own -= im.allocated()
			}
			return max(quota, own)
		})
		var full *NoRoomError
		if err := tr.Complete(t.Context(), 0); !errors.As(err, &full) {
			t.Errorf("quota %d: completing: %v", quota, err)
		}
	}
}

func TestPinnedAndHeldStay(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	a := w.publish(t, shape{seed: 33, chunks: 40, mean: 10_000, page: 4096})
	b := w.publish(t, shape{seed: 34, chunks: 40, mean: 10_000, page: 4096})
	big := w.publish(t, shape{seed: 35, chunks: 200, mean: 10_000, page: 4096})
	c := openCache(t, dir, Options{Quota: 1500_000})
	ta, tb := openTree(t, c, a.digest, w), openTree(t, c, b.digest, w)
	// Each tree is pinned before the next one arrives. Chunks that are being fetched
	// reserve room, and may evict unpinned chunks although everything would fit in the end.
	if err := ta.Complete(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Pin(t.Context(), a.digest, false); err != nil {
		t.Fatal(err)
	}
	release := tb.Hold()
	if err := tb.Complete(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	readAll(t, openTree(t, c, big.digest, w), big)
	if !ta.IsComplete() || !tb.IsComplete() {
		t.Errorf("pinned %+v, held %+v", ta.Stats(), tb.Stats())
	}
	var busy *BusyError
	if err := c.Drop(a.digest); !errors.As(err, &busy) {
		t.Errorf("a pinned tree was dropped: %v", err)
	}
	if err := c.Drop(b.digest); !errors.As(err, &busy) {
		t.Errorf("a held tree was dropped: %v", err)
	}
	release()
	release() // a second call has no effect
	if err := c.Unpin(t.Context(), a.digest); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ta.Close(), c.Drop(a.digest), c.Drop(b.digest)); err != nil {
		t.Fatal(err)
	}
	if tb.IsComplete() {
		t.Error("a dropped tree is complete")
	}
	readAll(t, tb, b)
	if _, err := os.Stat(filepath.Join(dir, "trees", a.digest.String())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of a dropped tree: %v", err)
	}
	var absent *NotCachedError
	if err := c.Drop(a.digest); !errors.As(err, &absent) {
		t.Errorf("dropped twice: %v", err)
	}
	settle(t, c)
	agreesWithDu(t, c, dir)
}

// mountTmpfs mounts a tmpfs and unmounts it at the end of the test.
func mountTmpfs(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a tmpfs needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// The disk is smaller than the quota, and other programs write to it.
func TestFullDisk(t *testing.T) {
	disk := mountTmpfs(t, "1m")
	w := newWorld()
	s := w.publish(t, shape{seed: 36, chunks: 200, mean: 10_000, page: 50})
	c := openCache(t, filepath.Join(disk, "cache"), Options{Quota: 1 << 30})
	tr := openTree(t, c, s.digest, w)
	readAll(t, tr, s)
	if n := c.Status().Evicted; n == 0 {
		t.Error("nothing was evicted")
	}
	hog := filepath.Join(disk, "hog")
	if err := os.WriteFile(hog, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	readAll(t, tr, s)
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	readAll(t, tr, s)
	if got := tr.Stats(); got.Errors != 0 || got.Corrupt != 0 || got.DiskErrors != 0 {
		t.Errorf("%+v", got)
	}
}

// A file system may accept less than it has reported as free.
func TestNoSpaceWhileWriting(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 37, chunks: 100, mean: 10_000, page: 50})
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	mustRead(t, tr, s, 0, 1)
	settle(t, c) // wait: a reader gets its bytes before they are written
	// /dev/full fails every write with ENOSPC.
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	im := tr.image.Load()
	if im == nil {
		t.Fatalf("nothing was kept: %+v", tr.Stats())
	}
	real := im.f
	tr.imageMu.Lock()
	tr.image.Store(&image{path: im.path, f: full, present: im.present, vol: im.vol})
	tr.imageMu.Unlock()
	for i := 10; i < 20; i++ {
		mustRead(t, tr, s, s.offs[i], s.chunks[i].Size)
	}
	settle(t, c)
	if n := tr.Stats().NotKept; n < 9 { // one chunk may have been read ahead before
		t.Errorf("%d chunks were passed through", n)
	}
	tr.imageMu.Lock()
	tr.image.Store(&image{path: im.path, f: real, present: im.present, vol: im.vol})
	tr.imageMu.Unlock()
	if err := full.Close(); err != nil {
		t.Fatal(err)
	}
	readAll(t, tr, s)
}

func TestFloor(t *testing.T) {
	disk := mountTmpfs(t, "4m")
	w := newWorld()
	s := w.publish(t, shape{seed: 38, chunks: 300, mean: 10_000, page: 50})
	const floor = 1 << 20
	c := openCache(t, filepath.Join(disk, "cache"), Options{Floor: floor})
	tr := openTree(t, c, s.digest, w)
	free := func() int64 {
		n, _ := c.disk.free()
		return n
	}
	for off := int64(0); off < int64(len(s.image)); off += 50_000 {
		mustRead(t, tr, s, off, 50_000)
		if n := free(); n < floor {
			t.Fatalf("%d bytes are free, the floor is %d", n, floor)
		}
	}
	// Other programs write to the disk, and the cache shrinks by itself.
	if err := os.WriteFile(filepath.Join(disk, "other"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the floor", func() bool { return free() >= floor })
	readAll(t, tr, s)
}

func TestStatusNamesWhatIsThere(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 39, chunks: 30, mean: 10_000, page: 4096, holes: true})
	c := openCache(t, dir, Options{Quota: 1 << 30, Floor: 1})
	tr := openTree(t, c, s.digest, w)
	readAll(t, tr, s)
	settle(t, c)
	st := c.Status()
	if st.Dir != dir || st.Quota != 1<<30 || st.Floor != 1 || st.Free == 0 || len(st.Trees) != 1 {
		t.Fatalf("%+v", st)
	}
	ts := st.Trees[0]
	if ts.Digest != s.digest || ts.Open != 1 || ts.Pinned != "" || ts.Held || ts.LastUse.IsZero() ||
		ts.Size != int64(len(s.image)) || ts.PresentBytes != ts.Size || ts.PresentChunks != 30 || ts.Fetches == 0 || len(ts.Slowest) == 0 {
		t.Errorf("%+v", ts)
	}
}
