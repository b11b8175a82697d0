package origin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/store/tree"
	"premix/internal/testkit/faulty"
)

// hub is a registry that counts requests and uploaded bytes.
type hub struct {
	*httptest.Server
	mu       sync.Mutex
	uploaded int64 // bytes of blobs
	requests []string
}

func newHub(t testing.TB, wrap func(http.Handler) http.Handler) *hub {
	t.Helper()
	h := &hub{}
	var handler http.Handler = registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		handler = wrap(handler)
	}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.requests = append(h.requests, r.Method+" "+r.URL.Path+" "+r.Header.Get("Range"))
		if strings.Contains(r.URL.Path, "/blobs/uploads/") {
			h.uploaded += max(0, r.ContentLength)
		}
		h.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hub) take() (uploaded int64, requests []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	uploaded, requests = h.uploaded, h.requests
	h.uploaded, h.requests = 0, nil
	return uploaded, requests
}

func (h *hub) open(t testing.TB) *origin.OCI { return h.openWith(t, quick()) }

func (h *hub) openWith(t testing.TB, o origin.Options) *origin.OCI {
	t.Helper()
	one, err := origin.Open("oci://"+strings.TrimPrefix(h.URL, "http://")+"/lab/store", o)
	if err != nil {
		t.Fatal(err)
	}
	return one.(*origin.OCI)
}

var sampleRef = tree.Ref{Name: "refs/x", Tag: "1"}

// set returns the objects of a sample as the objects of a tree.
func (s *sample) set(t testing.TB) origin.ObjectSet {
	dir := open(t, s.dir, quick())
	return origin.ObjectSet{Objects: s.digests, Get: dir.Object}
}

