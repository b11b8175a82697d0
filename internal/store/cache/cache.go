package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Format is the content of the file named format in a cache's directory.
const Format = "premix cache 1"

// Options limit the size of a cache, and configure fetching.
type Options struct {
	Quota int64 // bytes allocated on disk, at most; 0: bounded by Floor only
	// Floor is the number of bytes to leave free on the partition, no matter what fills
	// it; 0: a twentieth of it, at most 1 GiB; negative: none.
	Floor int64

	RAMDir   string // on a tmpfs, only for trees pinned in memory; empty: none
	RAMQuota int64  // bytes allocated there, at most; 0: the size of the tmpfs

	VerifyAlways bool // hash a chunk at every read

	Fetches int           // concurrent fetches, 24 if 0; readers may start half as many more
	Window  int64         // bytes of memory for readahead, 64 MiB if 0
	Timeout time.Duration // of the fetch of an object, with all retries; 90 s if 0
}

// Cache holds the chunks of a node's trees. All methods are safe for concurrent use.
type Cache struct {
	dir  string
	o    Options
	lock *os.File
	disk *volume
	ram  *volume      // nil without a RAMDir
	own  atomic.Int64 // bytes of disk used besides the trees

	ctx     context.Context
	end     context.CancelFunc
	pending sync.WaitGroup // work that Close waits for

	flights *flights
	index   *index
	objects *Objects

	clock   atomic.Uint64 // generation
	touches atomic.Uint64 // since the clock's last tick
	stride  atomic.Uint64 // touches in a tick
	chunks  atomic.Int64  // present, in all trees

	evicting sync.Mutex
	victims  []victim // under evicting; oldest last
	evicted  atomic.Int64
	full     atomic.Bool // the last chunk could not be kept for lack of space
	noClone  atomic.Bool // the file system cannot share blocks

	pinMu sync.Mutex
	pins  map[object.Digest]pinKind // also of trees that are not in the cache

	mu       sync.Mutex
	closed   bool
	trees    map[object.Digest]*Tree
	numbered map[uint32]*Tree
	last     uint32 // last number assigned to a tree
}

// maxGeneration is greater than every generation: everything may be evicted.
const maxGeneration = math.MaxUint64

// firstGeneration is the generation of a cache just opened. Chunks from earlier have
// generations from 1 to 255, as read from the file present.
const firstGeneration = 256

// Open opens the cache in a directory, and creates it if there is none. A caller may
// want to distinguish [InUseError] and [FormatError].
func Open(dir string, o Options) (*Cache, error) {
	if o.Fetches <= 0 {
		o.Fetches = 24
	}
	if o.Window <= 0 {
		o.Window = 64 << 20
	}
	if o.Timeout <= 0 {
		o.Timeout = 90 * time.Second
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	c := &Cache{
		dir: dir, o: o,
		disk:     &volume{dir: dir, quota: o.Quota, floor: max(0, o.Floor), headroom: min(o.Quota/64, 1<<20)},
		flights:  newFlights(o.Fetches, o.Window),
		index:    &index{m: map[uint64]uint64{}},
		trees:    map[object.Digest]*Tree{},
		numbered: map[uint32]*Tree{},
	}
	c.clock.Store(firstGeneration)
	c.stride.Store(1)
	c.ctx, c.end = context.WithCancel(context.Background())
	if err := c.open(); err != nil {
		c.end()
		if c.lock != nil {
			err = errors.Join(err, c.lock.Close())
		}
		return nil, fmt.Errorf("open the cache: %w", err)
	}
	c.pending.Go(c.maintainLoop)
	return c, nil
}

func (c *Cache) open() error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	// The kernel reads complete trees from there without checking digests.
	if err := owner.Private(c.dir); err != nil {
		return err
	}
	var err error
	if c.lock, err = lockDir(c.dir); err != nil {
		return err
	}
	if err := c.checkFormat(); err != nil {
		return err
	}
	for _, name := range []string{"trees", "pins", "trash"} {
		if err := os.MkdirAll(filepath.Join(c.dir, name), 0o700); err != nil {
			return err
		}
	}
	if err := c.checkPunching(); err != nil {
		return err
	}
	if c.o.RAMDir != "" {
		ram, err := filepath.Abs(c.o.RAMDir)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(ram, 0o700); err != nil {
			return err
		}
		if err := owner.Private(ram); err != nil {
			return err
		}
		c.ram = &volume{dir: ram, quota: c.o.RAMQuota}
	}
	if c.o.Floor == 0 {
		c.disk.floor = c.disk.usualFloor()
	}
	running := filepath.Join(c.dir, "running")
	_, err = os.Lstat(running)
	crashed := err == nil
	if err := os.WriteFile(running, nil, 0o600); err != nil {
		return err
	}
	if err := c.emptyTrash(); err != nil {
		return err
	}
	if err := c.readTrees(crashed); err != nil {
		return err
	}
	if c.objects, err = c.openObjects(); err != nil {
		return err
	}
	c.accountOwn()
	return nil
}

