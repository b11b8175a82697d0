package cvmfs

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
	"premix/internal/testkit/cvmfsrepo"
)

func options(t testing.TB, id *cvmfsrepo.Identity, servers ...string) Options {
	return Options{Name: cvmfsrepo.Name, Servers: servers, Keys: []string{id.Public}, Temp: t.TempDir()}
}

// mirrored opens a repository and copies one of its directories.
func mirrored(t testing.TB, o Options, dir string) (string, error) {
	t.Helper()
	r, err := Open(context.Background(), o)
	if err != nil {
		return "", err
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := os.ReadDir(o.Temp); len(left) > 0 {
			t.Errorf("%d files are left", len(left))
		}
	}()
	e, err := r.Lookup(context.Background(), dir)
	if err != nil {
		return "", err
	}
	to := t.TempDir()
	return to, r.Mirror(context.Background(), e, to, MirrorOptions{})
}

// facts describes everything below a directory.
func facts(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		detail := ""
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			detail, err = os.Readlink(p)
		case unix.S_IFREG:
			var b []byte
			b, err = readShown(p)
			detail = string(b)
		}
		if err != nil {
			return err
		}
		names := make([]byte, 4096)
		n, err := unix.Llistxattr(p, names)
		if errors.Is(err, unix.ENOTSUP) {
			n, err = 0, nil
		}
		if err != nil {
			return err
		}
		for name := range strings.SplitSeq(string(names[:n]), "\x00") {
			if value := make([]byte, 4096); strings.HasPrefix(name, "user.") {
				n, err := unix.Lgetxattr(p, name, value)
				if err != nil {
					return err
				}
				detail += fmt.Sprintf(" %s=%q", name, value[:n])
			}
		}
		rel, err := filepath.Rel(dir, p)
		if st.Nlink > 1 && st.Mode&unix.S_IFMT == unix.S_IFREG {
			if inodes[st.Ino] == "" {
				inodes[st.Ino] = rel
			}
			detail += " as " + inodes[st.Ino]
		}
		all[rel] = fmt.Sprintf("%o %d:%d %d.%09d %q", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec, detail)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// wanted describes a tree as facts does, from the nodes to publish.
func wanted(tree cvmfsrepo.Tree, top string) map[string]string {
	all := map[string]string{}
	first := map[int64]string{}
	paths := make([]string, 0, len(tree))
	for p := range tree {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		n := tree[p]
		if n.Hidden || p != top && !strings.HasPrefix(p, top+"/") {
			continue
		}
		rel := "."
		if p != top {
			rel = p[len(top)+1:]
		}
		detail := string(n.Content) + n.Target
		if n.Target == "$(PREMIX_TEST_RELEASE:-v1)/x" {
			detail = "v1/x"
		}
		names := make([]string, 0, len(n.Xattrs))
		for k := range n.Xattrs {
			names = append(names, k)
		}
		slices.Sort(names)
		for _, k := range names {
			detail += fmt.Sprintf(" %s=%q", k, n.Xattrs[k])
		}
		if n.Group != 0 {
			if first[n.Group] == "" {
				first[n.Group] = rel
			}
			detail += " as " + first[n.Group]
		}
		uid, gid := n.UID, n.GID
		if os.Geteuid() != 0 {
			uid, gid = uint32(os.Geteuid()), uint32(os.Getegid())
		}
		all[rel] = fmt.Sprintf("%o %d:%d %d.%09d %q", n.Mode, uid, gid, n.Time.Unix(), n.Time.Nanosecond(), detail)
	}
	return all
}

func compare(t testing.TB, got, want map[string]string) {
	t.Helper()
	for p, w := range want {
		if got[p] != w {
			t.Errorf("%q: %.300s, want %.300s", p, got[p], w)
		}
	}
	for p := range got {
		if want[p] == "" {
			t.Errorf("%q is there", p)
		}
	}
}

func TestMirror(t *testing.T) {
	for _, a := range []cvmfsrepo.Algorithm{cvmfsrepo.SHA1, cvmfsrepo.RMD160, cvmfsrepo.SHAKE128} {
		id := cvmfsrepo.NewIdentity(t, 0, 1)
		tree := cvmfsrepo.Sample(true)
		server := cvmfsrepo.Publish(t, tree, a, id, 5).Serve(t)
		for _, dir := range []string{"", "/nested/deeper", "/sub"} {
			got, err := mirrored(t, options(t, id, server), dir)
			if err != nil {
				t.Fatalf("%s, %q: %v", fmt.Sprint(a), dir, err)
			}
			compare(t, facts(t, got), wanted(tree, dir))
		}
	}
}

