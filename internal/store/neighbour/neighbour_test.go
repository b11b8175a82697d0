package neighbour_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"premix/internal/kit/access"
	"premix/internal/store/neighbour"
	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/testkit/ports"
)

// store is an origin that counts its requests for objects.
type store struct {
	*httptest.Server
	objects  map[string][]byte
	digests  []object.Digest
	requests atomic.Int64
	delay    time.Duration
}

var seeds atomic.Uint64

// newOrigin returns an origin with n objects, which are other objects in each origin.
func newOrigin(t *testing.T, n int) *store {
	o := &store{objects: map[string][]byte{}}
	r := rand.New(rand.NewPCG(1, seeds.Add(1)))
	for range n {
		content := make([]byte, 1000+r.IntN(200_000))
		for i := range content {
			content[i] = byte(r.Uint32())
		}
		d := object.Sum(content)
		o.objects["/"+d.Path()] = object.Encode(nil, content)
		o.digests = append(o.digests, d)
	}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.requests.Add(1)
		time.Sleep(o.delay)
		b, ok := o.objects[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Write(b)
	}))
	t.Cleanup(o.Close)
	return o
}

// machine is a node: its neighbours and its origins.
type machine struct {
	site  *neighbour.Site
	group *origin.Group
	log   *buffer
}

type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// addresses returns n addresses on which nothing listens.
func addresses(t *testing.T, n int) []string {
	t.Helper()
	free, err := ports.Free(n)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range free {
		all = append(all, fmt.Sprintf("127.0.0.1:%d", p))
	}
	return all
}

func newMachine(t *testing.T, token, listen string, list []string, url string) *machine {
	t.Helper()
	m := &machine{log: &buffer{}}
	var err error
	m.site, err = neighbour.Open(neighbour.Options{Token: token, Listen: listen, List: strings.Join(list, ","), Log: slog.New(slog.NewTextHandler(m.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.site.Close() })
	share := m.site.Share([]string{url})
	if m.group, err = origin.OpenAll([]string{url}, origin.Options{Near: share}); err != nil {
		t.Fatal(err)
	}
	share.From(neighbour.Source{
		Origin: func(ctx context.Context, d object.Digest) ([]byte, error) {
			b, err := m.group.Far(ctx, d)
			if errors.Is(err, origin.ErrNotFound) {
				err = errors.Join(err, neighbour.ErrNone)
			}
			return b, err
		},
		Cached: func(object.Digest, func(object.Digest) bool) ([]byte, bool) { return nil, false },
	})
	return m
}

// all fetches all objects with a machine, in an order of its own, and verifies them.
func (m *machine) all(t *testing.T, o *store, seed uint64) {
	t.Helper()
	ctx := context.Background()
	var group sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, i := range rand.New(rand.NewPCG(seed, 3)).Perm(len(o.digests)) {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			d := o.digests[i]
			content, err := m.group.Verified(ctx, d, -1)
			if err != nil || object.Sum(content) != d {
				t.Errorf("object %s: %v", d.Short(), err)
			}
		})
	}
	group.Wait()
}

func together(t *testing.T, o *store, machines []*machine) {
	t.Helper()
	var group sync.WaitGroup
	for i, m := range machines {
		group.Go(func() { m.all(t, o, uint64(i)) })
	}
	group.Wait()
}

// Eight nodes that need the same objects at the same time ask the origin for each about once.
func TestOriginIsAskedOnce(t *testing.T) {
	defer neighbour.SetSilence(time.Minute)() // this machine may be busy
	o := newOrigin(t, 150)
	o.delay = 5 * time.Millisecond
	list := addresses(t, 8)
	var machines []*machine
	for _, a := range list {
		machines = append(machines, newMachine(t, "secret of the site", a, list, o.URL))
	}
	together(t, o, machines)
	if n := o.requests.Load(); n > int64(len(o.digests))*11/10 {
		t.Errorf("%d requests for %d objects", n, len(o.digests))
	}
	given := int64(0)
	for _, m := range machines {
		given += m.site.Served().Objects
		for _, s := range m.site.Status() {
			if s.Errors > 0 {
				t.Errorf("%+v", s)
			}
		}
	}
	if want := int64(len(o.digests)) * 7; given < want*9/10 || given > want*11/10 {
		t.Errorf("neighbours gave %d objects, %d were wanted", given, want)
	}
}

// fake is a neighbour with the right token that answers with handler.
func fake(t *testing.T, token, address string, handler http.HandlerFunc) {
	t.Helper()
	config, err := access.Mutual(token)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler}
	go s.Serve(tls.NewListener(l, config))
	t.Cleanup(func() { s.Close() })
}

