package main

import (
	"bytes"
	"crypto/sha256"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReproducible builds the program of shims in two directories and compares the bytes.
// With the flags of scripts/dist.sh, a program does not depend on the directory. With
// PREMIX_SOAK=1 it makes two releases for both processors, in different directories, at
// different times and with different umasks. It signs them and compares all files.
func TestReproducible(t *testing.T) {
	if os.Getenv("PREMIX_SOAK") != "" {
		releases(t)
		return
	}
	script, err := os.ReadFile("../dist.sh")
	if err != nil || strings.Count(string(script), "build -trimpath -buildvcs=false") != 3 {
		t.Fatalf("scripts/dist.sh builds with other flags (%v)", err)
	}
	var sums [][32]byte
	for range 2 {
		dir := filepath.Join(t.TempDir(), "elsewhere")
		copyOf(t, dir)
		out := filepath.Join(dir, "premix-shim")
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -E premix_entry", "-o", out, "./cmd/premix-shim")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		program, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(program, []byte(dir)) {
			t.Errorf("the program names %s", dir)
		}
		sums = append(sums, sha256.Sum256(program))
	}
	if sums[0] != sums[1] {
		t.Errorf("two builds differ: %x, %x", sums[0], sums[1])
	}
}

// copyOf copies the committed files of the repository to dir.
func copyOf(t *testing.T, dir string) {
	t.Helper()
	if text, err := exec.Command("git", "clone", "-q", "--depth", "1", "file://"+top(t), dir).CombinedOutput(); err != nil {
		t.Skipf("this is not a clone of the repository: %s", text)
	}
}

func top(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func releases(t *testing.T) {
	work := t.TempDir()
	key := filepath.Join(work, "key")
	if text, err := exec.Command("openssl", "genpkey", "-algorithm", "ed25519", "-out", key).CombinedOutput(); err != nil {
		t.Skipf("openssl: %v %s", err, text)
	}
	var outs []string
	for _, place := range []struct{ name, umask, zone string }{{"a", "022", "UTC"}, {"b/deeper", "077", "Asia/Tokyo"}} {
		source := filepath.Join(work, place.name)
		copyOf(t, source)
		out := filepath.Join(work, "out-"+place.umask)
		cmd := exec.Command("bash", "-c", "umask "+place.umask+" && scripts/dist.sh "+out)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "TZ="+place.zone, "RELEASE_KEY="+key, "DIST_TOOLS="+filepath.Join(top(t), "bin/tools"))
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		outs = append(outs, out)
	}
	installsByRecipe(t, outs[0])
	first, second := files(t, outs[0]), files(t, outs[1])
	if len(first) < 14 || len(first) != len(second) {
		t.Fatalf("%d and %d files", len(first), len(second))
	}
	for name, content := range first {
		if !bytes.Equal(content, second[name]) {
			t.Errorf("%s differs", name)
		}
	}
}
