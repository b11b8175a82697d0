package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"premix/internal/manual"
)

// The reference in docs/cli is up to date with the commands.
func TestReference(t *testing.T) {
	a := &app{stdout: io.Discard, stderr: io.Discard}
	dir := t.TempDir()
	if err := manual.Write(a.root(nil), dir); err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadDir(filepath.Join(dir, "cli"))
	if err != nil || len(made) < 20 {
		t.Fatalf("%d pages, %v", len(made), err)
	}
	kept, err := os.ReadDir("../../docs/cli")
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) != len(made) {
		t.Errorf("docs/cli has %d pages, and there are %d verbs: make reference", len(kept), len(made))
	}
	for _, page := range made {
		want, err := os.ReadFile(filepath.Join(dir, "cli", page.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join("../../docs/cli", page.Name())); err != nil || string(got) != string(want) {
			t.Errorf("docs/cli/%s is not up to date (%v): make reference", page.Name(), err)
		}
	}
}
