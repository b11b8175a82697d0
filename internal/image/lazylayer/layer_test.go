package lazylayer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"

	"premix/internal/image/layer"
	"premix/internal/store/cache"
	"premix/internal/store/erofs"
)

// header is an entry of an archive, with its content.
type header struct {
	tar.Header
	content []byte
}

func archive(t *testing.T, list []header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range list {
		h.Size = int64(len(h.content))
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1_500_000_000, 0)
		}
		if err := w.WriteHeader(&h.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(h.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func noise(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.IntN(64)) // compresses a little
	}
	return b
}

// many is a layer with everything that a layer can have.
func many() []header {
	dir := func(name string, mode int64) header {
		return header{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}}
	}
	list := []header{
		dir("./", 0o700), dir("bin/", 0o755), dir("etc/", 0o1777), dir("data/", 0o2750), dir("data/empty/", 0o711),
		{Header: tar.Header{Name: "bin/tool", Mode: 0o4755, Uid: 7, Gid: 70000}, content: noise(1, 9<<20)},
		{Header: tar.Header{Name: "bin/small", Mode: 0o755}, content: []byte("#!/bin/sh\n")},
		{Header: tar.Header{Name: "bin/none", Mode: 0o644}},
		{Header: tar.Header{Name: "bin/block", Mode: 0o600}, content: noise(2, 4096)},
		{Header: tar.Header{Name: "bin/block1", Mode: 0o600}, content: noise(3, 4097)},
		{Header: tar.Header{Name: "bin/sym", Typeflag: tar.TypeSymlink, Linkname: "../data/x"}},
		{Header: tar.Header{Name: "bin/hard", Typeflag: tar.TypeLink, Linkname: "bin/small", Mode: 0o700, Uid: 3}},
		{Header: tar.Header{Name: "etc/fifo", Typeflag: tar.TypeFifo, Mode: 0o640}},
		{Header: tar.Header{Name: "etc/tty", Typeflag: tar.TypeChar, Devmajor: 5, Devminor: 300, Mode: 0o666}},
		{Header: tar.Header{Name: "etc/disk", Typeflag: tar.TypeBlock, Devmajor: 8, Devminor: 1, Mode: 0o660}},
		{Header: tar.Header{Name: "etc/caps", Mode: 0o755, PAXRecords: map[string]string{
			"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "SCHILY.xattr.user.note": "a note",
			"SCHILY.xattr.trusted.overlay.redirect": "/etc/shadow",
		}}, content: []byte("caps")},
		{Header: tar.Header{Name: "etc/old", Mode: 0o644, ModTime: time.Unix(-5, 0)}, content: []byte("x")},
		{Header: tar.Header{Name: "data/.wh.gone"}}, dir("data/replaced/", 0o755), {Header: tar.Header{Name: "data/replaced/.wh..wh..opq"}},
		{Header: tar.Header{Name: "data/replaced/new", Mode: 0o644}, content: []byte("new")},
		{Header: tar.Header{Name: "data/näme with \"odd\" \n parts", Mode: 0o644}, content: []byte("odd")},
	}
	for i := range 300 {
		list = append(list, header{Header: tar.Header{Name: fmt.Sprintf("data/f%03d", i), Mode: 0o644, Uid: i}, content: noise(uint64(i), i*331)})
	}
	return list
}

// store is a registry with one layer.
type store struct {
	repository string
	served     atomic.Int64
	mu         sync.Mutex
	change     func(w http.ResponseWriter, r *http.Request) bool
}

func (s *store) changed(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change = f
}

type counted struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

// serve puts a blob into a registry.
func serve(t *testing.T, blob []byte) (*store, v1.Hash) {
	t.Helper()
	s := &store{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		change := s.change
		s.mu.Unlock()
		if change == nil || !change(w, r) {
			inner.ServeHTTP(counted{w, &s.served}, r)
		}
	}))
	t.Cleanup(web.Close)
	s.repository = strings.TrimPrefix(web.URL, "http://") + "/lab/tool"
	repo, err := name.NewRepository(s.repository)
	if err != nil {
		t.Fatal(err)
	}
	l := static.NewLayer(blob, types.OCILayer)
	if err := remote.WriteLayer(repo, l); err != nil {
		t.Fatal(err)
	}
	d, err := l.Digest()
	if err != nil {
		t.Fatal(err)
	}
	s.served.Store(0)
	return s, d
}

