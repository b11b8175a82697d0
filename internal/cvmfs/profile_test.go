package cvmfs

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/lazyfs/fuse"
	"premix/internal/testkit/cvmfsrepo"
)

// at returns the attributes of a path of a Live.
func at(t testing.TB, l *Live, path string) fuse.Attr {
	t.Helper()
	a := fuse.Attr{Node: fuse.RootNode}
	for name := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		var err error
		if a, err = l.Lookup(context.Background(), a.Node, name); err != nil || a.Node == 0 {
			t.Fatalf("%s: %d, %v", path, a.Node, err)
		}
	}
	return a
}

// readAt reads n bytes of a file of a Live.
func readAt(t testing.TB, l *Live, path string, off, n int64) string {
	t.Helper()
	b := make([]byte, n)
	got, err := l.Read(context.Background(), at(t, l, path).Node, b, off)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:got])
}

// recordedBy returns the profile of a recorder after writing it to a file and reading it
// again.
func recordedBy(t testing.TB, r *Recorder) *Profile {
	t.Helper()
	b, err := r.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "profile")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := ReadProfile(file, cvmfsrepo.Name)
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return p
}

// A recording contains files and catalogs in the order of their first use, and the used
// parts of large files. A second recorder continues it.
func TestRecord(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	tree := cvmfsrepo.Sample(false)
	tree["/large"] = &cvmfsrepo.Node{Mode: unix.S_IFREG | 0o644, Content: bytes.Repeat([]byte("0123456789abcdef"), 9<<16), Chunk: 700_000}
	tree["/100%"] = tree["/a file"]
	h := newHost(t, cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 1))
	o, _ := liveOptions(t, id, openedCache(t, t.TempDir(), 0), h.url)
	l := openedLive(t, o)
	r := l.Record(nil)
	readAt(t, l, "/nested/deeper/t\xff ü", 0, 8)
	readAt(t, l, "/a file", 0, 1)
	readAt(t, l, "/large", 5<<20, 10)
	readAt(t, l, "/large", 1<<20-5, 10)
	readAt(t, l, "/a file", 2, 1)
	want := "[{ []} {/nested []} {/nested/deeper []} {/nested/deeper/t\xff ü []} {/a file []} {/large [[0 2] [5 6]]}]"
	p := recordedBy(t, r)
	if got := fmt.Sprint(p.Entries); got != want {
		t.Errorf("recorded %q, want %q", got, want)
	}
	r.Stop()
	readAt(t, l, "/100%", 0, 1)
	if got := fmt.Sprint(recordedBy(t, r).Entries); got != want {
		t.Errorf("recorded after the end: %q", got)
	}
	r = l.Record(p)
	readAt(t, l, "/100%", 0, 1)
	readAt(t, l, "/large", 3<<20, 2<<20)
	if got, want := fmt.Sprint(recordedBy(t, r).Entries), strings.Replace(want, "[0 2] [5 6]]}", "[0 2] [3 6]]} {/100% []}", 1); got != want {
		t.Errorf("continued %q, want %q", got, want)
	}
}

func TestParseProfile(t *testing.T) {
	const head = `{"format":"premix profile of a repository 1","repository":"fixture.example.org","entries":[`
	for content, reason := range map[string]string{
		head + `]}`: "",
		head + `{"path":""},{"path":"/a%FF/%25"}]}`:     "",
		head + `{"path":"/a","mib":[[0,1],[3,1000]]}]}`: "",
		``:                                     "not a profile",
		head + `]}{}`:                          "more follows",
		head + `{"path":"a"}]}`:                "not a path",
		head + `{"path":"/a/../b"}]}`:          "not a path",
		head + `{"path":"/a/"}]}`:              "not a path",
		head + `{"path":"/a%2"}]}`:             "not a path",
		head + `{"path":"/a","mib":[[1,1]]}]}`: "not in order",
		head + `{"path":"/a","mib":[[2,3],[1,2]]}]}`:        "not in order",
		head + `{"path":"/a","mib":[[0,10000000000000]]}]}`: "not in order",
		head + `{"path":"/a","hash":"0"}]}`:                 "unknown field",
		strings.Replace(head, "fixture", "other", 1) + `]}`: "is of the repository",
		strings.Replace(head, "y 1", "y 2", 1) + `]}`:       "its format is",
	} {
		p, err := ParseProfile([]byte(content), cvmfsrepo.Name)
		if (err != nil) != (reason != "") || err != nil && !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %+v, %v", content, p, err)
		}
	}
}

