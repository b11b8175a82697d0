package cache

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/store/object"
)

// image is the image file of a tree, with its file present.
type image struct {
	path    string
	f       *os.File
	present *os.File
	vol     *volume

	accounting sync.Mutex
	used       int64 // bytes of both files, when last counted; included in vol.used
	disowned   bool
}

// openImage opens the files in dir, and creates missing ones.
func openImage(dir string, vol *volume, size int64, chunks int) (*image, error) {
	im := &image{path: dir + "/image", vol: vol}
	var err error
	if im.f, err = openSized(im.path, size); err != nil {
		return nil, err
	}
	if im.present, err = openSized(dir+"/present", int64(chunks)); err != nil {
		return nil, errors.Join(err, im.f.Close())
	}
	im.account()
	return im, nil
}

func openSized(path string, size int64) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || info.Size() != size {
		if err = errors.Join(err, f.Truncate(size)); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

func openExisting(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDONLY, 0) }

func (im *image) close() error { return errors.Join(im.f.Close(), im.present.Close()) }

// account updates the volume's usage by these files. Only the file system knows it: it
// also allocates lists of extents, and a block may belong to two chunks.
func (im *image) account() {
	im.accounting.Lock()
	defer im.accounting.Unlock()
	if im.disowned {
		return
	}
	now := allocated(im.f) + allocated(im.present)
	im.vol.add(now - im.used)
	im.used = now
}

func (im *image) allocated() int64 {
	im.accounting.Lock()
	defer im.accounting.Unlock()
	return im.used
}

// disown subtracts the files from the volume's usage, before they are removed.
func (im *image) disown() {
	im.accounting.Lock()
	defer im.accounting.Unlock()
	im.vol.add(-im.used)
	im.used, im.disowned = 0, true
}

// mark writes the byte of a chunk in present.
func (im *image) mark(chunk int, recency byte) error {
	_, err := im.present.WriteAt([]byte{recency}, int64(chunk))
	return err
}

