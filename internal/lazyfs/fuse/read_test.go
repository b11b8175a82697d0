package fuse_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"golang.org/x/sys/unix"
)

// ways contains every way to read a part of a file. Each returns the n bytes at off, or
// fewer if the file ends before.
var ways = map[string]func(fd int, off int64, n int) ([]byte, error){
	"pread": pread,
	"preadv": func(fd int, off int64, n int) ([]byte, error) {
		return fill(n, func(p []byte, done int) (int, error) {
			middle := len(p) / 3
			return unix.Preadv(fd, [][]byte{p[:middle], p[middle:]}, off+int64(done))
		})
	},
	"mmap": func(fd int, off int64, n int) ([]byte, error) {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, err
		}
		start := off &^ (page - 1)
		n = int(min(int64(n), st.Size-off))
		if n <= 0 {
			return nil, nil
		}
		m, err := unix.Mmap(fd, start, int(off-start)+n, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		defer unix.Munmap(m)
		return bytes.Clone(m[off-start:]), nil
	},
	"sendfile": func(fd int, off int64, n int) ([]byte, error) {
		return throughPipe(n, func(pipe, part, done int) (int, error) {
			at := off + int64(done)
			return unix.Sendfile(pipe, fd, &at, part)
		})
	},
	"splice": func(fd int, off int64, n int) ([]byte, error) {
		return throughPipe(n, func(pipe, part, done int) (int, error) {
			at := off + int64(done)
			m, err := unix.Splice(fd, &at, pipe, nil, part, 0)
			return int(m), err
		})
	},
	"copy_file_range": func(fd int, off int64, n int) ([]byte, error) {
		to, err := unix.Open(os.TempDir(), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, err
		}
		defer unix.Close(to)
		done := 0
		for done < n {
			at := off + int64(done)
			m, err := unix.CopyFileRange(fd, &at, to, nil, n-done, 0)
			if errors.Is(err, unix.EXDEV) { // cp(1) then reads and writes
				return pread(fd, off, n)
			}
			if err != nil {
				return nil, err
			}
			if m == 0 {
				break
			}
			done += m
		}
		p := make([]byte, done)
		_, err = unix.Pread(to, p, 0)
		return p, err
	},
	"O_DIRECT": func(fd int, off int64, n int) ([]byte, error) {
		direct, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EINVAL) { // EROFS from a file does not support it
			return pread(fd, off, n)
		}
		if err != nil {
			return nil, err
		}
		defer unix.Close(direct)
		start := off &^ (page - 1)
		buf := aligned((int(off-start) + n + page - 1) &^ (page - 1))
		m, err := unix.Pread(direct, buf, start)
		return buf[min(int(off-start), m):min(int(off-start)+n, m)], err
	},
}

func pread(fd int, off int64, n int) ([]byte, error) {
	return fill(n, func(p []byte, done int) (int, error) { return unix.Pread(fd, p, off+int64(done)) })
}

// fill calls read until it has n bytes or the file ends.
func fill(n int, read func(p []byte, done int) (int, error)) ([]byte, error) {
	p := make([]byte, n)
	for done := 0; done < n; {
		m, err := read(p[done:], done)
		if err != nil || m == 0 {
			return p[:done], err
		}
		done += m
	}
	return p, nil
}

// throughPipe returns n bytes that move writes into a pipe piece by piece.
func throughPipe(n int, move func(pipe, part, done int) (int, error)) ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()
	return fill(n, func(p []byte, done int) (int, error) {
		m, err := move(int(w.Fd()), min(len(p), 1<<16), done)
		if err != nil || m == 0 {
			return 0, err
		}
		return io.ReadFull(r, p[:m])
	})
}

