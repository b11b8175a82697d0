package cvmfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/lazyfs/fuse"
	"premix/internal/store/cache"
)

// A node has the number of its catalog in the upper half, and its row in the lower.
func nodeOf(n int, row int64) (uint64, error) {
	if row <= 0 || row >= 1<<32 {
		return 0, distrust("", "a catalog has a row %d", row)
	}
	return uint64(n+1)<<32 | uint64(row), nil
}

func splitNode(node uint64) (n int, row int64) { return int(node>>32) - 1, int64(node & (1<<32 - 1)) }

// damagedError reports that a catalog was damaged in the cache, from which it has been removed.
type damagedError struct{ err error }

func (e *damagedError) Error() string { return e.err.Error() }
func (e *damagedError) Unwrap() error { return e.err }

// in calls do with an open catalog. If the catalog is damaged in the cache, it is fetched again
// and do is called again, once.
func (l *Live) in(ctx context.Context, n int, do func(*catalog) error) error {
	name, size, ok := l.numbers.at(n)
	if !ok {
		return unix.ESTALE
	}
	w := wantedObject{hash: name.hash, kind: "C", size: size, most: catalogMost}
	if size > 0 {
		w.most = min(size, w.most)
	}
	// An object in use is not evicted: if the cache does not have it, it was wrong.
	damaged := func(err error) error {
		if err != nil && !l.o.Objects.Has(w.name()) {
			err = &damagedError{err}
		}
		return err
	}
	for again := false; ; again = true {
		err := l.shelf.use(ctx, n, func() (*catalog, func(), error) {
			x, err := l.cached.get(l.ctx, w)
			if err != nil {
				return nil, nil, err
			}
			c, end, err := openCached(l.ctx, x, name.prefix)
			return c, end, damaged(err)
		}, func(c *catalog) error { return damaged(do(c)) })
		var wrong *damagedError
		if again || !errors.As(err, &wrong) {
			return err
		}
		l.event(EventDamaged, err)
	}
}

// rootOf returns the root of a catalog.
func (l *Live) rootOf(ctx context.Context, n int) (e *Entry, err error) {
	err = l.in(ctx, n, func(c *catalog) error {
		if e, err = c.entry(ctx, c.prefix); err == nil && (e == nil || !e.IsDir()) {
			err = c.bad("there is no root")
		}
		return err
	})
	return e, err
}

// step returns the entry of a path in catalog n, or nil, and the catalog that describes
// it.
func (l *Live) step(ctx context.Context, n int, path string) (int, *Entry, error) {
	var e *Entry
	var h Hash
	var size int64
	err := l.in(ctx, n, func(c *catalog) (err error) {
		if e, err = c.entry(ctx, path); err == nil && e != nil && e.nested && e.IsDir() {
			h, size, err = c.nestedAt(ctx, path)
		}
		return err
	})
	if err != nil || e == nil || h.IsZero() {
		return n, e, err
	}
	if n, err = l.numbers.of(h, size, path); err != nil {
		return 0, nil, err
	}
	e, err = l.rootOf(ctx, n)
	return n, e, err
}

// root replaces the node of the root by the node of the newest revision's root.
func (l *Live) root(node uint64) uint64 {
	if node == fuse.RootNode {
		return l.now.Load().root
	}
	return node
}

// entry returns the entry of a node.
func (l *Live) entry(ctx context.Context, node uint64) (n int, e *Entry, err error) {
	n, row := splitNode(l.root(node))
	err = l.in(ctx, n, func(c *catalog) error {
		if e, err = c.atRow(ctx, row); err == nil && e == nil {
			err = c.bad("there is no row %d", row)
		}
		return err
	})
	return n, e, err
}

// dir returns the catalog and the path of a directory.
func (l *Live) dir(ctx context.Context, node uint64) (n int, path string, err error) {
	node = l.root(node)
	n, _ = splitNode(node)
	if path, ok := l.dirs.get(node); ok {
		return n, path, nil
	}
	n, e, err := l.entry(ctx, node)
	if err != nil {
		return 0, "", err
	}
	if !e.IsDir() {
		return 0, "", unix.ENOTDIR
	}
	l.dirs.put(node, e.Path)
	return n, e.Path, nil
}

