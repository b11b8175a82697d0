package snapshotter_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"premix/internal/lazyfs"
	"premix/internal/node"
)

// client returns a client of the machine's snapshotter, as containerd has one. Its calls
// wait until the snapshotter runs.
func (m *machine) client() snapshots.Snapshotter {
	m.t.Helper()
	conn, err := dial(m.path("snap"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { conn.Close() })
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "premix")
}

func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The socket may not exist yet.
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: time.Second}}))
}

// chains returns the chain ids of an image's layers.
func chains(t *testing.T, img v1.Image) []string {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for i, d := range config.RootFS.DiffIDs {
		id := d.String()
		if i > 0 {
			id = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(list[i-1]+" "+id)))
		}
		list = append(list, id)
	}
	return list
}

// layers requests the layers of an image as an unpacker does, and returns the name of the
// highest snapshot. Layers that the snapshotter does not have are committed empty.
func layers(ctx context.Context, s snapshots.Snapshotter, list []string) (top string, lazy int, err error) {
	for i, chain := range list {
		key := fmt.Sprintf("extract-%d-%d %s", i, rand.Uint64(), chain)
		label := snapshots.WithLabels(map[string]string{"containerd.io/snapshot.ref": chain})
		_, err := s.Prepare(ctx, key, top, label)
		switch {
		case err == nil:
			name := fmt.Sprintf("unpacked-%d-%d", i, rand.Uint64())
			if err := s.Commit(ctx, name, key, label); err != nil {
				return "", lazy, err
			}
			top = name
			continue
		case !errdefs.IsAlreadyExists(err):
			return "", lazy, err
		}
		found := ""
		filter := fmt.Sprintf(`labels."containerd.io/snapshot.ref"==%s,parent==%q`, chain, top)
		if err := s.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
			found = info.Name
			return nil
		}, filter); err != nil {
			return "", lazy, err
		}
		if found == "" {
			return "", lazy, fmt.Errorf("layer %s exists, and is not found", chain)
		}
		top = found
		lazy++
	}
	return top, lazy, nil
}

// clear removes all snapshots and cleans up, as containerd's garbage collector does.
func clear(ctx context.Context, s snapshots.Snapshotter) error {
	for {
		parents := map[string]bool{}
		var names []string
		if err := s.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
			names = append(names, info.Name)
			parents[info.Parent] = true
			return nil
		}); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		if len(names) == 0 {
			return s.(snapshots.Cleaner).Cleanup(ctx)
		}
		for _, name := range names {
			if !parents[name] {
				if err := s.Remove(ctx, name); err != nil {
					return err
				}
			}
		}
	}
}

// look mounts a new snapshot on top, calls f with its directory, and removes it.
func (m *machine) look(ctx context.Context, s snapshots.Snapshotter, top string, f func(dir string)) {
	m.t.Helper()
	key := fmt.Sprintf("look-%d", rand.Uint64())
	mounts, err := s.Prepare(ctx, key, top)
	if err != nil {
		m.t.Fatal(err)
	}
	dir, err := os.MkdirTemp(m.dir, "look-")
	if err != nil {
		m.t.Fatal(err)
	}
	if err := mount.All(mounts, dir); err != nil {
		m.t.Fatal(err)
	}
	defer func() {
		if err := mount.UnmountAll(dir, 0); err != nil {
			m.t.Error(err)
		}
		if err := s.Remove(ctx, key); err != nil {
			m.t.Error(err)
		}
	}()
	f(dir)
}

// shows checks that a snapshot on top has the content of the images of these tests.
func (m *machine) shows(ctx context.Context, s snapshots.Snapshotter, top string) {
	m.t.Helper()
	m.look(ctx, s, top, func(dir string) {
		out, err := exec.Command("sh", "-c", "cd "+dir+" && "+showContent).CombinedOutput()
		if err != nil || string(out) != wantContent {
			m.t.Errorf("the layers show %q, want %q (%v)", out, wantContent, err)
		}
	})
}

