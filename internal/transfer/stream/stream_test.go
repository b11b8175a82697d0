package stream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/store"
	"premix/internal/store/object"
	premixtree "premix/internal/store/tree"
)

// far is the variable that makes the test binary a far end. Its value is the address for
// streams, and the last argument is the request.
const far = "PREMIX_TEST_FAR"

func TestMain(m *testing.M) {
	if address, ok := os.LookupEnv(far); ok {
		if err := Serve(context.Background(), os.Stdin, os.Stdout, address, 0, strings.TrimPrefix(os.Args[len(os.Args)-1], os.Args[0]), ""); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	reachable = "127.0.0.1"
	nowhere   = "203.0.113.1" // not an address of this machine (RFC 5737), so no port can be opened
)

func serve(t *testing.T, address string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"env", far + "=" + address, self, RequestMark}
}

// random returns n bytes that depend only on the seed.
func random(seed uint64, n int) []byte {
	var key [32]byte
	key[0] = byte(seed)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// special contains the bits that give the rights of a file's owner. A copy keeps them only
// together with owners.
const special = fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// look lists everything that every copy keeps.
func look(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%q %s %d", rel, info.Mode()&^special, info.ModTime().UnixNano())
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d %x", info.Size(), sha256.Sum256(content))
		case info.Mode()&fs.ModeSymlink != 0:
			text, err := os.Readlink(p)
			if err != nil {
				return err
			}
			b.WriteString(" -> " + text)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func same(t *testing.T, a, b string) {
	t.Helper()
	if x, y := look(t, a), look(t, b); x != y {
		t.Errorf("source:\n%s\ncopy:\n%s", x, y)
	}
}

func run(t *testing.T, j Copy) *Result {
	t.Helper()
	d, err := j.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// tree returns a tree with everything that a copy must keep.
func tree(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "tree")
	for i := range 700 {
		write(t, filepath.Join(root, fmt.Sprintf("many/d%d/f%d", i%7, i)), random(uint64(i), i))
	}
	write(t, filepath.Join(root, "large"), random(1, 3*minPiece+17))
	write(t, filepath.Join(root, "odd \xff\n'\"$x"), []byte("odd"))
	write(t, filepath.Join(root, "empty"), nil)
	write(t, filepath.Join(root, "closed/in it"), []byte("x"))
	f, err := os.Create(filepath.Join(root, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("far away"), 40<<20)
	if err := errors.Join(err, f.Truncate(64<<20), f.Close(),
		os.Symlink("many/d0", filepath.Join(root, "link")), os.Symlink("nowhere", filepath.Join(root, "dangling")),
		unix.Mkfifo(filepath.Join(root, "fifo"), 0o600), os.Mkdir(filepath.Join(root, "hollow"), 0o711),
		os.Chmod(filepath.Join(root, "large"), 0o400), os.Chmod(filepath.Join(root, "empty"), 0o751|fs.ModeSetuid),
		os.Chmod(filepath.Join(root, "closed"), 0o500),
		os.Chtimes(filepath.Join(root, "large"), time.Time{}, time.Unix(981173106, 123456789)),
		os.Chtimes(filepath.Join(root, "many"), time.Time{}, time.Unix(-5, 0))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "closed"), 0o700) })
	return root
}

