package mirror_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"premix/internal/store"
	"premix/internal/store/mirror"
	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/store/server"
	"premix/internal/store/tree"
	"premix/internal/store/trust"
	"premix/internal/testkit/faulty"
)

var ref = tree.Ref{Name: "refs/x", Tag: "1"}

// lab is a store with a tree, a profile of the tree, and a home.
type lab struct {
	t     *testing.T
	home  string
	src   string // the directory to publish
	store *store.Store
	fault *faulty.Handler
	url   string
	n     int
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, home: t.TempDir(), src: t.TempDir()}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 20 {
		b := make([]byte, 1000+i*12000)
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		l.file(fmt.Sprintf("file%02d", i), b)
	}
	var err error
	l.store, err = store.Init(filepath.Join(t.TempDir(), "store"), store.Options{Home: l.home, Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	l.publish()
	l.profile()
	h, err := server.NewHandler(l.store.Dir(), server.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l.fault = faulty.New(h)
	server := httptest.NewServer(l.fault)
	l.url = server.URL
	t.Cleanup(func() { l.fault.Stop(); server.CloseClientConnections(); server.Close(); h.Close() })
	return l
}

func (l *lab) file(name string, content []byte) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.src, name), content, 0o644); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) publish() *store.Published {
	l.t.Helper()
	key, err := l.store.Key("")
	if err != nil {
		l.t.Fatal(err)
	}
	p, err := l.store.Publish(context.Background(), l.src, ref, store.PublishOptions{Key: key})
	if err != nil {
		l.t.Fatal(err)
	}
	return p
}

func (l *lab) profile() {
	l.t.Helper()
	key, err := l.store.Key("")
	if err != nil {
		l.t.Fatal(err)
	}
	r, err := l.store.Resolve(ref)
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := l.store.PublishProfile(context.Background(), &tree.Profile{Tree: r.Tree, Parts: []tree.Part{{Chunk: 3}, {Chunk: 0, Runs: []object.Run{{From: 0, To: 1}}}, {Chunk: 1}}}, "start", key); err != nil {
		l.t.Fatal(err)
	}
}

// quick loses no time on a failing origin, and waits long for a healthy one, because the
// machine may be slow. hasty has short limits.
var (
	quick = limited(time.Minute)
	hasty = limited(time.Second)
)

func limited(d time.Duration) origin.Options {
	return origin.Options{Proxies: []string{origin.Direct}, Header: d, Stall: d, StallBytes: 1 << 10, Patience: -1,
		Rest: time.Millisecond, RestMost: 2 * time.Millisecond, Cooldown: time.Millisecond}
}

// pull pulls with the n-th home, which no other pull uses.
func (l *lab) pull(url, dest string, change func(*mirror.PullOptions)) (*mirror.Copied, error) {
	l.t.Helper()
	return l.pullWith(quick, url, dest, change)
}

func (l *lab) pullWith(reach origin.Options, url, dest string, change func(*mirror.PullOptions)) (*mirror.Copied, error) {
	l.t.Helper()
	g, err := origin.OpenAll([]string{url}, reach)
	if err != nil {
		l.t.Fatal(err)
	}
	l.n++
	o := mirror.PullOptions{Ref: ref, From: g, Trust: trust.New(trust.Options{Dir: filepath.Join(l.home, fmt.Sprint("trust", l.n))}), Dest: dest,
		Store: store.Options{Unsynced: true}, Profiles: []string{"start", "none"}, Progress: &mirror.Progress{}}
	if change != nil {
		change(&o)
	}
	c, err := mirror.Pull(context.Background(), o)
	if err == nil && (o.Progress.Done.Load() != o.Progress.Whole.Load() || o.Progress.Whole.Load() != c.Manifest.Size) {
		l.t.Errorf("progress: %d of %d, of an image of %d bytes", o.Progress.Done.Load(), o.Progress.Whole.Load(), c.Manifest.Size)
	}
	return c, err
}

// same checks that the mirror is sound, and has the same files as the store.
func (l *lab) same(dest string) {
	l.t.Helper()
	m, err := store.Open(dest, store.Options{})
	if err != nil {
		l.t.Fatal(err)
	}
	v, err := m.Verify(context.Background(), store.VerifyOptions{})
	if err != nil || len(v.Findings) > 0 || v.Trees == 0 {
		l.t.Errorf("the mirror: %+v, %v", v, err)
	}
	theirs, err := l.store.Resolve(ref)
	if err != nil {
		l.t.Fatal(err)
	}
	ours, err := m.Resolve(ref)
	if err != nil || *ours != *theirs {
		l.t.Errorf("the mirror's record is %+v instead of %+v, %v", ours, theirs, err)
	}
	for _, name := range []string{ref.TagPath(), ref.HistoryPath(), "profiles/" + theirs.Tree.String() + "/start.json"} {
		want, err := os.ReadFile(filepath.Join(l.store.Dir(), name))
		if err != nil {
			l.t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dest, name)); err != nil || !bytes.Equal(got, want) {
			l.t.Errorf("%s differs, %v", name, err)
		}
	}
	if _, err := m.GC(context.Background(), store.GCOptions{Keep: 5}); err != nil {
		l.t.Errorf("gc of the mirror: %v", err)
	}
	if v, err := m.Verify(context.Background(), store.VerifyOptions{}); err != nil || len(v.Findings) > 0 {
		l.t.Errorf("after a gc: %+v, %v", v, err)
	}
}

