package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/ondisk"
	"premix/internal/store/erofs"
	"premix/internal/store/object"
)

// retries is how many times a file that changes during reading is read again.
const retries = 3

// pathMax is the longest path that a system call accepts, with its final NUL (PATH_MAX,
// path_resolution(7)). Trees may be deeper.
const pathMax = 4096

// entry is one name in the directory being published.
type entry struct {
	dir   string // its directory: a path below the root, "" for the root itself
	name  string // "" for the root
	stamp stamp
	nlink uint64
	node  *erofs.Node
	index int64 // in the order of [erofs.Builder]
	first int64 // of a further hard link: the index of the first; otherwise 0
}

// file reports whether the entry is the first name of a regular file.
func (e *entry) file() bool { return e.first == 0 && e.node.Mode&unix.S_IFMT == unix.S_IFREG }

func (e *entry) isDir() bool { return e.node.Mode&unix.S_IFMT == unix.S_IFDIR }

// stamp identifies a state of a file.
type stamp struct {
	dev, ino              uint64
	size                  int64
	mtimeSec, mtimeNsec   int64
	changeSec, changeNsec int64
}

func stampOf(st *unix.Stat_t) stamp {
	return stamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec}
}

// path returns the path below the root, "." for the root.
func (e *entry) path() string { return cmp.Or(join(e.dir, e.name), ".") }

// join returns the path of a name in a directory, and the directory's if the name is empty.
func join(dir, name string) string {
	switch {
	case dir == "":
		return name
	case name == "":
		return dir
	}
	return dir + "/" + name
}

// How many subdirectories are listed before they are needed: of one directory, and of all.
const aheadEach, aheadAll = 8, 64

// workLimits bound the memory of a publish.
type workLimits struct {
	keys  int // of each map in memory
	bytes int // of names in memory that are sorted
	// A directory of more entries than this is read in pieces of as many.
	list int
	// How many subdirectories of one directory are kept in memory, while those before
	// them are visited. The others are on the disk.
	subs int
}

// limits are variable for tests.
var limits = workLimits{keys: ondisk.MapRecent, bytes: ondisk.SortMemory, list: 1024, subs: 128}

// walker reads the entries of directories with their metadata, but not contents. It writes
// them to a file, in the order of [erofs.Builder].
type walker struct {
	ctx     context.Context
	scratch string        // directory for files
	out     *ondisk.File  // see encode
	subs    *ondisk.File  // names of subdirectories that are not in memory
	links   *ondisk.Map   // first names of hard links, by linkKey
	count   int64         // entries, the root included
	seen    func(*entry)  // called for each entry
	counted int64         // entries for which seen was called
	tokens  chan struct{} // one for each listing ahead
	rec     []byte
}

// walk reads the tree below the open directory root. It returns a file of entries, which
// readEntries reads. Its own files are in scratch.
func walk(ctx context.Context, root *os.File, scratch string, seen func(*entry)) (out *ondisk.File, err error) {
	w := &walker{ctx: ctx, scratch: scratch, seen: seen, count: 1, tokens: make(chan struct{}, aheadAll), links: ondisk.NewMap(scratch, limits.keys)}
	defer func() { err = errors.Join(err, w.subs.Close(), w.links.Close()) }() // of the last links
	if w.subs, err = ondisk.NewFile(scratch); err != nil {
		return nil, err
	}
	if w.out, err = ondisk.NewFile(scratch); err != nil {
		return nil, err
	}
	dir, err := openat(int(root.Fd()), ".", unix.O_DIRECTORY)
	if err != nil {
		err = sourceError(".", err)
	} else {
		err = w.directory(listDir(ctx, dir, ""), 0)
	}
	if err != nil {
		return nil, errors.Join(err, w.out.Close())
	}
	return w.out, nil
}

// listing is a directory that was read.
type listing struct {
	dir     *os.File
	path    string // below the root
	self    *entry
	entries []*entry // in order of names
	many    bool     // it has more entries than limits.list permits, which were not read
	err     error
}

// subdirectory is a directory that is to be visited.
type subdirectory struct {
	index int64
	name  string
	ahead chan *listing // nil: it is not listed ahead
}

// listDir reads a directory, and closes it if it cannot be read. It reads it again if it changes
// meanwhile.
func listDir(ctx context.Context, dir *os.File, path string) *listing {
	l := &listing{dir: dir, path: path}
	l.err = again(ctx, path, func() (bool, error) { return l.read() })
	if l.err != nil {
		dir.Close()
	}
	return l
}

