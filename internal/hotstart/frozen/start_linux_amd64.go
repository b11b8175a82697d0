package frozen

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/tracer"
)

// Options say where a process is started.
type Options struct {
	// Dir is the working directory, as the process sees it. It holds the files
	// that the frozen process had open below its own.
	Dir string
	// Random advises the kernel to read single pages of the page file.
	Random bool
	// Personality is set by personality(2), where Spawn has changed it; nil leaves it.
	Personality *uint64
	// Device is the device of the program's file, as the process sees it.
	Device uint64
	// Filter is the program of a seccomp filter to install, or nil.
	Filter []unix.SockFilter
	// Inherited are descriptors that the process inherits from the process that starts
	// it: Source.Inherited.
	Inherited []int
	// Children are the children that the process has made (Head.Children).
	Children []int
	// Pages is the descriptor of the page file in the process; 0 means 3.
	Pages int
}

// Start turns p into the frozen process. p must execute the program of the frozen process
// and be held at its first instruction. It must have exactly these descriptors: those in
// Options.Inherited, the null device at the rest of 0 to 2, and the page file at
// Options.Pages. p stays held, with the filter of Options installed. After an error the
// caller must kill p.
func (im *Image) Start(p *tracer.Proc, opt Options) error {
	if opt.Pages == 0 {
		opt.Pages = pagesFD
	}
	s := &starter{im: im, p: p, opt: opt}
	return s.start()
}

// pagesFD is the descriptor of the page file in a process that is to be turned
// into a frozen one. The numbers below lead to the null device.
const pagesFD = 3

// Spawn executes the program of a frozen process in dir, with the descriptors
// that Start expects, and holds it at its first instruction. It returns the
// personality for Options.
func (im *Image) Spawn(dir string, pages *os.File, attr *syscall.SysProcAttr) (*tracer.Proc, uint64, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, 0, err
	}
	defer null.Close()
	return tracer.Spawn(im.Exe, im.Argv, &os.ProcAttr{Dir: dir, Env: im.Env, Files: []*os.File{null, null, null, pages}, Sys: attr})
}

type starter struct {
	im  *Image
	p   *tracer.Proc
	opt Options

	l      list
	region uint64
	fds    []bool // descriptors that are in use
}

const (
	addressMin = 0x10000
	addressEnd = 0x7ffffffff000 // TASK_SIZE with four levels of page tables
)

func (s *starter) start() error {
	now, err := readLayout(s.p.Pid)
	if err != nil {
		return err
	}
	var vdso Range
	var vvar []Range
	for _, m := range now {
		switch {
		case m.path == "[vdso]":
			vdso = m.Range
		case strings.HasPrefix(m.path, "[vvar"):
			vvar = append(vvar, m.Range)
		}
	}
	want := &s.im.Memory
	if vdso.Size() != want.VDSO.Size() || len(vvar) != len(want.VVAR) {
		return errors.New("the kernel maps another vDSO than when the process was frozen")
	}
	insn, err := s.p.Instruction()
	if err != nil {
		return err
	}

	// The calls do not depend on where the region is, but its size on them.
	if err := s.build(vdso, vvar, Range{addressMin, addressMin}, addressMin); err != nil {
		return err
	}
	var taken []Range
	for _, m := range now {
		taken = append(taken, m.Range)
	}
	for _, v := range s.im.Maps {
		taken = append(taken, v.Range)
	}
	taken = append(append(taken, want.VDSO), want.VVAR...)
	size := s.l.size() + pageSize // the region may divide one more range that is unmapped
	var aside uint64
	if s.region, err = gap(taken, size); err != nil {
		return err
	}
	taken = append(taken, Range{s.region, s.region + size})
	if aside, err = gap(taken, 1<<20); err != nil {
		return err
	}
	s.l = list{}
	if err := s.build(vdso, vvar, Range{s.region, s.region + size}, aside); err != nil {
		return err
	}
	if at, err := s.p.Syscall(unix.SYS_MMAP, s.region, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, ^uint64(0), 0); err != nil || at != s.region {
		return fmt.Errorf("map %d bytes at %#x: %w", size, s.region, err)
	}
	if err := s.l.place(s.p, s.region); err != nil {
		return err
	}
	s.p.SetInstruction(insn - vdso.Start + want.VDSO.Start)
	leader := s.p.Threads[0]
	made, err := s.l.run(s.p, leader, s.region)
	if err != nil {
		return err
	}
	if len(made) != len(s.im.Threads)-1 {
		return fmt.Errorf("%d threads were made instead of %d", len(made), len(s.im.Threads)-1)
	}
	return s.finish(append([]int{leader}, made...), size)
}

