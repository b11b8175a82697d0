package fuse_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/store/erofs"
	"premix/internal/testkit/testtree"
)

// builder makes the nodes of an image from a directory.
type builder struct {
	data  []byte
	links map[uint64]*erofs.Node // by inode number
}

// add returns the node of a name in the directory with the descriptor dir.
func (b *builder) add(dir int, name string) (*erofs.Node, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, err
	}
	if n := b.links[st.Ino]; n != nil {
		return n, nil
	}
	n := &erofs.Node{
		Mode: st.Mode, UID: st.Uid, GID: st.Gid, Rdev: st.Rdev,
		Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec), Xattrs: map[string][]byte{},
	}
	b.links[st.Ino] = n
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir, name) // the path may have any depth
	if err := addXattrs(n, path); err != nil {
		return nil, err
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFLNK {
		var err error
		n.Target, err = os.Readlink(path)
		return n, err
	}
	if kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return n, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if kind == unix.S_IFREG {
		n.Size = st.Size
		return n, b.addContent(n, f)
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		child, err := b.add(int(f.Fd()), name)
		if err != nil {
			return nil, err
		}
		n.Children = append(n.Children, erofs.Child{Name: name, Node: child})
	}
	return n, nil
}

func addXattrs(n *erofs.Node, path string) error {
	list := make([]byte, 1<<16)
	size, err := unix.Llistxattr(path, list)
	if err != nil {
		return err
	}
	for _, name := range strings.FieldsFunc(string(list[:size]), func(r rune) bool { return r == 0 }) {
		value := make([]byte, 1<<16)
		size, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return err
		}
		n.Xattrs[name] = value[:size]
	}
	return nil
}

func (b *builder) addContent(n *erofs.Node, f *os.File) error {
	if n.Size <= int64(erofs.InlineMax(n)) {
		n.Inline = make([]byte, n.Size)
		_, err := io.ReadFull(f, n.Inline)
		return err
	}
	for end := int64(0); end < n.Size; {
		start, err := f.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return err
		}
		if end, err = f.Seek(start, unix.SEEK_HOLE); err != nil {
			return err
		}
		at := int64(len(b.data))
		b.data = append(b.data, make([]byte, (end-start+erofs.BlockSize-1)&^(erofs.BlockSize-1))...)
		if _, err := f.ReadAt(b.data[at:at+end-start], start); err != nil {
			return err
		}
		n.Extents = append(n.Extents, erofs.Extent{FileOffset: start, Length: end - start, DataOffset: at})
	}
	return nil
}

// imageOf writes the image of a directory and returns its path.
func imageOf(t *testing.T, dir string) string {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b := &builder{links: map[uint64]*erofs.Node{}}
	root, err := b.add(int(d.Fd()), ".")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := erofs.Write(f, root, int64(len(b.data))); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b.data); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// Both ways to mount a tree show exactly the directory from which the tree was made.
func TestAwkwardTrees(t *testing.T) {
	needRoot(t)
	for n := range testtree.Trees {
		t.Run(testtree.Name(n), func(t *testing.T) {
			src := t.TempDir()
			if err := testtree.Build(src, n); err != nil {
				t.Fatal(err)
			}
			image := imageOf(t, src)
			asImage, asTree := t.TempDir(), t.TempDir()
			serve(t, setup{Dir: asImage, File: image})
			serve(t, setup{Dir: asTree, File: image, Tree: true})
			viaErofs := mountErofs(t, filepath.Join(asImage, "image"))
			for _, mnt := range []string{viaErofs, asTree} {
				diffs, err := testtree.Compare(src, mnt)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range diffs {
					t.Error(d)
				}
			}
			compareNumbers(t, viaErofs, asTree)
		})
	}
}

// compareNumbers compares properties that are equal in two mounts of one image, but not in
// two copies of a tree: inode numbers, blocks, sizes of directories, all times, offsets in
// directories, and holes.
func compareNumbers(t *testing.T, a, b string) {
	t.Helper()
	var walk func(da, db int, path string)
	walk = func(da, db int, path string) {
		for _, name := range listing(t, da, db, path) {
			var sa, sb unix.Stat_t
			for _, s := range []struct {
				dir int
				st  *unix.Stat_t
			}{{da, &sa}, {db, &sb}} {
				if err := unix.Fstatat(s.dir, name, s.st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
					t.Fatal(path, name, err)
				}
			}
			sa.Dev, sb.Dev = 0, 0
			if sa != sb {
				t.Errorf("%s/%s: EROFS says %+v, FUSE %+v", path, name, sa, sb)
			}
			kind := sa.Mode & unix.S_IFMT
			if kind != unix.S_IFDIR && kind != unix.S_IFREG || name == "." || name == ".." {
				continue
			}
			fa, fb := openAt(t, da, name), openAt(t, db, name)
			if kind == unix.S_IFDIR {
				walk(fa, fb, path+"/"+name)
			} else {
				compareHoles(t, fa, fb, path+"/"+name)
			}
			_ = unix.Close(fa)
			_ = unix.Close(fb)
		}
	}
	fa, fb := openAt(t, unix.AT_FDCWD, a), openAt(t, unix.AT_FDCWD, b)
	defer unix.Close(fa)
	defer unix.Close(fb)
	walk(fa, fb, "")
}

func openAt(t *testing.T, dir int, name string) int {
	t.Helper()
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(name, err)
	}
	return fd
}

