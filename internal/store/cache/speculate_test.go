package cache

import (
	"bytes"
	"testing"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// publishFiles publishes an image with meta chunks of metadata, followed by files of the
// given sizes. A file has chunks of about 100,000 bytes and ends at a block.
func (w *world) publishFiles(t testing.TB, seed uint64, meta int, files ...int) sample {
	t.Helper()
	r := newRand(seed)
	var out sample
	var image bytes.Buffer
	add := func(n int) {
		content := make([]byte, n)
		fill(r, content)
		out.chunks = append(out.chunks, tree.Chunk{Digest: w.add(content), Size: int64(n)})
		image.Write(content)
	}
	for range meta {
		add(3 * block)
	}
	end := int64(image.Len())
	for _, n := range files {
		for n = (n + block - 1) &^ (block - 1); n > 150_000; {
			cut := 100_000 + r.IntN(1000)
			if cut%block == 0 || (image.Len()+cut)%block == 0 {
				cut++
			}
			add(cut)
			n -= cut
		}
		add(n)
	}
	out.image, out.offs = image.Bytes(), tree.Offsets(0, out.chunks)
	out.digest = w.index(t, out, end, 4096)
	return out
}

// file returns the chunks of the n-th file of an image that publishFiles made.
func (s sample) file(n, meta int) (first, end int) {
	first = meta
	for ; ; n-- {
		end = first + 1
		for s.offs[end]%block != 0 {
			end++
		}
		if n == 0 {
			return first, end
		}
		first = end
	}
}

// here returns the chunks of a tree that are present.
func here(tr *Tree) map[int]bool {
	m := map[int]bool{}
	for k := range tr.pages {
		if pg := tr.pages[k].Load(); pg != nil {
			for i := range pg.digests {
				if pg.present(i) {
					m[pg.first+i] = true
				}
			}
		}
	}
	return m
}

// expectHere checks that exactly the given rows of chunks are present.
func expectHere(t *testing.T, tr *Tree, what string, rows ...[2]int) {
	t.Helper()
	settle(t, tr.c)
	want, got := map[int]bool{}, here(tr)
	for _, r := range rows {
		for i := r[0]; i < r[1]; i++ {
			want[i] = true
			if !got[i] {
				t.Errorf("%s: chunk %d is missing", what, i)
			}
		}
	}
	for i := range got {
		if !want[i] {
			t.Errorf("%s: chunk %d was fetched", what, i)
		}
	}
}

func TestForesight(t *testing.T) {
	const meta = 4 // short enough to come with its first part
	// Long files separate files that are far from each other.
	files := []int{1 << 20, 6 << 20, 300_000, 6 << 20, 50_000, 50_000, 900_000, 6 << 20}
	w := newWorld()
	s := w.publishFiles(t, 70, meta, files...)
	row := func(n int) [2]int {
		first, end := s.file(n, meta)
		return [2]int{first, end}
	}
	open := func(t *testing.T, o Options) *Tree {
		tr := openTree(t, openCache(t, t.TempDir(), o), s.digest, w)
		t.Cleanup(func() {
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		})
		return tr
	}
	touch := func(t *testing.T, tr *Tree, chunk int) {
		t.Helper()
		mustRead(t, tr, s, s.offs[chunk]&^(block-1)+block, 100)
	}
	one := func(i int) [2]int { return [2]int{i, i + 1} }

	t.Run("a file is fetched whole", func(t *testing.T) {
		tr := open(t, Options{})
		tr.Speculate()
		touch(t, tr, row(0)[0]+3)
		expectHere(t, tr, "the middle of a file", row(0))
	})
	t.Run("of a long file the end, for its head", func(t *testing.T) {
		tr := open(t, Options{})
		tr.Speculate()
		long := row(1)
		touch(t, tr, long[0]+20)
		touch(t, tr, long[0]+30)
		expectHere(t, tr, "the middle", one(long[0]+20), one(long[0]+30))
		touch(t, tr, long[0])
		expectHere(t, tr, "the head", one(long[0]+20), one(long[0]+30), one(long[0]), one(long[1]-1))
	})
	t.Run("neighbours", func(t *testing.T) {
		tr := open(t, Options{})
		tr.Speculate()
		touch(t, tr, row(4)[0])
		expectHere(t, tr, "the first of a directory", row(4))
		touch(t, tr, row(5)[0])
		settle(t, tr.c)
		got := here(tr)
		if first, end := row(6)[0], row(6)[1]; !got[first] || got[end-1] {
			t.Errorf("behind the second miss: the next file's first chunk here: %v, its last: %v", got[first], got[end-1])
		}
		for i := row(3)[0]; i < row(3)[1]; i++ {
			if got[i] {
				t.Errorf("chunk %d, of a long file before it, was fetched", i)
			}
		}
	})
	t.Run("metadata", func(t *testing.T) {
		tr := open(t, Options{})
		tr.Speculate()
		touch(t, tr, 2)
		expectHere(t, tr, "a part of it", [2]int{0, meta})
	})
	t.Run("not where it is known better", func(t *testing.T) {
		tr := open(t, Options{})
		touch(t, tr, row(0)[0])
		expectHere(t, tr, "nobody has asked for it", one(row(0)[0]))
		tr.Speculate()
		known := tr.Guide()
		touch(t, tr, row(2)[0])
		expectHere(t, tr, "a profile knows", one(row(0)[0]), one(row(2)[0]))
		known()
		touch(t, tr, row(6)[0])
		expectHere(t, tr, "a profile knew", one(row(0)[0]), one(row(2)[0]), row(6))
	})
	t.Run("not where there is no room for it", func(t *testing.T) {
		tr := open(t, Options{Quota: 8 << 20, Floor: -1})
		tr.Speculate()
		touch(t, tr, row(0)[0])
		expectHere(t, tr, "a small cache", one(row(0)[0]))
	})
	t.Run("not what is here", func(t *testing.T) {
		tr := open(t, Options{})
		readAll(t, tr, s)
		settle(t, tr.c)
		tr.Speculate()
		before := w.requests.Load()
		readAll(t, tr, s)
		if n := w.requests.Load() - before; n != 0 {
			t.Errorf("%d requests for what is here", n)
		}
	})
}

// Every program needs the front of the metadata, which is therefore fetched first. The rest
// is fetched as it is read, or all of it at once if it is small.
func TestForesightOfMetadata(t *testing.T) {
	const part = 3 * block
	for _, c := range []struct{ parts, second int }{{metaAhead / part, metaAhead / part}, {metaAhead/part + 1, 0}} {
		w := newWorld()
		s := w.publishFiles(t, 73, c.parts, 100_000)
		tr := openTree(t, openCache(t, t.TempDir(), Options{}), s.digest, w)
		tr.Speculate()
		front := [2]int{0, (metaFirst + part - 1) / part}
		mustRead(t, tr, s, s.offs[1], 100)
		expectHere(t, tr, "the first part", front)
		last := [2]int{c.parts - 1, c.parts}
		mustRead(t, tr, s, s.offs[last[0]], 100)
		expectHere(t, tr, "the second part", front, last, [2]int{0, c.second})
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A sequential reader of a file gets the rest of the file, and not the next file. After it
// has read one file after another, it gets the following files too.
func TestReadaheadStopsAtTheEndOfAFile(t *testing.T) {
	const meta, long = 1, 8 << 20
	w := newWorld()
	s := w.publishFiles(t, 74, meta, long, long, long)
	tr := openTree(t, openCache(t, t.TempDir(), Options{}), s.digest, w)
	read := func(from, to int64) {
		t.Helper()
		for ; from < to; from += 64 << 10 {
			mustRead(t, tr, s, from, min(64<<10, to-from))
		}
	}
	first, end := s.file(0, meta)
	read(s.offs[first], s.offs[end])
	expectHere(t, tr, "one file", [2]int{first, end})
	second, end2 := s.file(1, meta)
	read(s.offs[second], s.offs[second]+long/2)
	settle(t, tr.c)
	third, _ := s.file(2, meta)
	if got := here(tr); !got[end2-1] || !got[third] {
		t.Errorf("in the second file: its end is here: %v, the beginning of the third: %v", got[end2-1], got[third])
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}

// Foresight does not depend on knowledge of the files: random reads of a large file fetch
// little more than they read.
func TestForesightAtRandom(t *testing.T) {
	w := newWorld()
	s := w.publishFiles(t, 71, 1, 64<<20)
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	tr.Speculate()
	r := newRand(72)
	touched := map[object.Digest]bool{}
	for range 200 {
		off := r.Int64N(int64(len(s.image))-block) &^ (block - 1)
		mustRead(t, tr, s, off, 1)
		for i, ch := range s.chunks {
			if s.offs[i] <= off && s.offs[i+1] > off {
				touched[ch.Digest] = true
			}
		}
	}
	settle(t, c)
	if got := int(w.requests.Load()) - 2; got > len(touched)+1 {
		t.Errorf("%d fetches for %d chunks", got, len(touched))
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}