// attr returns the attributes of an entry of catalog n.
func (l *Live) attr(ctx context.Context, n int, e *Entry) (a fuse.Attr, err error) {
	if e.Links != 0 && e.IsRegular() {
		if err := l.in(ctx, n, func(c *catalog) error {
			first, err := c.firstLink(ctx, e)
			if err == nil {
				e = first
			}
			return err
		}); err != nil {
			return a, err
		}
	}
	node, err := nodeOf(n, e.row)
	if err != nil {
		return a, err
	}
	a = fuse.Attr{
		Node: node, Ino: node, Size: e.Size, Mode: e.Mode, Nlink: e.Nlink, UID: e.UID, GID: e.GID,
		Time: unix.Timespec{Sec: e.Time.Unix(), Nsec: int64(e.Time.Nanosecond())},
	}
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		a.Size = int64(len(l.target(e)))
	case unix.S_IFBLK, unix.S_IFCHR:
		a.Size, a.Rdev = 0, uint32(e.Size)
	case unix.S_IFIFO, unix.S_IFSOCK:
		a.Size = 0
	case unix.S_IFDIR:
		l.dirs.put(node, e.Path)
	}
	return a, nil
}

func (l *Live) target(e *Entry) string {
	return Expand(e.Target, func(name string) (string, bool) {
		v, ok := l.o.Variables[name]
		return v, ok
	})
}

// Attr implements fuse.Files.
func (l *Live) Attr(ctx context.Context, node uint64) (fuse.Attr, error) {
	n, e, err := l.entry(ctx, node)
	if err != nil {
		return fuse.Attr{}, l.answer(err)
	}
	l.touched(n)
	a, err := l.attr(ctx, n, e)
	if node == fuse.RootNode {
		a.Node, a.Ino = node, node
	}
	return a, l.answer(err)
}

// Lookup implements fuse.Files.
func (l *Live) Lookup(ctx context.Context, node uint64, name string) (fuse.Attr, error) {
	n, path, err := l.dir(ctx, node)
	if err != nil {
		return fuse.Attr{}, l.answer(err)
	}
	l.touched(n)
	n, e, err := l.step(ctx, n, path+"/"+name)
	if err != nil || e == nil {
		return fuse.Attr{}, l.answer(err)
	}
	l.touched(n)
	a, err := l.attr(ctx, n, e)
	return a, l.answer(err)
}

// answer returns the error of a request: an errno of this package, or EIO with an event.
func (l *Live) answer(err error) error {
	if err == nil {
		return nil
	}
	if no, ok := err.(unix.Errno); ok {
		return no
	}
	return l.failed(err)
}

// readDirRows is the number of rows that are read at a time.
const readDirRows = 256

// ReadDir implements fuse.Files. The cookies after "." and ".." are the numbers of rows
// plus two.
func (l *Live) ReadDir(ctx context.Context, node, cookie uint64, emit func(fuse.Dirent) bool) error {
	n, path, err := l.dir(ctx, node)
	if err != nil {
		return l.answer(err)
	}
	l.touched(n)
	for ; cookie < 2; cookie++ {
		if !emit(fuse.Dirent{Attr: fuse.Attr{Ino: node, Mode: unix.S_IFDIR}, Next: cookie + 1, Name: ".."[:cookie+1]}) {
			return nil
		}
	}
	for after := int64(cookie - 2); ; {
		var list []*Entry
		var last int64
		if err := l.in(ctx, n, func(c *catalog) (err error) {
			list, last, err = c.childrenAfter(ctx, path, after, readDirRows)
			return err
		}); err != nil {
			return l.answer(err)
		}
		for _, e := range list {
			d := fuse.Dirent{Next: uint64(e.row) + 2, Name: e.Path[len(path)+1:]}
			d.Attr.Mode = e.Mode
			if d.Attr.Ino, err = nodeOf(n, e.row); err != nil {
				return l.answer(err)
			}
			// The catalog of a nested directory is fetched when it is looked at.
			if !e.nested || !e.IsDir() {
				if d.Attr, err = l.attr(ctx, n, e); err != nil {
					return l.answer(err)
				}
			}
			if !emit(d) {
				return nil
			}
		}
		if last == 0 {
			return nil
		}
		after = last
	}
}

// Readlink implements fuse.Files.
func (l *Live) Readlink(ctx context.Context, node uint64) (string, error) {
	_, e, err := l.entry(ctx, node)
	if err != nil {
		return "", l.answer(err)
	}
	if e.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", unix.EINVAL
	}
	target := l.target(e)
	if target == "" || len(target) >= unix.PathMax {
		return "", l.failed(&Error{Kind: Cannot, Reason: fmt.Sprintf("%s is a symlink to %q, which with these variables is no path", quotedPath(e.Path), e.Target)})
	}
	return target, nil
}

