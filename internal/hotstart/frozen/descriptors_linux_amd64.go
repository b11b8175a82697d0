package frozen

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/tracer"
)

// open is one descriptor as /proc shows it.
type open struct {
	fd     int
	target string
	st     unix.Stat_t
	flags  int
	pos    int64
	info   map[string][]string // lines of fdinfo by their names
}

func readDescriptors(pid int) ([]open, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []open
	for _, e := range entries {
		o := open{info: map[string][]string{}}
		if o.fd, err = strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if o.target, err = os.Readlink(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
		if err := unix.Stat(filepath.Join(dir, e.Name()), &o.st); err != nil {
			return nil, &os.PathError{Op: "stat", Path: o.target, Err: err}
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, o.fd))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(b)) {
			key, value, _ := strings.Cut(line, ":")
			o.info[key] = append(o.info[key], strings.TrimSpace(value))
		}
		flags, err := strconv.ParseInt(o.first("flags"), 8, 64)
		if err != nil {
			return nil, fmt.Errorf("flags of descriptor %d: %w", o.fd, err)
		}
		o.flags = int(flags)
		o.pos, _ = strconv.ParseInt(o.first("pos"), 10, 64)
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b open) int { return a.fd - b.fd })
	return all, nil
}

// first returns the value of the first line of fdinfo with the name key.
func (o *open) first(key string) string {
	if v := o.info[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// files reads the descriptors.
func (f *freezer) files() error {
	all, err := readDescriptors(f.p.Pid)
	if err != nil {
		return err
	}
	for i := range all {
		o := &all[i]
		if len(o.info["lock"]) > 0 {
			return refuse("it holds a lock on %s", o.target)
		}
		if o.flags&unix.O_ASYNC != 0 {
			return refuse("it is sent signals for descriptor %d (%s)", o.fd, o.target)
		}
		if kept, err := f.inherits(o); err != nil {
			return err
		} else if kept {
			f.im.Files = append(f.im.Files, File{FD: o.fd, Kind: FileInherited, Flags: o.flags & unix.O_CLOEXEC})
			continue
		}
		of := -1
		for _, e := range all[:i] {
			same, err := f.same(e, *o)
			if err != nil {
				return err
			}
			if same {
				of = e.fd
				break
			}
		}
		if of >= 0 {
			f.im.Files = append(f.im.Files, File{FD: o.fd, Kind: FileDup, Of: of, Flags: o.flags})
			continue
		}
		if o.st.Nlink == 0 && o.st.Mode&unix.S_IFMT == unix.S_IFREG && slices.ContainsFunc(all[:i], func(e open) bool { return e.st.Ino == o.st.Ino && e.st.Dev == o.st.Dev && e.target == o.target }) {
			return refuse("it has opened a file without a name several times: descriptor %d (%s)", o.fd, o.target)
		}
		file, err := f.file(o, all)
		if err != nil {
			return err
		}
		f.im.Files = append(f.im.Files, file)
	}
	return nil
}

// inherits reports whether a process inherited a descriptor when it was started.
func (f *freezer) inherits(o *open) (bool, error) {
	if !slices.Contains(f.inherited, o.fd) {
		return false, nil
	}
	i := slices.IndexFunc(f.base.files, func(b open) bool { return b.fd == o.fd })
	if i < 0 {
		return false, nil
	}
	b := &f.base.files[i]
	if b.st.Ino != o.st.Ino || b.st.Dev != o.st.Dev || b.target != o.target {
		return false, nil
	}
	if o.flags&^unix.O_CLOEXEC != b.flags&^unix.O_CLOEXEC {
		return false, refuse("it has changed the flags of descriptor %d", o.fd)
	}
	return true, nil
}

// same reports whether two descriptors refer to one open file, and so share its offset.
func (f *freezer) same(a, b open) (bool, error) {
	if a.st.Ino != b.st.Ino || a.st.Dev != b.st.Dev || a.flags&^unix.O_CLOEXEC != b.flags&^unix.O_CLOEXEC || a.target != b.target {
		return false, nil
	}
	const file = 0 // KCMP_FILE
	return kcmp(f.p.Pid, f.p.Pid, file, uintptr(a.fd), uintptr(b.fd))
}

// harmless are devices that have no state.
var harmless = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}

func (f *freezer) file(o *open, all []open) (File, error) {
	file := File{FD: o.fd, Flags: o.flags, Path: o.target}
	name := fmt.Sprintf("descriptor %d (%s)", o.fd, o.target)
	if rest, ok := strings.CutPrefix(o.target, f.im.Dir+"/"); ok {
		file.Path, file.Inside = rest, true
	} else if o.target == f.im.Dir {
		file.Path, file.Inside = ".", true
	}
	kind := o.st.Mode & unix.S_IFMT
	switch {
	case strings.HasPrefix(o.target, "/proc/") || strings.HasPrefix(o.target, "/sys/"):
		return file, refuse("it has opened a file of the kernel: %s", name)
	case kind == unix.S_IFREG && o.first("QSIZE") != "":
		return file, refuse("it has opened a message queue: %s", name)
	case kind == unix.S_IFREG && tracer.RandomFile(o.target) != "":
		file.Path, file.Flags = tracer.RandomFile(o.target), o.flags&^unix.O_ACCMODE
		return file, nil
	case kind == unix.S_IFREG && strings.HasPrefix(o.target, "/memfd:"):
		return file, refuse("it has opened a memfd: %s", name)
	case kind == unix.S_IFREG && strings.HasSuffix(o.target, " (deleted)"):
		return f.goneFile(file, o, name)
	case kind == unix.S_IFREG:
		if !file.Inside && !f.private && o.flags&unix.O_ACCMODE != unix.O_RDONLY {
			return file, refuse("it writes to a file outside of its directory: %s", name)
		}
		file.Regular, file.Offset = true, o.pos
		return file, nil
	case kind == unix.S_IFDIR:
		if o.pos != 0 {
			return file, refuse("it is reading a directory: %s", name)
		}
		return file, nil
	case kind == unix.S_IFCHR && slices.Contains(harmless, o.target):
		return file, nil
	case kind == unix.S_IFCHR:
		return file, refuse("it has opened a device or a terminal: %s", name)
	case kind == unix.S_IFIFO && file.Inside:
		return file, nil
	case kind == unix.S_IFIFO && strings.HasPrefix(o.target, "pipe:"):
		return f.pipe(file, o, all, name)
	case kind == unix.S_IFSOCK:
		return f.socket(file, o, name)
	case o.target == "anon_inode:[eventfd]":
		return f.event(file, o)
	case o.target == "anon_inode:[eventpoll]":
		return f.epoll(file, o, all)
	case o.target == "anon_inode:[timerfd]":
		return f.timer(file, o, name)
	case o.target == "anon_inode:[signalfd]":
		var err error
		file.Kind = FileSignal
		file.Mask, err = strconv.ParseUint(o.first("sigmask"), 16, 64)
		return file, err
	}
	return file, refuse("it has opened a file of a kind that cannot be restored: %s", name)
}

// goneLimit is the size up to which a file without a name is kept, bytes.
const goneLimit = 64 << 20

// goneFile keeps a regular file that has no name any more, as tmpfile(3) makes it.
func (f *freezer) goneFile(file File, o *open, name string) (File, error) {
	if o.st.Nlink != 0 {
		return file, refuse("it has opened a file under a name that has been deleted since: %s", name)
	}
	if o.st.Size > goneLimit {
		return file, refuse("it has opened a large file that has been deleted: %s", name)
	}
	in, err := os.Open(f.proc(fmt.Sprintf("fd/%d", o.fd)))
	if err != nil {
		return file, err
	}
	defer in.Close()
	file.Content = make([]byte, o.st.Size)
	if len(file.Content) > 0 {
		if _, err := in.ReadAt(file.Content, 0); err != nil {
			return file, fmt.Errorf("read %s: %w", name, err)
		}
	}
	file.Kind, file.Offset, file.Inside, file.Mode = FileGone, o.pos, false, o.st.Mode&0o7777
	file.Path = filepath.Dir(strings.TrimSuffix(o.target, " (deleted)"))
	if rest, ok := strings.CutPrefix(file.Path+"/", f.im.Dir+"/"); ok {
		file.Path, file.Inside = "./"+rest, true
	}
	return file, nil
}

// pipe keeps one end of a pipe. It refuses a pipe unless both ends are in this process,
// and only in this process.
func (f *freezer) pipe(file File, o *open, all []open, name string) (File, error) {
	reader, writer := -1, -1
	for _, e := range all {
		if e.st.Ino != o.st.Ino || e.target != o.target {
			continue
		}
		end := &reader
		switch e.flags & unix.O_ACCMODE {
		case unix.O_WRONLY:
			end = &writer
		case unix.O_RDWR:
			return file, refuse("it has opened both ends of a pipe at once: %s", name)
		}
		if *end < 0 {
			*end = e.fd
			continue
		}
		first := all[slices.IndexFunc(all, func(a open) bool { return a.fd == *end })]
		if same, err := f.same(first, e); err != nil {
			return file, err
		} else if !same {
			return file, refuse("it has opened one end of a pipe several times: %s", name)
		}
	}
	if reader < 0 || writer < 0 {
		return file, refuse("it has one end of a pipe and not the other: %s", name)
	}
	file.Kind, file.Of, file.Path = FilePipe, reader, "" // which names the inode
	in, err := os.OpenFile(f.proc(fmt.Sprintf("fd/%d", reader)), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return file, err
	}
	defer in.Close()
	waiting, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCINQ)
	if err != nil {
		return file, fmt.Errorf("get the number of bytes in %s: %w", name, err)
	}
	if file.Size, err = unix.FcntlInt(in.Fd(), unix.F_GETPIPE_SZ, 0); err != nil || waiting == 0 || o.fd != reader {
		return file, err
	}
	parts, err := peekPipe(in, waiting, file.Size)
	if errors.Is(err, errPacket) {
		return file, refuse("it has written packets to a pipe that it has not read yet: %s", name)
	}
	if err != nil {
		return file, err
	}
	file.Content = bytes.Join(parts, nil)
	if slices.ContainsFunc(parts[:len(parts)-1], func(b []byte) bool { return len(b) != pageSize }) || len(parts[len(parts)-1]) > pageSize {
		return file, refuse("the room in one of its pipes cannot be restored: %s", name)
	}
	if f.like != nil {
		return file, nil // it is compared, and not started
	}
	room, err := f.roomAtEnd(in, writer, parts, file.Size)
	if err == nil && !room {
		err = refuse("the room in one of its pipes cannot be restored: %s", name)
	}
	return file, err
}

