package tagsync

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"premix/internal/image"
	"premix/internal/kit/exit"
	"premix/internal/store"
	"premix/internal/store/tree"
)

// TestRounds follows tags that appear, move and vanish.
func TestRounds(t *testing.T) {
	b := newBench(t)
	for _, v := range []string{"1.8", "1.9", "1.10", "1.10-rc1", "dev"} {
		b.push("team/tool:"+v, v)
	}
	b.push("team/other:latest", "other")
	b.push("elsewhere/x:latest", "x")
	b.list(`
images:
  - {image: HOST/team/tool, tags: ["1.*"], exclude: ["*-rc*"], newest: 2, as: "t/${base}"}
  - {image: HOST/team/other, as: other}
gc: {keep_for: 1ns}
`)
	sum := b.want("added other:latest", "added t/tool:1.10", "added t/tool:1.9")
	if sum.Rows[0].Bytes == 0 || sum.Err() != nil || sum.GC != nil {
		t.Errorf("%+v, %v", sum, sum.Err())
	}
	b.has("other:latest", "t/tool:1.10", "t/tool:1.9")
	b.questions()

	// An unchanged image costs one HEAD request, and a wildcard one request for the list.
	b.want("unchanged other:latest", "unchanged t/tool:1.10", "unchanged t/tool:1.9")
	asked := b.questions()
	slices.Sort(asked)
	if want := []string{"GET /v2/team/tool/tags/list", "HEAD /v2/team/other/manifests/latest", "HEAD /v2/team/tool/manifests/1.10", "HEAD /v2/team/tool/manifests/1.9"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}

	// One tag moves. A newer tag appears, so that the oldest one is no longer among the
	// newest two.
	b.push("team/other:latest", "moved")
	b.push("team/tool:1.11", "1.11")
	sum = b.want("updated other:latest", "unchanged t/tool:1.10", "added t/tool:1.11", "removed t/tool:1.9")
	if sum.GC == nil || sum.GC.Removed == 0 {
		t.Errorf("no gc: %+v", sum.GC)
	}
	b.has("other:latest", "t/tool:1.10", "t/tool:1.11")
	if got := b.content("other:latest"); got != "moved" {
		t.Errorf("other is %q", got)
	}

	// If a tag vanishes, its image remains for a day, or until the tag is back.
	b.drop("team/other:latest")
	b.drop("team/tool:1.10")
	b.drop("team/tool:1.9")
	b.drop("team/tool:1.8")
	sum = b.want("gone other:latest", "gone t/tool:1.10", "unchanged t/tool:1.11")
	if sum.Err() != nil || !sum.Rows[0].Gone.Equal(b.clock) {
		t.Errorf("%+v, %v", sum.Rows[0], sum.Err())
	}
	b.clock = b.clock.Add(23 * time.Hour)
	b.push("team/tool:1.10", "1.10")
	b.want("gone other:latest", "unchanged t/tool:1.10", "unchanged t/tool:1.11")
	b.drop("team/tool:1.10")
	b.clock = b.clock.Add(2 * time.Hour)
	b.want("removed other:latest", "gone t/tool:1.10", "unchanged t/tool:1.11")
	b.has("t/tool:1.10", "t/tool:1.11")

	// An image that leaves the list is removed at once, and images that were never listed
	// remain.
	if _, err := image.Add(t.Context(), b.store, t.TempDir(), &tree.Ref{Name: "by/hand", Tag: "1"}, b.o.Add); err != nil {
		t.Fatal(err)
	}
	b.list("images: []\n")
	b.want("removed t/tool:1.10", "removed t/tool:1.11")
	b.has("by/hand:1")
	b.want()
}

