package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"premix/internal/store"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

func verify(t testing.TB, s *store.Store) []store.Finding {
	t.Helper()
	v, err := s.Verify(context.Background(), store.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return v.Findings
}

func collect(t testing.TB, s *store.Store, o store.GCOptions) *store.GCResult {
	t.Helper()
	c, err := s.GC(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// objects lists the objects of a store by their paths.
func objects(t testing.TB, s *store.Store) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(s.Dir(), "objects"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			all[path] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A publish that is killed at any moment leaves a sound store, whose tag has the old tree
// or the new one, and which accepts the next publish.
func TestKilledPublish(t *testing.T) {
	s, dir, cache := newStore(t), t.TempDir(), t.TempDir()
	mixed(t, dir)
	old := publish(t, s, dir, "x", cache).Tree
	began := time.Now()
	if err := childCommand(s, "publish", dir, "y", t.TempDir()).Run(); err != nil {
		t.Fatal(err)
	}
	whole := time.Since(began)
	// A repeated publish reads only a part of the files. The time before the kill shrinks
	// until some publishes are killed.
	killed, rounds := 0, soak(6, 100)
	for i := 0; i < rounds || killed == 0 && i < 10*rounds; i++ {
		for n := range 20 { // a fifth of the contents is new in each round
			write(t, dir, fmt.Sprintf("small/d%d/f%03d", n%7, n*10), noise(uint64(i*1000+n), 30_000))
			write(t, dir, fmt.Sprintf("tiny/t%03d", n*10), fmt.Append(nil, i))
		}
		write(t, dir, fmt.Sprintf("large/l%d", i%4), noise(uint64(i), 2<<20))
		cmd := childCommand(s, "publish", dir, "x", cache)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(whole))))
		cmd.Process.Kill()
		if cmd.Wait() != nil {
			killed++
		} else {
			whole -= whole / 4
		}
		if found := verify(t, s); len(found) > 0 {
			t.Fatalf("round %d: %+v", i, found)
		}
		r, err := s.Resolve(mustRef(t, "x"))
		if err != nil {
			t.Fatal(err)
		}
		p := publish(t, s, dir, "x", cache)
		if r.Tree != old && r.Tree != p.Tree {
			t.Fatalf("round %d: the tag stood for %s, neither the old tree nor the new", i, r.Tree.Short())
		}
		if q := publish(t, newStore(t), dir, "x", ""); q.Tree != p.Tree {
			t.Fatalf("round %d: tree %s, and %s in another store", i, p.Tree.Short(), q.Tree.Short())
		}
		old = p.Tree
	}
	if killed == 0 {
		t.Error("no publish was killed before it ended")
	}
	h, err := s.History(mustRef(t, "x"))
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range h {
		if e.Record.Serial != int64(i+1) {
			t.Errorf("record %d has serial %d", i+1, e.Record.Serial)
		}
	}
	collect(t, s, store.GCOptions{})
	if left, err := os.ReadDir(filepath.Join(s.Dir(), "work", "writers")); err != nil || len(left) > 0 {
		t.Errorf("after a gc %d dead writers are left, %v", len(left), err)
	}
	if found := verify(t, s); len(found) > 0 {
		t.Errorf("after a gc: %+v", found)
	}
}

// Several goroutines and processes publish while a collector removes everything that it may
// remove. No tree ever lacks an object.
func TestPublishAndCollectTogether(t *testing.T) {
	s := newStore(t)
	const names = 3
	gc := childCommand(s, "gc")
	if err := gc.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { gc.Process.Kill(); gc.Wait() }()
	var group sync.WaitGroup
	for n := range names {
		group.Go(func() {
			dir := t.TempDir()
			ref := fmt.Sprintf("name%d", n)
			for i := range soak(8, 150) {
				// Contents come and go. Objects therefore become garbage at the moment when
				// a publish, also of another name, needs them again.
				for k := range 6 {
					write(t, dir, fmt.Sprint("f", k), noise(uint64((i+n+k)%5), 70_000+k))
					write(t, dir, fmt.Sprint("s", k), noise(uint64(100+(i+n+k)%5), 9000))
				}
				settle(t, dir)
				if i%4 == 3 { // another process publishes
					if err := childCommand(s, "publish", dir, ref, "").Run(); err != nil {
						t.Errorf("%s, round %d: %v", ref, i, err)
						return
					}
				} else {
					publish(t, s, dir, ref, "")
				}
				if _, err := s.GC(context.Background(), store.GCOptions{}); err != nil {
					t.Errorf("gc beside %s, round %d: %v", ref, i, err)
					return
				}
				// No other publisher moves this tag.
				r, err := s.Resolve(mustRef(t, ref))
				if err != nil {
					t.Error(err)
					return
				}
				if err := readWhole(s, r.Tree); err != nil {
					t.Errorf("%s, round %d: %v", ref, i, err)
					return
				}
			}
		})
	}
	group.Wait()
	gc.Process.Kill()
	gc.Wait()
	if found := verify(t, s); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	collect(t, s, store.GCOptions{})
	needed := map[string]bool{}
	for n := range names {
		r, err := s.Resolve(mustRef(t, fmt.Sprintf("name%d", n)))
		if err != nil {
			t.Fatal(err)
		}
		tr, err := s.Tree(r.Tree)
		if err != nil {
			t.Fatal(err)
		}
		for d := range tr.Objects() {
			needed[filepath.Join(s.Dir(), d.Path())] = true
		}
	}
	for path := range objects(t, s) {
		if !needed[path] {
			t.Errorf("%s is left", path)
		}
	}
}

func readWhole(s *store.Store, d object.Digest) error {
	tr, err := s.Tree(d)
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for off := int64(0); off < tr.Size(); off += int64(len(buf)) {
		if _, err := tr.ReadAt(buf[:min(int64(len(buf)), tr.Size()-off)], off); err != nil {
			return err
		}
	}
	return nil
}

func TestGCKeeps(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	var trees []object.Digest
	for i := range 5 { // 4, 3, 2, 1 and 0 days ago
		write(t, dir, "f", noise(uint64(i), 300_000))
		p, err := s.Publish(context.Background(), dir, mustRef(t, "x"), store.PublishOptions{Key: key, Now: now.Add(-time.Duration(4-i) * 24 * time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		trees = append(trees, p.Tree)
	}
	there := func() (list []bool) {
		for _, d := range trees {
			list = append(list, readWhole(s, d) == nil)
		}
		return list
	}
	for _, c := range []struct {
		o    store.GCOptions
		want string
	}{
		{store.GCOptions{Keep: 1, KeepFor: 100 * 24 * time.Hour}, "[true true true true true]"},
		{store.GCOptions{Keep: 1, DryRun: true}, "[true true true true true]"},
		{store.GCOptions{Keep: 4}, "[false true true true true]"},
		// The second tree was replaced two days ago.
		{store.GCOptions{Keep: 2, KeepFor: 36 * time.Hour}, "[false false true true true]"},
		{store.GCOptions{Keep: 2}, "[false false false true true]"},
		{store.GCOptions{}, "[false false false false true]"},
		{store.GCOptions{Keep: 5}, "[false false false false true]"},
	} {
		before := len(objects(t, s))
		c.o.Now = now
		dry := c.o
		dry.DryRun = true
		foretold := collect(t, s, dry)
		if n := len(objects(t, s)); n != before {
			t.Errorf("a dry run removed %d objects", before-n)
		}
		did := collect(t, s, c.o)
		if foretold.Removed != did.Removed || foretold.Freed != did.Freed || foretold.Objects != did.Objects {
			t.Errorf("%+v: a dry run told %+v, then it was %+v", c.o, foretold, did)
		}
		if removed := before - len(objects(t, s)); !c.o.DryRun && int64(removed) != did.Removed {
			t.Errorf("%+v: %d objects went, told were %d", c.o, removed, did.Removed)
		}
		if got := fmt.Sprint(there()); got != c.want {
			t.Errorf("%+v keeps %s, want %s", c.o, got, c.want)
		}
		if found := verify(t, s); len(found) > 0 {
			t.Errorf("%+v: %+v", c.o, found)
		}
	}
}

func TestGCRefusesWhatItCannotRead(t *testing.T) {
	for what, harm := range map[string]func(t *testing.T, s *store.Store, tr *store.Tree) string{
		"manifest": func(t *testing.T, s *store.Store, tr *store.Tree) string {
			flip(t, filepath.Join(s.Dir(), tr.Digest().Path()))
			return tr.Digest().Short()
		},
		"missing manifest": func(t *testing.T, s *store.Store, tr *store.Tree) string {
			os.Remove(filepath.Join(s.Dir(), tr.Digest().Path()))
			return tr.Digest().Short()
		},
		"page": func(t *testing.T, s *store.Store, tr *store.Tree) string {
			flip(t, filepath.Join(s.Dir(), tr.Manifest().Pages[0].Digest.Path()))
			return "page 1 of 1"
		},
		"missing page": func(t *testing.T, s *store.Store, tr *store.Tree) string {
			os.Remove(filepath.Join(s.Dir(), tr.Manifest().Pages[0].Digest.Path()))
			return "page 1 of 1"
		},
		"tag": func(t *testing.T, s *store.Store, tr *store.Tree) string {
			flip(t, filepath.Join(s.Dir(), "tags/refs/x/latest.json"))
			return "tags/refs/x/latest.json"
		},
		"history": func(t *testing.T, s *store.Store, tr *store.Tree) string {
			flip(t, filepath.Join(s.Dir(), "tags/refs/x/latest.history.jsonl"))
			return "tags/refs/x/latest.history.jsonl, line 1"
		},
	} {
		s, dir := newStore(t), t.TempDir()
		write(t, dir, "f", noise(1, 300_000))
		publish(t, s, dir, "y", "")
		write(t, dir, "f", noise(2, 300_000))
		publish(t, s, dir, "y", "") // this leaves garbage
		tr, err := s.Tree(publish(t, s, dir, "refs/x", "").Tree)
		if err != nil {
			t.Fatal(err)
		}
		names := harm(t, s, tr)
		before := len(objects(t, s))
		_, err = s.GC(context.Background(), store.GCOptions{})
		if err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: %v, want an error about %s", what, err, names)
		}
		if n := len(objects(t, s)); n != before {
			t.Errorf("%s: %d objects were removed all the same", what, before-n)
		}
	}
}

// flip changes a byte in the middle of a file.
func flip(t testing.TB, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 0x21
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyFinds(t *testing.T) {
	build := func(t *testing.T) (*store.Store, *store.Tree) {
		s, dir := newStore(t), t.TempDir()
		for i := range 30 {
			write(t, dir, fmt.Sprintf("small/f%02d", i), noise(uint64(i), 9000))
		}
		write(t, dir, "large", noise(100, 600_000))
		write(t, dir, "alone", noise(101, 100_000))
		publish(t, s, dir, "x:1", "")
		write(t, dir, "more", []byte("more"))
		p := publish(t, s, dir, "x:1", "")
		tr, err := s.Tree(p.Tree)
		if err != nil {
			t.Fatal(err)
		}
		if found := verify(t, s); len(found) > 0 {
			t.Fatalf("sound: %+v", found)
		}
		return s, tr
	}
	last := func(tr *store.Tree) object.Digest { return tr.Chunks()[len(tr.Chunks())-1].Digest }
	for name, c := range map[string]struct {
		harm func(t *testing.T, s *store.Store, tr *store.Tree)
		want []string
	}{
		"a flipped bit in a large file": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			flip(t, filepath.Join(s.Dir(), last(tr).Path()))
		}, []string{"tree ", "of x:1", "is damaged", "[large]", "objects/"}},
		"a missing chunk": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			os.Remove(filepath.Join(s.Dir(), last(tr).Path()))
		}, []string{"is missing", "[large]"}},
		"a cut object": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			os.Truncate(filepath.Join(s.Dir(), last(tr).Path()), 10)
		}, []string{"[large]", "objects/"}},
		"a chunk of small files": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			os.Remove(filepath.Join(s.Dir(), tr.Chunks()[1].Digest.Path()))
		}, []string{"small/f00", "small/f01"}},
		"metadata": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			flip(t, filepath.Join(s.Dir(), tr.Chunks()[0].Digest.Path()))
		}, []string{"are not known"}},
		"a page": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			flip(t, filepath.Join(s.Dir(), tr.Manifest().Pages[0].Digest.Path()))
		}, []string{"page 1 of 1"}},
		"a manifest": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			os.Remove(filepath.Join(s.Dir(), tr.Digest().Path()))
		}, []string{"has no tree"}},
		"one object under the name of another": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			os.Rename(filepath.Join(s.Dir(), tr.Chunks()[1].Digest.Path()), filepath.Join(s.Dir(), last(tr).Path()))
		}, []string{"large small/f00", "content's digest"}},
		"a stray file": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			write(t, s.Dir(), "objects/ab/notes.txt", nil)
		}, []string{"objects/ab/notes.txt"}},
		"a tag": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			flip(t, filepath.Join(s.Dir(), "tags/x/1.json"))
		}, []string{"tags/x/1.json"}},
		"an older record put back": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			history, _ := os.ReadFile(filepath.Join(s.Dir(), "tags/x/1.history.jsonl"))
			_, second, _ := bytes.Cut(history, []byte("\n"))
			os.WriteFile(filepath.Join(s.Dir(), "tags/x/1.history.jsonl"), append(bytes.Clone(second), history...), 0o644)
		}, []string{"tags/x/1.history.jsonl", "serial"}},
		"a tag of another store": {func(t *testing.T, s *store.Store, tr *store.Tree) {
			other, dir := newStore(t), t.TempDir()
			publish(t, other, dir, "x:1", "")
			record, _ := os.ReadFile(filepath.Join(other.Dir(), "tags/x/1.json"))
			os.WriteFile(filepath.Join(s.Dir(), "tags/x/1.json"), record, 0o644)
		}, []string{"tags/x/1.json", "is not trusted"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, tr := build(t)
			c.harm(t, s, tr)
			told := fmt.Sprintf("%+v", verify(t, s))
			for _, w := range c.want {
				if !strings.Contains(told, w) {
					t.Errorf("found %s, want something about %q", told, w)
				}
			}
		})
	}
}

