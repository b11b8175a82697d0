package trust_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/store/tree"
	"premix/internal/store/trust"
	"premix/internal/testkit/faulty"
)

// shop is a store of tags, served over HTTP.
type shop struct {
	t      *testing.T
	dir    string
	id     string
	key    tree.PrivateKey
	fault  *faulty.Handler
	server *httptest.Server
}

var ref = tree.Ref{Name: "refs/x", Tag: "1"}

func newShop(t *testing.T, id, seed byte) *shop {
	t.Helper()
	s := &shop{t: t, dir: t.TempDir()}
	s.fault = faulty.New(http.FileServer(http.Dir(s.dir)))
	s.server = httptest.NewServer(s.fault)
	t.Cleanup(func() { s.fault.Stop(); s.server.CloseClientConnections(); s.server.Close() })
	s.found(id, seed)
	return s
}

// found creates the store, in place of the one before.
func (s *shop) found(id byte, seeds ...byte) {
	s.t.Helper()
	info := &tree.Info{Format: tree.StoreFormat, ID: strings.Repeat("0", 31) + string('0'+rune(id))}
	for _, seed := range seeds {
		s.key = tree.NewPrivateKey([32]byte{seed})
		info.Keys = append(info.Keys, s.key.Public())
	}
	s.id = info.ID
	content, err := info.Marshal()
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(tree.InfoPath, content)
}

func (s *shop) write(name string, content []byte) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// tag signs and writes a record.
func (s *shop) tag(serial int64, what string) object.Digest {
	s.t.Helper()
	d := object.Sum([]byte(what))
	signed, err := tree.SignTag(s.key, &tree.TagRecord{Store: s.id, Name: ref.Name, Tag: ref.Tag, Tree: d, Serial: serial, Time: time.Unix(serial, 0).UTC()})
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(ref.TagPath(), signed)
	return d
}

func (s *shop) origin() origin.Origin { return open(s.t, s.server.URL) }

// quick loses no time on a failing origin, and waits long for a healthy one, because the
// machine may be slow. hasty has short limits.
var (
	quick = limited(time.Minute)
	hasty = limited(300 * time.Millisecond)
)

func limited(d time.Duration) origin.Options {
	return origin.Options{Proxies: []string{origin.Direct}, Header: d, Stall: d, Patience: -1, Rest: time.Millisecond, RestMost: 2 * time.Millisecond}
}

