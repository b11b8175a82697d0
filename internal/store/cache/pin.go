package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/store/object"
)

// pinKind is the way a tree is pinned.
type pinKind uint32

const (
	pinNone pinKind = iota
	pinDisk
	pinRAM
)

func (k pinKind) String() string { return [...]string{"", "disk", "ram"}[k] }

func (t *Tree) pinned() pinKind { return pinKind(t.pin.Load()) }

// former is the image file of a tree that is being moved between disk and memory.
// Chunks are read from it, and none are written.
type former struct {
	im  *image
	has []byte // the content of the file present
}

// wasHere reports whether a chunk may be read from the former image file.
func (t *Tree) wasHere(chunk int) bool {
	f := t.former.Load()
	return f != nil && f.has[chunk] != 0
}

// readFormer reads a chunk from the former image file into b, and reports whether it is
// right.
func (t *Tree) readFormer(pg *page, i int, b []byte) bool {
	f := t.former.Load()
	if f == nil || f.has[pg.first+i] == 0 {
		return false
	}
	_, err := f.im.f.ReadAt(b, pg.offs[i])
	return err == nil && object.Sum(b) == pg.digests[i]
}

// dropFormerLocked removes the former image file. The caller holds imageMu.
func (t *Tree) dropFormerLocked() error {
	f := t.former.Swap(nil)
	if f == nil {
		return nil
	}
	f.im.disown()
	dir := filepath.Dir(f.im.path)
	err := errors.Join(f.im.close(), removeIfThere(dir+"/image"), removeIfThere(dir+"/present"))
	if f.im.vol == t.c.ram {
		err = errors.Join(err, os.Remove(dir))
	}
	return err
}

func (c *Cache) pinPath(d object.Digest) string { return filepath.Join(c.dir, "pins", d.String()) }

func (c *Cache) pinOf(d object.Digest) pinKind {
	c.pinMu.Lock()
	defer c.pinMu.Unlock()
	return c.pins[d]
}

func (c *Cache) readPins() (map[object.Digest]pinKind, error) {
	entries, err := os.ReadDir(filepath.Join(c.dir, "pins"))
	if err != nil {
		return nil, err
	}
	pins := map[object.Digest]pinKind{}
	for _, e := range entries {
		d, err := object.ParseDigest(e.Name())
		if err != nil {
			// An incomplete file of an interrupted write.
			if err := os.Remove(filepath.Join(c.dir, "pins", e.Name())); err != nil {
				return nil, err
			}
			continue
		}
		b, err := os.ReadFile(c.pinPath(d))
		if err != nil {
			return nil, err
		}
		pins[d] = pinDisk
		if strings.TrimSpace(string(b)) == pinRAM.String() && c.ram != nil {
			pins[d] = pinRAM
		}
	}
	return pins, nil
}

func (c *Cache) writePin(t *Tree, k pinKind) error {
	var err error
	if k == pinNone {
		err = removeIfThere(c.pinPath(t.digest))
	} else {
		err = writeWhole(c.pinPath(t.digest), []byte(k.String()+"\n"))
	}
	if err != nil {
		return fmt.Errorf("pin tree %s: %w", t.digest.Short(), err)
	}
	t.pin.Store(uint32(k))
	c.pinMu.Lock()
	if k == pinNone {
		delete(c.pins, t.digest)
	} else {
		c.pins[t.digest] = k
	}
	c.pinMu.Unlock()
	c.accountOwn()
	return nil
}

// Pin protects a tree in the cache from eviction. It does not fetch missing chunks.
//
// With ram, the tree's image file is moved into memory and filled completely; if chunks
// are missing, the tree must be open. If it does not fit, the error is a [NoRoomError].
// If filling fails for another reason, the tree stays pinned in memory with the chunks
// it has, and Pin may be called again.
func (c *Cache) Pin(ctx context.Context, d object.Digest, ram bool) error {
	t, err := c.tree(d)
	if err != nil {
		return err
	}
	t.moving.Lock()
	defer t.moving.Unlock()
	if !ram {
		if t.pinned() == pinRAM {
			return t.moveToDisk(ctx, pinDisk)
		}
		return c.writePin(t, pinDisk)
	}
	return t.moveToRAM(ctx)
}

// Unpin permits eviction of a tree again. A tree that was pinned in memory is moved to
// disk, as far as there is space.
func (c *Cache) Unpin(ctx context.Context, d object.Digest) error {
	t, err := c.tree(d)
	var absent *NotCachedError
	if errors.As(err, &absent) && c.pinOf(d) != pinNone {
		// Its directory was lost, and only the pin is left.
		return c.writePin(&Tree{digest: d}, pinNone)
	}
	if err != nil {
		return err
	}
	t.moving.Lock()
	defer t.moving.Unlock()
	if t.pinned() == pinRAM {
		return t.moveToDisk(ctx, pinNone)
	}
	return c.writePin(t, pinNone)
}

