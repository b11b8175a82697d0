package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/node"
	"premix/internal/store/tree"
	"premix/internal/testkit/faulty"
)

// apart runs a test again in a process with its own mount namespace, so that its mounts are
// invisible outside and disappear with the process. It returns true in that process, and false in
// the first process, after the test has ended.
func apart(t *testing.T) bool {
	t.Helper()
	if os.Getenv("PREMIX_TEST_APART") != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("a mount namespace needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("there is no FUSE here:", err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), "PREMIX_TEST_APART=1", "PREMIX_TEST_BINARY="+binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
	return false
}

// farm is a published tree with everything that tests need to mount and compare it.
type farm struct {
	dir    string
	files  map[string][]byte // by path below the mount
	names  []string
	origin *faulty.Handler
	url    string
	user   uint32 // the user that runs premix
}

// newFarm publishes a tree and serves it. config is the configuration of the node.
func newFarm(t *testing.T, config string) *farm {
	t.Helper()
	f := &farm{dir: t.TempDir(), files: map[string][]byte{}}
	f.mkdir(t, "home", "src", "mnt")
	f.write(t, "home/node.yaml", []byte(config))
	random := rand.NewChaCha8([32]byte{1})
	add := func(name string, size int) {
		content := make([]byte, size)
		random.Read(content)
		f.files[name] = content
		f.names = append(f.names, name)
		f.mkdir(t, filepath.Dir("src/"+name))
		f.write(t, "src/"+name, content)
	}
	for i := range 60 {
		add(fmt.Sprintf("small/%d/f%d", i%7, i), 1+i*i*17)
	}
	for i := range 6 {
		add(fmt.Sprintf("large%d", i), 2<<20+i*1000)
	}
	f.ok(t, "store", "init", f.path("store"))
	f.ok(t, "store", "publish", "--store", f.path("store"), f.path("src"), "data:1")
	f.origin = faulty.New(http.FileServer(http.Dir(f.path("store"))))
	server := httptest.NewServer(f.origin)
	f.url = server.URL
	t.Cleanup(func() {
		f.gone(t)
		f.origin.Stop()
		server.CloseClientConnections()
		server.Close()
	})
	return f
}

func (f *farm) path(name string) string { return filepath.Join(f.dir, name) }

func (f *farm) mkdir(t *testing.T, names ...string) {
	t.Helper()
	for _, n := range names {
		if err := os.MkdirAll(f.path(n), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *farm) write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(f.path(name), content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// premix runs a command line and returns its status and output.
func (f *farm) premix(t *testing.T, args ...string) (status int, out string) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+f.path("home"), "PREMIX_NODE_DIR=")
	if f.user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: f.user, Gid: f.user}}
	}
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// ok runs a command line that must succeed.
func (f *farm) ok(t *testing.T, args ...string) string {
	t.Helper()
	status, out := f.premix(t, args...)
	if status != 0 {
		t.Fatalf("premix %s: status %d\n%s\nlog of the node:\n%s", strings.Join(args, " "), status, out, f.log())
	}
	return out
}

