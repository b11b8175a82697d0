package fuse_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/lazyfs/fuse"
)

// The servers of these tests are processes of their own, because a process that reads from
// its own mount cannot be killed during the read. They run the test binary.
const serverEnv = "PREMIX_FUSE_TEST_SERVER"

func TestMain(m *testing.M) {
	if text := os.Getenv(serverEnv); text != "" {
		if err := serverMain(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	before := mounts()
	code := m.Run()
	if after := mounts(); after != before {
		fmt.Fprintf(os.Stderr, "%d mounts before the tests, %d after\n", before, after)
		code = 1
	}
	os.Exit(code)
}

// source is the source of the mounts of this test process in mountinfo. No other process
// that runs at the same time has the same one.
var source = fmt.Sprintf("premix-fuse-test-%d-end", os.Getpid())

func mounts() int {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		panic(err)
	}
	return strings.Count(string(table), source)
}

// setup is the configuration of a server.
type setup struct {
	Name    string // Options.Name; launch sets it
	Tree    bool
	Dir     string
	File    string        // the image
	State   []byte        // resume the connection on descriptor 3
	Timeout time.Duration // Options.Timeout
	// The faults of the image:
	Delay    time.Duration // upper limit of the delay before a read
	Bad      [2]int64      // reads of bytes from the first up to the second offset fail
	Hang     [2]int64      // reads of these bytes wait until they are canceled
	InFlight int
}

// started is the message of a server once it serves.
type started struct {
	FD    int
	State []byte
	Err   string
	No    int // the errno in Err
	Hint  string
}

// faultyFile is an image with faults.
type faultyFile struct {
	setup
	f    *os.File
	size int64
	hung atomic.Int64 // number of reads that wait because of setup.Hang
}

// figures is the answer of a server to a request for its statistics.
type figures struct {
	fuse.Stats
	Hung int64
}

func (i *faultyFile) Size() int64 { return i.size }

var errBad = errors.New("a bad place")

func (i *faultyFile) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	in := func(r [2]int64) bool { return off < r[1] && off+int64(len(p)) > r[0] }
	if i.Delay > 0 {
		time.Sleep(rand.N(i.Delay))
	}
	if in(i.Bad) {
		return 0, errBad
	}
	if in(i.Hang) {
		i.hung.Add(1)
		defer i.hung.Add(-1)
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return i.f.ReadAt(p, off)
}

func serverMain(text string) error {
	var s setup
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	f, err := os.Open(s.File)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	img := &faultyFile{setup: s, f: f, size: st.Size()}
	opts := fuse.Options{Name: s.Name, Timeout: s.Timeout, InFlight: s.InFlight, Log: func(m string) { fmt.Fprintln(os.Stderr, m) }}
	var server *fuse.Server
	switch {
	case s.State != nil:
		server, err = fuse.Resume(os.NewFile(3, "/dev/fuse"), s.State, img, opts)
	case s.Tree:
		server, err = fuse.MountTree(s.Dir, img, opts)
	default:
		server, err = fuse.MountImage(s.Dir, img, opts)
	}
	var say started
	if err != nil {
		say.Err = err.Error()
		var no unix.Errno
		if errors.As(err, &no) {
			say.No = int(no)
		}
		var hint interface{ Hint() string }
		if errors.As(err, &hint) {
			say.Hint = hint.Hint()
		}
	} else {
		say.State = server.State()
		raw, err := server.File().SyscallConn()
		if err != nil {
			return err
		}
		// The server may end and close the descriptor at this moment. No test needs it
		// then.
		_ = raw.Control(func(fd uintptr) { say.FD = int(fd) })
	}
	if err := json.NewEncoder(os.Stdout).Encode(say); err != nil || say.Err != "" {
		return err
	}
	// The test has ended at the end of standard input. Any other line requests the
	// statistics.
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := json.NewEncoder(os.Stdout).Encode(figures{server.Stats(), img.hung.Load()}); err != nil {
			return err
		}
	}
	// The server does not wait for the end of the mount, because another process of this
	// machine may keep a copy of the mount in its own mount namespace.
	return server.Close()
}

// server is a running server in the view of the test.
type server struct {
	started
	cmd   *exec.Cmd
	stdin io.Closer
	ask   io.Writer
	out   *json.Decoder
}

// launch starts a server. prepare may change the command.
func launch(t *testing.T, s setup, prepare func(*exec.Cmd)) *server {
	t.Helper()
	s.Name = source
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), serverEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	srv := &server{cmd: cmd, stdin: stdin, ask: stdin, out: json.NewDecoder(stdout)}
	if err := srv.out.Decode(&srv.started); err != nil {
		t.Fatalf("the server said nothing: %v, %v", err, cmd.Wait())
	}
	return srv
}

// serve starts a server, which stops at the end of the test.
func serve(t *testing.T, s setup) *server {
	t.Helper()
	needRoot(t)
	srv := launch(t, s, nil)
	if srv.Err != "" {
		t.Fatal(srv.Err)
	}
	t.Cleanup(func() { srv.stop(t) })
	return srv
}

// stop makes the server unmount and end.
func (s *server) stop(t *testing.T) {
	t.Helper()
	_ = s.stdin.Close()
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the server ended badly: %v", err)
	}
}

// kill ends the server with a signal that it cannot catch.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) stats(t *testing.T) figures {
	t.Helper()
	var st figures
	if _, err := io.WriteString(s.ask, "\n"); err != nil {
		t.Fatal(err)
	}
	if err := s.out.Decode(&st); err != nil {
		t.Fatal(err)
	}
	return st
}

// device returns a duplicate of the server's descriptor of /dev/fuse, as a supervisor holds
// it.
func (s *server) device(t *testing.T) *os.File {
	t.Helper()
	pid, err := unix.PidfdOpen(s.cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pid)
	fd, err := unix.PidfdGetfd(pid, s.FD, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "/dev/fuse")
}

// waitFor waits until is returns true.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s never came", what)
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
}

// mountErofs mounts the image of a server with EROFS, and unmounts it at the end of the
// test.
func mountErofs(t *testing.T, image string) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount(image, dir, "erofs", unix.MS_RDONLY, "directio")
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOTBLK) {
		t.Skipf("this kernel does not mount EROFS from a file: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(dir); err != nil {
			t.Errorf("unmount: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

// asNobody makes a command run as an ordinary user.
func asNobody(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Skipf("there is no user nobody: %v", err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}
