package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Fetcher returns verified contents of objects; origin.Group is one. A negative size
// means that the size is unknown.
type Fetcher interface {
	Verified(ctx context.Context, d object.Digest, size int64) ([]byte, error)
}

// Streamer is a Fetcher that passes on contents while they arrive.
type Streamer interface {
	Fetcher
	// Stream is Verified for an object whose content has size bytes. Whenever there is
	// more, and until Stream returns, it calls got with the content so far, which is
	// not yet verified, from one goroutine at a time. The content may begin again, with
	// fewer or other bytes.
	Stream(ctx context.Context, d object.Digest, size int64, got func(soFar []byte)) ([]byte, error)
}

// Tree is a tree in the cache. All methods are safe for concurrent use.
type Tree struct {
	c        *Cache
	number   uint32 // in the index
	digest   object.Digest
	dir      string // on disk
	manifest *tree.Manifest

	pageOff   []int64 // offset of each index page's chunks in the image; at the end the image's size
	pageFirst []int   // number of each index page's first chunk; at the end the number of chunks
	pagePlace []int64 // offset of each index page's content in the pages file

	pages  []atomic.Pointer[page]
	loadMu sync.Mutex
	loads  map[int]*load

	// imageMu is held for reading while chunks are written, and for writing while they
	// are punched or files replaced: a block at the edge of a chunk belongs to two
	// chunks. Readers of chunks do not need it: see the package's comment.
	imageMu sync.RWMutex
	image   atomic.Pointer[image]  // nil until a chunk is kept
	former  atomic.Pointer[former] // the image file before a move
	moving  sync.Mutex
	gone    bool // under imageMu: removed, nothing may be written any more

	refs        int                 // under Cache.mu
	current     atomic.Pointer[use] // of the last call of Cache.Tree; never nil
	lastUse     atomic.Int64        // Unix time in seconds of the last opening or closing
	pin         atomic.Uint32       // a pinKind
	held        atomic.Int32        // number of holders
	meta        atomic.Int64        // bytes allocated by directory, manifest and pages
	unsynced    atomic.Bool         // the manifest on disk is not yet durable
	missing     atomic.Int64        // chunks that are not present, counting all of pages not yet loaded
	present     atomic.Int64        // bytes of present chunks
	holes       atomic.Int64        // bytes of known holes
	kept        atomic.Int64        // number of present chunks, without holes
	parts       atomic.Int64        // chunks with a cached part
	guided      atomic.Int32        // see Guide
	expected    expected
	planning    atomic.Pointer[chan struct{}] // closed when the parts a profile will bring are known; nil without a Prefetch
	record      atomic.Pointer[[]*Recorder]
	streams     streams
	misses      misses
	speculative atomic.Bool // see Speculate
	stats       counters
}

// use is the fetcher of a tree, from when it was opened until it is closed.
type use struct {
	ctx     context.Context // ends when the tree is closed
	end     context.CancelFunc
	fetcher Fetcher // nil: only cached chunks are available
	timeout time.Duration
}

func (u use) fetch(d object.Digest, size int64) ([]byte, error) { return u.stream(d, size, nil) }

// stream is fetch, and calls got as a [Streamer] does, if the fetcher is one and got is
// not nil.
func (u use) stream(d object.Digest, size int64, got func(soFar []byte)) ([]byte, error) {
	if err := u.ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrClosed, err)
	}
	if u.fetcher == nil {
		return nil, ErrNoOrigin
	}
	ctx, cancel := context.WithTimeout(u.ctx, u.timeout)
	defer cancel()
	var content []byte
	var err error
	if s, ok := u.fetcher.(Streamer); ok && got != nil {
		content, err = s.Stream(ctx, d, size, got)
	} else {
		content, err = u.fetcher.Verified(ctx, d, size)
	}
	if err == nil && size >= 0 && int64(len(content)) != size {
		return nil, &object.CorruptError{Digest: d, Reason: fmt.Sprintf("%d bytes instead of %d", len(content), size)}
	}
	return content, err
}

func (t *Tree) use() use { return *t.current.Load() }