// TestNames finds names by wildcards, in a registry with a catalog.
func TestNames(t *testing.T) {
	b := newBench(t)
	for _, n := range []string{"bio/one", "bio/two", "bio/scratch", "bio/deep/er", "misc/one"} {
		b.push(n+":1", n)
	}
	b.list(`
images:
  - {image: "HOST/bio/*:1", exclude_names: [bio/scr*], as: "mirror/${name}", gone: remove}
  - {image: "HOST/*/one:1", as: "all/${name}", gone: keep}
`)
	b.want("added all/bio/one:1", "added all/misc/one:1", "added mirror/bio/one:1", "added mirror/bio/two:1")
	b.drop("bio/two:1")
	b.drop("misc/one:1")
	b.drop("bio/one:1")
	b.want("gone all/bio/one:1", "gone all/misc/one:1", "removed mirror/bio/one:1", "removed mirror/bio/two:1")
	b.clock = b.clock.Add(1000 * time.Hour)
	b.want("gone all/bio/one:1", "gone all/misc/one:1")
	b.has("all/bio/one:1", "all/misc/one:1")
}

// TestClash checks that a name can belong to only one image.
func TestClash(t *testing.T) {
	b := newBench(t)
	b.push("a/x:1", "a")
	b.push("b/x:1", "b")
	b.list("images:\n  - {image: 'HOST/a/x:1', as: x}\n  - {image: 'HOST/b/x:1', as: x}\n")
	sum := b.want("failed x:1", "added x:1")
	if !strings.Contains(sum.Rows[0].Error, "/a/x:1 (line 2)") || !strings.Contains(sum.Rows[0].Hint, "line 3") {
		t.Errorf("%+v", sum.Rows[0])
	}
	var failed *FailedError
	if !errors.As(sum.Err(), &failed) || failed.Unreachable {
		t.Errorf("%v", sum.Err())
	}
	if got := b.content("x:1"); got != "a" {
		t.Errorf("x is %q", got)
	}
	// The entry now has another source, which takes the name over.
	b.list("images:\n  - {image: 'HOST/b/x:1', as: x}\n")
	b.want("updated x:1")
	if got := b.content("x:1"); got != "b" {
		t.Errorf("x is %q", got)
	}
}

