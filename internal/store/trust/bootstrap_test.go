package trust_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/store/tree"
	"premix/internal/store/trust"
	"premix/internal/testkit/faulty"
)

// open writes the bootstrap of the tag from the current files of the shop, after change was
// applied to them.
func (s *shop) open(change func(path string, content []byte) []byte) {
	s.t.Helper()
	s.openWith(func(w *tree.BootstrapWriter) {
		w.Object(object.Sum([]byte("first")), object.Encode(nil, []byte("first")))
		w.Later(object.Sum([]byte("later")), object.Encode(nil, []byte("later")))
		w.Later(object.Sum([]byte("wrong")), object.Encode(nil, []byte("it is another one")))
	}, change)
}

// openWith writes a bootstrap as open does, with other objects.
func (s *shop) openWith(objects func(w *tree.BootstrapWriter), changes ...func(path string, content []byte) []byte) {
	s.t.Helper()
	var w tree.BootstrapWriter
	for _, path := range []string{tree.InfoPath, ref.TagPath()} {
		content, err := os.ReadFile(filepath.Join(s.dir, path))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, change := range changes {
			content = change(path, content)
		}
		w.File(path, content)
	}
	objects(&w)
	s.write(ref.BootstrapPath("start"), w.Bytes())
}

func same(_ string, content []byte) []byte { return content }

func openFrom(t *testing.T, dir string, g *origin.Group) (*trust.Resolved, error) {
	t.Helper()
	res, err := trust.New(trust.Options{Dir: dir}).Open(t.Context(), g, ref, "start")
	if err == nil {
		err = res.Kept(t.Context())
	}
	return res, err
}

func TestBootstrap(t *testing.T) {
	s, dir := newShop(t, 1, 1), t.TempDir()
	d := s.tag(1, "one")
	// There is no bootstrap, so the files are requested.
	res, err := openFrom(t, dir, group(s.origin()))
	if err != nil || res.Tree != d || res.Bootstrap != nil || !res.First {
		t.Fatalf("%+v, %v", res, err)
	}
	s.open(same)
	before := s.fault.Requests()
	res, err = openFrom(t, dir, group(s.origin()))
	if err != nil || res.Tree != d || res.Bootstrap == nil || res.First {
		t.Fatalf("%+v, %v", res, err)
	}
	for _, what := range []string{"first", "later"} {
		if got := res.Bootstrap.Object(t.Context(), object.Sum([]byte(what))); string(got) != what {
			t.Errorf("%s: %q", what, got)
		}
	}
	for _, what := range []string{"first", "wrong", "absent"} { // each can be taken once
		if got := res.Bootstrap.Object(t.Context(), object.Sum([]byte(what))); got != nil {
			t.Errorf("%s: %q", what, got)
		}
	}
	if got, ok := res.Bootstrap.Profile(d, "start"); got != nil || !ok {
		t.Errorf("a profile that is not there: %q, %t", got, ok)
	}
	if n := s.fault.Requests() - before; n != 8 { // its pieces
		t.Errorf("%d requests", n)
	}
	// On first use, the client remembers the key from a bootstrap as it does from the
	// files.
	dir = t.TempDir()
	if res, err = openFrom(t, dir, group(s.origin())); err != nil || res.Bootstrap == nil || !res.First {
		t.Fatalf("%+v, %v", res, err)
	}
	if res, err = resolve(t, dir, group(s.origin())); err != nil || res.First {
		t.Errorf("%+v, %v", res, err)
	}
	s.tag(1, "another one")
	var back *trust.RollbackError
	if _, err = resolve(t, dir, group(s.origin())); !errors.As(err, &back) {
		t.Errorf("what the bootstrap said was forgotten: %v", err)
	}
}

