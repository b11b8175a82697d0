package lines

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/kit/lock"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// all returns the complete lines of a file, and their end.
func all(t *testing.T, f *os.File) (string, int64) {
	t.Helper()
	var b strings.Builder
	end, err := Read(f, 0, func(line []byte, at int64) error {
		if at != int64(b.Len()) {
			t.Errorf("a line at %d, after %d bytes", at, b.Len())
		}
		b.Write(line)
		return nil
	})
	must(t, err)
	return b.String(), end
}

func size(t *testing.T, f *os.File) int64 {
	t.Helper()
	info, err := f.Stat()
	must(t, err)
	return info.Size()
}

// A file that is cut at any byte keeps its complete lines, and the next line is appended after
// them.
func TestEveryCut(t *testing.T) {
	const text = "one\n\nthree and more\n"
	for cut := 0; cut <= len(text); cut++ {
		f := open(t, filepath.Join(t.TempDir(), "log"))
		must(t, errors.Join(os.WriteFile(f.Name(), []byte(text[:cut]), 0o600)))
		whole := text[:strings.LastIndexByte(text[:cut], '\n')+1]
		got, end := all(t, f)
		if got != whole || end != int64(len(whole)) {
			t.Errorf("cut at %d: %q up to %d, want %q", cut, got, end, whole)
		}
		end, err := Append(f, end, []byte("next\n"), true)
		must(t, err)
		if got, now := all(t, f); got != whole+"next\n" || now != end || size(t, f) != end {
			t.Errorf("cut at %d: %q, %d of %d bytes", cut, got, now, size(t, f))
		}
	}
}

// A process that is killed while it appends leaves a prefix of the text. Readers ignore it, and the
// next append replaces it.
func TestKilledWhileItAppends(t *testing.T) {
	defer func() { writeAt = (*os.File).WriteAt }()
	const text = "one\ntwo\n"
	for n := 0; n < len(text); n++ {
		f := open(t, filepath.Join(t.TempDir(), "log"))
		end, err := Append(f, 0, []byte("header\n"), true)
		must(t, err)
		writeAt = func(f *os.File, b []byte, at int64) (int, error) {
			if _, err := f.WriteAt(b[:n], at); err != nil {
				t.Error(err)
			}
			panic("killed")
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = Append(f, end, []byte(text), true)
			t.Error("it lives")
		}()
		writeAt = (*os.File).WriteAt
		// A writer that last read before the kill does not know of a complete line from the killed
		// process.
		_, err = Append(f, end, []byte("three\n"), true)
		must(t, err)
		if got, _ := all(t, f); got != "header\nthree\n" {
			t.Errorf("%d bytes: %q", n, got)
		}
	}
}

// If a call fails, no part of the text stays.
func TestFaults(t *testing.T) {
	defer func() { writeAt, fdatasync = (*os.File).WriteAt, unix.Fdatasync }()
	for name, set := range map[string]func(){
		"write": func() {
			writeAt = func(f *os.File, b []byte, at int64) (int, error) {
				n, err := f.WriteAt(b[:len(b)/2], at)
				return n, errors.Join(err, unix.ENOSPC)
			}
		},
		"sync": func() { fdatasync = func(int) error { return unix.ENOSPC } },
	} {
		f := open(t, filepath.Join(t.TempDir(), "log"))
		end, err := Append(f, 0, []byte("one\n"), true)
		must(t, err)
		set()
		now, err := Append(f, end, []byte("two\n"), true)
		if !errors.Is(err, unix.ENOSPC) || now != end || size(t, f) != end {
			t.Errorf("%s: %v, %d of %d bytes", name, err, now, size(t, f))
		}
		writeAt, fdatasync = (*os.File).WriteAt, unix.Fdatasync
	}
}

func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("premix-test", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("needs the right to mount a small file system: ", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	f := open(t, filepath.Join(dir, "log"))
	defer f.Close()
	end, err := Append(f, 0, []byte("one\n"), true)
	must(t, err)
	if _, err := Append(f, end, make([]byte, 1<<20), true); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, want %v", err, unix.ENOSPC)
	}
	if got, _ := all(t, f); got != "one\n" || size(t, f) != 4 {
		t.Errorf("%q in %d bytes", got, size(t, f))
	}
}

// A file that was shortened by another process gets no hole.
func TestShorter(t *testing.T) {
	f := open(t, filepath.Join(t.TempDir(), "log"))
	end, err := Append(f, 0, []byte("one\n"), true)
	must(t, err)
	must(t, f.Truncate(2))
	if _, err := Append(f, end, []byte("two\n"), true); !errors.Is(err, ErrShorter) || size(t, f) != 2 {
		t.Errorf("%v, %d bytes", err, size(t, f))
	}
}