// again calls read until it does not report that a directory changed while it was read.
func again(ctx context.Context, path string, read func() (again bool, err error)) error {
	for try := range retries + 1 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		time.Sleep(time.Duration(try) * 10 * time.Millisecond)
		if changed, err := read(); err != nil || !changed {
			return err
		}
	}
	return &SourceError{Path: cmp.Or(path, "."), Reason: "it changes while it is being read", HintText: "publish while no program writes to it, or publish a copy"}
}

// begin rewinds the directory and returns its state.
func (l *listing) begin() (st unix.Stat_t, err error) {
	if err := unix.Fstat(int(l.dir.Fd()), &st); err != nil {
		return st, sourceError(cmp.Or(l.path, "."), err)
	}
	if _, err := l.dir.Seek(0, 0); err != nil {
		return st, sourceError(cmp.Or(l.path, "."), err)
	}
	l.self = &entry{}
	if err := l.self.fill(&st, int(l.dir.Fd()), "."); err != nil {
		return st, sourceError(cmp.Or(l.path, "."), err)
	}
	return st, nil
}

// changed reports whether the directory is in another state than before.
func (l *listing) changed(before *unix.Stat_t) (bool, error) {
	var after unix.Stat_t
	if err := unix.Fstat(int(l.dir.Fd()), &after); err != nil {
		return false, sourceError(cmp.Or(l.path, "."), err)
	}
	return stampOf(before) != stampOf(&after), nil
}

func (l *listing) read() (again bool, err error) {
	before, err := l.begin()
	if err != nil {
		return false, err
	}
	var names []string
	for len(names) <= limits.list {
		some, err := l.dir.Readdirnames(limits.list)
		names = append(names, some...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, sourceError(cmp.Or(l.path, "."), err)
		}
	}
	if l.many = len(names) > limits.list; l.many {
		return false, nil
	}
	slices.Sort(names)
	if l.entries, err = l.stat(names); errors.Is(err, unix.ENOENT) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	return l.changed(&before)
}