// Catalogs outside of the copied directory are not fetched.
func TestCatalogsOnDemand(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	p := cvmfsrepo.Publish(t, cvmfsrepo.Sample(false), cvmfsrepo.SHA1, id, 1)
	if _, err := mirrored(t, options(t, id, p.Serve(t)), "/sub"); err != nil {
		t.Fatal(err)
	}
	catalogs := 0
	for name, n := range p.Asked {
		if strings.HasSuffix(name, "C") {
			catalogs += n
		}
	}
	if catalogs != 1 {
		t.Errorf("%d requests for catalogs, want 1", catalogs)
	}
}

func kindOf(err error) (Kind, bool) {
	var e *Error
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.Kind, true
}

// Whatever a server changes, cuts off, exchanges or repeats, no wrong byte is accepted.
func TestLies(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	tree := cvmfsrepo.Sample(false)
	p := cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 3)
	server := p.Serve(t)
	want := wanted(tree, "")
	names := make([]string, 0, len(p.Files))
	for name := range p.Files {
		names = append(names, name)
	}
	slices.Sort(names)
	r := rand.New(rand.NewPCG(1, 2))
	trust, tried := 0, 0
	for _, name := range names {
		if strings.HasSuffix(name, "H") {
			continue // not read
		}
		good := p.Files[name]
		other := p.Files[names[(slices.Index(names, name)+1)%len(names)]]
		flipped := bytes.Clone(good)
		flipped[r.IntN(len(flipped))] ^= 1 << r.IntN(8)
		for what, bad := range map[string][]byte{"flipped": flipped, "truncated": good[:r.IntN(len(good))], "exchanged": other, "longer": append(bytes.Clone(good), 0), "empty": {}} {
			p.Mu.Lock()
			p.Files[name] = bad
			p.Mu.Unlock()
			got, err := mirrored(t, options(t, id, server), "")
			tried++
			kind, known := kindOf(err)
			switch {
			case err == nil:
				compare(t, facts(t, got), want) // the changed file was not used
			case !known || kind != Trust || exit.Of(err) != exit.Trust:
				t.Errorf("%s %s: %v", name, what, err)
			default:
				trust++
			}
		}
		p.Mu.Lock()
		p.Files[name] = good
		p.Mu.Unlock()
	}
	if trust < tried*9/10 {
		t.Errorf("%d of %d lies were noticed: the test says little", trust, tried)
	}
}

func TestTrust(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	other := cvmfsrepo.NewIdentity(t, 1, 2)
	now := time.Now()
	for name, c := range map[string]struct {
		change func(p *cvmfsrepo.Published, o *Options)
		reason string
	}{
		"expired": {func(p *cvmfsrepo.Published, _ *Options) {
			p.Files[".cvmfswhitelist"] = id.Whitelist(cvmfsrepo.SHA1, cvmfsrepo.Name, now.Add(-time.Minute))
		}, "has expired"},
		"later": {func(_ *cvmfsrepo.Published, o *Options) { o.Now = now.Add(72 * time.Hour) }, "has expired"},
		"other repository": {func(p *cvmfsrepo.Published, _ *Options) {
			p.Files[".cvmfswhitelist"] = id.Whitelist(cvmfsrepo.SHA1, "other.example.org", now.Add(time.Hour))
		}, "another repository"},
		"other master key": {func(_ *cvmfsrepo.Published, o *Options) { o.Keys = []string{other.Public} }, "not signed by one of the 1 master keys"},
		"unlisted": {func(p *cvmfsrepo.Published, _ *Options) {
			w := other
			w.Master = id.Master
			p.Files[".cvmfswhitelist"] = w.Whitelist(cvmfsrepo.SHA1, cvmfsrepo.Name, now.Add(time.Hour))
		}, "not in its whitelist"},
		"signed by another": {func(p *cvmfsrepo.Published, _ *Options) {
			p.Files[".cvmfspublished"] = resign(p.Files[".cvmfspublished"], other)
		}, "not signed by its certificate"},
		"manifest of another": {func(_ *cvmfsrepo.Published, o *Options) { o.Name = "other.example.org" }, "another repository"},
	} {
		p := cvmfsrepo.Publish(t, cvmfsrepo.Sample(false), cvmfsrepo.SHA1, id, 1)
		s := httptest.NewServer(p)
		o := options(t, id, s.URL+"/cvmfs/"+cvmfsrepo.Name)
		c.change(p, &o)
		_, err := Open(t.Context(), o)
		if k, ok := kindOf(err); !ok || k != Trust || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
}

// resign returns the manifest with SHA-1 as its own hash and a new signature.
func resign(b []byte, id *cvmfsrepo.Identity) []byte {
	text, _, _ := bytes.Cut(b, []byte("--\n"))
	fields := map[byte]string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if line != "" {
			fields[line[0]] = line[1:]
		}
	}
	size, _ := strconv.Atoi(fields['B'])
	return id.Manifest(cvmfsrepo.SHA1, fields['C'], size, fields['X'], fields['H'], 5)
}