// TestLists checks that the lists of one store do not change each other's images.
func TestLists(t *testing.T) {
	b := newBench(t)
	b.push("a/x:1", "a")
	b.list("images:\n  - {image: 'HOST/a/x:1', as: x}\n")
	b.want("added x:1")
	first := b.file
	b.file = filepath.Join(filepath.Dir(first), "more.yaml")
	b.list("images:\n  - {image: 'HOST/a/x:1', as: x}\n  - {image: 'HOST/a/x:1', as: y}\n")
	sum := b.want("failed x:1", "added y:1")
	if !strings.Contains(sum.Rows[0].Error, "belongs to the watch list images") {
		t.Errorf("%+v", sum.Rows[0])
	}
	b.list("images: []\n")
	b.want("removed y:1")
	b.has("x:1")

	// Another file of the same name is refused, but a list that was moved is accepted.
	dir := t.TempDir()
	b.file = filepath.Join(dir, "images.yaml")
	b.list("images: []\n")
	l, err := Load(b.file)
	if err != nil {
		t.Fatal(err)
	}
	var ps Problems
	if _, err := New(b.store, l, b.o); !errors.As(err, &ps) || !strings.Contains(err.Error(), first) {
		t.Errorf("a second list images: %v", err)
	}
	if err := os.Rename(first, b.file); err != nil {
		t.Fatal(err)
	}
	b.want("unchanged x:1")

	// Two rounds of one list cannot run at once.
	if l, err = Load(b.file); err != nil {
		t.Fatal(err)
	}
	w, err := New(b.store, l, b.o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(b.store, l, b.o); exit.Of(err) != exit.Directory {
		t.Errorf("twice at once: %v", err)
	}
	w.Close()
	b.want("unchanged x:1")
}

// TestByHand checks that an image that was removed by hand is added again, and that an
// image that was added by hand under a listed name belongs to the list.
func TestByHand(t *testing.T) {
	b := newBench(t)
	b.push("a/x:1", "a")
	x := tree.Ref{Name: "x", Tag: "1"}
	if _, err := image.Add(t.Context(), b.store, t.TempDir(), &x, b.o.Add); err != nil {
		t.Fatal(err)
	}
	b.list("images:\n  - {image: 'HOST/a/x:1', as: x}\n")
	b.want("added x:1")
	if got := b.content("x:1"); got != "a" {
		t.Errorf("x is %q", got)
	}
	if _, err := image.Remove(t.Context(), b.store, x); err != nil {
		t.Fatal(err)
	}
	b.has()
	b.want("unchanged x:1")
	b.has("x:1")
	if _, err := image.Remove(t.Context(), b.store, x); err != nil {
		t.Fatal(err)
	}
	b.list("images: []\n")
	b.want()
	st, err := Read(b.store, "images")
	if err != nil || len(st.Images) != 0 || st.Finished.IsZero() {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestFailures checks that after any failure of a registry the images in the store remain,
// and the registry is not asked again at once.
func TestFailures(t *testing.T) {
	const list = "images:\n  - {image: HOST/a/x, tags: ['*'], as: x, gone: remove}\n  - {image: 'HOST/a/y:1', as: y, gone: remove}\n"
	answer := func(status int, header ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			return true
		}
	}
	only := func(part string, f func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			return strings.Contains(r.URL.Path, part) && f(w, r)
		}
	}
	for name, c := range map[string]struct {
		fault       func(http.ResponseWriter, *http.Request) bool
		says        string
		patient     time.Duration // minimum time without requests
		requests    int           // highest number of requests in the round with the fault, including greetings; 0 if any number is right
		unreachable bool
	}{
		"answers 500":       {fault: answer(500), says: "500", unreachable: true},
		"answers 401":       {fault: answer(401, "WWW-Authenticate", `Basic realm="x"`), says: "401", unreachable: true},
		"a proxy's 404":     {fault: answer(404), says: "404"},
		"404 for manifests": {fault: only("/manifests/", answer(404)), says: "404"},
		"429":               {fault: answer(429, "Retry-After", "7200"), says: "429", patient: 2 * time.Hour, requests: 1, unreachable: true},
		"429 with a date":   {fault: answer(429, "Retry-After", "Sun, 01 Nov 2026 13:00:00 GMT"), says: "429", patient: time.Hour, requests: 1, unreachable: true},
		"503":               {fault: answer(503), says: "503", requests: 1, unreachable: true},
		"closes": {fault: func(w http.ResponseWriter, _ *http.Request) bool {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				conn.Close()
			}
			return true
		}, says: "EOF", unreachable: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.push("a/x:1", "x")
			b.push("a/x:2", "x2")
			b.push("a/y:1", "y")
			b.list(list)
			b.want("added x:1", "added x:2", "added y:1")
			b.push("a/y:1", "moved")
			b.web.mu.Lock()
			b.asked = nil
			b.web.mu.Unlock()
			b.intercept(c.fault)
			sum, got := b.round()
			if strings.Contains(got, "removed") || strings.Contains(got, "gone") || sum.Count(Failed) == 0 {
				t.Errorf("the round did\n%s", got)
			}
			b.web.mu.Lock()
			asked := slices.Clone(b.asked)
			b.web.mu.Unlock()
			// The client detects plain HTTP by a greeting that the registry does not see.
			if c.requests > 0 && len(asked) > c.requests {
				t.Errorf("it was asked %d times: %v", len(asked), asked)
			}
			for _, r := range sum.Rows {
				if r.Action == Failed && (!strings.Contains(r.Error, c.says) || r.Hint == "" || r.Retry.Before(b.clock.Add(max(c.patient, firstRetry)))) {
					t.Errorf("%+v", r)
				}
			}
			var failed *FailedError
			if !errors.As(sum.Err(), &failed) || failed.Unreachable != c.unreachable {
				t.Errorf("%v, unreachable: %v", sum.Err(), failed != nil && failed.Unreachable)
			}
			b.has("x:1", "x:2", "y:1")

			// The registry is left alone for a time and then tried again, after times that
			// grow.
			b.questions()
			b.round()
			if asked := b.questions(); len(asked) > 0 && c.says != "404" {
				t.Errorf("asked at once: %v", asked)
			}
			before := sum.Retry
			b.clock = before.Add(time.Second)
			again, _ := b.round()
			tried := 0
			for _, r := range again.Rows {
				if r.Action != Failed {
					continue
				}
				tried++
				if c.patient == 0 && r.Retry.Sub(b.clock) < firstRetry*3/2 {
					t.Errorf("tried again: %+v", r)
				}
			}
			if tried == 0 {
				t.Errorf("nothing was tried again: %+v", again)
			}
			b.intercept(nil)
			b.o.Eager = true
			b.want("unchanged x:1", "unchanged x:2", "updated y:1")
			st, err := Read(b.store, "images")
			if err != nil || len(st.Entries) != 0 || slices.ContainsFunc(st.Images, func(i Image) bool { return i.Failures > 0 }) {
				t.Errorf("%+v, %v", st, err)
			}
		})
	}
}