// Verify can drop damaged objects, and the next publish writes them again.
func TestDropAndPublishAgain(t *testing.T) {
	s, dir, cache := newStore(t), t.TempDir(), t.TempDir()
	mixed(t, dir)
	p := publish(t, s, dir, "x", cache)
	n := 0
	for path := range objects(t, s) {
		if n++; n%3 == 0 {
			flip(t, path)
		}
	}
	v, err := s.Verify(context.Background(), store.VerifyOptions{Drop: true})
	if err != nil || v.Dropped != n/3 {
		t.Fatalf("%d of %d damaged objects were dropped, %v", v.Dropped, n/3, err)
	}
	if q := publish(t, s, dir, "x", cache); q.Tree != p.Tree || int(q.Objects) != n/3 {
		t.Errorf("published again: tree %s after %s, %d objects", q.Tree.Short(), p.Tree.Short(), q.Objects)
	}
	if found := verify(t, s); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

func TestTagsOfManyPublishers(t *testing.T) {
	s := newStore(t)
	const publishers, rounds = 6, 4
	var group sync.WaitGroup
	for n := range publishers {
		group.Go(func() {
			dir := t.TempDir()
			for i := range rounds {
				write(t, dir, "f", fmt.Appendf(nil, "%d of %d", i, n))
				if n == 0 {
					if err := childCommand(s, "publish", dir, "x", "").Run(); err != nil {
						t.Error(err)
					}
					continue
				}
				publish(t, s, dir, "x", "")
			}
		})
	}
	group.Wait()
	h, err := s.History(mustRef(t, "x"))
	if err != nil {
		t.Fatal(err)
	}
	if len(h) != publishers*rounds {
		t.Errorf("%d records of %d publishes", len(h), publishers*rounds)
	}
	for i, e := range h {
		if e.Record.Serial != int64(i+1) || i > 0 && e.Record.Previous != object.Sum(h[i-1].Line) {
			t.Errorf("record %d: %+v", i, e.Record)
		}
	}
	r, err := s.Resolve(mustRef(t, "x"))
	if err != nil || r.Serial != int64(len(h)) {
		t.Errorf("the current record is %+v, %v", r, err)
	}
}

func TestHistoryAfterACrash(t *testing.T) {
	history := func(s *store.Store) string { return filepath.Join(s.Dir(), "tags/x/latest.history.jsonl") }
	for name, c := range map[string]struct {
		crash  func(s *store.Store, content []byte) error
		serial int64 // serial number of the next record
	}{
		"a torn line": {func(s *store.Store, content []byte) error {
			return os.WriteFile(history(s), append(content, content[:100]...), 0o644)
		}, 3},
		"a line whose newline is missing": {func(s *store.Store, content []byte) error {
			return os.WriteFile(history(s), content[:len(content)-1], 0o644)
		}, 3},
		"a line that TAG.json does not have yet": {func(s *store.Store, content []byte) error {
			first, _, _ := bytes.Cut(content, []byte("\n"))
			return os.WriteFile(filepath.Join(s.Dir(), "tags/x/latest.json"), first, 0o644)
		}, 3},
		"no history": {func(s *store.Store, content []byte) error { return os.Remove(history(s)) }, 3},
		"no TAG.json": {func(s *store.Store, content []byte) error {
			return os.Remove(filepath.Join(s.Dir(), "tags/x/latest.json"))
		}, 3},
	} {
		s, dir := newStore(t), t.TempDir()
		for i := range 2 {
			write(t, dir, "f", fmt.Append(nil, i))
			publish(t, s, dir, "x", "")
		}
		content, err := os.ReadFile(history(s))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.crash(s, content); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "f", []byte("next"))
		if p := publish(t, s, dir, "x", ""); p.Serial != c.serial {
			t.Errorf("%s: the next serial is %d, want %d", name, p.Serial, c.serial)
		}
		if found := verify(t, s); len(found) > 0 {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

func TestWriterKeepsWhatItCountsOn(t *testing.T) {
	s := newStore(t)
	put := func(content string) object.Digest {
		w, err := s.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		d, _, err := w.Put([]byte(content))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Object(d); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an object that was not flushed can be seen: %v", err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		return d
	}
	counted, forgotten := put("counted on"), put("forgotten")
	time.Sleep(20 * time.Millisecond) // wait for a tick of the clock
	w, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := w.Has(counted); !ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	if c := collect(t, s, store.GCOptions{}); c.Removed != 1 || c.Young != 1 {
		t.Errorf("beside a writer: %+v", c)
	}
	if _, ok, err := w.Has(forgotten); ok || err != nil {
		t.Errorf("the writer still finds what the gc removed: %v", err)
	}
	if n, err := w.PutStored(forgotten, object.Encode(nil, []byte("forgotten"))); err != nil || n == 0 {
		t.Errorf("%d, %v", n, err)
	}
	if err := errors.Join(w.Flush(), w.Close()); err != nil {
		t.Fatal(err)
	}
	for _, d := range []object.Digest{counted, forgotten} {
		if _, err := s.Content(d, -1); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(20 * time.Millisecond)
	if c := collect(t, s, store.GCOptions{}); c.Removed != 2 || c.Young != 0 {
		t.Errorf("after the writer: %+v", c)
	}
}

func TestProfiles(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	mixed(t, dir)
	write(t, dir, "incompressible", noise(77, 20<<20))
	tr, err := s.Tree(publish(t, s, dir, "x", "").Tree)
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	recorded := &tree.Profile{Tree: tr.Digest()}
	var all []int
	for _, i := range rand.New(rand.NewPCG(5, 8)).Perm(len(tr.Chunks())) {
		part := tree.Part{Chunk: i}
		if n := object.Leaves(tr.Chunks()[i].Size); n > 8 && i%2 == 0 {
			part.Runs = []object.Run{{From: 0, To: 2}, {From: 3, To: 4}, {From: n - 3, To: n}}
		}
		recorded.Parts = append(recorded.Parts, part)
		if !tr.Chunks()[i].Hole() {
			all = append(all, i)
		}
	}
	recorded.Parts = append(recorded.Parts, recorded.Parts[:2]...)
	if _, err := s.PublishProfile(context.Background(), recorded, "start", key); err != nil {
		t.Fatal(err)
	}
	r, p, err := s.Profile(tr.Digest(), "start")
	if err != nil || r.Name != "start" {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := slices.Sorted(slices.Values(p.Chunks())); !slices.Equal(got, slices.Sorted(slices.Values(all))) {
		t.Error("the chunks are others")
	}
	if len(p.Bundles) != 8 {
		t.Errorf("%d bundles of more than 10 MiB", len(p.Bundles))
	}
	bundled, some := 0, 0
	p.InBundles(func(i int, b tree.Bundle, parts []tree.Part) bool {
		row, err := s.Content(b.Digest, b.Size)
		if err != nil {
			t.Fatal(err)
		}
		if len(row) > tree.MaxBundle {
			t.Errorf("bundle %d has %d bytes", i, len(row))
		}
		last := -1
		for _, part := range parts {
			if at := slices.Index(all, part.Chunk); at < last {
				t.Errorf("bundle %d: chunk %d is out of order", i, part.Chunk)
			} else {
				last = at
			}
			c := tr.Chunks()[part.Chunk]
			n := part.Size(c.Size)
			if err := object.OpenSlice(c.Digest, c.Size, part.Slice(c.Size), row[:n], func(int64, []byte) {}); err != nil {
				t.Errorf("bundle %d, chunk %d: %v", i, part.Chunk, err)
			}
			if !part.Whole() {
				some++
				if want := fmt.Sprintf("[{0 4} {%d %d}]", object.Leaves(c.Size)-3, object.Leaves(c.Size)); fmt.Sprint(part.Runs) != want {
					t.Errorf("chunk %d: leaves %v, want %s", part.Chunk, part.Runs, want)
				}
			}
			row = row[n:]
		}
		bundled += len(parts)
		return true
	})
	if bundled != len(all) || some == 0 {
		t.Errorf("%d of %d parts are in bundles, %d of them are not whole chunks", bundled, len(all), some)
	}

	time.Sleep(20 * time.Millisecond)
	if c := collect(t, s, store.GCOptions{}); c.Removed != 0 || c.Profiles != 0 {
		t.Errorf("a gc took from a profile: %+v", c)
	}
	if found := verify(t, s); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	// A bundle of one whole chunk is the object of that chunk, and the first bundle may
	// also be part of the tag's bootstrap, which Verify would report too. The test damages
	// a bundle of several parts.
	several := 1 + slices.IndexFunc(p.Bundles[1:], func(b tree.Bundle) bool { return b.Parts > 1 })
	if several == 0 {
		t.Fatalf("no bundle of several parts: %+v", p.Bundles)
	}
	flip(t, filepath.Join(s.Dir(), p.Bundles[several].Digest.Path()))
	if found := verify(t, s); len(found) != 2 || !strings.Contains(fmt.Sprint(found), fmt.Sprintf("bundle %d", several)) {
		t.Errorf("a damaged bundle: %+v", found)
	}
	// The collector removes the profile together with its tree.
	write(t, dir, "incompressible", nil)
	publish(t, s, dir, "x", "")
	time.Sleep(20 * time.Millisecond)
	if c := collect(t, s, store.GCOptions{}); c.Profiles != 1 || c.Trees != 1 {
		t.Errorf("the tree went: %+v", c)
	}
	if found := verify(t, s); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}
