package layer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"

	xattrPrefix = "SCHILY.xattr." // of PAX records (star(5))
	opaqueXattr = "trusted.overlay.opaque"
)

// Limits limit all layers that they are used for together. A field that is 0 sets no
// limit.
type Limits struct {
	Bytes   int64 // of archives, and of the files in them
	Entries int64

	bytes, entries int64
}

func (l *Limits) addBytes(n int64) error {
	if l == nil {
		return nil
	}
	if l.bytes += n; l.Bytes > 0 && (l.bytes > l.Bytes || l.bytes < 0) {
		return &LimitError{"bytes", l.Bytes}
	}
	return nil
}

func (l *Limits) addEntry() error {
	if l == nil {
		return nil
	}
	if l.entries++; l.Entries > 0 && l.entries > l.Entries {
		return &LimitError{"entries", l.Entries}
	}
	return nil
}

// Options configure how a layer is unpacked.
type Options struct {
	Overlay bool    // into a separate directory
	Parent  string  // with Overlay: a directory with the layers below, flat; "" if there are none
	Limits  *Limits // nil for none; not safe for concurrent use
}

// Applied is the result of unpacking.
type Applied struct {
	Entries int64
	// Leans is true if the archive cannot be unpacked without the layers below: a
	// parent directory is missing in it, or a hard link leads to a file outside of it.
	// On other layers it becomes another directory.
	Leans bool
	// Whiteouts counts the entries that remove something. If there are none, and no
	// layers below, both ways to unpack give the same directory.
	Whiteouts int64
}

// Apply unpacks a tar archive, uncompressed, into a directory to which no other user
// may write. It reads r to its end; the archive may end before. If the archive cannot
// be unpacked, the error is an [Error] or a [LimitError], and the directory has a part
// of it.
func Apply(ctx context.Context, dir string, r io.Reader, o Options) (*Applied, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	a := &applier{
		ctx: ctx, o: o, root: fd, parent: -1, last: -1,
		own: map[string]bool{}, hidden: map[string]bool{}, times: map[string]unix.Timespec{},
		buf: make([]byte, 1<<20),
	}
	defer a.close()
	if o.Overlay && o.Parent != "" {
		if a.parent, err = unix.Open(o.Parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return nil, &os.PathError{Op: "open", Path: o.Parent, Err: err}
		}
	}
	if err := a.prepareRoot(); err != nil {
		return nil, err
	}
	in := &limited{r: r, l: o.Limits, ctx: ctx}
	tr := tar.NewReader(in)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			a.applied.Entries++
			if err = o.Limits.addEntry(); err == nil {
				err = a.entry(h, tr)
			}
		}
		if err != nil {
			return nil, a.explain(h, err)
		}
	}
	if _, err := io.CopyBuffer(io.Discard, onlyReader{in}, a.buf); err != nil {
		return nil, a.explain(nil, err)
	}
	return &a.applied, a.setTimes()
}

type onlyReader struct{ io.Reader }

// explain converts errors that the archive has caused to an [Error].
func (a *applier) explain(h *tar.Header, err error) error {
	var known *Error
	var limit *LimitError
	var source *sourceError
	switch {
	case errors.As(err, &source):
		return source.err
	case errors.As(err, &known), errors.As(err, &limit), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EIO):
		return err
	}
	e := &Error{Reason: err.Error(), Err: err}
	if h != nil {
		e.Entry = h.Name
	}
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		e.Reason = "it is not a complete tar archive: " + err.Error()
	}
	return e
}

// limited reads an archive within limits.
type limited struct {
	ctx context.Context
	r   io.Reader
	l   *Limits
}

// sourceError marks an error of the archive's reader, as opposed to an error in the
// archive.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }

func (l *limited) Read(p []byte) (int, error) {
	if err := context.Cause(l.ctx); err != nil {
		return 0, &sourceError{err}
	}
	n, err := l.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, &sourceError{err}
	}
	if limit := l.l.addBytes(int64(n)); limit != nil {
		return n, limit
	}
	return n, err
}