// errPacket is the error of peekPipe for a pipe with a packet (O_DIRECT in pipe(2)).
var errPacket = errors.New("the pipe has a packet")

// peekPipe returns the bytes in a pipe, and leaves them there. Each part has the bytes of one of
// the pipe's buffers.
func peekPipe(in *os.File, waiting, size int) (parts [][]byte, err error) {
	var pipes [2][2]int // a copy, and a pipe with a single buffer
	for i, size := range []int{size, pageSize} {
		if err := unix.Pipe2(pipes[i][:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return nil, os.NewSyscallError("pipe2", err)
		}
		defer unix.Close(pipes[i][0])
		defer unix.Close(pipes[i][1])
		if _, err := unix.FcntlInt(uintptr(pipes[i][1]), unix.F_SETPIPE_SZ, size); err != nil {
			return nil, os.NewSyscallError("set the size of a pipe", err)
		}
	}
	n, err := unix.Tee(int(in.Fd()), pipes[0][1], waiting, unix.SPLICE_F_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("tee", err)
	}
	if int(n) != waiting {
		return nil, fmt.Errorf("copied %d of %d bytes in a pipe", n, waiting)
	}
	for left := waiting; left > 0; {
		n, err := unix.Splice(pipes[0][0], nil, pipes[1][1], nil, left, unix.SPLICE_F_NONBLOCK)
		if err != nil {
			return nil, os.NewSyscallError("splice", err)
		}
		b := make([]byte, n)
		// A read that leaves a byte of a packet discards this byte.
		for _, part := range [][]byte{b[:n-1], b[n-1:]} {
			if len(part) == 0 {
				continue
			}
			read, err := unix.Read(pipes[1][0], part)
			if err == unix.EAGAIN {
				return nil, errPacket
			}
			if err != nil || read != len(part) {
				return nil, fmt.Errorf("read %d of %d bytes in a pipe: %v", read, len(part), err)
			}
		}
		parts, left = append(parts, b), left-len(b)
	}
	return parts, nil
}

// roomAtEnd reports whether a write to a pipe fills the page of its last buffer, as it does in a
// pipe that was written at once: the process may have read the first bytes of that page, or have
// written a packet of one byte. The bytes of the test stay in the pipe, so the process cannot go on, or else
// roomAtEnd only knows that a full buffer has no room.
func (f *freezer) roomAtEnd(in *os.File, writer int, parts [][]byte, size int) (bool, error) {
	last := parts[len(parts)-1]
	if len(last) == pageSize || !f.ends {
		return len(last) == pageSize, nil
	}
	out, err := unix.Open(f.proc(fmt.Sprintf("fd/%d", writer)), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(out)
	n, err := unix.Write(out, make([]byte, pageSize-len(last)))
	if err != nil {
		return false, nil // there is no room
	}
	now, err := peekPipe(in, len(bytes.Join(parts, nil))+n, size)
	return len(now) == len(parts), err
}

func (f *freezer) event(file File, o *open) (File, error) {
	var err error
	file.Kind = FileEvent
	if file.Count, err = strconv.ParseUint(o.first("eventfd-count"), 16, 64); err != nil {
		return file, err
	}
	if _, shown := o.info["eventfd-semaphore"]; shown {
		file.Size, err = strconv.Atoi(o.first("eventfd-semaphore"))
		return file, err
	}
	file.Size, err = f.semaphore(o.fd, file.Count)
	return file, err
}

// semaphore returns 1 if an eventfd(2) with the given count is a semaphore, and 0 if it
// is not, on a kernel that does not show this. It adds 2 and reads once: only a semaphore
// returns 1. Then it restores the count.
func (f *freezer) semaphore(fd int, count uint64) (int, error) {
	if count >= 1<<63 {
		return 0, refuse("it has an eventfd with a large count (descriptor %d)", fd)
	}
	var l list
	value := l.bytes(binary.LittleEndian.AppendUint64(nil, 2))
	l.add("write to an eventfd", 8, unix.SYS_WRITE, uint64(fd), value, 8)
	l.add("read from an eventfd", 8, unix.SYS_READ, uint64(fd), value, 8)
	data, err := l.execute(f.p, f.p.Threads[0])
	if err != nil {
		return 0, err
	}
	var back list
	if binary.LittleEndian.Uint64(data) == 1 {
		back.add("read from an eventfd", 8, unix.SYS_READ, uint64(fd), back.space(8), 8)
		_, err = back.execute(f.p, f.p.Threads[0])
		return 1, err
	}
	if count > 0 {
		back.add("write to an eventfd", 8, unix.SYS_WRITE, uint64(fd), back.bytes(binary.LittleEndian.AppendUint64(nil, count)), 8)
		_, err = back.execute(f.p, f.p.Threads[0])
	}
	return 0, err
}

// epoll keeps a set of watched descriptors (proc_pid_fdinfo(5)).
func (f *freezer) epoll(file File, _ *open, all []open) (File, error) {
	file.Kind = FileEpoll
	b, err := os.ReadFile(f.proc(fmt.Sprintf("fdinfo/%d", file.FD)))
	if err != nil {
		return file, err
	}
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "tfd:") {
			continue
		}
		var w Watch
		if _, err := fmt.Sscanf(line, "tfd: %d events: %x data: %x", &w.FD, &w.Events, &w.Data); err != nil {
			return file, fmt.Errorf("fdinfo of descriptor %d: %w", file.FD, err)
		}
		if !slices.ContainsFunc(all, func(o open) bool { return o.fd == w.FD }) {
			return file, refuse("it watches a file that it has closed (descriptor %d)", file.FD)
		}
		const epollTarget = 7 // KCMP_EPOLL_TFD
		slot := [3]uint32{uint32(file.FD), uint32(w.FD), 0}
		same, err := kcmp(f.p.Pid, f.p.Pid, epollTarget, uintptr(w.FD), uintptr(unsafe.Pointer(&slot)))
		if errors.Is(err, unix.ENOENT) || err == nil && !same {
			return file, refuse("it watches a file that it has closed (descriptor %d)", file.FD)
		}
		if err != nil {
			return file, err
		}
		if w.Events&(unix.EPOLLET|unix.EPOLLONESHOT) != 0 {
			if w.Events&^(unix.EPOLLET|unix.EPOLLONESHOT|unix.EPOLLWAKEUP|unix.EPOLLEXCLUSIVE) == 0 {
				return file, refuse("it watches a file for one event that has come (descriptor %d)", file.FD)
			}
			if w.Events&unix.EPOLLET != 0 && f.readyFor(w) {
				return file, refuse("it watches a file by edges, and the file is ready (descriptor %d)", file.FD)
			}
		}
		file.Watches = append(file.Watches, w)
	}
	return file, nil
}

