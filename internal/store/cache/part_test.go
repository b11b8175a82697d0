package cache

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// partly returns a part of a chunk of a sample: the leaves of its blocks first to last.
func partly(s sample, chunk int, first, last int64) tree.Part {
	start, end := s.offs[chunk], s.offs[chunk+1]
	from := max(start, (start/block+first)*block)
	to := min(end, (start/block+last+1)*block)
	return tree.Part{Chunk: chunk, Runs: []object.Run{{From: int((from - start) / object.LeafSize), To: object.Leaves(to - start)}}}
}

// block returns the offset and the length of block k of a chunk, as far as it lies in the
// chunk.
func (s sample) block(chunk int, k int64) (off, n int64) {
	off = max(s.offs[chunk], (s.offs[chunk]/block+k)*block)
	return off, min(s.offs[chunk+1], (s.offs[chunk]/block+k+1)*block) - off
}

// The part of a chunk that a bundle has brought is readable without the rest. A read of the
// rest fetches the whole chunk.
func TestParts(t *testing.T) {
	var w *world
	var s sample
	for seed := uint64(200); ; seed++ { // search a seed whose first chunks are long
		w = newWorld()
		s = w.publish(t, shape{seed: seed, chunks: 40, mean: 60_000, page: 4096})
		long := true
		for i := range 4 {
			long = long && s.chunks[i].Size > 8*block
		}
		if long {
			break
		}
	}
	p := w.profile(s, nil, []tree.Part{partly(s, 1, 2, 4), {Chunk: 3}, partly(s, 2, 0, 0)}, []tree.Part{partly(s, 0, 1, 5)})
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil {
		t.Fatal(err)
	}
	settle(t, c)
	before := w.requests.Load()
	read := func(chunk int, k int64) {
		t.Helper()
		off, n := s.block(chunk, k)
		mustRead(t, tr, s, off, n)
		mustRead(t, tr, s, off+n/3, n/2)
	}
	for k := int64(2); k <= 4; k++ {
		read(1, k)
	}
	read(2, 0)
	read(0, 3)
	off, n := s.block(1, 2)
	mustRead(t, tr, s, off, 3*block)
	if got := w.requests.Load() - before; got != 0 {
		t.Errorf("%d requests for what bundles brought", got)
	}
	if got := tr.Stats(); got.PartChunks != 3 || got.Misses != 0 {
		t.Errorf("%+v", got)
	}
	// A second prefetch has nothing to do.
	if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil {
		t.Fatal(err)
	}
	if got := w.requests.Load() - before; got != 0 {
		t.Errorf("%d requests of a second prefetch", got)
	}
	// A read of one more block fetches the whole chunk once.
	mustRead(t, tr, s, off-block, n+block)
	settle(t, c)
	if got := w.fetched(s.chunks[1].Digest); got != 1 || !presentChunk(tr, 1) || tr.Stats().PartChunks != 2 {
		t.Errorf("the chunk was fetched %d times, here: %t, %+v", got, presentChunk(tr, 1), tr.Stats())
	}
	if err := tr.Complete(t.Context(), 0); err != nil || tr.Stats().PartChunks != 0 {
		t.Errorf("%v, %+v", err, tr.Stats())
	}
	readAll(t, tr, s)
}

// Parts on disk are not trusted: neither if the file is damaged while the cache runs, nor
// after the cache was opened again. None of their bytes stay allocated.
func TestPartsOnDisk(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 300, chunks: 40, mean: 60_000, page: 4096})
	var parts []tree.Part
	for i, c := range s.chunks {
		if c.Size > 4*block {
			parts = append(parts, partly(s, i, 1, 2))
		}
	}
	p := w.profile(s, nil, parts)
	c := openCache(t, dir, Options{})
	tr := openTree(t, c, s.digest, w)
	if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil {
		t.Fatal(err)
	}
	settle(t, c)
	agreesWithDu(t, c, dir)
	off, n := s.block(parts[3].Chunk, 1)
	if _, err := tr.image.Load().f.WriteAt([]byte("wrong"), off+7); err != nil {
		t.Fatal(err)
	}
	mustRead(t, tr, s, off, n)
	settle(t, c)
	if w.fetched(s.chunks[parts[3].Chunk].Digest) != 1 {
		t.Error("the damaged chunk was not fetched")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = openCache(t, dir, Options{})
	tr = openTree(t, c, s.digest, w)
	if got := allocated(tr.image.Load().f); got > s.chunks[parts[3].Chunk].Size+2*block {
		t.Errorf("%d bytes were left behind, but one chunk of %d", got, s.chunks[parts[3].Chunk].Size)
	}
	if got := tr.Stats().PartChunks; got != 0 {
		t.Errorf("%d parts are remembered", got)
	}
	readAll(t, tr, s)
}