// startTree returns a tree with the files of a program start: many small ones in nested
// catalogs.
func startTree(files int) (cvmfsrepo.Tree, []string) {
	tree := cvmfsrepo.Tree{"": {Mode: unix.S_IFDIR | 0o755}}
	dir := func(p string, nested bool) {
		if tree[p] == nil {
			tree[p] = &cvmfsrepo.Node{Mode: unix.S_IFDIR | 0o755, Nested: nested}
		}
	}
	dir("/sw", false)
	dir("/sw/v1", true)
	var order []string
	for i := range files {
		d := fmt.Sprintf("/sw/v1/m%02d", i%20)
		dir(d, i%5 == 0)
		p := fmt.Sprintf("%s/f%03d", d, i)
		tree[p] = &cvmfsrepo.Node{Mode: unix.S_IFREG | 0o644, Content: bytes.Repeat([]byte(p), 100)}
		order = append(order, p)
	}
	return tree, order
}

// profileOf returns a profile of paths.
func profileOf(paths ...string) *Profile {
	p := &Profile{Format: ProfileFormat, Repository: cvmfsrepo.Name}
	for _, s := range paths {
		p.Entries = append(p.Entries, Touch{Path: ProfilePath(s)})
	}
	return p
}

// gate serves a repository. It holds requests for objects until as many as wanted wait at
// the same time.
type gate struct {
	p *cvmfsrepo.Published

	mu      sync.Mutex
	wanted  int
	waiting int
	most    int
	order   []string
	open    chan struct{}
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, name, ok := strings.Cut(r.URL.Path, "/data/"); ok && !strings.HasSuffix(name, "C") && !strings.HasSuffix(name, "X") {
		g.mu.Lock()
		g.order = append(g.order, "data/"+name)
		g.waiting++
		if g.most = max(g.most, g.waiting); g.most == g.wanted && g.waiting == g.wanted {
			close(g.open)
		}
		g.mu.Unlock()
		select {
		case <-g.open:
		case <-time.After(20 * time.Second):
		}
		g.mu.Lock()
		g.waiting--
		g.mu.Unlock()
	}
	g.p.ServeHTTP(w, r)
}

// asked returns the number of requests for objects, and resets it.
func asked(p *cvmfsrepo.Published) (n int) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	for name, k := range p.Asked {
		if strings.HasPrefix(name, "data/") && !strings.HasSuffix(name, "X") {
			n += k
		}
	}
	clear(p.Asked)
	return n
}