func (t *Tree) moveToRAM(ctx context.Context) error {
	c := t.c
	if c.ram == nil {
		return &NoRoomError{Tree: t.digest, Where: "memory", Need: t.manifest.Size, Have: 0}
	}
	if err := t.stayOpen(); err == nil {
		defer t.Close()
	} else if t.missing.Load() > 0 {
		return err
	}
	var need int64
	for k := range t.pages {
		pg, err := t.page(ctx, k)
		if err != nil {
			return err
		}
		for i := range pg.digests {
			if !pg.hole(i) {
				need += pg.size(i)
			}
		}
	}
	need += int64(t.manifest.Chunks()) + 2*margin
	if t.pinned() != pinRAM {
		if lack := c.ram.lacks(need); lack > 0 {
			return &NoRoomError{t.digest, "memory", need, max(0, need-lack), c.ram.quota}
		}
	}
	if err := t.moveFiles(pinRAM); err != nil {
		return err
	}
	return t.endMove(ctx, func(pg *page, i int) bool { return !pg.present(i) })
}

func (t *Tree) moveToDisk(ctx context.Context, k pinKind) error {
	if err := t.moveFiles(k); err != nil {
		return err
	}
	err := t.endMove(ctx, func(pg *page, i int) bool { return t.wasHere(pg.first+i) && !pg.present(i) })
	if err == nil || ctx.Err() != nil {
		return err
	}
	// Chunks that are left were damaged, or there was no space. They are fetched again
	// when they are read.
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	return t.dropFormerLocked()
}

// moveFiles makes the image file the former one; the new one is created when the first
// chunk is written.
func (t *Tree) moveFiles(k pinKind) error {
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	if t.held.Load() > 0 {
		return &BusyError{t.digest, "is mounted directly from its image file", "unmount it first"}
	}
	if t.gone {
		return errGone
	}
	if (t.pinned() == pinRAM) == (k == pinRAM) {
		return t.c.writePin(t, k)
	}
	if err := t.dropFormerLocked(); err != nil {
		return err
	}
	if err := t.c.writePin(t, k); err != nil {
		return err
	}
	im := t.image.Load()
	if im == nil {
		return nil
	}
	f := &former{im: im, has: make([]byte, t.manifest.Chunks())}
	t.eachPresent(func(pg *page, i int) { f.has[pg.first+i] = 1 })
	t.former.Store(f)
	t.image.Store(nil)
	t.eachPresent(func(pg *page, i int) {
		pg.state[i].Store(nil)
		t.count(pg, i, -1)
		t.c.index.remove(t, pg.first+i, pg.digests[i])
	})
	t.eachPart(t.forgetPart)
	return nil
}

// eachPresent calls visit for each present chunk. Under imageMu their number cannot
// change.
func (t *Tree) eachPresent(visit func(pg *page, i int)) {
	for k := range t.pages {
		pg := t.pages[k].Load()
		if pg == nil {
			continue
		}
		for i := range pg.state {
			if pg.present(i) {
				visit(pg, i)
			}
		}
	}
}

// endMove brings chunks to the new place, and removes the former image file.
func (t *Tree) endMove(ctx context.Context, which func(pg *page, i int) bool) error {
	if err := t.fill(ctx, nil, which); err != nil {
		return err
	}
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	return t.dropFormerLocked()
}

// stayOpen adds a user to an open tree.
func (t *Tree) stayOpen() error {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if t.refs == 0 {
		return &BusyError{t.digest, "is not complete, and not mounted", "mount it, and try again"}
	}
	t.refs++
	return nil
}

// Hold keeps the image file in place and unpunched until release is called. A caller
// that mounts the file directly needs it.
func (t *Tree) Hold() (release func()) {
	t.imageMu.RLock()
	defer t.imageMu.RUnlock()
	t.held.Add(1)
	done := false
	return func() {
		t.imageMu.RLock()
		defer t.imageMu.RUnlock()
		if !done {
			done = true
			t.held.Add(-1)
		}
	}
}