// Parts count towards the quota, and the least recently used ones are evicted first.
func TestPartsAreEvicted(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 301, chunks: 120, mean: 60_000, page: 4096})
	var rows [][]tree.Part
	for i, c := range s.chunks {
		if c.Size > 6*block {
			rows = append(rows, []tree.Part{partly(s, i, 1, 4)})
		}
	}
	p := w.profile(s, nil, rows...)
	c := openCache(t, dir, Options{Quota: 600_000})
	tr := openTree(t, c, s.digest, w)
	var full *NoRoomError
	if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil && !errors.As(err, &full) {
		t.Fatal(err)
	}
	readAll(t, tr, s)
	settle(t, c)
	keepsTo(t, c, func() int64 { return 600_000 })
	agreesWithDu(t, c, dir)
	if err := c.Drop(s.digest); err != nil {
		t.Fatal(err)
	}
	if got := tr.Stats(); got.PartChunks != 0 || allocated(tr.image.Load().f) != 0 {
		t.Errorf("%d bytes after all was dropped, %+v", allocated(tr.image.Load().f), got)
	}
}

// A bundle with a wrong byte, or with the content of another chunk, costs only time.
func TestBadParts(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 302, chunks: 40, mean: 60_000, page: 4096})
	var parts []tree.Part
	for i, c := range s.chunks {
		if c.Size > 4*block {
			parts = append(parts, partly(s, i, 1, 2))
		}
	}
	p := w.profile(s, nil, parts)
	content := w.contents[p.Bundles[0].Digest]
	wrong := append([]byte{}, content...)
	for i := 500; i < len(wrong); i += 5000 {
		wrong[i] ^= 4
	}
	p.Bundles[0].Digest = w.add(wrong)
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil {
		t.Fatal(err)
	}
	if tr.Stats().FailedFetches == 0 {
		t.Error("nothing failed")
	}
	for _, part := range parts {
		off, n := s.block(part.Chunk, 1)
		mustRead(t, tr, s, off, n)
	}
	readAll(t, tr, s)
}

// A reader waits for a bundle on its way if the bundle will bring the blocks that it reads.
// A reader of other blocks of the chunk does not wait.
func TestReadersWaitForParts(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 303, chunks: 40, mean: 60_000, page: 4096})
	chunk := -1
	for i, c := range s.chunks {
		if c.Size > 8*block {
			chunk = i
		}
	}
	p := w.profile(s, nil, []tree.Part{partly(s, chunk, 1, 4)})
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	waitFor(t, "the index page", func() bool { return tr.pages[0].Load() != nil })
	settle(t, c)
	started, open := make(chan struct{}), make(chan struct{})
	w.gate = func(d object.Digest) {
		if d == p.Bundles[0].Digest {
			close(started)
			<-open
		}
	}
	errs := make(chan error)
	go func() { errs <- tr.Prefetch(t.Context(), p, 0, nil) }()
	<-started
	pgOf := func() *page { pg, _ := tr.loadedPageOf(chunk); return pg }
	waitFor(t, "the promise", func() bool {
		off, n := s.block(chunk, 2)
		return pgOf() != nil && tr.expected.find(pgOf(), chunk-pgOf().first, off, n).b != nil
	})
	var readers sync.WaitGroup
	for k := int64(1); k <= 4; k++ {
		readers.Go(func() {
			off, n := s.block(chunk, k)
			mustRead(t, tr, s, off, n)
		})
	}
	waitFor(t, "the readers", func() bool { return tr.stats.waits.Load() == 4 })
	if n := w.fetched(s.chunks[chunk].Digest); n != 0 {
		t.Errorf("the chunk was fetched %d times besides", n)
	}
	off, n := s.block(chunk, 6)
	mustRead(t, tr, s, off, n) // the bundle is held up
	close(open)
	readers.Wait()
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	if n := w.fetched(s.chunks[chunk].Digest); n != 1 {
		t.Errorf("the chunk was fetched %d times", n)
	}
}