func TestPull(t *testing.T) {
	l, dest := newLab(t), filepath.Join(t.TempDir(), "new", "mirror")
	c, err := l.pull(l.url, dest, nil)
	if err != nil || !c.First || !c.Tagged || c.Objects < 10 || len(c.Profiles) != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	l.same(dest)

	// A second pull transfers only the signed files.
	before := l.fault.Requests()
	c, err = l.pull(l.url, dest, nil)
	if err != nil || c.Tagged || c.Objects != 0 || c.Found == 0 {
		t.Errorf("the second time: %+v, %v", c, err)
	}
	if n := l.fault.Requests() - before; n > 10 {
		t.Errorf("%d requests to find that nothing has changed", n)
	}

	// A pull of another version transfers only its new objects.
	l.file("more", []byte(strings.Repeat("more ", 1000)))
	l.publish()
	l.profile()
	c, err = l.pull(l.url, dest, nil)
	if err != nil || !c.Tagged || c.Objects == 0 || c.Objects > 12 || c.Record.Serial != 2 {
		t.Errorf("the next version: %+v, %v", c, err)
	}
	l.same(dest)

	// A mirror can be the origin of another mirror.
	third := filepath.Join(t.TempDir(), "third")
	if _, err := l.pull(dest, third, nil); err != nil {
		t.Fatal(err)
	}
	l.same(third)
}

func TestPullByDigest(t *testing.T) {
	l, dest := newLab(t), filepath.Join(t.TempDir(), "mirror")
	r, err := l.store.Resolve(ref)
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.pull(l.url, dest, func(o *mirror.PullOptions) { o.Ref = tree.Ref{Name: ref.Name, Digest: r.Tree} })
	if err != nil || c.Tagged || c.Record != nil {
		t.Fatalf("%+v, %v", c, err)
	}
	m, err := store.Open(dest, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Tree(r.Tree); err != nil {
		t.Error(err)
	}
}

func TestPullRefuses(t *testing.T) {
	l := newLab(t)
	other := filepath.Join(t.TempDir(), "other")
	if _, err := store.Init(other, store.Options{Home: l.home, Unsynced: true}); err != nil {
		t.Fatal(err)
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "thesis.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, dest := range map[string]string{"another store": other, "a directory with other things": full} {
		_, err := l.pull(l.url, dest, nil)
		if _, ok := errors.AsType[*store.UsageError](err); !ok {
			t.Errorf("into %s: %v", name, err)
		}
	}

	// A mirror does not accept an older version.
	dest := filepath.Join(t.TempDir(), "mirror")
	old := filepath.Join(t.TempDir(), "old")
	if _, err := l.pull(l.url, old, nil); err != nil {
		t.Fatal(err)
	}
	l.file("more", []byte("more"))
	l.publish()
	if _, err := l.pull(l.url, dest, nil); err != nil {
		t.Fatal(err)
	}
	_, err := l.pull(old, dest, nil)
	if e, ok := errors.AsType[*store.OlderError](err); !ok || e.Serial != 1 || e.Have != 2 {
		t.Errorf("an older record: %v", err)
	}
	if c, err := l.pull(old, dest, func(o *mirror.PullOptions) { o.Rollback = true }); err != nil || !c.Tagged {
		t.Errorf("where it is allowed: %+v, %v", c, err)
	}
	m, err := store.Open(dest, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := m.Resolve(ref); err != nil || r.Serial != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if v, err := m.Verify(context.Background(), store.VerifyOptions{}); err != nil || len(v.Findings) > 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// With any fault of the origin, the mirror has the old tag with its complete tree, or the
// new tag with its complete tree. The next pull continues from there.
func TestPullFromAFaultyOrigin(t *testing.T) {
	for _, fault := range append(faulty.All(), faulty.NotThere) {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			l, dest := newLab(t), filepath.Join(t.TempDir(), "mirror")
			if _, err := l.pull(l.url, dest, nil); err != nil {
				t.Fatal(err)
			}
			old, err := store.Open(dest, store.Options{})
			if err != nil {
				t.Fatal(err)
			}
			before, err := old.Resolve(ref)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				l.file(fmt.Sprintf("file%02d", i*3), bytes.Repeat([]byte{byte(i), 1, byte(i * i), 7}, 50000))
			}
			l.publish()
			l.profile()
			l.fault.Set(fault, "objects/")
			c, err := l.pullWith(hasty, l.url, dest, nil)
			if err == nil {
				t.Fatalf("%+v", c)
			}
			if r, err := old.Resolve(ref); err != nil || *r != *before {
				t.Errorf("the tag was changed: %+v, %v", r, err)
			}
			if v, err := old.Verify(context.Background(), store.VerifyOptions{}); err != nil || len(v.Findings) > 0 {
				t.Errorf("%+v, %v", v, err)
			}
			l.fault.Set(faulty.None, "")
			if _, err := l.pull(l.url, dest, nil); err != nil {
				t.Fatal(err)
			}
			l.same(dest)
		})
	}
}