// stored returns an image that is in the store, so that the registry is not needed.
func (m *machine) stored(as string) v1.Image {
	m.t.Helper()
	img := picture(m.t, base(m.t), upper(m.t))
	m.add(m.push(img, as), as)
	return img
}

// observed is a client of a snapshotter that reports the start of each call.
type observed struct {
	snapshots.Snapshotter
	begins chan string
}

func (o observed) began(call string) {
	select {
	case o.begins <- call:
	default: // no receiver waits for it
	}
}

// brokenOff is the error of a call that was interrupted, with the name of the call.
type brokenOff struct {
	call string
	err  error
}

func (b *brokenOff) Error() string { return b.call + ": " + b.err.Error() }
func (b *brokenOff) Unwrap() error { return b.err }

func (o observed) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	o.began("prepare")
	mounts, err := o.Snapshotter.Prepare(ctx, key, parent, opts...)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		err = &brokenOff{"prepare", err}
	}
	return mounts, err
}

func (o observed) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	o.began("commit")
	if err := o.Snapshotter.Commit(ctx, name, key, opts...); err != nil {
		return &brokenOff{"commit", err}
	}
	return nil
}

func (o observed) Remove(ctx context.Context, key string) error {
	o.began("remove")
	if err := o.Snapshotter.Remove(ctx, key); err != nil {
		return &brokenOff{"remove", err}
	}
	return nil
}

func (o observed) Cleanup(ctx context.Context) error {
	o.began("cleanup")
	if err := o.Snapshotter.(snapshots.Cleaner).Cleanup(ctx); err != nil {
		return &brokenOff{"cleanup", err}
	}
	return nil
}

// The snapshotter is killed while it prepares, commits, removes and cleans up, until each
// of these calls was interrupted at least once. The snapshotter that follows works, and
// leaves nothing behind.
func TestKilled(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	img := m.stored("killed:1")
	other := picture(t, base(t))
	m.serve("--origin", m.origin.URL)
	s := observed{m.client(), make(chan string)}
	span := 5 * time.Second
	if os.Getenv("PREMIX_SOAK") != "" {
		span = 2 * time.Minute
	}
	kinds := []string{"prepare", "commit", "remove", "cleanup"}
	ctx, cancel := context.WithTimeout(t.Context(), span+2*eventually)
	defer cancel()
	var mu sync.Mutex
	broken := map[string]int{}
	hit := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(broken) == len(kinds)
	}
	// target returns the kind of call to interrupt next: each kind in turn, but only kinds
	// that were not yet interrupted, as long as there are any. A start of the snapshotter
	// may take seconds.
	target := func(kills int) string {
		mu.Lock()
		defer mu.Unlock()
		left := slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return broken[kind] > 0 })
		if len(left) == 0 {
			left = kinds
		}
		return left[kills%len(left)]
	}
	finished := make(chan struct{})
	var rounds, lazily int
	go func() {
		defer close(finished)
		for started := time.Now(); ctx.Err() == nil && (time.Since(started) < span || rounds < 3 || !hit()); {
			// Calls during the kill fail; later ones do not.
			_, n, err1 := layers(ctx, s, chains(t, img))
			_, _, err2 := layers(ctx, s, chains(t, other))
			err3 := clear(ctx, s)
			lazily += n
			for _, err := range []error{err1, err2, err3} {
				if err == nil || ctx.Err() != nil {
					continue
				}
				if !errdefs.IsUnavailable(err) && !errdefs.IsUnknown(err) {
					t.Errorf("a call failed: %v", err)
				}
				var b *brokenOff
				if errors.As(err, &b) {
					mu.Lock()
					broken[b.call]++
					mu.Unlock()
				}
			}
			if err1 == nil && err2 == nil && err3 == nil {
				rounds++
			}
		}
	}()
	kills := 0
	for running := true; running; kills++ {
		// The kill comes after some calls, so that there are complete rounds. It waits for a
		// call of the wanted kind and then for a short time, so that short calls are
		// interrupted as well.
		want := target(kills)
		for quiet, hit := rand.IntN(30), false; running && !hit; quiet-- {
			select {
			case <-finished:
				running = false
			case call := <-s.begins:
				hit = quiet <= 0 && call == want
			}
		}
		time.Sleep(time.Duration(rand.IntN(1<<rand.IntN(13))) * time.Microsecond)
		m.snapshotter.kill()
		m.serve("--origin", m.origin.URL)
	}
	t.Logf("killed %d times; broken off %v, %d rounds whole, %d lazy layers", kills, broken, rounds, lazily)
	if lazily == 0 || rounds < 3 || !hit() {
		t.Error("want lazy layers, three rounds that are whole, and calls of each kind broken off")
	}
	top, lazy, err := layers(t.Context(), s, chains(t, img))
	if err != nil || lazy != len(chains(t, img)) {
		t.Fatalf("%d layers are lazy (%v)", lazy, err)
	}
	m.shows(t.Context(), s, top)
	if err := clear(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	m.emptied()
}

