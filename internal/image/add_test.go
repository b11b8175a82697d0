package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/store"
	"premix/internal/store/object"
	"premix/internal/store/tree"
	"premix/internal/testkit/testtree"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("unpacking images needs root")
	}
}

// newStore creates a store that does not sync its writes to disk.
func newStore(t *testing.T) (*store.Store, Options) {
	t.Helper()
	top := t.TempDir()
	s, err := store.Init(filepath.Join(top, "store"), store.Options{Home: filepath.Join(top, "home"), Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	return s, Options{Key: key}
}

func add(t *testing.T, s *store.Store, o Options, source, ref string) *Added {
	t.Helper()
	r, err := tree.ParseRef(ref)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Add(t.Context(), s, source, &r, o)
	if err != nil {
		t.Fatalf("add %s: %v", source, err)
	}
	return a
}

// mounted writes the image of a tree to a file and mounts it.
func mounted(t *testing.T, s *store.Store, d object.Digest) string {
	t.Helper()
	tr, err := s.Tree(d)
	if err != nil {
		t.Fatal(err)
	}
	top := t.TempDir()
	file, dir := filepath.Join(top, "image"), filepath.Join(top, "mnt")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(f, io.NewSectionReader(tr, 0, tr.Size()))
	if err := errors.Join(err, f.Close(), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	err = unix.Mount(file, dir, "erofs", unix.MS_RDONLY, "")
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOTBLK) {
		t.Skipf("the kernel mounts no EROFS from a file: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// entry returns the header and the content of an entry of a layer's archive.
func entry(typ byte, name string, mode int64, content string) (tar.Header, string) {
	h := tar.Header{Typeflag: typ, Name: name, Mode: mode, ModTime: time.Unix(1_600_000_000, 0)}
	if typ == tar.TypeReg {
		h.Size = int64(len(content))
	} else {
		h.Linkname = content
	}
	return h, content
}

type archiveBuilder struct {
	t *testing.T
	b bytes.Buffer
	w *tar.Writer
}

func newArchive(t *testing.T) *archiveBuilder {
	a := &archiveBuilder{t: t}
	a.w = tar.NewWriter(&a.b)
	return a
}

func (a *archiveBuilder) put(typ byte, name string, mode int64, content string) *archiveBuilder {
	h, _ := entry(typ, name, mode, content)
	if err := a.w.WriteHeader(&h); err != nil {
		a.t.Fatal(err)
	}
	if typ == tar.TypeReg {
		if _, err := io.WriteString(a.w, content); err != nil {
			a.t.Fatal(err)
		}
	}
	return a
}

func (a *archiveBuilder) bytes() []byte {
	if err := a.w.Close(); err != nil {
		a.t.Fatal(err)
	}
	return a.b.Bytes()
}

// base, top and lean return the archives of layers; lean needs the layers below it.
func base(t *testing.T) []byte {
	return newArchive(t).put(tar.TypeDir, "etc/", 0o755, "").put(tar.TypeReg, "etc/passwd", 0o644, "root:x:0:0::/:/bin/sh\n").
		put(tar.TypeDir, "tmp/", 0o1777, "").put(tar.TypeReg, "tmp/gone", 0o600, "gone").put(tar.TypeReg, "big", 0o755, strings.Repeat("big", 1<<19)).bytes()
}

func top(t *testing.T, text string) []byte {
	return newArchive(t).put(tar.TypeDir, "tmp/", 0o1777, "").put(tar.TypeReg, "tmp/.wh.gone", 0, "").
		put(tar.TypeDir, "opt/", 0o755, "").put(tar.TypeReg, "opt/tool", 0o4755, text).bytes()
}

func lean(t *testing.T) []byte { return newArchive(t).put(tar.TypeReg, "tmp/file", 0o644, "x").bytes() }

type plainLayer struct {
	v1.Layer
	diff v1.Hash
	data []byte
}

func (l *plainLayer) DiffID() (v1.Hash, error) { return l.diff, nil }
func (l *plainLayer) Uncompressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.data)), nil
}

// layerOf returns a layer, compressed as how says.
func layerOf(t *testing.T, data []byte, how string) v1.Layer {
	t.Helper()
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	diff, _, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	switch how {
	case "gzip":
		l, err := tarball.LayerFromOpener(opener)
		if err != nil {
			t.Fatal(err)
		}
		return l
	case "plain":
		return &plainLayer{static.NewLayer(data, types.OCIUncompressedLayer), diff, data}
	}
	var z bytes.Buffer
	w, err := zstd.NewWriter(&z)
	if err == nil {
		_, err = w.Write(data)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return &plainLayer{static.NewLayer(z.Bytes(), types.OCILayerZStd), diff, data}
}

func imageOf(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	im, err := mutate.AppendLayers(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1), layers...)
	if err != nil {
		t.Fatal(err)
	}
	c, err := im.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", "amd64"
	c.Config.Env, c.Config.Cmd, c.Config.User = []string{"A=b"}, []string{"tool"}, "nobody"
	if im, err = mutate.ConfigFile(im, c); err != nil {
		t.Fatal(err)
	}
	return im
}

func writeLayout(t *testing.T, im v1.Image, opts ...layout.Option) string {
	t.Helper()
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = l.AppendImage(im, opts...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestSources adds one image from every kind of source and in every compression. It has the
// same root each time, and its layers are unpacked only once.
func TestSources(t *testing.T) {
	needRoot(t)
	s, o := newStore(t)
	data := [][]byte{base(t), top(t, "one"), lean(t)}
	var first *Added
	check := func(what, source string, wantUnpacked int) {
		t.Helper()
		a := add(t, s, o, source, "test/"+what+":1")
		if first == nil {
			first = a
		}
		if a.Record.Root != first.Record.Root || a.Unpacked != wantUnpacked {
			t.Errorf("%s: root %s, want %s; %d layers unpacked, want %d", what, a.Record.Root.Short(), first.Record.Root.Short(), a.Unpacked, wantUnpacked)
		}
	}
	for i, how := range []string{"gzip", "zstd", "plain"} {
		var layers []v1.Layer
		for _, d := range data {
			layers = append(layers, layerOf(t, d, how))
		}
		im := imageOf(t, layers...)
		want := 0
		if i == 0 {
			want = 3
		}
		check(how, "oci:"+writeLayout(t, im), want)
		if how == "plain" {
			continue
		}
		web := httptest.NewServer(registry.New())
		defer web.Close()
		ref, err := name.ParseReference(strings.TrimPrefix(web.URL, "http://") + "/a/b:c")
		if err == nil {
			err = remote.Write(ref, im)
		}
		if err != nil {
			t.Fatal(err)
		}
		check(how+"-registry", "docker://"+ref.String(), 0)
		if how == "gzip" {
			file := filepath.Join(t.TempDir(), "saved.tar")
			tag, err := name.NewTag("a/saved:1")
			if err == nil {
				err = tarball.WriteToFile(file, tag, im)
			}
			if err != nil {
				t.Fatal(err)
			}
			check("saved", "docker-archive:"+file, 0)
			a, err := Add(t.Context(), s, "docker-archive:"+file, nil, o)
			if err != nil || a.Ref.String() != "a/saved:1" {
				t.Errorf("an archive's own name: %v, %v", a, err)
			}
		}
	}
	im, _, err := Load(s, tree.Ref{Name: "test/gzip", Tag: "1"})
	if err != nil || !slices.Equal(im.Settings.Env, []string{"A=b"}) || im.Settings.User != "nobody" {
		t.Errorf("settings %+v, %v", im, err)
	}
	alone := []bool{im.Layers[0].Alone, im.Layers[1].Alone, im.Layers[2].Alone}
	if !slices.Equal(alone, []bool{true, true, false}) {
		t.Errorf("layers alone: %v", alone)
	}
	for i, l := range im.Layers {
		r, err := s.Resolve(ChainRef(l.ChainID))
		if err != nil || r.Tree != l.Tree {
			t.Errorf("chain %d: %v, %v", i, r, err)
		}
		if _, err := s.Resolve(LayerRef(l.DiffID)); (err == nil) != l.Alone {
			t.Errorf("layer %d: %v", i, err)
		}
	}
	dir := mounted(t, s, im.Root)
	if _, err := os.Lstat(filepath.Join(dir, "tmp/gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("tmp/gone: %v", err)
	}
	for path, want := range map[string]os.FileMode{"opt/tool": 0o755 | os.ModeSetuid, "tmp": 0o777 | os.ModeDir | os.ModeSticky, "tmp/file": 0o644} {
		if st, err := os.Lstat(filepath.Join(dir, path)); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v", path, st, err)
		}
	}
	// The third layer needs the directory of the layers below.
	if st, err := os.Lstat(filepath.Join(mounted(t, s, im.Layers[2].Tree), "tmp")); err != nil || st.Mode() != 0o777|os.ModeDir|os.ModeSticky {
		t.Errorf("tmp of the third layer: %v, %v", st, err)
	}
}

// TestReuse adds an image whose layers the store has from other images. The root is made
// from their trees, and is the same as one from their archives.
func TestReuse(t *testing.T) {
	needRoot(t)
	testTree := newArchive(t).put(tar.TypeDir, "d/", 0o750, "").put(tar.TypeReg, "d/a", 0o4711, strings.Repeat("a", 5000)).
		put(tar.TypeLink, "d/b", 0o4711, "d/a").put(tar.TypeSymlink, "d/s", 0o777, "a").put(tar.TypeFifo, "d/fifo", 0o600, "").
		put(tar.TypeReg, "d/"+strings.Repeat("n", 220), 0, "").put(tar.TypeReg, ".wh.big", 0, "").
		put(tar.TypeDir, "etc/", 0o700, "").put(tar.TypeReg, "etc/.wh..wh..opq", 0, "").put(tar.TypeReg, "etc/new", 0o600, "new")
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeChar, Name: "d/null", Mode: 0o666, Devmajor: 1, Devminor: 3, ModTime: time.Unix(7, 0)},
		{Typeflag: tar.TypeDir, Name: "d/\xff\n", Mode: 0o755, Uid: 4_000_000, ModTime: time.Unix(1_600_000_000, 123456789), Format: tar.FormatPAX,
			PAXRecords: map[string]string{"SCHILY.xattr.user.bytes": "\x00=\n\xff", "SCHILY.xattr.trusted.x": ""}},
	} {
		if err := testTree.w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	data := [][]byte{base(t), top(t, "x"), testTree.bytes()}
	var layers []v1.Layer
	for _, d := range data {
		layers = append(layers, layerOf(t, d, "gzip"))
	}
	whole := "oci:" + writeLayout(t, imageOf(t, layers...))
	fresh, o := newStore(t)
	want := add(t, fresh, o, whole, "x")
	s, o := newStore(t)
	for i, l := range layers {
		part := add(t, s, o, "oci:"+writeLayout(t, imageOf(t, l)), fmt.Sprint("part-", i))
		// A root has no whiteouts, even if its lowest layer has some.
		if _, err := os.Lstat(filepath.Join(mounted(t, s, part.Record.Root), "big")); errors.Is(err, os.ErrNotExist) != (i > 0) {
			t.Errorf("part %d: big: %v", i, err)
		}
	}
	web := httptest.NewServer(registry.New())
	defer web.Close()
	ref, err := name.ParseReference(strings.TrimPrefix(web.URL, "http://") + "/a/b:c")
	if err == nil {
		err = remote.Write(ref, imageOf(t, layers...))
	}
	if err != nil {
		t.Fatal(err)
	}
	o.Progress = &Progress{}
	got := add(t, s, o, ref.String(), "x")
	if got.Unpacked != 0 || o.Progress.Fetched.Load() != 0 {
		t.Errorf("%d layers unpacked, %d bytes fetched", got.Unpacked, o.Progress.Fetched.Load())
	}
	if got.Record.Root != want.Record.Root {
		equal(t, mounted(t, s, got.Record.Root), mounted(t, fresh, want.Record.Root))
		t.Errorf("root %s, want %s", got.Record.Root.Short(), want.Record.Root.Short())
	}
}

// TestTogether adds images with a common layer at the same time as it removes another
// image.
func TestTogether(t *testing.T) {
	needRoot(t)
	s, o := newStore(t)
	below := layerOf(t, base(t), "gzip")
	gone := add(t, s, o, "oci:"+writeLayout(t, imageOf(t, below)), "gone")
	var all sync.WaitGroup
	for i := range 4 {
		dir := writeLayout(t, imageOf(t, below, layerOf(t, top(t, fmt.Sprint(i/2)), "gzip")))
		all.Go(func() {
			ref := tree.Ref{Name: fmt.Sprint("x", i), Tag: "1"}
			if _, err := Add(t.Context(), s, "oci:"+dir, &ref, o); err != nil {
				t.Error(err)
			}
		})
	}
	all.Go(func() {
		if _, err := Remove(t.Context(), s, gone.Ref); err != nil {
			t.Error(err)
		}
		if _, err := s.GC(t.Context(), store.GCOptions{Keep: 1}); err != nil {
			t.Error(err)
		}
	})
	all.Wait()
	if _, err := s.GC(t.Context(), store.GCOptions{Keep: 1}); err != nil {
		t.Error(err)
	}
	if v, err := s.Verify(t.Context(), store.VerifyOptions{}); err != nil || len(v.Findings) > 0 {
		t.Errorf("%+v, %v", v, err)
	}
	list, err := List(s)
	if err != nil || len(list) != 4 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, l := range list {
		if l.Err != nil {
			t.Errorf("%s: %v", l.Ref, l.Err)
			continue
		}
		for _, y := range l.Image.Layers {
			if r, err := s.Resolve(ChainRef(y.ChainID)); err != nil || r.Tree != y.Tree {
				t.Errorf("%s: %v", l.Ref, err)
			}
			if _, err := s.Tree(y.Tree); err != nil {
				t.Errorf("%s: %v", l.Ref, err)
			}
		}
	}
}

// TestDiskFull adds an image that is too large for the disk of the store.
func TestDiskFull(t *testing.T) {
	needRoot(t)
	disk := t.TempDir()
	if err := unix.Mount("premix-test", disk, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	defer func() {
		if err := unmount.Dir(disk); err != nil {
			t.Error(err)
		}
	}()
	s, err := store.Init(filepath.Join(disk, "store"), store.Options{Home: t.TempDir(), Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	big := newArchive(t).put(tar.TypeReg, "big", 0o644, strings.Repeat("premix", 1<<20)).bytes()
	source := "oci:" + writeLayout(t, imageOf(t, layerOf(t, big, "gzip")))
	_, err = Add(t.Context(), s, source, &tree.Ref{Name: "x", Tag: "1"}, Options{Key: key})
	var known *Error
	var access *store.AccessError
	if !(errors.As(err, &known) && known.Kind == Disk) && !errors.As(err, &access) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(filepath.Join(s.Dir(), "work/writers")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	add(t, s, Options{Key: key}, "oci:"+writeLayout(t, imageOf(t, layerOf(t, top(t, "fits"), "gzip"))), "x")
}

// TestRemove removes images one by one, and all objects with the garbage collector.
func TestRemove(t *testing.T) {
	needRoot(t)
	s, o := newStore(t)
	below := layerOf(t, base(t), "gzip")
	one := add(t, s, o, "oci:"+writeLayout(t, imageOf(t, below, layerOf(t, top(t, "one"), "gzip"))), "one")
	two := add(t, s, o, "oci:"+writeLayout(t, imageOf(t, below, layerOf(t, top(t, "two"), "gzip"))), "two")
	if two.Unpacked != 1 || two.Record.Layers[0].Tree != one.Record.Layers[0].Tree {
		t.Errorf("the common layer was not shared: %+v", two)
	}
	again := add(t, s, o, "oci:"+writeLayout(t, imageOf(t, below, layerOf(t, top(t, "two"), "gzip"))), "two")
	if !again.Unchanged || again.Unpacked != 0 || again.Serial != 1 {
		t.Errorf("added again: %+v", again)
	}
	r, err := Remove(t.Context(), s, one.Ref)
	if err != nil || r.Layers != 2 { // one layer and its chain
		t.Errorf("%+v, %v", r, err)
	}
	var known *Error
	if _, err := Remove(t.Context(), s, one.Ref); !errors.As(err, &known) || known.Kind != Usage {
		t.Errorf("removed twice: %v", err)
	}
	gc := func() *store.GCResult {
		c, err := s.GC(t.Context(), store.GCOptions{Keep: 1})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	gc()
	if m, err := s.Verify(t.Context(), store.VerifyOptions{}); err != nil || len(m.Findings) > 0 {
		t.Errorf("verify: %+v, %v", m, err)
	}
	if list, err := List(s); err != nil || len(list) != 1 || list[0].Err != nil || list[0].Ref != two.Ref {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := Remove(t.Context(), s, two.Ref); err != nil {
		t.Error(err)
	}
	if c := gc(); c.Trees != 0 {
		t.Errorf("%+v", c)
	}
	back := add(t, s, o, "oci:"+writeLayout(t, imageOf(t, below)), "two")
	if back.Serial != 2 {
		t.Errorf("serial %d of a tag that was removed", back.Serial)
	}
}

// replaceBlob changes the content of a blob in a layout.
func replaceBlob(t *testing.T, dir, digest string, change func([]byte) []byte) {
	t.Helper()
	file := filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
	content, err := os.ReadFile(file)
	if err == nil {
		err = os.Chmod(file, 0o644)
	}
	if err == nil {
		err = os.WriteFile(file, change(content), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestDamaged checks that an image whose content does not match its digests is not added,
// and that nothing of it is left in the store.
func TestDamaged(t *testing.T) {
	needRoot(t)
	good := imageOf(t, layerOf(t, base(t), "gzip"), layerOf(t, top(t, "x"), "gzip"))
	m, err := good.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	blob := func(digest string, change func([]byte) []byte) func(*testing.T) string {
		return func(t *testing.T) string {
			dir := writeLayout(t, good)
			replaceBlob(t, dir, digest, change)
			return "oci:" + dir
		}
	}
	liar := func(data []byte, diff string) func(*testing.T) string {
		return func(t *testing.T) string {
			l := layerOf(t, data, "plain").(*plainLayer)
			if diff != "" {
				l.diff = v1.Hash{Algorithm: "sha256", Hex: diff}
			}
			return "oci:" + writeLayout(t, imageOf(t, l))
		}
	}
	for name, c := range map[string]struct {
		source func(*testing.T) string
		change func(*Options)
		kind   Kind
		says   string
	}{
		"a flipped bit in a layer": {source: blob(m.Layers[1].Digest.String(), flip), kind: Damaged},
		"a layer cut off":          {source: blob(m.Layers[1].Digest.String(), func(b []byte) []byte { return b[:len(b)/2] }), kind: Damaged},
		"more behind a layer":      {source: blob(m.Layers[1].Digest.String(), func(b []byte) []byte { return append(b, b...) }), kind: Damaged},
		"an empty layer":           {source: blob(m.Layers[0].Digest.String(), func([]byte) []byte { return nil }), kind: Damaged},
		"another configuration":    {source: blob(m.Config.Digest.String(), func(b []byte) []byte { return bytes.Replace(b, []byte("A=b"), []byte("A=c"), 1) }), kind: Damaged, says: "digest"},
		"a wrong diff id":          {source: liar(base(t), strings.Repeat("00", 32)), kind: Damaged, says: "uncompressed"},
		"no archive":               {source: liar(bytes.Repeat([]byte("no"), 4096), ""), kind: Damaged, says: "cannot be unpacked"},
		"a bomb of bytes":          {source: liar(base(t), ""), change: func(o *Options) { o.MaxBytes = 1 << 20 }, kind: Damaged, says: "more than 1048576 bytes"},
		"a bomb of entries":        {source: liar(base(t), ""), change: func(o *Options) { o.MaxEntries = 3 }, kind: Damaged, says: "more than 3 entries"},
		"a platform it is not for": {source: func(t *testing.T) string {
			return "oci:" + writeLayout(t, good, layout.WithPlatform(v1.Platform{OS: "linux", Architecture: "s390x"}))
		}, kind: Usage, says: "linux/s390x"},
		"a layout that is not there": {source: func(t *testing.T) string { return "oci:" + t.TempDir() }, kind: Usage, says: "not an OCI layout"},
		"a registry that is down":    {source: func(*testing.T) string { return "docker://127.0.0.1:1/a:b" }, kind: Unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			s, o := newStore(t)
			if c.change != nil {
				c.change(&o)
			}
			if c.says == "linux/s390x" {
				o.Platform = "linux/amd64"
			}
			_, err := Add(t.Context(), s, c.source(t), &tree.Ref{Name: "x", Tag: "1"}, o)
			var known *Error
			if !errors.As(err, &known) || known.Kind != c.kind || !strings.Contains(err.Error()+known.HintText, c.says) {
				t.Errorf("%v, want kind %d that says %q", err, c.kind, c.says)
			}
			if list, err := List(s); err != nil || len(list) != 0 {
				t.Errorf("%+v, %v", list, err)
			}
			if _, err := s.Resolve(tree.Ref{Name: "x", Tag: "1"}); err == nil {
				t.Error("the root is there")
			}
			if left, err := os.ReadDir(filepath.Join(s.Dir(), "work/writers")); err != nil || len(left) != 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// For an argument that is not an image, the error names the forms that images have. Endless
// files are not read.
func TestNoImage(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	archive := func(path, member, text string) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Name: member, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		write(path, b.String())
	}
	write("root/file", "")
	write("void", "")
	write("text", strings.Repeat("text", 1000))
	archive("other.tar", "file", "text")
	archive("list.tar", "manifest.json", "[]")
	archive("word.tar", "manifest.json", "word")
	archive("named.tar", "manifest.json", `[{"Config":"c.json","RepoTags":["tools/one:1"],"Layers":[]}]`)
	for layout, index := range map[string]string{"blank": "", "word": "word", "none": `{"schemaVersion":2,"manifests":[]}`} {
		write(layout+"/oci-layout", `{"imageLayoutVersion":"1.0.0"}`)
		write(layout+"/index.json", index)
	}
	if err := unix.Mkfifo("fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	const save = "docker save -o FILE NAME:TAG writes one"
	for _, c := range []struct{ source, reason, way string }{
		{"docker-archive:root", "root is a directory", "dir:root adds the directory as it is"},
		{"docker-archive:none", "none is a directory", "it is an OCI layout: oci:none adds the image in it"},
		{"docker-archive:void", "void is empty", save},
		{"docker-archive:fifo", "fifo is not a regular file", save},
		{"docker-archive:text", "text is not an archive of docker save: ", save},
		{"docker-archive:other.tar", "other.tar is not an archive of docker save: ", save},
		{"docker-archive:list.tar", "list.tar is not an archive of docker save: its manifest lists no image", save},
		{"docker-archive:word.tar", "word.tar is not an archive of docker save: ", save},
		{"docker-archive:named.tar:tools/two:1", "there is no image tools/two:1 in named.tar", "there are: tools/one:1"},
		{"docker-archive:nothing", "stat nothing: ", sourceHint},
		{"oci:root", "root is not an OCI layout: ", "dir:root adds the directory as it is"},
		{"oci:void", "void is not an OCI layout: ", "docker-archive:void adds an archive of docker save"},
		{"oci:nothing", "nothing is not an OCI layout: ", sourceHint},
		{"oci:blank", "blank is not an OCI layout: its index.json: ", layoutHint},
		{"oci:word", "word is not an OCI layout: its index.json: ", layoutHint},
		{"oci:none", "there is no image in the layout", layoutHint},
		{"oci:none:x", "there is no image x in the layout", "index.json of the layout lists them"},
		{"dir:void", "void is not a directory", sourceHint},
		{"./void", "./void is a file", "docker-archive:./void adds an archive of docker save"},
	} {
		_, err := find(t.Context(), c.source, v1.Platform{OS: "linux", Architecture: "amd64"})
		var known *Error
		if !errors.As(err, &known) || known.Kind != Usage || !strings.HasPrefix(known.Reason, c.reason) || !strings.HasPrefix(known.HintText, c.way) {
			t.Errorf("%s: %#v", c.source, err)
		}
	}
}

// TestDirectory adds a directory as the root of an image.
func TestDirectory(t *testing.T) {
	s, o := newStore(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := add(t, s, o, dir, "plain:1")
	im, tag, err := Load(s, a.Ref)
	if err != nil || im.Root != a.Record.Root || len(im.Layers) != 0 || tag.Tree != a.Digest || !slices.Equal(im.Settings.Cmd, []string{"/bin/sh"}) {
		t.Errorf("%+v, %v", im, err)
	}
	for _, bad := range []string{"images/x:1", "layers/x:1", "chains/a/b:1"} {
		ref, err := tree.ParseRef(bad)
		if err != nil {
			t.Fatal(err)
		}
		var known *Error
		if _, err := Add(t.Context(), s, dir, &ref, o); !errors.As(err, &known) || known.Kind != Usage {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// testData returns a directory below PREMIX_TESTDATA.
func testData(t *testing.T, name string) string {
	t.Helper()
	top := os.Getenv("PREMIX_TESTDATA")
	if top == "" {
		t.Skip("PREMIX_TESTDATA is not set")
	}
	path := filepath.Join(top, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the test data has no %s", name)
	}
	return path
}

// busybox returns a layout of the test data. Its blobs are symbolic links there, which a
// checkout may have turned into files with their targets.
func busybox(t *testing.T, libc string) string {
	t.Helper()
	from, dir := testData(t, "oci/latest/"+libc+"/amd64"), t.TempDir()
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"index.json", "oci-layout", "image-manifest.json", "image-config.json", "rootfs.tar.gz"} {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			to := filepath.Join(dir, name)
			if name != "index.json" && name != "oci-layout" {
				to = filepath.Join(blobs, strings.TrimPrefix(sum(content), "sha256:"))
			}
			err = os.WriteFile(to, content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestRealImages compares published images with the result of containerd.
func TestRealImages(t *testing.T) {
	needRoot(t)
	for _, libc := range []string{"glibc", "musl"} {
		t.Run(libc, func(t *testing.T) {
			s, o := newStore(t)
			dir := busybox(t, libc)
			a, err := Add(t.Context(), s, "oci:"+dir, nil, o)
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("busybox:1.38.0-%s", libc); a.Ref.String() != want {
				t.Errorf("it is named %s, want %s", a.Ref, want)
			}
			theirs := unpacked(t, testData(t, "oci/latest/"+libc+"/amd64/rootfs.tar.gz"))
			equal(t, mounted(t, s, a.Record.Root), theirs)
			equal(t, mounted(t, s, a.Record.Layers[0].Tree), theirs)
		})
	}
	t.Run("alpine", func(t *testing.T) {
		s, o := newStore(t)
		file := testData(t, "oci/alpine-minirootfs-3.20.3-x86_64.tar.gz")
		l, err := tarball.LayerFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		a := add(t, s, o, "oci:"+writeLayout(t, imageOf(t, l)), "alpine:3.20.3")
		equal(t, mounted(t, s, a.Record.Root), unpacked(t, file))
	})
}

// unpacked returns a directory into which containerd has unpacked a layer.
func unpacked(t *testing.T, file string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "theirs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := compression.DecompressStream(f)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := archive.Apply(t.Context(), dir, r); err != nil {
		t.Fatal(err)
	}
	return dir
}

// equal compares two directories except for the time of the root.
func equal(t *testing.T, ours, theirs string) {
	t.Helper()
	list, err := testtree.Compare(ours, theirs)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if !strings.HasPrefix(d, `".": time is `) {
			t.Error(d)
		}
	}
}

// TestRecordIsStable checks that a record depends on the image, and not on the time when it
// was added.
func TestRecordIsStable(t *testing.T) {
	needRoot(t)
	var seen []object.Digest
	for range 2 {
		s, o := newStore(t)
		a := add(t, s, o, "oci:"+writeLayout(t, imageOf(t, layerOf(t, base(t), "gzip"), layerOf(t, lean(t), "gzip"))), "x")
		seen = append(seen, a.Digest)
		dir := mounted(t, s, a.Digest)
		im, err := Open(dir)
		if err != nil || im.Root != a.Record.Root {
			t.Errorf("%+v, %v", im, err)
		}
		content, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
		if err != nil || sum(content) != a.Record.Manifest || !json.Valid(content) {
			t.Errorf("the manifest is not what it was: %v", err)
		}
	}
	if seen[0] != seen[1] {
		t.Errorf("two stores, two records: %s, %s", seen[0], seen[1])
	}
}
