package cvmfs

import (
	"context"
	"errors"
	"strings"
	"testing"

	"premix/internal/testkit/cvmfsrepo"
)

// A Pin changes with everything below its directory, and with nothing else that is in other
// catalogs. What it shows never changes, and needs no server and no whitelist.
func TestPin(t *testing.T) {
	id := cvmfsrepo.NewIdentity(t, 0, 1)
	publish := func(revision int, change func(cvmfsrepo.Tree)) (cvmfsrepo.Tree, *cvmfsrepo.Published) {
		tree := cvmfsrepo.Sample(false)
		change(tree)
		return tree, cvmfsrepo.Publish(t, tree, cvmfsrepo.SHA1, id, revision)
	}
	first, published := publish(1, func(cvmfsrepo.Tree) {})
	h := newHost(t, published)
	c := openedCache(t, t.TempDir(), 0)
	pin := func(dir string) *Pin {
		t.Helper()
		o, _ := liveOptions(t, id, c, h.url)
		o.Path, o.Numbers = dir, ""
		p, err := openedLive(t, o).Pin()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	dirs := []string{"", "/sub", "/nested", "/nested/deeper", "/nested/deeper/dir"}
	before := map[string]*Pin{}
	for _, dir := range dirs {
		before[dir] = pin(dir)
	}
	for dir, prefix := range map[string]string{"/sub": "", "/nested": "/nested", "/nested/deeper/dir": "/nested/deeper"} {
		if got := before[dir].Prefix; got != prefix || before[dir].Revision != 1 {
			t.Errorf("%s: a catalog at %q, revision %d", dir, got, before[dir].Revision)
		}
	}
	for i, k := range []struct {
		path    string
		changed []string
	}{
		{"/a file", []string{"", "/sub"}},
		{"/nested/chunked", []string{"", "/sub", "/nested"}},
		{"/nested/deeper/xattr", dirs},
	} {
		_, published := publish(i+2, func(t cvmfsrepo.Tree) { t[k.path].Mode ^= 0o111 })
		h.set(published)
		for _, dir := range dirs {
			now, want := pin(dir), false
			for _, d := range k.changed {
				want = want || d == dir
			}
			if (now.Catalog != before[dir].Catalog) != want || now.Prefix != before[dir].Prefix || now.Revision != uint64(i+2) {
				t.Errorf("%s changed: %s is %+v, was %+v", k.path, dir, now, before[dir])
			}
		}
	}

	// The servers show a later revision, or nothing. The first one fills the cache.
	h.set(published)
	for _, gone := range []bool{false, true} {
		if gone {
			h.set(nil)
		}
		for _, dir := range dirs {
			o, ev := liveOptions(t, id, c, h.url)
			o.Path, o.Pin, o.Keys = dir, before[dir], o.Keys[:1]
			o.Profiles = []*Profile{{Format: ProfileFormat, Repository: cvmfsrepo.Name, Entries: []Touch{{Path: ProfilePath(dir)}, {Path: "/nested/deeper/xattr"}}}}
			l := openedLive(t, o)
			compare(t, facts(t, shown(t, l)), wanted(first, dir))
			until(t, "the profile", func() bool { return strings.Contains(l.Prefetched(), "objects fetched") })
			if ev.all() != "" || l.Manifest().Revision != 1 {
				t.Errorf("%s, revision %d: %s", dir, l.Manifest().Revision, ev.all())
			}
		}
	}

	for _, wrong := range []Pin{
		{Catalog: "x"},
		{Catalog: before[""].Catalog, Prefix: "/sub"},
		{Catalog: before[""].Catalog, Size: -1},
		{Catalog: before["/nested"].Catalog},
		{Catalog: strings.Repeat("0", 40)},
	} {
		o, _ := liveOptions(t, id, c, h.url)
		o.Path, o.Pin = "/nested", &wrong
		l, err := OpenLive(context.Background(), o)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%+v: %v", wrong, err)
		}
		if l != nil {
			l.Close()
		}
	}
}
