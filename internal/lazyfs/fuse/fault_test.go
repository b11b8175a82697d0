package fuse_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/lazyfs/fuse"
)

// memory is an image in memory.
type memory string

func (m memory) Size() int64 { return int64(len(m)) }
func (m memory) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	return strings.NewReader(string(m)).ReadAt(p, off)
}

// bothMounts runs a test with a file of the tree, once through EROFS on the image file and
// once through the tree mount. Faults are offsets in the image. place returns the offset of
// bytes in it.
func bothMounts(t *testing.T, size int, prepare func(s *setup, place func(part []byte) int64, content []byte), test func(t *testing.T, path string, want []byte, srv *server)) {
	needRoot(t)
	src := t.TempDir()
	want := noise(t, filepath.Join(src, "file"), size)
	if err := os.WriteFile(filepath.Join(src, "other"), bytes.Repeat([]byte("other"), 2000), 0o644); err != nil {
		t.Fatal(err)
	}
	image := imageOf(t, src)
	all, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	place := func(part []byte) int64 {
		at := bytes.Index(all, part)
		if at < 0 {
			t.Fatal("the content is not in the image")
		}
		return int64(at)
	}
	for _, tree := range []bool{false, true} {
		name := "erofs"
		if tree {
			name = "tree"
		}
		t.Run(name, func(t *testing.T) {
			mnt := t.TempDir()
			s := setup{Dir: mnt, File: image, Tree: tree}
			prepare(&s, place, want)
			srv := serve(t, s)
			if !tree {
				mnt = mountErofs(t, filepath.Join(mnt, fuse.ImageName))
			}
			test(t, filepath.Join(mnt, "file"), want, srv)
		})
	}
}

// A read that includes an unreadable page fails, and never returns zeros. Reads around the
// page succeed.
func TestBadPlace(t *testing.T) {
	const bad = 3<<20 + 5*page
	bothMounts(t, 8<<20, func(s *setup, place func([]byte) int64, content []byte) {
		at := place(content[bad : bad+page])
		s.Bad = [2]int64{at, at + page}
	}, func(t *testing.T, path string, want []byte, _ *server) {
		for _, size := range []int{page, 64 << 10, 1 << 20, 8 << 20} {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
			buf := make([]byte, size)
			failed := 0
			for off := 0; off < len(want); off += size {
				n, err := unix.Pread(int(f.Fd()), buf, int64(off))
				if err != nil && !errors.Is(err, unix.EIO) {
					t.Fatalf("at %d: %v", off, err)
				}
				if n > 0 && !bytes.Equal(buf[:n], want[off:off+n]) {
					t.Fatalf("wrong bytes in %d at %d", n, off)
				}
				if n < size {
					failed++
					if off+size <= bad-1<<20 || off >= bad+1<<20 { // readahead may fail as well near the page
						t.Errorf("%d of %d bytes at %d: %v", n, size, off, err)
					}
				}
			}
			if failed == 0 {
				t.Errorf("reads of %d bytes never failed", size)
			}
			_ = f.Close()
		}
		m, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if _, err := io.Copy(io.Discard, m); err == nil {
			t.Error("the whole file could be read")
		}
	})
}