// gap returns a free range of the given size between the taken ranges.
func gap(taken []Range, size uint64) (uint64, error) {
	sorted := slices.Clone(taken)
	slices.SortFunc(sorted, func(a, b Range) int {
		if a.Start < b.Start {
			return -1
		}
		return 1
	})
	at := uint64(addressMin)
	for _, r := range sorted {
		// A page stays free on either side: the kernel would merge, and a stack
		// that grows needs room.
		if r.Start > at+pageSize && r.Start-at-pageSize >= size+2*pageSize {
			return at + pageSize, nil
		}
		at = max(at, r.End)
	}
	return 0, errors.New("the address space has no room for the restorer")
}

const fixed = unix.MAP_PRIVATE | unix.MAP_FIXED

var cwd int64 = unix.AT_FDCWD

// build makes the list of calls that the leader executes.
func (s *starter) build(vdso Range, vvar []Range, region Range, aside uint64) error {
	l := &s.l
	s.fds = nil
	for _, fd := range append([]int{0, 1, 2, s.opt.Pages}, s.opt.Inherited...) {
		s.useFD(fd)
	}
	s.clear(vdso, vvar, region)
	s.moveVDSO(vdso, vvar, aside)
	s.limits(true)
	s.memory()
	s.layout()
	l.add("chdir to "+s.opt.Dir, 0, unix.SYS_CHDIR, l.str(s.opt.Dir))
	if err := s.files(); err != nil {
		return err
	}
	l.add("set umask", anyResult, unix.SYS_UMASK, uint64(s.im.Umask))
	for _, a := range s.im.Actions {
		l.add(fmt.Sprintf("set the action of signal %d", a.Signal), 0, unix.SYS_RT_SIGACTION, uint64(a.Signal), l.bytes(a.Raw[:]), 0, 8)
	}
	if s.im.Subreaper {
		l.add("become a subreaper", 0, unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, 1)
	}
	if s.im.NoNewPrivs || s.opt.Filter != nil {
		l.add("give up new privileges", 0, unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if s.opt.Personality != nil {
		l.add("set personality", anyResult, unix.SYS_PERSONALITY, *s.opt.Personality)
	}
	for i := range s.im.Threads {
		if i == 0 {
			continue
		}
		const flags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
			unix.CLONE_SYSVSEM | unix.CLONE_CHILD_CLEARTID | unix.CLONE_CHILD_SETTID
		l.add("make a thread", anyResult, unix.SYS_CLONE, flags, 0, 0, s.im.Threads[i].TidAddress, 0)
	}
	s.limits(false)
	if s.im.LockFuture {
		l.add("lock memory", 0, unix.SYS_MLOCKALL, unix.MCL_FUTURE)
	}
	for _, t := range s.im.Timers {
		l.add("set interval timer", 0, unix.SYS_SETITIMER, uint64(t.Which), l.bytes(t.Raw[:]), 0)
	}
	s.thread(l, 0)
	if s.opt.Filter != nil {
		l.add("install the memory guard", 0, unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, s.filter())
	}
	return nil
}

// limits sets the limits that the process has raised, or with false the limits that it
// has lowered. The raised limits come first: the restored state may exceed the old limits.
func (s *starter) limits(raised bool) {
	for _, lim := range s.im.Limits {
		if lim.Raised == raised {
			b := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, lim.Cur), lim.Max)
			s.l.add(fmt.Sprintf("set limit %d", lim.Resource), 0, unix.SYS_PRLIMIT64, 0, uint64(lim.Resource), s.l.bytes(b), 0)
		}
	}
}

