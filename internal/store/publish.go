package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

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
	old      *cache
	slots    chan struct{} // one for each chunk being hashed, compressed and written
}

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
	p := &publisher{w: w, root: root, progress: o.Progress, old: &cache{}, slots: make(chan struct{}, 2*runtime.GOMAXPROCS(0))}
	var cacheFile string
	if o.Cache != "" {
		cacheFile = filepath.Join(o.Cache, cacheName(root.Name()))
		if !o.Reread {
			p.old = readCache(cacheFile)
		}
	}
	top, err := walk(ctx, root, func(n int) { p.progress.Entries.Add(int64(n)) })
	if err != nil {
		return nil, err
	}
	l, err := p.layOut(ctx, top)
	if err != nil {
		return nil, err
	}
	d, m, chunks, err := p.putTree(ctx, top, l)
	if err != nil {
		return nil, err
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

// layout maps the contents of files to the data area.
type layout struct {
	chunks []tree.Chunk // of the data area
	size   int64        // of it, bytes
	bytes  int64        // of all files
	inodes int64
	fresh  *cache
}

// layOut reads the contents of all files below top, stores their chunks and sets every
// file's location.
//
// Small files come first, in the order of files: the files of a directory by their
// names, then those of its first subdirectory, and so on. Each begins at a block
// boundary. Equal files share one location. They are gathered into chunks, which end
// where border decides. Large files follow in the same order, each with chunks of its
// own; equal ones share a location too.
func (p *publisher) layOut(ctx context.Context, top *entry) (*layout, error) {
	l := &layout{fresh: newCache()}
	files := l.list(top)
	for _, f := range files {
		p.progress.Files.Add(1)
		p.progress.Bytes.Add(f.node.Size)
	}
	g := &gatherer{p: p, layout: l, places: map[object.Digest]int64{}}
	g.group.SetLimit(2 * runtime.GOMAXPROCS(0))
	var larges []*entry
	var contents []*content // of these
	err := inOrder(ctx, len(files), 2*runtime.GOMAXPROCS(0), 512,
		func(ctx context.Context, i int) (*content, error) { return p.contentOf(ctx, files[i]) },
		func(i int, c *content) error {
			e := files[i]
			l.bytes += e.node.Size
			l.fresh.add(e, c)
			p.progress.DoneFiles.Add(1)
			p.progress.DoneBytes.Add(e.node.Size)
			switch classOf(e.node) {
			case inline:
				e.node.Inline = c.inline
			case small:
				g.add(ctx, e, c)
			case large:
				larges, contents = append(larges, e), append(contents, c)
			}
			return nil
		})
	if err == nil {
		g.flush(ctx)
	}
	if waitErr := g.group.Wait(); err == nil {
		err = waitErr
	}
	if err != nil {
		return nil, err
	}
	l.chunks, l.size = g.chunks(), g.size
	places := map[object.Digest][]erofs.Extent{}
	for i, e := range larges {
		e.node.Extents = l.placeLarge(contents[i].pieces, e.node.Size, places)
	}
	return l, nil
}

// list returns all regular files, each once, in the order of files, and counts inodes.
func (l *layout) list(top *entry) []*entry {
	var files []*entry
	seen := map[*erofs.Node]bool{}
	var visit func(*entry)
	visit = func(e *entry) {
		l.inodes++
		for _, c := range e.below {
			kind := c.node.Mode & unix.S_IFMT
			if kind == unix.S_IFDIR {
				continue
			}
			if c.nlink > 1 {
				if seen[c.node] {
					continue
				}
				seen[c.node] = true
			}
			l.inodes++
			if kind == unix.S_IFREG {
				files = append(files, c)
			}
		}
		for _, c := range e.below {
			if c.node.Mode&unix.S_IFMT == unix.S_IFDIR {
				visit(c)
			}
		}
	}
	visit(top)
	return files
}

// contentOf returns the content of a file from the cache, or else reads the file.
func (p *publisher) contentOf(ctx context.Context, e *entry) (*content, error) {
	if e.node.Size == 0 {
		return &content{}, nil
	}
	c := p.old.find(e)
	if c == nil || !c.fits(e.node) {
		return p.read(ctx, e, false)
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
			return p.read(ctx, e, false)
		}
	}
	return c, nil
}

