package origin_test

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/testkit/faulty"
)

// wantKinds maps each fault to the kind of error that it causes if the group has no other
// origin.
var wantKinds = map[faulty.Fault]origin.Kind{
	faulty.HangUp: origin.Unreachable, faulty.Late: origin.TimedOut, faulty.Stall: origin.Stalled,
	faulty.Trickle: origin.Stalled, faulty.Truncate: origin.Truncated, faulty.Flip: origin.Corrupt,
	faulty.Short: origin.Corrupt, faulty.Long: origin.Corrupt, faulty.Huge: origin.TooLarge,
	faulty.Other: origin.Corrupt, faulty.Fail: origin.Broken, faulty.Overload: origin.Broken,
	faulty.Refuse: origin.Refused, faulty.Forbidden: origin.Refused, faulty.Loop: origin.Redirected,
	faulty.Portal: origin.Unexpected, faulty.Compress: origin.Unexpected, faulty.Strange: origin.Unexpected,
}

func TestFaultsOfOneOrigin(t *testing.T) {
	for _, fault := range faulty.All() {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			s := newSample(t, 2, 20000)
			h, server := s.serve(t)
			d := s.digests[0]
			o := quick()
			o.Proxies = nil
			good := origin.NewGroup([]origin.Origin{open(t, server.URL, o)}, o)
			if _, err := good.Verified(context.Background(), s.digests[1], -1); err != nil {
				t.Fatal(err)
			}
			o = facing(fault)
			g := origin.NewGroup([]origin.Origin{open(t, server.URL, o)}, o)
			h.Set(fault, "objects/")
			content, err := g.Verified(context.Background(), d, int64(len(s.contents[d])))
			if kind := origin.KindOf(err); kind != wantKinds[fault] || content != nil {
				t.Errorf("%d bytes, %v (%s), want %s", len(content), err, kind, wantKinds[fault])
			}
			if stats := g.Stats()[0]; stats.Errors == 0 || stats.LastError == "" {
				t.Errorf("the fault was not counted: %+v", stats)
			}

			// Once the fault has ended, the group asks the origin again by itself.
			h.Set(fault, "objects/")
			go func() {
				time.Sleep(30 * time.Millisecond)
				h.Set(faulty.None, "")
			}()
			patient := quick()
			patient.Patience = time.Minute
			g = origin.NewGroup([]origin.Origin{open(t, server.URL, o)}, patient)
			content, err = g.Verified(context.Background(), d, -1)
			if e, ok := errors.AsType[*origin.Error](err); ok && !e.Temporary() {
				for h.Fault() != faulty.None {
					time.Sleep(time.Millisecond)
				}
				content, err = g.Verified(context.Background(), d, -1)
			}
			if err != nil || !bytes.Equal(content, s.contents[d]) {
				t.Errorf("after the fault: %d bytes, %v", len(content), err)
			}
		})
	}
}

func TestFaultsAreRoutedAround(t *testing.T) {
	for _, fault := range append(faulty.All(), faulty.NotThere) {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			s := newSample(t, 8, 20000)
			bad, first := s.serve(t)
			_, second := s.serve(t)
			g := origin.NewGroup([]origin.Origin{open(t, first.URL, facing(fault)), open(t, second.URL, quick())}, quick())
			bad.Set(fault, "")
			for _, d := range s.digests {
				content, err := g.Verified(context.Background(), d, int64(len(s.contents[d])))
				if err != nil || !bytes.Equal(content, s.contents[d]) {
					t.Errorf("%d bytes, %v", len(content), err)
				}
			}
			if fault == faulty.NotThere {
				if _, err := g.File(context.Background(), tagName); err != nil {
					t.Errorf("a file that the first origin lacks: %v", err)
				}
			}
			if stats := g.Stats(); stats[1].Requests == 0 || stats[1].Errors != 0 {
				t.Errorf("the second origin: %+v", stats[1])
			}
		})
	}
}

