package cache

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// whole returns parts that contain all of their chunks.
func whole(chunks ...int) []tree.Part {
	var parts []tree.Part
	for _, i := range chunks {
		parts = append(parts, tree.Part{Chunk: i})
	}
	return parts
}

// profile makes a profile. Each row of parts is a bundle, and the parts of rest are in no
// bundle.
func (w *world) profile(s sample, rest []tree.Part, rows ...[]tree.Part) *tree.Profile {
	p := &tree.Profile{Tree: s.digest}
	for _, row := range rows {
		var content []byte
		for _, part := range row {
			c := s.chunks[part.Chunk]
			content = object.AppendSlice(content, w.contents[c.Digest], part.Slice(c.Size))
		}
		p.Parts = append(p.Parts, row...)
		p.Bundles = append(p.Bundles, tree.Bundle{Digest: w.add(content), Size: int64(len(content)), Parts: len(row)})
	}
	p.Parts = append(p.Parts, rest...)
	return p
}

func presentChunk(tr *Tree, i int) bool {
	pg, j := tr.loadedPageOf(i)
	return pg != nil && pg.present(j)
}

func TestPrefetchByBundles(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 80, chunks: 60, mean: 9000, page: 16})
	p := w.profile(s, whole(30, 31), whole(50, 3, 17), whole(18, 19, 44), whole(5, 6, 7))
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	// Most of the last bundle is in the cache already: only the rest of it is fetched.
	mustRead(t, tr, s, s.offs[5], s.offs[7]-s.offs[5])
	settle(t, c)
	before := w.requests.Load()
	if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil {
		t.Fatal(err)
	}
	// Two bundles and the chunks 7, 30 and 31 are fetched, and up to three index pages.
	if n := w.requests.Load() - before; n > 2+3+3 {
		t.Errorf("%d requests", n)
	}
	for _, i := range p.Chunks() {
		if !presentChunk(tr, i) {
			t.Errorf("chunk %d is not here", i)
		}
	}
	if n := w.fetched(p.Bundles[2].Digest); n != 0 {
		t.Errorf("a bundle of which one chunk lacked was fetched %d times", n)
	}
	before = w.requests.Load()
	for _, i := range p.Chunks() {
		mustRead(t, tr, s, s.offs[i], s.chunks[i].Size)
	}
	if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil {
		t.Fatal(err)
	}
	if n := w.requests.Load() - before; n != 0 {
		t.Errorf("%d requests for what was prefetched", n)
	}
}

// A bundle that is missing, or has a wrong part, costs only time.
func TestBadBundles(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 81, chunks: 60, mean: 9000, page: 4096})
	p := w.profile(s, nil, whole(10, 11, 12), whole(20, 21))
	wrong := bytes.Clone(w.contents[p.Bundles[0].Digest])
	wrong[s.chunks[10].Size] ^= 1 // a byte of chunk 11
	p.Bundles[0].Digest = w.add(wrong)
	delete(w.contents, p.Bundles[1].Digest)
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil {
		t.Fatal(err)
	}
	readAll(t, tr, s)
	if n := tr.Stats().FailedFetches; n != 2 {
		t.Errorf("%d failures were counted", n)
	}
	for name, bad := range map[string]*tree.Profile{
		"of another tree":   {Tree: object.Sum(nil), Parts: whole(1)},
		"beyond the tree":   {Tree: s.digest, Parts: whole(60)},
		"beyond a chunk":    {Tree: s.digest, Parts: []tree.Part{{Chunk: 1, Runs: []object.Run{{From: 0, To: 4000}}}}},
		"a bundle too long": {Tree: s.digest, Parts: whole(1), Bundles: []tree.Bundle{{Digest: object.Sum(nil), Size: tree.MaxBundle + 1, Parts: 1}}},
		"another length":    {Tree: s.digest, Parts: whole(1), Bundles: []tree.Bundle{{Digest: object.Sum(nil), Size: s.chunks[1].Size + 1, Parts: 1}}},
		"parts that lack":   {Tree: s.digest, Bundles: []tree.Bundle{{Digest: object.Sum(nil), Size: 1, Parts: 1}}},
	} {
		if err := tr.Prefetch(t.Context(), bad, 0, nil); !tree.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.down.Store(true)
	if err := c.Drop(s.digest); err != nil {
		t.Fatal(err)
	}
	var re *ReadError
	if err := tr.Prefetch(t.Context(), p, 0, nil); !errors.As(err, &re) {
		t.Errorf("the origin is down: %v", err)
	}
}

