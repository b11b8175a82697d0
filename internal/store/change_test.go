package store_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/store"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

func noise(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 7))
	p := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(p[i:], r.Uint64())
	}
	return p[:n]
}

// write creates a file and its directories. The modification time is fixed, so that it does
// not depend on when the test runs.
func write(t testing.TB, dir, name string, content []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// settle sets the same time on everything below dir, and modes that do not depend on the
// umask.
func settle(t testing.TB, dir string) {
	t.Helper()
	then := time.Unix(1_234_567_890, 5)
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if e.IsDir() {
			mode = 0o755
		}
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
		return os.Chtimes(path, then, then)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mixed makes a directory with files of all classes.
func mixed(t testing.TB, dir string) {
	t.Helper()
	for i := range 200 {
		write(t, dir, fmt.Sprintf("small/d%d/f%03d", i%7, i), noise(uint64(i), 4500+i*97))
		write(t, dir, fmt.Sprintf("tiny/t%03d", i), fmt.Appendf(nil, "tiny %d", i))
	}
	for i := range 4 {
		write(t, dir, fmt.Sprintf("large/l%d", i), noise(uint64(1000+i), 2<<20+i))
	}
	write(t, dir, "large/again", noise(1000, 2<<20))
	settle(t, dir)
}

// TestReproducible checks that the digest of a tree does not depend on the umask, the order
// of names on disk, or the places of holes.
func TestReproducible(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	mixed(t, a)
	old := unix.Umask(0o077)
	names := []string{}
	err := filepath.WalkDir(a, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			rel, _ := filepath.Rel(a, path)
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, n := range names {
		content, err := os.ReadFile(filepath.Join(a, n))
		if err != nil {
			t.Fatal(err)
		}
		write(t, b, n, content)
	}
	unix.Umask(old)
	// The file is data in a and a hole in b.
	write(t, a, "zeros", make([]byte, 3<<20))
	write(t, b, "zeros", nil)
	if err := os.Truncate(filepath.Join(b, "zeros"), 3<<20); err != nil {
		t.Fatal(err)
	}
	settle(t, a)
	settle(t, b)
	x, y := publish(t, newStore(t), a, "x", ""), publish(t, newStore(t), b, "y:1", "")
	if x.Tree != y.Tree {
		t.Errorf("equal directories became the trees %s and %s", x.Tree, y.Tree)
	}
}

// The digest of a tree must stay the same between versions. A change of the layout, the
// chunker or the metadata makes it another one in all stores, and this test fails then.
func TestDigestStaysTheSame(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("owners are part of the digest: it is known for root's files")
	}
	dir := t.TempDir()
	mixed(t, dir)
	if err := os.Chown(dir, 0, 0); err != nil {
		t.Fatal(err)
	}
	const want = "342c8712ea26b1772a086644a24c25cf7b070f6009c26443ab1955418b4cfec1"
	if p := publish(t, newStore(t), dir, "x", ""); p.Tree.String() != want {
		t.Errorf("tree %s, want %s", p.Tree, want)
	}
}

// dataChunks returns the digests of the chunks that lie behind the metadata.
func dataChunks(t testing.TB, s *store.Store, d object.Digest) map[object.Digest]bool {
	t.Helper()
	tr, err := s.Tree(d)
	if err != nil {
		t.Fatal(err)
	}
	chunks, at := map[object.Digest]bool{}, int64(0)
	for _, c := range tr.Chunks() {
		if at >= tr.Manifest().Meta {
			chunks[c.Digest] = true
		}
		at += c.Size
	}
	return chunks
}

func TestSmallChangesChangeFewChunks(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	mixed(t, dir)
	before := dataChunks(t, s, publish(t, s, dir, "x", "").Tree)
	for _, c := range []struct {
		what   string
		change func()
		most   int
	}{
		{"a small file added in front", func() { write(t, dir, "small/d0/a", noise(1, 5000)) }, 2},
		{"a small file added amid", func() { write(t, dir, "small/d3/f1000", noise(2, 60_000)) }, 2},
		{"a small file removed", func() { os.Remove(filepath.Join(dir, "small/d3/f101")) }, 2},
		{"a tiny file added", func() { write(t, dir, "tiny/t1000", []byte("x")) }, 0},
		{"a copy added", func() { write(t, dir, "copy", noise(1001, 2<<20+1)) }, 0},
		{"a byte in front of a large file", func() { write(t, dir, "large/l2", append([]byte{1}, noise(1002, 2<<20+2)...)) }, 3},
		{"a large file renamed", func() { os.Rename(filepath.Join(dir, "large/l3"), filepath.Join(dir, "a")) }, 0},
	} {
		c.change()
		after := dataChunks(t, s, publish(t, s, dir, "x", "").Tree)
		fresh := 0
		for d := range after {
			if !before[d] {
				fresh++
			}
		}
		if fresh > c.most {
			t.Errorf("%s: %d of %d chunks are new, want %d at most", c.what, fresh, len(after), c.most)
		}
		before = after
	}
}

func TestOnlyWhatChangedIsRead(t *testing.T) {
	s, dir, cache := newStore(t), t.TempDir(), t.TempDir()
	mixed(t, dir)
	first := publish(t, s, dir, "x", cache)
	if first.ReadFiles != 405 {
		t.Errorf("the first time %d files were read of 405", first.ReadFiles)
	}
	again := publish(t, s, dir, "x", cache)
	if again.ReadFiles != 0 || again.ReadBytes != 0 || again.Objects != 0 || !again.Unchanged || again.Tree != first.Tree {
		t.Errorf("published unchanged: %+v", again)
	}
	for _, c := range []struct {
		what   string
		change func() error
		most   int64 // bytes read
		files  int64 // at least
	}{
		{"a tiny file", func() error { return os.WriteFile(filepath.Join(dir, "tiny/t007"), []byte("else"), 0o644) }, 4, 1},
		{"a large file of the same size and time", func() error {
			path := filepath.Join(dir, "large/l1")
			if err := os.WriteFile(path, noise(5, 2<<20+1), 0o644); err != nil {
				return err
			}
			then := time.Unix(1_234_567_890, 5)
			return os.Chtimes(path, then, then)
		}, 2<<20 + 1, 1},
		// The chunk also contains the neighbouring files, which are read as well.
		{"a small file", func() error { return os.WriteFile(filepath.Join(dir, "small/d1/f001"), noise(3, 5000), 0o644) }, 2 << 20, 1},
		{"a mode", func() error { return os.Chmod(filepath.Join(dir, "tiny/t008"), 0o600) }, 6, 1},
		{"a name", func() error {
			return os.Rename(filepath.Join(dir, "tiny/t009"), filepath.Join(dir, "tiny/renamed"))
		}, 6, 1},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		p := publish(t, s, dir, "x", cache)
		if p.ReadBytes > c.most || p.ReadFiles < c.files {
			t.Errorf("%s changed: %d files, %d bytes were read", c.what, p.ReadFiles, p.ReadBytes)
		}
		if whole := publish(t, s, dir, "x", ""); whole.Tree != p.Tree {
			t.Errorf("%s changed: tree %s with the cache, %s without", c.what, p.Tree.Short(), whole.Tree.Short())
		}
	}
}

// The test asks the kernel (inotify(7)) whether a file was opened, and does not trust the
// counters of premix.
func TestUnchangedFilesAreNotOpened(t *testing.T) {
	s, dir, cache := newStore(t), t.TempDir(), t.TempDir()
	for i, n := range []int{10, 5000, 200_000} {
		write(t, dir, fmt.Sprint("f", i), noise(uint64(i), n))
	}
	publish(t, s, dir, "x", cache)
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for i := range 3 {
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(dir, fmt.Sprint("f", i)), unix.IN_OPEN|unix.IN_ACCESS); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, s, dir, "x", cache)
	if n, err := unix.Read(fd, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("files were opened (%d bytes of events, %v)", n, err)
	}
	publish(t, s, dir, "x", "")
	if n, _ := unix.Read(fd, make([]byte, 4096)); n <= 0 {
		t.Error("without the cache no file was opened: this test sees nothing")
	}
}

func TestCacheIsOnlyAHelp(t *testing.T) {
	s, dir, cache := newStore(t), t.TempDir(), t.TempDir()
	mixed(t, dir)
	want := publish(t, s, dir, "x", cache).Tree
	other := publish(t, newStore(t), dir, "x", cache)
	if other.Tree != want || other.ReadFiles == 0 {
		t.Errorf("another store with the same cache: %+v", other)
	}
	files, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("caches %q, %v", files, err)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for i := range 16 {
		damaged := bytes.Clone(whole)
		if i%2 == 0 {
			damaged = damaged[:len(damaged)*i/16]
		} else {
			damaged[len(damaged)*i/16] ^= 0x10
		}
		if err := os.WriteFile(files[0], damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if p := publish(t, s, dir, "x", cache); p.Tree != want {
			t.Fatalf("with a damaged cache (%d): tree %s, want %s", i, p.Tree, want)
		}
	}
}

// restless changes a file at each read, before the reader gets the content. It uses
// fanotify(7), so that the order of events does not depend on the scheduler.
func restless(t *testing.T, path string) (stop func()) {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	if err == nil {
		err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_ACCESS_PERM, unix.AT_FDCWD, path)
	}
	if err != nil {
		t.Skipf("fanotify is needed to change a file at the right moment: %v", err)
	}
	events := os.NewFile(uintptr(fd), "fanotify")
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		// The fields of an event: its length (4 bytes), the version, a reserved byte, the
		// length of the header (2), the mask (8), the descriptor (4) and the process (4).
		buf := make([]byte, 24)
		for i := byte(0); ; i++ {
			if _, err := events.Read(buf); err != nil {
				return
			}
			f.WriteAt([]byte{i}, 50)
			file := binary.NativeEndian.Uint32(buf[16:])
			answer := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, file), unix.FAN_ALLOW)
			events.Write(answer)
			unix.Close(int(file))
		}
	}()
	return func() { events.Close(); <-gone; f.Close() }
}

