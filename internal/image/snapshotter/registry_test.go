package snapshotter_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/stargz-snapshotter/estargz"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const noise = "etc/noise"

// stargz returns a layer as eStargz, with its TOC's digest in an annotation.
func stargz(t *testing.T, l v1.Layer) mutate.Addendum {
	t.Helper()
	r, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := estargz.Build(io.NewSectionReader(bytes.NewReader(plain), 0, int64(len(plain))))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	blob, err := io.ReadAll(b)
	if err != nil {
		t.Fatal(err)
	}
	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(blob)), nil }, tarball.WithCompressedCaching)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := made.Digest(); err != nil || sizeOfLayer(t, made) != int64(len(blob)) {
		t.Fatalf("the library changed the blob: %s, %v", d, err)
	}
	return mutate.Addendum{Layer: made, Annotations: map[string]string{estargz.TOCJSONDigestAnnotation: b.TOCDigest().String()}}
}

func sizeOfLayer(t *testing.T, l v1.Layer) int64 {
	t.Helper()
	n, err := l.Size()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// appended adds layers to an image.
func appended(t *testing.T, img v1.Image, adds ...mutate.Addendum) v1.Image {
	t.Helper()
	img, err := mutate.Append(img, adds...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// prepared requests the layers of an image as containerd does, with the labels that name
// it. A layer that the snapshotter does not have is committed empty, and counted.
func prepared(ctx context.Context, t *testing.T, s snapshots.Snapshotter, img v1.Image, ref string) (top string, missing int) {
	t.Helper()
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for i, chain := range chains(t, img) {
		key := fmt.Sprintf("extract-%d-%d %s", i, rand.Uint64(), chain)
		label := snapshots.WithLabels(map[string]string{"containerd.io/snapshot.ref": chain, "containerd.io/snapshot/cri.image-ref": ref, "containerd.io/snapshot/cri.manifest-digest": d.String()})
		_, err := s.Prepare(ctx, key, top, label)
		if err == nil {
			missing++
			name := fmt.Sprintf("unpacked-%d-%d", i, rand.Uint64())
			if err := s.Commit(ctx, name, key, label); err != nil {
				t.Fatal(err)
			}
			top = name
			continue
		}
		if !errdefs.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		found := ""
		if err := s.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
			found = info.Name
			return nil
		}, fmt.Sprintf(`labels."containerd.io/snapshot.ref"==%s,parent==%q`, chain, top)); err != nil || found == "" {
			t.Fatalf("layer %s exists, and is not found: %v", chain, err)
		}
		top = found
	}
	return top, missing
}

// big returns a layer of one file of incompressible bytes.
func big(t *testing.T, size int) v1.Layer {
	t.Helper()
	content := make([]byte, size)
	r := rand.New(rand.NewPCG(1, uint64(size)))
	for i := range content {
		content[i] = byte(r.Uint32())
	}
	return layer(t, file{name: "etc/"}, file{name: noise, content: string(content)})
}

// TestFromRegistry gets layers that no store has from the registry: those with an index
// lazily, others in parallel.
func TestFromRegistry(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.serve("--origin", m.origin.URL, "--lazy-registries")
	s := m.client()
	ctx := t.Context()

	// Plain layers, some of which need the layers below.
	large := big(t, 20<<20)
	plain := picture(t, base(t), large, upper(t),
		layer(t, file{name: "data/deep/no/parents", content: "p"}),
		hardLink(t, "data/link", "data/kept"))
	ref := m.push(plain, "plain:1")
	top, missing := prepared(ctx, t, s, plain, ref)
	if missing > 0 {
		t.Errorf("%d layers are left to containerd", missing)
	}
	m.look(ctx, s, top, func(dir string) {
		out, err := exec.Command("sh", "-c", "cd "+dir+` && ls covered; cat data/kept data/new data/link data/deep/no/parents; stat -c '%a %h' data data/link; sha256sum < etc/noise`).CombinedOutput()
		want := "above\nkept\nnew\nkept\np755 1\n755 2\n" + sumOf(t, large)
		if err != nil || string(out) != want {
			t.Errorf("%q (%v), want %q", out, err, want)
		}
	})

	// Layers of eStargz.
	lazy := appended(t, picture(t), stargz(t, base(t)), stargz(t, large), stargz(t, upper(t)))
	ref = m.push(lazy, "lazy:1")
	before := len(m.registry.fetched())
	top, missing = prepared(ctx, t, s, lazy, ref)
	if missing > 0 {
		t.Errorf("%d lazy layers are left to containerd", missing)
	}
	if n := m.mountsBelow("root/trees"); len(n) != 3 {
		t.Errorf("%d layers are mounted: %q", len(n), n)
	}
	if n := len(m.registry.fetched()) - before; n > 12 {
		t.Errorf("%d requests before the first read", n)
	}
	m.shows(ctx, s, top)
	m.look(ctx, s, top, func(dir string) {
		out, err := exec.Command("sh", "-c", "sha256sum < "+filepath.Join(dir, noise)).Output()
		if err != nil || string(out) != sumOf(t, large) {
			t.Errorf("%q: %v", out, err)
		}
	})

	// The worker dies, the node dies, the machine boots: what the cache has needs no registry.
	m.registry.down(true)
	m.run("node", "restart")
	m.shows(ctx, s, top)
	m.snapshotter.kill()
	m.run("node", "stop", "--lazy")
	if err := os.RemoveAll(m.path("home/run")); err != nil {
		t.Fatal(err)
	}
	m.serve("--origin", m.origin.URL, "--lazy-registries")
	s = m.client()
	m.shows(ctx, s, top)
	m.registry.down(false)

	// A registry that lies about a lazy layer: the layer is refused, or reads fail.
	m.registry.spoiled(func(w http.ResponseWriter, r *http.Request) bool {
		var from, to int
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil || to-from < 3000 {
			return false
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/*", from, to))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(make([]byte, to-from+1))
		return true
	})
	liar := appended(t, picture(t), stargz(t, big(t, 20_000)))
	if _, missing = prepared(ctx, t, s, liar, m.push(liar, "liar:1")); missing == 0 {
		t.Error("a layer with a wrong index is used")
	}
	wrong := picture(t, big(t, 1<<20))
	if _, missing = prepared(ctx, t, s, wrong, m.push(wrong, "wrong:1")); missing == 0 {
		t.Error("a layer with wrong bytes is used")
	}
	m.registry.spoiled(nil)

	// A registry that does not answer, perhaps since containerd has a mirror for it, is
	// asked once for all layers and images.
	images := []v1.Image{picture(t, base(t), upper(t)), picture(t, base(t), upper(t))}
	var refs []string
	for i, img := range images {
		refs = append(refs, m.push(img, fmt.Sprintf("silent:%d", i)))
	}
	m.registry.down(true)
	_, missing = prepared(ctx, t, s, images[0], refs[0])
	asked := m.registry.request.Load()
	if _, again := prepared(ctx, t, s, images[1], refs[1]); missing != 2 || again != 2 || m.registry.request.Load() != asked {
		t.Errorf("%d and %d layers are left to containerd after %d and %d requests", missing, again, asked, m.registry.request.Load())
	}
	m.registry.down(false)

	if err := clear(ctx, s); err != nil {
		t.Fatal(err)
	}
	m.emptied()
	if left, err := os.ReadDir(m.path("root/layers")); err != nil || len(left) > 0 {
		t.Errorf("descriptions are left: %v, %v", left, err)
	}
}

func hardLink(t *testing.T, name, to string) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []tar.Header{{Name: "data/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: name, Typeflag: tar.TypeLink, Linkname: to, Mode: 0o755, ModTime: time.Unix(1e9, 0)}} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return static.NewLayer(buf.Bytes(), types.OCIUncompressedLayer)
}

// sumOf returns the output of sha256sum for the file of a big layer.
func sumOf(t *testing.T, l v1.Layer) string {
	t.Helper()
	r, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == noise {
			cmd := exec.Command("sha256sum")
			cmd.Stdin = tr
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		}
	}
}

// TestContainerdFromRegistry pulls images that no store has with a real containerd, also
// with credentials that only the request of CRI has.
func TestContainerdFromRegistry(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"system", "2.4.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.serve("--origin", m.origin.URL, "--lazy-registries", "--image-service", m.path("c"))
			c := m.newContainerd(version, true)
			lazy := appended(t, picture(t), stargz(t, base(t)), stargz(t, upper(t)))
			ref := m.push(lazy, "lazy:1")
			secret := base64.StdEncoding.EncodeToString([]byte("ann:secret"))
			locked := true
			m.registry.spoiled(func(w http.ResponseWriter, r *http.Request) bool {
				if !locked || r.Header.Get("Authorization") == "Basic "+secret {
					return false
				}
				w.Header().Set("WWW-Authenticate", `Basic realm="lab"`)
				w.WriteHeader(http.StatusUnauthorized)
				return true
			})
			if err := c.pullAs(ref, "", ""); err == nil {
				t.Error("the image is pulled without credentials")
			}
			if err := c.pullAs(ref, "ann", "secret"); err != nil {
				t.Fatal(err)
			}
			if n := m.mountsBelow("root/trees"); len(n) != 2 {
				t.Errorf("%d layers are mounted: %q", len(n), n)
			}
			if out, err := c.container(ref, "lazy", "sh", "-c", showContent+"; echo x >/written; cat /written"); err != nil || out != wantContent+"x\n" {
				t.Errorf("content: %v\n%s", err, out)
			}
			locked = false

			large := big(t, 9<<20)
			plain := picture(t, base(t), upper(t), large)
			ref = m.push(plain, "plain:1")
			if err := c.pullAs(ref, "", ""); err != nil {
				t.Fatal(err)
			}
			if log, err := os.ReadFile(m.path("snapshotter.log")); err != nil || strings.Count(string(log), "fetched and unpacked") != 5 {
				t.Errorf("%v: the snapshotter did not fetch all layers:\n%s", err, log)
			}
			if n := m.registry.requests("/manifests/" + digestOf(t, plain.Digest)); n != 1 {
				t.Errorf("%d requests for the manifest, of which containerd has a copy", n)
			}
			if n := m.registry.requests("/blobs/" + digestOf(t, plain.ConfigName)); n != 1 {
				t.Errorf("%d requests for the configuration, of which containerd has a copy", n)
			}
			if n := m.registry.requests("/blobs/" + digestOf(t, large.Digest)); n != 8 {
				t.Errorf("a layer arrives in %d parts", n)
			}
			if out, err := c.container(ref, "plain", "sh", "-c", showContent); err != nil || out != wantContent {
				t.Errorf("content: %v\n%s", err, out)
			}
		})
	}
}

// digestOf returns the result of a method that returns a digest.
func digestOf(t *testing.T, of func() (v1.Hash, error)) string {
	t.Helper()
	d, err := of()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// TestStoreFirst requests the layers of an image that the store has. The registry is only asked
// for a login.
func TestStoreFirst(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.serve("--origin", m.origin.URL)
	img := picture(t, base(t), upper(t))
	ref := m.push(img, "stored:1")
	m.add(ref, "stored:1")
	s := m.client()
	ctx := t.Context()
	if _, missing := prepared(ctx, t, s, img, ref); missing > 0 {
		t.Errorf("%d layers are left to containerd", missing)
	}
	if n := m.registry.requests(""); n != m.registry.requests("/v2/") || n > 1 {
		t.Errorf("%d requests to the registry for an image in the store", n)
	}
	if err := clear(ctx, s); err != nil {
		t.Fatal(err)
	}
	m.emptied()
}

// pullAs pulls an image by the CRI that the snapshotter passes on.
func (c *containerd) pullAs(ref, user, password string) error {
	conn, err := grpc.NewClient("unix://"+c.path("snap"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	field := func(number byte, value []byte) []byte { // of less than 128 bytes
		return slices.Concat([]byte{number<<3 | 2, byte(len(value))}, value)
	}
	in := field(1, field(1, []byte(ref)))
	if user != "" {
		in = append(in, field(2, slices.Concat(field(1, []byte(user)), field(2, []byte(password))))...)
	}
	var out []byte
	err = conn.Invoke(ctx, "/runtime.v1.ImageService/PullImage", in, &out, grpc.ForceCodec(plain{}))
	if err != nil && strings.Contains(err.Error(), "unknown service") {
		err = conn.Invoke(ctx, "/runtime.v1alpha2.ImageService/PullImage", in, &out, grpc.ForceCodec(plain{}))
	}
	return err
}
