package fuse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/store/erofs"
)

// memory is an image in memory.
type memory []byte

func (m memory) Size() int64 { return int64(len(m)) }
func (m memory) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	return bytes.NewReader(m).ReadAt(p, off)
}

// sample returns a small image with one file of every kind.
func sample(t testing.TB) memory {
	t.Helper()
	file := &erofs.Node{Mode: unix.S_IFREG | 0o644, Size: 2 * erofs.BlockSize, Extents: []erofs.Extent{{Length: 2 * erofs.BlockSize}},
		Xattrs: map[string][]byte{"user.comment": []byte("text"), "trusted.secret": []byte("x")}}
	root := &erofs.Node{Mode: unix.S_IFDIR | 0o755, Children: []erofs.Child{
		{Name: "file", Node: file}, {Name: "again", Node: file},
		{Name: "dir", Node: &erofs.Node{Mode: unix.S_IFDIR | 0o700}},
		{Name: "link", Node: &erofs.Node{Mode: unix.S_IFLNK | 0o777, Target: "dir/nowhere"}},
		{Name: "null", Node: &erofs.Node{Mode: unix.S_IFCHR | 0o666, Rdev: unix.Mkdev(1, 3)}},
	}}
	var b bytes.Buffer
	if _, err := erofs.Write(&b, root, 2*erofs.BlockSize); err != nil {
		t.Fatal(err)
	}
	b.Write(bytes.Repeat([]byte("data"), 2*erofs.BlockSize/4))
	return b.Bytes()
}

// wire is a server whose kernel is the test.
type wire struct {
	*Server
	r      *request
	kernel int
}

func newWire(t testing.TB, fs fileSystem) *wire {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	dev := os.NewFile(uintptr(pair[0]), "device")
	for _, fd := range pair { // a reply of 1 MiB must fit
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20)
	}
	t.Cleanup(func() {
		_ = dev.Close()
		_ = unix.Close(pair[1])
	})
	s := newServer(fs, dev, state{Version: stateVersion}, Options{Timeout: 2 * time.Minute}.withDefaults())
	return &wire{s, newRequest(), pair[1]}
}