func open(t *testing.T, url string) origin.Origin {
	t.Helper()
	o, err := origin.Open(url, quick)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func group(origins ...origin.Origin) *origin.Group { return origin.NewGroup(origins, quick) }

func resolve(t *testing.T, dir string, g *origin.Group) (*trust.Resolved, error) {
	t.Helper()
	return trust.New(trust.Options{Dir: dir}).Resolve(context.Background(), g, ref)
}

func TestFirstUseAndLater(t *testing.T) {
	s, dir := newShop(t, 1, 1), t.TempDir()
	d := s.tag(1, "one")
	res, err := resolve(t, dir, group(s.origin()))
	if err != nil || res.Tree != d || !res.First || res.Offline != nil || res.Store != s.id || res.Record.Serial != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	d = s.tag(2, "two")
	res, err = resolve(t, dir, group(s.origin()))
	if err != nil || res.Tree != d || res.First {
		t.Fatalf("the second time: %+v, %v", res, err)
	}
	if st, err := os.Stat(filepath.Join(dir, "known_stores")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("known_stores: %v, %v", st, err)
	}
	digest := tree.Ref{Name: "refs/x", Digest: d}
	res, err = trust.New(trust.Options{Dir: dir}).Resolve(context.Background(), group(), digest)
	if err != nil || res.Tree != d {
		t.Errorf("a digest needs nobody's word: %+v, %v", res, err)
	}
	_, err = trust.New(trust.Options{Dir: dir}).Resolve(context.Background(), group(s.origin()), tree.Ref{Name: "refs/x", Tag: "none"})
	if !errors.Is(err, origin.ErrNotFound) {
		t.Errorf("a tag that is not there: %v", err)
	}
}

func TestChangedStore(t *testing.T) {
	for name, change := range map[string]func(*shop){
		"another store":                   func(s *shop) { s.found(2, 1) },
		"another store, another key":      func(s *shop) { s.found(2, 2) },
		"the same store with another key": func(s *shop) { s.found(1, 2) },
	} {
		s, dir := newShop(t, 1, 1), t.TempDir()
		s.tag(1, "one")
		if _, err := resolve(t, dir, group(s.origin())); err != nil {
			t.Fatal(err)
		}
		change(s)
		d := s.tag(5, "two")
		res, err := resolve(t, dir, group(s.origin()))
		changed, ok := errors.AsType[*trust.ChangedError](err)
		if !ok || res != nil || !strings.Contains(changed.Hint(), dir) {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		// A client that is given the new key trusts it, and continues to trust it.
		res, err = trust.New(trust.Options{Dir: dir, Keys: []tree.PublicKey{s.key.Public()}}).Resolve(context.Background(), group(s.origin()), ref)
		if err != nil || res.Tree != d || res.First {
			t.Errorf("%s, with its key: %+v, %v", name, res, err)
		}
		if res, err := resolve(t, dir, group(s.origin())); err != nil || res.Tree != d {
			t.Errorf("%s, afterwards: %+v, %v", name, res, err)
		}
	}
}

// store.json is not signed, so a key that an attacker adds to it must have no effect.
func TestAddedKeyIsNotBelieved(t *testing.T) {
	s, dir := newShop(t, 1, 1), t.TempDir()
	d := s.tag(1, "one")
	if _, err := resolve(t, dir, group(s.origin())); err != nil {
		t.Fatal(err)
	}
	s.found(1, 1, 9)
	if res, err := resolve(t, dir, group(s.origin())); err != nil || res.Tree != d {
		t.Errorf("a key more in store.json: %+v, %v", res, err)
	}
	s.tag(2, "evil")
	_, err := resolve(t, dir, group(s.origin()))
	if _, ok := errors.AsType[*trust.UntrustedError](err); !ok {
		t.Errorf("a tag signed with it: %v", err)
	}
	// The same happens at an address that was never used, because the client knows the
	// store.
	mirror := newShop(t, 1, 1)
	mirror.found(1, 1, 9)
	mirror.tag(2, "evil")
	_, err = resolve(t, dir, group(mirror.origin()))
	if _, ok := errors.AsType[*trust.UntrustedError](err); !ok {
		t.Errorf("at another address: %v", err)
	}
	other := newShop(t, 1, 9)
	other.tag(2, "evil")
	_, err = resolve(t, dir, group(other.origin()))
	if _, ok := errors.AsType[*trust.ChangedError](err); !ok {
		t.Errorf("at another address, with that key alone: %v", err)
	}
}

func TestReplay(t *testing.T) {
	s, dir := newShop(t, 1, 1), t.TempDir()
	s.tag(3, "three")
	if _, err := resolve(t, dir, group(s.origin())); err != nil {
		t.Fatal(err)
	}
	old := s.tag(2, "two")
	_, err := resolve(t, dir, group(s.origin()))
	if e, ok := errors.AsType[*trust.RollbackError](err); !ok || e.Serial != 2 || e.Seen != 3 {
		t.Errorf("an older record: %v", err)
	}
	// An outdated mirror is passed over.
	fresh := newShop(t, 1, 1)
	d := fresh.tag(4, "four")
	if res, err := resolve(t, dir, group(s.origin(), fresh.origin())); err != nil || res.Tree != d {
		t.Errorf("one that lags behind and one that does not: %+v, %v", res, err)
	}
	fresh.tag(4, "another four")
	_, err = resolve(t, dir, group(fresh.origin()))
	if e, ok := errors.AsType[*trust.RollbackError](err); !ok || e.Serial != 4 || e.Seen != 4 {
		t.Errorf("two records with one serial: %v", err)
	}
	res, err := trust.New(trust.Options{Dir: dir, AllowRollback: true}).Resolve(context.Background(), group(s.origin()), ref)
	if err != nil || res.Tree != old {
		t.Errorf("where it is allowed: %+v, %v", res, err)
	}
	if res, err := resolve(t, dir, group(s.origin())); err != nil || res.Tree != old {
		t.Errorf("and afterwards: %+v, %v", res, err)
	}
}

func TestOffline(t *testing.T) {
	s, dir := newShop(t, 1, 1), t.TempDir()
	d := s.tag(1, "one")
	s.fault.Set(faulty.Fail, "")
	if res, err := resolve(t, dir, group(s.origin())); origin.KindOf(err) != origin.Broken {
		t.Errorf("nothing is known yet: %+v, %v", res, err)
	}
	s.fault.Set(faulty.None, "")
	if _, err := resolve(t, dir, group(s.origin())); err != nil {
		t.Fatal(err)
	}
	for _, f := range []faulty.Fault{faulty.HangUp, faulty.Late, faulty.Stall, faulty.Truncate, faulty.Fail, faulty.Portal, faulty.Loop} {
		s.fault.Set(f, "")
		o, err := origin.Open(s.server.URL, hasty)
		if err != nil {
			t.Fatal(err)
		}
		res, err := resolve(t, dir, group(o))
		if err != nil || res.Tree != d || res.Offline == nil || res.First {
			t.Errorf("an origin that %s: %+v, %v", f, res, err)
		}
	}
	// These faults are answers, which must not be trusted.
	for _, f := range []faulty.Fault{faulty.Flip, faulty.Short, faulty.Other, faulty.Long} {
		s.fault.Set(f, "tags/")
		res, err := resolve(t, dir, group(s.origin()))
		if _, ok := errors.AsType[*trust.UntrustedError](err); !ok {
			t.Errorf("an origin that %s: %+v, %v", f, res, err)
		}
	}
	s.fault.Set(faulty.NotThere, "tags/")
	if res, err := resolve(t, dir, group(s.origin())); !errors.Is(err, origin.ErrNotFound) {
		t.Errorf("a tag that was removed: %+v, %v", res, err)
	}
	s.fault.Set(faulty.HangUp, "")
	never := newShop(t, 2, 2)
	never.fault.Set(faulty.HangUp, "")
	if res, err := resolve(t, dir, group(never.origin())); err == nil {
		t.Errorf("an origin that was never used: %+v", res)
	}
}

func TestDirectory(t *testing.T) {
	s, dir := newShop(t, 1, 1), t.TempDir()
	s.tag(2, "two")
	local := open(t, s.dir)
	if _, err := resolve(t, dir, group(local)); err != nil {
		t.Fatal(err)
	}
	s.tag(1, "one")
	_, err := resolve(t, dir, group(local))
	if _, ok := errors.AsType[*trust.RollbackError](err); !ok {
		t.Errorf("an older record: %v", err)
	}
	// A new store in the same directory is another store.
	s.found(2, 2)
	d := s.tag(1, "one")
	if res, err := resolve(t, dir, group(local)); err != nil || res.Tree != d {
		t.Errorf("another store: %+v, %v", res, err)
	}
	// A store that claims to be a known one must have its key.
	s.found(1, 3)
	s.tag(9, "nine")
	known := newShop(t, 1, 1)
	known.tag(3, "three")
	fresh := t.TempDir()
	if _, err := resolve(t, fresh, group(known.origin())); err != nil {
		t.Fatal(err)
	}
	_, err = resolve(t, fresh, group(local))
	if _, ok := errors.AsType[*trust.ChangedError](err); !ok {
		t.Errorf("a known id with another key: %v", err)
	}
}

func TestProfile(t *testing.T) {
	s, dir := newShop(t, 1, 1), t.TempDir()
	d := object.Sum([]byte("tree"))
	content, err := (&tree.Profile{Tree: d, Parts: []tree.Part{{Chunk: 2}, {Chunk: 0}}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	s.write(object.Sum(content).Path(), object.Encode(nil, content))
	signed, err := tree.SignProfile(s.key, &tree.ProfileRecord{Store: s.id, Tree: d, Name: "start", Profile: object.Sum(content)})
	if err != nil {
		t.Fatal(err)
	}
	s.write(tree.ProfilePath(d, "start"), signed)
	r := trust.New(trust.Options{Dir: dir})
	got, err := r.Profile(context.Background(), group(s.origin()), d, "start")
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("%q, %v", got, err)
	}
	// The client remembers the identity of the store.
	if err := os.Remove(filepath.Join(s.dir, tree.InfoPath)); err != nil {
		t.Fatal(err)
	}
	if got, err = r.Profile(context.Background(), group(s.origin()), d, "start"); err != nil || !bytes.Equal(got, content) {
		t.Errorf("looked up again: %q, %v", got, err)
	}
	if _, err := r.Profile(context.Background(), group(s.origin()), d, "none"); !errors.Is(err, origin.ErrNotFound) {
		t.Errorf("a profile that is not there: %v", err)
	}
	s.write(tree.ProfilePath(d, "other"), signed)
	_, err = r.Profile(context.Background(), group(s.origin()), d, "other")
	if _, ok := errors.AsType[*trust.UntrustedError](err); !ok {
		t.Errorf("a record under another name: %v", err)
	}
}

func TestDamagedState(t *testing.T) {
	s, dir := newShop(t, 1, 1), t.TempDir()
	s.tag(1, "one")
	if err := os.WriteFile(filepath.Join(dir, "known_stores"), []byte("\n{\"origin\":\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := resolve(t, dir, group(s.origin()))
	if e, ok := errors.AsType[*trust.StateError](err); !ok || e.Line != 2 {
		t.Errorf("error %v", err)
	}
}

func TestReadKeys(t *testing.T) {
	one, two := tree.NewPrivateKey([32]byte{1}).Public(), tree.NewPrivateKey([32]byte{2}).Public()
	for text, want := range map[string]int{
		one.String(): 1,
		one.String() + "\n\n" + two.String() + "\n":                     2,
		"store /srv/x\nid 12\nkey   " + one.String() + "\nfile x.key\n": 1,
		"": 0, "hello": 0, one.String() + "x": 0, "key premix-ed25519 \n": 0,
	} {
		file := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		keys, err := trust.ReadKeys(file)
		_, typed := errors.AsType[*trust.KeyFileError](err)
		if len(keys) != want || typed != (want == 0) {
			t.Errorf("%q: %d keys, %v", text, len(keys), err)
		}
	}
}
