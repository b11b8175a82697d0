package testtree

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Trees is the number of trees that [Build] knows, numbered from 0.
const Trees = 10

var trees = [Trees]struct {
	name  string
	build func(*builder)
}{
	{"empty", empty},
	{"names", names},
	{"links", links},
	{"attributes", attributes},
	{"sparse", sparse},
	{"special files", special},
	{"owners and times", owners},
	{"sizes", sizes},
	{"wide", wide},
	{"deep", deep},
}

// Name returns a short name of a tree, such as "sparse".
func Name(n int) string { return trees[n].name }

// Build makes tree n, of [Trees], in the empty directory dir.
func Build(dir string, n int) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("an awkward tree has device nodes and owners, which need root: %w", fs.ErrPermission)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	b := &builder{err: new(error), fd: fd}
	trees[n].build(b)
	b.settle(fd, ".")
	b.times(".", b.usualTime("/"))
	if *b.err != nil {
		return fmt.Errorf("build the tree %q in %s: %w", Name(n), dir, *b.err)
	}
	return nil
}

// builder makes entries of one directory. All builders of a tree share the first
// error, and do nothing after it.
type builder struct {
	err  *error
	fd   int
	path string // relative to the tree's root, for messages and usual times
}

func (b *builder) check(op, name string, err error) {
	if err != nil && *b.err == nil {
		*b.err = fmt.Errorf("%s %q: %w", op, b.path+name, err)
	}
}

func (b *builder) ok() bool { return *b.err == nil }

// proc returns a path of an entry for calls that take no directory descriptor.
func (b *builder) proc(name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", b.fd, name) }

// dir makes a directory and its entries.
func (b *builder) dir(name string, mode uint32, fill func(*builder)) {
	if !b.ok() {
		return
	}
	b.check("mkdir", name, unix.Mkdirat(b.fd, name, 0o700))
	fd, err := unix.Openat(b.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	b.check("open", name, err)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	in := &builder{err: b.err, fd: fd, path: b.path + name + "/"}
	if fill != nil {
		fill(in)
	}
	b.check("chmod", name, unix.Fchmod(fd, mode))
}

// write makes a file of size bytes that begins with data and ends with a hole.
func (b *builder) write(name string, mode uint32, data []byte, size int64) {
	b.pieces(name, mode, size, map[int64][]byte{0: data})
}

// pieces makes a file of size bytes with data at some offsets and holes between.
func (b *builder) pieces(name string, mode uint32, size int64, data map[int64][]byte) {
	if !b.ok() {
		return
	}
	fd, err := unix.Openat(b.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	b.check("create", name, err)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), b.path+name)
	defer f.Close()
	for off, d := range data {
		_, err := f.WriteAt(d, off)
		b.check("write", name, err)
	}
	b.check("truncate", name, f.Truncate(size))
	b.check("chmod", name, unix.Fchmod(fd, mode))
}

func (b *builder) file(name string, data []byte) { b.write(name, 0o644, data, int64(len(data))) }

func (b *builder) symlink(target, name string) {
	b.check("symlink", name, unix.Symlinkat(target, b.fd, name))
}

func (b *builder) node(name string, mode uint32, dev uint64) {
	b.check("mknod", name, unix.Mknodat(b.fd, name, mode, int(dev)))
	if b.ok() && mode&unix.S_IFMT != unix.S_IFLNK {
		b.check("chmod", name, unix.Fchmodat(b.fd, name, mode&0o7777, 0)) // whatever the umask
	}
}

// link makes a hard link of old, which may be in another directory.
func (b *builder) link(from *builder, old, name string) {
	b.check("link", name, unix.Linkat(from.fd, old, b.fd, name, 0))
}

func (b *builder) chown(name string, uid, gid int) {
	b.check("chown", name, unix.Fchownat(b.fd, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW))
}

func (b *builder) xattr(name, attr string, value []byte) {
	if b.ok() {
		b.check("set "+attr+" of", name, unix.Lsetxattr(b.proc(name), attr, value, 0))
	}
}

// times sets the time of modification of an entry. settle keeps it.
func (b *builder) times(name string, t unix.Timespec) {
	ts := []unix.Timespec{{Sec: 981173106}, t}
	b.check("set the time of", name, unix.UtimesNanoAt(b.fd, name, ts, unix.AT_SYMLINK_NOFOLLOW))
}

// usualTime returns the time of modification of an entry for which the tree set
// none. It follows from the path, and is never whole seconds.
func (b *builder) usualTime(name string) unix.Timespec {
	h := hash(b.path + name)
	return unix.Timespec{Sec: 1_000_000_000 + int64(h%500_000_000), Nsec: 1 + int64(h>>32%999_999_999)}
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// settle gives all entries below a directory their usual time, the deepest first,
// except entries for which the tree set a time: see chosen.
func (b *builder) settle(fd int, name string) {
	if !b.ok() {
		return
	}
	// Listing moves the position of a descriptor, so fd itself is not used.
	own, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	b.check("open", name, err)
	if err != nil {
		return
	}
	d := os.NewFile(uintptr(own), name)
	defer d.Close()
	list, err := d.Readdirnames(-1)
	b.check("list", name, err)
	here := &builder{err: b.err, fd: own, path: b.path}
	for _, e := range list {
		var st unix.Stat_t
		if err := unix.Fstatat(own, e, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			here.check("stat", e, err)
			return
		}
		fixed := chosen(&st)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			sub, err := unix.Openat(own, e, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			here.check("open", e, err)
			if err != nil {
				return
			}
			in := &builder{err: b.err, fd: sub, path: b.path + e + "/"}
			in.settle(sub, e)
			unix.Close(sub)
		}
		switch {
		case fixed:
			here.times(e, st.Mtim)
		case st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR:
			// All names of a file share one time.
			here.times(e, unix.Timespec{Sec: 1_400_000_000, Nsec: 5})
		default:
			here.times(e, here.usualTime(e))
		}
	}
}

// chosen reports whether the tree set the time of modification: it differs from the
// time of status change, which is always the clock's, by more than a day.
func chosen(st *unix.Stat_t) bool {
	d := st.Mtim.Sec - st.Ctim.Sec
	return d < -86400 || d > 86400
}

// noise returns n bytes that follow from a name and do not compress.
func noise(name string, n int) []byte {
	r := rand.New(rand.NewPCG(hash(name), 1))
	p := make([]byte, (n+7)&^7)
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], r.Uint64())
	}
	return p[:n]
}