// stargz makes an eStargz blob with the builder of that project.
func stargz(t *testing.T, plain []byte, o ...estargz.Option) (blob []byte, toc string) {
	t.Helper()
	b, err := estargz.Build(io.NewSectionReader(bytes.NewReader(plain), 0, int64(len(plain))), o...)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if blob, err = io.ReadAll(b); err != nil {
		t.Fatal(err)
	}
	return blob, b.TOCDigest().String()
}

func newCache(t *testing.T) *cache.Cache {
	t.Helper()
	c, err := cache.Open(t.TempDir(), cache.Options{Quota: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func open(t *testing.T, c *cache.Cache, s *store, d Description) (*Layer, error) {
	t.Helper()
	d.Repository = s.repository
	l, err := Open(t.Context(), Options{Description: d, Objects: c.Objects(), Keychain: authn.NewMultiKeychain()})
	if err == nil {
		t.Cleanup(func() { _ = l.Close() }) // it may have been closed
	}
	return l, err
}

// at reads a Layer as an io.ReaderAt.
type at struct{ l *Layer }

func (a at) ReadAt(p []byte, off int64) (int, error) {
	return a.l.ReadAt(context.Background(), p, off)
}

// file describes a file of a tree; links is the first name of the same inode.
type file struct {
	mode, uid, gid, nlink uint32
	rdev                  uint64
	sec, nsec             int64
	target, links         string
	xattrs                map[string]string
	content               []byte
}

func (f *file) String() string {
	return fmt.Sprintf("mode %o, owner %d:%d, %d links (%s), device %x, time %d.%d, target %q, %d bytes, %q", f.mode, f.uid, f.gid, f.nlink, f.links, f.rdev, f.sec, f.nsec, f.target, len(f.content), f.xattrs)
}

func walkLayer(t *testing.T, l *Layer) map[string]*file {
	t.Helper()
	im, err := erofs.Open(at{l}, l.Size())
	if err != nil {
		t.Fatal(err)
	}
	all, first := map[string]*file{}, map[uint64]string{}
	if err := im.Walk(func(path string, i *erofs.Inode) error {
		f := &file{mode: i.Mode, uid: i.UID, gid: i.GID, nlink: i.Nlink, rdev: i.Rdev, sec: i.Sec, nsec: int64(i.Nsec), xattrs: map[string]string{}}
		if first[i.Ino] == "" {
			first[i.Ino] = path
		}
		if f.links = first[i.Ino]; i.Mode&unix.S_IFMT == unix.S_IFDIR {
			f.links = path
		}
		x, err := im.Xattrs(i.Ino)
		if err != nil {
			return err
		}
		for name, value := range x {
			f.xattrs[name] = string(value)
		}
		switch i.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			f.content = make([]byte, i.Size)
			if n, err := im.ReadAt(i.Ino, f.content, 0); int64(n) != i.Size {
				return err
			}
		case unix.S_IFLNK:
			if f.target, err = im.Readlink(i.Ino); err != nil {
				return err
			}
		}
		all[path] = f
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func walkDir(t *testing.T, dir string) map[string]*file {
	t.Helper()
	all, first := map[string]*file{}, map[uint64]string{}
	var visit func(name string)
	visit = func(name string) {
		path := filepath.Join(dir, name)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		f := &file{mode: st.Mode, uid: st.Uid, gid: st.Gid, nlink: uint32(st.Nlink), rdev: st.Rdev, sec: st.Mtim.Sec, nsec: st.Mtim.Nsec, xattrs: map[string]string{}}
		kind := st.Mode & unix.S_IFMT
		if first[st.Ino] == "" {
			first[st.Ino] = name
		}
		if f.links = first[st.Ino]; kind == unix.S_IFDIR {
			f.links = name
		}
		names := make([]byte, 4096)
		n, err := unix.Llistxattr(path, names)
		if err != nil {
			t.Fatal(err)
		}
		for x := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
			if x == "" {
				continue
			}
			value := make([]byte, 4096)
			m, err := unix.Lgetxattr(path, x, value)
			if err != nil {
				t.Fatal(err)
			}
			f.xattrs[x] = string(value[:m])
		}
		switch kind {
		case unix.S_IFREG:
			if f.content, err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
		case unix.S_IFLNK:
			if f.target, err = os.Readlink(path); err != nil {
				t.Fatal(err)
			}
		case unix.S_IFDIR:
			entries, err := os.ReadDir(path)
			if err != nil {
				t.Fatal(err)
			}
			f.nlink = 2
			for _, e := range entries {
				if e.IsDir() {
					f.nlink++
				}
			}
			defer func() {
				for _, e := range entries {
					visit(filepath.Join(name, e.Name()))
				}
			}()
		}
		all[name] = f
	}
	visit(".")
	return all
}

// unpacked unpacks a blob as it is when it is pulled.
func unpacked(t *testing.T, blob []byte) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can unpack owners and devices")
	}
	dir := t.TempDir()
	z, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := layer.Apply(t.Context(), dir, z, layer.Options{Overlay: true}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func compare(t *testing.T, got, want map[string]*file) {
	t.Helper()
	if len(want) < 3 {
		t.Fatalf("there are only %d files", len(want))
	}
	for _, path := range slices.Sorted(maps.Keys(want)) {
		g, w := got[path], want[path]
		if g == nil {
			t.Errorf("%q is missing", path)
			continue
		}
		if g.String() != w.String() || !bytes.Equal(g.content, w.content) {
			t.Errorf("%q:\n%s, want\n%s; equal contents: %v", path, g, w, bytes.Equal(g.content, w.content))
		}
	}
	for path := range got {
		if want[path] == nil {
			t.Errorf("%q should not be there", path)
		}
	}
}

// TestStargz compares layers that are shown before they are fetched with the same layers
// unpacked.
func TestStargz(t *testing.T) {
	plain := archive(t, many())
	for name, options := range map[string][]estargz.Option{
		"usual":       nil,
		"small":       {estargz.WithChunkSize(10000)},
		"shared":      {estargz.WithChunkSize(50000), estargz.WithMinChunkSize(40000)},
		"prioritized": {estargz.WithPrioritizedFiles([]string{"bin/tool", "data/f299"})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			blob, toc := stargz(t, plain, options...)
			s, digest := serve(t, blob)
			c := newCache(t)
			l, err := open(t, c, s, Description{Digest: digest.String(), Size: int64(len(blob)), TOC: toc})
			if err != nil {
				t.Fatal(err)
			}
			want := walkDir(t, unpacked(t, blob))
			if name == "usual" {
				// Before the first read only the end of the blob was fetched.
				if n := s.served.Load(); n > tailSize+1000 {
					t.Errorf("%d of %d bytes were served before the first read", n, len(blob))
				}
				before := s.served.Load()
				im, err := erofs.Open(at{l}, l.Size())
				if err != nil {
					t.Fatal(err)
				}
				nid, err := im.Lookup(im.Root(), "data")
				if err != nil {
					t.Fatal(err)
				}
				if nid, err = im.Lookup(nid, "f100"); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 33100)
				if n, err := im.ReadAt(nid, got, 0); n != len(got) || !bytes.Equal(got, noise(100, 33100)) {
					t.Errorf("%d bytes: %v", n, err)
				}
				if n := s.served.Load() - before; n == 0 || n > pieceSize+20000 {
					t.Errorf("%d of %d bytes were served for a file of 33100", n, len(blob))
				}
			}
			compare(t, walkLayer(t, l), want)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			// The cache has everything now: the registry is not needed.
			s.changed(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
			if l, err = open(t, c, s, Description{Digest: digest.String(), Size: int64(len(blob)), TOC: toc}); err != nil {
				t.Fatal(err)
			}
			compare(t, walkLayer(t, l), want)
		})
	}
}

// TestLies flips bits in the blob, also after the layer was opened: every file is read as
// it was, or not at all.
func TestLies(t *testing.T) {
	blob, toc := stargz(t, archive(t, many()), estargz.WithChunkSize(300_000))
	s, digest := serve(t, blob)
	d := Description{Digest: digest.String(), Size: int64(len(blob)), TOC: toc}
	l, err := open(t, newCache(t), s, d)
	if err != nil {
		t.Fatal(err)
	}
	want := walkLayer(t, l)
	var flips []int
	r := rand.New(rand.NewPCG(1, 2))
	lie := func(w http.ResponseWriter, q *http.Request) bool {
		var from, to int
		if _, err := fmt.Sscanf(q.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil || !strings.Contains(q.URL.Path, "/blobs/") {
			return false
		}
		b := bytes.Clone(blob[from : to+1])
		for _, f := range flips {
			if f/8 >= from && f/8 <= to {
				b[f/8-from] ^= 1 << (f % 8)
			}
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(blob)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(b)
		return true
	}
	failed, good, refused := 0, 0, 0
	for range 15 {
		flips = nil
		for range 1 + r.IntN(5) {
			flips = append(flips, r.IntN(len(blob)*8))
		}
		if r.IntN(3) == 0 { // in the TOC, which is small
			flips = append(flips, len(blob)*8-1-r.IntN(20000*8))
		}
		s.changed(lie)
		l, err := open(t, newCache(t), s, d)
		if err != nil {
			var known *Error
			if !errors.As(err, &known) {
				t.Errorf("%v", err)
			}
			refused++
			continue
		}
		im, err := erofs.Open(at{l}, l.Size())
		if err != nil {
			t.Fatal(err)
		}
		if err := im.Walk(func(path string, i *erofs.Inode) error {
			if i.Mode&unix.S_IFMT != unix.S_IFREG {
				return nil
			}
			content := make([]byte, i.Size)
			n, err := im.ReadAt(i.Ino, content, 0)
			if int64(n) < i.Size {
				if err == nil || err == io.EOF {
					t.Errorf("%s: %d of %d bytes: %v", path, n, i.Size, err)
				}
				failed++
				return nil
			}
			if !bytes.Equal(content, want[path].content) {
				t.Errorf("%s has wrong bytes", path)
			}
			good++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if failed == 0 || good == 0 || refused == 0 {
		t.Errorf("%d reads failed, %d were good, %d layers were refused: the test shows nothing", failed, good, refused)
	}
	t.Logf("%d reads failed, %d were good, %d layers were refused", failed, good, refused)

	for name, change := range map[string]func(*Description){
		"another TOC":  func(d *Description) { d.TOC = "sha256:" + strings.Repeat("0", 64) },
		"another size": func(d *Description) { d.Size-- },
	} {
		s.changed(nil)
		other := d
		change(&other)
		if _, err := open(t, newCache(t), s, other); err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
	// A registry that ignores ranges, and one that answers with other bytes.
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"whole": func(w http.ResponseWriter, r *http.Request) bool {
			r.Header.Del("Range")
			return false
		},
		"other": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Range") == "" {
				return false
			}
			w.Header().Set("Content-Range", "bytes 0-99/100")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(blob[:100])
			return true
		},
	} {
		s.changed(answer)
		if _, err := open(t, newCache(t), s, d); err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
}

// TestUnsuitable opens layers that can only be unpacked.
func TestUnsuitable(t *testing.T) {
	for name, list := range map[string][]header{
		"through a link": {{Header: tar.Header{Name: "usr/", Typeflag: tar.TypeDir, Mode: 0o755}}, {Header: tar.Header{Name: "lib", Typeflag: tar.TypeSymlink, Linkname: "usr"}}, {Header: tar.Header{Name: "lib/x"}, content: []byte("x")}},
		"no parent":      {{Header: tar.Header{Name: "a/b/x"}, content: []byte("x")}},
		"link out":       {{Header: tar.Header{Name: "x", Typeflag: tar.TypeLink, Linkname: "other"}}},
	} {
		b := newBuilder()
		var err error
		for _, h := range list {
			kind := map[byte]uint32{0: unix.S_IFREG, tar.TypeDir: unix.S_IFDIR, tar.TypeSymlink: unix.S_IFLNK, tar.TypeLink: 0}[h.Typeflag]
			if err = b.add(&entry{name: h.Name, kind: kind, link: h.Linkname, size: int64(len(h.content))}); err != nil {
				break
			}
		}
		var known *Error
		if !errors.As(err, &known) || known.Kind != Unsuitable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzTOC(f *testing.F) {
	f.Add([]byte(`{"version":1,"entries":[{"name":"a/","type":"dir","mode":493},{"name":"a/x","type":"reg","size":3,"offset":5,"chunkDigest":"sha256:` + strings.Repeat("ab", 32) + `"},{"name":"y","type":"hardlink","linkName":"a/x"}]}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		o, err := readTOCJSON(content, 1000, &entry{name: tocName, kind: unix.S_IFREG})
		if err != nil {
			return
		}
		root, err := o.b.tree()
		if err != nil {
			return
		}
		var meta bytes.Buffer
		if _, err := erofs.Write(&meta, root, o.b.placed); err != nil {
			return
		}
		size := int64(meta.Len()) + o.b.placed
		if err := erofs.NewChecker(int64(meta.Len()), size, nil, nil).All(bytes.NewReader(meta.Bytes())); err != nil {
			t.Error(err)
		}
	})
}
