package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"premix/internal/kit/beneath"
)

func soak() bool { return os.Getenv("PREMIX_SOAK") == "1" }

// damage overwrites n bytes of a file without the knowledge of the cache.
func damage(t testing.TB, path string, off int64, n int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if _, err = f.ReadAt(b, off); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	for i := range b {
		b[i] ^= 0x55
	}
	if _, err = f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDamageIsNoticed(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 50, chunks: 20, mean: 50_000, page: 4096})
	c := openCache(t, dir, Options{})
	tr := openTree(t, c, s.digest, w)
	readAll(t, tr, s)
	settle(t, c)
	path := tr.ImagePath()

	// Damage the file while the cache runs, after the chunk was verified.
	damage(t, path, s.offs[5], 1)
	damage(t, path, s.offs[6]-1, 1)
	mustRead(t, tr, s, s.offs[5], s.chunks[5].Size)
	if n := tr.Stats().Corrupt; n != 1 {
		t.Errorf("%d chunks were found to be wrong", n)
	}
	// If the origin is down, the read fails. It succeeds again once the origin is up.
	damage(t, path, s.offs[8]+100, 1)
	w.down.Store(true)
	var re *ReadError
	if _, err := tr.ReadAt(t.Context(), make([]byte, 200), s.offs[8]); !errors.As(err, &re) {
		t.Errorf("damaged, and the origin down: %v", err)
	}
	w.down.Store(false)
	mustRead(t, tr, s, s.offs[8], 200)

	// Damage the file between two openings of the cache.
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	damage(t, path, s.offs[3]+17, 1)
	c = openCache(t, dir, Options{})
	tr = openTree(t, c, s.digest, w)
	readAll(t, tr, s)
	if n := tr.Stats().Corrupt; n != 1 {
		t.Errorf("%d chunks were found to be wrong after an opening", n)
	}
}

func TestCheck(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 51, chunks: 30, mean: 20_000, page: 7, holes: true})
	c := openCache(t, dir, Options{})
	tr := openTree(t, c, s.digest, w)
	if err := tr.Complete(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	r, err := c.Check(t.Context())
	if err != nil || len(r.Wrong) != 0 || r.Trees != 1 || r.Bytes+tr.holes.Load() != tr.Size() {
		t.Fatalf("%+v, %v", r, err)
	}
	bad := 4
	for s.chunks[bad].Hole() {
		bad++
	}
	damage(t, tr.ImagePath(), s.offs[bad], 1)
	damage(t, tr.dir+"/manifest", 5, 1)
	damage(t, tr.dir+"/pages", 50, 1)
	r, err = c.Check(t.Context())
	if err != nil || len(r.Wrong) != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	if r, err = c.Check(t.Context()); err != nil || len(r.Wrong) != 0 {
		t.Errorf("a second time: %+v, %v", r, err)
	}
	if tr.IsComplete() {
		t.Error("a wrong chunk was not punched")
	}
	if err := tr.Verify(t.Context()); err != nil || !tr.IsComplete() {
		t.Errorf("verifying again: %v, %+v", err, tr.Stats())
	}
}

// The kernel reads a held image file directly, so the file must be complete and right.
func TestCompleteImageFileIsTheImage(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 52, chunks: 100, mean: 9000, page: 7, holes: true})
	c := openCache(t, dir, Options{})
	tr := openTree(t, c, s.digest, w)
	if tr.IsComplete() {
		t.Error("complete before anything was fetched")
	}
	release := tr.Hold()
	defer release()
	if err := tr.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(tr.ImagePath())
	if err != nil || !bytes.Equal(got, s.image) {
		t.Errorf("the image file is not the image (%v)", err)
	}
}

