package erofs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/store/erofs"
	"premix/internal/testkit/testtree"
)

// mount mounts an image from its plain file, and unmounts it at the end of the test.
func mount(t *testing.T, image string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting an image needs root")
	}
	dir := t.TempDir()
	err := unix.Mount(image, dir, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "")
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOTBLK) {
		t.Skipf("this kernel does not mount EROFS from a file: %v", err)
	}
	if err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(dir); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// write writes an image file, with data behind the metadata, and opens it.
func write(t *testing.T, root *erofs.Node, data []byte) (string, *erofs.Image) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	meta, err := erofs.Write(f, root, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	if at, err := f.Seek(0, io.SeekCurrent); err != nil || at != meta || meta%erofs.BlockSize != 0 {
		t.Fatalf("Write says %d bytes and has written %d: %v", meta, at, err)
	}
	data = append(data[:len(data):len(data)], make([]byte, -len(data)&(erofs.BlockSize-1))...)
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	size := meta + int64(len(data))
	im := open(t, b)
	if im.Blocks()*erofs.BlockSize != size {
		t.Errorf("the superblock says %d blocks of %d bytes", im.Blocks(), size)
	}
	return f.Name(), im
}

// importer makes nodes from a directory. Small files are inline.
type importer struct {
	data []byte
	seen map[[2]uint64]*erofs.Node
}

func (im *importer) node(dirfd int, name string) (*erofs.Node, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, err
	}
	key := [2]uint64{st.Dev, st.Ino}
	if n := im.seen[key]; n != nil {
		return n, nil
	}
	n := &erofs.Node{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec), Rdev: st.Rdev}
	im.seen[key] = n
	proc := fmt.Sprintf("/proc/self/fd/%d/%s", dirfd, name)
	var err error
	if n.Xattrs, err = kernelXattrs(proc); err != nil {
		return nil, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		n.Target, err = os.Readlink(proc)
		return n, err
	case unix.S_IFREG, unix.S_IFDIR:
	default:
		return n, nil
	}
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		n.Size = st.Size
		return n, im.content(f, n)
	}
	names, err := f.Readdirnames(-1)
	for _, name := range names {
		c, err := im.node(fd, name)
		if err != nil {
			return nil, err
		}
		n.Children = append(n.Children, erofs.Child{Name: name, Node: c})
	}
	return n, err
}

func (im *importer) content(f *os.File, n *erofs.Node) error {
	if n.Size <= int64(erofs.InlineMax(n)) {
		n.Inline = make([]byte, n.Size)
		_, err := io.ReadFull(f, n.Inline)
		return err
	}
	fd := int(f.Fd())
	for off := int64(0); off < n.Size; {
		start, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		if off, err = unix.Seek(fd, start, unix.SEEK_HOLE); err != nil {
			return err
		}
		at := len(im.data)
		im.data = append(im.data, make([]byte, (off-start+erofs.BlockSize-1)&^(erofs.BlockSize-1))...)
		if _, err := f.ReadAt(im.data[at:at+int(off-start)], start); err != nil {
			return err
		}
		n.Extents = append(n.Extents, erofs.Extent{FileOffset: start, Length: off - start, DataOffset: int64(at)})
	}
	return nil
}

// importTree makes nodes from the tree at dir.
func importTree(t *testing.T, dir string) (*erofs.Node, []byte) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	im := &importer{seen: map[[2]uint64]*erofs.Node{}}
	root, err := im.node(fd, ".")
	if err != nil {
		t.Fatal(err)
	}
	return root, im.data
}

// The kernel must show an image exactly like the tree from which the image was made, and
// like the reader shows it. fsck.erofs must find no error.
func TestAwkwardTrees(t *testing.T) {
	for n := range testtree.Trees {
		t.Run(testtree.Name(n), func(t *testing.T) {
			src := t.TempDir()
			if err := testtree.Build(src, n); errors.Is(err, os.ErrPermission) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			root, data := importTree(t, src)
			image, im := write(t, root, data)
			mnt := mount(t, image)
			diffs, err := testtree.Compare(src, mnt)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range diffs {
				t.Error(d)
			}
			kernel := kernelFacts(t, mnt)
			compare(t, "nodes", nodeFacts(t, root, data), "kernel", kernel)
			compare(t, "kernel", kernel, "image", imageFacts(t, im))
			compareNumbers(t, mnt, im)
			if testtree.Name(n) != "deep" { // the tool handles no path longer than PATH_MAX
				fsck(t, image)
			}
		})
	}
}