func (f *farm) log() string {
	text, err := os.ReadFile(f.path("home/run/log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// mount mounts the tree.
func (f *farm) mount(t *testing.T, args ...string) {
	t.Helper()
	f.ok(t, append([]string{"mount", "--origin", f.url, "data:1", f.path("mnt")}, args...)...)
}

func (f *farm) status(t *testing.T) node.Status {
	t.Helper()
	var s node.Status
	if out := f.ok(t, "node", "status", "--json"); json.Unmarshal([]byte(out), &s) != nil {
		t.Fatalf("status %s", out)
	}
	return s
}

// read reads a file of the mount from its storage, bypassing the page cache.
func (f *farm) read(name string) ([]byte, error) {
	file, err := os.Open(f.path("mnt/" + name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return nil, err
	}
	content := make([]byte, len(f.files[name])+1)
	n := 0
	for n < len(content) {
		m, err := file.Read(content[n:])
		n += m
		if m == 0 || err != nil {
			if n == len(content)-1 && m == 0 {
				return content[:n], nil
			}
			return content[:n], fmt.Errorf("%d bytes, %w", n, err)
		}
	}
	return content, nil
}

// wrongError reports a file with wrong bytes.
type wrongError struct{ name string }

func (e *wrongError) Error() string { return e.name + " has wrong bytes" }

// check reads one file. It returns a *wrongError if any bytes are wrong, including bytes before a
// read error.
func (f *farm) check(name string) error {
	got, err := f.read(name)
	want := f.files[name]
	if len(got) > len(want) || !bytes.Equal(got, want[:len(got)]) || err == nil && len(got) != len(want) {
		return &wrongError{name}
	}
	return err
}

// whole compares the whole mount.
func (f *farm) whole(t *testing.T) {
	t.Helper()
	for _, name := range f.names {
		if err := f.check(name); err != nil {
			t.Fatalf("%s: %v\nlog of the node:\n%s", name, err, f.log())
		}
	}
	n := 0
	err := filepath.WalkDir(f.path("mnt"), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			n++
		}
		return err
	})
	if err != nil || n != len(f.names) {
		t.Fatalf("%d of %d files, %v", n, len(f.names), err)
	}
}

// recovers waits until all files of the mount can be read.
func (f *farm) recovers(t *testing.T) {
	t.Helper()
	for started := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		var err error
		for _, name := range f.names {
			if err = f.check(name); err != nil {
				break
			}
		}
		var wrong *wrongError
		if err == nil {
			return
		}
		if errors.As(err, &wrong) || time.Since(started) > patience {
			t.Fatalf("%v\nlog of the node:\n%s", err, f.log())
		}
	}
}

// readers are goroutines that read until end is called. Wrong bytes fail the test. Errors are
// counted where they are expected, and fail the test elsewhere.
type readers struct {
	stop  atomic.Bool
	reads atomic.Int64
	errs  atomic.Int64
	all   sync.WaitGroup
}

func (f *farm) readers(t *testing.T, n int, mayFail bool) *readers {
	r := &readers{}
	for i := range n {
		r.all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 7))
			for !r.stop.Load() {
				err := f.check(f.names[rnd.IntN(len(f.names))])
				var wrong *wrongError
				if errors.As(err, &wrong) || err != nil && !mayFail {
					t.Error(err)
					return
				}
				if err != nil {
					r.errs.Add(1)
				}
				r.reads.Add(1)
			}
		})
	}
	return r
}

// end stops the readers and returns after the last one has ended.
func (r *readers) end(t *testing.T) {
	t.Helper()
	r.stop.Store(true)
	r.all.Wait()
	if r.reads.Load() == 0 {
		t.Error("nothing was read")
	}
}