// A reader of a chunk in a bundle that still waits for its turn causes an immediate fetch
// of the whole bundle. Bundles that are given up are not fetched unless they are read.
func TestReadersMoveABundleForward(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 83, chunks: 30, mean: 9000, page: 4096})
	p := w.profile(s, nil, whole(4, 5, 6), whole(7, 8, 9), whole(20, 21))
	c := openCache(t, t.TempDir(), Options{Fetches: 2})
	tr := openTree(t, c, s.digest, w)
	mustRead(t, tr, s, 0, 1)
	settle(t, c)
	started, open := make(chan struct{}), make(chan struct{})
	w.gate = func(d object.Digest) {
		if d == p.Bundles[0].Digest {
			close(started)
			<-open
		}
	}
	// At this rate the second bundle would never arrive.
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() {
		cr := tr.newBatch(ctx, prefetch)
		l := rate.NewLimiter(1e-6, int(p.Bundles[0].Size))
		errs <- cr.wait(tr.prefetchAll(cr, p, l, func() {}, func(int, int64) {}))
	}()
	<-started
	for _, i := range []int{9, 7, 8} {
		mustRead(t, tr, s, s.offs[i], s.chunks[i].Size)
	}
	cancel()
	close(open)
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("a prefetch that was given up: %v", err)
	}
	settle(t, c)
	for n, want := range []int{1, 1, 0} {
		if got := w.fetched(p.Bundles[n].Digest); got != want {
			t.Errorf("bundle %d was fetched %d times, not %d", n, got, want)
		}
	}
	for _, i := range p.Chunks()[3:] {
		if n := w.fetched(s.chunks[i].Digest); n != 0 {
			t.Errorf("chunk %d was fetched singly", i)
		}
	}
	w.gate = nil
	readAll(t, tr, s)
}

// In an empty cache, bundles do not wait for the index pages, and each is fetched once.
func TestBundlesBeforePages(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 84, chunks: 60, mean: 9000, page: 20})
	p := w.profile(s, nil, whole(21, 22), whole(45, 46))
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	waitFor(t, "the first index page", func() bool { return tr.pages[0].Load() != nil })
	page := tr.Manifest().Pages[2].Digest
	asked := make(chan struct{}, len(p.Bundles))
	w.gate = func(d object.Digest) {
		switch d {
		case page:
			for range p.Bundles {
				<-asked
			}
		case p.Bundles[0].Digest, p.Bundles[1].Digest:
			asked <- struct{}{}
		}
	}
	if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil {
		t.Fatal(err)
	}
	for _, b := range p.Bundles {
		if n := w.fetched(b.Digest); n != 1 {
			t.Errorf("a bundle was fetched %d times", n)
		}
	}
	for _, i := range p.Chunks() {
		if n := w.fetched(s.chunks[i].Digest); n != 0 || !presentChunk(tr, i) {
			t.Errorf("chunk %d: fetched singly %d times, here: %t", i, n, presentChunk(tr, i))
		}
	}
	mustRead(t, tr, s, 0, int64(len(s.image)))
}

// drip is a fetcher whose objects arrive in the steps that the test chooses.
type drip struct {
	*world
	parts func(d object.Digest, content []byte, got func(soFar []byte)) ([]byte, error)
}

func (d *drip) Stream(ctx context.Context, name object.Digest, size int64, got func(soFar []byte)) ([]byte, error) {
	content, err := d.Verified(ctx, name, size)
	if err != nil {
		return nil, err
	}
	return d.parts(name, content, got)
}

