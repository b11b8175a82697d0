package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// seedArchive returns an archive of headers for the corpus.
func seedArchive(f *testing.F, entries ...*tar.Header) []byte {
	f.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if err := w.WriteHeader(h); err != nil {
			f.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(make([]byte, h.Size)); err != nil {
				f.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	return b.Bytes()
}

// FuzzApply checks that no archive changes anything outside of the directory, and that a
// bad one ends in an error that describes it.
func FuzzApply(f *testing.F) {
	if os.Geteuid() != 0 {
		f.Skip("owners and devices need root")
	}
	f.Add(seedArchive(f, dir("a", 0o755), file("a/b"), symlink("a/c", "../../outside"), file("a/c/x"), link("d", "a/b")), false)
	f.Add(seedArchive(f, symlink("up", ".."), file("up/outside/kept"), link("k", "../outside/kept"), file("../outside/new")), false)
	f.Add(seedArchive(f, symlink("abs", "/"), file("abs/etc/x"), file("a/.wh.b"), file(".wh..wh..opq")), true)
	f.Add(seedArchive(f, with(dir("x", 0o755), func(h *tar.Header) { h.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"} })), true)
	f.Fuzz(func(t *testing.T, archive []byte, overlay bool) {
		base := t.TempDir()
		outside, in := filepath.Join(base, "outside"), filepath.Join(base, "in")
		for _, d := range []string{outside, in} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		kept := filepath.Join(outside, "kept")
		if err := os.WriteFile(kept, []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		before, err := os.Stat(kept)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Apply(context.Background(), in, bytes.NewReader(archive), Options{Overlay: overlay, Limits: &Limits{Entries: 200, Bytes: 1 << 20}})
		var bad *Error
		var limit *LimitError
		if err != nil && !errors.As(err, &bad) && !errors.As(err, &limit) {
			t.Fatalf("%T: %v", err, err)
		}
		after, err := os.Stat(kept)
		if err != nil || after.ModTime() != before.ModTime() || after.Mode() != before.Mode() || after.Size() != before.Size() {
			t.Fatalf("outside: %v, %v; it was %v", after, err, before)
		}
		for _, d := range []string{base, outside} {
			want := map[string]int{base: 2, outside: 1}[d]
			if entries, err := os.ReadDir(d); err != nil || len(entries) != want {
				t.Fatalf("%s has %v, %v", d, entries, err)
			}
		}
		// t.TempDir cannot remove directories whose modes forbid it.
		if err := filepath.WalkDir(in, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				err = os.Chmod(path, 0o700)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	})
}