// gone stops the node and checks that it has left no mount, process, socket or base directory.
func (f *farm) gone(t *testing.T) {
	t.Helper()
	if status, out := f.premix(t, "node", "stop"); status != 0 {
		t.Errorf("node stop: status %d\n%s\nlog of the node:\n%s", status, out, f.log())
		f.premix(t, "node", "stop", "--lazy")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(mounts)) {
		// Tests mount file systems at such places themselves.
		if strings.Contains(line, f.dir) && !strings.Contains(line, " - tmpfs ") {
			t.Errorf("mount %s", line)
		}
	}
	mark := "PREMIX_HOME=" + f.path("home") + "\x00"
	var left []int
	if !comes(func() bool {
		left = processes(func(_, environ string) bool { return strings.Contains(environ, mark) })
		return len(left) == 0
	}) {
		t.Errorf("processes %v are left\n%s", left, f.log())
	}
	for _, name := range []string{"socket", "state.json"} {
		if _, err := os.Lstat(f.path("home/run/" + name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	if left, err := filepath.Glob(f.path("home/run/trees/*")); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// kill sends SIGKILL to processes. The arguments name parents before children.
func kill(t *testing.T, pids ...int) {
	t.Helper()
	send := func(pid int, sig syscall.Signal) {
		if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
	if len(pids) > 1 {
		// Stop all processes first, so that none of them notices the end of another one.
		for _, pid := range pids {
			send(pid, unix.SIGSTOP)
		}
		for _, pid := range pids {
			await(t, "a stop", func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				_, state, _ := strings.Cut(string(stat), ") ")
				return err != nil || strings.HasPrefix(state, "T")
			})
		}
	}
	// The children die first: at the death of a parent the kernel continues stopped children in a
	// process group that becomes orphaned (setpgid(2)).
	for _, pid := range slices.Backward(pids) {
		send(pid, unix.SIGKILL)
	}
}

const patient = "max_deaths: 100000\nfetch_timeout: 20s\n"

// The origin has each possible fault while readers read the mount. Every read returns right bytes
// or an error. After the fault everything can be read.
func TestMountWithFaultyOrigin(t *testing.T) {
	if !apart(t) {
		return
	}
	faults := []faulty.Fault{faulty.HangUp, faulty.Stall, faulty.Truncate, faulty.Flip, faulty.Other}
	if soak {
		faults = faulty.All()
	}
	f := newFarm(t, "fetch_timeout: 2s\n")
	for i, fault := range faults {
		f.mount(t, "--backend", []string{"erofs", "fuse"}[i%2])
		f.origin.Set(fault, "/objects/")
		r := f.readers(t, 20, true)
		time.Sleep(600 * time.Millisecond)
		await(t, "a read that fails", func() bool { return r.errs.Load() > 0 })
		r.end(t)
		if errs := f.status(t).Mounts[0].Errors; errs == 0 && r.errs.Load() > 0 {
			t.Errorf("%s: %d reads failed, and the status tells of none", fault, r.errs.Load())
		}
		f.origin.Set("", "")
		f.recovers(t)
		f.ok(t, "umount", f.path("mnt"))
		f.ok(t, "cache", "drop", "--all")
	}
}

// While the network is cut, files in the cache can be read, also through a new mount.
func TestNetworkCut(t *testing.T) {
	if !apart(t) {
		return
	}
	f := newFarm(t, "fetch_timeout: 5s\n")
	f.mount(t)
	here := f.names[:5]
	for _, name := range here {
		if err := f.check(name); err != nil {
			t.Fatal(err)
		}
	}
	f.origin.Set(faulty.HangUp, "")
	for _, name := range here {
		if err := f.check(name); err != nil {
			t.Errorf("%s is in the cache: %v", name, err)
		}
	}
	large := f.names[len(f.names)-1]
	if err := f.check(large); !errors.Is(err, unix.EIO) {
		t.Errorf("%s is not in the cache: %v, want EIO", large, err)
	}
	f.mkdir(t, "mnt2")
	if out := f.ok(t, "mount", "--origin", f.url, "data:1", f.path("mnt2")); !strings.Contains(out, "note: no origin answers") {
		t.Errorf("mounted offline, and said %q", out)
	}
	s := f.status(t)
	if o := s.Mounts[0].Origins[0]; o.Errors == 0 || o.LastError == "" || s.Mounts[0].LastError == "" {
		t.Errorf("the status says %+v, last error %q", o, s.Mounts[0].LastError)
	}
	f.origin.Set("", "")
	f.recovers(t)
}

// While the cache's disk is full, reads succeed without caching. Caching continues once there is
// room.
func TestCacheDiskFull(t *testing.T) {
	if !apart(t) {
		return
	}
	f := newFarm(t, patient)
	f.mkdir(t, "home/cache/node")
	if err := unix.Mount("tmpfs", f.path("home/cache/node"), "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(f.path("home/cache/node")); err != nil {
			t.Error(err)
		}
	})
	f.mount(t, "--eager")
	f.whole(t)
	f.whole(t)
	if m := f.status(t).Mounts[0]; m.NotKept == 0 || m.Present > 4<<20 {
		t.Errorf("%d chunks were not kept, %d bytes were", m.NotKept, m.Present)
	}
	if err := unix.Mount("tmpfs", f.path("home/cache/node"), "tmpfs", unix.MS_REMOUNT, "size=100m"); err != nil {
		t.Fatal(err)
	}
	f.ok(t, "node", "restart") // data that the cache could not store may still be in memory
	await(t, "what is read now that there is room", func() bool {
		f.whole(t)
		return f.status(t).Mounts[0].Present > 10<<20
	})
	f.ok(t, "node", "stop") // before the tmpfs is unmounted
}

// A mount works with a quota that is smaller than one file.
func TestQuotaSmallerThanAFile(t *testing.T) {
	if !apart(t) {
		return
	}
	f := newFarm(t, "quota: 1M\n")
	f.mount(t)
	f.whole(t)
	f.whole(t)
	var used int64
	err := filepath.WalkDir(f.path("home/cache/node"), func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			used += st.Blocks * 512
		}
		return err
	})
	if err != nil || used > 1<<20 {
		t.Errorf("the cache takes %d bytes, %v", used, err)
	}
}

