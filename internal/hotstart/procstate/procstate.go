package procstate

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Stream is the kind of a standard stream: programs ask for it, and behave accordingly.
type Stream string

// The kinds of streams.
const (
	Null     Stream = "null"     // /dev/null
	File     Stream = "file"     // as a shell opens it for input, or for output: empty
	Appended Stream = "appended" // a file for output that has content, or is not at its beginning
	Pipe     Stream = "pipe"
	Terminal Stream = "terminal"
	Other    Stream = "other" // or closed: a call with this stream starts cold
)

// IsFile reports whether a stream is a regular file.
func (s Stream) IsFile() bool { return s == File || s == Appended }

// joined replaces the kind of standard error in the text of an Inherited whose standard
// output and error are one.
const joined = "joined"

// Inherited is the state that a program inherits, apart from arguments and environment.
type Inherited struct {
	Streams [3]Stream        `json:"streams"` // of standard input, output and error
	Joined  bool             `json:"joined"`  // standard output and error are one file, pipe or terminal
	Extra   []int            `json:"extra"`   // numbers of other descriptors
	Ignored []syscall.Signal `json:"ignored"` // signals
	Blocked uint64           `json:"blocked"` // signals: bit N-1 is signal N
	Umask   int              `json:"umask"`
	Limits  []uint64         `json:"limits"` // soft and hard limits of resources (getrlimit(2)), by number of the resource
	CPUs    int              `json:"cpus"`   // number of CPUs on which it may run (sched_getaffinity(2))

	unknown error // why the rest is not known
}

// Current returns the state that a program inherits from this process, if the process calls
// Restore before it executes the program.
func Current() (a Inherited) {
	var st [3]unix.Stat_t
	for fd := range a.Streams {
		a.Streams[fd] = Other
		if closedAtEntry&(1<<fd) == 0 && unix.Fstat(fd, &st[fd]) == nil {
			a.Streams[fd] = kind(fd, &st[fd])
			if fd > 0 && a.Streams[fd] == File && !isEmpty(fd, &st[fd]) {
				a.Streams[fd] = Appended
			}
		}
	}
	a.Joined = a.Streams[1] != Null && a.Streams[1] != Other && st[1].Dev == st[2].Dev && st[1].Ino == st[2].Ino && st[1].Rdev == st[2].Rdev
	if a.Joined && a.Streams[1].IsFile() && !oneFile(1, 2) {
		a.Streams[2] = Other // each would overwrite the other
	}
	all, err := Descriptors()
	for _, fd := range all {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			a.Extra = append(a.Extra, fd)
		}
	}
	a.unknown = errors.Join(err, a.status(), a.readResources())
	return a
}

// resources is the number of resources that have limits.
const resources = 16

// readResources reads the limits and the number of CPUs. Programs choose the number of their
// threads and the sizes of their buffers by them.
func (a *Inherited) readResources() error {
	for n := range resources {
		var l unix.Rlimit
		if err := unix.Prlimit(0, n, nil, &l); err != nil {
			return os.NewSyscallError("prlimit", err)
		}
		if n == unix.RLIMIT_NOFILE && filesAtEntry != 0 {
			l.Cur = filesAtEntry // package os has raised it, and sets it again for other programs
		}
		a.Limits = append(a.Limits, l.Cur, l.Max)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	a.CPUs = set.Count()
	return nil
}

// isEmpty reports whether a file is empty, and its offset 0.
func isEmpty(fd int, st *unix.Stat_t) bool {
	at, err := unix.Seek(fd, 0, unix.SEEK_CUR)
	return err == nil && at == 0 && st.Size == 0
}

func kind(fd int, st *unix.Stat_t) Stream {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return File
	case unix.S_IFIFO:
		return Pipe
	case unix.S_IFCHR:
		if st.Rdev == unix.Mkdev(1, 3) {
			return Null
		}
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
			return Terminal
		}
	}
	return Other
}

// Files returns the standard streams that are regular files, each file once.
func (a Inherited) Files() (list []int) {
	for fd, s := range a.Streams {
		if s.IsFile() && !(fd == 2 && a.Joined) {
			list = append(list, fd)
		}
	}
	return list
}

// oneFile reports whether two descriptors of this process lead to one open file.
func oneFile(a, b int) bool {
	const kcmpFile = 0
	r, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(os.Getpid()), kcmpFile, uintptr(a), uintptr(b), 0)
	return e == 0 && r == 0
}

// Descriptors returns the descriptors of this process other than the standard streams, in
// ascending order.
func Descriptors() ([]int, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var all []int
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			all = append(all, fd)
		}
	}
	slices.Sort(all)
	return all, nil
}

// status reads the umask and the signals, from proc_pid_status(5).
func (a *Inherited) status() error {
	// The mask of this thread is the mask that it has inherited.
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return err
	}
	found := 0
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		var n uint64
		switch name {
		case "Umask":
			n, err = strconv.ParseUint(value, 8, 32)
			a.Umask = int(n)
		case "SigBlk":
			a.Blocked, err = strconv.ParseUint(value, 16, 64)
		case "SigIgn":
			n, err = strconv.ParseUint(value, 16, 64)
			a.Ignored = signals(n | inherited())
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("/proc/thread-self/status: %w", err)
		}
		found++
	}
	if found != 3 {
		return errors.New("/proc/thread-self/status has no umask or no signals")
	}
	return nil
}

