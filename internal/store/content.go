package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/store/chunker"
	"premix/internal/store/erofs"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Limits of the layout. Changing them changes the digests of trees.
const (
	// Smaller files, in bytes, lie side by side, many in a chunk.
	largeMin = 128 << 10
	// Larger files have many small chunks, so that random reads and changes cost little.
	// Files between the two sizes have few: a node fetches most of them whole, with one
	// request for each chunk.
	fineMin = 8 << 20
	// In large files, a piece of this many bytes that is all zeros, at a multiple of
	// this offset, is a hole.
	holeSize = 64 << 10

	gatherMin, gatherMean, gatherMax = 128 << 10, 512 << 10, 1 << 20
	coarseMin, coarseMean, coarseMax = 256 << 10, 1 << 20, 2 << 20
	finestChunk, fineMean, fineMax   = 64 << 10, 256 << 10, 1 << 20
	metaMin, metaMean, metaMax       = 64 << 10, 256 << 10, 1 << 20

	// chunkMax is the largest chunk of files.
	chunkMax = coarseMax
)

var (
	coarseChunker = chunker.New(coarseMin, coarseMean, coarseMax)
	fineChunker   = chunker.New(finestChunk, fineMean, fineMax)
	metaChunker   = chunker.New(metaMin, metaMean, metaMax)
)

// content is the content of a regular file, in the form that its tree needs.
type content struct {
	inline []byte        // of a file small enough to lie behind its inode
	digest object.Digest // of a small file
	bytes  []byte        // of a small file that has just been read
	pieces []tree.Chunk  // of a large file; they cover it, the last up to the end of its block
	racy   bool          // it may change without a change of its stamp: not to be cached
}

// fits reports whether c can be the content of a file with this node.
func (c *content) fits(n *erofs.Node) bool {
	switch classOf(n) {
	case inline:
		return int64(len(c.inline)) == n.Size
	case small:
		return !c.digest.IsZero()
	case large:
		var sum int64
		for _, p := range c.pieces {
			sum += p.Size
		}
		return sum == roundUp(n.Size)
	}
	return true
}

type class int

const (
	empty class = iota
	inline
	small
	large
)

// classOf returns the class of a regular file.
func classOf(n *erofs.Node) class {
	switch {
	case n.Size == 0:
		return empty
	case n.Size <= int64(erofs.InlineMax(n)):
		return inline
	case n.Size < largeMin:
		return small
	}
	return large
}

// tick returns the time within which two changes of a file may get the same timestamp:
// 10 ms if the kernel's clock ticks 100 times a second, and 2 s on filesystems that
// store whole seconds or, like FAT, even seconds.
func tick(changeNsec int64) time.Duration {
	if changeNsec == 0 {
		return 2 * time.Second
	}
	return 20 * time.Millisecond
}

// read reads a file, again if necessary, until it sees one consistent state of it. If
// this state is newer than the one that walk saw, the entry is updated, or, if it is
// settled already, an error is returned.
func (p *publisher) read(ctx context.Context, e *entry, settled bool) (*content, error) {
	changed := &SourceError{Path: e.path(), Reason: "it changes while it is being read", HintText: "publish while no program writes to it, or publish a copy"}
	for try := range retries + 1 {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		time.Sleep(time.Duration(try) * 20 * time.Millisecond)
		c, err := p.readOnce(ctx, e, settled)
		switch {
		case err == nil && c != nil:
			p.progress.ReadFiles.Add(1)
			return c, nil
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENXIO):
			changed.Reason, changed.Err = "it was removed or replaced while the directory was being read", err
			return nil, changed
		case err != nil:
			return nil, sourceError(e.path(), err)
		}
	}
	return nil, changed
}

// readOnce returns nil if the file changed while it was read.
func (p *publisher) readOnce(ctx context.Context, e *entry, settled bool) (*content, error) {
	f, err := openBelow(p.root, e.path())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var before, after unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &before); err != nil {
		return nil, err
	}
	if before.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, unix.ENOTDIR // it was replaced: see read
	}
	if s := stampOf(&before); s != e.stamp {
		if settled {
			return nil, nil
		}
		if s.ino != e.stamp.ino && (before.Nlink > 1 || e.nlink > 1) {
			return nil, unix.ENOENT // walk saw other links of it
		}
		if err := e.refresh(&before, int(f.Fd())); err != nil {
			return nil, err
		}
	}
	// A change within the tick of the last change would not alter the stamp. So wait
	// until the tick is over before reading.
	c := &content{}
	if d := tick(before.Ctim.Nsec); time.Since(time.Unix(before.Ctim.Sec, before.Ctim.Nsec)) < d {
		if d > time.Second {
			c.racy = true // too long to wait; the next publish reads it again
		} else {
			time.Sleep(d)
		}
	}
	switch classOf(e.node) {
	case empty:
	case inline:
		c.inline, err = p.readAll(f, before.Size)
	case small:
		c.bytes, err = p.readAll(f, before.Size)
		c.digest = object.Sum(c.bytes)
	case large:
		c.pieces, err = p.readLarge(ctx, f, before.Size)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, nil // it became shorter
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Fstat(int(f.Fd()), &after); err != nil {
		return nil, err
	}
	if stampOf(&before) != stampOf(&after) {
		return nil, nil
	}
	return c, nil
}

