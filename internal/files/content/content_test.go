package content

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// source makes a file with data at its begin, and in its middle over several pieces, which ends
// with a hole.
func source(t *testing.T) (*os.File, int64) {
	t.Helper()
	f := create(t, "source")
	const size = 9 << 20
	for at, n := range map[int64]int{0: 1, 4 << 20: 3<<20 + 5} {
		if _, err := f.WriteAt(bytes.Repeat([]byte("premix"), n/6+1)[:n], at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f, size
}

func create(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func blocks(t *testing.T, f *os.File) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks
}

func TestCopy(t *testing.T) {
	src, size := source(t)
	dst := create(t, "copy")
	copied, back := 0, 0
	if err := Copy(dst, src, size, func(n int) error {
		if copied += n; n == 0 {
			back++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(src.Name())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dst.Name()); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the copy of %d bytes has %d, or others (%v)", len(want), len(got), err)
	}
	if has, most := blocks(t, dst)*512, blocks(t, src)*512+64<<10; has > most {
		t.Errorf("the copy takes %d bytes on disk, its source and a little %d: holes were filled", has, most)
	}
	if copied < 3<<20+6 || back < 4 {
		t.Errorf("the pace was asked for %d bytes, and for %d pieces that were read back", copied, back)
	}
}

func TestEmpty(t *testing.T) {
	if err := Copy(create(t, "copy"), create(t, "source"), 0, func(int) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestPaceEnds(t *testing.T) {
	src, size := source(t)
	enough := errors.New("enough")
	calls := 0
	if err := Copy(create(t, "copy"), src, size, func(int) error {
		if calls++; calls == 3 {
			return enough
		}
		return nil
	}); !errors.Is(err, enough) || calls != 3 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func TestShorter(t *testing.T) {
	src, size := source(t)
	first := true
	if err := Copy(create(t, "copy"), src, size, func(int) error {
		if first {
			first = false
			return src.Truncate(4<<20 + 1000)
		}
		return nil
	}); !errors.Is(err, ErrShorter) {
		t.Errorf("a source that became shorter: %v", err)
	}
}

// Changes to the copy before its comparison are reported.
func TestDiffers(t *testing.T) {
	for name, spoil := range map[string]func(dst *os.File) error{
		"a byte":  func(dst *os.File) error { _, err := dst.WriteAt([]byte("x"), 5<<20); return err },
		"the end": func(dst *os.File) error { return dst.Truncate(5 << 20) },
	} {
		src, size := source(t)
		dst := create(t, "copy")
		spoiled := false
		if err := Copy(dst, src, size, func(n int) error {
			if n == 0 && !spoiled {
				spoiled = true
				return spoil(dst)
			}
			return nil
		}); !errors.Is(err, ErrDiffers) {
			t.Errorf("%s of the copy was changed: %v", name, err)
		}
	}
}

// Files are equal if their bytes are, wherever they have holes.
func TestEqual(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(other *os.File) error
		want   bool
	}{
		{"a copy", func(*os.File) error { return nil }, true},
		{"zeros in place of a hole", func(f *os.File) error { _, err := f.WriteAt(make([]byte, 1<<20), 2<<20); return err }, true},
		{"a byte in a hole", func(f *os.File) error { _, err := f.WriteAt([]byte("x"), 8<<20); return err }, false},
		{"a byte of data", func(f *os.File) error { _, err := f.WriteAt([]byte("x"), 5<<20); return err }, false},
		{"the last byte of data", func(f *os.File) error { _, err := f.WriteAt([]byte("x"), 7<<20+4); return err }, false},
		{"a hole in place of data", func(f *os.File) error {
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 5<<20, 4096)
		}, false},
		{"less", func(f *os.File) error { return f.Truncate(7 << 20) }, false},
	} {
		src, size := source(t)
		other := create(t, "other")
		if err := Copy(other, src, size, func(int) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if err := c.change(other); err != nil {
			t.Fatal(err)
		}
		for _, pair := range [][2]*os.File{{other, src}, {src, other}} {
			if got, err := Equal(pair[0], pair[1], size, func(int) error { return nil }); err != nil || got != c.want {
				t.Errorf("%s: %v, %v", c.name, got, err)
			}
		}
	}
	src, size := source(t)
	enough := errors.New("enough")
	if _, err := Equal(src, src, size, func(int) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("the pace ends it: %v", err)
	}
}