// lockDir locks a cache's directory for this process.
func lockDir(dir string) (*os.File, error) {
	f, err := owner.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock.Take(f, lock.Exclusive); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			b := make([]byte, 32)
			n, _ := f.ReadAt(b, 0) // only for the message: the process that holds the lock
			pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
			err = &InUseError{dir, pid}
		}
		return nil, errors.Join(err, f.Close())
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.WriteAt(fmt.Appendln(nil, os.Getpid()), 0); err != nil && !errors.Is(err, unix.ENOSPC) {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (c *Cache) checkFormat() error {
	path := filepath.Join(c.dir, "format")
	b, err := os.ReadFile(path)
	switch {
	case err == nil:
		if got := strings.TrimSpace(string(b)); got != Format {
			return &FormatError{c.dir, fmt.Sprintf("its format is %.40q, this premix reads %q", got, Format)}
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name != "lock" && name != "lost+found" && !strings.HasPrefix(name, beneath.Prefix) {
			return &FormatError{c.dir, fmt.Sprintf("it contains %q, but it is not a cache", name)}
		}
	}
	// A process that was killed while it made the cache has left a part of this file.
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), beneath.Prefix) {
			if err := os.Remove(filepath.Join(c.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return writeWhole(path, []byte(Format+"\n"))
}

// checkPunching returns an error if the file system cannot punch holes, which eviction
// needs.
func (c *Cache) checkPunching() error {
	f, err := os.Create(filepath.Join(c.dir, "trash", "probe"))
	if err != nil {
		return err
	}
	defer f.Close()
	err = f.Truncate(2 * block)
	if err == nil {
		err = (&image{f: f}).punch(0, block)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return &FormatError{c.dir, "its file system cannot punch holes into files"}
	}
	return errors.Join(err, os.Remove(f.Name()))
}

func (c *Cache) emptyTrash() error {
	trash := filepath.Join(c.dir, "trash")
	entries, err := os.ReadDir(trash)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(trash, e.Name())))
	}
	return err
}

// readTrees reads the trees that earlier processes left.
func (c *Cache) readTrees(crashed bool) error {
	pins, err := c.readPins()
	if err != nil {
		return err
	}
	c.pins = pins
	if err := c.cleanRAM(pins); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(c.dir, "trees"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		d, err := object.ParseDigest(e.Name())
		if err == nil {
			err = c.readTree(d, crashed)
		}
		if err != nil {
			// Without a valid manifest the rest is useless.
			if err := beneath.Move(filepath.Join(c.dir, "trees", e.Name()), c.trashName(e.Name()), beneath.Volatile); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return c.emptyTrash()
}

func (c *Cache) trashName(name string) string {
	return filepath.Join(c.dir, "trash", fmt.Sprintf("%s-%d", name, time.Now().UnixNano()))
}

func (c *Cache) readTree(d object.Digest, crashed bool) error {
	dir := filepath.Join(c.dir, "trees", d.String())
	if err := removeIfThere(filepath.Join(dir, "manifest.tmp")); err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(dir, "manifest"))
	if err != nil {
		return err
	}
	if object.Sum(content) != d {
		return &object.CorruptError{Digest: d, Reason: "the manifest on disk is of another tree"}
	}
	m, err := tree.ParseManifest(content)
	if err != nil {
		return err
	}
	t := newTree(c, d, m)
	c.enrol(t)
	if info, err := os.Stat(dir + "/image"); err == nil {
		t.lastUse.Store(info.ModTime().Unix())
	}
	t.accountMeta()
	if err := t.readImages(crashed); err != nil {
		return errors.Join(err, c.remove(t, true))
	}
	return nil
}

// enrol registers a tree. The caller holds c.mu, or the cache is not yet shared.
func (c *Cache) enrol(t *Tree) {
	t.pin.Store(uint32(c.pinOf(t.digest)))
	c.last++
	t.number = c.last
	c.trees[t.digest], c.numbered[t.number] = t, t
}

// all returns all trees of the cache.
func (c *Cache) all() []*Tree {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*Tree, 0, len(c.trees))
	for _, t := range c.trees {
		list = append(list, t)
	}
	return list
}