// fsck checks an image with the tools of erofs-utils.
func fsck(t *testing.T, image string) {
	t.Helper()
	tool, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Log("fsck.erofs is not installed (package erofs-utils): not compared with it")
		return
	}
	if out, err := exec.Command(tool, "-d3", image).CombinedOutput(); err != nil || !bytes.Contains(out, []byte("No errors found")) {
		t.Errorf("%s: %v\n%.2000s", tool, err, out)
	}
	if tool, err = exec.LookPath("dump.erofs"); err == nil {
		if out, err := exec.Command(tool, "-s", image).CombinedOutput(); err != nil || !bytes.Contains(out, []byte("0xE0F5E1E2")) {
			t.Errorf("%s: %v\n%.2000s", tool, err, out)
		}
	}
}

// compareNumbers compares inode numbers, block counts, the order of directories, types and
// cookies. Only the EROFS of the kernel has the same ones as the reader.
func compareNumbers(t *testing.T, mnt string, im *erofs.Image) {
	t.Helper()
	fd, err := unix.Open(mnt, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var visit func(fd int, nid uint64, p string)
	visit = func(fd int, nid uint64, p string) {
		defer unix.Close(fd)
		kernel := listKernel(t, fd)
		var image []erofs.Dirent
		if err := im.ReadDir(nid, 0, func(d erofs.Dirent) bool { image = append(image, d); return true }); err != nil {
			t.Fatal(err)
		}
		if len(kernel) != len(image) {
			t.Errorf("%.200q: %d entries in the kernel, %d in the image", p, len(kernel), len(image))
			return
		}
		for n, k := range kernel {
			d := image[n]
			if n == len(kernel)-1 {
				k.Next = d.Next // the kernel marks the end in a different way
			}
			if k != d {
				t.Errorf("%.200q: entry %d is %+v in the kernel, %+v in the image", p, n, k, d)
			}
			if n%5 != 0 && len(kernel) > 10000 {
				continue
			}
			if got, err := im.Lookup(nid, d.Name); err != nil || got != d.Nid {
				t.Errorf("Lookup %q in %.200q: %d, %v, want %d", d.Name, p, got, err, d.Nid)
			}
			if d.Name == "." || d.Name == ".." {
				continue
			}
			var st unix.Stat_t
			if err := unix.Fstatat(fd, d.Name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				t.Fatal(err)
			}
			i, err := im.Inode(d.Nid)
			if err != nil {
				t.Fatal(err)
			}
			if st.Ino != i.Ino || st.Blocks != i.Blocks() {
				t.Errorf("%.200q/%q: ino %d, %d blocks in the kernel; %d, %d in the image", p, d.Name, st.Ino, st.Blocks, i.Ino, i.Blocks())
			}
			if d.Type == unix.S_IFDIR {
				sub, err := unix.Openat(fd, d.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
				if err != nil {
					t.Fatal(err)
				}
				visit(sub, d.Nid, p+"/"+d.Name)
			}
		}
	}
	visit(fd, im.Root(), "")
}

// listKernel lists a directory by getdents64(2), including "." and "..".
func listKernel(t *testing.T, fd int) []erofs.Dirent {
	t.Helper()
	var all []erofs.Dirent
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return all
		}
		for b := buf[:n]; len(b) > 0; {
			size := binary.NativeEndian.Uint16(b[16:])
			name, _, _ := bytes.Cut(b[19:size], []byte{0})
			all = append(all, erofs.Dirent{
				Name: string(name),
				Nid:  binary.NativeEndian.Uint64(b),
				Type: uint32(b[18]) << 12, // DT_* are the format bits of st_mode
				Next: binary.NativeEndian.Uint64(b[8:]),
			})
			b = b[size:]
		}
	}
}