// readyFor reports whether a watched descriptor has one of the events already.
func (f *freezer) readyFor(w Watch) bool {
	var l list
	b := binary.LittleEndian.AppendUint32(nil, uint32(w.FD)) // struct pollfd
	b = binary.LittleEndian.AppendUint32(b, w.Events&0xffff)
	l.add("poll", anyResult, unix.SYS_POLL, l.bytes(b), 1, 0)
	results, _, err := l.results(f.p, f.p.Threads[0])
	return err != nil || results[0] != 0
}

// timer keeps a timer descriptor with the time that is left.
func (f *freezer) timer(file File, o *open, name string) (File, error) {
	file.Kind = FileTimer
	var err error
	if file.Clock, err = strconv.Atoi(o.first("clockid")); err != nil {
		return file, err
	}
	if o.first("ticks") != "0" {
		return file, refuse("a timer has expired that it has not read yet: %s", name)
	}
	for i, key := range []string{"it_interval", "it_value"} {
		var sec, nsec uint64
		if _, err := fmt.Sscanf(o.first(key), "(%d, %d)", &sec, &nsec); err != nil {
			return file, fmt.Errorf("fdinfo of descriptor %d: %w", file.FD, err)
		}
		binary.LittleEndian.PutUint64(file.Value[16*i:], sec)
		binary.LittleEndian.PutUint64(file.Value[16*i+8:], nsec)
	}
	return file, nil
}