// newTree returns the tree of a verified manifest.
func newTree(c *Cache, d object.Digest, m *tree.Manifest) *Tree {
	t := &Tree{c: c, digest: d, dir: c.dir + "/trees/" + d.String(), manifest: m, loads: map[int]*load{}}
	var off, place int64
	var first int
	for _, p := range m.Pages {
		t.pageOff, t.pageFirst, t.pagePlace = append(t.pageOff, off), append(t.pageFirst, first), append(t.pagePlace, place)
		off, first, place = off+p.Size, first+p.Chunks, place+p.PageSize()
	}
	t.pageOff, t.pageFirst = append(t.pageOff, off), append(t.pageFirst, first)
	t.pages = make([]atomic.Pointer[page], len(m.Pages))
	t.missing.Store(int64(first))
	ctx, end := context.WithCancel(c.ctx)
	end()
	t.current.Store(&use{ctx: ctx, end: end})
	return t
}

// Tree opens a tree. It fetches the manifest if it is not cached; for a tree in the
// cache f may be nil. The first index page is fetched in the background. An opened tree
// must be closed.
//
// If a tree is opened several times, the fetcher given last is used.
func (c *Cache) Tree(ctx context.Context, d object.Digest, f Fetcher) (*Tree, error) {
	t, err := c.acquire(d, f, nil)
	if err != nil {
		return nil, err
	}
	if t == nil {
		m, content, err := c.fetchManifest(ctx, d, f)
		if err != nil {
			return nil, err
		}
		if t, err = c.acquire(d, f, m); err != nil {
			return nil, err
		}
		t.keepMeta("manifest", content, 0)
	}
	t.fetchFirst()
	return t, nil
}

func (c *Cache) fetchManifest(ctx context.Context, d object.Digest, f Fetcher) (*tree.Manifest, []byte, error) {
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	u := use{ctx: ctx, fetcher: f, timeout: c.o.Timeout}
	content, err := u.fetch(d, -1)
	if err != nil {
		return nil, nil, &ReadError{d, "manifest", d, err}
	}
	m, err := tree.ParseManifest(content)
	if err != nil {
		return nil, nil, &ReadError{d, "manifest", d, err}
	}
	return m, content, nil
}

// acquire adds a user to a tree. An unknown tree is created from its manifest; if that
// is nil, acquire returns nil.
func (c *Cache) acquire(d object.Digest, f Fetcher, m *tree.Manifest) (*Tree, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	t := c.trees[d]
	if t == nil {
		if m == nil {
			return nil, nil
		}
		t = newTree(c, d, m)
		c.enrol(t)
	}
	t.refs++
	u := t.use()
	if t.refs == 1 {
		u.ctx, u.end = context.WithCancel(c.ctx)
	}
	if f != nil || t.refs == 1 {
		u.fetcher = f
	}
	u.timeout = c.o.Timeout
	t.current.Store(&u)
	t.lastUse.Store(time.Now().Unix())
	return t, nil
}

// Close ends one use of the tree. The last Close cancels fetches.
func (t *Tree) Close() error {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.refs--
	t.lastUse.Store(time.Now().Unix())
	if t.refs == 0 {
		t.use().end()
		t.streams.reset()
		t.misses.reset()
		t.speculative.Store(false)
	}
	return nil
}

// Digest returns the tree's digest.
func (t *Tree) Digest() object.Digest { return t.digest }

// Size returns the length of the image, in bytes.
func (t *Tree) Size() int64 { return t.manifest.Size }

// Manifest returns the tree's manifest, which must not be changed.
func (t *Tree) Manifest() *tree.Manifest { return t.manifest }

// IsComplete reports whether every chunk is present.
func (t *Tree) IsComplete() bool { return t.missing.Load() == 0 && t.image.Load() != nil }

// ImagePath returns the path of the image file, or "" if there is none. The file may be
// mounted directly while the tree is complete and held; see [Tree.Verify].
func (t *Tree) ImagePath() string {
	if im := t.image.Load(); im != nil {
		return im.path
	}
	return ""
}

