package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"premix/internal/watch"
)

// store is a store that keeps everything in memory, as a database does that is written at
// Sync: a kill loses what came after it.
type store struct {
	mu      sync.Mutex
	samples map[string]float64 // by series and time
	tasks   map[string]watch.Task
	events  []watch.Event
	late    int   // the next samples are refused so many times
	fail    error // of Sync
	syncs   int
}

func newStore() *store {
	return &store{samples: make(map[string]float64), tasks: make(map[string]watch.Task)}
}

func (s *store) Accept(list []watch.Sample) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late > 0 {
		s.late--
		return len(list)
	}
	for _, one := range list {
		s.samples[fmt.Sprintf("%s %d", one.ID, one.Time.UnixMilli())] = one.Value
	}
	return 0
}

func (s *store) Task(t watch.Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[t.Key] = t
}

func (s *store) Event(e watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func (s *store) Events(_ context.Context, start, end time.Time) ([]watch.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []watch.Event
	for _, e := range s.events {
		if ms := e.Time.UnixMilli(); ms >= start.UnixMilli() && ms < end.UnixMilli() {
			list = append(list, e)
		}
	}
	return list, nil
}

func (s *store) Sync(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.syncs++
	return s.fail
}

var begin = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func sample(n int, labels ...string) watch.Sample {
	return watch.Sample{ID: watch.NewID("disk.read_bytes", append(labels, "device", "sda")...), Unit: watch.BytesPerSecond, Time: begin.Add(time.Duration(n) * time.Second), Value: float64(n)}
}

func event(n int) watch.Event {
	return watch.Event{Time: begin.Add(time.Duration(n) * time.Second), Node: "n1", Layer: watch.LayerMount, Kind: "mount_added", Text: fmt.Sprint("mount ", n)}
}

// handler serves a receiver.
func handler(t *testing.T, r *Receiver) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the sender has gone
		}
		applied, err := r.Receive(req.Context(), req.Header, "", body)
		var refused *RequestError
		if errors.As(err, &refused) {
			w.WriteHeader(refused.Status)
		} else if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if err != nil {
			_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]uint64{"applied": applied})
	})
}