// A container can run even if its trees are not available, because its layers are then
// pulled.
func TestOriginFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(m *machine)
		args  func(m *machine) []string
		warn  string
	}{
		{"down", func(m *machine) { m.origin.down(true) }, func(*machine) []string { return []string{"--lookup-timeout", "2s"} }, "all layers are pulled for a while"},
		{"silent", func(m *machine) {
			m.origin.spoiled(func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
		}, func(*machine) []string { return []string{"--lookup-timeout", "2s"} }, "no origin has answered in time"},
		{"wrong manifest", func(m *machine) {
			m.origin.spoiled(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasPrefix(r.URL.Path, "/objects/") {
					return false
				}
				_, _ = w.Write([]byte("not what it should be"))
				return true
			})
		}, nil, "corrupt"},
		{"other key", func(*machine) {}, func(m *machine) []string {
			m.run("store", "init", m.path("other"))
			key := strings.TrimSpace(m.run("store", "key", "--store", m.path("other")))
			if err := os.WriteFile(m.path("keys"), []byte(key+"\n"), 0o600); err != nil {
				m.t.Fatal(err)
			}
			return []string{"--key-file", m.path("keys")}
		}, "its key is not trusted here"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // the test mostly waits
			m := newMachine(t)
			img := m.stored("faults:1")
			c.spoil(m)
			args := []string{"--origin", m.origin.URL}
			if c.args != nil {
				args = append(args, c.args(m)...)
			}
			// The start of a node would use up time of the first look-up.
			m.run("node", "start")
			m.serve(args...)
			s := m.client()
			_, lazy, err := layers(t.Context(), s, chains(t, img))
			if err != nil || lazy != 0 {
				t.Errorf("%d layers are lazy (%v), want none", lazy, err)
			}
			if log, err := os.ReadFile(m.path("snapshotter.log")); err != nil || !strings.Contains(string(log), c.warn) {
				t.Errorf("the log does not say %q (%v):\n%s", c.warn, err, log)
			}
			if err := clear(t.Context(), s); err != nil {
				t.Error(err)
			}
			m.origin.spoiled(nil)
			m.emptied()
		})
	}
}