// ReadAt reads from the image, as [io.ReaderAt] describes, and returns when all of p is
// read or ctx is done. Missing chunks are fetched. The error is a [ReadError] if a
// chunk could not be read, or the cause of ctx.
func (t *Tree) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("tree %s: read at %d", t.digest.Short(), off)
	}
	if off >= t.manifest.Size {
		return 0, io.EOF
	}
	short := int64(len(p)) > t.manifest.Size-off
	if short {
		p = p[:t.manifest.Size-off]
	}
	if t.missing.Load() > 0 {
		t.ahead(off, int64(len(p)))
	}
	n, asked := 0, off
	for n < len(p) {
		at := off + int64(n)
		pg, err := t.pageAt(ctx, at)
		if err != nil {
			t.stats.errors.Add(1)
			return n, err
		}
		i := pg.at(at)
		end := min(pg.offs[i+1], off+int64(len(p)))
		if end < off+int64(len(p)) && asked <= at {
			asked = t.askAhead(pg, i+1, off+int64(len(p)))
		}
		if err := t.readChunk(ctx, pg, i, p[n:end-off], at); err != nil {
			t.stats.errors.Add(1)
			return n, err
		}
		n = int(end - off)
	}
	if short {
		return n, io.EOF
	}
	return n, nil
}

// askAhead requests the chunks that a long read needs after its first, so that they are
// fetched concurrently. It stays within the page, and returns the offset that it
// reached.
func (t *Tree) askAhead(pg *page, i int, end int64) int64 {
	const most = 32
	for n := 0; i < len(pg.digests) && pg.offs[i] < end && n < most; i, n = i+1, n+1 {
		if !t.comes(pg, i, pg.offs[i], min(end, pg.offs[i+1])-pg.offs[i]) {
			t.ask(pg, i, demand)
		}
	}
	return pg.offs[i]
}

// readChunk reads into p the bytes at off, all in chunk i of the page.
func (t *Tree) readChunk(ctx context.Context, pg *page, i int, p []byte, off int64) error {
	if pg.hole(i) {
		clear(p)
		return nil
	}
	t.recordTouch(pg, i, off, int64(len(p)))
	missed, waited := false, false
	for try := 0; ; try++ {
		if s := pg.state[i].Load(); s != nil && s != unverified && !t.c.o.VerifyAlways {
			if t.readSummed(pg, i, s, p, off) {
				t.c.touch(pg, i)
				if !missed {
					t.stats.hits.Add(1)
				}
				return nil
			}
			// Either the chunk has just been evicted, or the file is damaged. Hashing
			// it decides.
			pg.state[i].CompareAndSwap(s, unverified)
		}
		if t.readPart(pg, i, p, off) {
			if !missed {
				t.stats.hits.Add(1)
			}
			return nil
		}
		if !waited {
			if err := t.planned(ctx); err != nil {
				return err
			}
			late, err := t.await(ctx, pg, i, off, int64(len(p)))
			if err != nil {
				return err
			}
			if late && !missed {
				missed = true
				t.stats.misses.Add(1)
			}
			waited = true // also if it is no longer expected: the part may just have been kept
			continue
		}
		f, fresh := t.want(pg, i, demand)
		if f == nil {
			continue
		}
		if fresh {
			t.speculate(pg, i)
		}
		err := f.wait(ctx)
		if !missed && (err != nil || !f.local) {
			missed = true
			t.stats.misses.Add(1)
		}
		if err == nil {
			copy(p, f.content[off-pg.offs[i]:])
			f.release()
			t.c.touch(pg, i)
			if !missed {
				t.stats.hits.Add(1)
			}
			return nil
		}
		// A flight that another tree began may have failed for reasons of that tree:
		// another origin, or a Close. This tree may have been closed and opened again
		// since the flight began.
		reopened := errors.Is(err, context.Canceled) && t.use().ctx.Err() == nil
		again := reopened || f.owner != t && try < 2
		f.release()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !again {
			return &ReadError{t.digest, fmt.Sprintf("chunk %d", pg.first+i), pg.digests[i], err}
		}
	}
}

// readSummed reads bytes of a verified chunk from the image file, and reports whether
// they match the sums.
func (t *Tree) readSummed(pg *page, i int, s *sums, p []byte, off int64) bool {
	im := t.image.Load()
	if im == nil {
		return false
	}
	start, end := max(pg.offs[i], off&^(block-1)), min(pg.offs[i+1], (off+int64(len(p))+block-1)&^(block-1))
	if start == off && end == off+int64(len(p)) {
		_, err := im.f.ReadAt(p, off)
		return err == nil && pg.fits(i, s, p, off)
	}
	b := buffers.get(end - start)
	defer buffers.put(b)
	_, err := im.f.ReadAt(b, start)
	if err != nil || !pg.fits(i, s, b, start) {
		return false
	}
	copy(p, b[off-start:])
	return true
}