// The part of a bundle that has arrived is readable, and is reported, while the rest is on
// its way. A reader of a later part waits for it.
func TestBundlesAreReadWhileTheyArrive(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 83, chunks: 60, mean: 60_000, page: 4096})
	var parts []tree.Part
	for i, c := range s.chunks {
		switch {
		case i%5 == 4:
			parts = append(parts, tree.Part{Chunk: i})
		case c.Size > 5*block:
			parts = append(parts, partly(s, i, 1, 3))
		}
	}
	p := w.profile(s, nil, parts)
	step := make(chan int64)
	f := &drip{w, func(_ object.Digest, content []byte, got func([]byte)) ([]byte, error) {
		for n := range step {
			got(content[:n])
		}
		return content, nil
	}}
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, f)
	defer tr.Guide()() // the bundles are read in order
	var here atomic.Int64
	errs := make(chan error)
	go func() {
		errs <- tr.Prefetch(t.Context(), p, 0, func(_ int, n int64) {
			if n < here.Swap(n) {
				t.Error("less is here than before")
			}
		})
	}()
	read := func(part tree.Part) {
		off, n := s.offs[part.Chunk], s.chunks[part.Chunk].Size
		if !part.Whole() {
			off, n = s.block(part.Chunk, 2)
		}
		mustRead(t, tr, s, off, n)
	}
	at := int64(0)
	late := make(chan struct{})
	for i, part := range parts {
		if i == len(parts)/2 {
			if here.Load() == 0 {
				t.Error("nothing was told of")
			}
			go func() {
				defer close(late)
				read(parts[len(parts)-1])
			}()
			waitFor(t, "the reader", func() bool { return tr.stats.waits.Load() > 0 || len(parts[len(parts)-1].Runs) == 0 })
		}
		at += part.Size(s.chunks[part.Chunk].Size)
		step <- at - 1 // all but one byte
		step <- at
		read(part)
	}
	close(step)
	<-late
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	if here.Load() != p.Bundles[0].Size {
		t.Errorf("%d bytes are here of %d", here.Load(), p.Bundles[0].Size)
	}
	settle(t, c)
	for _, part := range parts {
		if n := w.fetched(s.chunks[part.Chunk].Digest); n != 0 {
			t.Errorf("chunk %d was fetched singly %d times", part.Chunk, n)
		}
	}
	readAll(t, tr, s)
}

// A stream has wrong content, starts again or ends in the middle. The right parts of it are
// kept. The wrong parts are never read, and come from another fetch.
func TestBundlesThatArriveWrong(t *testing.T) {
	cut := errors.New("it was cut")
	wrong := func(content []byte, from int) []byte {
		b := bytes.Clone(content)
		for i := from; i < len(b); i++ {
			b[i] ^= 0x55
		}
		return b
	}
	for name, arrive := range map[string]func(content []byte, got func([]byte)) ([]byte, error){
		"cut in the middle": func(content []byte, got func([]byte)) ([]byte, error) {
			got(content[:len(content)/2])
			return nil, cut
		},
		"cut at its beginning": func([]byte, func([]byte)) ([]byte, error) { return nil, cut },
		"a liar, then another origin": func(content []byte, got func([]byte)) ([]byte, error) {
			bad := wrong(content, len(content)/3)
			for n := 0; n < len(bad); n += 5000 {
				got(bad[:n])
			}
			for n := 0; n < len(content); n += 5000 {
				got(content[:n])
			}
			return content, nil
		},
		"a liar to its end": func(content []byte, got func([]byte)) ([]byte, error) {
			bad := wrong(content, 0)
			got(bad)
			return nil, cut
		},
		"a bundle that is wrong": func(content []byte, got func([]byte)) ([]byte, error) {
			bad := wrong(content, len(content)/3)
			got(bad[:len(bad)/2])
			return bad, nil
		},
		"all at once": func(content []byte, got func([]byte)) ([]byte, error) { return content, nil },
		"begins again": func(content []byte, got func([]byte)) ([]byte, error) {
			got(content[:len(content)/2])
			got(content[:10])
			got(content)
			return content, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, early := range []bool{true, false} {
				w := newWorld()
				s := w.publish(t, shape{seed: 85, chunks: 60, mean: 30_000, page: 20})
				var parts []tree.Part
				for i, c := range s.chunks {
					switch {
					case i%3 == 0:
						parts = append(parts, tree.Part{Chunk: i})
					case c.Size > 3*block:
						parts = append(parts, partly(s, i, 1, 1))
					}
				}
				p := w.profile(s, nil, parts)
				f := &drip{w, func(_ object.Digest, content []byte, got func([]byte)) ([]byte, error) { return arrive(content, got) }}
				c := openCache(t, t.TempDir(), Options{})
				tr := openTree(t, c, s.digest, f)
				if !early { // in this case bundles wait for the index pages
					mustRead(t, tr, s, 0, 1)
					settle(t, c)
				}
				var readers sync.WaitGroup
				for seed := range uint64(3) {
					readers.Go(func() {
						r := newRand(seed)
						for range 100 {
							mustRead(t, tr, s, r.Int64N(int64(len(s.image))), 1+r.Int64N(2*block))
						}
					})
				}
				if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil {
					t.Fatal(err)
				}
				readers.Wait()
				readAll(t, tr, s)
				settle(t, c)
				if n := tr.expected.count(); n != 0 {
					t.Errorf("%d parts are expected still", n)
				}
			}
		})
	}
}