// Content that was read once is available without the origin, also for new containers and
// after the end of all processes.
func TestOriginDownLater(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	img := m.stored("later:1")
	m.serve("--origin", m.origin.URL)
	s := m.client()
	top, _, err := layers(t.Context(), s, chains(t, img))
	if err != nil {
		t.Fatal(err)
	}
	m.shows(t.Context(), s, top)
	m.origin.down(true)
	m.shows(t.Context(), s, top)
	m.snapshotter.kill()
	m.run("node", "stop", "--lazy")
	m.serve("--origin", m.origin.URL)
	m.shows(t.Context(), s, top)
	if err := clear(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	m.emptied()
}

// Mounts that were lost are mounted again when they are needed.
func TestMountedAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	img := m.stored("again:1")
	m.serve("--origin", m.origin.URL)
	s := m.client()
	top, _, err := layers(t.Context(), s, chains(t, img))
	if err != nil {
		t.Fatal(err)
	}
	view, err := s.View(t.Context(), "view", top)
	if err != nil {
		t.Fatal(err)
	}
	for name, gone := range map[string]func(){
		"somebody unmounts": func() {
			for _, dir := range m.mountsBelow("root/trees") {
				if err := mount.UnmountAll(dir, 0); err != nil {
					t.Fatal(err)
				}
			}
		},
		"both processes of the node die": func() { m.killNode() },
		"the node ends":                  func() { m.run("node", "stop", "--lazy") },
	} {
		t.Run(name, func(t *testing.T) {
			gone()
			again, err := s.Mounts(t.Context(), "view")
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(again[0].Options, view[0].Options) {
				t.Errorf("the mounts were %q and are %q", view, again)
			}
			m.shows(t.Context(), s, top)
		})
	}
	if err := clear(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	m.emptied()
}

// If a chain is requested on different parents, there are two snapshots. This occurs if one
// of two namespaces has pulled the lower layer before the store had it. On the same parent
// there is one snapshot.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	img := m.stored("spaces:1")
	ids := chains(t, img)
	m.serve("--origin", m.origin.URL)
	s := m.client()
	ctx := t.Context()
	if _, err := s.Prepare(ctx, "unpack", ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(ctx, "unpacked", "unpack"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(ctx, "on-unpacked", "unpacked", snapshots.WithLabels(map[string]string{"containerd.io/snapshot.ref": ids[1]})); !errdefs.IsAlreadyExists(err) {
		t.Fatalf("got %v, want that it exists", err)
	}
	var tops []string
	for range 2 {
		top, lazy, err := layers(ctx, s, ids)
		if err != nil || lazy != len(ids) {
			t.Fatalf("%d layers are lazy (%v)", lazy, err)
		}
		tops = append(tops, top)
	}
	if tops[0] != tops[1] {
		t.Errorf("the same layers are %q", tops)
	}
	parents := map[string]bool{}
	if err := s.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		parents[info.Parent] = true
		return nil
	}, `labels."containerd.io/snapshot.ref"==`+ids[1]); err != nil {
		t.Fatal(err)
	}
	if len(parents) != 2 || !parents["unpacked"] {
		t.Errorf("the second layer has the parents %v", parents)
	}

	// A client cannot set the tree of a snapshot by a label.
	forged := map[string]string{"premix.tree": strings.Repeat("0", 64), "x": "y"}
	if _, err := s.Prepare(ctx, "forged", tops[0], snapshots.WithLabels(forged)); err != nil {
		t.Fatal(err)
	}
	info, err := s.Stat(ctx, "forged")
	if err != nil || info.Labels["premix.tree"] != "" || info.Labels["x"] != "y" {
		t.Errorf("labels are %v (%v)", info.Labels, err)
	}
	was, err := s.Stat(ctx, tops[0])
	if err != nil || was.Labels["premix.tree"] == "" {
		t.Fatalf("labels are %v (%v)", was.Labels, err)
	}
	for _, fields := range [][]string{nil, {"labels"}, {"labels.premix.tree"}} {
		now, err := s.Update(ctx, snapshots.Info{Name: tops[0], Labels: forged}, fields...)
		if err != nil || now.Labels["premix.tree"] != was.Labels["premix.tree"] {
			t.Errorf("after an update of %q labels are %v (%v)", fields, now.Labels, err)
		}
	}
	usage, err := s.Usage(ctx, tops[0])
	if err != nil || usage.Size <= 0 {
		t.Errorf("a lazy snapshot takes %+v (%v)", usage, err)
	}
	if err := clear(ctx, s); err != nil {
		t.Fatal(err)
	}
	m.emptied()
}