// filter puts the filter into the list's data: struct sock_fprog has a pointer
// to the instructions, which is known only where the region is.
func (s *starter) filter() uint64 {
	var insns []byte
	for _, f := range s.opt.Filter {
		insns = binary.LittleEndian.AppendUint16(insns, f.Code)
		insns = append(insns, f.Jt, f.Jf)
		insns = binary.LittleEndian.AppendUint32(insns, f.K)
	}
	at := s.l.bytes(insns)
	var head [16]byte
	binary.LittleEndian.PutUint16(head[:], uint16(len(s.opt.Filter)))
	arg := s.l.bytes(head[:])
	s.l.pointers = append(s.l.pointers, pointer{at: arg&^(0xffff<<48) + 8, to: at &^ (0xffff << 48)})
	return arg
}

// clear unmaps everything but vdso, vvar and the region.
func (s *starter) clear(vdso Range, vvar []Range, region Range) {
	keep := append([]Range{vdso, region}, vvar...)
	slices.SortFunc(keep, func(a, b Range) int {
		if a.Start < b.Start {
			return -1
		}
		return 1
	})
	at := uint64(addressMin)
	for _, r := range append(keep, Range{addressEnd, addressEnd}) {
		if r.Start > at {
			s.l.add("unmap the program", 0, unix.SYS_MUNMAP, at, r.Start-at)
		}
		at = max(at, r.End)
	}
}

// moveVDSO moves vvar and vdso to their addresses in the frozen process. It moves them to
// aside first, since the old and the new ranges may overlap.
func (s *starter) moveVDSO(vdso Range, vvar []Range, aside uint64) {
	want := &s.im.Memory
	if vdso == want.VDSO && slices.Equal(vvar, want.VVAR) {
		return
	}
	move := func(from, size, to uint64) {
		s.l.add("move the vDSO", to, unix.SYS_MREMAP, from, size, size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to)
	}
	at := aside
	for _, r := range vvar {
		move(r.Start, r.Size(), at)
		at += r.Size()
	}
	move(vdso.Start, vdso.Size(), at)
	at = aside
	for i, r := range vvar {
		move(at, r.Size(), want.VVAR[i].Start)
		at += r.Size()
	}
	move(at, vdso.Size(), want.VDSO.Start)
}

// openFD returns the number of the next descriptor: the lowest free number.
func (s *starter) openFD() uint64 {
	i := slices.Index(s.fds, false)
	if i < 0 {
		s.fds = append(s.fds, false)
		i = len(s.fds) - 1
	}
	s.fds[i] = true
	return uint64(i)
}

func (s *starter) closeFD(fd uint64) {
	s.l.add("close", 0, unix.SYS_CLOSE, fd)
	s.fds[fd] = false
}

// useFD notes that a descriptor is open.
func (s *starter) useFD(fd int) {
	for len(s.fds) <= fd {
		s.fds = append(s.fds, false)
	}
	s.fds[fd] = true
}