// stat returns the entries with these names.
func (l *listing) stat(names []string) ([]*entry, error) {
	fd := int(l.dir.Fd())
	entries := make([]*entry, 0, len(names))
	for _, n := range names {
		e := &entry{dir: l.path, name: n}
		var st unix.Stat_t
		err := unix.Fstatat(fd, n, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			e.node = &erofs.Node{Mode: unix.S_IFDIR} // the rest comes from its own listing
		} else if err == nil {
			err = e.fill(&st, fd, n)
		}
		if errors.Is(err, unix.ENOENT) {
			return nil, unix.ENOENT
		}
		if err != nil {
			return nil, sourceError(e.path(), err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// directory writes the entries of a directory and of those below it, and closes it.
func (w *walker) directory(l *listing, index int64) error {
	if l.err != nil {
		return l.err
	}
	defer l.dir.Close()
	subs := &subdirectories{file: w.subs}
	if l.many {
		if err := w.many(l, index, subs); err != nil {
			return err
		}
	} else {
		if err := w.head(l, index); err != nil {
			return err
		}
		for _, e := range l.entries {
			if err := w.add(e, subs); err != nil {
				return err
			}
		}
	}
	l.entries = nil
	return w.visit(l, subs)
}

// visit visits the subdirectories of a directory. Some are listed ahead.
func (w *walker) visit(l *listing, subs *subdirectories) (err error) {
	var next []*subdirectory
	defer func() {
		for _, s := range next { // after an error
			if l := w.take(s); l != nil && l.err == nil {
				l.dir.Close()
			}
		}
	}()
	for {
		for len(next) < aheadEach {
			s, err := subs.next()
			if err != nil {
				return err
			}
			if s == nil {
				break
			}
			next = append(next, s)
		}
		if len(next) == 0 {
			return nil
		}
		for _, s := range next[1:] {
			if s.ahead == nil && !w.ahead(l, s) {
				break
			}
		}
		s := next[0]
		next = next[1:]
		sub := w.take(s)
		if sub == nil {
			sub = w.list(l, s.name)
		}
		if err := w.directory(sub, s.index); err != nil {
			return err
		}
	}
}

// ahead lists a subdirectory in the background. It reports false if too many are listed.
func (w *walker) ahead(l *listing, s *subdirectory) bool {
	select {
	case w.tokens <- struct{}{}:
		s.ahead = make(chan *listing, 1)
		go func() { s.ahead <- w.list(l, s.name) }()
		return true
	default:
		return false
	}
}

// take returns the listing of a subdirectory, or nil if it is not listed ahead.
func (w *walker) take(s *subdirectory) *listing {
	if s.ahead == nil {
		return nil
	}
	l := <-s.ahead
	<-w.tokens
	return l
}

// list opens and lists a subdirectory.
func (w *walker) list(l *listing, name string) *listing {
	path := join(l.path, name)
	dir, err := openat(int(l.dir.Fd()), name, unix.O_DIRECTORY)
	if err != nil {
		return &listing{err: sourceError(path, err)}
	}
	return listDir(w.ctx, dir, path)
}

// many writes the entries of a directory with many, again if it changes meanwhile.
func (w *walker) many(l *listing, index int64, subs *subdirectories) error {
	start, count := w.out.Size(), w.count
	return again(w.ctx, l.path, func() (bool, error) {
		if w.out.Size() > start {
			if err := w.out.Truncate(start); err != nil {
				return false, err
			}
			w.count = count
			*subs = subdirectories{file: w.subs}
			if err := w.relink(); err != nil {
				return false, err
			}
		}
		before, err := l.begin()
		if err != nil {
			return false, err
		}
		names := ondisk.NewSorter(w.scratch, limits.bytes)
		defer names.Close()
		for err == nil {
			var some []string
			some, err = l.dir.Readdirnames(limits.list)
			for _, n := range some {
				if err := names.Add([]byte(n)); err != nil {
					return false, err
				}
			}
		}
		if !errors.Is(err, io.EOF) {
			return false, sourceError(cmp.Or(l.path, "."), err)
		}
		if err := w.head(l, index); err != nil {
			return false, err
		}
		batch := make([]string, 0, limits.list)
		flush := func() error {
			if err := context.Cause(w.ctx); err != nil {
				return err
			}
			entries, err := l.stat(batch)
			if err != nil {
				return err
			}
			for _, e := range entries {
				if err := w.add(e, subs); err != nil {
					return err
				}
			}
			batch = batch[:0]
			return nil
		}
		for n, err := range names.Sorted() {
			if err != nil {
				return false, err
			}
			if batch = append(batch, string(n)); len(batch) < limits.list {
				continue
			}
			if err := flush(); err != nil {
				return errors.Is(err, unix.ENOENT), without(err, unix.ENOENT)
			}
		}
		if err := flush(); err != nil {
			return errors.Is(err, unix.ENOENT), without(err, unix.ENOENT)
		}
		return l.changed(&before)
	})
}

// relink finds the hard links of the entries in the file again, after some were removed.
func (w *walker) relink() error {
	if err := w.links.Close(); err != nil {
		return err
	}
	w.links = ondisk.NewMap(w.scratch, limits.keys)
	for in := readEntries(w.out); ; {
		e, begins, err := in.read()
		if e == nil || err != nil {
			return err
		}
		if !begins && !e.isDir() && e.first == 0 && e.nlink > 1 {
			if err := w.links.Put(linkKey(e.stamp), uint64(e.index)); err != nil {
				return err
			}
		}
	}
}

// without returns err, or nil if it is unwanted.
func without(err, unwanted error) error {
	if errors.Is(err, unwanted) {
		return nil
	}
	return err
}

// subdirectories are those of one directory, in order.
type subdirectories struct {
	recent []*subdirectory // before those in the file
	file   *ondisk.File
	from   int64 // of the first in the file that is not in recent
	end    int64 // 0: none is in the file
}

func (s *subdirectories) add(d *subdirectory) error {
	if s.end == 0 && len(s.recent) < limits.subs {
		s.recent = append(s.recent, d)
		return nil
	}
	if s.end == 0 {
		s.from = s.file.Size()
	}
	rec := binary.AppendUvarint(nil, uint64(d.index))
	rec = append(binary.AppendUvarint(rec, uint64(len(d.name))), d.name...)
	_, err := s.file.Write(rec)
	s.end = s.file.Size()
	return err
}

// next returns the next one, or nil.
func (s *subdirectories) next() (*subdirectory, error) {
	if len(s.recent) == 0 && s.from < s.end {
		r := s.file.Reader(s.from, 4<<10)
		for len(s.recent) < limits.subs && r.Offset() < s.end {
			d := &subdirectory{index: int64(r.Uvarint())}
			d.name = string(r.Bytes())
			s.recent = append(s.recent, d)
		}
		if err := r.Err(); err != nil {
			return nil, err
		}
		s.from = r.Offset()
	}
	if len(s.recent) == 0 {
		return nil, nil
	}
	d := s.recent[0]
	s.recent = s.recent[1:]
	return d, nil
}

// Records of a walk.
const (
	walkDir   = iota // index and path of a directory, and its node; its entries follow
	walkSub          // the name of a subdirectory
	walkEntry        // the name of another entry, its stamp, links and node
	walkLink         // the name of a further hard link, its type, and the index of the first
)

// head writes the beginning of a directory.
func (w *walker) head(l *listing, index int64) error {
	rec := binary.AppendUvarint(append(w.rec[:0], walkDir), uint64(index))
	rec = append(binary.AppendUvarint(rec, uint64(len(l.path))), l.path...)
	return w.put(w.node(rec, l.self.node))
}

// node appends a node and its length.
func (w *walker) node(rec []byte, n *erofs.Node) []byte {
	// The length comes behind, since it is known only then; it is fixed for that reason.
	at := len(rec)
	rec = erofs.AppendNode(append(rec, 0, 0, 0, 0), n)
	binary.LittleEndian.PutUint32(rec[at:], uint32(len(rec)-at-4))
	return rec
}

func (w *walker) put(rec []byte) error {
	w.rec = rec
	_, err := w.out.Write(rec)
	return err
}

// add writes an entry of the current directory.
func (w *walker) add(e *entry, subs *subdirectories) error {
	e.index = w.count
	w.count++
	kind := byte(walkEntry)
	switch {
	case e.isDir():
		kind = walkSub
		if err := subs.add(&subdirectory{index: e.index, name: e.name}); err != nil {
			return err
		}
	case e.nlink > 1:
		key := linkKey(e.stamp)
		first, ok, err := w.links.Get(key)
		if err == nil && !ok {
			err = w.links.Put(key, uint64(e.index))
		}
		if err != nil {
			return err
		}
		if ok {
			kind, e.first = walkLink, int64(first)
		}
	}
	if e.index > w.counted { // of a directory that is read again, each counts once
		w.counted = e.index
		w.seen(e)
	}
	rec := binary.AppendUvarint(append(w.rec[:0], kind), uint64(len(e.name)))
	rec = append(rec, e.name...)
	switch kind {
	case walkLink:
		rec = binary.AppendUvarint(rec, uint64(e.first))
		rec = binary.AppendUvarint(rec, uint64(e.node.Mode))
	case walkEntry:
		s := &e.stamp
		for _, v := range []uint64{s.dev, s.ino, uint64(s.size), uint64(s.mtimeSec), uint64(s.mtimeNsec), uint64(s.changeSec), uint64(s.changeNsec), e.nlink} {
			rec = binary.LittleEndian.AppendUint64(rec, v)
		}
		rec = w.node(rec, e.node)
	}
	return w.put(rec)
}

func linkKey(s stamp) ondisk.Key {
	return ondisk.Key(object.Sum(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, s.dev), s.ino)))
}

// entries reads the entries of a walk in order.
type entries struct {
	r    *ondisk.Reader
	dir  string
	next int64
}

func readEntries(f *ondisk.File) *entries { return &entries{r: f.Reader(0, 256<<10), next: 1} }

// read returns the next entry. If begins is set, it is a directory whose entries follow, and
// index its index. At the end, e is nil.
func (s *entries) read() (e *entry, begins bool, err error) {
	if !s.r.More() {
		return nil, false, s.r.Err()
	}
	e = &entry{dir: s.dir, index: s.next, node: &erofs.Node{}}
	kind := s.r.Byte()
	if kind == walkDir {
		e.index = int64(s.r.Uvarint())
		s.dir = string(s.r.Bytes())
		err := s.node(e.node)
		return e, true, err
	}
	s.next++
	e.name = string(s.r.Bytes())
	switch kind {
	case walkSub:
		e.node.Mode = unix.S_IFDIR
	case walkLink:
		e.first = int64(s.r.Uvarint())
		e.node.Mode = uint32(s.r.Uvarint())
	case walkEntry:
		st := &e.stamp
		if b := s.r.Next(8 * 8); b != nil {
			le := binary.LittleEndian
			st.dev, st.ino, st.size = le.Uint64(b), le.Uint64(b[8:]), int64(le.Uint64(b[16:]))
			st.mtimeSec, st.mtimeNsec = int64(le.Uint64(b[24:])), int64(le.Uint64(b[32:]))
			st.changeSec, st.changeNsec = int64(le.Uint64(b[40:])), int64(le.Uint64(b[48:]))
			e.nlink = le.Uint64(b[56:])
		}
		return e, false, s.node(e.node)
	}
	return e, false, s.r.Err()
}

func (s *entries) node(n *erofs.Node) error {
	b := s.r.Next(4)
	if b == nil {
		return s.r.Err()
	}
	b = s.r.Next(int(binary.LittleEndian.Uint32(b)))
	if err := s.r.Err(); err != nil {
		return err
	}
	if err := erofs.ParseNode(b, n); err != nil {
		return err
	}
	for name, value := range n.Xattrs { // they are parts of the reader's buffer
		n.Xattrs[name] = bytes.Clone(value)
	}
	return nil
}

// fill sets the metadata of an entry from st, and reads its attributes and, of a
// symbolic link, its target. The entry is called name in the directory fd.
func (e *entry) fill(st *unix.Stat_t, fd int, name string) error {
	e.stamp, e.nlink = stampOf(st), uint64(st.Nlink)
	n := &erofs.Node{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)}
	e.node = n
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Size = st.Size
	case unix.S_IFCHR, unix.S_IFBLK:
		n.Rdev = st.Rdev
	case unix.S_IFLNK:
		buf := make([]byte, pathMax)
		l, err := unix.Readlinkat(fd, name, buf)
		if err != nil {
			return err
		}
		n.Target = string(buf[:l])
	}
	var err error
	// The calls for attributes take only a path; this one begins at the directory.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", fd, name)
	n.Xattrs, err = xattrs(
		func(p []byte) (int, error) { return unix.Llistxattr(path, p) },
		func(name string, p []byte) (int, error) { return unix.Lgetxattr(path, name, p) })
	return err
}