// placeLarge appends a large file's chunks to the data area, unless an equal file is
// there, and returns the location of its data.
func (l *layout) placeLarge(pieces []tree.Chunk, size int64, places map[object.Digest][]erofs.Extent) []erofs.Extent {
	key := make([]byte, 0, len(pieces)*48)
	key = binary.LittleEndian.AppendUint64(key, uint64(size))
	for _, c := range pieces {
		key = append(key, c.Digest[:]...)
		key = binary.LittleEndian.AppendUint64(key, uint64(c.Size))
	}
	id := object.Sum(key)
	if extents, ok := places[id]; ok {
		return extents
	}
	var extents []erofs.Extent
	var at int64
	for i, c := range pieces {
		if !c.Hole() {
			if i > 0 && !pieces[i-1].Hole() {
				extents[len(extents)-1].Length += c.Size
			} else {
				extents = append(extents, erofs.Extent{FileOffset: at, Length: c.Size, DataOffset: l.size})
			}
			l.chunks = append(l.chunks, c)
			l.size += c.Size
		}
		at += c.Size
	}
	if n := len(extents); n > 0 {
		last := &extents[n-1]
		last.Length = min(last.Length, size-last.FileOffset)
	}
	places[id] = extents
	return extents
}

// gatherer places small files side by side and gathers them into chunks.
type gatherer struct {
	p      *publisher
	layout *layout
	places map[object.Digest]int64 // in the data area, by content
	size   int64                   // of the area so far
	open   []member                // of the current chunk
	sum    int64                   // its bytes
	group  errgroup.Group

	mu   sync.Mutex
	done []*tree.Chunk
}

type member struct {
	e *entry
	c *content
}

func (m member) blocks() int64 { return roundUp(m.e.node.Size) }

func roundUp(n int64) int64 { return (n + erofs.BlockSize - 1) &^ (erofs.BlockSize - 1) }

// add assigns a location to a small file.
func (g *gatherer) add(ctx context.Context, e *entry, c *content) {
	at, ok := g.places[c.digest]
	if !ok {
		m := member{e, c}
		if g.sum+m.blocks() > chunkMax {
			g.flush(ctx)
		}
		at = g.size
		g.places[c.digest] = at
		g.open = append(g.open, m)
		g.sum += m.blocks()
		g.size += m.blocks()
		if border(c.digest, m.blocks(), g.sum) {
			g.flush(ctx)
		}
	} else {
		c.bytes = nil
	}
	e.node.Extents = []erofs.Extent{{Length: e.node.Size, DataOffset: at}}
}

// border reports whether a chunk of sum bytes ends behind its last file, which has this
// size and digest. Since only digests decide, adding or removing a file changes the
// chunk it is in, and perhaps the next one. The probability of an end is the file's
// share of 4 * chunkMean bytes until the chunk has chunkMean, and its share of
// chunkMean / 4 from there on.
func border(d object.Digest, size, sum int64) bool {
	if sum < chunkMin {
		return false
	}
	return chance(d, size, chunkMean, sum >= chunkMean)
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
	chunk := &tree.Chunk{Size: g.sum}
	g.done = append(g.done, chunk)
	g.open, g.sum = nil, 0
	g.group.Go(func() error {
		d, err := g.p.gathered(ctx, members)
		if err != nil {
			return err
		}
		chunk.Digest = d
		g.mu.Lock()
		defer g.mu.Unlock()
		g.layout.fresh.gathered[gatheredKey(members)] = d
		return nil
	})
}

func (g *gatherer) chunks() []tree.Chunk {
	list := make([]tree.Chunk, 0, len(g.done))
	for _, c := range g.done {
		list = append(list, *c)
	}
	return list
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
	if d, ok := p.old.gathered[gatheredKey(members)]; ok && known {
		_, ok, err := p.w.Has(d)
		if ok || err != nil {
			return d, err
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

// inOrder computes n values in parallel and uses them one by one in order. At most
// window computed values wait for their use.
func inOrder[T any](ctx context.Context, n, workers, window int, compute func(context.Context, int) (T, error), use func(int, T) error) error {
	type piece struct {
		i   int
		out chan T
	}
	pieces, queue := make(chan piece), make(chan chan T, window)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(pieces)
		defer close(queue)
		for i := range n {
			out := make(chan T, 1)
			select {
			case queue <- out:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			select {
			case pieces <- piece{i, out}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	for range workers {
		g.Go(func() error {
			for j := range pieces {
				v, err := compute(ctx, j.i)
				if err != nil {
					return err
				}
				j.out <- v
			}
			return nil
		})
	}
	g.Go(func() error {
		i := 0
		for out := range queue {
			select {
			case v := <-out:
				if err := use(i, v); err != nil {
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			i++
		}
		return nil
	})
	return g.Wait()
}
