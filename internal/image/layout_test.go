package image

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// linked returns a copy of a layout whose blobs are at other paths in it. link creates a
// link with the given target at the path of a blob.
func linked(t *testing.T, from string, link func(target, at string) error) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	blobs := filepath.Join(dir, "blobs/sha256")
	list, err := os.ReadDir(blobs)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if err := os.Rename(filepath.Join(blobs, e.Name()), filepath.Join(dir, "file-"+e.Name())); err != nil {
			t.Fatal(err)
		}
		if err := link("../../file-"+e.Name(), filepath.Join(blobs, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLayoutOfLinks(t *testing.T) {
	needRoot(t)
	im, err := random.Image(20000, 2)
	if err != nil {
		t.Fatal(err)
	}
	plain := writeLayout(t, im)
	s, o := newStore(t)
	want := add(t, s, o, "oci:"+plain, "plain:1")
	for kind, link := range map[string]func(target, at string) error{
		"symlinks": os.Symlink,
		"git":      func(target, at string) error { return os.WriteFile(at, []byte(target), 0o444) },
	} {
		a := add(t, s, o, "oci:"+linked(t, plain, link), kind+":1")
		if a.Record.Root != want.Record.Root {
			t.Errorf("%s: root %s, want %s", kind, a.Record.Root, want.Record.Root)
		}
	}
}

// Links that lead out of a layout are not followed, even if the target has the right
// content.
func TestLayoutLinksOut(t *testing.T) {
	im, err := random.Image(2000, 1)
	if err != nil {
		t.Fatal(err)
	}
	plain, outside := writeLayout(t, im), t.TempDir()
	for kind, link := range map[string]func(target, at string) error{
		"absolute": func(_, at string) error {
			return os.Symlink(filepath.Join(plain, "blobs/sha256", filepath.Base(at)), at)
		},
		"text": func(_, at string) error {
			return os.WriteFile(at, []byte(filepath.Join("../../..", plain, "blobs/sha256", filepath.Base(at))), 0o444)
		},
		"loop": func(_, at string) error { return os.Symlink(at, at) },
		"dir":  func(_, at string) error { return os.Symlink(outside, at) },
		"gone": func(_, at string) error { return os.Symlink("nowhere", at) },
	} {
		_, err := find(t.Context(), "oci:"+linked(t, plain, link), v1.Platform{OS: "linux", Architecture: "amd64"})
		var known *Error
		if !errors.As(err, &known) || known.Kind != Damaged || known.HintText == "" {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// TestRealLayout adds layouts in the form in which they were published.
func TestRealLayout(t *testing.T) {
	needRoot(t)
	for _, libc := range []string{"glibc", "musl"} {
		s, o := newStore(t)
		a, err := Add(t.Context(), s, "oci:"+testData(t, "oci/latest/"+libc+"/amd64"), nil, o)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Add(t.Context(), s, "oci:"+busybox(t, libc), nil, o)
		if err != nil || a.Record.Root != b.Record.Root {
			t.Errorf("%s: root %s, and %s of plain files: %v", libc, a.Record.Root, b.Record.Root, err)
		}
	}
}

// An image for several platforms can be added from a registry with a port, without a tag
// and without a name for the store.
func TestRegistryWithPort(t *testing.T) {
	web := httptest.NewServer(registry.New())
	defer web.Close()
	host := strings.TrimPrefix(web.URL, "http://")
	var adds []mutate.IndexAddendum
	digests := map[string]v1.Hash{}
	for _, p := range []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64", Variant: "v8"}, {OS: "unknown", Architecture: "unknown"}} {
		im, err := random.Image(1000, 1)
		if err != nil {
			t.Fatal(err)
		}
		if digests[p.Architecture], err = im.Digest(); err != nil {
			t.Fatal(err)
		}
		adds = append(adds, mutate.IndexAddendum{Add: im, Descriptor: v1.Descriptor{Platform: &p}})
	}
	ref, err := name.ParseReference(host + "/lab/tool")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, mutate.AppendManifests(empty.Index, adds...)); err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		s, err := find(t.Context(), "docker://"+host+"/lab/tool", v1.Platform{OS: "linux", Architecture: arch})
		if err != nil {
			t.Fatal(err)
		}
		if got := sum(s.manifest); got != digests[arch].String() {
			t.Errorf("%s: manifest %s, want %s", arch, got, digests[arch])
		}
		own, err := reference(nil, s.name)
		if want := strings.ReplaceAll(host, ":", "_") + "/lab/tool:latest"; err != nil || own.String() != want {
			t.Errorf("%s: it is named %s, want %s: %v", arch, own, want, err)
		}
	}
	if _, err := find(t.Context(), "docker://"+host+"/lab/tool", v1.Platform{OS: "linux", Architecture: "riscv64"}); err == nil {
		t.Error("an image for another platform was found")
	}
}
