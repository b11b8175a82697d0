package inplace

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/procstate"
)

// streams are the standard streams of an execution in a scratch directory, of the kinds
// that a call has.
type streams struct {
	files  [3]*os.File // of the tool
	out    [3]*collector
	paths  [3]string // of regular files
	from   [3]int64  // their sizes before the tool wrote to them
	close_ []*os.File
	feed   chan struct{} // closed when standard input has been written
}

// openStreams makes streams. input is the file that gives standard input; a silent
// standard input gives nothing where it is a pipe or a terminal. A program must not depend
// on the state of its streams apart from their kinds. So preparations
// other than A have files of other sizes, which are at other offsets, unless they are empty, and those of preparation B are also open
// for reading and writing, and the output is appended to them. number is the number of the
// preparation.
func openStreams(dir string, a procstate.Inherited, input string, silent bool, number int) (s *streams, err error) {
	s = &streams{}
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	read, write := os.O_RDONLY, os.O_WRONLY
	size := streamSize(number)
	if number == 1 {
		read, write = os.O_RDWR, os.O_RDWR|os.O_APPEND
	}
	enlarge := size > 0 && a.Streams[0] == procstate.File
	if enlarge {
		input = dir + "/stream-0"
		if err := enlarged(input, size); err != nil {
			return s, err
		}
	}
	if s.files[0], err = s.stdin(a.Streams[0], input, silent, read); err != nil {
		return s, err
	}
	if enlarge {
		if _, err := s.files[0].Seek(size/3, io.SeekStart); err != nil {
			return s, err
		}
	}
	var terminal *os.File
	for i, kind := range a.Streams {
		switch {
		case i == 0:
		case i == 2 && a.Joined:
			s.files[2] = s.files[1]
		case kind == procstate.Null:
			s.files[i], err = os.OpenFile(os.DevNull, write, 0)
		case kind.IsFile():
			s.paths[i] = fmt.Sprintf("%s/stream-%d", dir, i)
			if size > 0 && kind == procstate.Appended {
				s.from[i] = size
				err = enlarged(s.paths[i], size)
			}
			if err == nil {
				s.files[i], err = os.OpenFile(s.paths[i], write|os.O_CREATE, 0o600)
			}
			if err == nil {
				_, err = s.files[i].Seek(s.from[i], io.SeekStart)
			}
		case kind == procstate.Pipe:
			var r *os.File
			if r, s.files[i], err = os.Pipe(); err == nil {
				s.out[i] = collect(r)
			}
		case kind == procstate.Terminal:
			var master *os.File
			if master, terminal, err = openTerminal(); err == nil {
				s.files[i], s.out[i] = terminal, collect(master)
			}
		default:
			err = fmt.Errorf("descriptor %d is of the kind %s", i, kind)
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// streamSize returns the size of the files that are streams of a preparation, before it
// begins. In B it is larger than the sizes up to which programs treat files in another way.
// None of its bytes is a small number, which a program may have for other reasons.
func streamSize(number int) int64 {
	switch number {
	case 0:
		return 0
	case 1:
		return 0x0b0a69585746
	}
	return 0x706050 + rand.Int64N(1<<40)
}

// enlarged makes a large file without content.
func enlarged(path string, size int64) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	return os.Truncate(path, size)
}

func (s *streams) stdin(kind procstate.Stream, input string, silent bool, flags int) (*os.File, error) {
	switch kind {
	case procstate.Null:
		return os.OpenFile(os.DevNull, flags, 0)
	case procstate.File:
		if input == "" {
			input = os.DevNull
		}
		return os.OpenFile(input, flags, 0)
	case procstate.Terminal:
		master, slave, err := openTerminal()
		if err == nil {
			s.close_ = append(s.close_, master)
		}
		return slave, err
	case procstate.Pipe:
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		s.close_ = append(s.close_, w)
		if !silent && input != "" {
			in, err := os.Open(input)
			if err != nil {
				r.Close()
				return nil, err
			}
			s.feed = make(chan struct{})
			go func() {
				defer close(s.feed)
				_, _ = io.Copy(w, in) // a tool may end before it has read everything
				in.Close()
				w.Close()
			}()
		}
		return r, nil
	}
	return nil, fmt.Errorf("descriptor 0 is of the kind %s", kind)
}

// openTerminal makes a pseudoterminal that passes bytes on as they are (pty(7)).
func openTerminal() (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	raw, err := master.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var n int
	if cerr := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); cerr != nil || err != nil {
		return nil, nil, errors.Join(cerr, err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	t, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err == nil {
		t.Oflag &^= unix.OPOST
		err = unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, t)
	}
	return master, slave, err
}

// given closes this process's copies of the descriptors that the tool has got.
func (s *streams) given() {
	for _, f := range s.files {
		if f != nil {
			f.Close()
		}
	}
}

// written returns the bytes that the tool has written to descriptor 1 or 2. The tool must
// be stopped.
func (s *streams) written(i int) ([]byte, error) {
	switch {
	case s.out[i] != nil:
		return s.out[i].all()
	case s.paths[i] != "":
		f, err := os.Open(s.paths[i])
		if err != nil {
			return nil, err
		}
		defer f.Close()
		size, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return nil, err
		}
		if size < s.from[i] {
			return nil, unfit("it truncates the file that is descriptor %d", i)
		}
		b := make([]byte, size-s.from[i])
		_, err = f.ReadAt(b, s.from[i])
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return b, err
	}
	return nil, nil
}

// end closes everything.
func (s *streams) end() {
	s.given()
	for _, f := range s.close_ {
		f.Close()
	}
	for _, c := range s.out {
		if c != nil {
			c.f.Close()
			<-c.done
		}
	}
	if s.feed != nil {
		<-s.feed
	}
}

// collector reads all bytes that the tool writes to a pipe or a terminal.
type collector struct {
	f    *os.File
	done chan struct{}

	mu    sync.Mutex // guards what follows
	bytes []byte
}

func collect(f *os.File) *collector {
	c := &collector{f: f, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		b := make([]byte, 64<<10)
		for {
			n, err := f.Read(b)
			c.mu.Lock()
			c.bytes = append(c.bytes, b[:n]...)
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return c
}

// all returns everything that has been written so far, and ends the collector.
func (c *collector) all() ([]byte, error) {
	if err := c.f.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return nil, err
	}
	<-c.done
	raw, err := c.f.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := make([]byte, 64<<10)
	for {
		n := 0
		if cerr := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), b) }); cerr != nil {
			return nil, cerr
		}
		if n <= 0 {
			break // nothing is left, or every writer has gone
		}
		c.bytes = append(c.bytes, b[:n]...)
	}
	return c.bytes, nil
}