// TestLie checks that content that does not match its digest is refused, and that the
// earlier image remains.
func TestLie(t *testing.T) {
	b := newBench(t)
	b.push("a/x:1", "x")
	b.list("images:\n  - {image: 'HOST/a/x:1', as: x}\n")
	b.want("added x:1")
	b.push("a/x:1", "other")
	for _, part := range []string{"/manifests/sha256:", "/blobs/sha256:"} {
		b.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, part) {
				return false
			}
			fmt.Fprint(w, `{"schemaVersion":2,"layers":[]}`)
			return true
		})
		b.o.Eager = true
		sum := b.want("failed x:1")
		if sum.Rows[0].Error == "" {
			t.Errorf("%s: %+v", part, sum.Rows[0])
		}
		b.has("x:1")
		if got := b.content("x:1"); got != "x" {
			t.Errorf("x is %q", got)
		}
	}
	b.intercept(nil)
	b.want("updated x:1")
}

// TestMoves checks that an image is not a mixture if its tag moves between the HEAD request
// and the fetch.
func TestMoves(t *testing.T) {
	b := newBench(t)
	b.push("a/x:1", "before")
	b.list("images:\n  - {image: 'HOST/a/x:1', as: x}\n")
	var moved atomic.Bool
	b.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/sha256:") && !moved.Swap(true) {
			b.push("a/x:1", "after")
		}
		return false
	})
	b.want("added x:1")
	if got := b.content("x:1"); got != "before" || !moved.Load() {
		t.Errorf("x is %q", got)
	}
	b.want("updated x:1")
	if got := b.content("x:1"); got != "after" {
		t.Errorf("x is %q", got)
	}
}

// TestNoHEAD checks that GET is used with a registry that does not support HEAD.
func TestNoHEAD(t *testing.T) {
	b := newBench(t)
	b.push("a/x:1", "x")
	b.list("images:\n  - {image: 'HOST/a/x:1', as: x}\n")
	b.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusMethodNotAllowed)
		}
		return r.Method == http.MethodHead
	})
	b.want("added x:1")
	b.want("unchanged x:1")
}

// TestCredentials checks that the credentials of docker login are used.
func TestCredentials(t *testing.T) {
	b := newBench(t)
	b.push("a/x:1", "x")
	b.list("images:\n  - {image: 'HOST/a/x:1', as: x}\n")
	b.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, ok := r.BasicAuth(); ok && user == "me" && password == "secret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	sum := b.want("failed x:1")
	if !strings.Contains(sum.Rows[0].Hint, "docker") {
		t.Errorf("%+v", sum.Rows[0])
	}
	dir := os.Getenv("DOCKER_CONFIG")
	auth := base64.StdEncoding.EncodeToString([]byte("me:secret"))
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths":{"`+b.host+`":{"auth":"`+auth+`"}}}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	b.want("waiting x:1")
	b.o.Eager = true
	b.want("added x:1")
}

// TestTimeout checks that a fetch is given up if the registry stops in the middle.
func TestTimeout(t *testing.T) {
	b := newBench(t)
	b.push("a/x:1", "x")
	b.list("timeout: 200ms\nimages:\n  - {image: 'HOST/a/x:1', as: x}\n")
	b.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		<-r.Context().Done()
		return true
	})
	sum := b.want("failed x:1")
	if !strings.Contains(sum.Rows[0].Error, "was not fetched within 200ms") {
		t.Errorf("%+v", sum.Rows[0])
	}
	b.has()
}

