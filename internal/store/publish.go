package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"premix/internal/kit/ondisk"
	"premix/internal/store/erofs"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// PublishOptions configure a publish.
type PublishOptions struct {
	Key      tree.PrivateKey
	Cache    string    // directory of the caches of publishing; "": none
	Reread   bool      // read all files, even those in the cache
	Progress *Progress // updated while it runs; may be nil
	Now      time.Time // of the tag's record; zero: the present
}

// Progress has the counts of a running publish. All fields only grow.
type Progress struct {
	Entries   atomic.Int64 // seen in the directory
	Files     atomic.Int64 // whose contents must be read or found unchanged
	Bytes     atomic.Int64 // of their contents
	DoneFiles atomic.Int64 // read, or found unchanged
	DoneBytes atomic.Int64
	ReadFiles atomic.Int64 // read
	ReadBytes atomic.Int64
	Written   atomic.Int64 // bytes of stored forms that the store lacked
	Objects   atomic.Int64 // that the store lacked
}

// Published is the result of a publish.
type Published struct {
	Ref       tree.Ref
	Tree      object.Digest
	Manifest  *tree.Manifest
	Serial    int64
	Unchanged bool // the tag named this tree already
	Chunks    int  // holes included
	ReadFiles int64
	ReadBytes int64
	Objects   int64 // that were new
	Written   int64 // bytes of their stored forms
	Took      time.Duration
}

type publisher struct {
	w        *Writer
	root     *os.File
	progress *Progress
	old      *oldCache
	slots    chan struct{} // one for each chunk being hashed, compressed and written
}

// scratch returns the directory for temporary files, which is removed with the writer's.
func (p *publisher) scratch() string { return p.w.dir }

// Publish stores the directory dir as a tree, and sets the tag ref to it. The directory
// must not change while it runs: a file that changes is read again a few times, and
// then the error names it.
//
// It may be killed at any moment. The tag changes last.
func (s *Store) Publish(ctx context.Context, dir string, ref tree.Ref, o PublishOptions) (*Published, error) {
	began := time.Now()
	root, err := s.openSource(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if o.Progress == nil {
		o.Progress = &Progress{}
	}
	w, err := s.Begin()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	p := &publisher{w: w, root: root, progress: o.Progress, slots: make(chan struct{}, 2*runtime.GOMAXPROCS(0))}
	var cacheFile string
	if o.Cache != "" {
		cacheFile = filepath.Join(o.Cache, cacheName(root.Name()))
		if !o.Reread {
			p.old = openCache(cacheFile, p.scratch())
			defer p.old.Close()
		}
	}
	walked, err := walk(ctx, root, p.scratch(), func(e *entry) {
		p.progress.Entries.Add(1)
		if e.file() {
			p.progress.Files.Add(1)
			p.progress.Bytes.Add(e.node.Size)
		}
	})
	if err != nil {
		return nil, s.workError(err)
	}
	defer walked.Close()
	l, err := p.newLayout(cacheFile != "")
	if err != nil {
		return nil, s.workError(err)
	}
	defer l.Close()
	if err := p.layOut(ctx, walked, l); err != nil {
		return nil, s.workError(err)
	}
	d, m, chunks, err := p.putTree(ctx, l)
	if err != nil {
		return nil, s.workError(err)
	}
	tagged, err := w.Tag(ctx, TagOptions{Ref: ref, Tree: d, Key: o.Key, Now: o.Now})
	if err != nil {
		return nil, err
	}
	if cacheFile != "" {
		// The cache only saves time: if it cannot be written, the next publish reads
		// more.
		_ = l.fresh.write(cacheFile)
	}
	return &Published{
		Ref: ref, Tree: d, Manifest: m, Serial: tagged.Record.Serial, Unchanged: tagged.Unchanged, Chunks: chunks,
		ReadFiles: p.progress.ReadFiles.Load(), ReadBytes: p.progress.ReadBytes.Load(),
		Objects: p.progress.Objects.Load(), Written: p.progress.Written.Load(), Took: time.Since(began),
	}, nil
}

// workError converts an error of a publish about its own files in the store; see accessError.
func (s *Store) workError(err error) error {
	var source *SourceError
	if errors.As(err, &source) {
		return err
	}
	return accessError(s.dir, err)
}

// openSource opens the directory to be published.
func (s *Store) openSource(dir string) (*os.File, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return nil, &UsageError{Reason: fmt.Sprintf("the directory cannot be published: %v", err), HintText: "name an existing directory", Err: err}
	}
	own, err := filepath.EvalSymlinks(s.dir)
	if err != nil {
		return nil, err
	}
	if below(own, abs) || below(abs, own) && !s.scratch(abs) {
		return nil, &UsageError{Reason: fmt.Sprintf("the store %s and the directory %s overlap", own, abs), HintText: "publish a directory that does not contain the store"}
	}
	root, err := os.OpenFile(abs, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, &UsageError{Reason: fmt.Sprintf("the directory cannot be published: %v", err), HintText: "name a directory that you may read", Err: err}
	}
	return root, nil
}