// corrupt overwrites parts of the cached data on disk, and returns the number of parts.
func (f *farm) corrupt(t *testing.T) int {
	t.Helper()
	images, err := filepath.Glob(f.path("home/cache/node/trees/*/image"))
	if err != nil || len(images) != 1 {
		t.Fatalf("%v, %v", images, err)
	}
	file, err := os.OpenFile(images[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	n := 0
	for at := int64(0); ; n++ {
		data, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if err != nil {
			return n
		}
		if _, err := file.WriteAt([]byte("rotten"), data+rand.Int64N(4000)); err != nil {
			t.Fatal(err)
		}
		at = data + 512<<10
	}
}

// Damage to the cache is repaired, whether the node runs at the time or not.
func TestCacheCorrupted(t *testing.T) {
	if !apart(t) {
		return
	}
	for _, backend := range []string{"erofs", "fuse"} {
		f := newFarm(t, "verify: true\nmax_deaths: 100\n")
		f.mount(t, "--backend", backend)
		f.whole(t)
		for range 3 {
			if n := f.corrupt(t); n < 5 {
				t.Fatalf("only %d places", n)
			}
			f.whole(t)
		}
		if m := f.status(t).Mounts[0]; m.Corrupt == 0 {
			t.Error("the status tells of no damage")
		}
		f.corrupt(t)
		f.ok(t, "node", "restart")
		f.whole(t)
		f.ok(t, "node", "stop")
		f.corrupt(t)
		f.mount(t)
		f.whole(t)
		f.corrupt(t)
		if status, out := f.premix(t, "cache", "check"); status != 1 || !strings.Contains(out, "was wrong") {
			t.Errorf("cache check: status %d\n%s", status, out)
		}
		f.ok(t, "cache", "check")
		f.whole(t)
	}
}

// A complete tree with a damaged image is not mounted from the image file.
func TestCompleteImageCorrupted(t *testing.T) {
	if !apart(t) {
		return
	}
	f := newFarm(t, patient)
	f.mount(t, "--eager")
	f.whole(t)
	// A mount waits only briefly for the verification of the image. On a slow machine a later mount
	// finds more of it done.
	await(t, "a mount from the image file", func() bool {
		f.ok(t, "umount", f.path("mnt"))
		f.mount(t)
		m := f.status(t).Mounts[0]
		return m.Backend == "file" && m.Reason == ""
	})
	f.whole(t)
	f.ok(t, "node", "stop")
	f.corrupt(t)
	f.mount(t)
	f.whole(t)
}

// Fifty readers do not notice that the worker is killed repeatedly.
func TestWorkerKilled(t *testing.T) {
	if !apart(t) {
		return
	}
	kills := 20
	if soak {
		kills = 100
	}
	for _, backend := range []string{"erofs", "fuse"} {
		t.Run(backend, func(t *testing.T) {
			f := newFarm(t, patient)
			f.mount(t, "--backend", backend)
			r := f.readers(t, 50, false)
			for range kills {
				time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
				kill(t, f.status(t).Worker)
			}
			r.end(t)
			f.whole(t)
			if s := f.status(t); len(s.Mounts) != 1 || s.Mounts[0].State != "mounted" {
				t.Errorf("%+v", s)
			}
		})
	}
}

// If a worker dies while a profile keeps the kernel from reading ahead, the next worker restores
// the usual readahead.
func TestReadaheadOutlivesWorker(t *testing.T) {
	if !apart(t) {
		return
	}
	// If another EROFS is mounted at the same moment, the setting may belong to that mount.
	const attempts = 3
	for range attempts {
		if readaheadComesBack(t) {
			return
		}
	}
	t.Errorf("the usual readahead did not come in %d attempts", attempts)
}

func readaheadComesBack(t *testing.T) bool {
	f := newFarm(t, patient)
	f.mount(t, "--backend", "erofs")
	content, err := os.ReadFile(f.path("home/run/state.json"))
	if err != nil {
		t.Fatal(err)
	}
	var j struct{ Mounts []struct{ BDI string } }
	if err := json.Unmarshal(content, &j); err != nil || len(j.Mounts) != 1 {
		t.Fatalf("%v\n%s", err, content)
	}
	if j.Mounts[0].BDI == "" {
		t.Skip("this kernel does not tell where the settings of EROFS are")
	}
	setting := filepath.Join(j.Mounts[0].BDI, "read_ahead_kb")
	// The node cannot tell apart two EROFS that are mounted at the same moment, and the other one
	// may be unmounted.
	others := func(err error) {
		if errors.Is(err, fs.ErrNotExist) {
			t.Skip("somebody has mounted another EROFS at the same moment")
		}
		if err != nil {
			t.Error(err)
		}
	}
	usual, err := os.ReadFile(setting)
	others(err)
	others(os.WriteFile(setting, []byte("16"), 0))
	kill(t, f.status(t).Worker)
	back := false
	for end := time.Now().Add(30 * time.Second); !back && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		now, err := os.ReadFile(setting)
		others(err)
		back = string(now) == string(usual)
	}
	f.whole(t)
	return back
}

// A killed supervisor is replaced by a new one, as is a worker that is killed in between.
func TestSupervisorKilled(t *testing.T) {
	if !apart(t) {
		return
	}
	f := newFarm(t, patient)
	f.mount(t)
	r := f.readers(t, 20, false)
	for range 5 {
		before := f.status(t)
		kill(t, before.Supervisor)
		await(t, "a new supervisor", func() bool { return f.status(t).Supervisor != before.Supervisor })
		if after := f.status(t); after.Worker != before.Worker {
			t.Errorf("the worker changed from %d to %d", before.Worker, after.Worker)
		}
		kill(t, before.Worker)
		await(t, "a new worker", func() bool { return f.status(t).Worker != before.Worker })
	}
	r.end(t)
	f.whole(t)
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	if !comes(is) {
		t.Fatalf("%s did not come", what)
	}
}

// When both supervisor and worker are killed, reads fail without wrong data until the next node
// mounts the same trees at the same places.
func TestBothKilled(t *testing.T) {
	if !apart(t) {
		return
	}
	for _, backend := range []string{"erofs", "fuse"} {
		t.Run(backend, func(t *testing.T) {
			// A complete tree would be mounted without the node and outlive it.
			f := newFarm(t, patient+"verify: true\n")
			f.mkdir(t, "mnt2")
			f.mount(t, "--backend", backend)
			f.ok(t, "mount", "--origin", f.url, "data:1", f.path("mnt2"))
			for range 2 {
				r := f.readers(t, 10, true)
				await(t, "reads", func() bool { return r.reads.Load() > 100 })
				s := f.status(t)
				kill(t, s.Supervisor, s.Worker)
				// Read a large file, which is not part of the metadata that the kernel caches.
				large := f.names[len(f.names)-1]
				await(t, "an error", func() bool { return f.check(large) != nil })
				r.end(t)
				if err := f.check(large); !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOTCONN) {
					t.Errorf("read from a dead mount: %v", err)
				}
				f.ok(t, "node", "start")
				f.whole(t)
				if s := f.status(t); len(s.Mounts) != 2 || s.Mounts[0].State != "mounted" || s.Mounts[1].State != "mounted" {
					t.Errorf("%+v", s.Mounts)
				}
			}
			s := f.status(t)
			kill(t, s.Supervisor, s.Worker)
			f.ok(t, "umount", f.path("mnt"))
			if s := f.status(t); len(s.Mounts) != 1 {
				t.Errorf("%+v", s.Mounts)
			}
			// Stopping a node that does not run also removes its dead mounts.
			s = f.status(t)
			kill(t, s.Supervisor, s.Worker)
		})
	}
}