// Many readers read at random places while chunks are evicted, files are damaged, trees are
// dropped, pinned, and moved to memory and back, and the cache is closed and opened again.
// No read returns a wrong byte.
func TestNeverAWrongByte(t *testing.T) {
	rounds, length := 4, 700*time.Millisecond
	if soak() {
		rounds, length = 60, 2*time.Second
	}
	w, dir, ram := newWorld(), t.TempDir(), t.TempDir()
	a := w.publish(t, shape{seed: 60, chunks: 300, mean: 7000, meta: 10, page: 64, holes: true})
	b := w.publish(t, shape{seed: 61, chunks: 300, mean: 7000, page: 64, holes: true, same: []sample{a}})
	d := w.publish(t, shape{seed: 62, chunks: 40, mean: 90_000, page: 64, same: []sample{a, b}})
	samples := []sample{a, b, d}
	for round := range rounds {
		// Every fourth round verifies all reads.
		o := Options{Quota: 4 << 20, Floor: -1, RAMDir: ram, RAMQuota: 8 << 20, VerifyAlways: round%4 == 3}
		ctx, cancel := context.WithTimeout(t.Context(), length)
		hammer(t, ctx, dir, o, w, samples, uint64(round))
		cancel()
		// At the next opening the files on disk may have any content.
		r := rand.New(rand.NewPCG(uint64(round), 9))
		for _, s := range samples {
			for _, name := range []string{"present", "pages", "manifest", "image"} {
				path := filepath.Join(dir, "trees", s.digest.String(), name)
				if info, err := os.Stat(path); err == nil && info.Size() > 0 && r.IntN(4) == 0 {
					damage(t, path, r.Int64N(info.Size()), 1+r.IntN(10))
				}
			}
		}
	}
}