// put stores a chunk or a part of the index.
func (p *publisher) put(content []byte) (object.Digest, error) {
	d, written, err := p.w.Put(content)
	if written > 0 {
		p.progress.Written.Add(written)
		p.progress.Objects.Add(1)
	}
	return d, err
}

// layout maps the contents of files to the data area, which has two parts: one of small
// files, and one of large files.
type layout struct {
	nodes  *erofs.Builder
	small  *chunkList
	large  *chunkList
	bytes  int64 // of all files
	inodes int64
	fresh  *freshCache // nil: none is wanted

	largePlaces *ondisk.Map  // by content; positions in extents
	extents     *ondisk.File // of large files
}

func (p *publisher) newLayout(caching bool) (l *layout, err error) {
	l = &layout{inodes: 1, largePlaces: ondisk.NewMap(p.scratch(), limits.keys)}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.nodes, err = erofs.NewBuilder(p.scratch()); err != nil {
		return l, err
	}
	if l.small, err = newChunkList(p.scratch()); err != nil {
		return l, err
	}
	if l.large, err = newChunkList(p.scratch()); err != nil {
		return l, err
	}
	if l.extents, err = ondisk.NewFile(p.scratch()); err != nil {
		return l, err
	}
	if caching {
		l.fresh, err = newFreshCache(p.scratch())
	}
	return l, err
}

// Close removes the files of a layout.
func (l *layout) Close() error {
	return errors.Join(l.nodes.Close(), l.small.Close(), l.large.Close(), l.extents.Close(), l.largePlaces.Close(), l.fresh.Close())
}

// item is an entry on its way through layOut.
type item struct {
	e      *entry
	begins bool     // a directory whose entries follow
	known  *content // from the cache
}

// layOut reads the contents of all files of a walk, stores their chunks, and gives all
// entries to the builder of nodes.
//
// Small files come first in the data area, in the order of the walk: the files of a
// directory by their names, then those of its first subdirectory, and so on. Each begins at
// a block boundary. Equal files share one location. They are gathered into chunks, which end
// where border decides. Large files follow in the same order, each with chunks of its
// own; equal ones share a location too.
func (p *publisher) layOut(ctx context.Context, walked *ondisk.File, l *layout) error {
	g := &gatherer{p: p, layout: l, places: ondisk.NewMap(p.scratch(), limits.keys)}
	defer g.places.Close()
	g.group.SetLimit(2 * runtime.GOMAXPROCS(0))
	in := readEntries(walked)
	err := inOrder(ctx, 2*runtime.GOMAXPROCS(0), 512,
		func() (i item, read bool, err error) {
			if i.e, i.begins, err = in.read(); err != nil || i.e == nil {
				return i, false, err
			}
			if i.begins || !i.e.file() || i.e.node.Size == 0 {
				return i, false, nil
			}
			i.known = p.old.find(i.e)
			return i, true, nil
		},
		func(ctx context.Context, i item) (*content, error) { return p.contentOf(ctx, i) },
		func(i item, c *content) error { return g.add(ctx, i, c) })
	if err == nil {
		g.flush(ctx)
	}
	if waitErr := g.group.Wait(); err == nil {
		err = waitErr
	}
	return err
}