// memory maps all VMAs.
func (s *starter) memory() {
	l := &s.l
	pages := uint64(s.opt.Pages)
	last, lastFD := "", uint64(0)
	for i := range s.im.Maps {
		v := &s.im.Maps[i]
		name := fmt.Sprintf("map %#x-%#x %s", v.Start, v.End, v.Path)
		prot, n := uint64(v.Prot), v.Size()
		through := prot // while contents are copied into it
		if len(v.Data) > 0 && v.Kind != KindPaged {
			through |= unix.PROT_WRITE
		}
		switch v.Kind {
		case KindPaged:
			l.add(name, v.Start, unix.SYS_MMAP, v.Start, n, prot, fixed|reserve(v), pages, uint64(v.Page))
			if s.opt.Random {
				l.add("advise random access", 0, unix.SYS_MADVISE, v.Start, n, unix.MADV_RANDOM)
			}
		case KindFile:
			if last != v.Path {
				if last != "" {
					s.closeFD(lastFD)
				}
				lastFD, last = s.openFD(), v.Path
				l.add("open "+v.Path, lastFD, unix.SYS_OPENAT, uint64(cwd), l.str(v.Path), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			}
			flags := uint64(fixed)
			if v.Shared {
				flags = unix.MAP_SHARED | unix.MAP_FIXED
			}
			l.add(name, v.Start, unix.SYS_MMAP, v.Start, n, through, flags|reserve(v), lastFD, uint64(v.Offset))
		case KindShared:
			if i == 0 || s.im.Maps[i-1].Kind != KindShared || s.im.Maps[i-1].Inode != v.Inode {
				end := v.End // of the mappings of this object, which lie side by side
				for _, next := range s.im.Maps[i+1:] {
					if next.Kind != KindShared || next.Inode != v.Inode {
						break
					}
					end = next.End
				}
				l.add(name, v.Start, unix.SYS_MMAP, v.Start, end-v.Start, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_FIXED, ^uint64(0), 0)
			}
			through = unix.PROT_READ | unix.PROT_WRITE
		default:
			flags := fixed | unix.MAP_ANONYMOUS | reserve(v)
			if v.Grows {
				flags |= unix.MAP_GROWSDOWN
			}
			l.add(name, v.Start, unix.SYS_MMAP, v.Start, n, through, flags, ^uint64(0), 0)
		}
		if v.Kind != KindPaged {
			for _, e := range v.Data {
				l.add("copy to "+name, uint64(e.Size), unix.SYS_PREAD64, pages, v.Start+uint64(e.Offset), uint64(e.Size), uint64(v.Page+e.Offset))
			}
		}
		if through != prot {
			l.add("protect "+name, 0, unix.SYS_MPROTECT, v.Start, n, prot)
		}
		for _, e := range v.Guards {
			const guardInstall = 102 // MADV_GUARD_INSTALL
			l.add("install guard pages in "+name, 0, unix.SYS_MADVISE, v.Start+uint64(e.Offset), uint64(e.Size), guardInstall)
		}
		for _, advice := range v.Advice {
			l.add("advise on "+name, 0, unix.SYS_MADVISE, v.Start, n, uint64(advice))
		}
		if v.Locked {
			// What was in memory is. The rest may not be readable.
			const onFault = 1 // MLOCK_ONFAULT
			l.add("lock "+name, 0, unix.SYS_MLOCK2, v.Start, n, onFault)
		}
	}
	if last != "" {
		s.closeFD(lastFD)
	}
	s.closeFD(pages)
}

func reserve(v *VMA) uint64 {
	if v.Reserves {
		return 0
	}
	return unix.MAP_NORESERVE
}

// layout sets the kernel's addresses of code, heap, stack, arguments and environment.
func (s *starter) layout() {
	m, l := &s.im.Memory, &s.l
	var b []byte // struct prctl_mm_map
	for _, v := range []uint64{m.StartCode, m.EndCode, m.StartData, m.EndData, m.StartBrk, m.Brk, m.StartStack, m.ArgStart, m.ArgEnd, m.EnvStart, m.EnvEnd} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	auxv := l.bytes(m.Auxv)
	pointerAt := len(b)
	b = binary.LittleEndian.AppendUint64(b, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.Auxv)))
	b = binary.LittleEndian.AppendUint32(b, ^uint32(0)) // the program stays that which was executed
	arg := l.bytes(b)
	l.pointers = append(l.pointers, pointer{at: arg&^(0xffff<<48) + uint64(pointerAt), to: auxv &^ (0xffff << 48)})
	l.add("set the layout of memory", 0, unix.SYS_PRCTL, unix.PR_SET_MM, unix.PR_SET_MM_MAP, arg, uint64(len(b)), 0)
}

// once are flags of open(2) that only made the file.
const once = unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC

// place moves a descriptor that was just opened to its number.
func (s *starter) place(fd uint64, f *File) {
	if fd != uint64(f.FD) {
		s.l.add("dup3", uint64(f.FD), unix.SYS_DUP3, fd, uint64(f.FD), uint64(f.Flags&unix.O_CLOEXEC))
		s.closeFD(fd)
	}
	s.useFD(f.FD)
}