func (c *Cache) byNumber(n uint32) *Tree {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.numbered[n]
}

func (c *Cache) tree(d object.Digest) (*Tree, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if t := c.trees[d]; t != nil {
		return t, nil
	}
	return nil, &NotCachedError{d}
}

// mayHave reports whether a chunk with this digest may be on this machine.
func (c *Cache) mayHave(d object.Digest) bool {
	_, _, ok := c.index.find(d)
	return ok
}

// touch records that a chunk was used. The clock ticks after a 256th of all present
// chunks have been touched, counting each chunk once per tick. So a round through all
// chunks makes 256 generations: exact for few chunks, cheap for many.
func (c *Cache) touch(pg *page, i int) {
	now := c.clock.Load()
	if pg.used[i].Load() == now {
		return
	}
	pg.used[i].Store(now)
	if c.touches.Add(1) >= c.stride.Load() {
		c.touches.Store(0)
		c.clock.Add(1)
	}
}

// accountOwn updates the disk usage of the directories and small files.
func (c *Cache) accountOwn() {
	n := allocatedAt(c.dir)
	for _, name := range []string{"format", "lock", "running", "trees", "trash", "objects"} {
		n += allocatedAt(filepath.Join(c.dir, name))
	}
	pins := filepath.Join(c.dir, "pins")
	n += allocatedAt(pins)
	entries, err := os.ReadDir(pins)
	if err == nil { // what cannot be listed now is counted next time
		for _, e := range entries {
			n += allocatedAt(filepath.Join(pins, e.Name()))
		}
	}
	c.disk.add(n - c.own.Swap(n))
}

// maintainLoop does periodic work: it evicts when other programs fill the disk, updates the
// disk usage of image files, and saves the generations of chunks.
func (c *Cache) maintainLoop() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		c.maintainOnce(n%300 == 0)
	}
}

func (c *Cache) maintainOnce(save bool) {
	c.accountOwn()
	for _, t := range c.all() {
		if im := t.image.Load(); im != nil {
			im.account()
		}
		if t.unsynced.Swap(false) {
			if err := syncFile(t.dir + "/manifest"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.stats.diskErrors.Add(1)
			}
		}
		if save {
			t.saveRecency()
		}
	}
	c.stride.Store(max(1, uint64(c.chunks.Load())/256))
	c.makeRoom(c.disk, 0, maxGeneration)
}

// begin registers work that Close must wait for, until c.pending.Done is called. It fails
// once the cache is closed.
func (c *Cache) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.pending.Add(1)
	return nil
}

// Close waits until pending writes are done and releases the directory. Trees that are
// still open fail from then on.
func (c *Cache) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.end()
	c.flights.close()
	c.pending.Wait()
	c.objects.close()
	var err error
	for _, t := range c.all() {
		t.saveRecency()
		t.imageMu.Lock()
		t.gone = true
		t.dropPartsLocked() // parts are not recorded on disk
		if im := t.image.Swap(nil); im != nil {
			err = errors.Join(err, im.close())
		}
		t.imageMu.Unlock()
	}
	return errors.Join(err, removeIfThere(filepath.Join(c.dir, "running")), c.lock.Close())
}