// On a full disk, operations that need room fail, and other operations succeed.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	img := m.stored("full:1")
	root := m.path("root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (&mount.Mount{Type: "tmpfs", Source: "tmpfs", Options: []string{"size=4m", "mode=700"}}).Mount(root); err != nil {
		t.Fatal(err)
	}
	defer func() {
		m.snapshotter.stop()
		m.run("node", "stop", "--lazy")
		if err := mount.UnmountAll(root, 0); err != nil {
			t.Error(err)
		}
	}()
	m.serve("--origin", m.origin.URL)
	s := m.client()
	ctx := t.Context()
	top, lazy, err := layers(ctx, s, chains(t, img))
	if err != nil || lazy != len(chains(t, img)) {
		t.Fatalf("%d layers are lazy (%v)", lazy, err)
	}
	fill := func() {
		f, err := os.Create(filepath.Join(root, "filler"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for block := make([]byte, 1<<16); ; {
			if _, err := f.Write(block); err != nil {
				if len(block) == 1 {
					return
				}
				block = block[:max(1, len(block)/2)]
			}
		}
	}
	fill()
	failed := false
	for i := range 100 {
		if _, err := s.Prepare(ctx, fmt.Sprintf("full-%d", i), top); err != nil {
			failed = true
			t.Logf("with a full disk: %v", err)
			break
		}
	}
	if !failed {
		t.Error("a hundred snapshots fit on a full disk")
	}
	// Existing snapshots remain usable, and all operations succeed once there is room.
	if _, err := s.Mounts(ctx, "full-none"); !errdefs.IsNotFound(err) {
		t.Errorf("got %v, want that it is not found", err)
	}
	if err := os.Remove(filepath.Join(root, "filler")); err != nil {
		t.Fatal(err)
	}
	m.shows(ctx, s, top)
	if err := clear(ctx, s); err != nil {
		t.Fatal(err)
	}
	m.emptied()
}

// killNode kills both processes of the node.
func (m *machine) killNode() {
	m.t.Helper()
	pids := m.nodeProcesses()
	if len(pids) != 2 {
		m.t.Fatalf("the node is processes %v", pids)
	}
	// Each process restarts the other one, so both are stopped first.
	for _, sig := range []string{"-STOP", "-KILL"} {
		if out, err := exec.Command("kill", append([]string{sig}, pids...)...).CombinedOutput(); err != nil {
			m.t.Fatalf("kill: %v\n%s", err, out)
		}
	}
}

// nodeProcesses returns the ids of the node's supervisor and worker.
func (m *machine) nodeProcesses() []string {
	m.t.Helper()
	var s struct{ Supervisor, Worker int }
	m.json(&s, "node", "status", "--json")
	return []string{fmt.Sprint(s.Supervisor), fmt.Sprint(s.Worker)}
}

// systemd opens the socket before the snapshotter starts, and calls wait in it.
func TestSystemd(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: m.path("snap")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: m.path("notify")})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	for range 2 {
		s := m.client() // its connection is not accepted yet
		answered := make(chan error, 1)
		go func() {
			_, err := s.Stat(t.Context(), "nothing")
			answered <- err
		}()
		cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, m.bin, "snapshotter", "--origin", m.origin.URL, "--root", m.path("root"))
		cmd.Env = append(m.env(), "LISTEN_FDS=1", "NOTIFY_SOCKET="+m.path("notify"))
		cmd.ExtraFiles = []*os.File{socket}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		message := make([]byte, 100)
		if err := notify.SetReadDeadline(time.Now().Add(eventually)); err != nil {
			t.Fatal(err)
		}
		n, _, err := notify.ReadFromUnix(message)
		if err != nil || string(message[:n]) != "READY=1" {
			t.Errorf("systemd is told %q (%v)", message[:n], err)
		}
		if err := <-answered; !errdefs.IsNotFound(err) {
			t.Errorf("got %v, want that it is not found", err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it fails because the process was killed
		if _, err := os.Stat(m.path("snap")); err != nil {
			t.Errorf("systemd's socket is gone: %v", err)
		}
	}
}