func TestNoneHasIt(t *testing.T) {
	s := newSample(t, 1, 10)
	down := httptest.NewServer(nil)
	down.Close()
	empty := open(t, t.TempDir(), quick())
	none := object.Sum([]byte("none"))
	g := origin.NewGroup([]origin.Origin{empty, open(t, s.dir, quick())}, quick())
	if _, err := g.Verified(context.Background(), none, -1); !errors.Is(err, origin.ErrNotFound) {
		t.Errorf("nobody has it: %v", err)
	}
	g = origin.NewGroup([]origin.Origin{empty, open(t, down.URL, quick())}, quick())
	_, err := g.Verified(context.Background(), none, -1)
	if errors.Is(err, origin.ErrNotFound) || origin.KindOf(err) != origin.Unreachable {
		t.Errorf("one has it not and the other is silent: %v", err)
	}
	if _, err := origin.NewGroup(nil, quick()).Verified(context.Background(), none, -1); !errors.Is(err, origin.ErrNoOrigin) {
		t.Errorf("a group of none: %v", err)
	}
}

func TestWrongSize(t *testing.T) {
	s := newSample(t, 1, 10)
	g := origin.NewGroup([]origin.Origin{open(t, s.dir, quick())}, quick())
	if _, err := g.Verified(context.Background(), s.digests[0], 11); !object.IsCorrupt(err) {
		t.Errorf("error %v", err)
	}
}

// counting is an origin that counts its calls and can hold them. Tests run it in a bubble
// (testing/synctest), where time stands still until all goroutines wait, so that the counts
// are complete.
type counting struct {
	origin.Origin
	calls atomic.Int64
	takes time.Duration
	gate  chan struct{} // nil if calls are not held
	fail  atomic.Bool
}