// TestExtremes checks images with properties that no file system to copy from has.
func TestExtremes(t *testing.T) {
	const block = erofs.BlockSize
	data := make([]byte, 64*block)
	for i := range data {
		data[i] = byte(i>>12 + i)
	}
	dir := func(children ...erofs.Child) *erofs.Node {
		return &erofs.Node{Mode: unix.S_IFDIR | 0o755, Children: children}
	}
	file := func(size int64, extents ...erofs.Extent) *erofs.Node {
		return &erofs.Node{Mode: unix.S_IFREG | 0o644, Size: size, Extents: extents}
	}
	for name, root := range map[string]*erofs.Node{
		"times": func() *erofs.Node {
			n := dir()
			for i, s := range []int64{-1 << 63, -1 << 40, -1, 0, 1, 1 << 31, 1 << 32, 1 << 34, 1 << 55, 1<<63 - 1} {
				f := file(0)
				f.Sec, f.Nsec = s, uint32(999_999_999-i)
				n.Children = append(n.Children, erofs.Child{Name: fmt.Sprint(s), Node: f})
			}
			n.Sec = -1 << 50
			return n
		}(),
		"70000 names of one inode": func() *erofs.Node {
			n, f := dir(), &erofs.Node{Mode: unix.S_IFIFO | 0o600}
			for i := range 70000 {
				n.Children = append(n.Children, erofs.Child{Name: fmt.Sprintf("%05d", i*7919%70000), Node: f})
			}
			return n
		}(),
		"sparse": dir(
			erofs.Child{Name: "5 TiB hole", Node: file(5<<40 + 3)},
			erofs.Child{Name: "5 TiB, data at the end", Node: file(5<<40+3, erofs.Extent{FileOffset: 5 << 40, Length: 3, DataOffset: block})},
			erofs.Child{Name: "8 GiB, data in the middle", Node: file(8<<30, erofs.Extent{FileOffset: 5 << 30, Length: 1 << 17, DataOffset: 8 * block}, erofs.Extent{FileOffset: 6 << 30, Length: 1 << 17})},
			erofs.Child{Name: "odd blocks", Node: file(9*block+1, erofs.Extent{FileOffset: block, Length: block, DataOffset: 3 * block}, erofs.Extent{FileOffset: 2 * block, Length: block, DataOffset: block}, erofs.Extent{FileOffset: 7 * block, Length: 2*block + 1, DataOffset: 9 * block})},
			erofs.Child{Name: "pieces that join", Node: file(6*block, erofs.Extent{FileOffset: 0, Length: 4 * block, DataOffset: 2 * block}, erofs.Extent{FileOffset: 4 * block, Length: 2 * block, DataOffset: 6 * block})},
			erofs.Child{Name: "the same block ten times", Node: func() *erofs.Node {
				f := file(10 * block)
				for i := range int64(10) {
					f.Extents = append(f.Extents, erofs.Extent{FileOffset: i * block, Length: block, DataOffset: 5 * block})
				}
				return f
			}()},
			erofs.Child{Name: "a map of several blocks", Node: file(1<<26, erofs.Extent{FileOffset: 4 * block, Length: block, DataOffset: block}, erofs.Extent{FileOffset: 1<<26 - block, Length: block, DataOffset: 0})},
			erofs.Child{Name: "contiguous", Node: file(60*block+5, erofs.Extent{Length: 60*block + 5, DataOffset: 2 * block})},
			erofs.Child{Name: "hole behind", Node: file(1<<20+7, erofs.Extent{Length: 2 * block, DataOffset: 2 * block})},
			erofs.Child{Name: "8 EiB", Node: file(1<<63 - 2*block)},
		),
		"xattrs": func() *erofs.Node {
			large := func(n int, c byte) []byte { return bytes.Repeat([]byte{c}, n) }
			a, b, c, d, e := file(5), file(0), dir(), file(0), &erofs.Node{Mode: unix.S_IFLNK | 0o777, Target: strings.Repeat("t", 4095)}
			a.Inline = []byte("small")
			a.Xattrs = map[string][]byte{"user.a": large(3900, 'a'), "user.b": nil}
			b.Xattrs = map[string][]byte{"user.big": large(65535, 'b'), "user." + strings.Repeat("n", 250): large(40000, 'n')}
			c.Xattrs = map[string][]byte{"trusted.c": large(4100, 'c')}
			c.Children = []erofs.Child{{Name: "inside", Node: file(0)}}
			d.Xattrs = map[string][]byte{}
			for i := range 90 { // more xattrs than fit behind an inode
				d.Xattrs[fmt.Sprintf("user.%02d", i)] = large(5000+i, 'd')
			}
			e.Xattrs = map[string][]byte{"trusted.e": large(100, 'e')}
			n := dir(erofs.Child{Name: "a", Node: a}, erofs.Child{Name: "b", Node: b}, erofs.Child{Name: "c", Node: c}, erofs.Child{Name: "d", Node: d}, erofs.Child{Name: "e", Node: e})
			for i := range 300 { // more shared xattrs than an inode can refer to
				f := file(0)
				f.Xattrs = map[string][]byte{"security.label": []byte("the same"), "user.n": {byte(i)}, "user.odd": large(i%7, 'o')}
				n.Children = append(n.Children, erofs.Child{Name: fmt.Sprint("f", i), Node: f})
			}
			for i := range 3 {
				f := file(0)
				f.Xattrs = map[string][]byte{}
				for j := range 300 {
					f.Xattrs[fmt.Sprintf("user.s%03d", j)] = []byte("shared by three")
				}
				n.Children = append(n.Children, erofs.Child{Name: fmt.Sprint("g", i), Node: f})
			}
			n.Xattrs = map[string][]byte{"user.root": large(5000, 'r')}
			return n
		}(),
		"numbers": func() *erofs.Node {
			n := dir()
			for i, id := range []uint32{0, 1, 65535, 65536, 1 << 31, 1<<32 - 2} {
				f := file(0)
				f.UID, f.GID, f.Mode = id, id/2, unix.S_IFREG|0o7000
				n.Children = append(n.Children, erofs.Child{Name: fmt.Sprint("f", i), Node: f})
			}
			n.Children = append(n.Children, erofs.Child{Name: "dev", Node: &erofs.Node{Mode: unix.S_IFCHR | 0o600, Rdev: unix.Mkdev(4095, 1048575)}})
			return n
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			image, im := write(t, root, data)
			want, got := nodeFacts(t, root, data), imageFacts(t, im)
			compare(t, "nodes", want, "image", got)
			mnt := mount(t, image)
			kernel := kernelFacts(t, mnt)
			compare(t, "nodes", want, "kernel", kernel)
			compare(t, "kernel", kernel, "image", got)
			compareNumbers(t, mnt, im)
			fsck(t, image)
		})
	}
}