// An older revision, or another one with the same number, is a replay.
func TestReplay(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	tree := cvmfsrepo.Sample(false)
	seen := t.TempDir()
	changed := cvmfsrepo.Sample(false)
	changed["/new"] = &cvmfsrepo.Node{Mode: unix.S_IFREG | 0o644, Content: []byte("new"), Time: time.Unix(1, 0)}
	servers := map[string]string{}
	show := func(revision int, changedTree, rollback bool) error {
		key, show := fmt.Sprint(revision, changedTree), tree
		if changedTree {
			show = changed
		}
		if servers[key] == "" {
			servers[key] = cvmfsrepo.Publish(t, show, cvmfsrepo.SHA1, id, revision).Serve(t)
		}
		o := options(t, id, servers[key])
		o.Seen, o.AllowRollback = seen, rollback
		_, err := mirrored(t, o, "/sub")
		return err
	}
	for i, c := range []struct {
		revision int
		changed  bool
		rollback bool
		ok       bool
	}{{4, false, false, true}, {5, true, false, true}, {5, true, false, true}, {4, false, false, false}, {5, false, false, false}, {4, false, true, true}, {4, false, false, true}, {6, false, false, true}} {
		err := show(c.revision, c.changed, c.rollback)
		if k, known := kindOf(err); (err == nil) != c.ok || err != nil && (!known || k != Trust) {
			t.Errorf("step %d: %v", i, err)
		}
	}
}

// Servers and proxies that fail or return wrong content are passed over.
func TestFailOver(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	tree := cvmfsrepo.Sample(false)
	good := cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 1)
	liar := cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, 1)
	for name := range liar.Files {
		if strings.HasPrefix(name, "data/") {
			liar.Files[name] = []byte("a lie")
		}
	}
	liar.Files[".cvmfspublished"], liar.Files[".cvmfswhitelist"] = good.Files[".cvmfspublished"], good.Files[".cvmfswhitelist"]
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte("half"))
	}))
	defer broken.Close()
	deadProxy := "http://127.0.0.1:1"
	web := good.Serve(t)
	for name, o := range map[string]Options{
		"dead server":  options(t, id, "http://127.0.0.1:1/cvmfs/@fqrn@", web),
		"broken":       options(t, id, broken.URL, web),
		"lying server": options(t, id, liar.Serve(t), web),
		"dead proxies": func() Options {
			o := options(t, id, web)
			o.Proxies = [][]string{{deadProxy, "http://127.0.0.1:2"}, {"DIRECT"}}
			return o
		}(),
	} {
		got, err := mirrored(t, o, "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		compare(t, facts(t, got), wanted(tree, ""))
	}
	_, err := mirrored(t, options(t, id, "http://127.0.0.1:1/x", broken.URL), "")
	if k, ok := kindOf(err); !ok || k != Origin || exit.Of(err) != exit.Origin {
		t.Errorf("nothing but dead servers: %v", err)
	}
}