func TestFileThatKeepsChanging(t *testing.T) {
	for _, size := range []int{100, 10_000, 8 << 20} {
		s, dir := newStore(t), t.TempDir()
		write(t, dir, "quiet", noise(1, 10_000))
		write(t, dir, "sub/restless", noise(2, size))
		key, err := s.Key("")
		if err != nil {
			t.Fatal(err)
		}
		stop := restless(t, filepath.Join(dir, "sub/restless"))
		_, err = s.Publish(context.Background(), dir, mustRef(t, "x"), store.PublishOptions{Key: key})
		stop()
		var source *store.SourceError
		if !errors.As(err, &source) || source.Path != "sub/restless" || source.Hint() == "" {
			t.Errorf("a file of %d bytes that keeps changing: %v", size, err)
		}
		if _, err := s.Resolve(mustRef(t, "x")); err == nil {
			t.Error("there is a tag all the same")
		}
		// Once the file is quiet, it can be published.
		cache := t.TempDir()
		p := publish(t, s, dir, "x", cache)
		if q := publish(t, s, dir, "y", ""); q.Tree != p.Tree {
			t.Errorf("tree %s, then %s", p.Tree.Short(), q.Tree.Short())
		}
	}
}

// Files change between and within publishes, as fast as the clock ticks or faster. Whatever
// one publish has read, the next one publishes the current content.
func TestRacyChanges(t *testing.T) {
	s, dir, cache := newStore(t), t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "f")
	write(t, dir, "f", []byte("0000"))
	for i := range 30 {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(fmt.Appendf(nil, "%04d", i), 0); err != nil { // the size stays the same
			t.Fatal(err)
		}
		f.Close()
		p := publish(t, s, dir, "x", cache)
		if got := string(readFile(t, s, p.Tree, "f")); got != fmt.Sprintf("%04d", i) {
			t.Fatalf("published %q in round %d", got, i)
		}
	}
}