// Space reserved after the end is kept with each line.
func TestReserved(t *testing.T) {
	f := open(t, filepath.Join(t.TempDir(), "log"))
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20); err != nil {
		t.Skip("this file system cannot reserve space: ", err)
	}
	_, err := Append(f, 0, []byte("one\n"), true)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	if st.Blocks*512 < 1<<20 {
		t.Errorf("%d bytes are left of those reserved", st.Blocks*512)
	}
}

// Writers that take turns with a lock do not lose each other's lines while a reader follows.
func TestTwoWriters(t *testing.T) {
	const each = 300
	path := filepath.Join(t.TempDir(), "log")
	reader := open(t, path)
	var work sync.WaitGroup
	for w := range 2 {
		f := open(t, path)
		work.Go(func() {
			end := int64(0)
			for n := range each {
				if err := lock.Await(t.Context(), f, lock.Exclusive); err != nil {
					t.Error(err)
					return
				}
				var err error
				if end, err = Read(f, end, func([]byte, int64) error { return nil }); err == nil {
					end, err = Append(f, end, fmt.Appendf(nil, "%d %d\n", w, n), false)
				}
				if n%7 == 0 { // as from a killed process
					_, werr := f.WriteAt([]byte("half a li"), end)
					err = errors.Join(err, werr)
				}
				if err = errors.Join(err, lock.Release(f)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var next [2]int
	end := int64(0)
	follow := func() {
		var err error
		end, err = Read(reader, end, func(line []byte, _ int64) error {
			var w, n int
			if _, err := fmt.Sscanf(string(line), "%d %d\n", &w, &n); err != nil || n != next[w] {
				return fmt.Errorf("%q: %v, want %v", line, err, next)
			}
			next[w]++
			return nil
		})
		must(t, err)
	}
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	for finished := false; !finished; {
		select {
		case <-done:
			finished = true
		default:
		}
		follow()
	}
	if next != [2]int{each, each} {
		t.Errorf("%v lines, want %d of each", next, each)
	}
}

// replaced is a file in which another writer replaces a torn end during the first read.
type replaced struct {
	torn, whole string
	readings    int
}

func (r *replaced) ReadAt(b []byte, at int64) (int, error) {
	text := r.whole
	if r.readings++; r.readings == 1 {
		text = r.torn + r.whole[len(r.torn):]
	}
	return strings.NewReader(text).ReadAt(b, at)
}

// A reader without the writers' lock never joins the beginning of one line to the end of another.
func TestReplacedWhileRead(t *testing.T) {
	for _, torn := range []string{"task 1", "task 1 exit 0\ntask", strings.Repeat("y", 1<<20)} {
		whole := strings.Repeat("x", len(torn)) + " 1\ntask 3 exit 0\n"
		var got strings.Builder
		_, err := Read(&replaced{torn: torn, whole: whole}, 0, func(line []byte, _ int64) error {
			got.Write(line)
			return nil
		})
		if err != nil || got.String() != whole {
			t.Errorf("%.40q, %v", got.String(), err)
		}
	}
}

// Lines of any length are read. An error of the callback ends the reading before its line.
func TestRead(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 1<<20)
	text := append(append([]byte("one\n"), long...), "\nthree\nhalf"...)
	var got []int
	end, err := Read(bytes.NewReader(text), 0, func(line []byte, _ int64) error {
		got = append(got, len(line))
		return nil
	})
	if err != nil || fmt.Sprint(got) != "[4 1048577 6]" || end != int64(len(text)-4) {
		t.Errorf("%v up to %d, %v", got, end, err)
	}
	stop := errors.New("stop")
	end, err = Read(bytes.NewReader(text), 4, func(_ []byte, at int64) error {
		if at > 4 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || end != int64(4+len(long)+1) {
		t.Errorf("%v at %d", err, end)
	}
}

func TestLast(t *testing.T) {
	for text, want := range map[string][]string{
		"": nil, "\n\n": nil, "a": {"a"}, "a\nb\nc\n": {"b", "c"}, "a\r\nb\r\n\r\n": {"a", "b"},
		"1 %\r2 %\r3 %\nend\n": {"3 %", "end"}, "\xff\n": {"?"}, "a\n\nb": {"", "b"},
	} {
		if got := Last([]byte(text), 2); !slices.Equal(got, want) {
			t.Errorf("Last(%q) = %q, want %q", text, got, want)
		}
	}
}