// A directory may have 100,000 entries: files, links and directories, some of them with the
// longest names.
func TestLargeDirectory(t *testing.T) {
	root := &erofs.Node{Mode: unix.S_IFDIR | 0o755}
	for i := range 100_000 {
		n := &erofs.Node{Mode: unix.S_IFREG | 0o644, Sec: int64(i)}
		name := fmt.Sprintf("%x", i*2654435761%(1<<32))
		switch i % 10 {
		case 0:
			n.Mode = unix.S_IFDIR | 0o700
		case 1:
			n.Mode, n.Target = unix.S_IFLNK|0o777, name
		case 2:
			name += strings.Repeat("\xff", 255-len(name))
		case 3:
			n.Inline, n.Size = []byte(name), int64(len(name))
		}
		root.Children = append(root.Children, erofs.Child{Name: name, Node: n})
	}
	image, im := write(t, root, nil)
	for _, absent := range []string{"", " ", "zzz", "g", strings.Repeat("\xff", 255), strings.Repeat("\xff", 256)} {
		if nid, err := im.Lookup(im.Root(), absent); !errors.Is(err, erofs.ErrNotExist) {
			t.Errorf("Lookup %q: %d, %v", absent, nid, err)
		}
	}
	compareNumbers(t, mount(t, image), im)
}

// The reader and the kernel agree on an image that mkfs.erofs has made.
func TestImageOfMkfs(t *testing.T) {
	tool, err := exec.LookPath("mkfs.erofs")
	if err != nil {
		t.Skip("mkfs.erofs is not installed (package erofs-utils)")
	}
	// mkfs.erofs of Debian 12 fails on some names of the tree "names".
	for _, c := range []struct {
		options []string
		trees   []int
	}{
		{[]string{"-Eforce-inode-extended"}, []int{2, 3, 5}},
		{[]string{"-Eforce-inode-compact"}, []int{2, 3, 8}},
		{[]string{"--chunksize=65536"}, []int{7}},
		{[]string{"--chunksize=4096", "-Eforce-chunk-indexes"}, []int{2}},
	} {
		for _, n := range c.trees {
			t.Run(testtree.Name(n)+strings.Join(c.options, ""), func(t *testing.T) {
				src := t.TempDir()
				if err := testtree.Build(src, n); errors.Is(err, os.ErrPermission) {
					t.Skip(err)
				} else if err != nil {
					t.Fatal(err)
				}
				image := filepath.Join(t.TempDir(), "image")
				if out, err := exec.Command(tool, append(c.options, "-T0", image, src)...).CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				f, err := os.Open(image)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				st, _ := f.Stat()
				im, err := erofs.Open(f, st.Size())
				if err != nil {
					t.Fatal(err)
				}
				mnt := mount(t, image)
				compare(t, "kernel", kernelFacts(t, mnt), "image", imageFacts(t, im))
				compareNumbers(t, mnt, im)
			})
		}
	}
}