func TestParseURL(t *testing.T) {
	for s, want := range map[string]string{
		"cvmfs://data.galaxyproject.org/byhand": "data.galaxyproject.org /byhand",
		"cvmfs://a.b/":                          "a.b ",
		"cvmfs://a.b/x//y/../z/":                "a.b /x/z",
		"cvmfs://a.b/../../x":                   "a.b /x",
		"cvmfs://nodots/x":                      "",
		"cvmfs://../x":                          "",
		"http://a.b/x":                          "",
	} {
		name, dir, err := ParseURL(s)
		if got := name + " " + dir; (err != nil) != (want == "") || err == nil && got != want {
			t.Errorf("%s: %q, %v", s, got, err)
		}
	}
}

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "EMPTY": ""}
	lookup := func(n string) (string, bool) { v, ok := vars[n]; return v, ok }
	for in, want := range map[string]string{
		"x": "x", "$(A)/y": "1/y", "$(B:-z)": "z", "$(B)": "", "$(EMPTY:-z)": "", "a$(A)b$(A)": "a1b1", "$(A": "$(A", "$A": "$A", "$$(A)": "$1", "$(B:-$x)": "$x",
	} {
		if got := Expand(in, lookup); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

func TestProxies(t *testing.T) {
	for in, want := range map[string]string{
		"":                             "[[DIRECT]]",
		"DIRECT":                       "[[DIRECT]]",
		"http://a:1|http://b:2;DIRECT": "[[http://a:1 http://b:2] [DIRECT]]",
		"a:3128; b:3128 ;":             "[[http://a:3128] [http://b:3128]]",
		"http://":                      "error",
		"auto;DIRECT":                  "error",
	} {
		got, err := ParseProxies(in)
		if s := fmt.Sprint(got); err == nil && s != want || (err != nil) != (want == "error") {
			t.Errorf("%q: %s, %v", in, s, err)
		}
	}
}

// Servers are used in the order that the geo API of one of them returns. Without a valid
// answer, they are used in the given order.
func TestGeoAPI(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	for answer, want := range map[string]string{
		"3,1,2\n": "2", "2,3,1": "1", "1,2,3\n": "0",
		"": "0", "3,1": "0", "3,3,1": "0", "4,1,2": "0", "0,1,2": "0", "3 1 2": "0", "<html>": "0",
	} {
		var urls, asked []string
		var mu sync.Mutex
		for i := range 3 {
			p := cvmfsrepo.Publish(t, cvmfsrepo.Sample(false), cvmfsrepo.SHA1, id, 1)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/api/") {
					if r.URL.Path != "/cvmfs/"+cvmfsrepo.Name+"/api/v1.0/geo/direct/127.0.0.1,127.0.0.1,127.0.0.1" {
						t.Error(r.URL.Path)
					}
					if answer == "" {
						http.NotFound(w, r)
					}
					_, _ = io.WriteString(w, answer)
					return
				}
				mu.Lock()
				asked = append(asked, fmt.Sprint(i))
				mu.Unlock()
				p.ServeHTTP(w, r)
			}))
			t.Cleanup(s.Close)
			urls = append(urls, s.URL+"/cvmfs/@fqrn@")
		}
		o := options(t, id, urls...)
		o.GeoAPI = true
		if _, err := mirrored(t, o, "/sub"); err != nil {
			t.Fatal(err)
		}
		slices.Sort(asked)
		if got := strings.Join(slices.Compact(asked), " "); got != want {
			t.Errorf("%q: servers %s were asked, want %s", answer, got, want)
		}
	}
}

// The time between two requests for the manifest and the time for which the kernel caches
// names add up to at most the TTL.
func TestTTL(t *testing.T) {
	for ttl := leastTTL; ttl < 100*24*time.Hour; ttl = ttl*3/2 + 1 {
		l := &Live{}
		l.now.Store(&revision{manifest: Manifest{TTL: ttl}})
		if p, v := l.period(), l.Valid(); p+v > ttl || p <= 0 || v <= 0 {
			t.Errorf("TTL %v: %v and %v", ttl, p, v)
		}
	}
}

func TestReadConfig(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"default.conf":                           "CVMFS_KEYS_DIR=/etc/cvmfs/keys # comment\nCVMFS_HTTP_PROXY=DIRECT\n",
		"default.d/50-site.conf":                 "export CVMFS_HTTP_PROXY=\"http://site:3128\"\n",
		"default.local":                          "# local\n\nBASE='http://s1.example.org'\n",
		"domain.d/example.org.conf":              "CVMFS_SERVER_URL=\"$BASE/cvmfs/@fqrn@;http://s2.example.org/opt/@org@\"\n",
		"config.d/lab.example.org.local":         "CVMFS_HTTP_PROXY=\"http://lab:1|http://lab:2;DIRECT\"\nCVMFS_USE_GEOAPI=yes\n",
		"config.d/lab.example.org.profile":       "",
		"config.d/lab.example.org.start.profile": "",
		"config.d/lab2.example.org.profile":      "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := ReadConfig(dir, "lab.example.org")
	if err != nil {
		t.Fatal(err)
	}
	var profiles []string
	for _, p := range c.Profiles {
		profiles = append(profiles, filepath.Base(p))
	}
	got := fmt.Sprint(c.Servers, c.Proxies, c.Keys, c.GeoAPI, profiles)
	if want := "[http://s1.example.org/cvmfs/lab.example.org http://s2.example.org/opt/lab] [[http://lab:1 http://lab:2] [DIRECT]] [/etc/cvmfs/keys] true [lab.example.org.profile lab.example.org.start.profile]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// Without a key in the options, the keys of the domain are used, or else all keys.
	other := t.TempDir()
	for _, want := range []string{"", "keys", "keys/example.org"} {
		if want != "" {
			if err := errors.Join(os.MkdirAll(filepath.Join(other, want), 0o755), os.WriteFile(filepath.Join(other, want, "a.pub"), nil, 0o644)); err != nil {
				t.Fatal(err)
			}
			want = filepath.Join(other, want)
		}
		if c, err := ReadConfig(other, "lab.example.org"); err != nil || strings.Join(c.Keys, " ") != want {
			t.Errorf("keys %v, want %s, %v", c.Keys, want, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "default.local"), []byte("if true; then\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConfig(dir, "lab.example.org"); exit.Of(err) != exit.Usage || !strings.Contains(err.Error(), "default.local:1: ") {
		t.Errorf("a shell script: %v", err)
	}
}

func FuzzDocuments(f *testing.F) {
	id := cvmfsrepo.NewIdentity(f, 0, 1)
	p := cvmfsrepo.Publish(f, cvmfsrepo.Tree{"": {Mode: unix.S_IFDIR | 0o755}}, cvmfsrepo.SHA1, id, 1)
	f.Add(p.Files[".cvmfspublished"])
	f.Add(p.Files[".cvmfswhitelist"])
	keys, err := readKeys([]string{id.Public})
	if err != nil {
		f.Fatal(err)
	}
	good := [][]byte{p.Files[".cvmfspublished"], p.Files[".cvmfswhitelist"]}
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := parseWhitelist(b, cvmfsrepo.Name, keys, time.Now())
		if err == nil && !bytes.Equal(b, good[1]) {
			t.Errorf("a whitelist of no master key: %v", w)
		}
		l, err := openLetter(b)
		if err != nil {
			return
		}
		if m, err := parseManifest(l); err == nil && m.Root.IsZero() {
			t.Error("a manifest without a root")
		}
	})
}

