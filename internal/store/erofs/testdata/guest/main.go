// Guest is the first process of a User-Mode Linux. It mounts images that a Checker has
// accepted, and reports those in which the kernel reads something else than premix, and
// every message of the kernel about them.
//
// The images are in /images: base images, and lists of changes of them. See guest_test.go.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"unsafe"
)

func main() {
	debug.SetGCPercent(1000) // memory that the process touches again is cheap
	if err := run(); err != nil {
		fmt.Println("GUEST failed:", err)
	}
	fmt.Println("GUEST end")
	syscall.Sync()
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	for _, dir := range []string{"/dev", "/mnt", "/proc"} {
		_ = os.Mkdir(dir, 0o755)
	}
	if err := syscall.Mount("dev", "/dev", "devtmpfs", 0, ""); err != nil {
		return fmt.Errorf("devtmpfs: %w", err)
	}
	modules, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, m := range modules {
		if err := load(m); err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
	}
	kmsg, err := syscall.Open("/dev/kmsg", syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	drain(kmsg)
	f, err := os.Open("/images/mutants")
	if err != nil {
		return err
	}
	in := bufio.NewReader(f)
	bases := map[uint32]*base{}
	done, bad := 0, 0
	for {
		var head [4]uint32 // base, changed bytes, CRC of the meaning, number
		if err := binary.Read(in, binary.LittleEndian, &head); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		b := bases[head[0]]
		if b == nil {
			if b, err = attach(int(head[0])); err != nil {
				return err
			}
			bases[head[0]] = b
		}
		changes := make([][2]uint32, head[1]) // offsets and bytes
		if err := binary.Read(in, binary.LittleEndian, changes); err != nil {
			return err
		}
		sum, text, err := b.look(changes)
		messages := drain(kmsg)
		if err != nil || sum != head[2] || messages != "" {
			if bad++; bad < 20 {
				fmt.Printf("GUEST bad mutant %d: error %v, meaning %08x not %08x, kernel %q\n%s\n", head[3], err, sum, head[2], messages, text)
			}
		}
		if done++; done%1000 == 0 {
			fmt.Println("GUEST at", done)
		}
	}
	fmt.Printf("GUEST done %d bad %d\n", done, bad)
	return nil
}

func load(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	empty := []byte{0}
	if _, _, no := syscall.Syscall(syscall.SYS_INIT_MODULE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&empty[0]))); no != 0 && no != syscall.EEXIST {
		return no
	}
	return nil
}

// drain returns the messages of the kernel since the last call that are not about
// successful mounts and the size of loop devices.
func drain(fd int) string {
	var all strings.Builder
	b := make([]byte, 8192)
	for {
		n, err := syscall.Read(fd, b)
		if err != nil {
			return all.String()
		}
		line, _, _ := strings.Cut(string(b[:n]), "\n")
		_, text, _ := strings.Cut(line, ";")
		if strings.HasPrefix(text, "hrtimer: ") || strings.HasPrefix(text, "clocksource: ") || strings.HasPrefix(text, "sched: ") || strings.HasPrefix(text, "set_capacity_and_notify: ") {
			continue // the machine below is slow, or loop devices change their sizes often
		}
		if !strings.Contains(text, "mounted with root inode") && !strings.Contains(text, "unmounted") && !strings.Contains(text, "detected capacity change") {
			fmt.Fprintln(&all, text)
		}
	}
}

// base is an image on a loop device, which stays there while mutants of it are mounted.
type base struct {
	path   string
	device *os.File
	image  []byte
}