// If the kernel has no EROFS, the node shows the trees through FUSE, including whiteouts
// and opaque directories.
func TestFUSE(t *testing.T) {
	m := newMachine(t)
	img := m.stored("fuse:1")
	t.Setenv("PREMIX_HOME", m.path("home"))
	s, end := start(t, m.path("root"), func(ref string) node.MountRequest {
		return node.MountRequest{ID: fmt.Sprint(rand.Uint64()), Ref: ref, Origins: []string{m.origin.URL}, Backend: lazyfs.FUSE}
	})
	top, lazy, err := layers(t.Context(), s, chains(t, img))
	if err != nil || lazy != len(chains(t, img)) {
		t.Fatalf("%d layers are lazy (%v)", lazy, err)
	}
	m.shows(t.Context(), s, top)
	if err := clear(t.Context(), s); err != nil {
		t.Error(err)
	}
	m.emptied()
	if err := end(); err != nil {
		t.Error(err)
	}
}

// The options of an overlay mount have room for the highest number of layers that images
// may have.
func TestDeepImage(t *testing.T) {
	if os.Getenv("PREMIX_SOAK") == "" {
		t.Skip("long runs only: PREMIX_SOAK=1")
	}
	t.Parallel()
	m := newMachine(t)
	list := []v1.Layer{base(t), upper(t)}
	for i := range 124 {
		list = append(list, layer(t, file{name: fmt.Sprintf("layer-%d", i), content: fmt.Sprint(i)}))
	}
	img := picture(t, list...)
	m.add(m.push(img, "deep:1"), "deep:1")
	m.serve("--origin", m.origin.URL)
	s := m.client()
	top, lazy, err := layers(t.Context(), s, chains(t, img))
	if err != nil || lazy != 127 {
		t.Fatalf("%d layers are lazy (%v)", lazy, err)
	}
	m.shows(t.Context(), s, top)
	if err := clear(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	m.emptied()
}

// The request for the first layer of an image starts look-ups of the others, and each layer
// is looked up only once.
func TestForeseen(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	img := m.stored("foreseen:1")
	list := chains(t, img)
	var mu sync.Mutex
	bootstraps, parts := map[string]bool{}, map[string]int{} // parts by path and range
	m.origin.spoiled(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/openings/") {
			mu.Lock()
			bootstraps[r.URL.Path] = true
			parts[r.URL.Path+" "+r.Header.Get("Range")]++
			mu.Unlock()
		}
		return false
	})
	m.serve("--origin", m.origin.URL)
	s := m.client()
	if _, lazy, err := layers(t.Context(), s, list[:1]); err != nil || lazy != 1 {
		t.Fatalf("%d layers are lazy (%v), want one", lazy, err)
	}
	if !wait(func() bool { return len(m.mountsBelow("root/trees")) == len(list) }) {
		t.Errorf("%d layers are mounted, want all %d", len(m.mountsBelow("root/trees")), len(list))
	}
	top, lazy, err := layers(t.Context(), s, list)
	if err != nil || lazy != len(list) {
		t.Errorf("%d layers are lazy (%v), want %d", lazy, err, len(list))
	}
	m.shows(t.Context(), s, top)
	mu.Lock()
	defer mu.Unlock()
	if len(bootstraps) != len(list) {
		t.Errorf("%d bootstraps were fetched, want %d", len(bootstraps), len(list))
	}
	for part, n := range parts {
		if n != 1 {
			t.Errorf("%s was fetched %d times", part, n)
		}
	}
	if err := clear(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	m.emptied()
}

// The files that a container reads of each layer become a profile that the store accepts.
func TestRecord(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	img := m.stored("recorded:1")
	m.serve("--origin", m.origin.URL, "--record", m.path("profiles"))
	s := m.client()
	list := chains(t, img)
	top, lazy, err := layers(t.Context(), s, list)
	if err != nil || lazy != len(list) {
		t.Fatalf("%d layers are lazy (%v), want %d", lazy, err, len(list))
	}
	m.shows(t.Context(), s, top)
	if err := clear(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	m.emptied()
	for _, chain := range list {
		hex := strings.TrimPrefix(chain, "sha256:")
		m.run("store", "profile", "--store", m.path("store"), "--name", "start", "chains/"+hex, filepath.Join(m.path("profiles"), hex+".jsonl"))
	}
}