func receiver(t *testing.T, s *store, dir string) *Receiver {
	t.Helper()
	r, err := NewReceiver(s, "monitor", dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func spool(t *testing.T, dir string) *Spool {
	t.Helper()
	s, err := OpenSpool(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func sender(t *testing.T, s *Spool, url string) *Sender {
	t.Helper()
	r, err := NewSender(s, SendOptions{URL: url, Node: "n1", Every: time.Millisecond, Retry: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// drain runs a sender until nothing waits.
func drain(t *testing.T, r *Sender) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	for end := time.Now().Add(20 * time.Second); r.State().Waiting > 0 || r.State().Last.IsZero(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("frames wait: %+v", r.State())
		}
	}
	stop()
	<-done
}

func TestFrames(t *testing.T) {
	samples := []watch.Sample{sample(1, "node", "n1", "x", "é\n"), {ID: watch.NewID("a.b"), Time: begin.Add(-time.Hour), Value: -1e300}, sample(5)}
	d := decoder{node: "n7"}
	payload, rest, ok := cutFrame(appendFrame(nil, kindSamples, appendSamples(nil, samples)))
	if !ok || len(rest) > 0 {
		t.Fatal("the frame is not whole")
	}
	f, err := d.decode(payload, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`disk.read_bytes{device="sda",node="n7",x="é\n"} B/s 1795176001000 1`, `a.b{node="n7"}  1795172400000 -1e+300`, `disk.read_bytes{device="sda",node="n7"} B/s 1795176005000 5`}
	var got []string
	for _, s := range f.samples {
		got = append(got, fmt.Sprintf("%s %s %d %v", s.ID, s.Unit, s.Time.UnixMilli(), s.Value))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestSend(t *testing.T) {
	to := newStore()
	dir := t.TempDir()
	server := httptest.NewServer(handler(t, receiver(t, to, filepath.Join(dir, "receive"))))
	defer server.Close()
	s := spool(t, filepath.Join(dir, "send"))
	r := sender(t, s, server.URL)
	s.Samples([]watch.Sample{sample(1, "node", "other"), sample(2)})
	s.Task(watch.Task{Key: "/r#1.1", Name: "a", Node: "n1"})
	s.Task(watch.Task{Key: "/r#2.1", Name: "b", Node: "monitor"}) // of a shared directory
	s.Event(event(3))
	drain(t, r)
	if want := map[string]float64{`disk.read_bytes{device="sda",node="n1"} 1795176001000`: 1, `disk.read_bytes{device="sda",node="n1"} 1795176002000`: 2}; !reflect.DeepEqual(to.samples, want) {
		t.Errorf("the samples are %v", to.samples)
	}
	if len(to.tasks) != 2 || to.tasks["n1:/r#1.1"].Name != "a" || to.tasks["/r#2.1"].Name != "b" {
		t.Errorf("the tasks are %v", to.tasks)
	}
	if len(to.events) != 1 || to.events[0] != event(3) {
		t.Errorf("the events are %v", to.events)
	}
	drain(t, r)
	if len(to.events) != 1 {
		t.Error("an event is there twice")
	}
	// More samples than a frame has.
	var many []watch.Sample
	for i := range 2*maxInFrame + 1 {
		many = append(many, sample(i))
	}
	s.Samples(many)
	drain(t, r)
	if len(to.samples) != len(many) {
		t.Errorf("%d samples of %d", len(to.samples), len(many))
	}
}

// Whatever fails, everything arrives once: the receiver does not answer, is killed before
// or after it has recorded what it stored, refuses data for a while, cannot write; the
// sender is killed.
func TestNothingLostNothingTwice(t *testing.T) {
	dir := t.TempDir()
	to := newStore()
	var mu sync.Mutex
	requests := 0
	var current *Receiver
	recv := filepath.Join(dir, "receive")
	current = receiver(t, to, recv)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		trouble := rand.IntN(8)
		// The sender waits longer after each failure, and needs two answers to send something.
		if requests++; requests%12 > 8 {
			trouble = 7
		}
		switch trouble {
		case 0:
			w.WriteHeader(http.StatusBadGateway)
			return
		case 1: // it stores the data, and the answer is lost
			handler(t, current).ServeHTTP(httptest.NewRecorder(), req)
			panic(http.ErrAbortHandler)
		case 2: // it is killed after it has stored the data, and before the record
			before, err := os.ReadFile(filepath.Join(recv, "applied"))
			if err != nil {
				t.Error(err)
			}
			handler(t, current).ServeHTTP(httptest.NewRecorder(), req)
			if err := errors.Join(current.Close(), os.WriteFile(filepath.Join(recv, "applied"), append(before, "9999 n1/0123"...), 0o600)); err != nil {
				t.Error(err)
			}
			if current, err = NewReceiver(to, "monitor", recv); err != nil {
				t.Error(err)
			}
			panic(http.ErrAbortHandler)
		case 3:
			to.mu.Lock()
			to.late = 1
			to.mu.Unlock()
		case 4:
			to.mu.Lock()
			to.fail = errors.New("no space left on device")
			to.mu.Unlock()
			handler(t, current).ServeHTTP(w, req)
			to.mu.Lock()
			to.fail = nil
			to.mu.Unlock()
			return
		}
		handler(t, current).ServeHTTP(w, req)
	}))
	defer server.Close()
	n := 0
	for range 60 {
		s, err := OpenSpool(filepath.Join(dir, "send"), 0)
		if err != nil {
			t.Fatal(err)
		}
		r := sender(t, s, server.URL)
		ctx, kill := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		for range rand.IntN(20) {
			n++
			s.Samples([]watch.Sample{sample(n)})
			s.Event(event(n))
			time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		}
		kill() // the last requests of Run may or may not arrive
		<-done
		// A kill in the middle of a frame.
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if len(s.files) == 0 {
			continue // nothing was written yet
		}
		last := s.files[len(s.files)-1]
		f, err := os.OpenFile(s.path(last.first), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(appendFrame(nil, kindEvent, []byte("{}"))[:rand.IntN(12)]); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	s := spool(t, filepath.Join(dir, "send"))
	drain(t, sender(t, s, server.URL))
	if len(to.samples) != n {
		t.Errorf("%d samples of %d", len(to.samples), n)
	}
	count := make(map[string]int)
	for _, e := range to.events {
		if count[e.Text]++; count[e.Text] > 1 {
			t.Errorf("%s is there %d times", e.Text, count[e.Text])
		}
	}
	if len(count) != n {
		t.Errorf("%d events of %d", len(count), n)
	}
}

// A full spool drops its oldest frames; both ends know how many.
func TestFullSpool(t *testing.T) {
	to := newStore()
	dir := t.TempDir()
	recv := receiver(t, to, filepath.Join(dir, "receive"))
	server := httptest.NewServer(handler(t, recv))
	defer server.Close()
	s := spool(t, filepath.Join(dir, "send"))
	var notes []string
	r, err := NewSender(s, SendOptions{URL: server.URL, Node: "n1", Every: time.Millisecond, Note: func(e watch.Event) { notes = append(notes, e.Kind) }})
	if err != nil {
		t.Fatal(err)
	}
	s.Event(event(0))
	drain(t, r)
	text := make([]byte, 600<<10)
	for i := range text {
		text[i] = "0123456789abcdef"[rand.IntN(16)]
	}
	const n = 80
	for i := range n {
		text[0] = byte('A' + i%26)
		s.Event(watch.Event{Time: begin.Add(time.Duration(i) * time.Second), Kind: "large", Text: fmt.Sprint(i, string(text))})
	}
	drain(t, r)
	lost := int(r.State().Lost)
	if lost == 0 || len(to.events) != 1+n-lost+1 || slices.Index(notes, "send_lost") < 0 { // one event records the gap
		t.Errorf("%d frames are lost, %d events arrived, notes %v", lost, len(to.events), notes)
	}
	if o := recv.Origins(); len(o) != 1 || o[0].Node != "n1" || o[0].Missing != uint64(lost) {
		t.Errorf("the receiver knows %+v", o)
	}
}

// A spool that was replaced by an older copy does not lose new frames, whose numbers the
// receiver knows already.
func TestOlderCopy(t *testing.T) {
	to := newStore()
	dir := t.TempDir()
	server := httptest.NewServer(handler(t, receiver(t, to, filepath.Join(dir, "receive"))))
	defer server.Close()
	from, backup := filepath.Join(dir, "send"), filepath.Join(dir, "backup")
	s := spool(t, from)
	s.Event(event(1))
	if err := os.CopyFS(backup, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	s.Event(event(2))
	s.Event(event(3))
	drain(t, sender(t, s, server.URL))
	old := spool(t, backup)
	for n := 4; n <= 8; n++ { // by now it has more frames than the receiver knows
		old.Event(event(n))
	}
	drain(t, sender(t, old, server.URL))
	drain(t, sender(t, old, server.URL))
	var got []string
	for _, e := range to.events {
		got = append(got, e.Text)
	}
	if want := []string{"mount 1", "mount 2", "mount 3", "mount 4", "mount 5", "mount 6", "mount 7", "mount 8"}; !slices.Equal(got, want) {
		t.Errorf("the events are %v", got)
	}
}

func TestRefuses(t *testing.T) {
	to := newStore()
	recv := receiver(t, to, t.TempDir())
	good := appendFrame(nil, kindEvent, []byte(`{"text":"x"}`))
	head := func(node, sender, first string) http.Header {
		h := http.Header{}
		h.Set(headerNode, node)
		h.Set(headerSender, sender)
		h.Set(headerFirst, first)
		return h
	}
	const id = "0123456789abcdef"
	for _, c := range []struct {
		name   string
		header http.Header
		user   string
		body   []byte
		status int
	}{
		{"no headers", http.Header{}, "", good, 400},
		{"a path as a name", head("../n1", id, "1"), "", good, 400},
		{"a line as a name", head("n1\n5 n2/"+id, id, "1"), "", good, 400},
		{"no identity", head("n1", "x", "1"), "", good, 400},
		{"another machine's token", head("n1", id, "1"), "n2", good, 403},
		{"the receiver's name", head("monitor", id, "1"), "", good, 403},
		{"half a frame", head("n1", id, "1"), "", good[:len(good)-1], 400},
		{"another kind", head("n1", id, "1"), "", appendFrame(nil, 9, nil), 400},
		{"not JSON", head("n1", id, "1"), "", appendFrame(nil, kindTask, []byte("x")), 400},
		{"not samples", head("n1", id, "1"), "", appendFrame(nil, kindSamples, []byte{0, 200, 1}), 400},
		{"a large body", head("n1", id, "1"), "", appendFrame(nil, kindEvent, bytes.Repeat([]byte(" "), maxBody+1)), 400},
	} {
		_, err := recv.Receive(t.Context(), c.header, c.user, c.body)
		var refused *RequestError
		if !errors.As(err, &refused) || refused.Status != c.status {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if len(to.events)+len(to.tasks)+len(to.samples) > 0 {
		t.Errorf("stored are %v %v %v", to.events, to.tasks, to.samples)
	}
	if n, err := recv.Receive(t.Context(), head("n1", id, "1"), "n1", good); err != nil || n != 1 || to.events[0].Node != "n1" {
		t.Errorf("%d, %v, %v", n, err, to.events)
	}
	for _, u := range []string{"", "monitor:8090", "ftp://monitor", "http://", "http://monitor?token=x"} {
		if _, err := NewSender(nil, SendOptions{URL: u}); err == nil {
			t.Errorf("%q is an address", u)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(appendFrame(nil, kindSamples, appendSamples(nil, []watch.Sample{sample(1), sample(2, "x", "y")})))
	f.Add(appendFrame(nil, kindEvent, []byte(`{"text":"x"}`)))
	f.Add(appendFrame(nil, kindTask, []byte(`{"key":"x"}`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decoder{node: "n1"}
		// The sum would refuse nearly all inputs.
		if len(b) > frameHead {
			if out, err := d.decode(b[frameHead:], nil); err == nil {
				for _, s := range out.samples {
					if s.ID.Label("node") != "n1" || strings.ContainsRune(s.ID.Name, 0xFFFD+1<<16) {
						t.Errorf("%s is stored", s.ID)
					}
				}
			}
		}
		payload, rest, ok := cutFrame(b)
		if ok && len(payload)+len(rest)+frameHead != len(b) {
			t.Error("bytes are missing")
		}
	})
}