// contentOf returns the content of a file from the cache, or else reads the file.
func (p *publisher) contentOf(ctx context.Context, i item) (*content, error) {
	c := i.known
	if c == nil || !c.fits(i.e.node) {
		return p.read(ctx, i.e, false)
	}
	for _, piece := range c.pieces {
		if piece.Hole() {
			continue
		}
		_, ok, err := p.w.Has(piece.Digest)
		if err != nil {
			return nil, err
		}
		if !ok { // the store is another than last time, or a gc removed it
			return p.read(ctx, i.e, false)
		}
	}
	return c, nil
}

// placeLarge appends a large file's chunks to its part of the data area, unless an equal
// file is there, and returns the location of its data in that part.
func (l *layout) placeLarge(pieces []tree.Chunk, size int64) ([]erofs.Extent, error) {
	key := make([]byte, 0, len(pieces)*48)
	key = binary.LittleEndian.AppendUint64(key, uint64(size))
	for _, c := range pieces {
		key = append(key, c.Digest[:]...)
		key = binary.LittleEndian.AppendUint64(key, uint64(c.Size))
	}
	id := ondisk.Key(object.Sum(key))
	at, ok, err := l.largePlaces.Get(id)
	if err != nil {
		return nil, err
	}
	n := &erofs.Node{}
	if ok {
		rec := l.extents.Reader(int64(at), 4<<10)
		if b := rec.Bytes(); rec.Err() != nil {
			return nil, rec.Err()
		} else if err := erofs.ParseNode(b, n); err != nil {
			return nil, err
		}
		return n.Extents, nil
	}
	var off int64
	for i, c := range pieces {
		if !c.Hole() {
			if i > 0 && !pieces[i-1].Hole() {
				n.Extents[len(n.Extents)-1].Length += c.Size
			} else {
				n.Extents = append(n.Extents, erofs.Extent{FileOffset: off, Length: c.Size, DataOffset: l.large.size})
			}
			if err := l.large.append(c); err != nil {
				return nil, err
			}
		}
		off += c.Size
	}
	if n := n.Extents; len(n) > 0 {
		last := &n[len(n)-1]
		last.Length = min(last.Length, size-last.FileOffset)
	}
	if err := l.largePlaces.Put(id, uint64(l.extents.Size())); err != nil {
		return nil, err
	}
	rec := erofs.AppendNode(nil, n)
	_, err = l.extents.Write(append(binary.AppendUvarint(nil, uint64(len(rec))), rec...))
	return n.Extents, err
}

// gatherer places small files side by side and gathers them into chunks.
type gatherer struct {
	p      *publisher
	layout *layout
	places *ondisk.Map // in the first part of the data area, by content
	open   []member    // of the current chunk
	sum    int64       // its bytes
	group  errgroup.Group
}

// add gives an entry with its content to the builder of nodes.
func (g *gatherer) add(ctx context.Context, i item, c *content) error {
	l, e := g.layout, i.e
	named := func(err error) error {
		if invalid(err) {
			return &SourceError{Path: e.path(), Reason: err.Error(), HintText: "leave it out of the directory: a tree cannot hold it", Err: err}
		}
		return err
	}
	switch {
	case i.begins:
		return named(l.nodes.Directory(e.index, e.node))
	case e.first != 0:
		_, err := l.nodes.Link(e.name, e.node.Mode, e.first)
		return named(err)
	}
	l.inodes++
	if e.file() {
		if c == nil {
			c = &content{}
		}
		l.bytes += e.node.Size
		g.p.progress.DoneFiles.Add(1)
		g.p.progress.DoneBytes.Add(e.node.Size)
		if l.fresh != nil {
			if err := l.fresh.add(e, c); err != nil {
				return err
			}
		}
		var err error
		switch classOf(e.node) {
		case inline:
			e.node.Inline = c.inline
		case small:
			err = g.small(ctx, e, c)
		case large:
			e.node.Second = true
			e.node.Extents, err = l.placeLarge(c.pieces, e.node.Size)
		}
		if err != nil {
			return err
		}
	}
	_, err := l.nodes.Add(e.name, e.node)
	return named(err)
}