// attach puts a base image on its loop device.
func attach(number int) (*base, error) {
	path := fmt.Sprintf("/images/base%d", number)
	b := &base{path: fmt.Sprintf("/dev/loop%d", number)}
	var err error
	if b.image, err = os.ReadFile(path); err != nil {
		return nil, err
	}
	image, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	if b.device, err = os.OpenFile(b.path, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	const setFD = 0x4c00
	if _, _, no := syscall.Syscall(syscall.SYS_IOCTL, b.device.Fd(), setFD, image.Fd()); no != 0 {
		return nil, fmt.Errorf("loop: %w", no)
	}
	return b, nil
}

// change writes bytes of the image, the changed ones or their former values.
func (b *base) change(changes [][2]uint32, back bool) error {
	for _, c := range changes {
		value := byte(c[1])
		if back {
			value = b.image[c[0]]
		}
		if _, err := b.device.WriteAt([]byte{value}, int64(c[0])); err != nil {
			return err
		}
	}
	return b.device.Sync()
}

// look mounts the image with changes and returns the sum of its meaning.
func (b *base) look(changes [][2]uint32) (sum uint32, text string, err error) {
	if err := b.change(changes, false); err != nil {
		return 0, "", err
	}
	defer func() {
		if failed := b.change(changes, true); err == nil {
			err = failed
		}
	}()
	if err := syscall.Mount(b.path, "/mnt", "erofs", syscall.MS_RDONLY, ""); err != nil {
		return 0, "", fmt.Errorf("mount: %w", err)
	}
	defer syscall.Unmount("/mnt", 0)
	var all strings.Builder
	err = walk(&all, "/mnt", ".")
	return crc32.ChecksumIEEE([]byte(all.String())), all.String(), err
}

// walk writes the same lines as the function meaning of the tests.
func walk(all *strings.Builder, full, p string) error {
	if _, err := call(syscall.SYS_LSTAT, text(&path, full), address(stat[:])); err != nil {
		return err
	}
	st := *(*syscall.Stat_t)(unsafe.Pointer(&stat))
	size, detail := st.Size, ""
	var names []string
	kind := st.Mode & syscall.S_IFMT
	switch kind {
	case syscall.S_IFLNK:
		n, err := call(syscall.SYS_READLINK, text(&path, full), address(content), uintptr(len(content)))
		if err != nil {
			return err
		}
		detail = string(content[:n])
	case syscall.S_IFREG:
		n, err := read(syscall.SYS_READ, full, content[:min(st.Size, int64(len(content)))])
		if err != nil {
			return err
		}
		detail = fmt.Sprintf("%08x", crc32.ChecksumIEEE(content[:n]))
	case syscall.S_IFDIR:
		n, err := read(syscall.SYS_GETDENTS64, full, content)
		if err != nil {
			return err
		}
		_, _, names = syscall.ParseDirent(content[:n], -1, nil)
		slices.Sort(names)
	default:
		size = 0
	}
	xattrs, err := attributes(full, kind == syscall.S_IFREG || kind == syscall.S_IFDIR)
	if err != nil {
		return err
	}
	rdev := uint64(0)
	if kind == syscall.S_IFCHR || kind == syscall.S_IFBLK {
		rdev = st.Rdev
	}
	fmt.Fprintf(all, "%q %o %d %d %d %d.%d %d %d %x %s\n", p, st.Mode, st.Nlink, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec, rdev, size, detail, xattrs)
	for _, name := range names {
		if err := walk(all, full+"/"+name, filepath.Join(p, name)); err != nil {
			return err
		}
	}
	return nil
}

// attributes returns a sum for each xattr. The kernel lists those of the namespace user
// of other inodes than files and directories, but does not give their values (xattr(7)).
func attributes(full string, user bool) (string, error) {
	n, err := call(syscall.SYS_LLISTXATTR, text(&path, full), address(list), uintptr(len(list)))
	if err != nil || n == 0 {
		return "", err
	}
	var all []string
	for name := range strings.SplitSeq(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		if !user && strings.HasPrefix(name, "user.") {
			continue
		}
		n, err := call(syscall.SYS_LGETXATTR, text(&path, full), text(&key, name), address(value), uintptr(len(value)))
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, fmt.Sprintf("%s=%08x/%d", name, crc32.ChecksumIEEE(value[:n]), n))
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}

// Buffers of the system calls of walk. They are global, so their addresses stay valid.
var (
	path, key [4096]byte
	stat      [unsafe.Sizeof(syscall.Stat_t{})]byte
	content   = make([]byte, 1<<18)
	list      = make([]byte, 1<<16)
	value     = make([]byte, 1<<16)
)

// text puts s into a buffer as a string of C and returns its address.
func text(buffer *[4096]byte, s string) uintptr {
	buffer[copy(buffer[:len(buffer)-1], s)] = 0
	return uintptr(unsafe.Pointer(buffer))
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// call makes a system call without notice to the Go scheduler. A call of User-Mode Linux takes
// tens of microseconds, and each would make the scheduler wake a second thread.
func call(trap uintptr, args ...uintptr) (int, error) {
	var a [4]uintptr
	copy(a[:], args)
	n, _, no := syscall.RawSyscall6(trap, a[0], a[1], a[2], a[3], 0, 0)
	if no != 0 {
		return 0, no
	}
	return int(n), nil
}

// read fills b from a file, or from a directory.
func read(trap uintptr, full string, b []byte) (n int, err error) {
	fd, err := call(syscall.SYS_OPEN, text(&path, full), syscall.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer call(syscall.SYS_CLOSE, uintptr(fd))
	for n < len(b) {
		m, err := call(trap, uintptr(fd), address(b[n:]), uintptr(len(b)-n))
		if err != nil {
			return n, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return n, nil
}
