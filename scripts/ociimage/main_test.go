package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// An image for two processors is valid and contains their files. It is the same if it is
// made again, later and in another directory.
func TestImage(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	var seen []map[string][]byte
	for range 2 {
		dir := t.TempDir()
		var parts []string
		for _, arch := range []string{"amd64", "arm64"} {
			root := filepath.Join(dir, arch)
			if err := os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, "usr/bin/premix"), []byte("program for "+arch), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("premix", filepath.Join(root, "usr/bin/link")); err != nil {
				t.Fatal(err)
			}
			parts = append(parts, arch+"="+root)
		}
		out := filepath.Join(dir, "layout")
		if err := write(out, "premix:test", at, parts); err != nil {
			t.Fatal(err)
		}
		check(t, out)
		seen = append(seen, files(t, out))
	}
	if len(seen[0]) < 8 || len(seen[0]) != len(seen[1]) {
		t.Fatalf("%d and %d files", len(seen[0]), len(seen[1]))
	}
	for name, content := range seen[0] {
		if !bytes.Equal(content, seen[1][name]) {
			t.Errorf("%s differs", name)
		}
	}
}

// check reads the layout with another program's library.
func check(t *testing.T, out string) {
	t.Helper()
	index, err := layout.ImageIndexFromPath(out)
	if err != nil {
		t.Fatal(err)
	}
	top, err := index.IndexManifest()
	if err != nil || len(top.Manifests) != 1 || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "premix:test" {
		t.Fatalf("%+v, %v", top, err)
	}
	inner, err := index.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := inner.IndexManifest()
	if err != nil || len(manifest.Manifests) != 2 {
		t.Fatalf("%+v, %v", manifest, err)
	}
	for _, m := range manifest.Manifests {
		image, err := inner.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		layers, err := image.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
		config, err := image.ConfigFile()
		if err != nil || config.Architecture != m.Platform.Architecture {
			t.Errorf("%+v, %v, want %s", config, err, m.Platform.Architecture)
		}
		r, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for in := tar.NewReader(r); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(in)
			if err != nil || h.Uid != 0 || h.Gid != 0 {
				t.Errorf("%s: %v, owner %d:%d", h.Name, err, h.Uid, h.Gid)
			}
			got[h.Name] = string(content) + h.Linkname
		}
		if got["usr/bin/premix"] != "program for "+m.Platform.Architecture || got["usr/bin/link"] != "premix" {
			t.Errorf("%s has %v", m.Platform.Architecture, got)
		}
	}
}

func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		all[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