// push puts a sample into a registry, as the tree of its first object.
func (s *sample) push(t testing.TB, o *origin.OCI) {
	t.Helper()
	ctx := context.Background()
	if err := o.PutTree(ctx, s.digests[0], s.set(t)); err != nil {
		t.Fatal(err)
	}
	info, err := os.ReadFile(filepath.Join(s.dir, "store.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := o.PutStore(ctx, info); err != nil {
		t.Fatal(err)
	}
	tag, err := os.ReadFile(filepath.Join(s.dir, tagName))
	if err != nil {
		t.Fatal(err)
	}
	if err := o.PutTag(ctx, sampleRef, []origin.File{{Name: tagName, Content: tag}}); err != nil {
		t.Fatal(err)
	}
}

func pushed(t *testing.T, s *sample, wrap func(http.Handler) http.Handler) origin.Origin {
	t.Helper()
	h := newHub(t, wrap)
	s.push(t, h.open(t))
	return h.open(t) // a client without any state
}

func TestRegistryReadsRanges(t *testing.T) {
	s := newSample(t, 50, 1000)
	h := newHub(t, nil)
	s.push(t, h.open(t))
	h.take()
	o := h.open(t)
	g := origin.NewGroup([]origin.Origin{o}, quick())
	for _, d := range s.digests {
		if b, err := g.Verified(context.Background(), d, -1); err != nil || !bytes.Equal(b, s.contents[d]) {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
	}
	_, requests := h.take()
	ranges := 0
	for _, r := range requests {
		if strings.Contains(r, "bytes=") {
			ranges++
		}
	}
	// One request for the greeting of the library, one for the manifest, one for the index.
	if ranges != 50 || len(requests) > 50+4 {
		t.Errorf("%d ranges among %d requests: %v", ranges, len(requests), requests[:5])
	}
}

func TestRegistryPacks(t *testing.T) {
	s := newSample(t, 40, 1000)
	h := newHub(t, nil)
	s.push(t, h.open(t))
	first, _ := h.take()

	// A second push of the same tree uploads only its manifest.
	var reused atomic.Int64
	again := s.set(t)
	again.Progress = func(n int, _ int64, r bool) {
		if r {
			reused.Add(int64(n))
		}
	}
	if err := h.open(t).PutTree(context.Background(), s.digests[0], again); err != nil {
		t.Fatal(err)
	}
	if n, requests := h.take(); n != 0 || reused.Load() != 40 {
		t.Errorf("%d bytes for a tree that was there, %d objects reused: %v", n, reused.Load(), requests)
	}

	// Another tree that shares most objects uploads only the rest, and its manifest names
	// both packs.
	more := newSample(t, 42, 1000)
	if err := h.open(t).PutTree(context.Background(), more.digests[41], more.set(t)); err != nil {
		t.Fatal(err)
	}
	if n, _ := h.take(); n < 2000 || n > first/4 {
		t.Errorf("%d bytes for two objects more, %d for the first 40", n, first)
	}
	resp, err := http.Get(h.URL + "/v2/lab/store/manifests/tree-" + more.digests[41].String())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var m struct {
		ArtifactType string
		Layers       []struct{ MediaType string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
		t.Fatal(err)
	}
	packs := 0
	for _, l := range m.Layers {
		if l.MediaType == "application/vnd.premix.pack.v1" {
			packs++
		}
	}
	if packs != 2 || m.ArtifactType != "application/vnd.premix.tree.v1" {
		t.Errorf("%+v", m)
	}
	g := origin.NewGroup([]origin.Origin{h.open(t)}, quick())
	for _, d := range more.digests {
		if _, err := g.Verified(context.Background(), d, -1); err != nil {
			t.Error(err)
		}
	}
}

// A push that follows an interrupted one finds the packs that were uploaded.
func TestRegistryPushResumes(t *testing.T) {
	s := newSample(t, 40, 1<<20)
	h := newHub(t, nil)
	broken := s.set(t)
	cut := errors.New("cut")
	n := 0
	get := broken.Get
	broken.Get = func(ctx context.Context, d object.Digest) ([]byte, error) {
		if n++; n > 34 {
			return nil, cut
		}
		return get(ctx, d)
	}
	if err := h.open(t).PutTree(context.Background(), s.digests[0], broken); !errors.Is(err, cut) {
		t.Fatal(err)
	}
	h.take()
	if err := h.open(t).PutTree(context.Background(), s.digests[0], s.set(t)); err != nil {
		t.Fatal(err)
	}
	// There are 40 MiB in packs of 32 MiB, of which the first was already uploaded.
	if n, _ := h.take(); n > 10<<20 {
		t.Errorf("%d bytes were pushed again", n)
	}
}

func TestRegistryForgets(t *testing.T) {
	s, other := newSample(t, 3, 1000), newSample(t, 3, 2000)
	h := newHub(t, nil)
	o := h.open(t)
	s.push(t, o)
	if _, err := o.Object(context.Background(), other.digests[0]); !errors.Is(err, origin.ErrNotFound) {
		t.Errorf("an object that is not there: %v", err)
	}
	// The objects are found once they are pushed, at least by their tree.
	if err := h.open(t).PutTree(context.Background(), other.digests[0], other.set(t)); err != nil {
		t.Fatal(err)
	}
	for _, d := range other.digests {
		if _, err := o.Object(context.Background(), d); err != nil {
			t.Error(err)
		}
	}
}

func TestRegistryProfiles(t *testing.T) {
	s := newSample(t, 3, 1000)
	h := newHub(t, nil)
	d := s.digests[0]
	file := tree.ProfilePath(d, "start")
	if err := h.open(t).PutProfiles(context.Background(), d, []origin.File{{Name: file, Content: []byte("{}")}}, s.set(t)); err != nil {
		t.Fatal(err)
	}
	o := h.open(t)
	if b, err := o.File(context.Background(), file); err != nil || string(b) != "{}" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := o.Object(context.Background(), s.digests[1]); err != nil {
		t.Error(err)
	}
	if _, err := o.File(context.Background(), tree.ProfilePath(d, "other")); !errors.Is(err, origin.ErrNotFound) {
		t.Errorf("another profile: %v", err)
	}
}

func TestRegistryTags(t *testing.T) {
	h := newHub(t, nil)
	o := h.open(t)
	long := tree.Ref{Name: "a/" + strings.Repeat("b", 190), Tag: strings.Repeat("T", 128)}
	for _, ref := range []tree.Ref{{Name: "a.b", Tag: "c"}, {Name: "a/b", Tag: "c"}, {Name: "a/b", Tag: "c-d"}, {Name: "a/b-c", Tag: "d"}, long} {
		if err := o.PutTag(context.Background(), ref, []origin.File{{Name: ref.TagPath(), Content: []byte(ref.String())}, {Name: ref.HistoryPath(), Content: []byte("h" + ref.String())}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, ref := range []tree.Ref{{Name: "a.b", Tag: "c"}, {Name: "a/b", Tag: "c"}, {Name: "a/b", Tag: "c-d"}, {Name: "a/b-c", Tag: "d"}, long} {
		if b, err := h.open(t).File(context.Background(), ref.TagPath()); err != nil || string(b) != ref.String() {
			t.Errorf("%s: %q, %v", ref, b, err)
		}
		if b, err := h.open(t).File(context.Background(), ref.HistoryPath()); err != nil || string(b) != "h"+ref.String() {
			t.Errorf("the history of %s: %q, %v", ref, b, err)
		}
	}
}

func TestRegistryFaults(t *testing.T) {
	for _, fault := range append(faulty.All(), faulty.NotThere) {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			s := newSample(t, 3, 20000)
			var h *faulty.Handler
			server := newHub(t, func(good http.Handler) http.Handler {
				h = faulty.New(good)
				return h
			})
			t.Cleanup(func() { h.Stop(); server.CloseClientConnections() })
			s.push(t, server.open(t))
			for _, where := range []string{"/blobs/", "/v2/"} {
				h.Set(faulty.None, "")
				_, second := s.serve(t)
				g := origin.NewGroup([]origin.Origin{server.openWith(t, hasty()), open(t, second.URL, quick())}, quick())
				alone := server.openWith(t, hasty())
				h.Set(fault, where)
				for _, d := range s.digests {
					if b, err := g.Verified(context.Background(), d, -1); err != nil || !bytes.Equal(b, s.contents[d]) {
						t.Errorf("%s: %d bytes, %v", where, len(b), err)
					}
				}
				for _, name := range []string{"store.json", tagName} {
					want, err := os.ReadFile(filepath.Join(s.dir, name))
					if err != nil {
						t.Fatal(err)
					}
					if b, err := alone.File(context.Background(), name); err == nil && !bytes.Equal(b, want) {
						t.Errorf("%s: %s: %q", where, name, b)
					} else if err != nil && origin.KindOf(err) == "" {
						t.Errorf("%s: %s: an error without a kind: %v", where, name, err)
					}
				}
			}
		})
	}
}

func TestRegistryAuthenticates(t *testing.T) {
	s := newSample(t, 3, 1000)
	var strange atomic.Int64
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			strange.Add(1)
		}
		http.NotFound(w, r)
	}))
	defer stranger.Close()
	var away atomic.Bool
	h := newHub(t, func(good http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, secret, _ := r.BasicAuth(); user != "me" || secret != "s3cret" {
				w.Header().Set("WWW-Authenticate", `Basic realm="lab"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if away.Load() && strings.Contains(r.URL.Path, "/blobs/") {
				http.Redirect(w, r, stranger.URL, http.StatusTemporaryRedirect)
				return
			}
			good.ServeHTTP(w, r)
		})
	})
	t.Setenv("DOCKER_CONFIG", t.TempDir()) // an empty configuration
	host := strings.TrimPrefix(h.URL, "http://")
	_, err := h.open(t).File(context.Background(), "store.json")
	if origin.KindOf(err) != origin.Refused {
		t.Errorf("without credentials: %v", err)
	}
	o := quick()
	o.Credentials = credentials(t, "machine "+host+" login me password s3cret")
	one := open(t, "oci://"+host+"/lab/store", o).(*origin.OCI)
	s.push(t, one)
	if _, err := one.Object(context.Background(), s.digests[0]); err != nil {
		t.Error(err)
	}
	away.Store(true)
	_, err = one.Object(context.Background(), s.digests[1])
	if err == nil || strange.Load() != 0 || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v; another host was told credentials %d times", err, strange.Load())
	}
}
