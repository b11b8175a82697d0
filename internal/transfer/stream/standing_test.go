package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/store/object"
)

// stand runs a server of a directory until the test ends or stop is called.
func stand(t *testing.T, s *Server) (address string, stop func()) {
	t.Helper()
	if s.Keys == nil {
		s.Keys, _ = keys(t)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan error, 1)
	go func() { finished <- s.Run(ctx, l.(*net.TCPListener)) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-finished; err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// keys creates the keys of a server and of its clients. It reads them from their files.
func keys(t *testing.T) (*Keys, *Key) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "server.key")
	if err := MakeKeys(file); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, file + ClientSuffix} {
		if info, err := os.Stat(name); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if err := MakeKeys(file); !errors.Is(err, fs.ErrExist) {
		t.Errorf("keys that are there: %v", err)
	}
	k, err := LoadKeys(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := LoadKey(file + ClientSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(file); exit.Of(err) != exit.Usage || !strings.Contains(err.Error(), "is not a key") {
		t.Errorf("the server's keys as a client's: %v", err)
	}
	if _, err := LoadKeys(file + ClientSuffix); exit.Of(err) != exit.Usage || !strings.Contains(err.Error(), "is not a key") {
		t.Errorf("a client's key as the server's: %v", err)
	}
	return k, c
}

// A tree and a file are copied in both directions.
func TestStanding(t *testing.T) {
	source := tree(t)
	dir := filepath.Dir(source)
	k, key := keys(t)
	address, _ := stand(t, &Server{Dir: dir, Keys: k, Write: true})
	into := t.TempDir()
	j := Copy{Server: address, Key: key, Local: filepath.Join(into, "tree"), Remote: "/tree"}
	if err := os.Remove(filepath.Join(source, "fifo")); err != nil { // the fifo would be left out
		t.Fatal(err)
	}
	if d := run(t, j); d.Streams == 0 || d.Skipped != 0 {
		t.Errorf("%+v", d)
	}
	same(t, source, j.Local)
	run(t, Copy{Server: address, Key: key, Send: true, Whole: true, Local: j.Local, Remote: "deep/back"})
	same(t, source, filepath.Join(dir, "deep/back"))
	if left, err := filepath.Glob(filepath.Join(dir, "deep/"+beneath.Prefix+"*")); err != nil || len(left) != 0 {
		t.Errorf("a part was left: %q, %v", left, err)
	}
	// An existing destination stays as it is, even if it appears during the copy.
	var target *TargetError
	if _, err := (&Copy{Server: address, Key: key, Send: true, Whole: true, Local: source, Remote: "deep/back"}).Run(t.Context()); !errors.As(err, &target) {
		t.Errorf("over what is there: %v", err)
	}
	file := Copy{Server: address, Key: key, Local: filepath.Join(into, "file"), Remote: "tree/large", Streams: 2}
	run(t, file)
	same(t, filepath.Join(source, "large"), file.Local)
	// A client may request a link within the served directory, and the whole directory.
	run(t, Copy{Server: address, Key: key, Local: filepath.Join(into, "link"), Remote: "tree/link"})
	same(t, filepath.Join(source, "many/d0"), filepath.Join(into, "link"))
	run(t, Copy{Server: address, Key: key, Local: filepath.Join(into, "all"), Remote: "/"})
	same(t, dir, filepath.Join(into, "all"))
	// An ordinary user can only remove directories that are writable.
	for _, closed := range []string{filepath.Join(dir, "deep/back/closed"), filepath.Join(into, "tree/closed"), filepath.Join(into, "all/deep/back/closed"), filepath.Join(into, "all/tree/closed")} {
		if err := os.Chmod(closed, 0o700); err != nil {
			t.Error(err)
		}
	}
}

// Bits that give the rights of a file's owner are not copied, in any direction, nor by a
// writable server.
func TestSpecialBits(t *testing.T) {
	source := filepath.Join(t.TempDir(), "tree")
	write(t, filepath.Join(source, "sub/tool"), []byte("tool"))
	write(t, filepath.Join(source, "empty"), nil)
	if err := errors.Join(os.Chmod(filepath.Join(source, "sub/tool"), 0o755|special), os.Chmod(filepath.Join(source, "empty"), 0o755|fs.ModeSetuid),
		os.Chmod(filepath.Join(source, "sub"), 0o755|special)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	k, key := keys(t)
	address, _ := stand(t, &Server{Dir: dir, Keys: k, Write: true})
	run(t, Copy{Command: serve(t, reachable), Send: true, Local: source, Remote: filepath.Join(dir, "put")})
	run(t, Copy{Command: serve(t, reachable), Local: filepath.Join(dir, "got"), Remote: source})
	run(t, Copy{Server: address, Key: key, Send: true, Whole: true, Local: source, Remote: "whole"})
	run(t, Copy{Server: address, Key: key, Send: true, Local: source, Remote: "in place"})
	for _, name := range []string{"put", "got", "whole", "in place"} {
		same(t, source, filepath.Join(dir, name))
		err := filepath.WalkDir(filepath.Join(dir, name), func(p string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err == nil && info.Mode()&special != 0 {
				t.Errorf("%s has mode %v", p, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	// Files in a directory that passes on its group keep this group.
	shared := filepath.Join(dir, "shared")
	if err := errors.Join(os.Mkdir(shared, 0o755), os.Chmod(shared, 0o755|fs.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	run(t, Copy{Server: address, Key: key, Send: true, Whole: true, Local: source, Remote: "shared/whole"})
	if info, err := os.Stat(filepath.Join(shared, "whole/sub")); err != nil || info.Mode()&special != fs.ModeSetgid {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// A client without the key can neither read nor write, and does not send anything to a
// server without the key.
func TestStandingRefuses(t *testing.T) {
	k, key := keys(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), []byte("secret"))
	var notes atomic.Int64
	address, _ := stand(t, &Server{Dir: dir, Keys: k, Note: func(string) { notes.Add(1) }})
	for name, c := range map[string]struct {
		key  *Key
		want string
	}{
		"secret":      {&Key{key.certificate, bytes.Repeat([]byte{7}, secretSize)}, "does not accept this key"},
		"certificate": {&Key{bytes.Repeat([]byte{7}, len(key.certificate)), key.secret}, "its certificate is another one"},
	} {
		for _, send := range []bool{false, true} {
			local := filepath.Join(t.TempDir(), "copy")
			if send {
				write(t, local, []byte("mine"))
			}
			_, err := (&Copy{Server: address, Key: c.key, Send: send, Local: local, Remote: "file"}).Run(t.Context())
			if exit.Of(err) != exit.Origin || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %t: %T %v", name, send, err, err)
			}
			if _, err := os.Lstat(local); !send && err == nil {
				t.Errorf("%s: something was written", name)
			}
		}
	}
	if notes.Load() == 0 {
		t.Error("the server says nothing about who was refused")
	}
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != "secret" {
		t.Errorf("%q, %v", got, err)
	}
	// There may be no server, or another program in its place.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	var gone *PeerError
	if _, err := (&Copy{Server: l.Addr().String(), Key: key, Local: filepath.Join(dir, "copy"), Remote: "file"}).Run(t.Context()); !errors.As(err, &gone) || gone.Met {
		t.Errorf("nobody there: %T %v", err, err)
	}
}

// No path leads out of the served directory, and nothing is written unless that is allowed.
func TestStandingJail(t *testing.T) {
	k, key := keys(t)
	outside := t.TempDir()
	dir := filepath.Join(outside, "served")
	write(t, filepath.Join(outside, "file"), []byte("secret"))
	write(t, filepath.Join(dir, "tree/file"), []byte("open"))
	if err := errors.Join(os.Symlink("../file", filepath.Join(dir, "up")), os.Symlink(outside, filepath.Join(dir, "away")),
		os.Symlink("../../file", filepath.Join(dir, "tree/up"))); err != nil {
		t.Fatal(err)
	}
	address, _ := stand(t, &Server{Dir: dir, Keys: k, Write: true})
	closed, _ := stand(t, &Server{Dir: dir, Keys: k})
	into := t.TempDir()
	for _, remote := range []string{"../file", "/../file", "tree/../../file", "up", "away/file", "away", outside + "/file"} {
		var source *SourceError
		_, err := (&Copy{Server: address, Key: key, Local: filepath.Join(into, "copy"), Remote: remote}).Run(t.Context())
		if !errors.As(err, &source) {
			t.Errorf("get %s: %T %v", remote, err, err)
		}
	}
	// Within a tree, a link is copied as a link.
	run(t, Copy{Server: address, Key: key, Local: filepath.Join(into, "tree"), Remote: "tree"})
	same(t, filepath.Join(dir, "tree"), filepath.Join(into, "tree"))
	mine := filepath.Join(into, "mine")
	write(t, mine, []byte("mine"))
	for _, whole := range []bool{false, true} {
		for _, c := range []struct{ address, remote string }{{address, "../new"}, {address, "away/new"}, {address, "."}, {closed, "new"}} {
			var source *SourceError
			var target *TargetError
			_, err := (&Copy{Server: c.address, Key: key, Send: true, Whole: whole, Local: mine, Remote: c.remote}).Run(t.Context())
			if !errors.As(err, &source) && !errors.As(err, &target) {
				t.Errorf("put %s: %T %v", c.remote, err, err)
			}
		}
	}
	for _, at := range []string{outside, dir} {
		if found, err := filepath.Glob(filepath.Join(at, "new*")); err != nil || len(found) != 0 {
			t.Errorf("%q was written, %v", found, err)
		}
	}
}

// relay forwards connections to a server. After the given number of bytes from the server,
// it closes all of them, once.
func relay(t *testing.T, to string, breaks int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	var carried int64
	broken := false
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	carry := func(dst, src net.Conn, counts bool) {
		defer dst.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if counts {
				mu.Lock()
				if carried += int64(n); carried > breaks && !broken {
					broken = true
					for _, c := range conns {
						c.Close()
					}
				}
				mu.Unlock()
			}
			if _, werr := dst.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	}
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, near, far)
			mu.Unlock()
			all.Go(func() { carry(far, near, false) })
			all.Go(func() { carry(near, far, true) })
		}
	})
	return l.Addr().String()
}

// If connections break in the middle of a copy, the copy continues with the data that has
// arrived.
func TestStandingBreaks(t *testing.T) {
	const size = 16 << 20
	k, key := keys(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), random(3, size))
	address, _ := stand(t, &Server{Dir: dir, Keys: k})
	j := Copy{Server: relay(t, address, size/2), Key: key, Local: filepath.Join(t.TempDir(), "copy"), Remote: "file"}
	if d := run(t, j); d.Tries != 2 || d.Sent == 0 || d.Sent >= size {
		t.Errorf("%+v", d)
	}
	same(t, filepath.Join(dir, "file"), j.Local)
}

// If the server ends in the middle of a copy, the data that has arrived stays, and the next
// server does not send it again.
func TestStandingEnds(t *testing.T) {
	const size = 16 << 20
	k, key := keys(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), random(4, size))
	address, stop := stand(t, &Server{Dir: dir, Keys: k})
	// The proxy stops in the middle of the file, so that the server ends there.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var budget atomic.Int64
	budget.Store(size / 2)
	half := make(chan struct{})
	reached := sync.OnceFunc(func() { close(half) })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", address)
			if err != nil {
				near.Close()
				continue
			}
			go func() { _, _ = io.Copy(far, near); far.Close() }()
			go func() {
				defer near.Close()
				buf := make([]byte, 32<<10)
				for {
					n, err := far.Read(buf)
					if err != nil {
						return
					}
					if budget.Add(int64(-n)) < 0 {
						reached()
						_, _ = io.Copy(io.Discard, far) // wait until the server ends
						return
					}
					if _, err := near.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	go func() { <-half; stop() }()
	j := Copy{Server: l.Addr().String(), Key: key, Local: filepath.Join(t.TempDir(), "copy"), Remote: "file"}
	var gone *PeerError
	if _, err := j.Run(t.Context()); !errors.As(err, &gone) {
		t.Fatalf("%T %v", err, err)
	}
	j.Server, _ = stand(t, &Server{Dir: dir, Keys: k})
	if d := run(t, j); d.Sent == 0 || d.Sent >= size {
		t.Errorf("%+v", d)
	}
	same(t, filepath.Join(dir, "file"), j.Local)
}

// A chunk whose content does not match its digest is not written.
func TestDigest(t *testing.T) {
	dir := t.TempDir()
	r := newReceiver(nil, place{path: filepath.Join(dir, "copy")}, nil, false)
	defer r.close()
	data := []byte("what was sent")
	if err := r.list(packEntries([]entry{{kind: entryFile, mode: 0o644, size: int64(len(data))}})); err != nil {
		t.Fatal(err)
	}
	c := chunk{size: uint32(len(data)), digest: object.Sum(data)}
	frame := append(c.append(nil), "what arrived!"...)
	if err := r.data(t.Context(), frame, r.known); !errors.Is(err, errForm) {
		t.Errorf("error %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "copy")); err == nil && len(got) > 0 {
		t.Errorf("%q was written", got)
	}
	if err := r.data(t.Context(), append(c.append(nil), data...), r.known); err != nil {
		t.Error(err)
	}
}

// If a copy has several control connections, which no client of premix opens, the server
// closes all but one of them and continues.
func TestStandingOneLeads(t *testing.T) {
	k, key := keys(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), []byte("content"))
	address, _ := stand(t, &Server{Dir: dir, Keys: k})
	begin := append(append(append([]byte(nil), key.secret...), make([]byte, visitSize)...), roleControl)
	const leaders = 4
	ends := make(chan error, leaders)
	for range leaders {
		s, err := dial(t.Context(), address, &hello{Certificate: key.certificate, Secret: begin}, "", func(time.Duration) {})
		if err != nil {
			t.Fatal(err)
		}
		defer s.raw.Close()
		_ = s.raw.SetReadDeadline(time.Now().Add(joinTime / 2)) // the leading connection gets no data
		go func() {
			_, err := s.tls.Read(make([]byte, 1))
			ends <- err
		}()
	}
	away := 0
	for range leaders {
		if err := <-ends; errors.Is(err, io.EOF) {
			away++
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	}
	if away != leaders-1 {
		t.Errorf("%d of %d were sent away", away, leaders)
	}
	if _, err := (&Copy{Server: address, Key: key, Local: filepath.Join(dir, "copy"), Remote: "file"}).Run(t.Context()); err != nil {
		t.Error(err)
	}
}