// applier unpacks one layer. The keys of its maps are real directories below the root,
// without symbolic links, "" for the root itself.
type applier struct {
	ctx     context.Context
	o       Options
	applied Applied
	root    int // descriptors
	parent  int
	buf     []byte

	own    map[string]bool          // names that this layer made or passed through
	hidden map[string]bool          // whiteouts of this layer
	times  map[string]unix.Timespec // of changed directories, set at the end

	last     int // the directory used last, -1 if there is none
	lastName string
	lastReal string
}

func (a *applier) close() {
	a.forget()
	unix.Close(a.root)
	if a.parent >= 0 {
		unix.Close(a.parent)
	}
}

// forget closes the directory used last.
func (a *applier) forget() {
	if a.last >= 0 {
		unix.Close(a.last)
		a.last = -1
	}
}

func (a *applier) prepareRoot() error {
	var st unix.Stat_t
	if err := unix.Fstat(a.root, &st); err != nil {
		return err
	}
	// A new directory has the present time. A directory that was unpacked into has the
	// time that a layer set.
	empty, err := isEmpty(a.root)
	if err != nil {
		return err
	}
	if empty {
		a.times[""] = unix.Timespec{}
		if err := unix.Fchown(a.root, 0, 0); err != nil {
			return err
		}
		return unix.Fchmod(a.root, 0o755)
	}
	a.times[""] = st.Mtim
	return nil
}

func isEmpty(fd int) (bool, error) {
	own, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	d := os.NewFile(uintptr(own), "root")
	defer d.Close()
	_, err = d.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// entry unpacks one entry.
func (a *applier) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if strings.ContainsRune(h.Name, 0) {
		return &Error{Entry: h.Name, Reason: "its name contains a NUL"}
	}
	dir, base := path.Split(path.Clean("/" + h.Name))
	if base == "" { // the root
		a.times[""] = timeOf(h.ModTime)
		return nil
	}
	fd, real, err := a.directory(dir)
	if err != nil {
		return err
	}
	name := path.Join(real, base)
	a.touch(real)
	switch {
	case base == opaque:
		return a.makeOpaque(fd, real)
	case strings.HasPrefix(base, whiteout):
		base = base[len(whiteout):]
		if base == "" || base == "." || base == ".." {
			return &Error{Entry: h.Name, Reason: "it is a whiteout without a name"}
		}
		return a.whiteout(fd, base, path.Join(real, base), h)
	case h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0:
		return a.whiteout(fd, base, name, h)
	}
	if err := a.make(fd, base, name, h, content); err != nil {
		return err
	}
	a.own[name] = true
	return a.describe(fd, base, name, h)
}

// touch records that a directory, and those above it, belong to this layer.
func (a *applier) touch(real string) {
	for ; real != "" && !a.own[real]; real = dirOf(real) {
		a.own[real] = true
	}
}

// dirOf returns the directory of a name below the root.
func dirOf(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i]
	}
	return ""
}

