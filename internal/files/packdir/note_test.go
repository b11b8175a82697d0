package packdir

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"premix/internal/kit/beneath"
)

// A temporary note of a killed process is removed by the next write. Files of other writers stay.
func TestSweepsNotes(t *testing.T) {
	parent := t.TempDir()
	n := Note{Name: "data", Ref: "data@1", Tree: "1", Store: "/store", State: unpacked}
	left, other := n, n
	left.State, other.Name = packed, "else"
	file := func(name string, content any) string {
		t.Helper()
		text, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(parent, beneath.Prefix+name)
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	gone := []string{file("A", left), file("B", n)}
	stays := []string{file("C", other), file("D", "a text"), file("E", map[string]string{"name": "data"})}
	if err := n.write(filepath.Join(parent, "data")); err != nil {
		t.Fatal(err)
	}
	for _, path := range gone {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	for _, path := range stays {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}