// The files of a profile are fetched in its order, over many connections at once, before
// they are read. After that, reads need no server.
func TestPrefetch(t *testing.T) {
	const files = 300
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	tree, order := startTree(files)
	p := cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 1)
	g := &gate{p: p, wanted: aheadObjects, open: make(chan struct{})}
	s := httptest.NewServer(g)
	defer s.Close()
	o, ev := liveOptions(t, id, openedCache(t, t.TempDir(), 0), s.URL+"/cvmfs/@fqrn@")
	o.Profiles = []*Profile{profileOf(append([]string{"", "/sw/v1"}, order...)...)}
	l := openedLive(t, o)
	const done = "302 names, 300 objects fetched"
	until(t, done, func() bool { return l.Prefetched() == done })
	if g.most < aheadObjects {
		t.Errorf("%d objects at the same time, want %d", g.most, aheadObjects)
	}
	place := map[string]int{}
	for i, path := range order {
		place[cvmfsrepo.Object(tree[path].Content)] = i
	}
	shift := 0
	for i, name := range g.order {
		shift += max(place[name]-i, i-place[name])
	}
	if shift /= files; shift > aheadObjects { // it is about 100 without an order
		t.Errorf("an object was asked for %d places before or after its turn", shift)
	}
	if n := asked(p); n != 300+1+1+4 { // every fifth of 20 directories has a nested catalog
		t.Errorf("%d requests", n)
	}
	for path, n := range tree {
		if n.Mode&unix.S_IFMT == unix.S_IFREG && readAt(t, l, path, 0, int64(len(n.Content))) != string(n.Content) {
			t.Errorf("%s is wrong", path)
		}
	}
	if n := asked(p); n != 0 {
		t.Errorf("%d requests of reads", n)
	}
	if ev.all() != "" {
		t.Error(ev.all())
	}
}

// A profile remains useful for a new revision: missing names do no harm, and changed files
// are fetched before they are read. A mount of a directory fetches only files in it.
func TestPrefetchOldProfile(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	id.TTL = 1
	tree, order := startTree(60)
	first := cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 1)
	changed, _ := startTree(60)
	for _, p := range order[:10] {
		changed[p].Content = []byte("changed " + p)
	}
	delete(changed, order[20])
	changed[order[21]] = &cvmfsrepo.Node{Mode: unix.S_IFDIR | 0o755}
	changed[order[22]] = &cvmfsrepo.Node{Mode: unix.S_IFLNK | 0o777, Target: "nowhere"}
	second := cvmfsrepo.Publish(t, changed, cvmfsrepo.SHA1, id, 2)
	h := newHost(t, first)
	c := openedCache(t, t.TempDir(), 0)
	o, ev := liveOptions(t, id, c, h.url)
	o.Profiles = []*Profile{profileOf(append(slices.Clone(order), "/nowhere/at/all", order[0]+"/below")...)}
	l := openedLive(t, o)
	const done = "62 names, 60 objects fetched, 2 names do not exist here"
	until(t, done, func() bool { return l.Prefetched() == done })
	h.set(second)
	const again = "62 names, 10 objects fetched, 3 names do not exist here"
	until(t, again, func() bool { return l.Prefetched() == again })
	asked(second)
	for _, p := range order[:20] {
		if got := readAt(t, l, p, 0, int64(len(changed[p].Content))); got != string(changed[p].Content) {
			t.Errorf("%s: %q", p, got)
		}
	}
	if n := asked(second); n != 0 {
		t.Errorf("%d requests of reads", n)
	}
	if strings.Contains(ev.all(), EventRefused) || strings.Contains(ev.all(), EventUnreachable) {
		t.Error(ev.all())
	}

	part, _ := liveOptions(t, id, openedCache(t, t.TempDir(), 0), h.url)
	part.Path, part.Profiles = "/sw/v1/m07", o.Profiles
	asked(second)
	l = openedLive(t, part)
	const few = "62 names, 3 objects fetched, 59 names do not exist here"
	until(t, few, func() bool { return l.Prefetched() == few })
	if n := asked(second); n != 3+2 {
		t.Errorf("%d requests", n)
	}
}

// Only the recorded parts of a file in chunks are fetched.
func TestPrefetchParts(t *testing.T) {
	f := &openFile{kind: "P"}
	for i := range int64(10) {
		f.chunks = append(f.chunks, chunk{off: i * 1_500_000, size: 1_500_000, content: someHash(byte(i))})
	}
	for want, parts := range map[string][][2]int64{
		"0123456789": nil,
		"0":          {{0, 1}},
		"01":         {{1, 2}},
		"029":        {{0, 1}, {3, 4}, {13, 14}},
		"9":          {{14, 1000}},
		"":           {{1000, 1001}},
	} {
		got := ""
		for _, w := range f.within(parts) {
			got += fmt.Sprint(w.hash.digest[0])
		}
		if got != want {
			t.Errorf("%v: %s, want %s", parts, got, want)
		}
	}
}