// A tree arrives unchanged, in both directions, with and without streams.
func TestTree(t *testing.T) {
	source := tree(t)
	for _, address := range []string{reachable, nowhere} {
		for _, send := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,%t", address, send), func(t *testing.T) {
				dst := filepath.Join(t.TempDir(), "copy")
				t.Cleanup(func() { _ = os.Chmod(filepath.Join(dst, "closed"), 0o700) })
				j := Copy{Command: serve(t, address), Send: send, Local: dst, Remote: source}
				if send {
					j.Local, j.Remote = source, dst
				}
				d := run(t, j)
				if (d.Streams > 0) != (address == reachable) || d.Skipped != 1 || d.Files != 705 || d.Tries != 1 {
					t.Errorf("%+v", d)
				}
				if err := os.Remove(filepath.Join(source, "fifo")); err != nil {
					t.Fatal(err)
				}
				keep, err := os.Stat(dst)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(source, time.Time{}, keep.ModTime()); err != nil { // the end of the fifo has changed it
					t.Fatal(err)
				}
				same(t, source, dst)
				var s unix.Stat_t
				if err := unix.Stat(filepath.Join(dst, "sparse"), &s); err != nil || s.Blocks > 4096 {
					t.Errorf("the hole has %d blocks, %v", s.Blocks, err)
				}
				// A second copy sends no data, even if modes and times of the destination
				// were changed.
				if err := errors.Join(os.Chmod(filepath.Join(dst, "empty"), 0), os.Chtimes(filepath.Join(dst, "large"), time.Time{}, time.Now())); err != nil {
					t.Fatal(err)
				}
				if d := run(t, j); d.Sent != 0 {
					t.Errorf("%d bytes were sent again", d.Sent)
				}
				same(t, source, dst)
				if err := unix.Mkfifo(filepath.Join(source, "fifo"), 0o600); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// A copy continues an existing part: it sends only missing and wrong bytes.
func TestPart(t *testing.T) {
	dir := t.TempDir()
	source, dst := filepath.Join(dir, "source"), filepath.Join(dir, "copy")
	content := random(1, 20*minPiece+1)
	write(t, source, content)
	part := slices.Clone(content[:10*minPiece])
	part[5*minPiece] ^= 1
	write(t, dst, part)
	for _, send := range []bool{false, true} {
		j := Copy{Command: serve(t, reachable), Send: send, Local: dst, Remote: source}
		if send {
			j.Local, j.Remote = source, dst
		}
		write(t, dst, part)
		if d := run(t, j); d.Sent != 11*minPiece+1 {
			t.Errorf("%d bytes were sent, want %d", d.Sent, 11*minPiece+1)
		}
		same(t, source, dst)
	}
	// A destination that is longer than the source is truncated.
	write(t, dst, append(slices.Clone(content), "rest"...))
	if d := run(t, Copy{Command: serve(t, reachable), Local: dst, Remote: source}); d.Sent != 0 {
		t.Errorf("%d bytes were sent", d.Sent)
	}
	same(t, source, dst)
	// A hole of the source replaces other bytes of a part.
	if err := os.Truncate(source, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(source, int64(len(content))); err != nil {
		t.Fatal(err)
	}
	run(t, Copy{Command: serve(t, reachable), Local: dst, Remote: source})
	same(t, source, dst)
}

// Content that the receiver has elsewhere is not sent, whether it is in a store or in
// files, even if bytes were inserted.
func TestHave(t *testing.T) {
	dir := t.TempDir()
	old := random(2, 8<<20)
	now := slices.Concat(old[:3<<20], []byte("inserted"), old[3<<20:])
	source := filepath.Join(dir, "source")
	write(t, filepath.Join(source, "a/data"), now)
	write(t, filepath.Join(source, "small"), []byte("small"))
	write(t, filepath.Join(dir, "had/another name"), old)
	write(t, filepath.Join(dir, "had/small too"), []byte("small"))
	publish(t, filepath.Join(dir, "store"), filepath.Join(dir, "had"))
	for _, have := range []string{"had", "store"} {
		for _, send := range []bool{false, true} {
			dst := filepath.Join(t.TempDir(), "copy")
			j := Copy{Command: serve(t, reachable), Send: send, Local: dst, Remote: source, Have: []string{filepath.Join(dir, have)}}
			if send {
				j.Local, j.Remote = source, dst
			}
			// It sends at most the chunk with the insertion, the chunks around it, and the
			// end of a file.
			if d := run(t, j); d.Sent > 3<<20 {
				t.Errorf("%s: %d bytes were sent", have, d.Sent)
			}
			same(t, source, dst)
		}
	}
	_, err := (&Copy{Command: serve(t, reachable), Local: filepath.Join(dir, "x"), Remote: source, Have: []string{filepath.Join(dir, "none")}}).Run(t.Context())
	var target *TargetError
	if !errors.As(err, &target) {
		t.Errorf("error %v", err)
	}
}

// Chunks have the same names as in a store, those of long files and those of others.
func TestNames(t *testing.T) {
	for _, c := range []struct{ size, pieces int }{{2 << 20, 3}, {9 << 20, 20}} {
		testNames(t, c.size, c.pieces)
	}
}

func testNames(t *testing.T, size, least int) {
	dir := t.TempDir()
	content := slices.Concat(random(3, size), make([]byte, 3*store.HoleSize), random(4, 1<<20))
	write(t, filepath.Join(dir, "in/file"), content)
	s := publish(t, filepath.Join(dir, "store"), filepath.Join(dir, "in"))
	f, err := os.Open(filepath.Join(dir, "in/file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var pieces [][]byte
	holes, next := int64(0), int64(0)
	err = cutFile(t.Context(), f, int64(len(content)), func(at, n int64, data []byte) error {
		if at != next {
			t.Errorf("a piece at %d, want %d", at, next)
		}
		if next += n; data == nil {
			holes += n
		} else {
			pieces = append(pieces, slices.Clone(data))
		}
		return nil
	})
	if err != nil || next != int64(len(content)) || holes != 3*store.HoleSize {
		t.Fatalf("%d bytes, holes of %d: %v", next, holes, err)
	}
	missing := 0
	for _, p := range pieces {
		if _, err := s.Content(object.Sum(p), int64(len(p))); err != nil {
			missing++
		}
	}
	if len(pieces) < least || missing > 1 { // the last one, which a store pads
		t.Errorf("%d bytes: of %d chunks the store lacks %d", size, len(pieces), missing)
	}
}

// publish creates a store with a tree of a directory.
func publish(t *testing.T, at, dir string) *store.Store {
	t.Helper()
	s, err := store.Init(at, store.Options{Home: t.TempDir(), Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Publish(t.Context(), dir, premixtree.Ref{Name: "data", Tag: "1"}, store.PublishOptions{Key: key}); err != nil {
		t.Fatal(err)
	}
	return s
}

// If a connection breaks repeatedly, each time after some bytes, the copy only takes
// longer.
func TestBreaks(t *testing.T) {
	dir := t.TempDir()
	source, dst := filepath.Join(dir, "source"), filepath.Join(dir, "copy")
	write(t, source, random(5, 12<<20))
	command := []string{"sh", "-c", `"$@" | stdbuf -o0 head -c 5000000`, "sh"}
	j := Copy{Command: append(command, serve(t, nowhere)...), Local: dst, Remote: source}
	d := run(t, j)
	if d.Tries < 2 || d.Sent >= d.Bytes {
		t.Errorf("%+v", d)
	}
	same(t, source, dst)
	// A copy that never makes progress is given up, and the data that has arrived stays.
	if err := os.Remove(dst); err != nil {
		t.Fatal(err)
	}
	j.Command[2] = `"$@" | stdbuf -o0 head -c 1500000`
	_, err := j.Run(t.Context())
	var gone *PeerError
	if !errors.As(err, &gone) {
		t.Errorf("error %v", err)
	}
	var s unix.Stat_t
	if err := unix.Stat(dst, &s); err != nil || s.Blocks == 0 {
		t.Errorf("%d blocks are left, %v", s.Blocks, err)
	}
}

func TestFaults(t *testing.T) {
	dir := t.TempDir()
	file, some := filepath.Join(dir, "file"), filepath.Join(dir, "some")
	write(t, file, random(6, 1000))
	write(t, filepath.Join(some, "sub/file"), nil)
	write(t, filepath.Join(dir, "more/sub/file"), nil)
	write(t, filepath.Join(dir, "more/other"), nil)
	var source *SourceError
	var target *TargetError
	var gone *PeerError
	for _, c := range []struct {
		name, from, to string
		command        []string
		as             any
		want           string
	}{
		{"no source", filepath.Join(dir, "none"), filepath.Join(dir, "x"), serve(t, reachable), &source, "no such file"},
		{"a device", "/dev/null", filepath.Join(dir, "x"), serve(t, reachable), &source, "neither a file nor a directory"},
		{"a file in the way", some, file, serve(t, reachable), &target, ""},
		{"a directory in the way", file, some, serve(t, reachable), &target, "in the way"},
		{"something else in the way", some, filepath.Join(dir, "more"), serve(t, reachable), &target, "other is in the way"},
		{"a full disk", file, "/dev/full/x", serve(t, reachable), &target, ""},
		{"no program", file, filepath.Join(dir, "x"), []string{filepath.Join(dir, "none")}, &gone, "no such file"},
		{"one that says why", file, filepath.Join(dir, "x"), []string{"sh", "-c", "echo it will not >&2; exit 3"}, &gone, "it will not"},
		{"one that says something else", file, filepath.Join(dir, "x"), []string{"echo", "hello"}, &gone, ""},
	} {
		for _, send := range []bool{false, true} {
			j := Copy{Command: c.command, Send: send, Local: c.to, Remote: c.from}
			if send {
				j.Local, j.Remote = c.from, c.to
			}
			if _, err := j.Run(t.Context()); !errors.As(err, c.as) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %t: %T %v", c.name, send, err, err)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "more/other")); err != nil {
		t.Error("what was in the way is gone")
	}
}

// A stream with a wrong secret, or with another certificate, is not accepted.
func TestDoor(t *testing.T) {
	d, err := openDoor(reachable, 0)
	if err != nil {
		t.Fatal(err)
	}
	joined := make(chan *stream, 4)
	finished := make(chan struct{})
	go func() { d.wait("", func(s *stream) { joined <- s }); close(finished) }()
	address := d.listener.Addr().String()
	for _, c := range []struct {
		name                string
		secret, certificate []byte
		in                  bool
	}{
		{"right", d.hello.Secret, d.hello.Certificate, true},
		{"secret", bytes.Repeat([]byte{1}, secretSize), d.hello.Certificate, false},
		{"certificate", d.hello.Secret, make([]byte, sha256.Size), false},
	} {
		s, err := dial(t.Context(), address, &hello{Secret: c.secret, Certificate: c.certificate}, "", func(time.Duration) {})
		if err != nil {
			if c.in || c.name == "secret" {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if c.in {
			(<-joined).raw.Close()
		} else if _, err := s.raw.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: it was let in", c.name)
		}
		s.raw.Close()
	}
	d.listener.Close()
	<-finished
	if len(joined) != 0 {
		t.Error("somebody has joined who should not")
	}
}

// Whatever entries a sender lists, the receiver writes only below the destination.
func TestHostile(t *testing.T) {
	dirs := []entry{{kind: entryDir, mode: 0o755}}
	for name, list := range map[string][]entry{
		"up":       append(slices.Clone(dirs), entry{kind: entryFile, path: "../x"}),
		"absolute": append(slices.Clone(dirs), entry{kind: entryFile, path: "/x"}),
		"unclean":  append(slices.Clone(dirs), entry{kind: entryFile, path: "a/../../x"}),
		"itself":   append(slices.Clone(dirs), entry{kind: entryFile, path: "."}),
		"link":     append(slices.Clone(dirs), entry{kind: entryLink, path: "l", link: ".."}, entry{kind: entryFile, path: "l/x"}),
		"top":      {{kind: entryFile, path: "x"}},
		"kind":     {{kind: 'p'}},
	} {
		dir := t.TempDir()
		r := newReceiver(nil, place{path: filepath.Join(dir, "copy")}, nil, false)
		if err := r.list(packEntries(list)); err == nil {
			t.Errorf("%s was taken", name)
		}
		r.close()
		if _, err := os.Lstat(filepath.Join(dir, "x")); err == nil {
			t.Errorf("%s: it is there", name)
		}
	}
}

func TestWire(t *testing.T) {
	entries := []entry{{kind: entryFile, path: "a\xff", mode: 0o644 | fs.ModeSetgid, mtime: -3, size: 1 << 40}, {kind: entryLink, path: "l", link: "x\ny", uid: 1<<32 - 1, gid: 5, attributes: []attribute{{"user.a", []byte("b\x00")}, {"user.c", []byte{}}}}}
	if got, err := unpackEntries(packEntries(entries)); err != nil || !reflect.DeepEqual(got, entries) {
		t.Errorf("%+v, %v", got, err)
	}
	chunks := []chunk{{entry: 1, size: 5, offset: 1 << 40, digest: object.Sum(nil)}, {entry: 2, size: maxHole}}
	if got, err := unpackChunks(packChunks(chunks)); err != nil || !slices.Equal(got, chunks) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []chunk{{size: 0}, {size: maxChunk + 1, digest: object.Sum(nil)}, {size: 1, offset: -1}} {
		if _, err := unpackChunks(packChunks([]chunk{bad})); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	whole := packEntries(entries)
	raw, err := unpacker().DecodeAll(whole, nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < len(raw); n++ {
		list, err := unpackEntries(packer().EncodeAll(raw[:n], nil))
		if err == nil && len(list) != 1 { // a cut between the two entries leaves a valid list
			t.Errorf("%d bytes were taken for %+v", n, list)
		}
	}
	if _, err := unpackEntries([]byte("no frame")); !errors.Is(err, errForm) {
		t.Errorf("error %v", err)
	}
	// The sum does not depend on the order of chunks, but on their places.
	var a, b, c sum
	a.add(&chunks[0])
	a.add(&chunks[1])
	b.add(&chunks[1])
	b.add(&chunks[0])
	chunks[0].offset++
	c.add(&chunks[0])
	c.add(&chunks[1])
	if a != b || a == c {
		t.Errorf("sums %x, %x, %x", a, b, c)
	}
}

// If other programs fill the disk during a copy, both ends report the reason. Once there is
// room, the data that has arrived is not sent again.
func TestFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to mount a small file system needs root")
	}
	const size = 12 << 20
	source := filepath.Join(t.TempDir(), "source")
	content := random(7, size)
	write(t, source, content)
	for _, address := range []string{reachable, nowhere} {
		for _, send := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,%t", address, send), func(t *testing.T) {
				disk := t.TempDir()
				if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := unmount.Dir(disk); err != nil {
						t.Error(err)
					}
				}()
				at := filepath.Join(disk, "copy")
				j := Copy{Command: serve(t, address), Send: send, Local: at, Remote: source}
				if send {
					j.Local, j.Remote = source, at
				}
				var target *TargetError
				if _, err := j.Run(t.Context()); !errors.As(err, &target) || !strings.Contains(err.Error(), "disk of the destination is full") {
					t.Fatalf("%T %v", err, err)
				}
				if err := unix.Mount("", disk, "", unix.MS_REMOUNT, "size=32m"); err != nil {
					t.Fatal(err)
				}
				if d := run(t, j); d.Sent >= size {
					t.Errorf("%d bytes were sent again", d.Sent)
				}
				if got, err := os.ReadFile(at); err != nil || !bytes.Equal(got, content) {
					t.Errorf("it is another one: %v", err)
				}
			})
		}
	}
}