// A reader may come before the index pages, when it is not yet known which chunks the
// bundles will bring. Its read then does not fetch a chunk if a bundle brings the blocks.
func TestReadersWaitForThePlan(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 305, chunks: 40, mean: 60_000, page: 10})
	var parts []tree.Part
	for i := 20; i < 30; i++ {
		if s.chunks[i].Size > 4*block {
			parts = append(parts, partly(s, i, 1, 2))
		}
	}
	p := w.profile(s, nil, parts)
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	waitFor(t, "the first index page", func() bool { return tr.pages[0].Load() != nil })
	page := tr.manifest.Pages[2].Digest
	open := make(chan struct{})
	w.gate = func(d object.Digest) {
		if d == page {
			<-open
		}
	}
	errs := make(chan error)
	go func() { errs <- tr.Prefetch(t.Context(), p, 0, nil) }()
	waitFor(t, "the prefetch", func() bool { return tr.planning.Load() != nil })
	var readers sync.WaitGroup
	for _, part := range parts {
		readers.Go(func() {
			off, n := s.block(part.Chunk, 1)
			mustRead(t, tr, s, off, n)
		})
	}
	close(open)
	readers.Wait()
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		if n := w.fetched(s.chunks[part.Chunk].Digest); n != 0 {
			t.Errorf("chunk %d was fetched %d times", part.Chunk, n)
		}
	}
}

// Readers, two profiles, eviction and completion run at once, and no read returns a wrong
// byte.
func TestPartsUnderLoad(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 304, chunks: 80, mean: 40_000, page: 16, holes: true})
	r := rand.New(rand.NewPCG(1, 2))
	random := func() *tree.Profile {
		var rows [][]tree.Part
		for _, i := range r.Perm(len(s.chunks)) {
			c := s.chunks[i]
			if n := blocksIn(s.offs[i], s.offs[i+1]); !c.Hole() && n > 2 {
				first := r.Int64N(int64(n))
				part := partly(s, i, first, first+r.Int64N(int64(n)-first))
				if len(rows) == 0 || len(rows[len(rows)-1]) == 5 {
					rows = append(rows, nil)
				}
				rows[len(rows)-1] = append(rows[len(rows)-1], part)
			}
		}
		return w.profile(s, nil, rows...)
	}
	a, b := random(), random()
	c := openCache(t, dir, Options{Quota: 1_500_000})
	tr := openTree(t, c, s.digest, w)
	var all sync.WaitGroup
	for _, p := range []*tree.Profile{a, b} {
		all.Go(func() {
			for range 5 {
				var full *NoRoomError
				if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil && !errors.As(err, &full) {
					t.Error(err)
				}
			}
		})
	}
	for seed := range uint64(4) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, 9))
			for range 400 {
				off := r.Int64N(int64(len(s.image)))
				mustRead(t, tr, s, off, 1+r.Int64N(3*block))
			}
		})
	}
	all.Go(func() {
		for range 20 {
			if err := c.Drop(s.digest); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	readAll(t, tr, s)
	settle(t, c)
	if err := c.Drop(s.digest); err != nil {
		t.Fatal(err)
	}
	if got := tr.parts.Load(); got != 0 {
		t.Errorf("%d parts are counted where none is", got)
	}
	if got := allocated(tr.image.Load().f); got != 0 {
		t.Errorf("%d bytes are left of nothing", got)
	}
}

// Chunks that came in parts are readable without an origin after the tree was completed and
// the cache was opened again, but not before.
func TestPartsOutlastTheCache(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 7, chunks: 40, mean: 60_000, page: 4096})
	var parts []tree.Part
	var touched []int
	for i, c := range s.chunks {
		if c.Size > 3*block {
			parts, touched = append(parts, partly(s, i, 1, 1)), append(touched, i)
		}
	}
	if len(touched) < 5 {
		t.Fatalf("%d long chunks", len(touched))
	}
	p := w.profile(s, nil, parts)
	dir := t.TempDir()
	for _, complete := range []bool{false, true} {
		c := openCache(t, dir, Options{})
		tr := openTree(t, c, s.digest, w)
		if err := tr.Prefetch(t.Context(), p, 0, nil); err != nil {
			t.Fatal(err)
		}
		if complete {
			if err := tr.CompleteParts(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if got := tr.Stats(); got.PartChunks != 0 {
				t.Errorf("%d chunks are here in part", got.PartChunks)
			}
		}
		if err := errors.Join(tr.Close(), c.Close()); err != nil {
			t.Fatal(err)
		}
		c = openCache(t, dir, Options{})
		tr = openTree(t, c, s.digest, nil)
		for _, i := range touched {
			off, n := s.block(i, 1)
			if complete {
				mustRead(t, tr, s, off, n)
				continue
			}
			if _, err := tr.ReadAt(t.Context(), make([]byte, n), off); !errors.Is(err, ErrNoOrigin) {
				t.Errorf("chunk %d: %v", i, err)
			}
		}
		if err := errors.Join(tr.Close(), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