// A bootstrap is trusted no more than the files that it repeats: it cannot bring back an
// older record, nor introduce a forged record or the keys of another store. If the
// bootstrap is outdated or damaged, the files decide.
func TestBootstrapsThatLie(t *testing.T) {
	forged := tree.NewPrivateKey([32]byte{9})
	for name, change := range map[string]func(s *shop) func(string, []byte) []byte{
		"a forged record": func(s *shop) func(string, []byte) []byte {
			return func(path string, content []byte) []byte {
				if path != ref.TagPath() {
					return content
				}
				signed, err := tree.SignTag(forged, &tree.TagRecord{Store: s.id, Name: ref.Name, Tag: ref.Tag, Tree: object.Sum([]byte("evil")), Serial: 99})
				if err != nil {
					t.Fatal(err)
				}
				return signed
			}
		},
		"other keys": func(s *shop) func(string, []byte) []byte {
			return func(path string, content []byte) []byte {
				if path != tree.InfoPath {
					return content
				}
				info := &tree.Info{Format: tree.StoreFormat, ID: s.id, Keys: []tree.PublicKey{forged.Public()}}
				changed, err := info.Marshal()
				if err != nil {
					t.Fatal(err)
				}
				return changed
			}
		},
		"nothing in it": func(*shop) func(string, []byte) []byte {
			return func(string, []byte) []byte { return nil }
		},
	} {
		s, dir := newShop(t, 1, 1), t.TempDir()
		d := s.tag(2, "two")
		if _, err := resolve(t, dir, group(s.origin())); err != nil {
			t.Fatal(err)
		}
		s.open(change(s))
		res, err := openFrom(t, dir, group(s.origin()))
		if err != nil || res.Tree != d || res.Bootstrap != nil {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}

	// The bootstrap was not updated and contains an older record.
	s, dir := newShop(t, 1, 1), t.TempDir()
	s.tag(1, "one")
	s.open(same)
	d := s.tag(2, "two")
	if _, err := resolve(t, dir, group(s.origin())); err != nil {
		t.Fatal(err)
	}
	res, err := openFrom(t, dir, group(s.origin()))
	if err != nil || res.Tree != d || res.Bootstrap != nil {
		t.Errorf("a bootstrap that lags behind: %+v, %v", res, err)
	}
	// The files are old as well, which is a replay.
	s.tag(1, "one")
	var back *trust.RollbackError
	if _, err := openFrom(t, dir, group(s.origin())); !errors.As(err, &back) {
		t.Errorf("a replay: %v", err)
	}

	// Servers may answer in strange ways if they lack a file.
	for _, f := range []faulty.Fault{faulty.NotThere, faulty.Portal, faulty.Refuse, faulty.Loop, faulty.Fail, faulty.Strange, faulty.Flip, faulty.Short, faulty.Other} {
		s, dir := newShop(t, 1, 1), t.TempDir()
		d := s.tag(1, "one")
		s.open(same)
		s.fault.Set(f, tree.BootstrapsDir)
		if res, err := openFrom(t, dir, group(s.origin())); err != nil || res.Tree != d {
			t.Errorf("bootstraps: the server %s: %v", f, err)
		}
	}

	// The bootstrap is cut off, in its head or behind it, or is not a bootstrap at all.
	s.tag(3, "three")
	s.open(same)
	path := filepath.Join(s.dir, ref.BootstrapPath("start"))
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 5, 8, 100, len(content) - 3} {
		if err := os.WriteFile(path, content[:n], 0o644); err != nil {
			t.Fatal(err)
		}
		res, err := openFrom(t, dir, group(s.origin()))
		if err != nil || res.Record.Serial != 3 {
			t.Fatalf("%d of %d bytes: %v", n, len(content), err)
		}
		if res.Bootstrap != nil {
			if got := res.Bootstrap.Object(t.Context(), object.Sum([]byte("wrong"))); got != nil {
				t.Errorf("%d of %d bytes: %q", n, len(content), got)
			}
		}
	}
}