// signals returns the signals in a set.
func signals(set uint64) (list []syscall.Signal) {
	for n := range 64 {
		if set&(1<<n) != 0 {
			list = append(list, syscall.Signal(n+1))
		}
	}
	return list
}

// ignore is struct kernel_sigaction (rt_sigaction(2)) with SIG_IGN.
var ignore = [32]byte{1}

// Actions returns the action of each signal whose action a program can set, as struct
// kernel_sigaction, for a program that inherits a.
func (a Inherited) Actions() map[syscall.Signal][32]byte {
	all := map[syscall.Signal][32]byte{}
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		switch {
		case sig == unix.SIGKILL || sig == unix.SIGSTOP:
		case slices.Contains(a.Ignored, sig):
			all[sig] = ignore
		default:
			all[sig] = [32]byte{}
		}
	}
	return all
}

// Restore makes this process ignore the signals that its caller ignores, so that the next
// program that it executes ignores them too. That program also finds the standard streams
// closed that the caller has closed.
func Restore() {
	for fd := range 3 {
		if closedAtEntry&(1<<fd) != 0 {
			unix.CloseOnExec(fd)
		}
	}
	for _, sig := range signals(inherited()) {
		// SIGKILL and SIGSTOP are never among them.
		_, _, _ = unix.Syscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&ignore)), 0, 8, 0, 0)
	}
}

// WithActions calls f while each signal has the action that it has in a program that inherits a,
// and has not installed a handler yet. The handlers of the Go runtime are out of place meanwhile.
func WithActions(a Inherited, f func()) {
	set := func(sig syscall.Signal, action, before *[32]byte) {
		_, _, _ = unix.Syscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(before)), 8, 0, 0)
	}
	handlers := map[syscall.Signal]*[32]byte{}
	for sig, action := range a.Actions() {
		handlers[sig] = new([32]byte)
		set(sig, &action, handlers[sig])
	}
	defer func() {
		for sig, handler := range handlers {
			set(sig, handler, nil)
		}
	}()
	f()
}

// Refusal returns the reason why a program that inherits a starts cold, or "".
func (a Inherited) Refusal() string {
	for fd, s := range a.Streams {
		if s == Other {
			return fmt.Sprintf("descriptor %d is closed, or neither a file, a pipe, a terminal nor /dev/null", fd)
		}
	}
	switch {
	case a.unknown != nil:
		return a.unknown.Error()
	case slices.Contains(a.Ignored, unix.SIGCHLD):
		return "the caller ignores SIGCHLD" // the end of the tool could not be waited for
	case len(a.Limits) > 2*unix.RLIMIT_FSIZE && a.Limits[2*unix.RLIMIT_FSIZE] < 1<<63:
		return "the size of files is limited (ulimit -f)" // a preparation makes large files without content
	}
	return ""
}

// ignores is the beginning of the number of an ignored signal in a text.
const ignores = "ignored:"

// String returns the kinds of the streams, the numbers of other descriptors, and the
// signals that are ignored, as Parse reads them: null,pipe,file or null,file,joined,5 or
// null,file,file,ignored:13.
func (a Inherited) String() string {
	list := []string{string(a.Streams[0]), string(a.Streams[1]), string(a.Streams[2])}
	if a.Joined {
		list[2] = joined
	}
	for _, fd := range a.Extra {
		list = append(list, strconv.Itoa(fd))
	}
	for _, sig := range a.Ignored {
		list = append(list, ignores+strconv.Itoa(int(sig)))
	}
	return strings.Join(list, ",")
}

// Parse reads the text that String returns.
func Parse(text string) (a Inherited, err error) {
	list := strings.Split(text, ",")
	wrong := errors.New("give three kinds of null, file, pipe and terminal, as in null,pipe,file; outputs may be appended, and the last joined")
	if len(list) < 3 {
		return a, wrong
	}
	for i := range a.Streams {
		s := Stream(list[i])
		if i == 2 && s == joined {
			a.Joined, s = true, a.Streams[1]
		}
		if !slices.Contains([]Stream{Null, File, Appended, Pipe, Terminal}, s) || i == 0 && s == Appended || a.Joined && s == Null {
			return a, wrong
		}
		a.Streams[i] = s
	}
	for _, text := range list[3:] {
		text, signal := strings.CutPrefix(text, ignores)
		n, err := strconv.Atoi(text)
		switch {
		case err == nil && signal && n > 0 && n <= 64:
			a.Ignored = append(a.Ignored, syscall.Signal(n))
		case err == nil && !signal && n > 2:
			a.Extra = append(a.Extra, n)
		default:
			return a, wrong
		}
	}
	return a, nil
}
