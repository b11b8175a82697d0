package cache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

func TestReadAt(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 1, chunks: 100, mean: 20_000, meta: 3, page: 7, holes: true})
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	n := int64(len(s.image))
	for _, r := range [][2]int64{{0, 1}, {0, 4096}, {4096, 4096}, {n - 1, 1}, {n - 1, 5000}, {1, n - 2}, {0, n}, {0, n + 1}, {12345, 54321}} {
		mustRead(t, tr, s, r[0], r[1])
	}
	if got, err := tr.ReadAt(t.Context(), make([]byte, 1), n); got != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("a read at the end: %d, %v", got, err)
	}
	if _, err := tr.ReadAt(t.Context(), make([]byte, 1), -1); err == nil {
		t.Error("a read below 0 succeeded")
	}
	settle(t, c)
	if !tr.IsComplete() {
		t.Errorf("everything was read, and it is not complete: %+v", tr.Stats())
	}
	readAll(t, tr, s)
	for d, n := range w.fetches() {
		if n != 1 {
			t.Errorf("object %s was fetched %d times", d.Short(), n)
		}
	}
}

// The test reads pieces of many lengths around the borders of blocks and chunks after the
// chunks were verified. Each read is then compared with checksums.
func TestReadAtEdges(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 2, chunks: 60, mean: 3000, page: 4096, holes: true})
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	readAll(t, tr, s)
	for _, border := range append(s.offs, 4096, 8192, 12288) {
		for _, before := range []int64{0, 1, 4095, 4096} {
			for _, n := range []int64{1, 2, 4095, 4096, 4097, 9000} {
				if off := border - before; off >= 0 && off < int64(len(s.image)) {
					mustRead(t, tr, s, off, n)
				}
			}
		}
	}
	if st := tr.Stats(); st.Corrupt != 0 || st.Errors != 0 {
		t.Errorf("%+v", st)
	}
}

func TestOneFetchWhoeverAsks(t *testing.T) { synctest.Test(t, oneFetchWhoeverAsks) }

func oneFetchWhoeverAsks(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 3, chunks: 4, mean: 100_000, page: 4096})
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	w.delay.Store(int64(20 * time.Millisecond))
	var wg sync.WaitGroup
	for n := range 50 {
		wg.Go(func() { mustRead(t, tr, s, int64(n), 4096) })
	}
	wg.Wait()
	if n := w.fetched(s.chunks[0].Digest); n != 1 {
		t.Errorf("50 readers made %d fetches", n)
	}
}

func TestRandomReadFetchesItsChunk(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 4, chunks: 2000, mean: 8000, page: 4096})
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	r := rand.New(rand.NewPCG(1, 1))
	touched := map[object.Digest]bool{}
	settle(t, c)
	for range 300 {
		off := r.Int64N(int64(len(s.image))-4096) &^ 4095
		mustRead(t, tr, s, off, 4096)
		for i, ch := range s.chunks {
			if s.offs[i] < off+4096 && s.offs[i+1] > off {
				touched[ch.Digest] = true
			}
		}
	}
	if got := int(w.requests.Load()) - 2; got != len(touched) {
		t.Errorf("%d fetches for %d chunks", got, len(touched))
	}
}

// Several readers read the tree in order at the same time. Many chunks are fetched at once
// although each reader asks for 64 KiB at a time.
func TestSequentialReadersAreReadAhead(t *testing.T) { synctest.Test(t, sequentialReadersAreReadAhead) }

func sequentialReadersAreReadAhead(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 5, chunks: 400, mean: 50_000, page: 50})
	c := openCache(t, t.TempDir(), Options{Fetches: 16})
	tr := openTree(t, c, s.digest, w)
	w.delay.Store(int64(2 * time.Millisecond))
	third := int64(len(s.image)) / 3
	var wg sync.WaitGroup
	for n := range int64(3) {
		wg.Go(func() {
			for off := n * third; off < (n+1)*third; off += 64 << 10 {
				mustRead(t, tr, s, off, 64<<10)
			}
		})
	}
	wg.Wait()
	if most := w.most.Load(); most < 16 || most > 24 {
		t.Errorf("%d fetches at once, want 16 to 24", most)
	}
	st := tr.Stats()
	if st.Fetches > st.Chunks {
		t.Errorf("%d fetches of %d chunks", st.Fetches, st.Chunks)
	}
}

// A reader gets its chunk even while background work occupies all fetches.
func TestDemandOvertakes(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 6, chunks: 200, mean: 20_000, page: 4096})
	c := openCache(t, t.TempDir(), Options{Fetches: 4})
	tr := openTree(t, c, s.digest, w)
	mustRead(t, tr, s, 0, 1) // load the index page
	last := s.chunks[199].Digest
	stuck, open := make(chan struct{}, 200), make(chan struct{})
	w.gate = func(d object.Digest) {
		if d != last {
			stuck <- struct{}{}
			<-open
		}
	}
	done := make(chan error)
	go func() { done <- tr.Complete(t.Context(), 0) }()
	for range 4 {
		<-stuck
	}
	mustRead(t, tr, s, s.offs[199], s.chunks[199].Size)
	if n := len(stuck); n != 0 {
		t.Errorf("%d more background fetches than there are places", n)
	}
	close(open)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !tr.IsComplete() {
		t.Error("it is not complete")
	}
}