// files opens the descriptors.
func (s *starter) files() error {
	l := &s.l
	// The numbers 0 to 2 lead to the null device until they are replaced. What is
	// opened before must not take a number that is wanted later.
	for fd, open := range s.fds {
		if open && !slices.ContainsFunc(s.im.Files, func(f File) bool { return f.FD == fd }) {
			s.closeFD(uint64(fd))
		}
	}
	var epolls []*File
	pipes := map[int]bool{}
	for i := range s.im.Files {
		f := &s.im.Files[i]
		switch f.Kind {
		case FilePath:
			path := f.Path
			fd := s.openFD()
			l.add("open "+path, fd, unix.SYS_OPENAT, uint64(cwd), l.str(path), uint64(f.Flags&^once), 0)
			if f.Regular && f.Offset > 0 {
				l.add("seek in "+path, uint64(f.Offset), unix.SYS_LSEEK, fd, uint64(f.Offset), 0)
			}
			s.place(fd, f)
		case FileGone:
			fd := s.openFD()
			flags := f.Flags &^ once
			direct := flags&unix.O_TMPFILE == unix.O_TMPFILE // as the process itself made it
			if !direct {
				flags = unix.O_RDWR | unix.O_TMPFILE | unix.O_CLOEXEC
			}
			l.add("make a file without a name in "+f.Path, fd, unix.SYS_OPENAT, uint64(cwd), l.str(f.Path), uint64(flags), 0o600)
			if len(f.Content) > 0 {
				l.add("write a file without a name", uint64(len(f.Content)), unix.SYS_PWRITE64, fd, l.bytes(f.Content), uint64(len(f.Content)), 0)
			}
			l.add("set the permissions of a file without a name", 0, unix.SYS_FCHMOD, fd, uint64(f.Mode))
			if !direct {
				writable := fd
				fd = s.openFD()
				l.add("open a file without a name", fd, unix.SYS_OPENAT, uint64(cwd), l.str(fmt.Sprintf("/proc/self/fd/%d", writable)), uint64(f.Flags&^once), 0)
				s.closeFD(writable)
			}
			if f.Offset > 0 {
				l.add("seek in a file without a name", uint64(f.Offset), unix.SYS_LSEEK, fd, uint64(f.Offset), 0)
			}
			s.place(fd, f)
		case FileDup:
			// Duplicates come after the loop: the original may have a greater number.
		case FileInherited:
			if !slices.Contains(s.opt.Inherited, f.FD) {
				return fmt.Errorf("descriptor %d is not inherited", f.FD)
			}
			if f.Flags != 0 {
				l.add("close at the next program", 0, unix.SYS_FCNTL, uint64(f.FD), unix.F_SETFD, unix.FD_CLOEXEC)
			}
		case FilePipe:
			if pipes[f.Of] {
				break
			}
			pipes[f.Of] = true
			s.pipe(&s.im.Files[slices.IndexFunc(s.im.Files, func(e File) bool { return e.FD == f.Of })])
		case FileEvent:
			fd := s.openFD()
			l.add("eventfd", fd, unix.SYS_EVENTFD2, 0, uint64(f.Flags&(unix.O_CLOEXEC|unix.O_NONBLOCK)|f.Size))
			if f.Count > 0 {
				l.add("write to an eventfd", 8, unix.SYS_WRITE, fd, l.bytes(binary.LittleEndian.AppendUint64(nil, f.Count)), 8)
			}
			s.place(fd, f)
		case FileEpoll:
			fd := s.openFD()
			l.add("epoll_create", fd, unix.SYS_EPOLL_CREATE1, uint64(f.Flags&unix.O_CLOEXEC))
			s.place(fd, f)
			epolls = append(epolls, f)
		case FileTimer:
			fd := s.openFD()
			l.add("timerfd_create", fd, unix.SYS_TIMERFD_CREATE, uint64(f.Clock), uint64(f.Flags&(unix.O_CLOEXEC|unix.O_NONBLOCK)))
			if f.Value != [32]byte{} {
				l.add("timerfd_settime", 0, unix.SYS_TIMERFD_SETTIME, fd, 0, l.bytes(f.Value[:]), 0)
			}
			s.place(fd, f)
		case FileSignal:
			fd := s.openFD()
			mask := l.bytes(binary.LittleEndian.AppendUint64(nil, f.Mask))
			l.add("signalfd", fd, unix.SYS_SIGNALFD4, ^uint64(0), mask, 8, uint64(f.Flags&(unix.O_CLOEXEC|unix.O_NONBLOCK)))
			s.place(fd, f)
		case FileShut:
			fd, other := s.openFD(), s.openFD()
			kind := uint64(unix.SOCK_STREAM | f.Flags&unix.O_NONBLOCK | unix.SOCK_CLOEXEC)
			l.add("socketpair", 0, unix.SYS_SOCKETPAIR, unix.AF_UNIX, kind, 0, l.space(8))
			s.closeFD(other)
			s.place(fd, f)
		default:
			return fmt.Errorf("descriptor %d is of an unknown kind", f.FD)
		}
	}
	for i := range s.im.Files {
		if f := &s.im.Files[i]; f.Kind == FileDup {
			l.add("dup3", uint64(f.FD), unix.SYS_DUP3, uint64(f.Of), uint64(f.FD), uint64(f.Flags&unix.O_CLOEXEC))
			s.useFD(f.FD)
		}
	}
	for _, f := range epolls {
		for _, w := range f.Watches {
			b := binary.LittleEndian.AppendUint32(nil, w.Events) // struct epoll_event is packed
			b = binary.LittleEndian.AppendUint64(b, w.Data)
			l.add("epoll_ctl", 0, unix.SYS_EPOLL_CTL, uint64(f.FD), unix.EPOLL_CTL_ADD, uint64(w.FD), l.bytes(b))
		}
	}
	return nil
}