// ask sends a message and returns the reply, or nil if there is none.
func (w *wire) ask(t testing.TB, msg []byte) []byte {
	t.Helper()
	w.handle(w.r, msg)
	buf := make([]byte, maxRead+outHeaderSize)
	n, err := unix.Read(w.kernel, buf)
	if err == unix.EAGAIN {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	if more, err := unix.Read(w.kernel, make([]byte, 1)); err != unix.EAGAIN {
		t.Fatalf("two replies to one request: %d, %v", more, err)
	}
	return buf[:n]
}

// message returns a request.
func message(op uint32, node uint64, body []byte) []byte {
	b := order.AppendUint32(nil, uint32(inHeaderSize+len(body)))
	b = order.AppendUint32(b, op)
	b = order.AppendUint64(b, 42)
	b = order.AppendUint64(b, node)
	b = append(b, make([]byte, 16)...)
	return append(b, body...)
}

func words(values ...uint64) []byte {
	var b []byte
	for _, v := range values {
		b = order.AppendUint64(b, v)
	}
	return b
}

// FuzzRequests checks that every request is answered once, whatever the request and the
// image contain, with a reply that the kernel accepts, and without a panic.
func FuzzRequests(f *testing.F) {
	img := sample(f)
	for op := range uint32(opCount) {
		for _, node := range []uint64{0, rootID, 38, 1 << 63} {
			f.Add(message(op, node, words(0, 0, 1<<16, 0, 0)), uint16(0), byte(0))
			f.Add(message(op, node, []byte("file\x00")), uint16(1200), byte(7))
		}
	}
	f.Add(message(opInit, 0, append(words(40<<32|7, 1<<62|initMaxPages<<32), make([]byte, 48)...)), uint16(0), byte(0))
	f.Fuzz(func(t *testing.T, msg []byte, at uint16, bits byte) {
		if len(msg) > requestSize {
			return
		}
		if len(msg) >= 4 {
			order.PutUint32(msg, uint32(len(msg))) // the kernel always sets the right length
		}
		broken := slices.Clone(img)
		broken[int(at)%len(broken)] ^= bits
		for _, fs := range []fileSystem{&imageFS{img: broken}, &treeFS{img: broken}} {
			w := newWire(t, fs)
			out := w.ask(t, msg)
			if out == nil {
				continue
			}
			if len(out) < outHeaderSize || int(order.Uint32(out)) != len(out) {
				t.Fatalf("a reply of %d bytes says %d", len(out), order.Uint32(out))
			}
			if no := int32(order.Uint32(out[4:])); no > 0 || no <= -maxErrno || no != 0 && len(out) != outHeaderSize {
				t.Fatalf("a reply of %d bytes with error %d", len(out), no)
			}
			if order.Uint64(out[8:]) != order.Uint64(msg[8:]) {
				t.Fatal("a reply to another request")
			}
			if w.busy.Load() != 0 || len(w.running) != 0 || !w.memory.TryAcquire(w.opts.Memory) {
				t.Fatal("something is left of the request")
			}
		}
	})
}

func errno(out []byte) unix.Errno { return unix.Errno(-int32(order.Uint32(out[4:]))) }

func TestAnswers(t *testing.T) {
	img := sample(t)
	im, err := erofs.Open(bytes.NewReader(img), img.Size())
	if err != nil {
		t.Fatal(err)
	}
	node := func(name string) uint64 {
		nid, err := im.Lookup(im.Root(), name)
		if err != nil {
			t.Fatal(err)
		}
		return nodeOf(im, nid)
	}
	read := func(off uint64, size uint64) []byte { return words(0, off, size, 0, 0) }
	w := newWire(t, &treeFS{img: img})
	for _, c := range []struct {
		name string
		op   uint32
		node uint64
		body []byte
		size int // size of the reply behind its header
		no   unix.Errno
	}{
		{"a name", opLookup, rootID, []byte("file\x00"), entrySize, 0},
		{"no such name is remembered", opLookup, rootID, []byte("none\x00"), entrySize, 0},
		{"a name without end", opLookup, rootID, []byte("file"), 0, unix.EINVAL},
		{"a name in a file", opLookup, node("file"), []byte("x\x00"), 0, unix.ENOTDIR},
		{"attributes", opGetattr, node("null"), nil, attrSize + 16, 0},
		{"attributes of nothing", opGetattr, 1 << 40, nil, 0, unix.EUCLEAN},
		{"no open", opOpen, node("file"), nil, 0, unix.ENOSYS},
		{"no opendir", opOpendir, rootID, nil, 0, unix.ENOSYS},
		{"a page", opRead, node("file"), read(erofs.BlockSize, 4096), 4096, 0},
		{"what is left of a file", opRead, node("file"), read(erofs.BlockSize, 1<<20), erofs.BlockSize, 0},
		{"behind the end", opRead, node("file"), read(1<<40, 4096), 0, 0},
		{"before the beginning", opRead, node("file"), read(1<<63, 4096), 0, unix.EINVAL},
		{"more than the largest read", opRead, node("file"), read(0, 0xffffffff), 2 * erofs.BlockSize, 0},
		{"a directory's content", opRead, rootID, read(0, 4096), 0, unix.EINVAL},
		{"a target", opReadlink, node("link"), nil, len("dir/nowhere"), 0},
		{"no target", opReadlink, node("file"), nil, 0, unix.EINVAL},
		{"length of a value", opGetxattr, node("file"), append(words(0), "user.comment\x00"...), 8, 0},
		{"a value", opGetxattr, node("file"), append(words(4), "user.comment\x00"...), 4, 0},
		{"no room for a value", opGetxattr, node("file"), append(words(3), "user.comment\x00"...), 0, unix.ERANGE},
		{"no such value", opGetxattr, node("file"), append(words(3), "user.other\x00"...), 0, unix.ENODATA},
		{"a hole", opLseek, node("file"), words(0, 0, unix.SEEK_HOLE), 8, 0},
		{"no data behind the end", opLseek, node("file"), words(0, 1<<20, unix.SEEK_DATA), 0, unix.ENXIO},
		{"size of the tree", opStatfs, rootID, nil, 80, 0},
		{"a directory", opReaddir, rootID, read(0, 4096), 7*direntSize + 7*8, 0},
		{"no room for one entry", opReaddir, rootID, read(0, 16), 0, 0},
		{"writing", opWrite, node("file"), nil, 0, unix.EROFS},
		{"unlinking", opUnlink, rootID, []byte("file\x00"), 0, unix.EROFS},
		{"what nobody knows", 4095, rootID, nil, 0, unix.ENOSYS},
	} {
		out := w.ask(t, message(c.op, c.node, c.body))
		if errno(out) != c.no || len(out)-outHeaderSize != c.size {
			t.Errorf("%s: error %v and %d bytes, want %v and %d", c.name, errno(out), len(out)-outHeaderSize, c.no, c.size)
		}
	}
	if st := w.Stats(); st.Ops["read"].Count != 6 || st.Ops["read"].Errors != 2 || st.Ops["read"].Bytes != 4*4096 || st.Ops["other"].Count != 1 {
		t.Errorf("statistics: %+v", st)
	}
}

func TestInit(t *testing.T) {
	ask := func(minor uint64, flags uint64) (*wire, []byte) {
		w := newWire(t, &treeFS{img: sample(t)})
		body := append(words(minor<<32|protoMajor, flags<<32|1<<17, flags>>32), make([]byte, 40)...)
		return w, w.ask(t, message(opInit, 0, body))
	}
	w, out := ask(45, ^uint64(0))
	want := (commonFlags | (&treeFS{}).flags())
	if errno(out) != 0 || len(out) != outHeaderSize+64 || w.state.Minor != protoMinor || w.state.Flags != uint64(want) {
		t.Errorf("a new kernel: %v, %+v", errno(out), w.state)
	}
	var st state
	if err := json.Unmarshal(w.State(), &st); err != nil || st != w.state {
		t.Errorf("the state is not what was written: %v, %+v", err, st)
	}
	if w, out = ask(31, initAsyncRead|initMaxPages); errno(out) != 0 || w.state.Minor != 31 {
		t.Errorf("the oldest kernel: %v, %+v", errno(out), w.state)
	}
	if w, out = ask(27, initAsyncRead); errno(out) != unix.EPROTO || !errors.Is(*w.failure.Load(), ErrKernel) {
		t.Errorf("a kernel too old: %v", errno(out))
	}
}

// A request that is interrupted ends with EINTR. If the server does not know the request
// yet, it answers EAGAIN, so that the kernel repeats the interrupt.
func TestInterruptOnTheWire(t *testing.T) {
	started := make(chan struct{})
	w := newWire(t, &imageFS{img: hanging(started)})
	other := newRequest()
	body := words(42)
	msg := message(opInterrupt, 0, body)
	if out := w.ask(t, msg); errno(out) != unix.EAGAIN {
		t.Errorf("unknown: %v", errno(out))
	}
	done := make(chan struct{})
	go func() {
		w.handle(other, message(opRead, imageNode, words(0, 0, 4096, 0, 0)))
		close(done)
	}()
	<-started
	w.handle(w.r, msg)
	<-done
	buf := make([]byte, 100)
	if n, err := unix.Read(w.kernel, buf); err != nil || errno(buf[:n]) != unix.EINTR {
		t.Errorf("%v, %v", err, errno(buf))
	}
}

// hanging is an image that reports its first read by closing the channel, and then hangs.
type hanging chan struct{}

func (h hanging) Size() int64 { return 4096 }
func (h hanging) ReadAt(ctx context.Context, _ []byte, _ int64) (int, error) {
	close(h)
	<-ctx.Done()
	return 0, ctx.Err()
}

// A read for which the image returns too few bytes fails, with or without an error of the
// image.
func TestShortReadIsAnError(t *testing.T) {
	for name, err := range map[string]error{"nothing": nil, "EOF": io.EOF} {
		w := newWire(t, &imageFS{img: short{err}})
		if out := w.ask(t, message(opRead, imageNode, words(0, 0, 4096, 0, 0))); errno(out) != unix.EIO {
			t.Errorf("%s said: %v with %d bytes", name, errno(out), len(out))
		}
	}
}

type short struct{ err error }

func (s short) Size() int64                                              { return 8192 }
func (s short) ReadAt(_ context.Context, p []byte, _ int64) (int, error) { return len(p) - 1, s.err }

// If the store lacks an object, a look-up fails with EIO, and does not report that the name
// does not exist.
func TestNotFoundIsNotNoSuchName(t *testing.T) {
	img := &lost{memory: sample(t)}
	fs := &treeFS{img: img}
	if _, err := fs.image(t.Context()); err != nil {
		t.Fatal(err)
	}
	img.all = true
	w := newWire(t, fs)
	if out := w.ask(t, message(opLookup, rootID, []byte("file\x00"))); errno(out) != unix.EIO {
		t.Errorf("%v with %d bytes", errno(out), len(out))
	}
}

// lost is an image whose objects the store has lost.
type lost struct {
	memory
	all bool
}

func (l *lost) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if l.all {
		return 0, fmt.Errorf("object: %w", os.ErrNotExist)
	}
	return l.memory.ReadAt(ctx, p, off)
}