// TestState checks that a round with an unreadable state stops before it changes anything.
func TestState(t *testing.T) {
	b := newBench(t)
	b.push("a/x:1", "x")
	b.list("images:\n  - {image: 'HOST/a/x:1', as: x}\n")
	b.want("added x:1")
	dir, err := b.store.Own("watch")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "images.json")
	if err := os.WriteFile(file, []byte(`{"format":"other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Load(b.file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(b.store, l, b.o); exit.Of(err) != exit.Failed || !strings.Contains(err.Error(), file+" cannot be read") {
		t.Errorf("%v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	b.want("added x:1")
	b.has("x:1")
}

// childRound performs one round in a child process.
func childRound(dir string) error {
	s, err := store.Open(filepath.Join(dir, "store"), store.Options{Home: filepath.Join(dir, "home"), Unsynced: true})
	if err != nil {
		return err
	}
	key, err := s.Key("")
	if err != nil {
		return err
	}
	l, err := Load(filepath.Join(dir, "images.yaml"))
	if err != nil {
		return err
	}
	w, err := New(s, l, Options{Add: image.Options{Key: key}})
	if err != nil {
		return err
	}
	defer w.Close()
	sum, err := w.Round(context.Background())
	if err != nil {
		return err
	}
	return sum.Err()
}

// TestKilled kills a round at each of its requests. The store is then sound, and the next
// round completes the additions and removals.
func TestKilled(t *testing.T) {
	b := newBench(t)
	dir := filepath.Dir(b.file)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	whole, step := false, 3
	if os.Getenv("PREMIX_SOAK") != "" {
		step = 1
	}
	for n := 1; !whole; n += step {
		if n > 100 {
			t.Fatal("a round has more than 100 requests")
		}
		// One image moves, one is new, and one leaves the list.
		b.push("a/x:1", fmt.Sprint("x", n))
		b.push(fmt.Sprintf("a/y:%d", n), fmt.Sprint("y", n))
		b.list(fmt.Sprintf("together: 1\ngone: remove\nimages:\n  - {image: 'HOST/a/x:1', as: x}\n  - {image: 'HOST/a/y:%d', as: y}\n", n))
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), child+"="+dir)
		var out strings.Builder
		cmd.Stderr = &out
		var count atomic.Int32
		started := make(chan struct{})
		b.intercept(func(http.ResponseWriter, *http.Request) bool {
			<-started
			if int(count.Add(1)) == n {
				_ = cmd.Process.Kill()
				return true
			}
			return false
		})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		close(started)
		err := cmd.Wait()
		b.intercept(nil)
		if whole = int(count.Load()) < n; whole && err != nil {
			t.Fatalf("a round that nobody killed: %v\n%s", err, out.String())
		}
		if v, err := b.store.Verify(t.Context(), store.VerifyOptions{}); err != nil || len(v.Findings) > 0 {
			t.Fatalf("killed at request %d: %+v, %v", n, v, err)
		}
		b.o.Eager = true
		if sum, got := b.round(); sum.Err() != nil {
			t.Fatalf("after a kill at request %d: %s", n, got)
		}
		b.has("x:1", fmt.Sprintf("y:%d", n))
		if got := b.content("x:1"); got != fmt.Sprint("x", n) {
			t.Errorf("x is %q", got)
		}
	}
}

// TestSilentRegistry requests two images of an unreachable registry. The registry is
// contacted once, and the error of each image names that image.
func TestSilentRegistry(t *testing.T) {
	r, err := newRegistries(time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	host, err := name.NewRegistry("host")
	if err != nil {
		t.Fatal(err)
	}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	asked := 0
	for _, what := range []string{"host/a/x:1", "host/a/y:1"} {
		err := r.ask(t.Context(), host, what, func() error {
			asked++
			return refused
		})
		if want := what + ": dial tcp: connection refused"; err == nil || err.Error() != want {
			t.Errorf("%v; want %s", err, want)
		}
		if !errors.Is(err, refused) || !leaveAlone(err) {
			t.Errorf("%v hides its cause", err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}