// refresh updates the metadata of a regular file that has changed since walk.
func (e *entry) refresh(st *unix.Stat_t, fd int) error {
	attributes, err := xattrs(
		func(p []byte) (int, error) { return unix.Flistxattr(fd, p) },
		func(name string, p []byte) (int, error) { return unix.Fgetxattr(fd, name, p) })
	if err != nil {
		return err
	}
	e.stamp, e.nlink = stampOf(st), uint64(st.Nlink)
	*e.node = erofs.Node{
		Mode: st.Mode, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec),
		Size: st.Size, Xattrs: attributes,
	}
	return nil
}

// xattrs reads extended attributes with list and get.
func xattrs(list func([]byte) (int, error), get func(string, []byte) (int, error)) (map[string][]byte, error) {
	var small [1024]byte
	names, err := growing(small[:], list)
	if errors.Is(err, unix.ENOTSUP) || err == nil && len(names) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list its extended attributes: %w", err)
	}
	var all map[string][]byte
	for name := range bytes.SplitSeq(names[:len(names)-1], []byte{0}) {
		name := string(name)
		if !carried(name) {
			continue
		}
		value, err := growing(nil, func(p []byte) (int, error) { return get(name, p) })
		if errors.Is(err, unix.ENODATA) {
			continue // removed since, or not accessible to this user
		}
		if err != nil {
			return nil, fmt.Errorf("read its extended attribute %s: %w", name, err)
		}
		if err := erofs.CheckXattr(name, value); err != nil {
			return nil, err
		}
		if all == nil {
			all = map[string][]byte{}
		}
		all[name] = value
	}
	return all, nil
}