func (c *counting) Object(ctx context.Context, d object.Digest) ([]byte, error) {
	c.calls.Add(1)
	time.Sleep(c.takes)
	if c.gate != nil {
		select {
		case <-c.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if c.fail.Load() {
		return nil, &origin.Error{Origin: c.String(), Name: d.Path(), Kind: origin.Unreachable}
	}
	return c.Origin.Object(ctx, d)
}

func (c *counting) File(ctx context.Context, name string) ([]byte, error) {
	if c.fail.Load() {
		return nil, &origin.Error{Origin: c.String(), Name: name, Kind: origin.Unreachable}
	}
	return c.Origin.File(ctx, name)
}

func TestOneFetch(t *testing.T) { synctest.Test(t, oneFetch) }

func oneFetch(t *testing.T) {
	s := newSample(t, 1, 5000)
	c := &counting{Origin: open(t, s.dir, quick()), gate: make(chan struct{})}
	var hooked atomic.Int64
	o := quick()
	o.OnFetch = func(name string, d object.Digest, n int, _ time.Duration, err error) {
		if name == s.dir && d == s.digests[0] && n > 5000 && err == nil {
			hooked.Add(1)
		}
	}
	g := origin.NewGroup([]origin.Origin{c}, o)
	ctx, cancel := context.WithCancel(context.Background())
	var impatient, patient sync.WaitGroup
	for range 20 {
		impatient.Go(func() {
			if _, err := g.Verified(ctx, s.digests[0], -1); !errors.Is(err, context.Canceled) {
				t.Errorf("a caller that gave up got %v", err)
			}
		})
		patient.Go(func() {
			if b, err := g.Verified(context.Background(), s.digests[0], -1); err != nil || !bytes.Equal(b, s.contents[s.digests[0]]) {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		})
	}
	synctest.Wait()
	cancel()
	impatient.Wait()
	close(c.gate)
	patient.Wait()
	if n := c.calls.Load(); n != 1 || hooked.Load() != n {
		t.Errorf("%d fetches for 40 callers, %d told to the hook", n, hooked.Load())
	}
}

func TestNobodyWaitsAnyMore(t *testing.T) { synctest.Test(t, nobodyWaitsAnyMore) }

func nobodyWaitsAnyMore(t *testing.T) {
	s := newSample(t, 1, 10)
	c := &counting{Origin: open(t, s.dir, quick()), gate: make(chan struct{})}
	g := origin.NewGroup([]origin.Origin{c}, quick())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = g.Verified(ctx, s.digests[0], -1) // TestOneFetch checks the result
	}()
	synctest.Wait()
	cancel()
	<-done
	close(c.gate)
	if b, err := g.Verified(context.Background(), s.digests[0], -1); err != nil || len(b) != 10 {
		t.Errorf("the next caller: %d bytes, %v", len(b), err)
	}
	if s := g.Stats()[0]; s.Errors != 0 || s.State != origin.Healthy {
		t.Errorf("giving up was held against the origin: %+v", s)
	}
}

func TestNoHerd(t *testing.T) { synctest.Test(t, noHerd) }

func noHerd(t *testing.T) {
	s := newSample(t, 200, 10)
	c := &counting{Origin: open(t, s.dir, quick())}
	c.fail.Store(true)
	o := quick()
	o.Rest, o.RestMost, o.Patience, o.Fetches = 100*time.Millisecond, 100*time.Millisecond, 20*time.Second, 4
	var recovered atomic.Int64
	o.OnRecover = func(string) { recovered.Add(1) }
	g := origin.NewGroup([]origin.Origin{c}, o)
	var all sync.WaitGroup
	for _, d := range s.digests {
		all.Go(func() {
			if b, err := g.Verified(context.Background(), d, -1); err != nil || !bytes.Equal(b, s.contents[d]) {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		})
	}
	time.Sleep(250 * time.Millisecond)
	tries := c.calls.Load()
	c.fail.Store(false)
	all.Wait()
	// There are up to Fetches requests at first, and then one probe after each rest of 50
	// to 100 ms.
	if tries > 4+6 {
		t.Errorf("200 waiting readers asked an origin that was down %d times", tries)
	}
	if tries < 2 || recovered.Load() != 1 {
		t.Errorf("%d tries, %d recoveries", tries, recovered.Load())
	}
}

func TestProbeOnTheSide(t *testing.T) { synctest.Test(t, probeOnTheSide) }

func probeOnTheSide(t *testing.T) {
	s := newSample(t, 1, 10)
	first, second := &counting{Origin: open(t, s.dir, quick())}, open(t, s.dir, quick())
	first.fail.Store(true)
	g := origin.NewGroup([]origin.Origin{first, second}, quick())
	get := func() {
		t.Helper()
		if _, err := g.Verified(context.Background(), s.digests[0], -1); err != nil {
			t.Fatal(err)
		}
	}
	get()
	if state := g.Stats()[0].State; state == origin.Healthy {
		t.Errorf("the first origin is %s after a failure", state)
	}
	first.fail.Store(false)
	calls := first.calls.Load()
	for g.Stats()[0].State != origin.Healthy {
		if first.calls.Load() != calls {
			t.Fatal("a reader had to probe although another origin is healthy")
		}
		get()
		time.Sleep(time.Millisecond)
	}
	get()
	if first.calls.Load() == calls {
		t.Error("an origin that is back is not used")
	}
}

func TestHedge(t *testing.T) { synctest.Test(t, hedge) }

func hedge(t *testing.T) {
	s := newSample(t, 20, 10)
	slow, fast := &counting{Origin: open(t, s.dir, quick()), takes: time.Millisecond}, &counting{Origin: open(t, s.dir, quick())}
	o := quick()
	o.Hedge = true
	g := origin.NewGroup([]origin.Origin{slow, fast}, o)
	for _, d := range s.digests[:19] {
		if _, err := g.Verified(context.Background(), d, -1); err != nil {
			t.Fatal(err)
		}
	}
	if n := fast.calls.Load(); n != 0 {
		t.Errorf("the second origin was asked %d times while the first was quick", n)
	}
	slow.gate = make(chan struct{})
	if _, err := g.Verified(context.Background(), s.digests[19], -1); err != nil {
		t.Error(err)
	}
	if n := fast.calls.Load(); n != 1 {
		t.Errorf("the second origin was asked %d times while the first was slow", n)
	}
}