// pipe makes a pipe and gives each end its number and its flags.
func (s *starter) pipe(reader *File) {
	l := &s.l
	r, w := s.openFD(), s.openFD()
	l.add("pipe", 0, unix.SYS_PIPE2, l.space(8), unix.O_CLOEXEC)
	if reader.Size > 0 {
		l.add("set the size of a pipe", anyResult, unix.SYS_FCNTL, r, unix.F_SETPIPE_SZ, uint64(reader.Size))
	}
	if len(reader.Content) > 0 {
		l.add("fill a pipe", uint64(len(reader.Content)), unix.SYS_WRITE, w, l.bytes(reader.Content), uint64(len(reader.Content)))
	}
	// First move both ends to high numbers: the number of one end may be the final number
	// of the other.
	high := uint64(0)
	for _, f := range s.im.Files {
		high = max(high, uint64(f.FD)+1)
	}
	high = max(high, uint64(len(s.fds)))
	for i, end := range []struct {
		fd   uint64
		mode int
	}{{r, unix.O_RDONLY}, {w, unix.O_WRONLY}} {
		away := high + uint64(i)
		l.add("dup3", away, unix.SYS_DUP3, end.fd, away, unix.O_CLOEXEC)
	}
	s.closeFD(r)
	s.closeFD(w)
	for i, mode := range []int{unix.O_RDONLY, unix.O_WRONLY} {
		away := high + uint64(i)
		for j := range s.im.Files {
			f := &s.im.Files[j]
			if f.Kind != FilePipe || f.Of != reader.Of || f.Flags&unix.O_ACCMODE != mode {
				continue
			}
			l.add("dup3", uint64(f.FD), unix.SYS_DUP3, away, uint64(f.FD), uint64(f.Flags&unix.O_CLOEXEC))
			s.useFD(f.FD)
			if flags := f.Flags & (unix.O_NONBLOCK | unix.O_DIRECT); flags != 0 {
				l.add("set flags of a pipe", 0, unix.SYS_FCNTL, uint64(f.FD), unix.F_SETFL, uint64(flags))
			}
		}
		l.add("close", 0, unix.SYS_CLOSE, away)
	}
}

