package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"premix/internal/testkit/faulty"
	"premix/internal/testkit/ports"
)

// asked counts the requests for each path.
type asked struct {
	next http.Handler
	mu   sync.Mutex
	n    map[string]int
}

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.n[r.URL.Path]++
	a.mu.Unlock()
	a.next.ServeHTTP(w, r)
}

// objects returns the number of objects that were asked for, and of requests for them.
func (a *asked) objects() (objects, requests int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for path, n := range a.n {
		if strings.HasPrefix(path, "/objects/") {
			objects++
			requests += n
		}
	}
	return objects, requests
}

// Eight nodes, which are processes with homes of their own, mount one tree at the same time, and
// all of them show every byte of it. The origin is asked for each object about once. A node with
// another token gets nothing from them.
func TestNeighbourNodes(t *testing.T) {
	if !apart(t) {
		return
	}
	f := newFarm(t, "")
	counter := &asked{next: f.origin, n: map[string]int{}}
	server := httptest.NewServer(counter)
	t.Cleanup(server.Close)
	free, err := ports.Free(9)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, p := range free {
		list = append(list, fmt.Sprintf("127.0.0.1:%d", p))
	}
	start := func(i int, token string) *farm {
		one := &farm{dir: filepath.Join(f.dir, fmt.Sprint(i)), files: f.files, names: f.names, origin: f.origin, url: server.URL}
		one.mkdir(t, "home", "mnt")
		one.write(t, "token", []byte(token+"\n"))
		if err := os.Chmod(one.path("token"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { one.gone(t) })
		one.ok(t, "node", "start", "--neighbours", strings.Join(list[:8], ","), "--neighbours-listen", list[i], "--neighbours-token-file", one.path("token"))
		return one
	}
	var nodes []*farm
	for i := range 8 {
		nodes = append(nodes, start(i, "the-token-of-this-site"))
	}
	var all sync.WaitGroup
	for _, one := range nodes {
		all.Go(func() {
			if status, out := one.premix(t, "mount", "--origin", one.url, "--eager", "data:1", one.path("mnt")); status != 0 {
				t.Errorf("status %d: %s", status, out)
				return
			}
			for _, name := range one.names {
				if err := one.check(name); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	// A node that was late to listen is left out for a second, and on a busy machine a slow one,
	// too. Without neighbours there are eight requests for each object.
	objects, requests := counter.objects()
	t.Logf("%d requests for %d objects", requests, objects)
	if objects == 0 || requests > 4*objects {
		t.Errorf("%d requests for %d objects of 8 nodes", requests, objects)
	}
	given := int64(0)
	for _, one := range nodes {
		s := one.status(t).Neighbours
		if s == nil || len(s.Asked) != 7 {
			t.Fatalf("neighbours %+v", s)
		}
		given += s.Given.Objects
	}
	if given < int64(5*objects) {
		t.Errorf("neighbours gave %d objects to 8 nodes, %d exist", given, objects)
	}

	// The origin gives the record of the tag, and no objects.
	f.origin.Set(faulty.NotThere, "/objects/")
	defer f.origin.Set(faulty.None, "")
	stranger := start(8, "another-token-of-a-site")
	if status, out := stranger.premix(t, "mount", "--origin", server.URL, "data:1", stranger.path("mnt")); status == 0 {
		t.Errorf("a node with another token got objects: %s", out)
	}
}