// readFile reads a file of a tree through its image.
func readFile(t testing.TB, s *store.Store, d object.Digest, name string) []byte {
	t.Helper()
	tr, err := s.Tree(d)
	if err != nil {
		t.Fatal(err)
	}
	im, err := tr.Image()
	if err != nil {
		t.Fatal(err)
	}
	nid := im.Root()
	for part := range strings.SplitSeq(name, "/") {
		if nid, err = im.Lookup(nid, part); err != nil {
			t.Fatal(err)
		}
	}
	in, err := im.Inode(nid)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, in.Size)
	if n, _ := im.ReadAt(nid, content, 0); int64(n) != in.Size {
		t.Fatalf("%s: %d bytes of %d", name, n, in.Size)
	}
	return content
}

func TestDirectoryThatChangesIsWhole(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for i := range 300 {
		write(t, dir, fmt.Sprintf("d/%03d", i), noise(uint64(i), 100))
	}
	done, gone := make(chan struct{}), make(chan struct{})
	go func() { // the file always exists under one of two names
		defer close(gone)
		for {
			select {
			case <-done:
				return
			default:
				os.Rename(filepath.Join(dir, "d/100"), filepath.Join(dir, "d/zzz"))
				os.Rename(filepath.Join(dir, "d/zzz"), filepath.Join(dir, "d/100"))
				time.Sleep(2 * time.Millisecond)
			}
		}
	}()
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		p, err := s.Publish(context.Background(), dir, mustRef(t, "x"), store.PublishOptions{Key: key})
		var source *store.SourceError
		if errors.As(err, &source) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.Manifest.Inodes != 302 {
			t.Errorf("%d entries of 302 were published", p.Manifest.Inodes)
		}
	}
	close(done)
	<-gone
}

func TestSourceThatCannotBe(t *testing.T) {
	s := newStore(t)
	file := filepath.Join(t.TempDir(), "file")
	write(t, filepath.Dir(file), "file", []byte("x"))
	for what, dir := range map[string]string{
		"missing": filepath.Join(t.TempDir(), "missing"), "a file": file,
		"the store": s.Dir(), "in the store": filepath.Join(s.Dir(), "objects"), "around the store": filepath.Dir(s.Dir()),
	} {
		_, err := s.Publish(context.Background(), dir, mustRef(t, "x"), store.PublishOptions{})
		var use *store.UsageError
		if !errors.As(err, &use) || use.Hint() == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Publish(ctx, dir, mustRef(t, "x"), store.PublishOptions{Key: key}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	ref := tree.Ref{Name: "x", Digest: object.Sum(nil)}
	var use *store.UsageError
	if _, err := s.Publish(context.Background(), dir, ref, store.PublishOptions{Key: key}); !errors.As(err, &use) {
		t.Errorf("a reference with a digest: %v", err)
	}
}