func TestReadFailsTyped(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 7, chunks: 20, mean: 50_000, page: 4096})
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	mustRead(t, tr, s, 0, 1)
	w.down.Store(true)
	_, err := tr.ReadAt(t.Context(), make([]byte, 10), s.offs[10])
	var re *ReadError
	if !errors.As(err, &re) || re.Tree != s.digest || re.Object != s.chunks[10].Digest || !errors.Is(err, errDown) {
		t.Errorf("origin down: %v", err)
	}
	w.down.Store(false)
	mustRead(t, tr, s, s.offs[10], 10)

	w.delay.Store(int64(time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() {
		_, err := tr.ReadAt(ctx, make([]byte, 10), s.offs[12])
		got <- err
	}()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("a reader who gave up: %v", err)
	}
	// Closing the tree cancels fetches that have no reader.
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	w.delay.Store(0)
	tr = openTree(t, c, s.digest, w)
	readAll(t, tr, s)
}

func TestTimeout(t *testing.T) { synctest.Test(t, timeout) }

func timeout(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 8, chunks: 2, mean: 50_000, page: 4096})
	c := openCache(t, t.TempDir(), Options{Timeout: 10 * time.Millisecond})
	tr := openTree(t, c, s.digest, w)
	mustRead(t, tr, s, 0, 1)
	w.delay.Store(int64(time.Hour))
	var re *ReadError
	if _, err := tr.ReadAt(t.Context(), make([]byte, 1), s.offs[1]); !errors.As(err, &re) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an origin that hangs: %v", err)
	}
}

// Chunks in the cache are readable without an origin, also by the next process.
func TestOffline(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 9, chunks: 50, mean: 20_000, meta: 5, page: 7, holes: true})
	c := openCache(t, dir, Options{})
	tr := openTree(t, c, s.digest, w)
	if err := tr.Complete(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	w.down.Store(true)
	asked := w.requests.Load()
	for _, f := range []Fetcher{nil, w} {
		c = openCache(t, dir, Options{})
		tr = openTree(t, c, s.digest, f)
		if !tr.IsComplete() {
			t.Error("it is not complete any more")
		}
		readAll(t, tr, s)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.requests.Load() - asked; n != 0 {
		t.Errorf("%d requests", n)
	}
	c = openCache(t, dir, Options{})
	var re *ReadError
	if _, err := c.Tree(t.Context(), object.Sum([]byte("another")), nil); !errors.As(err, &re) || !errors.Is(err, ErrNoOrigin) {
		t.Errorf("a tree that is not here: %v", err)
	}
}

// A second tree that is similar to the first copies the shared chunks from it.
func TestSharedChunksAreCopied(t *testing.T) {
	w := newWorld()
	a := w.publish(t, shape{seed: 10, chunks: 100, mean: 20_000, page: 4096})
	b := w.publish(t, shape{seed: 11, chunks: 100, mean: 20_000, page: 4096, same: []sample{a}})
	c := openCache(t, t.TempDir(), Options{})
	ta, tb := openTree(t, c, a.digest, w), openTree(t, c, b.digest, w)
	if err := ta.Complete(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	readAll(t, tb, b)
	for d, n := range w.fetches() {
		if n != 1 {
			t.Errorf("object %s was fetched %d times", d.Short(), n)
		}
	}
	if st := tb.Stats(); st.Copied < 20 || st.Copied+st.Fetches > st.Chunks {
		t.Errorf("%+v", st)
	}
}

func TestRecord(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 13, chunks: 50, mean: 20_000, page: 5, holes: true})
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	mustRead(t, tr, s, 0, int64(len(s.image)))
	r := tr.Record()
	var want []int
	for _, i := range []int{40, 3, 40, 12, 3, 0} {
		mustRead(t, tr, s, s.offs[i], 1)
		if !slices.Contains(want, i) && !s.chunks[i].Hole() {
			want = append(want, i)
		}
	}
	r.Stop()
	mustRead(t, tr, s, s.offs[30], 1)
	// A read of one byte is recorded as its whole block, within its chunk.
	for _, part := range r.Profile().Parts {
		start, size := s.offs[part.Chunk], s.chunks[part.Chunk].Size
		to := object.Leaves(min(size, (start&^(block-1))+block-start))
		if len(part.Runs) != 1 || part.Runs[0] != (object.Run{From: 0, To: to}) {
			t.Errorf("chunk %d at %d: leaves %v, want 0 to %d", part.Chunk, start, part.Runs, to)
		}
	}
	p := r.Profile()
	if p.Tree != s.digest || !slices.Equal(p.Chunks(), want) {
		t.Errorf("%v, want %v", p.Chunks(), want)
	}
}

// An empty tree, and a tree that consists only of holes, have an image file once they are
// completed.
func TestNothingToFetch(t *testing.T) {
	w := newWorld()
	c := openCache(t, t.TempDir(), Options{})
	for _, s := range []sample{{}, {chunks: []tree.Chunk{{Size: 100_000}}, image: make([]byte, 100_000)}} {
		s.digest = w.index(t, s, 0, 4096)
		tr := openTree(t, c, s.digest, w)
		if err := tr.Complete(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		mustRead(t, tr, s, 0, int64(len(s.image))+1)
		got, err := os.ReadFile(tr.ImagePath())
		if err != nil || !bytes.Equal(got, s.image) || !tr.IsComplete() {
			t.Errorf("%d bytes: complete %v, %d in the file, %v", len(s.image), tr.IsComplete(), len(got), err)
		}
	}
}
