package calls

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Stream is the kind of a standard stream.
type Stream string

// The kinds of streams.
const (
	Null     Stream = "null" // /dev/null
	File     Stream = "file"
	Pipe     Stream = "pipe"
	Terminal Stream = "terminal"
	other    Stream = "other" // or closed: such calls start plainly
	joined   Stream = "joined"
)

// Around is what a program inherits: its standard streams, and other descriptors.
type Around struct {
	Streams [3]Stream // of standard input, output and error
	Joined  bool      // standard output and error are one file or pipe
	Extra   []int     // numbers of other descriptors
}

// Own returns what a program that this process executes inherits.
func Own() (a Around) {
	var st [3]unix.Stat_t
	for fd := range a.Streams {
		a.Streams[fd] = other
		if unix.Fstat(fd, &st[fd]) == nil {
			a.Streams[fd] = kind(fd, &st[fd])
		}
	}
	a.Joined = a.Streams[1] != Null && a.Streams[1] != other && st[1].Dev == st[2].Dev && st[1].Ino == st[2].Ino
	for _, fd := range descriptors() {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			a.Extra = append(a.Extra, fd)
		}
	}
	return a
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
	return other
}

// descriptors lists those of this process beside the standard streams, in their order.
func descriptors() []int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil // without /proc there is no hot start
	}
	var all []int
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			all = append(all, fd)
		}
	}
	slices.Sort(all)
	return all
}

func (a Around) other() bool { return slices.Contains(a.Streams[:], other) }

// String returns the kinds of the streams, and the numbers of other descriptors, as
// ParseAround reads them: null,pipe,file or null,file,joined,5.
func (a Around) String() string {
	list := []string{string(a.Streams[0]), string(a.Streams[1]), string(a.Streams[2])}
	if a.Joined {
		list[2] = string(joined)
	}
	for _, fd := range a.Extra {
		list = append(list, strconv.Itoa(fd))
	}
	return strings.Join(list, ",")
}

// ParseAround reads what String returns.
func ParseAround(text string) (a Around, err error) {
	list := strings.Split(text, ",")
	wrong := errors.New("write three kinds out of null, file, pipe and terminal, as in null,pipe,file, where the last may be joined")
	if len(list) < 3 {
		return a, wrong
	}
	for i := range a.Streams {
		s := Stream(list[i])
		if i == 2 && s == joined {
			a.Joined, s = true, a.Streams[1]
		}
		if !slices.Contains([]Stream{Null, File, Pipe, Terminal}, s) || a.Joined && s == Null {
			return a, wrong
		}
		a.Streams[i] = s
	}
	for _, text := range list[3:] {
		fd, err := strconv.Atoi(text)
		if err != nil || fd < 3 {
			return a, wrong
		}
		a.Extra = append(a.Extra, fd)
	}
	return a, nil
}
