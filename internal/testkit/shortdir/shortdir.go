package shortdir

import (
	"os"
	"testing"
)

// Base returns the directory for temporary files, or /tmp if its path is long.
func Base() string {
	if base := os.TempDir(); len(base) <= 32 {
		return base
	}
	return "/tmp"
}

// New returns a directory that is removed when the test ends. Its path has at most 50
// bytes.
func New(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(Base(), "pmx-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
