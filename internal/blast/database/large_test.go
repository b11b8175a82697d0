package database

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A process that maps a file at an aligned address gets large pages, and the bytes are unchanged.
func TestLargePages(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "premix-large-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "file")
	want := bytes.Repeat([]byte("ACGTTGCA"), (2*largePage+5000)/8)
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	// The kernel returns the same result for a wrong address, so the test checks the setting.
	const setting = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
	if text, err := os.ReadFile(setting); err != nil || strings.Contains(string(text), "[deny]") {
		t.Skipf("this kernel makes no large pages of files in memory: %s says %q (%v)", setting, text, err)
	}
	var u unix.Utsname
	var major, minor int
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if major < 6 || major == 6 && minor < 1 {
		t.Skipf("Linux %d.%d has no MADV_COLLAPSE: 6.1 has", major, minor)
	}
	if err := useLargePages(path); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the file has changed: %v", err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at, release, err := mapLarge(f, 2*largePage)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for i := range 2 {
		if b := *(*byte)(unsafe.Add(at, i*largePage+3)); b != 'T' {
			t.Errorf("byte %q", b)
		}
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, entry, found := strings.Cut(string(maps), fmt.Sprintf("\n%x-", uintptr(at)))
	entry, _, whole := strings.Cut(entry, "VmFlags")
	if !found || !whole || !strings.Contains(strings.Join(strings.Fields(entry), " "), "ShmemPmdMapped: 4096 kB") {
		t.Errorf("not mapped by large pages:\n%s", entry)
	}
}

func TestLargePagesOfNothing(t *testing.T) {
	small := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(small, []byte("ACGT"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := useLargePages(small); err != nil {
		t.Error(err)
	}
	if err := useLargePages(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