// someHash returns a hash that depends on b.
func someHash(b byte) Hash { return Hash{algorithm: sha1Hash, digest: [digestSize]byte{b}} }

// A read that misses the cache starts the prefetch again from its file on.
func TestPrefetchAfterMiss(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	tree, order := startTree(50)
	p := cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 1)
	h := newHost(t, p)
	c := openedCache(t, t.TempDir(), 0)
	o, _ := liveOptions(t, id, c, h.url)
	o.Profiles = []*Profile{profileOf(order...)}
	l := openedLive(t, o)
	const done = "50 names, 50 objects fetched"
	until(t, done, func() bool { return l.Prefetched() == done })
	c.DropObjects()
	l.profiles[0].mu.Lock()
	l.profiles[0].ended = time.Now().Add(-prefetchAgain)
	l.profiles[0].mu.Unlock()
	asked(p)
	readAt(t, l, order[30], 0, 1)
	until(t, "the other files", func() bool {
		return l.o.Objects.Has(strings.ReplaceAll(strings.TrimPrefix(cvmfsrepo.Object(tree[order[29]].Content), "data/"), "/", ""))
	})
	until(t, "the end", func() bool { return !strings.HasPrefix(l.Prefetched(), "fetching") })
	asked(p)
	for _, path := range order {
		readAt(t, l, path, 0, 1)
	}
	if n := asked(p); n != 0 {
		t.Errorf("%d requests of reads", n)
	}
}

// Without a working server, a prefetch stops after a few requests, and wrong objects are
// not kept.
func TestPrefetchFails(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	tree, order := startTree(200)
	good := cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 1)
	bad := good.Lie()
	for name, b := range good.Files {
		if strings.HasSuffix(name, "C") || strings.HasSuffix(name, "X") || !strings.HasPrefix(name, "data/") {
			bad.Files[name] = b
		}
	}
	h := newHost(t, bad)
	o, ev := liveOptions(t, id, openedCache(t, t.TempDir(), 0), h.url)
	o.Profiles = []*Profile{profileOf(order...)}
	l := openedLive(t, o)
	until(t, "an end", func() bool {
		s := l.Prefetched()
		return !strings.HasPrefix(s, "fetching") && strings.Contains(s, " failed")
	})
	if n := asked(bad); n > failuresMost+2*aheadObjects+10 {
		t.Errorf("%d requests to a server with wrong data", n)
	}
	if !ev.has(EventRefused, "another hash") {
		t.Error(ev.all())
	}
	h.set(good)
	if got := readAt(t, l, order[0], 0, 10); got != string(tree[order[0]].Content[:10]) {
		t.Error(got)
	}
}

func FuzzParseProfile(f *testing.F) {
	f.Add([]byte(`{"format":"premix profile of a repository 1","repository":"fixture.example.org","entries":[{"path":""},{"path":"/a%FF/%25","mib":[[0,1],[3,1000]]}]}`))
	file := &openFile{chunks: []chunk{{0, 1 << 20, Hash{}}, {1 << 20, 5, Hash{}}}}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseProfile(b, cvmfsrepo.Name)
		if err != nil {
			return
		}
		r := &Recorder{l: &Live{r: &Repository{name: cvmfsrepo.Name}}, entries: p.Entries}
		text, err := r.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseProfile(text, cvmfsrepo.Name)
		if err != nil || len(again.Entries) != len(p.Entries) {
			t.Fatalf("%v: %s", err, text)
		}
		for i, e := range p.Entries {
			if again.Entries[i].Path != e.Path {
				t.Errorf("%q became %q", e.Path, again.Entries[i].Path)
			}
			if n := len(file.within(e.Parts)); n > 2 {
				t.Errorf("%d chunks of 2", n)
			}
		}
	})
}