// A read that hangs ends after the timeout, and does not delay other reads.
func TestTimeout(t *testing.T) {
	const (
		timeout = 700 * time.Millisecond
		readers = 40 // each reads its own page, because readers of one page wait for each other
	)
	bothMounts(t, 4<<20, func(s *setup, place func([]byte) int64, content []byte) {
		at := place(content[1<<20 : 1<<20+page])
		s.Hang, s.Timeout = [2]int64{at, at + readers*page}, timeout
	}, func(t *testing.T, path string, want []byte, srv *server) {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		// Readahead is off, because it would reach the place before the reader does.
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
			t.Fatal(err)
		}
		finished := make(chan error, readers)
		for i := range cap(finished) {
			go func() {
				_, err := unix.Pread(int(f.Fd()), make([]byte, page), 1<<20+int64(i)*page)
				finished <- err
			}()
		}
		buf := make([]byte, page)
		for off := int64(2 << 20); off < 3<<20; off += page {
			if _, err := f.ReadAt(buf, off); err != nil || !bytes.Equal(buf, want[off:off+page]) {
				t.Fatalf("another place, at %d: %v", off, err)
			}
		}
		other, err := os.ReadFile(filepath.Join(filepath.Dir(path), "other"))
		if err != nil || len(other) != 10000 {
			t.Fatalf("another file: %d bytes, %v", len(other), err)
		}
		for range cap(finished) {
			select {
			case err := <-finished:
				if !errors.Is(err, unix.EIO) {
					t.Errorf("after the time: %v", err)
				}
			case <-time.After(2 * time.Minute):
				t.Fatal("a reader hangs")
			}
		}
		if n := srv.stats(t).Timeouts; n == 0 {
			t.Error("no timeout was counted")
		}
	})
}

// More readers hang than the server works on at a time. The rest wait for their turn, and
// all of them get their error.
func TestInFlightIsBounded(t *testing.T) {
	bothMounts(t, 4<<20, func(s *setup, place func([]byte) int64, content []byte) {
		at := place(content[:page])
		s.Hang, s.Timeout, s.InFlight = [2]int64{at, at + 1<<20}, 150*time.Millisecond, 8
	}, func(t *testing.T, path string, _ []byte, srv *server) {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
			t.Fatal(err)
		}
		finished := make(chan error, 30)
		for i := range cap(finished) {
			go func() {
				_, err := unix.Pread(int(f.Fd()), make([]byte, page), int64(i)*8*page)
				finished <- err
			}()
		}
		for range cap(finished) {
			if err := <-finished; !errors.Is(err, unix.EIO) {
				t.Errorf("got %v", err)
			}
		}
		if n := srv.stats(t).InFlight; n > 8 {
			t.Errorf("%d requests at a time", n)
		}
	})
}

// A reader that is killed ends at once, and does not wait for the timeout of the request.
// The read of the image is canceled. A signal that the reader handles cancels nothing.
func TestInterrupt(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	content := noise(t, filepath.Join(src, "file"), 1<<20)
	image := imageOf(t, src)
	all, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	at := int64(bytes.Index(all, content[:page]))
	for _, before := range [][]os.Signal{nil, {unix.SIGUSR1, unix.SIGSTOP, unix.SIGCONT}} {
		mnt := t.TempDir()
		srv := serve(t, setup{Dir: mnt, File: image, Tree: true, Hang: [2]int64{at, at + 1}, Timeout: -1})
		cmd := exec.Command("dd", "if="+filepath.Join(mnt, "file"), "of=/dev/null", "bs=4096", "count=1", "iflag=direct")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Every request counts as in flight, also the look-up of the name. The test cancels
		// the read.
		waitFor(t, "the read", func() bool { return srv.stats(t).Hung > 0 })
		for _, sig := range before { // dd handles SIGUSR1
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
		if before != nil {
			waitFor(t, "the interrupt", func() bool { return srv.stats(t).Ops["interrupt"].Count > 0 })
			if st := srv.stats(t); st.Hung != 1 || st.Cancelled != 0 {
				t.Errorf("after a signal that ends nothing %d reads hang, %d were cancelled", st.Hung, st.Cancelled)
			}
		}
		_ = cmd.Process.Kill()
		finished := make(chan error, 1)
		go func() { finished <- cmd.Wait() }()
		select {
		case <-finished:
		case <-time.After(2 * time.Minute):
			t.Fatal("the reader cannot be killed")
		}
		// The reader may end before the answer.
		waitFor(t, "the end of the read", func() bool { return srv.stats(t).Cancelled > 0 })
		if n := srv.stats(t).Cancelled; n != 1 {
			t.Errorf("%d requests were cancelled, want 1", n)
		}
	}
}
