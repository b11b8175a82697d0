package cache

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sort"
	"sync/atomic"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// page holds the state of the chunks of one index page.
type page struct {
	first   int             // number of its first chunk in the tree
	digests []object.Digest // zero: a hole
	offs    []int64         // offset of each chunk in the image, and the end of the last

	// state of each chunk: nil if it is not in the image file, unverified if it was not
	// hashed since the cache was opened, else its sums. It becomes non-nil under
	// imageMu for reading, nil under imageMu for writing; changes between the others
	// need no lock.
	state []atomic.Pointer[sums]
	used  []atomic.Uint64 // generation of the last use
	// part of each chunk, nil for a chunk that is present or entirely absent. It
	// becomes non-nil under imageMu for reading; its blocks are punched under imageMu
	// for writing, after it became nil.
	part []atomic.Pointer[part]
}

// sums holds the CRC-32C of each block of a verified chunk, as far as the block belongs
// to the chunk. They are computed from the right content and do not depend on the file.
type sums struct{ crc []uint32 }

var (
	unverified = &sums{}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

func newPage(first int, start int64, chunks []tree.Chunk) *page {
	p := &page{
		first:   first,
		digests: make([]object.Digest, len(chunks)),
		offs:    tree.Offsets(start, chunks),
		state:   make([]atomic.Pointer[sums], len(chunks)),
		used:    make([]atomic.Uint64, len(chunks)),
		part:    make([]atomic.Pointer[part], len(chunks)),
	}
	for i, c := range chunks {
		p.digests[i] = c.Digest
	}
	return p
}

func (p *page) hole(i int) bool    { return p.digests[i].IsZero() }
func (p *page) size(i int) int64   { return p.offs[i+1] - p.offs[i] }
func (p *page) present(i int) bool { return p.state[i].Load() != nil }

// at returns the chunk that contains the byte at off of the image.
func (p *page) at(off int64) int {
	return sort.Search(len(p.digests), func(i int) bool { return p.offs[i+1] > off })
}

// sumUp returns the sums of a chunk with this content.
func (p *page) sumUp(i int, content []byte) *sums {
	return &sums{sumBlocks(p.offs[i], content)}
}

// sumBlocks returns the CRC-32C of each block of b, which begins at this offset of the
// image.
func sumBlocks(at int64, b []byte) []uint32 {
	crc := make([]uint32, 0, len(b)/block+2)
	for len(b) > 0 {
		n := min(int64(len(b)), block-at%block)
		crc = append(crc, crc32.Checksum(b[:n], castagnoli))
		b, at = b[n:], at+n
	}
	return crc
}

// fits reports whether b, bytes of chunk i that begin at off, matches its sums. Each
// end of b must be the end of a block or of the chunk.
func (p *page) fits(i int, s *sums, b []byte, off int64) bool {
	k := off/block - p.offs[i]/block
	for ; len(b) > 0; k++ {
		n := min(int64(len(b)), block-off%block)
		if s.crc[k] != crc32.Checksum(b[:n], castagnoli) {
			return false
		}
		b, off = b[n:], off+n
	}
	return true
}

// load is the loading of an index page.
type load struct {
	done chan struct{}
	err  error
}

// page returns index page k, reading or fetching it if necessary.
func (t *Tree) page(ctx context.Context, k int) (*page, error) {
	if p := t.pages[k].Load(); p != nil {
		return p, nil
	}
	for {
		l, err := t.beginLoad(k)
		if err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-l.done:
		}
		if p := t.pages[k].Load(); p != nil {
			return p, nil
		}
		// A caller that has closed the tree since may have begun the load.
		if !errors.Is(l.err, context.Canceled) || t.use().ctx.Err() != nil {
			return nil, l.err
		}
	}
}

