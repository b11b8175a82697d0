package inplace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Stream is the kind of an open file: programs ask for it, and behave accordingly.
type Stream string

// The kinds of streams. A call with one of another kind is cold.
const (
	StreamFile     Stream = "file"
	StreamPipe     Stream = "pipe"
	StreamNull     Stream = "null"
	StreamTerminal Stream = "terminal"
	StreamOther    Stream = "other"
)

// Around is what of the surroundings of a call matters to its tool.
type Around struct {
	Stdin  Stream `json:"stdin"`
	Stdout Stream `json:"stdout"`
	Stderr Stream `json:"stderr"`
	Joined bool   `json:"joined"` // standard output and error are one open file
	Umask  int    `json:"umask"`
	Extra  []int  `json:"extra"` // other descriptors that the tool inherits
}

// Surroundings describes the surroundings of a call by this process, with these streams.
func Surroundings(stdin, stdout, stderr *os.File) (Around, error) {
	var a Around
	var st [3]unix.Stat_t
	for i, f := range []*os.File{stdin, stdout, stderr} {
		if f == nil {
			return a, fmt.Errorf("the call has no descriptor %d", i)
		}
		if err := unix.Fstat(int(f.Fd()), &st[i]); err != nil {
			return a, fmt.Errorf("descriptor %d: %w", i, err)
		}
		*[]*Stream{&a.Stdin, &a.Stdout, &a.Stderr}[i] = kind(&st[i], f)
	}
	if st[1].Dev == st[2].Dev && st[1].Ino == st[2].Ino && st[1].Rdev == st[2].Rdev && a.Stdout != StreamNull {
		a.Joined = true
		same, err := oneFile(int(stdout.Fd()), int(stderr.Fd()))
		if a.Stdout == StreamFile && (err != nil || !same) {
			a.Stderr = StreamOther // each would overwrite the other
		}
	}
	var err error
	if a.Extra, err = extra(); err != nil {
		return a, err
	}
	a.Umask, err = umask()
	return a, err
}

func kind(st *unix.Stat_t, f *os.File) Stream {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return StreamFile
	case unix.S_IFIFO:
		return StreamPipe
	case unix.S_IFCHR:
		if st.Rdev == unix.Mkdev(1, 3) {
			return StreamNull
		}
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			return StreamTerminal
		}
	}
	return StreamOther
}

// oneFile tells whether two descriptors of this process lead to one open file.
func oneFile(a, b int) (bool, error) {
	const kcmpFile = 0
	r, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(os.Getpid()), kcmpFile, uintptr(a), uintptr(b), 0)
	if e != 0 {
		return false, e
	}
	return r == 0, nil
}

// extra lists the descriptors beside the streams that a program that is executed by this
// process inherits.
func extra() ([]int, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var all []int
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			all = append(all, fd)
		}
	}
	slices.Sort(all)
	return all, nil
}

func umask() (int, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Umask:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 8, 32)
			return int(n), err
		}
	}
	return 0, errors.New("/proc/self/status has no Umask")
}

func (c *Call) around() (Around, error) {
	if c.Around != nil {
		return *c.Around, nil
	}
	return Surroundings(c.Stdin, c.Stdout, c.Stderr)
}

// refusal says why a call with these surroundings is cold, or returns "".
func (a Around) refusal() string {
	for i, s := range []Stream{a.Stdin, a.Stdout, a.Stderr} {
		if s == StreamOther {
			return fmt.Sprintf("descriptor %d is neither a file, a pipe, a terminal nor /dev/null", i)
		}
	}
	return ""
}

// kindAt is the kind of what stands at a path: "missing", "file", "empty", "dir" or
// "other"; links are followed.
func kindAt(path string) string {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(path); err == nil {
			return "other" // a link that leads nowhere
		}
		return "missing"
	case err != nil:
		return "other"
	case st.IsDir():
		return "dir"
	case st.Mode().IsRegular() && st.Size() == 0:
		return "empty"
	case st.Mode().IsRegular() && unix.Access(path, unix.R_OK) == nil:
		return "file"
	}
	return "other"
}