// thread appends the calls by which a thread registers its addresses with the kernel.
func (s *starter) thread(l *list, i int) {
	t := &s.im.Threads[i]
	if i == 0 {
		l.add("set the thread's id address", anyResult, unix.SYS_SET_TID_ADDRESS, t.TidAddress)
	}
	if t.HasAltStack {
		l.add("set the thread's signal stack", 0, unix.SYS_SIGALTSTACK, l.bytes(t.AltStack[:]), 0)
	}
	if t.RobustHead != 0 {
		l.add("set the thread's robust list", 0, unix.SYS_SET_ROBUST_LIST, t.RobustHead, t.RobustSz)
	}
	if t.RseqAddress != 0 {
		l.add("register restartable sequences", 0, unix.SYS_RSEQ, t.RseqAddress, uint64(t.RseqSize), 0, uint64(t.RseqSig))
	}
	l.add("name the thread", 0, unix.SYS_PRCTL, unix.PR_SET_NAME, l.str(t.Name))
	if t.Nice != nil {
		l.add("set nice", 0, unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, uint64(int64(*t.Nice)))
	}
	if t.TimerSlack != 0 {
		l.add("set timer slack", 0, unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, t.TimerSlack)
	}
	if t.Affinity != nil {
		l.add("set the thread's processors", 0, unix.SYS_SCHED_SETAFFINITY, 0, uint64(len(t.Affinity)), l.bytes(t.Affinity))
	}
}

// finish registers the other threads, takes the region away, and gives each
// thread its registers.
func (s *starter) finish(tids []int, size uint64) error {
	for i, tid := range tids[1:] {
		var l list
		s.thread(&l, i+1)
		if l.size() > size {
			return fmt.Errorf("the calls of a thread need %d bytes", l.size())
		}
		// The code is there.
		if err := s.p.Write(s.region+pageSize, l.encode(s.region)); err != nil {
			return err
		}
		if _, err := l.run(s.p, tid, s.region); err != nil {
			return err
		}
	}
	leader := &s.im.Threads[0]
	if leader.TidAddress != 0 {
		// As fork(2) does for the C library.
		id, err := s.p.Syscall(unix.SYS_GETTID)
		if err != nil {
			return err
		}
		if err := s.p.Write(leader.TidAddress, binary.LittleEndian.AppendUint32(nil, uint32(id))); err != nil {
			return err
		}
	}
	if err := s.ids(tids); err != nil {
		return err
	}
	for _, addr := range s.im.Devices {
		if err := s.p.Write(addr, binary.LittleEndian.AppendUint64(nil, s.opt.Device)); err != nil {
			return fmt.Errorf("write the device of the program: %w", err)
		}
	}
	if err := s.statuses(); err != nil {
		return err
	}
	for _, place := range s.im.WorkDirs {
		text, err := place.text(s.opt.Dir)
		if err != nil {
			return err
		}
		if err := s.p.Write(place.Address, text); err != nil {
			return fmt.Errorf("write the path of the working directory: %w", err)
		}
	}
	if g := s.im.Generator; g != nil {
		pid, err := s.p.SyscallIn(tids[0], unix.SYS_GETPID)
		if err != nil {
			return err
		}
		now, err := Now()
		if err != nil {
			return err
		}
		if err := g.write(s.im.Stopped, now, int(pid), s.p.Write); err != nil {
			return err
		}
	}
	clocks, err := s.clocks()
	if err != nil {
		return err
	}
	if err := s.p.Free(s.region, int(size)); err != nil {
		return fmt.Errorf("unmap the restorer: %w", err)
	}
	for i, tid := range tids {
		t := &s.im.Threads[i]
		regs := t.Regs
		for _, c := range clocks {
			if c.Thread == i {
				reflect.ValueOf(&regs).Elem().Field(c.Register).SetUint(c.Word)
			}
		}
		if err := s.p.SetXstate(tid, t.Xstate); err != nil {
			return err
		}
		if err := s.p.SetSignalMask(tid, t.Mask); err != nil {
			return err
		}
		s.p.SetRegisters(tid, regs)
	}
	return nil
}