// Drop removes a tree from the cache. An open tree stays open but loses its chunks,
// which are fetched again when they are read.
func (c *Cache) Drop(d object.Digest) error {
	t, err := c.tree(d)
	if err != nil {
		return err
	}
	if t.pinned() != pinNone {
		return &BusyError{d, "is pinned", "unpin it first"}
	}
	if t.held.Load() > 0 {
		return &BusyError{d, "is mounted directly from its image file", "unmount it first"}
	}
	if err := c.remove(t, true); !errors.Is(err, errUsed) {
		return err
	}
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	if !t.evictable() {
		return &BusyError{d, "has been pinned or mounted since", "try again"}
	}
	t.eachPresent(func(pg *page, i int) { t.discardAnyLocked(pg, i) })
	t.dropPartsLocked()
	return nil
}

// cleanRAM removes files from memory that no pin refers to.
func (c *Cache) cleanRAM(pins map[object.Digest]pinKind) error {
	if c.ram == nil {
		return nil
	}
	entries, err := os.ReadDir(c.ram.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		d, parse := object.ParseDigest(e.Name())
		if parse == nil && pins[d] != pinRAM {
			err = errors.Join(err, os.RemoveAll(filepath.Join(c.ram.dir, e.Name())))
		}
	}
	return err
}

// readImages finds the present chunks that earlier processes left of a tree.
func (t *Tree) readImages(crashed bool) error {
	if t.pinned() == pinRAM {
		// A disk image beside it is left from an unfinished move.
		im, has, err := t.openOld(t.dir, t.c.disk)
		if err != nil {
			return err
		}
		if im != nil {
			t.former.Store(&former{im, has})
		}
	}
	dir, vol := t.imageDir()
	im, has, err := t.openOld(dir, vol)
	if err != nil || im == nil {
		return err
	}
	t.image.Store(im)
	for k := range t.pages {
		if t.readPresent(k, has[t.pageFirst[k]:t.pageFirst[k+1]]) != nil {
			crashed = true // chunks may be in it, but their list is lost
		}
	}
	if crashed {
		return t.sweep(im)
	}
	return nil
}

// openOld opens an existing image file, and reads its file present.
func (t *Tree) openOld(dir string, vol *volume) (*image, []byte, error) {
	if _, err := os.Lstat(dir + "/image"); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, nil, err
	}
	im, err := openImage(dir, vol, t.manifest.Size, t.manifest.Chunks())
	if err != nil {
		return nil, nil, err
	}
	has := make([]byte, t.manifest.Chunks())
	if _, err := im.present.ReadAt(has, 0); err != nil && !errors.Is(err, io.EOF) {
		im.disown()
		return nil, nil, errors.Join(err, im.close())
	}
	return im, has, nil
}

// readPresent marks the chunks of index page k as present that are set in has.
func (t *Tree) readPresent(k int, has []byte) error {
	any := false
	for _, b := range has {
		any = any || b != 0
	}
	if !any {
		return nil
	}
	where := t.manifest.Pages[k]
	content := t.readPage(where)
	if content == nil {
		return fmt.Errorf("page %d is not there", k)
	}
	pg, err := t.parsePage(k, content)
	if err != nil {
		return err
	}
	t.enter(k, pg)
	for i, b := range has {
		if b != 0 && !pg.hole(i) {
			pg.used[i].Store(uint64(b))
			pg.state[i].Store(unverified)
			t.count(pg, i, 1)
			t.c.index.add(t, pg.first+i, pg.digests[i])
		}
	}
	return nil
}

// sweep punches data in the image file that belongs to no present chunk: a process that
// was killed may have written it.
func (t *Tree) sweep(im *image) error {
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	fd, size := int(im.f.Fd()), t.manifest.Size
	for at := int64(0); at < size; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // the rest is a hole
		}
		if err != nil {
			return err
		}
		if at, err = unix.Seek(fd, data, unix.SEEK_HOLE); err != nil {
			return err
		}
		if err := t.sweepExtent(im, data&^(block-1), min(at, size)); err != nil {
			return err
		}
	}
	im.account()
	return nil
}

func (t *Tree) sweepExtent(im *image, from, to int64) error {
	for from < to {
		k := t.pageNumberAt(from)
		pg := t.pages[k].Load()
		end := t.pageOff[k+1]
		i := 0
		if pg != nil {
			i = pg.at(from)
			end = pg.offs[i+1]
		}
		if pg == nil || !pg.present(i) {
			// Keep blocks that a present neighbour shares.
			lo, hi := from, (min(end, to)+block-1)&^(block-1)
			if pg != nil {
				plo, phi := t.punchable(pg, i)
				lo, hi = plo, min(hi, phi)
			} else {
				hi = min(hi, end&^(block-1))
			}
			if err := im.punch(lo, hi); err != nil {
				return err
			}
		}
		from = end
	}
	return nil
}