func TestErrno(t *testing.T) {
	for _, c := range []struct {
		err  error
		want unix.Errno
	}{
		{nil, 0}, {errors.New("any"), unix.EIO}, {context.DeadlineExceeded, unix.EIO}, {context.Canceled, unix.EINTR},
		{&os.PathError{Err: unix.ENOSPC}, unix.ENOSPC}, {os.ErrNotExist, unix.EIO}, {unix.Errno(600), unix.EIO},
		{treeErr(erofs.ErrCorrupt), unix.EUCLEAN}, {treeErr(erofs.ErrUnsupported), unix.EOPNOTSUPP},
	} {
		if got := errnoOf(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// TestOwn checks that the files of a tree belong to this user where a mount asks for that.
func TestOwn(t *testing.T) {
	var b bytes.Buffer
	if _, err := erofs.Write(&b, &erofs.Node{Mode: unix.S_IFDIR | 0o755, UID: 12, GID: 34}, 0); err != nil {
		t.Fatal(err)
	}
	for own, want := range map[bool][2]uint32{false: {12, 34}, true: {uint32(os.Geteuid()), uint32(os.Getegid())}} {
		fs, err := newFileSystem(state{Kind: kindTree}, memory(b.Bytes()), Options{Own: own})
		if err != nil {
			t.Fatal(err)
		}
		a, err := fs.attr(t.Context(), rootID)
		if got := [2]uint32{a.uid, a.gid}; err != nil || got != want {
			t.Errorf("with own %v the owner is %v, %v, want %v", own, got, err, want)
		}
	}
}