// statuses writes the status of the inputs where the program keeps it.
func (s *starter) statuses() error {
	known := map[string][]byte{}
	for _, place := range s.im.Statuses {
		status := known[place.Input]
		if status == nil {
			var err error
			if status, err = readStatus(filepath.Join(s.opt.Dir, place.Input)); err != nil {
				return err
			}
			known[place.Input] = status
		}
		if err := s.p.Write(place.Address, status[place.At:place.At+place.Size]); err != nil {
			return fmt.Errorf("write the status of %s: %w", place.Input, err)
		}
	}
	return nil
}

// clocks moves the times in the program's memory on to the present. It returns the times
// in registers, with their present values.
func (s *starter) clocks() ([]ClockPlace, error) {
	now, err := Now()
	if err != nil {
		return nil, err
	}
	// Some of this memory is read-only.
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", s.p.Pid), os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	var registers []ClockPlace
	for _, c := range s.im.Clocks {
		word := c.at(s.im.Stopped, now)
		if c.Address == 0 {
			c.Word = word
			registers = append(registers, c)
		} else if _, err := mem.WriteAt(binary.LittleEndian.AppendUint64(nil, word), int64(c.Address)); err != nil {
			return nil, fmt.Errorf("write a time at %#x: %w", c.Address, err)
		}
	}
	if len(s.im.Dates) > 0 && Season(s.im.Stopped.Realtime, s.im.Env) != Season(now.Realtime, s.im.Env) {
		return nil, errors.New("the time zone has another distance from UTC than when the snapshot was made")
	}
	for _, d := range s.im.Dates {
		b, err := d.bytes(passed(s.im.Stopped.Realtime, now.Realtime))
		if err != nil {
			return nil, err
		}
		if _, err := mem.WriteAt(b, int64(d.Address)); err != nil {
			return nil, fmt.Errorf("write a date at %#x: %w", d.Address, err)
		}
	}
	return registers, nil
}

// Now returns the present time of this machine.
func Now() (Moment, error) {
	var times [3]unix.Timespec
	for i, id := range []int32{unix.CLOCK_REALTIME, unix.CLOCK_MONOTONIC, unix.CLOCK_BOOTTIME} {
		if err := unix.ClockGettime(id, &times[i]); err != nil {
			return Moment{}, fmt.Errorf("read the clocks: %w", err)
		}
	}
	return Moment{Realtime: times[0].Nano(), Monotonic: times[1].Nano(), Boottime: times[2].Nano(), Cycles: cycles()}, nil
}

// ids replaces the ids of the frozen threads in the program's memory by the ids of the
// new threads.
func (s *starter) ids(tids []int) error {
	known := map[int]uint32{}
	id := func(thread int) (uint32, error) {
		if child := thread - len(tids); child >= 0 && child < len(s.opt.Children) {
			return uint32(s.opt.Children[child]), nil
		}
		if thread < 0 || thread >= len(tids) {
			return 0, fmt.Errorf("an id of thread %d is kept, and there are %d threads", thread, len(tids))
		}
		if known[thread] == 0 {
			// As the thread sees it: it may be in a PID namespace.
			id, err := s.p.SyscallIn(tids[thread], unix.SYS_GETTID)
			if err != nil {
				return 0, err
			}
			known[thread] = uint32(id)
		}
		return known[thread], nil
	}
	for _, place := range s.im.Ids {
		v, err := id(place.Thread)
		if err != nil {
			return err
		}
		if err := s.p.Write(place.Address, binary.LittleEndian.AppendUint32(nil, v)); err != nil {
			return fmt.Errorf("write the id of thread %d: %w", place.Thread, err)
		}
	}
	for _, place := range s.im.RegisterIds {
		v, err := id(place.Id)
		if err != nil {
			return err
		}
		reflect.ValueOf(&s.im.Threads[place.Thread].Regs).Elem().Field(place.Register).SetUint(uint64(v))
	}
	return nil
}