// count returns how many parts are expected.
func (e *expected) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.m)
}

// A reader of a chunk waits for the bundle on its way that contains the chunk.
func TestReadersWaitForABundle(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 82, chunks: 30, mean: 9000, page: 4096})
	p := w.profile(s, nil, whole(4, 5, 6, 7))
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	mustRead(t, tr, s, 0, 1)
	settle(t, c)
	started, open := make(chan struct{}), make(chan struct{})
	w.gate = func(d object.Digest) {
		if d == p.Bundles[0].Digest {
			close(started)
			<-open
		}
	}
	errs := make(chan error)
	go func() {
		errs <- tr.Prefetch(t.Context(), p, 0, nil)
	}()
	<-started
	read := make(chan struct{})
	go func() {
		defer close(read)
		mustRead(t, tr, s, s.offs[6], s.chunks[6].Size)
	}()
	pg, i := tr.loadedPageOf(6)
	waitFor(t, "the reader", func() bool {
		c.flights.mu.Lock()
		defer c.flights.mu.Unlock()
		f := c.flights.m[pg.digests[i]]
		return f != nil && f.wanted == demand
	})
	close(open)
	<-read
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	if n := w.fetched(s.chunks[6].Digest); n != 0 {
		t.Errorf("the chunk was fetched %d times besides", n)
	}
}

func TestCompleteKeepsToItsRate(t *testing.T) { synctest.Test(t, completeKeepsToItsRate) }

func completeKeepsToItsRate(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 83, chunks: 100, mean: 60_000, page: 4096}) // about 6 MB
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := tr.Complete(ctx, 1<<20); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("6 MB at 1 MiB a second: %v", err)
	}
	settle(t, c)
	if n := w.bytes.Load(); n < 500_000 || n > 3<<20 {
		t.Errorf("%d bytes were fetched", n)
	}
	if err := tr.Complete(t.Context(), 0); err != nil || !tr.IsComplete() {
		t.Errorf("without a bound: %v", err)
	}
}

