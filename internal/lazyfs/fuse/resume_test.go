package fuse_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/lazyfs/fuse"
)

// noise writes a file of n bytes, each page of which differs from all others.
func noise(t *testing.T, path string, n int) []byte {
	t.Helper()
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = r.Read(b)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return b
}

// reader reads random places of a file and compares them until stop is set or an error
// occurs. No page comes from a cache: every other read bypasses it, and the reader empties
// it at times.
type reader struct {
	path  string
	want  []byte
	stop  *atomic.Bool
	reads *atomic.Int64
}

const (
	readerSpan = 128 << 10 // maximum size of a read in bytes
	page       = 4096
)

var errWrong = errors.New("wrong bytes")

func (r reader) run() error {
	open := func(flags int) (int, error) { return unix.Open(r.path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0) }
	cached, err := open(0)
	if err != nil {
		return err
	}
	defer unix.Close(cached)
	direct, err := open(unix.O_DIRECT)
	if errors.Is(err, unix.EINVAL) { // EROFS from a file does not support O_DIRECT
		direct, err = open(0)
	}
	if err != nil {
		return err
	}
	defer unix.Close(direct)
	buf := aligned(readerSpan)
	for !r.stop.Load() {
		off := rand.N(int64(len(r.want))) &^ (page - 1)
		n := (1 + rand.N(readerSpan/page)) * page
		fd := direct
		if rand.N(2) == 0 {
			fd = cached
			_ = unix.Fadvise(fd, off, int64(n), unix.FADV_DONTNEED)
		}
		want := r.want[off:min(off+int64(n), int64(len(r.want)))]
		// An error in the middle first appears as a short read.
		for done := 0; done < len(want); {
			got, err := unix.Pread(fd, buf[done:n], off+int64(done))
			if err != nil {
				return err
			}
			if got == 0 || !bytes.Equal(buf[done:done+got], want[done:done+got]) {
				return errWrong
			}
			if done += got; done%page != 0 && done < len(want) {
				return errors.New("a read ended within a page")
			}
		}
		r.reads.Add(1)
	}
	return nil
}

// aligned returns n bytes that begin at the start of a page, as O_DIRECT requires.
func aligned(n int) []byte {
	b := make([]byte, n+page)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (page - 1)
	return b[skip : skip+n]
}

// A server is killed repeatedly while 50 readers read. The holder of the device starts
// another server, and the readers notice only a delay.
func TestResume(t *testing.T) {
	for _, kind := range []string{"image", "tree", "erofs"} {
		t.Run(kind, func(t *testing.T) { testResume(t, kind) })
	}
}

func testResume(t *testing.T, kind string) {
	needRoot(t)
	kills := 12
	if os.Getenv("PREMIX_SOAK") != "" {
		kills = 300
	}
	src := t.TempDir()
	want := noise(t, filepath.Join(src, "file"), 8<<20+77)
	image := imageOf(t, src)
	mnt := t.TempDir()
	s := setup{Dir: mnt, File: image, Tree: kind == "tree", Delay: 4 * time.Millisecond}
	srv := launch(t, s, nil)
	if srv.Err != "" {
		t.Fatal(srv.Err)
	}
	defer func() { srv.stop(t) }()
	dev := srv.device(t)
	defer dev.Close()
	s.State = srv.State

	path := filepath.Join(mnt, "file")
	switch kind {
	case "image":
		path = filepath.Join(mnt, fuse.ImageName)
		var err error
		if want, err = os.ReadFile(image); err != nil {
			t.Fatal(err)
		}
	case "erofs":
		path = filepath.Join(mountErofs(t, filepath.Join(mnt, fuse.ImageName)), "file")
	}
	// At the first close, the kernel learns that the server does not support FLUSH. Later
	// ones, such as the closes before the next server is executed, then do not need a
	// server.
	if _, err := os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var reads atomic.Int64
	var readers sync.WaitGroup
	failed := make(chan error, 50)
	for range cap(failed) {
		readers.Go(func() {
			if err := (reader{path, want, &stop, &reads}).run(); err != nil {
				failed <- err
			}
		})
	}
	resent := uint64(0)
	// Whether a request runs at the moment of a kill depends on chance.
	for n := 0; n < kills || resent == 0 && n < 20*kills; n++ {
		time.Sleep(rand.N(60 * time.Millisecond))
		resent += srv.stats(t).Resent
		srv.kill()
		srv = launch(t, s, func(cmd *exec.Cmd) { cmd.ExtraFiles = []*os.File{dev} })
		if srv.Err != "" {
			t.Fatal(srv.Err)
		}
		if len(failed) > 0 {
			break
		}
	}
	stop.Store(true)
	readers.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	t.Logf("%d reads over %d deaths; %d requests were delivered again", reads.Load(), kills, resent)
	if resent == 0 {
		t.Error("no request was delivered again: nothing has been tested")
	}
}

