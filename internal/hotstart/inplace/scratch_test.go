package inplace

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// The scratch directory of a killed process is removed, and directories in use stay.
func TestScratch(t *testing.T) {
	dir := t.TempDir()
	dead, foreign := filepath.Join(dir, scratchName+"dead"), filepath.Join(dir, "premix-other")
	for _, path := range []string{filepath.Join(dead, "first", "pages"), foreign} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(foreign, filepath.Join(dir, scratchName+"link")); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				path, unlock, err := makeScratch(dir)
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.Mkdir(filepath.Join(path, "mine"), 0o700); err != nil {
					t.Error(err)
				}
				if err := os.RemoveAll(path); err != nil {
					t.Error(err)
				}
				unlock()
			}
		})
	}
	all.Wait()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 { // foreign, and the link to it
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
}
