package erofs_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/store/erofs"
)

// A fact contains everything that is visible of one entry of a tree, through the kernel or
// another reader.
type fact struct {
	Mode, UID, GID, Nlink uint32
	Rdev                  uint64
	Size, Sec             int64
	Nsec                  uint32
	Target                string
	Xattrs                string // sorted list of name=value
	Holes                 string // offsets at which data and holes begin, alternately
	Content               string // digest of the content, or of the data between holes for a large file
}

// facts maps the paths of a tree to their facts. Files with several names have the same
// number in links, which contains no directories.
type facts struct {
	of    map[string]fact
	links map[string]uint64
}

// whole is the size up to which the content of a file is read completely.
const whole = 64 << 20

// copyBuffer is the buffer of read, which never runs twice at once.
var copyBuffer = make([]byte, 1<<20)

// read reads the content of a regular file. next works as lseek(2) with SEEK_DATA or
// SEEK_HOLE, and returns io.EOF if there is no more.
func (f *fact) read(r io.ReaderAt, next func(off int64, hole bool) (int64, error)) error {
	h := sha256.New()
	var holes strings.Builder
	for off := int64(0); ; {
		data, err := next(off, false)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("SEEK_DATA %d: %w", off, err)
		}
		if off, err = next(data, true); err != nil {
			return fmt.Errorf("SEEK_HOLE %d: %w", data, err)
		}
		fmt.Fprintf(&holes, "%d-%d ", data, off)
		if f.Size > whole {
			if _, err := io.CopyBuffer(h, io.NewSectionReader(r, data, off-data), copyBuffer); err != nil {
				return err
			}
			// The bytes before and behind the data must read as zeros.
			for _, at := range []int64{data - 9, off} {
				zeros := make([]byte, 9)
				if n, err := r.ReadAt(zeros, max(at, 0)); at >= 0 && (err != nil && err != io.EOF || !bytes.Equal(zeros[:n], make([]byte, n))) {
					return fmt.Errorf("read %q at %d, which is a hole: %v", zeros[:n], at, err)
				}
			}
		}
	}
	if f.Size <= whole {
		if n, err := io.CopyBuffer(h, io.NewSectionReader(r, 0, math.MaxInt64), copyBuffer); err != nil || n != f.Size {
			return fmt.Errorf("read %d of %d bytes: %w", n, f.Size, err)
		}
	}
	f.Holes, f.Content = holes.String(), fmt.Sprintf("%x", h.Sum(nil)[:8])
	return nil
}

func xattrText(all map[string][]byte) string {
	var s []string
	for name, value := range all {
		if len(value) > 100 {
			value = fmt.Appendf(nil, "%d bytes, %x", len(value), sha256.Sum256(value))
		}
		s = append(s, fmt.Sprintf("%s=%q", name, value))
	}
	slices.Sort(s)
	return strings.Join(s, " ")
}

// kernelFacts reads the facts through the kernel. It works relative to the descriptor of
// the directory, so that paths may be of any length.
func kernelFacts(t *testing.T, dir string) facts {
	t.Helper()
	f := facts{map[string]fact{}, map[string]uint64{}}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.kernel(fd, ".", ""); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f facts) kernel(dirfd int, name, p string) error {
	isRoot := p == ""
	if isRoot {
		p = "."
		defer unix.Close(dirfd)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("stat %q: %w", p, err)
	}
	e := fact{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Nlink: uint32(st.Nlink), Rdev: st.Rdev, Size: st.Size, Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)}
	proc := fmt.Sprintf("/proc/self/fd/%d/%s", dirfd, name)
	all, err := kernelXattrs(proc)
	if err != nil {
		return fmt.Errorf("xattrs of %q: %w", p, err)
	}
	e.Xattrs = xattrText(all)
	var children []string
	var fd int
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		if e.Target, err = os.Readlink(proc); err != nil {
			return err
		}
	case unix.S_IFREG, unix.S_IFDIR:
		if fd, err = unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open %q: %w", p, err)
		}
		file := os.NewFile(uintptr(fd), p)
		defer file.Close()
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if children, err = file.Readdirnames(-1); err != nil {
				return fmt.Errorf("list %q: %w", p, err)
			}
			break
		}
		err := e.read(file, func(off int64, hole bool) (int64, error) {
			whence := unix.SEEK_DATA
			if hole {
				whence = unix.SEEK_HOLE
			}
			at, err := unix.Seek(fd, off, whence)
			if errors.Is(err, unix.ENXIO) {
				err = io.EOF
			}
			return at, err
		})
		if err != nil {
			return fmt.Errorf("%q: %w", p, err)
		}
	}
	f.add(p, e, st.Ino)
	for _, c := range children {
		if err := f.kernel(fd, c, path.Join(p, c)); err != nil {
			return err
		}
	}
	return nil
}

