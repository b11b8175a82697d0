package cvmfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/lazyfs/fuse"
	"premix/internal/store/cache"
	"premix/internal/testkit/cvmfsrepo"
)

// host serves several repositories at one address, one at a time. If now is nil, no server
// answers.
type host struct {
	mu  sync.Mutex
	now *cvmfsrepo.Published
	url string
}

func newHost(t testing.TB, p *cvmfsrepo.Published) *host {
	h := &host{now: p}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		p := h.now
		h.mu.Unlock()
		if p == nil {
			panic(http.ErrAbortHandler)
		}
		p.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	h.url = s.URL + "/cvmfs/@fqrn@"
	return h
}

func (h *host) set(p *cvmfsrepo.Published) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = p
}

// events collects the events of a Live.
type events struct {
	mu   sync.Mutex
	list []string
}

func (e *events) log(event, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event+": "+reason)
}

// has reports whether an event with a name was logged whose reason contains text.
func (e *events) has(name, text string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.list {
		if strings.HasPrefix(s, name+": ") && strings.Contains(s, text) {
			return true
		}
	}
	return false
}

func (e *events) clear() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = nil
}

func (e *events) all() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.list, "\n")
}

func openedCache(t testing.TB, dir string, quota int64) *cache.Cache {
	t.Helper()
	c, err := cache.Open(dir, cache.Options{Floor: -1, Quota: quota})
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

func liveOptions(t testing.TB, id *cvmfsrepo.Identity, c *cache.Cache, server string) (LiveOptions, *events) {
	o := LiveOptions{Options: options(t, id, server), Objects: c.Objects(), Numbers: filepath.Join(t.TempDir(), "catalogs")}
	o.Seen = t.TempDir()
	ev := &events{}
	o.Log = ev.log
	return o, ev
}

func openedLive(t testing.TB, o LiveOptions) *Live {
	t.Helper()
	l, err := OpenLive(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// openShown opens a file of a mount that this process serves. os.Open adds the file to the
// runtime's poller with epoll_ctl(2), which sends a request to the mount while the
// goroutine keeps its processor. With few processors, none is left to answer.
func openShown(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil // blocking, and therefore without the poller
}

// readShown reads a file as os.ReadFile does, but opens it with openShown.
func readShown(path string) ([]byte, error) {
	f, err := openShown(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// shown mounts a Live, and unmounts it at the end of the test.
func shown(t testing.TB, l *Live) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("there is no /dev/fuse")
	}
	mnt := t.TempDir()
	s, err := fuse.MountFiles(mnt, l, fuse.Options{Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(mnt); err != nil {
			t.Error(err)
		}
		if err := s.Wait(); err != nil {
			t.Error(err)
		}
	})
	return mnt
}

// A mount shows every name, byte and attribute that was published.
func TestLive(t *testing.T) {
	for _, a := range []cvmfsrepo.Algorithm{cvmfsrepo.SHA1, cvmfsrepo.RMD160, cvmfsrepo.SHAKE128} {
		id := cvmfsrepo.NewIdentity(t, 0, 1)
		tree := cvmfsrepo.Sample(true)
		tree["/fifo"] = &cvmfsrepo.Node{Mode: unix.S_IFIFO | 0o600, UID: 3, GID: 4, Time: time.Unix(5, 6)}
		tree["/null"] = &cvmfsrepo.Node{Mode: unix.S_IFCHR | 0o666, Rdev: 1<<8 | 3, Time: time.Unix(5, 6)}
		h := newHost(t, cvmfsrepo.Publish(t, tree, a, id, 5))
		c := openedCache(t, t.TempDir(), 0)
		for _, dir := range []string{"", "/nested/deeper", "/sub"} {
			o, ev := liveOptions(t, id, c, h.url)
			o.Path = dir
			mnt := shown(t, openedLive(t, o))
			compare(t, facts(t, mnt), wanted(tree, dir))
			if ev.all() != "" {
				t.Error(ev.all())
			}
			if dir != "" {
				continue
			}
			var one, two unix.Stat_t
			if err := errors.Join(unix.Lstat(mnt+"/sub/one", &one), unix.Lstat(mnt+"/sub/two", &two)); err != nil || one.Ino != two.Ino || one.Nlink != 2 {
				t.Errorf("links: inodes %d and %d, %d links, %v", one.Ino, two.Ino, one.Nlink, err)
			}
			if err := unix.Lstat(mnt+"/null", &one); err != nil || one.Rdev != 1<<8|3 {
				t.Errorf("a device %#x, %v", one.Rdev, err)
			}
			if err := unix.Lstat(mnt+"/nested/chunked", &one); err != nil || one.Size != 80000 {
				t.Errorf("%d bytes, %v", one.Size, err)
			}
			if err := os.WriteFile(mnt+"/new", nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("writing: %v", err)
			}
			readRandomly(t, mnt+"/nested/chunked", tree["/nested/chunked"].Content)
		}
		// All objects are now in the cache.
		h.set(nil)
		o, _ := liveOptions(t, id, c, h.url)
		if _, err := OpenLive(context.Background(), o); err == nil {
			t.Error("a repository without a server, of which none was seen, is mounted")
		}
	}
}

func readRandomly(t *testing.T, path string, want []byte) {
	t.Helper()
	f, err := openShown(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 50 {
		from := rand.IntN(len(want))
		p := make([]byte, 1+rand.IntN(len(want)-from))
		if n, err := f.ReadAt(p, int64(from)); err != nil || !bytes.Equal(p[:n], want[from:from+len(p)]) {
			t.Fatalf("%d bytes at %d: %d, %v", len(p), from, n, err)
		}
	}
}

// Catalogs are fetched only for directories that are read. A listing of their parent does
// not fetch them.
func TestLiveOnDemand(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	p := cvmfsrepo.Publish(t, cvmfsrepo.Sample(false), cvmfsrepo.SHA1, id, 1)
	h := newHost(t, p)
	c := openedCache(t, t.TempDir(), 0)
	o, _ := liveOptions(t, id, c, h.url)
	l := openedLive(t, o)
	catalogs := func() (n int) {
		p.Mu.Lock()
		defer p.Mu.Unlock()
		for name, asked := range p.Asked {
			if strings.HasSuffix(name, "C") {
				n += asked
			}
		}
		return n
	}
	names := 0
	if err := l.ReadDir(context.Background(), fuse.RootNode, 0, func(fuse.Dirent) bool { names++; return true }); err != nil || names != 8 {
		t.Errorf("%d names, %v", names, err)
	}
	if n := catalogs(); n != 1 {
		t.Errorf("a listing: %d requests for catalogs, want 1", n)
	}
	for range 2 {
		if a, err := l.Lookup(context.Background(), fuse.RootNode, "nested"); err != nil || a.Node == 0 {
			t.Fatal(a, err)
		}
	}
	if n := catalogs(); n != 2 {
		t.Errorf("a look: %d requests for catalogs, want 2", n)
	}
}

// A large directory can be read in pieces, from any cookie.
func TestLiveLargeDirectory(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	tree := cvmfsrepo.Tree{"": {Mode: unix.S_IFDIR | 0o755}}
	for i := range 3000 {
		tree[fmt.Sprintf("/%05d", i)] = &cvmfsrepo.Node{Mode: unix.S_IFREG | 0o644, Hidden: i%7 == 0}
	}
	h := newHost(t, cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 1))
	o, _ := liveOptions(t, id, openedCache(t, t.TempDir(), 0), h.url)
	l := openedLive(t, o)
	seen := map[string]int{}
	for cookie, more := uint64(0), true; more; {
		more = false
		left := 1 + rand.IntN(700)
		if err := l.ReadDir(context.Background(), fuse.RootNode, cookie, func(d fuse.Dirent) bool {
			if left--; left < 0 {
				return false
			}
			seen[d.Name]++
			cookie, more = d.Next, true
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	for p, n := range tree {
		if want := 1; p != "" && !n.Hidden && seen[p[1:]] != want || n.Hidden && seen[p[1:]] != 0 {
			t.Errorf("%s: %d times", p, seen[p[1:]])
		}
	}
	if len(seen) != 3000-429+2 {
		t.Errorf("%d names", len(seen))
	}
}

// changedSample publishes a revision of the sample with a changed file.
func changedSample(t testing.TB, id *cvmfsrepo.Identity, n int, content string) *cvmfsrepo.Published {
	tree := cvmfsrepo.Sample(false)
	tree["/sub/plain"].Content = []byte(content)
	tree["/nested/deeper/new"+fmt.Sprint(n)] = tree["/a file"]
	return cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, n)
}

func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for started := time.Now(); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Since(started) > 30*time.Second {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// A new revision appears within the TTL, and open files keep their content. An older
// revision, and another one with the same number, are refused.
func TestLiveFollows(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	id.TTL = 2
	first, second := changedSample(t, id, 5, "the first"), changedSample(t, id, 6, "the second, longer")
	h := newHost(t, first)
	o, ev := liveOptions(t, id, openedCache(t, t.TempDir(), 0), h.url)
	l := openedLive(t, o)
	mnt := shown(t, l)
	file := mnt + "/sub/plain"
	open, err := openShown(file)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	read := func() string {
		b, err := readShown(file)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	if read() != "the first" {
		t.Fatal(read())
	}
	h.set(second)
	changed := time.Now()
	until(t, "the second revision", func() bool { return read() == "the second, longer" })
	if d := time.Since(changed); d > 10*time.Second { // it takes 2 on an idle machine
		t.Errorf("after %v", d)
	}
	if _, err := os.Stat(mnt + "/nested/deeper/new6"); err != nil {
		t.Error(err)
	}
	b := make([]byte, 100)
	if n, err := open.ReadAt(b, 0); string(b[:n]) != "the first" {
		t.Errorf("the open file has %q, %v", b[:n], err)
	}
	h.set(first)
	until(t, "a refused replay", func() bool { return ev.has(EventRefused, "show revision 5, and revision 6 was seen before") })
	h.set(changedSample(t, id, 6, "another"))
	until(t, "a refused twin", func() bool { return ev.has(EventRefused, "show revision 6, and revision 6 was seen before") })
	if read() != "the second, longer" {
		t.Error(read())
	}
	if err := l.LastError(); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
}

// Without a server, a mount shows the files in the cache as long as the whitelist is valid,
// and other reads fail.
func TestLiveOffline(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	h := newHost(t, cvmfsrepo.Publish(t, cvmfsrepo.Sample(false), cvmfsrepo.SHA1, id, 5))
	dir := t.TempDir()
	c, err := cache.Open(dir, cache.Options{Floor: -1})
	if err != nil {
		t.Fatal(err)
	}
	o, _ := liveOptions(t, id, c, h.url)
	l, err := OpenLive(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	read := func(l *Live, names ...string) (string, error) {
		a := fuse.Attr{Node: fuse.RootNode}
		for _, n := range names {
			if a, err = l.Lookup(context.Background(), a.Node, n); err != nil || a.Node == 0 {
				return "", fmt.Errorf("%s: %d: %w", n, a.Node, err)
			}
		}
		b := make([]byte, a.Size)
		n, err := l.Read(context.Background(), a.Node, b, 0)
		return string(b[:n]), err
	}
	if s, err := read(l, "sub", "one"); s != "linked" {
		t.Fatal(s, err)
	}
	if err := errors.Join(l.Close(), c.Close()); err != nil {
		t.Fatal(err)
	}
	h.set(nil)
	o.Objects = openedCache(t, dir, 0).Objects()
	l = openedLive(t, o)
	if s, err := read(l, "sub", "two"); s != "linked" {
		t.Error(s, err)
	}
	if _, err := read(l, "a file"); !errors.Is(err, unix.EIO) {
		t.Errorf("not in the cache: %v", err)
	}
	if _, err := read(l, "nested", "chunked"); !errors.Is(err, unix.EIO) {
		t.Errorf("a catalog that is not in the cache: %v", err)
	}
	if l.Note() == "" {
		t.Error("no note")
	}
	o.Now = time.Now().Add(72 * time.Hour)
	o.Numbers += "2"
	if _, err := OpenLive(context.Background(), o); err == nil || !strings.Contains(err.Error(), "has expired") {
		t.Errorf("an expired whitelist: %v", err)
	}
}

// Objects and catalogs that a server has changed, truncated or exchanged are never shown.
func TestLiveLies(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	tree := cvmfsrepo.Sample(false)
	good := cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 5)
	var names []string
	for name := range good.Files {
		if strings.HasPrefix(name, "data/") && !strings.HasSuffix(name, "X") && !strings.HasSuffix(name, "H") {
			names = append(names, name)
		}
	}
	want := wanted(tree, "")
	for kind, lie := range map[string]func(i int, b []byte) []byte{
		"flipped": func(_ int, b []byte) []byte {
			b = bytes.Clone(b)
			b[rand.IntN(len(b))] ^= 1 << rand.IntN(8)
			return b
		},
		"truncated": func(_ int, b []byte) []byte { return b[:rand.IntN(len(b))] },
		"exchanged": func(i int, _ []byte) []byte { return good.Files[names[(i+1)%len(names)]] },
	} {
		bad := &cvmfsrepo.Published{Files: map[string][]byte{}, Asked: map[string]int{}}
		for name, b := range good.Files {
			bad.Files[name] = b
		}
		for i, name := range names {
			if rand.IntN(2) == 0 && name != rootOf(good) {
				bad.Files[name] = lie(i, good.Files[name])
			}
		}
		h := newHost(t, bad)
		o, ev := liveOptions(t, id, openedCache(t, t.TempDir(), 0), h.url)
		l := openedLive(t, o)
		mnt := shown(t, l)
		failed := 0
		for p, w := range want {
			got, err := oneFact(mnt, p)
			if err != nil {
				failed++
				if !errors.Is(err, unix.EIO) {
					t.Errorf("%s: %q: %v", kind, p, err)
				}
			} else if got != "" && !strings.Contains(w, got) {
				t.Errorf("%s: %q is %q, want %s", kind, p, got, w)
			}
		}
		if failed > 0 && !ev.has(EventRefused, "") {
			t.Errorf("%s: no event: %s", kind, ev.all())
		}
		h.set(good)
		compare(t, facts(t, mnt), want) // a good server repairs the mount
	}
}

// A new mount asks for the manifest again after three quarters of the TTL, and not before.
func TestLivePeriod(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	id.TTL = 8
	h := newHost(t, changedSample(t, id, 5, "the first"))
	o, _ := liveOptions(t, id, openedCache(t, t.TempDir(), 0), h.url)
	begun := time.Now()
	l := openedLive(t, o)
	h.set(changedSample(t, id, 6, "the second"))
	until(t, "the second revision", func() bool { return l.Manifest().Revision == 6 })
	if d := time.Since(begun); d < 6*time.Second {
		t.Errorf("the manifest was asked for after %v, want 6 s", d)
	}
}

// If the manifest, whitelist, certificate or root catalog of a later revision is changed,
// truncated or exchanged, the mount continues to show the current revision.
func TestLiveLiesLater(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	id.TTL = 3600
	first, second := changedSample(t, id, 5, "the first"), changedSample(t, id, 6, "the second")
	h := newHost(t, first)
	o, ev := liveOptions(t, id, openedCache(t, t.TempDir(), 0), h.url)
	l := openedLive(t, o)
	readAt(t, l, "/sub/plain", 0, 20) // the servers of the second revision do not have it
	names := []string{".cvmfspublished", ".cvmfswhitelist", rootOf(second)}
	for name := range second.Files {
		if strings.HasSuffix(name, "X") {
			names = append(names, name)
		}
	}
	for i, name := range names {
		good := second.Files[name]
		flipped := bytes.Clone(good)
		flipped[rand.IntN(len(flipped))] ^= 1 << rand.IntN(8)
		for what, b := range map[string][]byte{"flipped": flipped, "truncated": good[:rand.IntN(len(good))], "exchanged": second.Files[names[(i+1)%len(names)]], "longer": append(bytes.Clone(good), 0), "empty": {}} {
			bad := &cvmfsrepo.Published{Files: maps.Clone(second.Files), Asked: map[string]int{}}
			bad.Files[name] = b
			h.set(bad)
			ev.clear()
			l.mu.Lock()
			l.said = "" // otherwise an equal event is not logged again
			l.mu.Unlock()
			l.refresh()
			if n := l.Manifest().Revision; n != 5 || !ev.has(EventRefused, "") {
				t.Errorf("%s %s: revision %d, %s", name, what, n, ev.all())
			}
			if got := readAt(t, l, "/sub/plain", 0, 20); got != "the first" {
				t.Errorf("%s %s: %q", name, what, got)
			}
		}
	}
	h.set(second)
	l.refresh()
	if got := readAt(t, l, "/sub/plain", 0, 20); got != "the second" || l.Manifest().Revision != 6 {
		t.Errorf("revision %d: %q", l.Manifest().Revision, got)
	}
}

// Documents that are kept for use without a server are verified again at each use.
func TestLiveKeptDamaged(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	h := newHost(t, changedSample(t, id, 5, "the content"))
	c := openedCache(t, t.TempDir(), 0)
	o, _ := liveOptions(t, id, c, h.url)
	l := openedLive(t, o)
	readAt(t, l, "/sub/plain", 0, 20)
	h.set(nil)
	o.Kept = true
	var kept [][]byte
	var paths []string
	for _, suffix := range []string{savedManifest, savedWhitelist, savedCertificate} {
		paths = append(paths, filepath.Join(o.Seen, cvmfsrepo.Name+suffix))
		b, err := os.ReadFile(paths[len(paths)-1])
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, b)
	}
	refused := 0
	for i, good := range kept {
		flipped := bytes.Clone(good)
		flipped[rand.IntN(len(flipped))] ^= 1 << rand.IntN(8)
		for what, b := range map[string][]byte{"flipped": flipped, "truncated": good[:rand.IntN(len(good))], "exchanged": kept[(i+1)%len(kept)], "empty": {}} {
			if err := os.WriteFile(paths[i], b, 0o600); err != nil {
				t.Fatal(err)
			}
			o.Numbers += "x"
			l, err := OpenLive(context.Background(), o)
			if err == nil {
				// Some bytes of a PEM file have no meaning.
				if got := readAt(t, l, "/sub/plain", 0, 20); got != "the content" || i != 2 || what != "flipped" {
					t.Errorf("%s %s: revision %d, %q", paths[i], what, l.Manifest().Revision, got)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			} else {
				refused++
			}
		}
		if err := os.WriteFile(paths[i], good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if refused < 11 {
		t.Errorf("%d of 12 were refused", refused)
	}
	o.Numbers += "x"
	if got := readAt(t, openedLive(t, o), "/sub/plain", 0, 20); got != "the content" {
		t.Error(got)
	}
}

// rootOf returns the file of the root catalog.
func rootOf(p *cvmfsrepo.Published) string {
	h := strings.SplitN(string(p.Files[".cvmfspublished"]), "\n", 2)[0][1:]
	return "data/" + h[:2] + "/" + h[2:] + "C"
}

// oneFact returns the content of a regular file as facts prints it.
func oneFact(mnt, p string) (string, error) {
	st, err := os.Lstat(filepath.Join(mnt, p))
	if err != nil || !st.Mode().IsRegular() {
		return "", err
	}
	b, err := readShown(filepath.Join(mnt, p))
	if err != nil {
		return "", err
	}
	return strings.Trim(fmt.Sprintf("%q", b), `"`), nil
}

// Damaged objects in the cache on disk are fetched again. Without a server, reads of them
// fail.
func TestLiveDamagedCache(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	tree := cvmfsrepo.Sample(true)
	good := cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 5)
	h := newHost(t, good)
	dir := t.TempDir()
	want := wanted(tree, "")
	for round, damage := range []func([]byte) []byte{
		func(b []byte) []byte { b[rand.IntN(len(b))] ^= 0x10; return b },
		func(b []byte) []byte { return b[:rand.IntN(len(b))] },
		func([]byte) []byte { return []byte("pmxo") },
	} {
		c, err := cache.Open(dir, cache.Options{Floor: -1})
		if err != nil {
			t.Fatal(err)
		}
		o, ev := liveOptions(t, id, c, h.url)
		l, err := OpenLive(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		// The test reads without a mount, because a second mount of the same content would
		// read the page cache.
		read := func() map[string]string { return walkLive(t, l) }
		for p, s := range read() {
			if !strings.Contains(want[p], s) {
				t.Errorf("round %d: %q is %.100s", round, p, s)
			}
		}
		all, err := filepath.Glob(filepath.Join(dir, "objects/*/*"))
		if err != nil || len(all) < 5 {
			t.Fatal(all, err)
		}
		for _, name := range all {
			b, err := readShown(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for p, s := range read() {
			if !strings.Contains(want[p], s) {
				t.Errorf("round %d, damaged: %q is %.100s", round, p, s)
			}
		}
		if c.Status().Objects.Wrong == 0 {
			t.Errorf("round %d: the cache has not noticed the damage:\n%s", round, ev.all())
		}
		if err := errors.Join(l.Close(), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// walkLive reads all regular files of a Live. It repeats a read that fails, because the
// damaged object or catalog was then removed from the cache.
func walkLive(t *testing.T, l *Live) map[string]string {
	t.Helper()
	all := map[string]string{}
	ctx := context.Background()
	retry := func(do func() error) {
		t.Helper()
		var err error
		for range 5 {
			if err = do(); err == nil {
				return
			}
			if !errors.Is(err, unix.EIO) {
				break
			}
		}
		t.Fatal(err)
	}
	var walk func(node uint64, path string)
	walk = func(node uint64, path string) {
		var names []string
		retry(func() error {
			names = nil
			return l.ReadDir(ctx, node, 0, func(d fuse.Dirent) bool {
				if d.Name != "." && d.Name != ".." {
					names = append(names, d.Name)
				}
				return true
			})
		})
		for _, name := range names {
			var a fuse.Attr
			retry(func() (err error) { a, err = l.Lookup(ctx, node, name); return err })
			if a.Node == 0 {
				t.Errorf("%q is missing", path+name)
			}
			switch a.Mode & unix.S_IFMT {
			case unix.S_IFDIR:
				walk(a.Node, path+name+"/")
			case unix.S_IFREG:
				b := make([]byte, a.Size)
				retry(func() error { _, err := l.Read(ctx, a.Node, b, 0); return err })
				all[path+name] = strings.Trim(fmt.Sprintf("%q", b), `"`)
			}
		}
	}
	walk(fuse.RootNode, "")
	return all
}

// If the origin dies in the middle of a read, the read fails with EIO, and it succeeds when
// the origin is back.
func TestLiveOriginDies(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	content := make([]byte, 3<<20)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	tree := cvmfsrepo.Tree{"": {Mode: unix.S_IFDIR | 0o755}, "/f": {Mode: unix.S_IFREG | 0o644, Content: content, Chunk: 1 << 20}}
	p := cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 1)
	cut := true
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		dies := cut && strings.HasSuffix(r.URL.Path, "P")
		mu.Unlock()
		if dies {
			w.Header().Set("Content-Length", "1048000")
			_, _ = w.Write(make([]byte, 100<<10))
			panic(http.ErrAbortHandler)
		}
		p.ServeHTTP(w, r)
	}))
	defer s.Close()
	o, ev := liveOptions(t, id, openedCache(t, t.TempDir(), 0), s.URL+"/cvmfs/@fqrn@")
	mnt := shown(t, openedLive(t, o))
	if _, err := readShown(mnt + "/f"); !errors.Is(err, unix.EIO) {
		t.Errorf("the origin dies: %v", err)
	}
	if !ev.has(EventUnreachable, "/f: data/") {
		t.Error(ev.all())
	}
	mu.Lock()
	cut = false
	mu.Unlock()
	if b, err := readShown(mnt + "/f"); err != nil || !bytes.Equal(b, content) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// With a small quota, and on a full disk, contents are right and the cache keeps to its
// limits.
func TestLiveQuota(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	tree := cvmfsrepo.Tree{"": {Mode: unix.S_IFDIR | 0o755}}
	for i := range 12 {
		b := make([]byte, 400<<10)
		for k := range b {
			b[k] = byte(rand.Uint32())
		}
		tree[fmt.Sprintf("/%d", i)] = &cvmfsrepo.Node{Mode: unix.S_IFREG | 0o644, Content: b}
	}
	h := newHost(t, cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 1))
	want := wanted(tree, "")
	for _, where := range []string{"quota", "disk"} {
		dir, quota := t.TempDir(), int64(2<<20)
		if where == "disk" {
			if os.Geteuid() != 0 {
				t.Skip("a small disk needs root")
			}
			quota = 0
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		}
		c := openedCache(t, dir, quota)
		o, ev := liveOptions(t, id, c, h.url)
		l := openedLive(t, o)
		for range 2 {
			for p, s := range walkLive(t, l) {
				if !strings.Contains(want[p], s) {
					t.Errorf("%s: %q is wrong", where, p)
				}
			}
		}
		if used := c.Status().Used; quota > 0 && used > quota {
			t.Errorf("%d bytes of a quota of %d", used, quota)
		}
		if ev.all() != "" {
			t.Errorf("%s: %s", where, ev.all())
		}
	}
}

// Another process assigns the same node numbers.
func TestLiveNodes(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	h := newHost(t, cvmfsrepo.Publish(t, cvmfsrepo.Sample(true), cvmfsrepo.SHA1, id, 5))
	dir := t.TempDir()
	var o LiveOptions
	nodes := map[string]uint64{}
	for round := range 2 {
		c, err := cache.Open(dir, cache.Options{Floor: -1})
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			o, _ = liveOptions(t, id, c, h.url)
		} else {
			h.set(nil)
			o.Kept, o.Objects = true, c.Objects()
		}
		l, err := OpenLive(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		for name, node := range nodes { // before a lookup has opened anything
			a, err := l.Attr(context.Background(), node)
			if err != nil || a.Node != node {
				t.Errorf("%q: node %x is %x, %v", name, node, a.Node, err)
			}
		}
		for _, path := range []string{"nested/deeper/xattr", "sub/one", "nested/chunked"} {
			a := fuse.Attr{Node: fuse.RootNode}
			for name := range strings.SplitSeq(path, "/") {
				if a, err = l.Lookup(context.Background(), a.Node, name); err != nil {
					t.Fatal(err)
				}
			}
			if round == 1 && nodes[path] != a.Node {
				t.Errorf("%s: %x, then %x", path, nodes[path], a.Node)
			}
			nodes[path] = a.Node
		}
		if _, err := l.Attr(context.Background(), 1<<60); !errors.Is(err, unix.ESTALE) {
			t.Errorf("a node of no catalog: %v", err)
		}
		if err := errors.Join(l.Close(), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