// The final end of a server does not block its readers: all of them get an error, and a new
// mount can use the directory.
func TestDeath(t *testing.T) {
	for _, kind := range []string{"image", "tree", "erofs"} {
		t.Run(kind, func(t *testing.T) { testDeath(t, kind) })
	}
}

func testDeath(t *testing.T, kind string) {
	needRoot(t)
	src := t.TempDir()
	want := noise(t, filepath.Join(src, "file"), 8<<20)
	image := imageOf(t, src)
	mnt := t.TempDir()
	s := setup{Dir: mnt, File: image, Tree: kind == "tree", Delay: 20 * time.Millisecond}
	srv := launch(t, s, nil)
	if srv.Err != "" {
		t.Fatal(srv.Err)
	}
	defer func() {
		srv.kill()
		if err := unix.Unmount(mnt, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(mnt, "file")
	switch kind {
	case "image":
		path = filepath.Join(mnt, fuse.ImageName)
		want, _ = os.ReadFile(image)
	case "erofs":
		path = filepath.Join(mountErofs(t, filepath.Join(mnt, fuse.ImageName)), "file")
	}
	var stop atomic.Bool
	var reads atomic.Int64
	finished := make(chan error, 50)
	for range cap(finished) {
		go func() { finished <- reader{path, want, &stop, &reads}.run() }()
	}
	waitFor(t, "reads", func() bool { return reads.Load() >= 100 })
	srv.kill()
	for range cap(finished) {
		select {
		case err := <-finished:
			if !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
				t.Errorf("a reader got %v", err)
			}
		case <-time.After(2 * time.Minute):
			stop.Store(true)
			t.Fatal("a reader hangs")
		}
	}
}

// A server does not resume a connection whose state or image does not match.
func TestResumeRefuses(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	img := memory("some bytes")
	for _, c := range []struct {
		name, state string
		kernel      bool // whether ErrKernel is expected instead of a StateError
	}{
		{"no JSON", "x", false},
		{"a later version", `{"version":2}`, false},
		{"another image", `{"version":1,"kind":"image","size":11,"minor":40,"flags":549755813888}`, false},
		{"an unknown kind", `{"version":1,"kind":"moon","size":10,"minor":40,"flags":549755813888}`, false},
		{"an old kernel", `{"version":1,"kind":"image","size":10,"minor":38,"flags":0}`, true},
	} {
		_, err := fuse.Resume(null, []byte(c.state), img, fuse.Options{})
		var st *fuse.StateError
		if errors.As(err, &st) == c.kernel || errors.Is(err, fuse.ErrKernel) != c.kernel {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A server cannot resume after the mount is gone.
func TestResumeTooLate(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	s := setup{Dir: t.TempDir(), File: imageOf(t, src)}
	srv := launch(t, s, func(cmd *exec.Cmd) {
		// In its own namespace, no other process can have a copy of the mount.
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	})
	if srv.Err != "" {
		t.Fatal(srv.Err)
	}
	dev := srv.device(t)
	defer dev.Close()
	srv.stop(t)
	s.State = srv.State
	late := launch(t, s, func(cmd *exec.Cmd) { cmd.ExtraFiles = []*os.File{dev} })
	late.kill()
	if !strings.Contains(late.Err, fuse.ErrGone.Error()) {
		t.Errorf("resumed: %q", late.Err)
	}
}