// openDir opens a real directory below the root.
func (a *applier) openDir(real string) (int, error) {
	if real == "" {
		real = "."
	}
	return unix.Openat2(a.root, real, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// directory opens the directory of an entry's name, and makes missing parts of it. The
// applier owns the descriptor; it is valid until the next call.
func (a *applier) directory(name string) (fd int, real string, err error) {
	if a.last >= 0 && a.lastName == name {
		return a.last, a.lastReal, nil
	}
	a.forget()
	if real, err = a.resolve(name, true); err != nil {
		return -1, "", err
	}
	if fd, err = a.openDir(real); err != nil {
		return -1, "", fmt.Errorf("open its directory: %w", err)
	}
	if err := a.changing(fd, real); err != nil {
		unix.Close(fd)
		return -1, "", err
	}
	a.last, a.lastName, a.lastReal = fd, name, real
	return fd, real, nil
}

// changing saves the time of a directory that is about to be changed.
func (a *applier) changing(fd int, real string) error {
	if _, ok := a.times[real]; ok {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	a.times[real] = st.Mtim
	return nil
}

// maxLinks is the number of symbolic links that a name may lead through, as in
// path_resolution(7).
const maxLinks = 40

// resolve returns the real directory of a name below the root, following symbolic links
// as if the root were "/". If make is true it makes missing directories, otherwise the
// error wraps ENOENT.
func (a *applier) resolve(name string, make bool) (string, error) {
	rest := strings.Split(name, "/")
	real, links := "", 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			real = dirOf(real)
			continue
		}
		next := path.Join(real, part)
		var st unix.Stat_t
		err := unix.Fstatat(a.root, next, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case errors.Is(err, unix.ENOENT) && make:
			if err := a.imply(real, part, next); err != nil {
				return "", err
			}
			real = next
		case err != nil:
			return "", err
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			if links++; links > maxLinks {
				return "", unix.ELOOP
			}
			n, err := unix.Readlinkat(a.root, next, a.buf[:4096])
			if err != nil {
				return "", err
			}
			target := string(a.buf[:n])
			if strings.HasPrefix(target, "/") {
				real = ""
			}
			rest = append(strings.Split(target, "/"), rest...)
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			real = next
		default:
			return "", fmt.Errorf("%s is not a directory: %w", next, unix.ENOTDIR)
		}
	}
	return real, nil
}

// imply makes a directory that no entry has described so far.
func (a *applier) imply(dir, base, name string) error {
	a.applied.Leans = true
	fd, err := a.openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := a.changing(fd, dir); err != nil {
		return err
	}
	if err := unix.Mkdirat(fd, base, 0o700); err != nil {
		return err
	}
	a.times[name] = unix.Timespec{}
	uid, gid, mode := 0, 0, uint32(0o755)
	if a.parent >= 0 {
		below, st, err := a.below(name)
		switch {
		case err == nil:
			defer unix.Close(below)
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				uid, gid, mode = int(st.Uid), int(st.Gid), st.Mode&0o7777
				a.times[name] = st.Mtim
				if err := copyXattrs(procPath(below, ""), procPath(fd, base)); err != nil {
					return err
				}
			}
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP):
			return err
		}
	}
	if err := unix.Fchownat(fd, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(fd, base, mode, 0)
}

// below opens a name in the layers below, as O_PATH.
func (a *applier) below(name string) (int, *unix.Stat_t, error) {
	fd, err := unix.Openat2(a.parent, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, &st, nil
}

// procPath returns a path of a file, for calls without a directory descriptor.
func procPath(fd int, base string) string {
	if base == "" {
		return fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, base)
}

// remove removes a name if it exists.
func (a *applier) remove(fd int, base, name string) error {
	err := unix.Unlinkat(fd, base, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err == nil: // it may have been a link on the way to a directory
	case errors.Is(err, unix.EISDIR):
		if err := os.RemoveAll(procPath(fd, base)); err != nil {
			return err
		}
		maps.DeleteFunc(a.times, func(n string, _ unix.Timespec) bool { return n == name || strings.HasPrefix(n, name+"/") })
		maps.DeleteFunc(a.own, func(n string, _ bool) bool { return strings.HasPrefix(n, name+"/") })
	default:
		return err
	}
	delete(a.own, name)
	// The name of the directory used last may now mean another one. Its descriptor may
	// be in use, so it is not closed here; no entry's directory is named "".
	a.lastName = ""
	return nil
}

// makeOpaque hides the content that the layers below have in a directory.
func (a *applier) makeOpaque(fd int, real string) error {
	a.applied.Whiteouts++
	if a.o.Overlay {
		return unix.Lsetxattr(procPath(fd, "."), opaqueXattr, []byte("y"), 0)
	}
	return a.clear(fd, real)
}

// clear removes entries that this layer has not made.
func (a *applier) clear(fd int, real string) error {
	own, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(own), real)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, base := range names {
		name := path.Join(real, base)
		if !a.own[name] {
			if err := a.remove(fd, base, name); err != nil {
				return err
			}
			continue
		}
		sub, err := a.openDir(name)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue
		}
		if err != nil {
			return err
		}
		if err = a.changing(sub, name); err == nil {
			err = a.clear(sub, name)
		}
		unix.Close(sub)
		if err != nil {
			return err
		}
	}
	return nil
}