// Complete evicts older chunks, but not those that it has fetched itself.
func TestCompleteWithoutRoom(t *testing.T) {
	w := newWorld()
	a := w.publish(t, shape{seed: 84, chunks: 100, mean: 9000, page: 4096})
	b := w.publish(t, shape{seed: 85, chunks: 200, mean: 9000, page: 4096})
	c := openCache(t, t.TempDir(), Options{Quota: 1_400_000})
	ta, tb := openTree(t, c, a.digest, w), openTree(t, c, b.digest, w)
	if err := ta.Complete(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	before := w.requests.Load()
	var full *NoRoomError
	if err := tb.Complete(t.Context(), 0); !errors.As(err, &full) || full.Tree != b.digest || full.Quota != 1_400_000 {
		t.Fatalf("%v", err)
	}
	if ta.kept.Load() != 0 || tb.present.Load() < 1_000_000 {
		t.Errorf("%d chunks of the older tree are left, %d bytes of the newer", ta.kept.Load(), tb.present.Load())
	}
	if n := w.requests.Load() - before; n > 200 {
		t.Errorf("%d requests", n)
	}
}

func TestPinInMemory(t *testing.T) {
	w, dir, ram := newWorld(), t.TempDir(), t.TempDir()
	s := w.publish(t, shape{seed: 86, chunks: 60, mean: 9000, page: 16, holes: true})
	o := Options{RAMDir: ram, RAMQuota: 2 << 20}
	c := openCache(t, dir, o)
	tr := openTree(t, c, s.digest, w)
	mustRead(t, tr, s, 0, int64(len(s.image))/2)
	settle(t, c)
	fetched := w.requests.Load()
	if err := c.Pin(t.Context(), s.digest, true); err != nil {
		t.Fatal(err)
	}
	if !tr.IsComplete() || filepath.Dir(filepath.Dir(tr.ImagePath())) != ram {
		t.Errorf("image at %s, %+v", tr.ImagePath(), tr.Stats())
	}
	if n := w.requests.Load() - fetched; n > 40 {
		t.Errorf("%d requests: what was on disk was fetched again", n)
	}
	if _, err := os.Lstat(filepath.Join(tr.dir, "image")); err == nil {
		t.Error("the image file on disk is still there")
	}
	got, err := os.ReadFile(tr.ImagePath())
	if err != nil || !bytes.Equal(got, s.image) {
		t.Errorf("the image file in memory is wrong (%v)", err)
	}
	st := c.Status()
	if st.RAMUsed != du(t, ram)-allocatedAt(ram)-allocatedAt(filepath.Dir(tr.ImagePath())) || st.Trees[0].Pinned != "ram" {
		t.Errorf("%+v", st)
	}
	agreesWithDu(t, c, dir)
	// The pin survives a restart of the process. After a restart of the machine, memory is
	// empty.
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	asked := w.requests.Load()
	c = openCache(t, dir, o)
	tr = openTree(t, c, s.digest, w)
	readAll(t, tr, s)
	if n := w.requests.Load() - asked; n != 0 || !tr.IsComplete() {
		t.Errorf("%d requests after another opening", n)
	}
	if err := errors.Join(c.Close(), os.RemoveAll(filepath.Join(ram, s.digest.String()))); err != nil {
		t.Fatal(err)
	}
	c = openCache(t, dir, o)
	tr = openTree(t, c, s.digest, w)
	readAll(t, tr, s)
	settle(t, c)
	if filepath.Dir(filepath.Dir(tr.ImagePath())) != ram {
		t.Errorf("the image is at %s", tr.ImagePath())
	}
	// Unpin moves the image back to disk without the network.
	w.down.Store(true)
	if err := c.Unpin(t.Context(), s.digest); err != nil {
		t.Fatal(err)
	}
	readAll(t, tr, s)
	if st := c.Status(); !tr.IsComplete() || st.RAMUsed != 0 || st.Trees[0].Pinned != "" {
		t.Errorf("%+v", st)
	}
	agreesWithDu(t, c, dir)
	if left, err := os.ReadDir(ram); err != nil || len(left) != 0 {
		t.Errorf("in memory is still %v, %v", left, err)
	}
}

func TestPinInMemoryRefuses(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 87, chunks: 60, mean: 9000, page: 16})
	c := openCache(t, t.TempDir(), Options{RAMDir: t.TempDir(), RAMQuota: 300_000})
	var full *NoRoomError
	var busy *BusyError
	var absent *NotCachedError
	if err := c.Pin(t.Context(), s.digest, true); !errors.As(err, &absent) {
		t.Errorf("a tree that is not here: %v", err)
	}
	tr := openTree(t, c, s.digest, w)
	if err := c.Pin(t.Context(), s.digest, true); !errors.As(err, &full) || full.Need <= full.Have || full.Have > 300_000 || full.Quota != 300_000 {
		t.Errorf("a tree that is too large: %v", err)
	}
	release := tr.Hold()
	defer release()
	small := w.publish(t, shape{seed: 88, chunks: 5, mean: 9000, page: 16})
	ts := openTree(t, c, small.digest, w)
	unhold := ts.Hold()
	if err := c.Pin(t.Context(), small.digest, true); !errors.As(err, &busy) {
		t.Errorf("a held tree: %v", err)
	}
	unhold()
	if err := ts.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Pin(t.Context(), small.digest, true); !errors.As(err, &busy) {
		t.Errorf("a tree that is neither open nor complete: %v", err)
	}
	none := openCache(t, t.TempDir(), Options{})
	openTree(t, none, s.digest, w)
	if err := none.Pin(t.Context(), s.digest, true); !errors.As(err, &full) {
		t.Errorf("no RAMDir: %v", err)
	}
}