func empty(b *builder) { b.check("chmod", ".", unix.Fchmod(b.fd, 0o1777)) }

func names(b *builder) {
	for _, n := range []string{
		" ", "  leading", "trailing ", "-rf", "--help", "...", ".hidden", "..a", "a", "a.b", "a-b", "a b", "A", "B", "aB",
		"new\nline", "tab\t", "bell\a", "\x01", "\x7f", "\xff", "\xc3\x28", "caf\u00e9", "cafe\u0301", "\u65e5\u672c",
		"\U0001f9ec", "back\\slash", "quote'\"`$", "star*?[x]", "%2e%2e", "semi;colon", "#", "~", "lost+found", "con", ".wh.gone",
		strings.Repeat("n", 255), strings.Repeat("\xc3\xa9", 127), strings.Repeat("n", 254), strings.Repeat("\n", 255),
	} {
		b.file(n, []byte("the name is "+n))
	}
	// By the bytes of whole paths a/x sorts after a-b and before a0.
	b.dir("a0", 0o755, func(b *builder) { b.file("x", nil) })
	b.dir("dir\nwith\nlines", 0o755, func(b *builder) { b.file("\n", []byte("\n")) })
	b.dir(strings.Repeat("d", 255), 0o755, func(b *builder) { b.file(strings.Repeat("f", 255), []byte("f")) })
}

func links(b *builder) {
	b.file("tiny", []byte("one of several names\n"))
	b.file("large", noise("large", 300_000))
	b.file("nothing", nil)
	for i := range 300 {
		b.link(b, "tiny", fmt.Sprintf("tiny%03d", i))
	}
	b.symlink("tiny", "to a file")
	b.symlink("/", "to the root")
	b.symlink("missing/../nowhere", "dangling")
	b.symlink("loop2", "loop1")
	b.symlink("loop1", "loop2")
	b.symlink(".", "itself")
	b.symlink("x", "short")
	b.symlink("../../../../../../etc/passwd", "outside")
	b.symlink("new\nline \xff", "odd target")
	for _, n := range []int{59, 60, 61, 255, 1023, 3000, 4000, 4030, 4095} {
		b.symlink(strings.Repeat("t", n), fmt.Sprintf("target of %d", n))
	}
	b.node("fifo", unix.S_IFIFO|0o640, 0)
	b.dir("other", 0o755, func(in *builder) {
		in.link(b, "large", "large")
		in.link(b, "nothing", "nothing")
		in.link(b, "dangling", "a hard link of a symbolic one")
		in.link(b, "fifo", "fifo")
		in.dir("deeper", 0o755, func(deep *builder) {
			deep.link(b, "tiny", "tiny")
			deep.file("copy", noise("large", 300_000)) // equal, but not a link
		})
	})
}

