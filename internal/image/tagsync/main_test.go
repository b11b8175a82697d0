package tagsync

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"premix/internal/image"
	"premix/internal/store"
	"premix/internal/store/tree"
)

// child is the environment variable that makes the test binary perform one round and exit.
const child = "PREMIX_TEST_ROUND"

func TestMain(m *testing.M) {
	if dir := os.Getenv(child); dir != "" {
		if err := childRound(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("unpacking images needs root")
	}
}

// web is an in-memory registry that records its requests and can be made to fail.
type web struct {
	t    *testing.T
	host string
	real http.Handler
	http *httptest.Server

	mu    sync.Mutex
	asked []string // each is METHOD PATH
	// before may answer in place of the registry, and then returns true.
	before func(w http.ResponseWriter, r *http.Request) bool
}

func newWeb(t *testing.T) *web {
	t.Helper()
	w := &web{t: t, real: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	w.http = httptest.NewServer(w)
	t.Cleanup(w.http.Close)
	w.host = strings.TrimPrefix(w.http.URL, "http://")
	return w
}

func (w *web) ServeHTTP(resp http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.asked = append(w.asked, r.Method+" "+r.URL.Path)
	before := w.before
	w.mu.Unlock()
	if before != nil && before(resp, r) {
		return
	}
	w.real.ServeHTTP(resp, r)
}

// intercept sets before.
func (w *web) intercept(f func(w http.ResponseWriter, r *http.Request) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = f
}

// questions returns the requests since its last call, without greetings.
func (w *web) questions() (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.asked {
		if q != "GET /v2/" {
			list = append(list, q)
		}
	}
	w.asked = nil
	return list
}

// quiet runs f, whose requests are not recorded.
func (w *web) quiet(f func()) {
	before := w.questions()
	f()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = before
}

// imageOf returns an image whose only file has the given text.
func imageOf(t *testing.T, text string) v1.Image {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644, Size: int64(len(text)), ModTime: time.Unix(1_600_000_000, 0)})
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	im, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	c, err := im.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", "amd64"
	if im, err = mutate.ConfigFile(im, c); err != nil {
		t.Fatal(err)
	}
	return im
}

// push uploads an image with the given text as NAME:TAG.
func (w *web) push(what, text string) {
	w.t.Helper()
	w.quiet(func() {
		ref, err := name.ParseReference(w.host + "/" + what)
		if err == nil {
			err = remote.Write(ref, imageOf(w.t, text))
		}
		if err != nil {
			w.t.Fatal(err)
		}
	})
}

// drop deletes NAME:TAG.
func (w *web) drop(what string) {
	w.t.Helper()
	w.quiet(func() {
		ref, err := name.ParseReference(w.host + "/" + what)
		if err == nil {
			err = remote.Delete(ref)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	})
}

// bench is a store with a watch list and a clock.
type bench struct {
	*testing.T
	*web
	store *store.Store
	o     Options
	file  string
	clock time.Time
}

func newBench(t *testing.T) *bench {
	t.Helper()
	needRoot(t)
	top := t.TempDir()
	s, err := store.Init(filepath.Join(top, "store"), store.Options{Home: filepath.Join(top, "home"), Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, web: newWeb(t), store: s, file: filepath.Join(top, "images.yaml"), clock: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	b.o = Options{Add: image.Options{Key: key}, now: func() time.Time { return b.clock }}
	// The credentials of the user who runs the tests are not used.
	t.Setenv("DOCKER_CONFIG", filepath.Join(top, "docker"))
	return b
}

// list writes the watch list; HOST in it is replaced by the address of the registry.
func (b *bench) list(text string) {
	b.Helper()
	half := b.file + ".half"
	if err := errors.Join(os.WriteFile(half, []byte(strings.ReplaceAll(text, "HOST", b.host)), 0o666), os.Rename(half, b.file)); err != nil {
		b.Fatal(err)
	}
}

// round performs a round. It returns the rows as lines of ACTION REF or ACTION SOURCE.
func (b *bench) round() (*Summary, string) {
	b.Helper()
	l, err := Load(b.file)
	if err != nil {
		b.Fatal(err)
	}
	w, err := New(b.store, l, b.o)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	sum, err := w.Round(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var lines []string
	for _, r := range sum.Rows {
		what := r.Ref
		if what == "" {
			what = strings.ReplaceAll(r.Source, b.host, "HOST")
		}
		lines = append(lines, string(r.Action)+" "+what)
	}
	return sum, strings.Join(lines, "\n")
}

// want performs a round and compares its rows.
func (b *bench) want(rows ...string) *Summary {
	b.Helper()
	sum, got := b.round()
	if want := strings.Join(rows, "\n"); got != want {
		b.Errorf("the round did\n%s\nwant\n%s", got, want)
		for _, r := range sum.Rows {
			if r.Error != "" {
				b.Logf("%s: %s", r.Ref, r.Error)
			}
		}
	}
	return sum
}

// has compares the images in the store with refs, and verifies the store.
func (b *bench) has(refs ...string) {
	b.Helper()
	list, err := image.List(b.store)
	if err != nil {
		b.Fatal(err)
	}
	var got []string
	for _, l := range list {
		if l.Err != nil {
			b.Errorf("%s: %v", l.Ref, l.Err)
		}
		got = append(got, l.Ref.String())
	}
	if fmt.Sprint(got) != fmt.Sprint(refs) {
		b.Errorf("the store has %v, want %v", got, refs)
	}
	if v, err := b.store.Verify(b.Context(), store.VerifyOptions{}); err != nil || len(v.Findings) > 0 {
		b.Errorf("%+v, %v", v, err)
	}
}

// content returns the text of the only file of an image.
func (b *bench) content(ref string) string {
	b.Helper()
	r, err := tree.ParseRef(ref)
	if err != nil {
		b.Fatal(err)
	}
	tag, err := b.store.Resolve(r)
	if err != nil {
		b.Fatal(err)
	}
	tr, err := b.store.Tree(tag.Tree)
	if err != nil {
		b.Fatal(err)
	}
	fs, err := tr.Image()
	if err != nil {
		b.Fatal(err)
	}
	nid, err := fs.Lookup(fs.Root(), "file")
	if err != nil {
		b.Fatal(err)
	}
	inode, err := fs.Inode(nid)
	if err != nil {
		b.Fatal(err)
	}
	text := make([]byte, inode.Size)
	if _, err := fs.ReadAt(nid, text, 0); err != nil && !errors.Is(err, io.EOF) {
		b.Fatal(err)
	}
	return string(text)
}