// invalid reports whether an error is about a node that no tree can hold.
func invalid(err error) bool {
	for _, e := range []error{erofs.ErrNode, erofs.ErrXattr, erofs.ErrInline, erofs.ErrTooBig} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

type member struct {
	e *entry
	c *content
}

func (m member) blocks() int64 { return roundUp(m.e.node.Size) }

func roundUp(n int64) int64 { return (n + erofs.BlockSize - 1) &^ (erofs.BlockSize - 1) }

// small assigns a location to a small file.
func (g *gatherer) small(ctx context.Context, e *entry, c *content) error {
	at, ok, err := g.places.Get(ondisk.Key(c.digest))
	if err != nil {
		return err
	}
	if !ok {
		m := member{e, c}
		if g.sum+m.blocks() > gatherMax {
			g.flush(ctx)
		}
		at = uint64(g.layout.small.size + g.sum)
		if err := g.places.Put(ondisk.Key(c.digest), at); err != nil {
			return err
		}
		g.open = append(g.open, m)
		g.sum += m.blocks()
		if border(c.digest, m.blocks(), g.sum) {
			g.flush(ctx)
		}
	}
	e.node.Extents = []erofs.Extent{{Length: e.node.Size, DataOffset: int64(at)}}
	return nil
}

// border reports whether a chunk of sum bytes ends behind its last file, which has this
// size and digest. Since only digests decide, adding or removing a file changes the
// chunk it is in, and perhaps the next one. The probability of an end is the file's
// share of 4 * gatherMean bytes until the chunk has gatherMean, and its share of
// gatherMean / 4 from there on.
func border(d object.Digest, size, sum int64) bool {
	if sum < gatherMin {
		return false
	}
	return chance(d, size, gatherMean, sum >= gatherMean)
}

// chance is true for size of 4 * mean digests, or, if often is set, for size of mean /
// 4. The mean is a power of two.
func chance(d object.Digest, size, mean int64, often bool) bool {
	of := uint64(4 * mean)
	if often {
		of = uint64(mean / 4)
	}
	return binary.LittleEndian.Uint64(d[:])%of < uint64(size)
}

// flush stores the current chunk.
func (g *gatherer) flush(ctx context.Context) {
	if len(g.open) == 0 {
		return
	}
	members := g.open
	done := g.layout.small.reserve(g.sum)
	g.open, g.sum = nil, 0
	g.group.Go(func() error {
		d, err := g.p.gathered(ctx, members)
		if err != nil {
			return err
		}
		if fresh := g.layout.fresh; fresh != nil {
			if err := fresh.gathered(gatheredKey(members), d); err != nil {
				return err
			}
		}
		return done(d)
	})
}

// gatheredKey identifies a chunk by the digests of its files.
func gatheredKey(members []member) object.Digest {
	key := make([]byte, 0, len(members)*object.DigestSize)
	for _, m := range members {
		key = append(key, m.c.digest[:]...)
	}
	return object.Sum(key)
}

// gathered stores a chunk of small files.
func (p *publisher) gathered(ctx context.Context, members []member) (object.Digest, error) {
	known := true
	for _, m := range members {
		known = known && m.c.bytes == nil
	}
	if known {
		d, ok, err := p.old.chunk(gatheredKey(members))
		if err != nil {
			return d, err
		}
		if ok {
			if _, ok, err := p.w.Has(d); ok || err != nil {
				return d, err
			}
		}
	}
	buf := windows.Get().(*[]byte)
	defer windows.Put(buf)
	block := (*buf)[:0]
	for _, m := range members {
		content := m.c.bytes
		if content == nil { // its content came from the cache, but another file of the chunk changed
			c, err := p.read(ctx, m.e, true)
			if err != nil {
				return object.Digest{}, err
			}
			content = c.bytes
		}
		block = append(block, content...)
		block = append(block, make([]byte, m.blocks()-int64(len(content)))...)
		m.c.bytes = nil
	}
	return p.put(block)
}

// inOrder takes values from next, one after the other, until it returns the zero value, and
// uses them in the same order. For those of which next reports that they must be computed, it
// calls compute before, in parallel. At most window values wait for their use.
func inOrder[I comparable, T any](ctx context.Context, workers, window int, next func() (in I, computed bool, err error), compute func(context.Context, I) (T, error), use func(I, T) error) error {
	type piece struct {
		in  I
		out chan T // nil: nothing is computed
	}
	pieces, queue := make(chan piece), make(chan piece, window)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(pieces)
		defer close(queue)
		var end I
		for {
			in, computed, err := next()
			if err != nil || in == end {
				return err
			}
			p := piece{in: in}
			if computed {
				p.out = make(chan T, 1)
			}
			select {
			case queue <- p:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if !computed {
				continue
			}
			select {
			case pieces <- p:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
	for range workers {
		g.Go(func() error {
			for j := range pieces {
				v, err := compute(ctx, j.in)
				if err != nil {
					return err
				}
				j.out <- v
			}
			return nil
		})
	}
	g.Go(func() error {
		for p := range queue {
			var v T
			if p.out != nil {
				select {
				case v = <-p.out:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			if err := use(p.in, v); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// chunkList is a list of the chunks of a part of the image, in order. It is kept on the
// disk.
type chunkList struct {
	size  int64 // of the chunks
	count int

	mu      sync.Mutex
	file    *ondisk.File
	pending []*pendingChunk // in order; behind those in file
}

type pendingChunk struct {
	chunk tree.Chunk
	done  bool // it has its digest
}

func newChunkList(dir string) (*chunkList, error) {
	f, err := ondisk.NewFile(dir)
	return &chunkList{file: f}, err
}

// reserve appends a chunk whose digest is not yet known. The caller gives it to the function
// that is returned, which any goroutine may call.
func (l *chunkList) reserve(size int64) func(object.Digest) error {
	c := &pendingChunk{chunk: tree.Chunk{Size: size}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.size += size
	l.count++
	l.pending = append(l.pending, c)
	return func(d object.Digest) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.chunk.Digest, c.done = d, true
		for len(l.pending) > 0 && l.pending[0].done {
			c := l.pending[0].chunk
			l.pending = l.pending[1:]
			if _, err := l.file.Write(binary.LittleEndian.AppendUint64(c.Digest[:], uint64(c.Size))); err != nil {
				return err
			}
		}
		return nil
	}
}

func (l *chunkList) append(c tree.Chunk) error { return l.reserve(c.Size)(c.Digest) }

// each calls fn for all chunks, all of which have their digests.
func (l *chunkList) each(fn func(tree.Chunk) error) error {
	for r := l.file.Reader(0, 64<<10); ; {
		if !r.More() {
			return r.Err()
		}
		b := r.Next(object.DigestSize + 8)
		if b == nil {
			return r.Err()
		}
		c := tree.Chunk{Digest: object.Digest(b[:object.DigestSize]), Size: int64(binary.LittleEndian.Uint64(b[object.DigestSize:]))}
		if err := fn(c); err != nil {
			return err
		}
	}
}

// Close removes the list. A nil list may be closed.
func (l *chunkList) Close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}