func FuzzXattrs(f *testing.F) {
	f.Add([]byte{1, 1, 1, 1, 'a', 'b'})
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := parseXattrs(b)
		size := 0
		for k, v := range all {
			size += len(k) + len(v)
		}
		if err == nil && size > len(b) {
			t.Error("more bytes than there were")
		}
	})
}

// FuzzCatalog checks that every catalog can be read to its end, and that entries have legal
// names and values.
func FuzzCatalog(f *testing.F) {
	id := cvmfsrepo.NewIdentity(f, 0, 1)
	p := cvmfsrepo.Publish(f, cvmfsrepo.Sample(false), cvmfsrepo.SHA1, id, 1)
	for name, b := range p.Files {
		if strings.HasSuffix(name, "C") {
			z, err := zlib.NewReader(bytes.NewReader(b))
			if err != nil {
				f.Fatal(err)
			}
			b, err := io.ReadAll(z)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, "")
			f.Add(b, "/nested")
			f.Add(b, "/nested/deeper")
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, prefix string) {
		file := filepath.Join(t.TempDir(), "catalog")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, err := openCatalog(ctx, file, prefix)
		if err != nil {
			return
		}
		defer c.close()
		var walk func(dir string, depth int)
		walk = func(dir string, depth int) {
			list, err := c.children(ctx, dir)
			more, _, errAfter := c.childrenAfter(ctx, dir, 0, 1000)
			if err == nil && errAfter == nil && len(list) != len(more) && len(list) < 1000 {
				t.Errorf("%q has %d entries, and then %d", dir, len(list), len(more))
			}
			for _, e := range list {
				name := strings.TrimPrefix(e.Path, dir+"/")
				if name == "" || name == "." || name == ".." || len(name) > 255 || strings.ContainsAny(name, "/\x00") || e.Size < 0 {
					t.Errorf("%q, %d bytes", e.Path, e.Size)
				}
				if e.chunked {
					chunks, err := c.chunks(ctx, e)
					end := int64(0)
					for _, k := range chunks {
						if k.off != end || k.size <= 0 {
							t.Errorf("%q: a chunk of %d bytes at %d", e.Path, k.size, k.off)
						}
						end += k.size
					}
					if err == nil && end != e.Size {
						t.Errorf("%q: chunks of %d of %d bytes", e.Path, end, e.Size)
					}
				}
				if again, err := c.atRow(ctx, e.row); err == nil && again != nil && again.Path != e.Path {
					t.Errorf("row %d is %q, and then %q", e.row, e.Path, again.Path)
				}
				_, _ = c.firstLink(ctx, e)
				if e.nested {
					_, _, _ = c.nestedAt(ctx, e.Path)
				} else if e.IsDir() && depth < 10 {
					walk(e.Path, depth+1)
				}
			}
		}
		if root, err := c.entry(ctx, prefix); err == nil && root != nil {
			walk(prefix, 0)
		}
		if ctx.Err() != nil {
			t.Error("it took a minute")
		}
	})
}
