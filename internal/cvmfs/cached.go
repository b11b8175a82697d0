package cvmfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite/vfs"

	"premix/internal/store/cache"
)

// cached fetches objects into the node's cache.
type cached struct {
	getter *cache.Getter
	f      *fetcher
}

// wantedObject names an object, and its form.
type wantedObject struct {
	hash  Hash
	kind  string
	plain bool
	size  int64 // of the content; 0: unknown
	most  int64
}

func (w *wantedObject) name() string {
	name := w.hash.String() + w.kind
	if w.plain {
		name += "+"
	}
	return name
}

// get returns a verified object. The caller closes it.
func (c *cached) get(ctx context.Context, w wantedObject) (*cache.Object, error) {
	return c.getter.Get(ctx, c.wanted(w))
}

func (c *cached) wanted(w wantedObject) cache.Wanted {
	return cache.Wanted{Name: w.name(), Size: w.size, Fetch: func(ctx context.Context, d *cache.Draft) (int64, error) {
		return c.f.object(ctx, w.hash, w.kind, w.plain, min(w.most, d.Most()), d.File, 0)
	}}
}

// ahead fetches an object without waiting for it.
func (c *cached) ahead(w wantedObject) { c.getter.Ahead(c.wanted(w), parallel) }

// catalogFiles shows objects of caches to SQLite, which reads each page of a catalog
// through the sums of the cache.
type catalogFiles struct {
	mu   sync.Mutex
	open map[string]*cache.Object
	last atomic.Uint64
}

// sqliteFiles registers catalogFiles once, and returns the name that SQLite has for it.
var sqliteFiles = sync.OnceValues(func() (*catalogFiles, error) {
	c := &catalogFiles{open: map[string]*cache.Object{}}
	name, _, err := vfs.New(c)
	if err == nil {
		vfsName.Store(&name)
	}
	return c, err
})

var vfsName atomic.Pointer[string]

// Open implements fs.FS.
func (c *catalogFiles) Open(name string) (fs.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.open[name]
	if x == nil {
		return nil, fs.ErrNotExist
	}
	return &catalogFile{x: x.Dup()}, nil
}

// catalogFile is a catalog as SQLite reads it.
type catalogFile struct {
	x   *cache.Object
	off int64
}

func (f *catalogFile) Seek(off int64, _ int) (int64, error) { // SQLite counts from the start
	f.off = off
	return off, nil
}

func (f *catalogFile) Read(p []byte) (int, error) {
	n, err := f.x.ReadAt(p, f.off)
	f.off += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (f *catalogFile) Stat() (fs.FileInfo, error) { return catalogInfo(f.x.Size()), nil }

func (f *catalogFile) Close() error {
	f.x.Close()
	return nil
}

// catalogInfo has the size of a catalog.
type catalogInfo int64

func (i catalogInfo) Name() string     { return "catalog" }
func (i catalogInfo) Size() int64      { return int64(i) }
func (catalogInfo) Mode() fs.FileMode  { return 0o400 }
func (catalogInfo) ModTime() time.Time { return time.Time{} }
func (catalogInfo) IsDir() bool        { return false }
func (catalogInfo) Sys() any           { return nil }

// openCached opens a catalog of the cache, which it closes later.
func openCached(ctx context.Context, x *cache.Object, prefix string) (*catalog, func(), error) {
	files, err := sqliteFiles()
	if err != nil {
		x.Close()
		return nil, nil, fmt.Errorf("register a file system of SQLite: %w", err)
	}
	name := "catalog-" + strconv.FormatUint(files.last.Add(1), 10)
	files.mu.Lock()
	files.open[name] = x
	files.mu.Unlock()
	forget := func() {
		files.mu.Lock()
		delete(files.open, name)
		files.mu.Unlock()
		x.Close()
	}
	c, err := newCatalog(ctx, name, *vfsName.Load(), prefix)
	if err != nil {
		forget()
		return nil, nil, err
	}
	return c, func() {
		_ = c.close() // it was only read
		forget()
	}, nil
}

// openCatalogs is the number of catalogs that stay open.
const openCatalogs = 32

// shelf keeps catalogs open while they are used, and the last ones after that.
type shelf struct {
	mu     sync.Mutex
	open   map[int]*shelved
	idle   []int // by last use, the oldest first
	closed bool
}

type shelved struct {
	ready chan struct{} // closed when c or err is set
	c     *catalog
	end   func()
	err   error
	users int
	bad   bool // to be closed after its last use
}

// use calls do with a catalog, which open opens if it is not open. After an error of do
// the catalog is closed, so that it is read and verified again.
func (s *shelf) use(ctx context.Context, n int, open func() (*catalog, func(), error), do func(*catalog) error) error {
	s.mu.Lock()
	k := s.open[n]
	if k == nil {
		k = &shelved{ready: make(chan struct{}), users: 1}
		s.open[n] = k
		go func() {
			k.c, k.end, k.err = open()
			close(k.ready)
			s.leave(n, k, k.err != nil)
		}()
	}
	k.users++
	s.idle = slices.DeleteFunc(s.idle, func(i int) bool { return i == n })
	s.mu.Unlock()
	var err error
	select {
	case <-k.ready:
		if err = k.err; err == nil {
			err = do(k.c)
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // SQLite reports an interruption
	}
	s.leave(n, k, err != nil && ctx.Err() == nil)
	return err
}

// leave ends a use of a catalog.
func (s *shelf) leave(n int, k *shelved, bad bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bad && !k.bad {
		k.bad = true
		delete(s.open, n)
	}
	if k.users--; k.users > 0 {
		return
	}
	if k.bad || s.closed {
		if s.open[n] == k {
			delete(s.open, n)
		}
		if k.end != nil {
			k.end()
		}
		return
	}
	s.idle = append(s.idle, n)
	for len(s.idle) > openCatalogs {
		s.closeLocked(s.idle[0])
	}
}

func (s *shelf) closeLocked(n int) {
	s.idle = slices.DeleteFunc(s.idle, func(i int) bool { return i == n })
	if k := s.open[n]; k != nil {
		delete(s.open, n)
		k.end()
	}
}

func (s *shelf) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for len(s.idle) > 0 {
		s.closeLocked(s.idle[0])
	}
}