func (p *publisher) readAll(f *os.File, size int64) ([]byte, error) {
	buf := make([]byte, size)
	n, err := io.ReadFull(f, buf)
	p.progress.ReadBytes.Add(int64(n))
	return buf, err
}

// windows holds buffers for reading files and chunks.
var windows = sync.Pool{New: func() any { b := make([]byte, 2*chunkMax); return &b }}

// readLarge cuts a file into holes and chunks, and stores the chunks.
func (p *publisher) readLarge(ctx context.Context, f *os.File, size int64) ([]tree.Chunk, error) {
	cut := &cutter{p: p, chunker: FileChunker(size)}
	buf := windows.Get().(*[]byte)
	defer windows.Put(buf)
	window := *buf
	kept := 0 // bytes at the window's beginning that are read but not yet cut
	for at := int64(0); at < size; {
		if err := context.Cause(ctx); err != nil {
			return cut.done(err)
		}
		n := int(min(chunkMax, size-at))
		if _, err := io.ReadFull(io.NewSectionReader(f, at, int64(n)), window[kept:kept+n]); err != nil {
			return cut.done(err)
		}
		p.progress.ReadBytes.Add(int64(n))
		at += int64(n)
		from, end := 0, kept+n
		for pos := kept; pos < end; {
			piece := min(holeSize, end-pos)
			if zero(window[pos : pos+piece]) {
				cut.data(window[from:pos], true)
				cut.hole(int64(piece))
				from = pos + piece
			}
			pos += piece
		}
		kept = copy(window, cut.data(window[from:end], at == size))
		if kept == 0 && cut.inHole && at < size {
			// The filesystem may know where the hole ends.
			if next := nextData(f, at, size); next > at {
				cut.hole(next - at)
				at = next
			}
		}
	}
	return cut.done(nil)
}

// nextData returns the first offset from off on at which there may be data: a multiple
// of holeSize, or the file's size.
func nextData(f *os.File, off, size int64) int64 {
	next, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size
	case err != nil:
		return off // the filesystem does not report holes
	}
	return min(size, max(off, next&^(holeSize-1)))
}

// zero reports whether all bytes of p are zero. p must not be empty.
func zero(p []byte) bool { return p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1]) }

// cutter cuts the data of one file into chunks and stores them in the background.
type cutter struct {
	p       *publisher
	chunker *chunker.Chunker
	length  int64 // of the data since the last hole
	pieces  []*tree.Chunk
	inHole  bool // the last of them is a hole

	wg  sync.WaitGroup
	mu  sync.Mutex
	err error
}

// data cuts data that continues the data before. It returns the rest, whose cut depends
// on further data; if ends is set, there is no rest.
func (c *cutter) data(data []byte, ends bool) (rest []byte) {
	for len(data) >= chunkMax || ends && len(data) > 0 {
		n := c.chunker.Cut(data)
		c.length += int64(n)
		pad := 0
		if n == len(data) && ends {
			// Only at the end of a file can a chunk end within a block. The zeros up to
			// the end of the block are part of the chunk.
			pad = int(-c.length & (erofs.BlockSize - 1))
		}
		c.chunk(data[:n], pad)
		data = data[n:]
	}
	if ends {
		c.length = 0
	}
	return data
}

func (c *cutter) chunk(data []byte, pad int) {
	buf := windows.Get().(*[]byte)
	block := append((*buf)[:0], data...)
	block = append(block, make([]byte, pad)...)
	piece := &tree.Chunk{Size: int64(len(block))}
	c.pieces, c.inHole = append(c.pieces, piece), false
	c.p.slots <- struct{}{}
	c.wg.Go(func() {
		defer func() { windows.Put(buf); <-c.p.slots }()
		d, err := c.p.put(block)
		c.mu.Lock()
		defer c.mu.Unlock()
		piece.Digest = d
		c.err = errors.Join(c.err, err)
	})
}

func (c *cutter) hole(length int64) {
	length = (length + erofs.BlockSize - 1) &^ (erofs.BlockSize - 1)
	if c.inHole {
		c.pieces[len(c.pieces)-1].Size += length
		return
	}
	c.pieces = append(c.pieces, &tree.Chunk{Size: length})
	c.inHole = true
}

// done waits for the chunks to be stored.
func (c *cutter) done(err error) ([]tree.Chunk, error) {
	c.wg.Wait()
	if err != nil || c.err != nil {
		return nil, errors.Join(err, c.err)
	}
	pieces := make([]tree.Chunk, len(c.pieces))
	for i, p := range c.pieces {
		pieces[i] = *p
	}
	return pieces, nil
}