// Xattrs implements fuse.Files.
func (l *Live) Xattrs(ctx context.Context, node uint64) (map[string][]byte, error) {
	_, e, err := l.entry(ctx, node)
	if err != nil {
		return nil, l.answer(err)
	}
	return e.Xattrs, nil
}

// openFile is a regular file that was read.
type openFile struct {
	path   string
	size   int64
	plain  bool
	kind   string
	chunks []chunk
}

// open returns the chunks of the regular file of a node.
func (l *Live) open(ctx context.Context, node uint64) (*openFile, error) {
	if f, ok := l.files.get(node); ok {
		return f, nil
	}
	n, e, err := l.entry(ctx, node)
	if err != nil {
		return nil, err
	}
	f, err := l.chunksOf(ctx, n, e)
	if err != nil {
		return nil, err
	}
	l.files.put(node, f)
	return f, nil
}

// chunksOf returns the chunks of an entry of catalog n, which must be a regular file.
func (l *Live) chunksOf(ctx context.Context, n int, e *Entry) (f *openFile, err error) {
	if !e.IsRegular() {
		return nil, unix.EINVAL
	}
	if e.external {
		return nil, &Error{Kind: Cannot, Reason: quotedPath(e.Path) + " is an external file, whose content is not in the repository"}
	}
	f = &openFile{path: e.Path, size: e.Size, plain: e.plain}
	switch {
	case e.chunked:
		f.kind = "P"
		err = l.in(ctx, n, func(c *catalog) (err error) {
			f.chunks, err = c.chunks(ctx, e)
			return err
		})
	case !e.content.IsZero():
		f.chunks = []chunk{{0, e.Size, e.content}}
	}
	return f, err
}

// Read implements fuse.Files.
func (l *Live) Read(ctx context.Context, node uint64, p []byte, off int64) (int, error) {
	f, err := l.open(ctx, node)
	if err != nil {
		return 0, l.answer(err)
	}
	if off >= f.size {
		return 0, nil
	}
	if p = p[:min(int64(len(p)), f.size-off)]; len(p) == 0 {
		return 0, nil
	}
	if r := l.recorder.Load(); r != nil {
		r.read(f, off, int64(len(p)))
	}
	i := sort.Search(len(f.chunks), func(i int) bool { return f.chunks[i].off+f.chunks[i].size > off })
	for done := 0; done < len(p); i++ {
		if i >= len(f.chunks) {
			return 0, l.failed(distrust("", "%s has no content at %d", quotedPath(f.path), off+int64(done)))
		}
		k := f.chunks[i]
		within := off + int64(done) - k.off
		part := p[done : done+int(min(int64(len(p)-done), k.size-within))]
		if err := l.readChunk(ctx, f, k, part, within); err != nil {
			return 0, l.failed(fmt.Errorf("%s: %w", quotedPath(f.path), err))
		}
		done += len(part)
	}
	if i < len(f.chunks) && (off+int64(len(p))-f.chunks[i-1].off)*2 > f.chunks[i-1].size {
		l.cached.ahead(f.wanted(f.chunks[i]))
	}
	return len(p), nil
}

func (f *openFile) wanted(k chunk) wantedObject {
	return wantedObject{hash: k.content, kind: f.kind, plain: f.plain, size: k.size, most: k.size}
}

// readChunk reads all of p from a chunk. An object that is damaged in the cache is
// fetched again, once.
func (l *Live) readChunk(ctx context.Context, f *openFile, k chunk, p []byte, off int64) error {
	w := f.wanted(k)
	if len(l.profiles) > 0 && !l.o.Objects.Has(w.name()) {
		l.missed(f.path)
	}
	for again := false; ; again = true {
		x, err := l.cached.get(ctx, w)
		if err != nil {
			return err
		}
		if x.Size() != k.size {
			defer x.Close()
			return distrust("", "object %s has %d bytes instead of %d", k.content, x.Size(), k.size)
		}
		n, err := x.ReadAt(p, off)
		x.Close()
		var wrong *cache.WrongError
		switch {
		case errors.As(err, &wrong) && !again:
			l.event(EventDamaged, err)
			continue
		case n == len(p) && (err == nil || err == io.EOF):
			return nil
		case err == nil || err == io.EOF:
			return fmt.Errorf("object %s is too short", k.content)
		}
		return err
	}
}