func (f facts) add(p string, e fact, ino uint64) {
	f.of[p] = e
	if e.Mode&unix.S_IFMT != unix.S_IFDIR {
		f.links[p] = ino
	}
}

func kernelXattrs(p string) (map[string][]byte, error) {
	n, err := unix.Llistxattr(p, nil)
	if err != nil || n == 0 {
		return nil, err
	}
	b := make([]byte, n)
	if n, err = unix.Llistxattr(p, b); err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for _, name := range strings.Split(strings.TrimSuffix(string(b[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(p, name, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[name] = value[:n]
	}
	return all, nil
}

// imageFacts reads the facts through an Image.
func imageFacts(t *testing.T, im *erofs.Image) facts {
	t.Helper()
	f := facts{map[string]fact{}, map[string]uint64{}}
	err := im.Walk(func(p string, i *erofs.Inode) error {
		e := fact{Mode: i.Mode, UID: i.UID, GID: i.GID, Nlink: i.Nlink, Rdev: i.Rdev, Size: i.Size, Sec: i.Sec, Nsec: i.Nsec}
		all, err := im.Xattrs(i.Ino)
		if err != nil {
			return err
		}
		names, err := im.XattrNames(i.Ino)
		if err != nil || len(names) != len(all) {
			return fmt.Errorf("%d xattrs, %d names: %w", len(all), len(names), err)
		}
		for _, name := range names {
			if v, err := im.Xattr(i.Ino, name); err != nil || !bytes.Equal(v, all[name]) {
				return fmt.Errorf("xattr %s is %q and %q: %w", name, v, all[name], err)
			}
		}
		e.Xattrs = xattrText(all)
		switch i.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			e.Target, err = im.Readlink(i.Ino)
		case unix.S_IFREG:
			err = e.read(inodeReader{im, i.Ino}, func(off int64, hole bool) (int64, error) {
				if hole {
					return im.NextHole(i.Ino, off)
				}
				return im.NextData(i.Ino, off)
			})
		}
		f.add(p, e, i.Ino)
		return err
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return f
}

// inodeReader reads the content of a regular file.
type inodeReader struct {
	im  *erofs.Image
	nid uint64
}

func (r inodeReader) ReadAt(p []byte, off int64) (int, error) { return r.im.ReadAt(r.nid, p, off) }

// nodeFacts returns the facts that an image of the nodes must have.
func nodeFacts(t *testing.T, root *erofs.Node, data []byte) facts {
	t.Helper()
	f := facts{map[string]fact{}, map[string]uint64{}}
	nlink, number := map[*erofs.Node]uint32{}, map[*erofs.Node]uint64{}
	var count func(n *erofs.Node)
	count = func(n *erofs.Node) {
		nlink[n]++
		if number[n] == 0 {
			number[n] = uint64(len(number) + 1)
		}
		for _, c := range n.Children {
			count(c.Node)
		}
	}
	count(root)
	var visit func(p string, n *erofs.Node)
	visit = func(p string, n *erofs.Node) {
		e := fact{Mode: n.Mode, UID: n.UID, GID: n.GID, Nlink: nlink[n], Rdev: n.Rdev, Size: n.Size, Sec: n.Sec, Nsec: n.Nsec, Target: n.Target, Xattrs: xattrText(n.Xattrs)}
		switch n.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			e.Size = int64(len(n.Target))
		case unix.S_IFDIR:
			e.Nlink, e.Size = 2, -1
			for _, c := range n.Children {
				if c.Node.Mode&unix.S_IFMT == unix.S_IFDIR {
					e.Nlink++
				}
			}
		case unix.S_IFREG:
			r := nodeReader{n, data}
			if err := e.read(r, r.next); err != nil {
				t.Fatalf("%s: %v", p, err)
			}
		}
		f.add(p, e, number[n])
		for _, c := range n.Children {
			visit(path.Join(p, c.Name), c.Node)
		}
	}
	visit(".", root)
	return f
}

// nodeReader reads the content of a regular file from its node.
type nodeReader struct {
	n    *erofs.Node
	data []byte
}

func (r nodeReader) ReadAt(p []byte, off int64) (int, error) {
	n := int(min(int64(len(p)), r.n.Size-off))
	if n <= 0 {
		return 0, io.EOF
	}
	clear(p[:n])
	if len(r.n.Inline) > 0 {
		return copy(p, r.n.Inline[off:]), nil
	}
	for _, e := range r.n.Extents {
		from, to := max(off, e.FileOffset), min(off+int64(n), e.FileOffset+e.Length)
		if from < to {
			copy(p[from-off:to-off], r.data[e.DataOffset+from-e.FileOffset:])
		}
	}
	return n, nil
}

func (r nodeReader) next(off int64, hole bool) (int64, error) {
	if off >= r.n.Size {
		return 0, io.EOF
	}
	if len(r.n.Inline) > 0 {
		if hole {
			return r.n.Size, nil
		}
		return off, nil
	}
	for _, e := range r.n.Extents {
		end := min(e.FileOffset+e.Length, r.n.Size)
		switch {
		case end <= off:
		case hole && off < e.FileOffset:
			return off, nil
		case hole:
			off = end
		default:
			return max(off, e.FileOffset), nil
		}
	}
	if hole {
		return off, nil
	}
	return 0, io.EOF
}

// compare reports differences. It compares the sizes of directories only if both sides have
// one.
func compare(t *testing.T, wantName string, want facts, gotName string, got facts) {
	t.Helper()
	if len(want.of) < 1 {
		t.Errorf("%s: nothing to compare", wantName)
	}
	stderr := 0
	differ := func(format string, args ...any) {
		if stderr++; stderr <= 20 {
			t.Errorf(format, args...)
		}
	}
	names := map[uint64]uint64{} // maps numbers of files of one side to the other
	back := map[uint64]uint64{}
	for p, w := range want.of {
		g, ok := got.of[p]
		if !ok {
			differ("%.200q: %s does not have it", p, gotName)
			continue
		}
		if w.Mode&unix.S_IFMT == unix.S_IFDIR && (w.Size < 0 || g.Size < 0) {
			w.Size, g.Size = 0, 0
		}
		if w != g {
			differ("%.200q:\n%s %+v\n%s %+v", p, wantName, w, gotName, g)
		}
		wn, isFile := want.links[p]
		gn := got.links[p]
		if !isFile {
			continue
		}
		if seen, ok := names[wn]; ok && seen != gn {
			differ("%.200q: hard link in %s only", p, wantName)
		}
		if seen, ok := back[gn]; ok && seen != wn {
			differ("%.200q: hard link in %s only", p, gotName)
		}
		names[wn], back[gn] = gn, wn
	}
	for p := range got.of {
		if _, ok := want.of[p]; !ok {
			differ("%.200q: only %s has it", p, gotName)
		}
	}
	if stderr > 20 {
		t.Errorf("and %d differences more", stderr-20)
	}
}