// listing returns the names in a directory that is open twice, after it has compared both
// results of getdents64(2), including offsets.
func listing(t *testing.T, a, b int, path string) []string {
	t.Helper()
	read := func(fd int) (all []string, names []string) {
		buf := make([]byte, 1<<14)
		for {
			n, err := unix.Getdents(fd, buf)
			if err != nil {
				t.Fatal(path, err)
			}
			if n == 0 {
				return all, names
			}
			for rest := buf[:n]; len(rest) > 0; {
				length := int(rest[16]) | int(rest[17])<<8
				name, _, _ := strings.Cut(string(rest[19:length]), "\x00")
				all = append(all, fmt.Sprintf("%x %s", rest[:8], name)) // ino
				names = append(names, name)
				rest = rest[length:]
			}
		}
	}
	first, names := read(a)
	second, _ := read(b)
	if strings.Join(first, "\n") != strings.Join(second, "\n") {
		t.Errorf("%s: EROFS lists %q, FUSE %q", path, first, second)
	}
	return names
}

// compareHoles compares the positions of data and holes in a file that is open twice.
func compareHoles(t *testing.T, a, b int, path string) {
	t.Helper()
	whence := unix.SEEK_DATA
	for off := int64(0); ; whence = unix.SEEK_DATA + unix.SEEK_HOLE - whence {
		na, ea := unix.Seek(a, off, whence)
		nb, eb := unix.Seek(b, off, whence)
		if na != nb || !errors.Is(eb, ea) {
			t.Fatalf("%s: seek from %d: EROFS %d (%v), FUSE %d (%v)", path, off, na, ea, nb, eb)
		}
		if ea != nil {
			return
		}
		off = na
	}
}

// A directory of a few thousand entries can be read from any offset in it.
func TestReadDirFromAnywhere(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	for i := range 3000 {
		if err := os.WriteFile(filepath.Join(src, fmt.Sprintf("%d-%s", i, strings.Repeat("x", i%200))), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mnt := t.TempDir()
	serve(t, setup{Dir: mnt, File: imageOf(t, src), Tree: true})
	fd := openAt(t, unix.AT_FDCWD, mnt)
	defer unix.Close(fd)
	type entry struct {
		name string
		next int64
	}
	buf := make([]byte, 4096)
	read := func() (all []entry) {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			t.Fatal(err)
		}
		for rest := buf[:n]; len(rest) > 0; {
			length := int(rest[16]) | int(rest[17])<<8
			name, _, _ := strings.Cut(string(rest[19:length]), "\x00")
			next := int64(rest[8]) | int64(rest[9])<<8 | int64(rest[10])<<16 | int64(rest[11])<<24
			all = append(all, entry{name, next})
			rest = rest[length:]
		}
		return all
	}
	var all []entry
	for part := read(); len(part) > 0; part = read() {
		all = append(all, part...)
	}
	if len(all) != 3002 {
		t.Fatalf("%d entries, want 3002", len(all))
	}
	for range 300 {
		i := rand.IntN(len(all) - 1)
		if _, err := unix.Seek(fd, all[i].next, unix.SEEK_SET); err != nil {
			t.Fatal(err)
		}
		if got := read(); len(got) == 0 || got[0] != all[i+1] {
			t.Fatalf("behind %q: %v, want %v", all[i].name, got[:min(1, len(got))], all[i+1])
		}
	}
}

// Every kind of change is refused with EROFS.
func TestReadOnly(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "file"), []byte("text"), 0o666); err != nil {
		t.Fatal(err)
	}
	mnt := t.TempDir()
	serve(t, setup{Dir: mnt, File: imageOf(t, src), Tree: true})
	file, other := filepath.Join(mnt, "file"), filepath.Join(mnt, "other")
	for name, err := range map[string]error{
		"open":      func() error { _, err := os.OpenFile(file, os.O_WRONLY, 0); return err }(),
		"create":    func() error { _, err := os.Create(other); return err }(),
		"truncate":  os.Truncate(file, 0),
		"chmod":     os.Chmod(file, 0o600),
		"chown":     os.Chown(file, 1, 1),
		"utimes":    unix.Utimes(file, make([]unix.Timeval, 2)),
		"unlink":    os.Remove(file),
		"rename":    os.Rename(file, other),
		"link":      os.Link(file, other),
		"symlink":   os.Symlink("x", other),
		"mkdir":     os.Mkdir(other, 0o777),
		"mknod":     unix.Mknod(other, unix.S_IFIFO|0o600, 0),
		"setxattr":  unix.Setxattr(file, "user.x", []byte("y"), 0),
		"rmxattr":   unix.Removexattr(file, "user.x"),
		"O_TMPFILE": func() error { _, err := unix.Open(mnt, unix.O_TMPFILE|unix.O_RDWR, 0o600); return err }(),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v, want EROFS", name, err)
		}
	}
}

// A file handle finds its file again, as NFS servers and overlayfs need it, even after the
// kernel has dropped the inode.
func TestFileHandles(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	path := "a/b/c/file"
	if err := os.MkdirAll(filepath.Join(src, "a/b/c"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, path), []byte("found"), 0o644); err != nil {
		t.Fatal(err)
	}
	mnt := t.TempDir()
	serve(t, setup{Dir: mnt, File: imageOf(t, src), Tree: true})
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, filepath.Join(mnt, path), 0)
	if err != nil {
		t.Fatal(err)
	}
	root := openAt(t, unix.AT_FDCWD, mnt)
	defer unix.Close(root)
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0); err != nil {
		t.Logf("caches are not dropped: %v", err)
	}
	fd, err := unix.OpenByHandleAt(root, handle, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || string(got) != "found" {
		t.Errorf("%q, %v", got, err)
	}
}