// punch frees whole blocks.
func (im *image) punch(from, to int64) error {
	if from >= to {
		return nil
	}
	for {
		err := unix.Fallocate(int(im.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// punchable returns the blocks that only chunk i uses, and no present neighbour. The
// caller holds imageMu.
func (t *Tree) punchable(pg *page, i int) (from, to int64) {
	const low = ^int64(block - 1)
	start, end := pg.offs[i], pg.offs[i+1]
	from, to = start&low, (end+block-1)&low
	if from < start && t.shared(pg.first+i, -1, from) {
		from += block
	}
	if to > end && t.shared(pg.first+i, 1, to) {
		to -= block
	}
	return from, to
}

// shared reports whether a present chunk before (step -1) or behind (step 1) the given
// one reaches beyond limit, and so shares the block there.
func (t *Tree) shared(chunk, step int, limit int64) bool {
	for {
		chunk += step
		pg, i := t.loadedPageOf(chunk)
		if pg == nil {
			return false // an index page not loaded has no present chunks
		}
		if step < 0 && pg.offs[i+1] <= limit || step > 0 && pg.offs[i] >= limit {
			return false
		}
		if pg.present(i) || pg.part[i].Load() != nil {
			return true
		}
	}
}

// ensureImage returns the tree's image file, and creates it if there is none. The
// caller has reserved space for it.
func (t *Tree) ensureImage() (*image, error) {
	if im := t.image.Load(); im != nil {
		return im, nil
	}
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	if im := t.image.Load(); im != nil {
		return im, nil
	}
	if t.gone {
		return nil, errGone
	}
	dir, vol := t.imageDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	im, err := openImage(dir, vol, t.manifest.Size, t.manifest.Chunks())
	if err != nil {
		return nil, err
	}
	t.image.Store(im)
	return im, nil
}

// errGone means that a tree was removed from the cache before a chunk of it was kept.
var errGone = errors.New("the tree was removed from the cache")

// imageDir returns the directory and the volume of the image file.
func (t *Tree) imageDir() (string, *volume) {
	if t.pinned() == pinRAM {
		return t.c.ram.dir + "/" + t.digest.String(), t.c.ram
	}
	return t.dir, t.c.disk
}

// keep writes a verified chunk into the image file, and reports whether it is there. If
// there is no space, chunks used before the given generation are evicted. from is the
// image file that the content was read from, if any.
func (t *Tree) keep(pg *page, i int, content []byte, from target, before uint64) bool {
	if pg.present(i) {
		return true
	}
	_, vol := t.imageDir()
	need := int64(len(content)) + margin
	for try := range 3 {
		if !t.c.makeRoom(vol, need, before) {
			break
		}
		err := t.write(pg, i, content, from)
		vol.release(need)
		if err == nil {
			t.c.full.Store(false)
			return true
		}
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			break
		}
		// The file system has less space than it reported: free some, and more with
		// each try.
		if !t.c.evict(vol, need<<try, before) {
			break
		}
	}
	t.c.full.Store(true)
	t.stats.passed.Add(1)
	return false
}

func (t *Tree) write(pg *page, i int, content []byte, from target) error {
	im, err := t.ensureImage()
	if err != nil {
		return err
	}
	s := pg.sumUp(i, content)
	if err = t.writeLocked(pg, i, content, from, s); err == nil {
		t.c.index.add(t, pg.first+i, pg.digests[i])
		return nil
	}
	if errors.Is(err, errGone) {
		return err
	}
	// The bytes already written are not counted as used.
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	if !pg.present(i) && t.image.Load() == im {
		t.forgetPart(pg, i)
		from, to := t.punchable(pg, i)
		err = errors.Join(err, im.punch(from, to))
		im.account()
	}
	return err
}

func (t *Tree) writeLocked(pg *page, i int, content []byte, from target, s *sums) error {
	t.imageMu.RLock()
	defer t.imageMu.RUnlock()
	im := t.image.Load()
	if t.gone || im == nil {
		return errGone
	}
	if pg.present(i) {
		return nil
	}
	defer im.account()
	if err := t.put(im, pg, i, content, from); err != nil {
		return err
	}
	if err := im.mark(pg.first+i, 255); err != nil {
		return err
	}
	t.c.touch(pg, i)
	if pg.state[i].CompareAndSwap(nil, s) {
		t.count(pg, i, 1)
	}
	t.forgetPart(pg, i)
	return nil
}

// count records that a chunk has become present (1) or absent (-1).
func (t *Tree) count(pg *page, i int, n int64) {
	t.missing.Add(-n)
	t.kept.Add(n)
	t.present.Add(n * pg.size(i))
	t.c.chunks.Add(n)
}

// discard punches a chunk if its state is still the given one, and reports whether it
// did. A caller that saw damage passes the state in which it saw it: the chunk may have
// been evicted and fetched again since.
func (t *Tree) discard(pg *page, i int, seen *sums) bool {
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	return t.discardLocked(pg, i, seen)
}

// discardAnyLocked punches a chunk in any state.
func (t *Tree) discardAnyLocked(pg *page, i int) bool {
	for t.image.Load() != nil {
		s := pg.state[i].Load()
		if s == nil {
			return false
		}
		if t.discardLocked(pg, i, s) {
			return true
		}
		// A reader changed it between unverified and verified.
	}
	return false
}

func (t *Tree) discardLocked(pg *page, i int, seen *sums) bool {
	im := t.image.Load()
	if im == nil || seen == nil || !pg.state[i].CompareAndSwap(seen, nil) {
		return false
	}
	t.count(pg, i, -1)
	t.c.index.remove(t, pg.first+i, pg.digests[i])
	t.forgetPart(pg, i)
	// If either fails, the chunk is still not used any more, and after the next Open it
	// is hashed first.
	err := im.mark(pg.first+i, 0)
	if t.held.Load() == 0 {
		from, to := t.punchable(pg, i)
		err = errors.Join(err, im.punch(from, to))
	}
	if err != nil {
		t.stats.diskErrors.Add(1)
	}
	im.account()
	return true
}

// fromHere gets the flight's content from this machine: from the tree's own image file,
// from its former one during a move, or from another tree's.
func (f *flight) fromHere() bool {
	f.c.flights.mu.Lock()
	to := f.targets[0]
	f.c.flights.mu.Unlock()
	b := buffers.get(f.size)
	switch {
	case to.t.readWhole(to.pg, to.i, b):
		f.local = true
	case to.t.readFormer(to.pg, to.i, b):
	case f.readOther(to, b):
		to.t.stats.copied.Add(1)
		to.t.stats.copiedBytes.Add(f.size)
	default:
		buffers.put(b)
		return false
	}
	f.pooled = true
	f.finish(b, nil)
	return true
}

// readOther reads the chunk from the image file of another tree.
func (f *flight) readOther(to target, b []byte) bool {
	number, chunk, ok := f.c.index.find(f.digest)
	if !ok {
		return false
	}
	t := f.c.byNumber(number)
	if t == nil {
		return false
	}
	pg, i := t.loadedPageOf(chunk)
	if pg == nil || pg.digests[i] != f.digest || (to == target{t, pg, i}) {
		return false
	}
	if !t.readWhole(pg, i, b) {
		return false
	}
	f.from = target{t, pg, i}
	return true
}

// Chunk returns the content of a present chunk, verified, if it is in a tree for which shared
// is true.
func (c *Cache) Chunk(d object.Digest, shared func(tree object.Digest) bool) ([]byte, bool) {
	number, chunk, ok := c.index.find(d)
	if !ok {
		return nil, false
	}
	t := c.byNumber(number)
	if t == nil || !shared(t.digest) {
		return nil, false
	}
	pg, i := t.loadedPageOf(chunk)
	if pg == nil || pg.digests[i] != d {
		return nil, false
	}
	b := make([]byte, pg.size(i))
	return b, t.readWhole(pg, i, b)
}

// readWhole reads a present chunk into b and hashes it. A right chunk becomes verified;
// a wrong one is punched and counted.
func (t *Tree) readWhole(pg *page, i int, b []byte) bool {
	for range 3 {
		im, seen := t.image.Load(), pg.state[i].Load()
		if im == nil || seen == nil {
			return false
		}
		_, err := im.f.ReadAt(b, pg.offs[i])
		if err == nil && object.Sum(b) == pg.digests[i] {
			pg.state[i].CompareAndSwap(unverified, pg.sumUp(i, b))
			return true
		}
		if t.discard(pg, i, seen) {
			t.stats.corrupt.Add(1)
			return false
		}
		// It was evicted, and perhaps fetched again, during the read.
	}
	return false
}

// keepMeta writes the manifest or an index page, if there is space.
func (t *Tree) keepMeta(name string, content []byte, at int64) {
	need := int64(len(content)) + margin
	if !t.c.makeRoom(t.c.disk, need, maxGeneration) {
		return
	}
	defer t.c.disk.release(need)
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	if t.gone {
		return
	}
	// If it cannot be kept, it is fetched again next time: this is not an error for
	// readers.
	if err := t.writeMeta(name, content, at); err != nil {
		t.stats.diskErrors.Add(1)
	}
	t.accountMeta()
}

func (t *Tree) writeMeta(name string, content []byte, at int64) error {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return err
	}
	path := t.dir + "/" + name
	if name == "manifest" {
		t.unsynced.Store(true)
		return writeWhole(path, content)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, at)
	return errors.Join(err, f.Close())
}

// accountMeta updates the disk usage of the tree's directory, manifest and pages. The
// caller holds imageMu.
func (t *Tree) accountMeta() {
	now := allocatedAt(t.dir) + allocatedAt(t.dir+"/manifest") + allocatedAt(t.dir+"/pages")
	t.c.disk.add(now - t.meta.Swap(now))
}

// writeWhole writes a whole file, so that a killed process leaves all of it or nothing.
// Cache.maintainOnce makes it durable.
func writeWhole(path string, content []byte) error {
	if err := beneath.Replace(path, 0o600, beneath.Volatile, content); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// syncFile makes a file durable.
func syncFile(path string) error {
	f, err := openExisting(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// fileHas reports whether a file's content has the digest d.
func fileHas(path string, d object.Digest) bool {
	content, err := os.ReadFile(path)
	return err == nil && object.Sum(content) == d
}