func TestPullGoesOn(t *testing.T) {
	l, dest := newLab(t), filepath.Join(t.TempDir(), "mirror")
	g, err := origin.OpenAll([]string{l.url}, quick)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	half := &cutting{Group: g, after: 8, cut: cancel}
	o := mirror.PullOptions{Ref: ref, From: origin.NewGroup([]origin.Origin{half}, quick), Trust: trust.New(trust.Options{Dir: t.TempDir()}),
		Dest: dest, Store: store.Options{Unsynced: true}, Parallel: 1}
	if _, err := mirror.Pull(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dest, ref.TagPath())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a tag without its tree: %v", err)
	}
	if _, err := l.pull(l.url, dest, nil); err != nil {
		t.Fatal(err)
	}
	l.same(dest)
}

// cutting is an origin that is cut off after a number of objects.
type cutting struct {
	*origin.Group
	after int
	cut   func()
}

func (c *cutting) Object(ctx context.Context, d object.Digest) ([]byte, error) {
	if c.after--; c.after == 0 {
		c.cut()
	}
	return c.Group.Object(ctx, d)
}

func newRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.Handler(registry.New(registry.Logger(log.New(io.Discard, "", 0)))))
	t.Cleanup(server.Close)
	return "oci://" + strings.TrimPrefix(server.URL, "http://") + "/lab/store"
}

func TestPush(t *testing.T) {
	l := newLab(t)
	for name, dest := range map[string]string{"directory": filepath.Join(t.TempDir(), "mirror"), "registry": newRegistry(t)} {
		t.Run(name, func(t *testing.T) {
			push := func(change func(*mirror.PushOptions)) (*mirror.Copied, error) {
				o := mirror.PushOptions{From: l.store, Ref: ref, Dest: dest, Reach: quick, Store: store.Options{Unsynced: true}, Progress: &mirror.Progress{}}
				if change != nil {
					change(&o)
				}
				c, err := mirror.Push(context.Background(), o)
				if err == nil && o.Progress.Done.Load() != o.Progress.Whole.Load() {
					t.Errorf("progress: %d of %d", o.Progress.Done.Load(), o.Progress.Whole.Load())
				}
				return c, err
			}
			pulled := func() {
				t.Helper()
				far := filepath.Join(t.TempDir(), "far")
				if _, err := l.pull(dest, far, nil); err != nil {
					t.Fatal(err)
				}
				l.same(far)
			}
			c, err := push(nil)
			if err != nil || !c.Tagged || c.Objects < 10 || len(c.Profiles) != 1 {
				t.Fatalf("%+v, %v", c, err)
			}
			pulled()
			if c, err = push(nil); err != nil || c.Tagged || c.Objects != 0 || c.Bytes != 0 {
				t.Errorf("the second time: %+v, %v", c, err)
			}
			older := filepath.Join(t.TempDir(), "older")
			if _, err := l.pull(dest, older, nil); err != nil {
				t.Fatal(err)
			}
			l.file("more", bytes.Repeat([]byte(name), 1000))
			l.publish()
			l.profile()
			if c, err = push(nil); err != nil || !c.Tagged || c.Objects == 0 || c.Objects > 12 {
				t.Errorf("the next version: %+v, %v", c, err)
			}
			pulled()
			back, err := store.Open(older, store.Options{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = push(func(o *mirror.PushOptions) { o.From = back })
			if _, ok := errors.AsType[*store.OlderError](err); !ok {
				t.Errorf("an older record: %v", err)
			}
			if c, err := push(func(o *mirror.PushOptions) { o.From, o.Rollback = back, true }); err != nil || !c.Tagged {
				t.Errorf("where it is allowed: %+v, %v", c, err)
			}
			other, err := store.Init(filepath.Join(t.TempDir(), "other"), store.Options{Home: l.home, Unsynced: true})
			if err != nil {
				t.Fatal(err)
			}
			key, err := other.Key("")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.Publish(context.Background(), l.src, ref, store.PublishOptions{Key: key}); err != nil {
				t.Fatal(err)
			}
			_, err = push(func(o *mirror.PushOptions) { o.From = other })
			if _, ok := errors.AsType[*store.UsageError](err); !ok {
				t.Errorf("another store: %v", err)
			}
		})
	}
	for _, dest := range []string{l.url, l.store.Dir()} {
		_, err := mirror.Push(context.Background(), mirror.PushOptions{From: l.store, Ref: ref, Dest: dest, Reach: quick})
		if _, ok := errors.AsType[*store.UsageError](err); !ok {
			t.Errorf("to %s: %v", dest, err)
		}
	}
}