// A neighbour that lies, is dead, stalls, trickles, breaks off or has another token costs time,
// and never a wrong byte: it is left out, and the log names it.
func TestBadNeighbours(t *testing.T) {
	t.Cleanup(neighbour.SetSilence(3 * time.Second))
	const token = "secret of the site"
	quiet := make(chan struct{})
	t.Cleanup(func() { close(quiet) })
	for name, c := range map[string]struct {
		serve   func(t *testing.T, o *store, address string)
		reason  string
		corrupt bool
	}{
		"lies": {func(t *testing.T, o *store, address string) {
			fake(t, token, address, func(w http.ResponseWriter, r *http.Request) {
				asked := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
				for _, d := range o.digests {
					if d.String() != asked { // of another object
						w.Write(append([]byte{'O'}, o.objects["/"+d.Path()]...))
						return
					}
				}
			})
		}, "digest", true},
		"flips": {func(t *testing.T, o *store, address string) {
			fake(t, token, address, func(w http.ResponseWriter, r *http.Request) {
				d, _ := object.ParseDigest(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
				b := bytes.Clone(o.objects["/"+d.Path()])
				b[len(b)/2] ^= 1
				w.Write(append([]byte{'O'}, b...))
			})
		}, "", true},
		"dead": {func(*testing.T, *store, string) {}, "refused", false},
		"silent": {func(t *testing.T, o *store, address string) {
			fake(t, token, address, func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-quiet:
				case <-r.Context().Done():
				}
			})
		}, "no byte for", false},
		"breaks off": {func(t *testing.T, o *store, address string) {
			fake(t, token, address, func(w http.ResponseWriter, r *http.Request) {
				w.Write([]byte("OHALF"))
				http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
		}, "ends", false},
		"strange": {func(t *testing.T, o *store, address string) {
			fake(t, token, address, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") })
		}, "0x3c", false},
		"other token": {func(t *testing.T, o *store, address string) { newMachine(t, "another secret", address, nil, o.URL) }, "token", false},
		"plain TCP": {func(t *testing.T, o *store, address string) {
			l, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			s := &http.Server{Handler: http.NotFoundHandler()}
			go s.Serve(l)
			t.Cleanup(func() { s.Close() })
		}, "HTTP", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOrigin(t, 40)
			list := addresses(t, 2)
			c.serve(t, o, list[1])
			m := newMachine(t, token, list[0], list, o.URL)
			began := time.Now()
			m.all(t, o, 1)
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			s := m.site.Status()
			if len(s) != 1 || s[0].Errors == 0 || s[0].LastError == "" || !strings.Contains(s[0].LastError, c.reason) || (s[0].Corrupt > 0) != c.corrupt {
				t.Errorf("%+v", s)
			}
			if c.corrupt && !s[0].LeftOut {
				t.Error("a liar is asked again")
			}
			if text := m.log.String(); !strings.Contains(text, "left out") || !strings.Contains(text, list[1]) {
				t.Errorf("the log does not name it: %s", text)
			}
			if n := o.requests.Load(); n != int64(len(o.digests)) {
				t.Errorf("%d requests for %d objects", n, len(o.digests))
			}
		})
	}
}

// Where one of eight is dead, the second owner takes its part: the origin is still asked about once.
func TestDeadOwner(t *testing.T) {
	defer neighbour.SetSilence(time.Minute)() // this machine may be busy
	o := newOrigin(t, 100)
	list := addresses(t, 8)
	var machines []*machine
	for _, a := range list[1:] {
		machines = append(machines, newMachine(t, "secret", a, list, o.URL))
	}
	together(t, o, machines)
	if n := o.requests.Load(); n > int64(len(o.digests))*5/4 {
		t.Errorf("%d requests for %d objects", n, len(o.digests))
	}
}

// A node that leaves out the owner of an object asks the second, which asks the owner: the origin
// is asked once, and the owner has the object for the others.
func TestRelayed(t *testing.T) {
	o := newOrigin(t, 60)
	list := addresses(t, 2)
	machines := []*machine{newMachine(t, "secret", list[0], list, o.URL), newMachine(t, "secret", list[1], list, o.URL), newMachine(t, "secret", "", list, o.URL)}
	machines[2].site.LeaveOut(list[0], time.Minute)
	for i := range machines {
		machines[2-i].all(t, o, uint64(i))
	}
	if n := o.requests.Load(); n != int64(len(o.digests)) {
		t.Errorf("%d requests for %d objects", n, len(o.digests))
	}
	if n := machines[0].site.Served().Objects; n == 0 {
		t.Error("the owner gave nothing")
	}
}

// A neighbour that is slow with one object and alive with another is not left out.
func TestSlowNeighbour(t *testing.T) {
	defer neighbour.SetSilence(500 * time.Millisecond)()
	o := newOrigin(t, 2)
	list := addresses(t, 2)
	quiet := make(chan struct{})
	t.Cleanup(func() { close(quiet) })
	fake(t, "secret", list[1], func(w http.ResponseWriter, r *http.Request) {
		for silent := strings.HasSuffix(r.URL.Path, o.digests[0].String()); ; {
			select {
			case <-quiet:
				return
			case <-r.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			if !silent {
				w.Write([]byte{'.'})
				http.NewResponseController(w).Flush()
			}
		}
	})
	m := newMachine(t, "secret", "", list[1:], o.URL)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go m.group.Verified(ctx, o.digests[1], -1)
	if content, err := m.group.Verified(ctx, o.digests[0], -1); err != nil || object.Sum(content) != o.digests[0] {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	if s := m.site.Status(); len(s) != 1 || s[0].LeftOut || s[0].Errors != 1 || !strings.Contains(s[0].LastError, "no byte for") {
		t.Errorf("%+v", s)
	}
}

// A neighbour waits for the owner as long as that gives signs of life, because the origin is slow.
func TestSlowOrigin(t *testing.T) {
	o := newOrigin(t, 6)
	o.delay = 3 * time.Second
	list := addresses(t, 4)
	var machines []*machine
	for _, a := range list {
		machines = append(machines, newMachine(t, "secret", a, list, o.URL))
	}
	together(t, o, machines)
	if n := o.requests.Load(); n != int64(len(o.digests)) {
		t.Errorf("%d requests for %d objects", n, len(o.digests))
	}
}

// A node gives only objects of the origins that it shares, and asks no other origins.
func TestOnlyShares(t *testing.T) {
	o, private := newOrigin(t, 3), newOrigin(t, 3)
	list := addresses(t, 2)
	giver := newMachine(t, "secret", list[0], list, o.URL)
	asker := newMachine(t, "secret", list[1], list[:1], private.URL)
	asker.all(t, private, 1)
	if n := private.requests.Load(); n != 3 {
		t.Errorf("the private origin was asked %d times for 3 objects", n)
	}
	if giver.site.Served().Objects > 0 {
		t.Error("the neighbour gave objects of origins that it does not share")
	}
	// An object that only the private origin has, asked for in the name of the shared one.
	asker = newMachine(t, "secret", "", list[:1], o.URL)
	if _, err := asker.group.Verified(context.Background(), private.digests[0], -1); !errors.Is(err, origin.ErrNotFound) {
		t.Errorf("an object of another origin: %v", err)
	}
	if n := private.requests.Load(); n != 3 {
		t.Errorf("the private origin was asked by the neighbour: %d requests", n)
	}
}

// Chunks in the cache are given, if they are of a tree that came from the share.
func TestCache(t *testing.T) {
	o := newOrigin(t, 1)
	list := addresses(t, 1)
	m := newMachine(t, "secret", list[0], list, o.URL)
	content, treeOf := []byte("a chunk in the cache"), object.Sum([]byte("its tree"))
	d := object.Sum(content)
	share := m.site.Share([]string{o.URL + "/"})
	share.From(neighbour.Source{
		Origin: func(context.Context, object.Digest) ([]byte, error) { return nil, neighbour.ErrNone },
		Cached: func(x object.Digest, shared func(object.Digest) bool) ([]byte, bool) {
			return content, x == d && shared(treeOf)
		},
	})
	asker := newMachine(t, "secret", "", list, o.URL)
	if got, err := asker.group.Verified(context.Background(), d, -1); err == nil {
		t.Errorf("a chunk of another tree was given: %q", got)
	}
	share.Tree(treeOf)
	if got, err := asker.group.Verified(context.Background(), d, -1); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestLists(t *testing.T) {
	for list, ok := range map[string]bool{
		"": true, "a:1": true, "a:1, b:2,": true, "[::1]:7": true, "dns:nodes.example.org:7410": true,
		"a": false, ":7": false, "a:": false, "a:0": false, "http://a:1": false, "dns:": false, "dns:a": false, "u@a:1": false,
	} {
		if err := neighbour.CheckList(list); (err == nil) != ok {
			t.Errorf("%q: %v", list, err)
		}
	}
	if _, err := neighbour.Open(neighbour.Options{Token: "x", List: "dns:nodes:x:y", Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("an invalid list was opened")
	}
	// localhost is looked up, and this node finds itself among its addresses.
	list := addresses(t, 1)
	_, port, _ := net.SplitHostPort(list[0])
	s, err := neighbour.Open(neighbour.Options{Token: "x", Listen: list[0], List: "dns:localhost:" + port, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, p := range s.Status() {
		if p.Address == list[0] {
			t.Error("a node is its own neighbour")
		}
	}
}

// The bytes for neighbours stay within the rate.
func TestRate(t *testing.T) {
	o := newOrigin(t, 60)
	list := addresses(t, 1)
	giver, err := neighbour.Open(neighbour.Options{Token: "x", Listen: list[0], List: list[0], Rate: 1 << 20, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer giver.Close()
	group, err := origin.OpenAll([]string{o.URL}, origin.Options{})
	if err != nil {
		t.Fatal(err)
	}
	giver.Share([]string{o.URL}).From(neighbour.Source{Origin: group.Far, Cached: func(object.Digest, func(object.Digest) bool) ([]byte, bool) { return nil, false }})
	asker := newMachine(t, "x", "", list, o.URL)
	began := time.Now()
	asker.all(t, o, 1)
	given, most := giver.Served().Bytes, int64(object.MaxStored)+int64(float64(1<<20)*(time.Since(began).Seconds()+1))
	if given == 0 || given > most {
		t.Errorf("%d bytes were given, at most %d should be", given, most)
	}
}