// The node gives up on a worker that dies repeatedly: its mounts then return errors.
func TestGivingUp(t *testing.T) {
	if !apart(t) {
		return
	}
	// On a slow machine five deaths may take longer than the period in which deaths count.
	f := newFarm(t, "max_deaths: 2\n")
	f.mount(t)
	await(t, "the end of the node", func() bool {
		status, out := f.premix(t, "node", "status", "--json")
		if status == 0 {
			var s node.Status
			if err := json.Unmarshal([]byte(out), &s); err != nil {
				t.Fatal(err)
			}
			kill(t, s.Worker)
		}
		return status == 1
	})
	if err := f.check(f.names[len(f.names)-1]); err == nil {
		t.Error("a file that is not in memory can be read from a dead mount")
	}
	if !strings.Contains(f.log(), "giving up") {
		t.Errorf("the log says\n%s", f.log())
	}
	f.ok(t, "node", "start")
	f.whole(t)
}

// The worker is killed while mounts are made and removed. Clients succeed or report the reason. In
// the end there are no mounts that the test did not request.
func TestKilledWhileMounting(t *testing.T) {
	if !apart(t) {
		return
	}
	rounds := 25
	if soak {
		rounds = 300
	}
	f := newFarm(t, patient)
	f.ok(t, "node", "start")
	for i := range rounds {
		backend := []string{"auto", "erofs", "fuse"}[i%3]
		worker := f.status(t).Worker
		var killer sync.WaitGroup
		killer.Go(func() {
			time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
			kill(t, worker)
		})
		f.mount(t, "--backend", backend)
		f.whole(t)
		if i%2 == 0 {
			worker = f.status(t).Worker
			killer.Go(func() {
				time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
				kill(t, worker)
			})
		}
		f.ok(t, "umount", f.path("mnt"))
		killer.Wait()
		if s := f.status(t); len(s.Mounts) != 0 {
			t.Fatalf("round %d: %+v", i, s.Mounts)
		}
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(table), f.dir) {
		t.Errorf("mounts are left, %v\n%s\n%s", err, table, f.log())
	}
}