// carried reports whether an attribute becomes part of a tree: see the package comment.
func carried(name string) bool {
	for _, p := range []string{"user.", "trusted.", "security.", "system.posix_acl_access", "system.posix_acl_default"} {
		if strings.HasPrefix(name, p) {
			return name != "security.selinux"
		}
	}
	return false
}

// growing calls f with larger buffers, at first buf, until its result fits.
func growing(buf []byte, f func([]byte) (int, error)) ([]byte, error) {
	for {
		if len(buf) == 0 { // f would only return the size
			n, err := f(nil)
			if err != nil || n == 0 {
				return []byte{}, err
			}
			buf = make([]byte, n)
		}
		n, err := f(buf)
		if errors.Is(err, unix.ERANGE) {
			buf = nil
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}

// openat opens an entry of a directory for reading, without following a link or waiting
// for the other end of a FIFO. It preserves the access time if the system permits that.
func openat(fd int, name string, flags int) (*os.File, error) {
	flags |= unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	for noatime := unix.O_NOATIME; ; {
		sub, err := unix.Openat(fd, name, flags|noatime, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EPERM) && noatime != 0:
			noatime = 0
		case err != nil:
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		default:
			return os.NewFile(uintptr(sub), name), nil
		}
	}
}

// openBelow opens a file by its path, of any length, below an open directory.
func openBelow(root *os.File, name string) (*os.File, error) {
	at := root
	for len(name) >= pathMax {
		cut := strings.LastIndexByte(name[:pathMax], '/')
		next, err := openat(int(at.Fd()), name[:cut], unix.O_DIRECTORY)
		if at != root {
			at.Close()
		}
		if err != nil {
			return nil, err
		}
		at, name = next, name[cut+1:]
	}
	f, err := openat(int(at.Fd()), path.Clean(name), 0)
	if at != root {
		at.Close()
	}
	return f, err
}