// beginLoad returns the load of index page k. The load continues even if its callers
// give up.
func (t *Tree) beginLoad(k int) (*load, error) {
	if err := t.c.begin(); err != nil {
		return nil, err
	}
	t.loadMu.Lock()
	defer t.loadMu.Unlock()
	if l := t.loads[k]; l != nil {
		t.c.pending.Done()
		return l, nil
	}
	l := &load{done: make(chan struct{})}
	t.loads[k] = l
	u := t.use()
	go func() {
		defer t.c.pending.Done()
		if t.pages[k].Load() == nil { // another load may have just ended
			l.err = t.loadPage(u, k)
		}
		t.loadMu.Lock()
		delete(t.loads, k)
		t.loadMu.Unlock()
		close(l.done)
	}()
	return l, nil
}

// pageAt returns the index page of the byte at off of the image.
func (t *Tree) pageAt(ctx context.Context, off int64) (*page, error) {
	return t.page(ctx, sort.Search(len(t.pages), func(k int) bool { return t.pageOff[k+1] > off }))
}

// pageOf returns the index page that lists a chunk.
func (t *Tree) pageOf(ctx context.Context, chunk int) (*page, error) {
	return t.page(ctx, t.pageNumber(chunk))
}

func (t *Tree) pageNumber(chunk int) int {
	return sort.Search(len(t.pages), func(k int) bool { return t.pageFirst[k+1] > chunk })
}

// loadedPageOf returns the index page that lists a chunk, or nil.
func (t *Tree) loadedPageOf(chunk int) (*page, int) {
	if chunk < 0 || chunk >= t.pageFirst[len(t.pages)] {
		return nil, 0
	}
	p := t.pages[t.pageNumber(chunk)].Load()
	if p == nil {
		return nil, 0
	}
	return p, chunk - p.first
}

// loadPage gets index page k from this tree's file, from the file of another tree which
// has the same page, or from the origin.
func (t *Tree) loadPage(u use, k int) error {
	where := t.manifest.Pages[k]
	content, kept := t.c.localPage(t, where)
	if content == nil {
		fetched, err := u.fetch(where.Digest, where.PageSize())
		if err != nil {
			return &ReadError{t.digest, fmt.Sprintf("page %d", k), where.Digest, err}
		}
		content = fetched
	}
	p, err := t.parsePage(k, content)
	if err != nil {
		return &ReadError{t.digest, fmt.Sprintf("page %d", k), where.Digest, err}
	}
	if !kept {
		t.keepMeta("pages", content, t.pagePlace[k])
	}
	t.enter(k, p)
	return nil
}

// parsePage decodes the verified content of index page k.
func (t *Tree) parsePage(k int, content []byte) (*page, error) {
	chunks, err := tree.ParsePage(t.manifest.Pages[k], content)
	if err != nil {
		return nil, err
	}
	return newPage(t.pageFirst[k], t.pageOff[k], chunks), nil
}

// enter publishes a page, once. Holes need no fetching: they count as present.
func (t *Tree) enter(k int, p *page) {
	if !t.pages[k].CompareAndSwap(nil, p) {
		return
	}
	for i := range p.digests {
		if p.hole(i) {
			t.missing.Add(-1)
			t.holes.Add(p.size(i))
		}
	}
}

// localPage looks for an index page on disk, first in the tree's own file. own reports
// that it was there.
func (c *Cache) localPage(t *Tree, where tree.Page) (content []byte, own bool) {
	if content = t.readPage(where); content != nil {
		return content, true
	}
	for _, other := range c.all() {
		if other != t {
			if content = other.readPage(where); content != nil {
				return content, false
			}
		}
	}
	return nil, false
}

// readPage returns the verified content of an index page from the tree's file,
// or nil.
func (t *Tree) readPage(where tree.Page) []byte {
	k := slices.Index(t.manifest.Pages, where)
	if k < 0 {
		return nil
	}
	f, err := openExisting(t.dir + "/pages")
	if err != nil {
		return nil
	}
	defer f.Close()
	content := make([]byte, where.PageSize())
	if _, err := f.ReadAt(content, t.pagePlace[k]); err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	if object.Sum(content) != where.Digest {
		return nil
	}
	return content
}