// An object behind the head is used while it arrives, at any pace. If it is cut off or
// wrong, it is never reported as complete.
func TestBootstrapArrives(t *testing.T) {
	s := newShop(t, 1, 1)
	s.tag(1, "one")
	long := make([]byte, 800_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range long {
		long[i] = "acgtnACGTN,.:;!?"[r.IntN(16)]
	}
	d, stored := object.Sum(long), object.Encode(nil, long)
	page := object.Sum([]byte("page"))
	s.openWith(func(w *tree.BootstrapWriter) {
		w.Later(page, object.Encode(nil, []byte("page")))
		w.Later(d, stored)
	})
	path := filepath.Join(s.dir, ref.BootstrapPath("start"))
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wrong := bytes.Clone(content)
	wrong[len(wrong)-len(stored)/2] ^= 1
	for name, c := range map[string]struct {
		content []byte
		cut     int // bytes that are sent
		whole   bool
	}{
		"whole":           {content, len(content), true},
		"cut in an item":  {content, len(content) - len(stored)/2, false},
		"cut by a byte":   {content, len(content) - 1, false},
		"cut before it":   {content, len(content) - len(stored), false},
		"wrong in middle": {wrong, len(wrong), false},
	} {
		more := make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(c.content)))
			for at := 0; at < c.cut; at += 10_000 {
				if at > len(content)-len(stored)/4 {
					<-more
				}
				_, _ = w.Write(c.content[at:min(at+10_000, c.cut)])
				w.(http.Flusher).Flush()
			}
		}))
		res, err := openFrom(t, t.TempDir(), group(open(t, server.URL)))
		if err != nil || res.Bootstrap == nil {
			t.Fatalf("%s: %+v, %v", name, res, err)
		}
		if got := res.Bootstrap.Object(t.Context(), page); string(got) != "page" {
			t.Errorf("%s: the page is %q while the rest is on its way", name, got)
		}
		told := 0
		once := sync.OnceFunc(func() { close(more) })
		if !c.whole {
			once()
		}
		got := res.Bootstrap.Stream(t.Context(), d, int64(len(long)), func(soFar []byte) {
			if c.whole && (!bytes.HasPrefix(long, soFar) || len(soFar) < told) {
				t.Errorf("%s: %d bytes behind %d, or they are wrong", name, len(soFar), told)
			}
			if told = len(soFar); told > 0 {
				once()
			}
		})
		if c.whole != (got != nil) || got != nil && !bytes.Equal(got, long) {
			t.Errorf("%s: %d bytes", name, len(got))
		}
		if again := res.Bootstrap.Stream(t.Context(), d, int64(len(long)), func([]byte) {}); again != nil {
			t.Errorf("%s: it was given twice", name)
		}
		server.Close()
	}
}

// A canceled Open returns although the origin does not answer.
func TestBootstrapGivenUp(t *testing.T) {
	s, dir := newShop(t, 1, 1), t.TempDir()
	s.tag(1, "one")
	s.open(same)
	s.fault.Set(faulty.Late, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := trust.New(trust.Options{Dir: dir}).Open(ctx, group(s.origin()), ref, "start"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A doubtful reference over a cold connection is answered after one round trip, whether the
// origin has it or not: all files are requested before any of them is answered. The answers
// are judged as usual.
func TestDoubtful(t *testing.T) {
	s := newShop(t, 1, 1)
	var mu sync.Mutex
	asked := map[string]bool{}
	both := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		path := strings.TrimPrefix(r.URL.Path, "/")
		if known := len(asked); path == tree.InfoPath || path == ref.TagPath() {
			if asked[path] = true; known == 1 && len(asked) == 2 {
				close(both)
			}
		}
		wait := both
		mu.Unlock()
		select {
		case <-wait:
		case <-r.Context().Done():
			return
		}
		s.fault.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	ask := func(dir string) (*trust.Resolved, error) {
		mu.Lock()
		asked, both = map[string]bool{}, make(chan struct{})
		mu.Unlock()
		res, err := trust.New(trust.Options{Dir: dir, Doubtful: true}).Open(t.Context(), group(open(t, server.URL)), ref, "start")
		if err == nil {
			err = res.Kept(t.Context())
		}
		return res, err
	}
	dir := t.TempDir()
	var none *trust.NoTagError
	if res, err := ask(dir); !errors.As(err, &none) {
		t.Errorf("without a tag: %+v, %v", res, err)
	}
	d := s.tag(1, "one")
	if res, err := ask(dir); err != nil || res.Tree != d || res.Bootstrap != nil {
		t.Errorf("without a bootstrap: %+v, %v", res, err)
	}
	s.open(same)
	if res, err := ask(dir); err != nil || res.Tree != d || res.Bootstrap == nil {
		t.Errorf("with a bootstrap: %+v, %v", res, err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, tree.BootstrapsDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.dir, ref.TagPath())); err != nil {
		t.Fatal(err)
	}
	s.found(2, 2)
	var changed *trust.ChangedError
	if res, err := ask(dir); !errors.As(err, &changed) {
		t.Errorf("without a tag, in another store: %+v, %v", res, err)
	}
}