// acl returns a POSIX ACL as the kernel takes it in an extended attribute
// (linux/posix_acl_xattr.h): version 2, then tag, permissions and id of each.
func acl(entries ...[3]uint32) []byte {
	p := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range entries {
		p = binary.LittleEndian.AppendUint16(p, uint16(e[0]))
		p = binary.LittleEndian.AppendUint16(p, uint16(e[1]))
		p = binary.LittleEndian.AppendUint32(p, e[2])
	}
	return p
}

func attributes(b *builder) {
	const nobody = 0xffffffff
	access := acl([3]uint32{1, 6, nobody}, [3]uint32{2, 4, 1000}, [3]uint32{2, 7, 1001}, [3]uint32{4, 4, nobody},
		[3]uint32{8, 4, 50}, [3]uint32{16, 7, nobody}, [3]uint32{32, 0, nobody})
	b.file("plain", []byte("no attribute"))
	b.file("one", []byte("one"))
	b.xattr("one", "user.comment", []byte("sample 12"))
	b.file("empty value", nil)
	b.xattr("empty value", "user.empty", nil)
	b.file("binary value", nil)
	b.xattr("binary value", "user.binary", []byte("\x00\xff\x00\n"))
	b.file("large value", noise("v", 9000))
	b.xattr("large value", "user.large", noise("value", 2000))
	b.file("long name", nil)
	b.xattr("long name", "user."+strings.Repeat("n", 250), []byte("v"))
	b.file("many", []byte("many"))
	for i := range 40 {
		b.xattr("many", fmt.Sprintf("user.number.%02d", i), []byte{byte(i)})
	}
	b.file("acl", []byte("acl"))
	b.xattr("acl", "system.posix_acl_access", access)
	b.dir("directory", 0o750, func(b *builder) {
		for i := range 50 { // attributes that many share
			n := fmt.Sprintf("shared%02d", i)
			b.file(n, []byte(n))
			b.xattr(n, "user.shared", []byte(strings.Repeat("the same for all of them ", 8)))
		}
	})
	b.xattr("directory", "system.posix_acl_access", access)
	b.xattr("directory", "system.posix_acl_default", access)
	b.xattr("directory", "user.of.a.directory", []byte("yes"))
	b.xattr("directory", "trusted.overlay.opaque", []byte("y"))
	b.file("capable", []byte("#!/bin/true\n"))
	// VFS_CAP_REVISION_2 with cap_net_raw permitted and effective.
	b.xattr("capable", "security.capability", []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	b.symlink("plain", "link")
	b.xattr("link", "trusted.of.a.link", []byte("link"))
	b.node("fifo", unix.S_IFIFO|0o600, 0)
	b.xattr("fifo", "trusted.of.a.fifo", []byte("fifo"))
}

func sparse(b *builder) {
	const k = 1 << 10
	b.pieces("only a hole", 0o644, 70_000_001, nil)
	b.pieces("small hole", 0o644, 5000, nil)
	b.pieces("hole first", 0o644, 9*k*k, map[int64][]byte{8 * k * k: noise("hf", k*k)})
	b.pieces("hole last", 0o644, 9*k*k, map[int64][]byte{0: noise("hl", k*k)})
	b.pieces("hole between", 0o644, 70*k*k, map[int64][]byte{0: noise("hb", 100), 70*k*k - 100: noise("hb2", 100)})
	b.pieces("a byte far away", 0o644, 1<<26+1, map[int64][]byte{1 << 26: {7}})
	b.pieces("unaligned", 0o644, 3*k*k+17, map[int64][]byte{12345: noise("u", 70_001), 2*k*k + 1: noise("u2", 4097)})
	comb := map[int64][]byte{}
	for i := range int64(64) {
		comb[i*8*k] = noise(fmt.Sprint("comb", i), 4*k)
	}
	b.pieces("comb", 0o644, 512*k, comb)
	b.file("zeros that are data", make([]byte, 3*k*k+5))
	b.file("zeros amid", append(append(noise("z", 100_000), make([]byte, 700_000)...), noise("z2", 100_000)...))
}

func special(b *builder) {
	b.node("fifo", unix.S_IFIFO|0o644, 0)
	b.node("socket", unix.S_IFSOCK|0o755, 0)
	b.node("null", unix.S_IFCHR|0o666, unix.Mkdev(1, 3))
	b.node("whiteout", unix.S_IFCHR, unix.Mkdev(0, 0))
	b.node("large numbers", unix.S_IFCHR|0o600, unix.Mkdev(4095, 1048575))
	b.node("disk", unix.S_IFBLK|0o660, unix.Mkdev(259, 300))
	b.node("minor only", unix.S_IFBLK|0o660, unix.Mkdev(0, 256))
	for _, m := range []uint32{0, 0o111, 0o222, 0o444, 0o777, 0o1000, 0o2755, 0o4755, 0o7777} {
		b.write(fmt.Sprintf("mode %04o", m), m, []byte("x"), 1)
		b.dir(fmt.Sprintf("directory of mode %04o", m), m, func(b *builder) { b.file("inside", nil) })
	}
}

func owners(b *builder) {
	for i, id := range [][2]int{{0, 0}, {1, 2}, {1000, 1000}, {65534, 65535}, {65536, 70000}, {1 << 31, 1<<32 - 2}, {1<<32 - 2, 5}} {
		n := fmt.Sprintf("owner%d", i)
		b.file(n, []byte(n))
		b.chown(n, id[0], id[1])
		b.dir("dir"+n, 0o700, nil)
		b.chown("dir"+n, id[0], id[1])
		b.symlink(n, "link"+n)
		b.chown("link"+n, id[0], id[1])
	}
	for _, t := range []unix.Timespec{
		{Sec: 0, Nsec: 0}, {Sec: 0, Nsec: 1}, {Sec: -1, Nsec: 999_999_999}, {Sec: -2_000_000_000, Nsec: 7},
		{Sec: 1<<31 - 1, Nsec: 0}, {Sec: 1 << 32, Nsec: 123_456_789}, {Sec: 15_000_000_000, Nsec: 1},
		{Sec: 1_500_000_000, Nsec: 0}, {Sec: 1_500_000_000, Nsec: 999_999_999},
	} {
		n := fmt.Sprintf("time %d.%09d", t.Sec, t.Nsec)
		b.file(n, []byte(n))
		b.times(n, t)
		b.dir("directory of "+n, 0o755, func(b *builder) { b.file("inside", []byte("x")) })
		b.times("directory of "+n, t)
		b.symlink(n, "link of "+n)
		b.times("link of "+n, t)
	}
}

func sizes(b *builder) {
	const k = 1 << 10
	for _, n := range []int{
		0, 1, 2, 31, 32, 63, 64, 511, 512, 2048, 4000, 4031, 4032, 4063, 4064, 4065, 4095, 4096, 4097, 4128, 8191, 8192, 8193, 12 * k,
		64*k - 1, 64 * k, 64*k + 1, 128*k + 4095, 256 * k, k*k - 1, k * k, k*k + 1, 4*k*k - 1, 4 * k * k, 4*k*k + 123, 9 * k * k,
	} {
		b.file(fmt.Sprintf("noise%08d", n), noise(fmt.Sprint(n), n))
		b.file(fmt.Sprintf("text%08d", n), []byte(strings.Repeat("GATTACA\n", n/8+1)[:n]))
	}
	whole := noise("whole", 2*k*k)
	b.dir("same", 0o755, func(b *builder) {
		b.file("whole", whole)
		b.file("whole again", whole)
		b.file("a byte more in front", append([]byte{1}, whole...))
		b.file("a byte more behind", append(append([]byte{}, whole...), 1))
		b.file("a byte changed", func() []byte { w := append([]byte{}, whole...); w[k*k] ^= 1; return w }())
		for i := range 20 {
			b.file(fmt.Sprintf("small%02d", i), noise("small", 6000))
		}
	})
}

func wide(b *builder) {
	b.dir("many", 0o755, func(b *builder) {
		for i := range 1500 {
			n := fmt.Sprintf("%d-%s", i, strings.Repeat("w", i*7%100))
			switch i % 10 {
			case 0:
				b.symlink(n, "s"+n)
			case 1:
				b.file(n, noise(n, 5000+i))
			case 2:
				b.file(n, nil)
			default:
				b.file(n, []byte("file "+n))
			}
		}
	})
	b.dir("directories", 0o755, func(b *builder) {
		for i := range 300 {
			b.dir(fmt.Sprintf("d%03d", i), 0o755, func(b *builder) {
				b.file("x", []byte{byte(i)})
				if i%3 == 0 {
					b.dir("nothing", 0o700, nil)
				}
			})
		}
	})
}

func deep(b *builder) {
	var down func(b *builder, level int)
	down = func(b *builder, level int) {
		b.file("file", []byte(fmt.Sprint("level ", level)))
		if level < 90 { // with 60 bytes a level, more than PATH_MAX
			b.dir(strings.Repeat(fmt.Sprintf("%02d", level), 30), 0o755, func(b *builder) { down(b, level+1) })
		}
	}
	down(b, 0)
	var narrow func(b *builder, level int)
	narrow = func(b *builder, level int) {
		if level < 300 {
			b.dir("d", 0o755, func(b *builder) { narrow(b, level+1) })
			return
		}
		b.file("bottom", noise("bottom", 100_000))
	}
	b.dir("narrow", 0o755, func(b *builder) { narrow(b, 0) })
}