func hammer(t *testing.T, ctx context.Context, dir string, o Options, w *world, samples []sample, seed uint64) {
	t.Helper()
	c, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	going := func(f func(r *rand.Rand)) {
		seed += 1000
		r := rand.New(rand.NewPCG(seed, 2))
		wg.Go(func() {
			for ctx.Err() == nil {
				f(r)
			}
		})
	}
	allowed := func(what string, err error) {
		var busy *BusyError
		var full *NoRoomError
		var absent *NotCachedError
		if err != nil && !errors.As(err, &busy) && !errors.As(err, &full) && !errors.As(err, &absent) && !errors.Is(err, errGone) && ctx.Err() == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range 8 {
		going(func(r *rand.Rand) {
			s := samples[r.IntN(len(samples))]
			tr, err := c.Tree(ctx, s.digest, w)
			if err != nil {
				allowed("open", err)
				return
			}
			defer tr.Close()
			at := r.Int64N(int64(len(s.image)))
			for range 1 + r.IntN(60) {
				n := 1 + r.Int64N(30_000)
				if r.IntN(3) == 0 {
					at = r.Int64N(int64(len(s.image)))
				}
				p := bytes.Repeat([]byte{0xa5}, int(n))
				got, err := tr.ReadAt(ctx, p, at)
				if err != nil && !errors.Is(err, io.EOF) {
					allowed("read", err)
					return
				}
				want := s.image[at:min(at+n, int64(len(s.image)))]
				if got != len(want) || !bytes.Equal(p[:got], want) {
					t.Errorf("%d wrong bytes at %d", got, at)
					return
				}
				if at += n; at >= int64(len(s.image)) {
					at = 0
				}
			}
		})
	}
	going(func(r *rand.Rand) { // damage the files
		s := samples[r.IntN(len(samples))]
		for _, d := range []string{filepath.Join(dir, "trees"), o.RAMDir} {
			f, err := os.OpenFile(filepath.Join(d, s.digest.String(), "image"), os.O_RDWR, 0)
			if err != nil {
				continue
			}
			b := make([]byte, 1+r.IntN(100))
			fill(r, b)
			if _, err := f.WriteAt(b, r.Int64N(int64(len(s.image)-len(b)))); err != nil {
				t.Error(err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
	})
	going(func(r *rand.Rand) { // act as an operator does
		d := samples[r.IntN(len(samples))].digest
		switch r.IntN(6) {
		case 0:
			allowed("drop", c.Drop(d))
		case 1:
			allowed("pin", c.Pin(ctx, d, false))
		case 2:
			if err := c.Pin(ctx, d, true); !errors.Is(err, ErrClosed) { // closed, and damaged on disk
				allowed("pin in memory", err)
			}
		case 3, 4:
			allowed("unpin", c.Unpin(ctx, d))
		case 5:
			_, err := c.Check(ctx)
			allowed("check", err)
		}
		c.Status()
		time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
	})
	going(func(r *rand.Rand) { // the background work
		s := samples[r.IntN(len(samples))]
		tr, err := c.Tree(ctx, s.digest, w)
		if err != nil {
			allowed("open", err)
			return
		}
		allowed("complete", tr.Complete(ctx, 0))
		time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	settle(t, c)
	keepsTo(t, c, func() int64 { return o.Quota })
	agreesWithDu(t, c, dir)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if n := w.running.Load(); n != 0 {
		t.Errorf("%d fetches outlived the cache", n)
	}
}

// killedDir is the variable in the environment of the process that TestKilled kills. It
// contains the directory of the cache.
const killedDir = "PREMIX_TEST_CACHE"

func killedWorld(t testing.TB) (*world, sample) {
	w := newWorld()
	return w, w.publish(t, shape{seed: 70, chunks: 600, mean: 10_000, page: 100, holes: true})
}

// TestHelperProcess is not a test, but the process that TestKilled starts and kills.
func TestHelperProcess(t *testing.T) {
	dir := os.Getenv(killedDir)
	if dir == "" {
		return
	}
	w, s := killedWorld(t)
	c, err := Open(dir, Options{Quota: 3 << 20})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := c.Tree(t.Context(), s.digest, w)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	for {
		mustRead(t, tr, s, r.Int64N(int64(len(s.image))), 20_000)
	}
}

// A process is killed at a random moment while it fetches and evicts. The next process can
// use the cache, reads no wrong byte, and keeps within the quota.
func TestKilled(t *testing.T) {
	times := 10
	if soak() {
		times = 100
	}
	w, s := killedWorld(t)
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(5, 5))
	for n := range times {
		cmd := exec.Command(os.Args[0], "-test.run=^TestHelperProcess$")
		cmd.Env = append(os.Environ(), killedDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if n%5 != 0 { // every fifth is killed while it opens the cache
			if _, err := out.Read(make([]byte, 6)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Duration(r.IntN(60_000)) * time.Microsecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("it ended by itself")
		}
		c, err := Open(dir, Options{Quota: 3 << 20})
		if err != nil {
			t.Fatal(err)
		}
		keepsTo(t, c, func() int64 { return 3 << 20 })
		agreesWithDu(t, c, dir)
		tr, err := c.Tree(t.Context(), s.digest, w)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			mustRead(t, tr, s, r.Int64N(int64(len(s.image))), 20_000)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKilledWhileMade opens a cache whose maker was killed before it had written the format.
func TestKilledWhileMade(t *testing.T) {
	dir := t.TempDir()
	part := filepath.Join(dir, beneath.Prefix+"X")
	if err := os.WriteFile(part, []byte("prem"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := openCache(t, dir, Options{})
	agreesWithDu(t, c, dir)
	if _, err := os.Lstat(part); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the part is left: %v", err)
	}
}

func TestInUse(t *testing.T) {
	dir := t.TempDir()
	c := openCache(t, dir, Options{})
	_, err := Open(dir, Options{})
	var used *InUseError
	if !errors.As(err, &used) || used.PID != os.Getpid() {
		t.Errorf("opened twice: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	openCache(t, dir, Options{})
}

func TestForeignDirectory(t *testing.T) {
	for name, content := range map[string]string{"format": "premix cache 2\n", "thesis.tex": "x"} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		var bad *FormatError
		if _, err := Open(dir, Options{}); !errors.As(err, &bad) || bad.Hint() == "" {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%s was changed: %q, %v", name, got, err)
		}
	}
}

// The next opening removes everything that a crash may leave.
func TestLeftovers(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 71, chunks: 60, mean: 10_000, page: 7})
	c := openCache(t, dir, Options{})
	tr := openTree(t, c, s.digest, w)
	mustRead(t, tr, s, s.offs[20], 100_000)
	settle(t, c)
	had := tr.Stats().PresentChunks
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hex := s.digest.String()
	write("running", "")
	write("trash/half/image", "x")
	write("trees/nonsense", "x")
	write("trees/"+hex[:63]+strconv.Itoa(1-int(hex[63])%2)+"/image", "x")
	write("trees/"+hex+"/manifest.tmp", "x")
	write("pins/"+hex+".tmp", "ram")
	damage(t, filepath.Join(dir, "trees", hex, "image"), 0, 100_000) // damage bytes that no record describes as present
	c = openCache(t, dir, Options{})
	tr = openTree(t, c, s.digest, w)
	if got := tr.Stats().PresentChunks; got != had {
		t.Errorf("%d chunks are present, %d were", got, had)
	}
	agreesWithDu(t, c, dir)
	if got := allocatedAt(tr.ImagePath()); got > 250_000 {
		t.Errorf("%d bytes are allocated: what nothing speaks of is still there", got)
	}
	for _, name := range []string{"trash", "pins"} {
		if left, err := os.ReadDir(filepath.Join(dir, name)); err != nil || len(left) != 0 {
			t.Errorf("%s still has %v, %v", name, left, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "trees")); err != nil || len(left) != 1 {
		t.Errorf("trees still has %v, %v", left, err)
	}
	readAll(t, tr, s)
}

// A held image file is not punched. A damaged chunk in it is overwritten in place.
func TestHeldIsMendedInPlace(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	s := w.publish(t, shape{seed: 72, chunks: 30, mean: 20_000, page: 4096})
	c := openCache(t, dir, Options{})
	tr := openTree(t, c, s.digest, w)
	release := tr.Hold()
	defer release()
	if err := tr.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := allocatedAt(tr.ImagePath())
	damage(t, tr.ImagePath(), s.offs[7], 1)
	r, err := c.Check(t.Context())
	if err != nil || len(r.Wrong) != 1 || !r.Wrong[0].Held {
		t.Fatalf("%+v, %v", r, err)
	}
	if tr.IsComplete() || allocatedAt(tr.ImagePath()) < before {
		t.Errorf("complete: %v; %d bytes allocated, %d before", tr.IsComplete(), allocatedAt(tr.ImagePath()), before)
	}
	if err := tr.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(tr.ImagePath()); err != nil || !bytes.Equal(got, s.image) {
		t.Errorf("the image file is not the image (%v)", err)
	}
}

// After Close, reads fail at once and do not hang.
func TestClosed(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 73, chunks: 30, mean: 20_000, page: 7})
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	mustRead(t, tr, s, s.offs[20], 100)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{20, 21, 3} { // a present chunk, an absent one, and one of an index page that is not loaded
		if _, err := tr.ReadAt(t.Context(), make([]byte, 100), s.offs[i]); !errors.Is(err, ErrClosed) {
			t.Errorf("chunk %d: %v", i, err)
		}
	}
	if _, err := c.Tree(t.Context(), s.digest, w); !errors.Is(err, ErrClosed) {
		t.Errorf("opening a tree: %v", err)
	}
	if err := c.Drop(s.digest); !errors.Is(err, ErrClosed) {
		t.Errorf("dropping a tree: %v", err)
	}
	if err := tr.Complete(t.Context(), 0); !errors.Is(err, ErrClosed) {
		t.Errorf("completing a tree: %v", err)
	}
	if err := errors.Join(tr.Close(), c.Close()); err != nil {
		t.Error(err)
	}
}