// atRow returns the entry in a row, or nil.
func (c *catalog) atRow(ctx context.Context, row int64) (*Entry, error) {
	path, err := c.pathOf(ctx, row)
	if err != nil {
		return nil, err
	}
	rows, err := c.db.QueryContext(ctx, "SELECT md5path_1, md5path_2, "+c.fields+" FROM catalog WHERE rowid = ?", row)
	if err != nil {
		return nil, c.bad("%v", err)
	}
	list, err := c.scan(rows, func(string) string { return path })
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0], nil
}

// pathOf returns the path of the entry in a row, from the names above it.
func (c *catalog) pathOf(ctx context.Context, row int64) (string, error) {
	rootA, rootB := key(c.prefix)
	var a, b, up, up2 int64
	var name []byte
	if err := c.db.QueryRowContext(ctx, "SELECT md5path_1, md5path_2, parent_1, parent_2, name FROM catalog WHERE rowid = ?", row).Scan(&a, &b, &up, &up2, &name); err != nil {
		return "", c.bad("row %d: %v", row, err)
	}
	below, length := []string{}, 0
	for a != rootA || b != rootB {
		below = append(below, string(name))
		if length += len(name) + 1; length > 16*unix.PathMax || len(name) == 0 {
			return "", c.bad("row %d is in no directory of the catalog", row)
		}
		if err := c.db.QueryRowContext(ctx, "SELECT md5path_1, md5path_2, parent_1, parent_2, name FROM catalog WHERE md5path_1 = ? AND md5path_2 = ?", up, up2).Scan(&a, &b, &up, &up2, &name); err != nil {
			return "", c.bad("row %d has no directory: %v", row, err)
		}
	}
	var path strings.Builder
	path.WriteString(c.prefix)
	for i := len(below) - 1; i >= 0; i-- {
		path.WriteString("/" + below[i])
	}
	return path.String(), nil
}

// childrenAfter returns the entries of a directory in at most limit rows after a row, and
// the last row read; 0 means that there are no more.
func (c *catalog) childrenAfter(ctx context.Context, dir string, after int64, limit int) (list []*Entry, last int64, err error) {
	a, b := key(dir)
	// Hidden entries are not in the list, but are rows.
	var count int
	if err := c.db.QueryRowContext(ctx, "SELECT count(*), coalesce(max(r), 0) FROM (SELECT rowid AS r FROM catalog WHERE parent_1 = ? AND parent_2 = ? AND rowid > ? ORDER BY rowid LIMIT ?)", a, b, after, limit).Scan(&count, &last); err != nil {
		return nil, 0, c.bad("%v", err)
	}
	if count == 0 {
		return nil, 0, nil
	}
	rows, err := c.db.QueryContext(ctx, "SELECT md5path_1, md5path_2, "+c.fields+" FROM catalog WHERE parent_1 = ? AND parent_2 = ? AND rowid > ? AND rowid <= ? ORDER BY rowid", a, b, after, last)
	if err != nil {
		return nil, 0, c.bad("%v", err)
	}
	if list, err = c.scan(rows, func(name string) string { return dir + "/" + name }); err != nil {
		return nil, 0, err
	}
	for i, e := range list {
		if e.Path == c.prefix {
			return append(list[:i:i], list[i+1:]...), last, nil
		}
	}
	return list, last, nil
}

// firstLink returns the first of the names of a file in its directory, whose row stands
// for all of them.
func (c *catalog) firstLink(ctx context.Context, e *Entry) (*Entry, error) {
	var row int64
	a, b := key(e.Path)
	if err := c.db.QueryRowContext(ctx, "SELECT min(l.rowid) FROM catalog e, catalog l WHERE e.md5path_1 = ? AND e.md5path_2 = ? AND l.parent_1 = e.parent_1 AND l.parent_2 = e.parent_2 AND l.hardlinks >> 32 = ? AND l.flags & 32768 = 0", a, b, int64(e.Links)).Scan(&row); err != nil {
		return nil, c.bad("%q: %v", e.Path, err)
	}
	if row == e.row {
		return e, nil
	}
	first, err := c.atRow(ctx, row)
	if err != nil {
		return nil, err
	}
	if first == nil || first.Size != e.Size || first.content != e.content || first.Mode != e.Mode || first.chunked != e.chunked || first.plain != e.plain {
		return nil, c.bad("%q is a link of another file, and differs from it", e.Path)
	}
	if e.chunked {
		var lists [2][]chunk
		for i, e := range []*Entry{first, e} {
			if lists[i], err = c.chunks(ctx, e); err != nil {
				return nil, err
			}
		}
		if !slices.Equal(lists[0], lists[1]) {
			return nil, c.bad("%q is a link of another file, and has other chunks", e.Path)
		}
	}
	return first, nil
}