// A mount in use stays, and umount reports the process that uses it. With --lazy the mount is
// removed.
func TestUmountBusy(t *testing.T) {
	if !apart(t) {
		return
	}
	for _, backend := range []string{"erofs", "fuse"} {
		f := newFarm(t, patient)
		f.mount(t, "--backend", backend)
		file, err := os.Open(f.path("mnt/" + f.names[0]))
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"umount", f.path("mnt")}, {"umount", "--all"}, {"node", "stop"}} {
			if status, out := f.premix(t, args...); status != 4 || !strings.Contains(out, fmt.Sprintf("in use by process %d (", os.Getpid())) || !strings.Contains(out, "hint: ") {
				t.Errorf("%v: status %d\n%s", args, status, out)
			}
		}
		f.whole(t)
		f.ok(t, "umount", "--lazy", f.path("mnt"))
		content := make([]byte, len(f.files[f.names[0]]))
		if _, err := file.ReadAt(content, 0); err != nil || !bytes.Equal(content, f.files[f.names[0]]) {
			t.Errorf("whoever has a file open reads on: %v", err)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
		f.mount(t)
		f.whole(t)
		f.gone(t)
	}
}

const nobody = 65534

// ordinary lets an ordinary user run premix and own all files.
func (f *farm) ordinary(t *testing.T) {
	t.Helper()
	helper, err := exec.LookPath("fusermount3")
	if err != nil {
		t.Skip("fusermount3 is missing: install the package fuse3")
	}
	if st, err := os.Stat(helper); err != nil || st.Mode()&fs.ModeSetuid == 0 {
		t.Skip("fusermount3 is not set-user-ID")
	}
	// Distributions let every user open /dev/fuse, containers often do not.
	device := f.path("fuse")
	if err := errors.Join(unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))), os.Chmod(device, 0o666), unix.Mount(device, "/dev/fuse", "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir("/dev/fuse"); err != nil {
			t.Error(err)
		}
	})
	err = filepath.WalkDir(f.dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, nobody, nobody))
	})
	if err := errors.Join(err, os.Chmod(filepath.Dir(f.dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	f.user = nobody
}

// sameAsOrdinary compares src and mnt as the ordinary user, because only this user can read the
// mount.
func (f *farm) sameAsOrdinary(t *testing.T) {
	t.Helper()
	cmd := exec.Command("diff", "-r", f.path("src"), f.path("mnt"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, f.log())
	}
}

// An ordinary user mounts through fusermount3 in a separate node. The same faults have the same
// recovery.
func TestOrdinaryUserMounts(t *testing.T) {
	if !apart(t) {
		return
	}
	f := newFarm(t, patient)
	f.ordinary(t)
	f.mount(t)
	f.sameAsOrdinary(t)
	s := f.status(t)
	if m := s.Mounts[0]; m.Backend != "fuse" || !strings.Contains(m.Reason, "only root") {
		t.Errorf("backend %s: %s", m.Backend, m.Reason)
	}
	kill(t, s.Worker)
	f.sameAsOrdinary(t)
	s = f.status(t)
	kill(t, s.Supervisor, s.Worker)
	f.ok(t, "node", "start")
	f.sameAsOrdinary(t)
	hold := exec.Command("sleep", "60")
	hold.Dir = f.path("mnt")
	hold.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	if status, out := f.premix(t, "umount", f.path("mnt")); status != 4 || !strings.Contains(out, fmt.Sprintf("in use by process %d (sleep, working directory)", hold.Process.Pid)) {
		t.Errorf("status %d\n%s", status, out)
	}
	if err := hold.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = hold.Wait() // it was killed
	f.ok(t, "umount", f.path("mnt"))
}

// The accesses that a mount with --record has recorded survive the death of the worker, and the
// next worker continues the recording.
func TestRecordingOutlivesWorker(t *testing.T) {
	if !apart(t) {
		return
	}
	f := newFarm(t, patient)
	f.mount(t, "--record", f.path("profile.json"))
	chunks := func() int {
		t.Helper()
		var p struct{ Parts []tree.Part }
		if content, err := os.ReadFile(f.path("profile.json")); err != nil || json.Unmarshal(content, &p) != nil {
			t.Fatalf("%v\n%s", err, content)
		}
		seen := map[int]bool{}
		for _, part := range p.Parts {
			if seen[part.Chunk] {
				t.Errorf("chunk %d is there twice", part.Chunk)
			}
			seen[part.Chunk] = true
		}
		return len(p.Parts)
	}
	large := f.names[len(f.names)-6:]
	if err := f.check(large[0]); err != nil {
		t.Fatal(err)
	}
	await(t, "the first chunks in the file", func() bool { return chunks() > 0 })
	first := chunks()
	kill(t, f.status(t).Worker)
	if err := f.check(large[1]); err != nil {
		t.Fatal(err)
	}
	await(t, "chunks of after the worker died in the file", func() bool { return chunks() > first })
	second := chunks()
	s := f.status(t)
	kill(t, s.Supervisor, s.Worker)
	f.ok(t, "node", "start")
	if err := f.check(large[2]); err != nil {
		t.Fatal(err)
	}
	f.ok(t, "umount", f.path("mnt"))
	if n := chunks(); n <= second {
		t.Errorf("%d chunks were recorded, %d of them before the supervisor died", n, second)
	}
}