// Many readers read at once, in all ways and sizes, from files whose sizes are around the
// borders of blocks. All of them get the right bytes.
func TestReads(t *testing.T) {
	sizes := []int{1, page - 1, page, page + 1, 70_000, 1 << 20, 3<<20 + 1}
	bothMounts(t, 1<<20, func(*setup, func([]byte) int64, []byte) {}, func(t *testing.T, path string, want []byte, _ *server) {
		check(t, path, want)
	})
	needRoot(t)
	src := t.TempDir()
	contents := map[string][]byte{}
	for _, n := range sizes {
		name := fmt.Sprint(n)
		contents[name] = noise(t, filepath.Join(src, name), n)
	}
	sparse := make([]byte, 5<<20+3)
	copy(sparse[2<<20:], contents["70000"])
	f, err := os.Create(filepath.Join(src, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(f.Truncate(int64(len(sparse))), writeAt(f, contents["70000"], 2<<20)); err != nil {
		t.Fatal(err)
	}
	contents["sparse"] = sparse
	image := imageOf(t, src)
	asImage, asTree := t.TempDir(), t.TempDir()
	serve(t, setup{Dir: asImage, File: image})
	serve(t, setup{Dir: asTree, File: image, Tree: true})
	for kind, mnt := range map[string]string{"erofs": mountErofs(t, filepath.Join(asImage, "image")), "tree": asTree} {
		for name, want := range contents {
			t.Run(kind+" "+name, func(t *testing.T) { check(t, filepath.Join(mnt, name), want) })
		}
	}
}

func writeAt(f *os.File, p []byte, off int64) error {
	_, err := f.WriteAt(p, off)
	return err
}

// check reads a file in all ways and compares the bytes.
func check(t *testing.T, path string, want []byte) {
	t.Helper()
	rounds := 40
	if os.Getenv("PREMIX_SOAK") != "" {
		rounds = 5000
	}
	names := slices.Sorted(maps.Keys(ways))
	var readers sync.WaitGroup
	for range 6 {
		readers.Go(func() {
			f, err := os.Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			for range rounds {
				off := rand.IntN(len(want) + 1)
				n := 1 + rand.IntN(200_000)
				if rand.IntN(4) == 0 {
					_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
				}
				way := names[rand.IntN(len(names))]
				got, err := ways[way](int(f.Fd()), int64(off), n)
				if err != nil {
					t.Errorf("%s of %d at %d: %v", way, n, off, err)
					return
				}
				if !bytes.Equal(got, want[off:min(off+n, len(want))]) {
					t.Errorf("%s of %d at %d: %d bytes, which are wrong", way, n, off, len(got))
					return
				}
			}
		})
	}
	readers.Wait()
}

// The suite of go-fuse changes the files that it tests. It therefore runs on an overlay, as
// containers have it, with a mount of premix as the lower layer. Its tests that only read
// use files of the lower layer. Tests that fail on an overlay of ordinary directories too
// are skipped.
func TestPosix(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "lower"), []byte("layer"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(src, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	image := imageOf(t, src)
	asImage, asTree := t.TempDir(), t.TempDir()
	serve(t, setup{Dir: asImage, File: image})
	serve(t, setup{Dir: asTree, File: image, Tree: true})
	for kind, lower := range map[string]string{"erofs": mountErofs(t, filepath.Join(asImage, "image")), "tree": asTree} {
		for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
			t.Run(kind+" "+name, func(t *testing.T) {
				switch name {
				case "FdLeak":
					t.Skip("counts the descriptors of this process, which other tests have, too")
				case "FcntlFlockLocksFile":
					t.Skip("expects one process's locks to exclude each other, as on no file system of the kernel's")
				}
				posixtest.All[name](t, filepath.Join(overlay(t, lower), "empty"))
			})
		}
	}
}

// overlay mounts an overlay over a lower layer, and unmounts it at the end of the test.
func overlay(t *testing.T, lower string) string {
	t.Helper()
	upper, dir := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", upper, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(upper, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, d := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(upper, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lower, upper, upper)
	if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
		t.Skipf("no overlay on a file system such as this: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if b, err := os.ReadFile(filepath.Join(dir, "lower")); err != nil || string(b) != "layer" {
		t.Fatalf("through the overlay: %q, %v", b, err)
	}
	return dir
}

// find, tar and cp read a whole tree at the same time.
func TestToolsTogether(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	for i := range 300 {
		dir := filepath.Join(src, fmt.Sprint(i%17), fmt.Sprint(i%5))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(strings.Repeat(fmt.Sprint(i), i*10)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mnt := t.TempDir()
	serve(t, setup{Dir: mnt, File: imageOf(t, src), Tree: true})
	var tools sync.WaitGroup
	for _, args := range [][]string{
		{"diff", "-r", src, mnt}, {"find", mnt, "-size", "+1"}, {"tar", "-cf", "/dev/null", "-C", mnt, "."},
		{"cp", "-a", mnt, filepath.Join(t.TempDir(), "copy")}, {"diff", "-r", mnt, src}, {"du", "-s", mnt},
	} {
		tools.Go(func() {
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", args[0], err, out)
			}
		})
	}
	tools.Wait()
}