// whiteout hides a name of the layers below.
func (a *applier) whiteout(fd int, base, name string, h *tar.Header) error {
	a.hidden[name] = true
	a.applied.Whiteouts++
	if a.own[name] {
		// Entries that this layer made there stay, and so does a directory with such
		// entries, without the others.
		sub, err := a.openDir(name)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil
		}
		if err != nil {
			return err
		}
		defer unix.Close(sub)
		if err := a.changing(sub, name); err != nil {
			return err
		}
		return a.makeOpaque(sub, name)
	}
	if !a.o.Overlay {
		return a.remove(fd, base, name)
	}
	err := unix.Mknodat(fd, base, unix.S_IFCHR, 0)
	if errors.Is(err, unix.EEXIST) { // hidden twice
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.Fchownat(fd, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return setTime(fd, base, timeOf(h.ModTime))
}

// make makes the file of an entry, without its metadata.
func (a *applier) make(fd int, base, name string, h *tar.Header, content io.Reader) error {
	var st unix.Stat_t
	err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	there := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if there && h.Typeflag == tar.TypeDir && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	if there {
		if err := a.remove(fd, base, name); err != nil {
			return err
		}
	}
	dev := int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
	switch h.Typeflag {
	case tar.TypeDir:
		if err := unix.Mkdirat(fd, base, 0o700); err != nil {
			return err
		}
		if a.o.Overlay && a.hidden[name] {
			return unix.Lsetxattr(procPath(fd, base), opaqueXattr, []byte("y"), 0)
		}
		return nil
	case tar.TypeReg, tar.TypeGNUSparse, '\x00':
		return a.file(fd, base, h, content)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= 4096 || strings.ContainsRune(h.Linkname, 0) {
			return &Error{Entry: h.Name, Reason: "a symbolic link cannot have its target"}
		}
		return unix.Symlinkat(h.Linkname, fd, base)
	case tar.TypeLink:
		return a.link(fd, base, h)
	case tar.TypeBlock:
		return unix.Mknodat(fd, base, unix.S_IFBLK, dev)
	case tar.TypeChar:
		return unix.Mknodat(fd, base, unix.S_IFCHR, dev)
	case tar.TypeFifo:
		return unix.Mknodat(fd, base, unix.S_IFIFO, 0)
	}
	return &Error{Entry: h.Name, Reason: fmt.Sprintf("its type %q is unknown", h.Typeflag)}
}

// holeSize is the size of the pieces that become holes if they are zero.
const holeSize = 64 << 10

// file writes a regular file.
func (a *applier) file(fd int, base string, h *tar.Header, content io.Reader) (err error) {
	// A sparse file may have more bytes than the archive.
	if h.Typeflag == tar.TypeGNUSparse || h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != "" {
		if err := a.o.Limits.addBytes(h.Size); err != nil {
			return err
		}
	}
	out, err := unix.Openat(fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(out), base)
	defer func() { err = errors.Join(err, f.Close()) }()
	var at int64
	for {
		n, err := io.ReadFull(content, a.buf)
		for p := a.buf[:n]; len(p) > 0; {
			piece := p[:min(len(p), holeSize)]
			p = p[len(piece):]
			if !zero(piece) {
				if _, err := f.WriteAt(piece, at); err != nil {
					return err
				}
			}
			at += int64(len(piece))
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && at == h.Size {
			return f.Truncate(at)
		}
		if err != nil {
			return err
		}
		if err := context.Cause(a.ctx); err != nil {
			return &sourceError{err}
		}
	}
}

func zero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// link makes a hard link.
func (a *applier) link(fd int, base string, h *tar.Header) error {
	dir, to := path.Split(path.Clean("/" + h.Linkname))
	if to == "" {
		return &Error{Entry: h.Name, Reason: "it is a hard link of the root"}
	}
	real, err := a.resolve(dir, false)
	if err == nil {
		var from int
		if from, err = a.openDir(real); err == nil {
			err = unix.Linkat(from, to, fd, base, 0)
			unix.Close(from)
		}
	}
	if !errors.Is(err, unix.ENOENT) || a.parent < 0 {
		return linkError(h, err)
	}
	if err := a.copyUp(path.Join(dir, to)); err != nil {
		return linkError(h, err)
	}
	if real, err = a.resolve(dir, false); err != nil {
		return linkError(h, err)
	}
	from, err := a.openDir(real)
	if err != nil {
		return linkError(h, err)
	}
	defer unix.Close(from)
	return linkError(h, unix.Linkat(from, to, fd, base, 0))
}

func linkError(h *tar.Header, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("link it to %q: %w", h.Linkname, err)
}

// copyUp copies a file of the layers below into this layer.
func (a *applier) copyUp(name string) error {
	a.applied.Leans = true
	below, st, err := a.below(name)
	if err != nil {
		return err
	}
	defer unix.Close(below)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EPERM
	}
	dir, base := path.Split(name)
	real, err := a.resolve(dir, true)
	if err != nil {
		return err
	}
	fd, err := a.openDir(real)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := a.changing(fd, real); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		in, err := os.Open(procPath(below, ""))
		if err != nil {
			return err
		}
		defer in.Close()
		// It was counted in its own layer; this is another copy.
		if err := a.o.Limits.addBytes(st.Size); err != nil {
			return err
		}
		if err := a.file(fd, base, &tar.Header{Size: st.Size}, in); err != nil {
			return err
		}
	case unix.S_IFLNK:
		n, err := unix.Readlinkat(below, "", a.buf[:4096])
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(string(a.buf[:n]), fd, base); err != nil {
			return err
		}
	default:
		if err := unix.Mknodat(fd, base, st.Mode&unix.S_IFMT, int(st.Rdev)); err != nil {
			return err
		}
	}
	a.touch(real)
	a.own[path.Join(real, base)] = true
	if err := unix.Fchownat(fd, base, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := copyXattrs(procPath(below, ""), procPath(fd, base)); err != nil {
			return err
		}
		if err := unix.Fchmodat(fd, base, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	return setTime(fd, base, st.Mtim)
}

// describe sets the metadata of an entry.
func (a *applier) describe(fd int, base, name string, h *tar.Header) error {
	if h.Uid < 0 || h.Gid < 0 || h.Uid >= 1<<32-1 || h.Gid >= 1<<32-1 {
		return &Error{Entry: h.Name, Reason: fmt.Sprintf("its owner is out of range: %d:%d", h.Uid, h.Gid)}
	}
	if err := unix.Fchownat(fd, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	for key, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(key, xattrPrefix)
		if !ok || strings.HasPrefix(attr, "trusted.overlay.") || strings.HasPrefix(attr, "user.overlay.") {
			continue
		}
		err := unix.Lsetxattr(procPath(fd, base), attr, []byte(value), 0)
		switch {
		case errors.Is(err, unix.ENOTSUP):
		case errors.Is(err, unix.EPERM) && strings.HasPrefix(attr, "user.") && kind != unix.S_IFREG && kind != unix.S_IFDIR:
			// Only files and directories can have them (xattr(7)).
		case err != nil:
			return fmt.Errorf("set its attribute %s: %w", attr, err)
		}
	}
	if kind != unix.S_IFLNK {
		// After the owner, since chown clears setuid bits.
		if err := unix.Fchmodat(fd, base, uint32(h.Mode)&0o7777, 0); err != nil {
			return err
		}
	}
	if kind == unix.S_IFDIR {
		a.times[name] = timeOf(h.ModTime)
		return nil
	}
	return setTime(fd, base, timeOf(h.ModTime))
}

// timeOf returns the modification time to set.
func timeOf(t time.Time) unix.Timespec {
	if t.Unix() < 0 || t.Unix() >= 1<<33 { // before 1970, or beyond the range of a clock of nanoseconds
		return unix.Timespec{}
	}
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}

func setTime(fd int, base string, t unix.Timespec) error {
	return unix.UtimesNanoAt(fd, base, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
}

// setTimes sets the times of all changed directories.
func (a *applier) setTimes() error {
	a.forget()
	for real, t := range a.times {
		fd, err := a.openDir(real)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // it was replaced later
		}
		if err != nil {
			return err
		}
		err = setTime(fd, ".", t)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// copyXattrs copies extended attributes, except those of overlayfs.
func copyXattrs(from, to string) error {
	names := make([]byte, 64<<10)
	n, err := unix.Listxattr(from, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return err
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if name == "" || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		m, err := unix.Getxattr(from, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return err
		}
		if err := unix.Lsetxattr(to, name, value[:m], 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return err
		}
	}
	return nil
}
