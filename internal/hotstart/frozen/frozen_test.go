//go:build amd64

package frozen

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/tracer"
)

// build compiles a program of testdata.
func build(t *testing.T, name string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	args := append(flags, "-O1", "-pthread", "-o", out, "testdata/"+name+".c", "-lm")
	if b, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("the tests need a C compiler: %v\n%s", err, b)
	}
	return out
}

// template executes a program until it waits for "gate" to be opened, and holds it.
func template(t *testing.T, dir string, argv ...string) (*tracer.Proc, Base) {
	t.Helper()
	if err := unix.Mkfifo(filepath.Join(dir, "gate"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, base := spawn(t, dir, argv...)
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); !atGate(p.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v does not come to its gate", argv)
		}
	}
	held, err := tracer.Hold(p.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return held, base
}

func spawn(t *testing.T, dir string, argv ...string) (*tracer.Proc, Base) {
	t.Helper()
	var files []*os.File
	for _, f := range []struct {
		path string
		flag int
	}{{os.DevNull, os.O_RDONLY}, {filepath.Join(dir, "stdout"), os.O_WRONLY | os.O_CREATE}, {filepath.Join(dir, "stderr"), os.O_WRONLY | os.O_CREATE | os.O_APPEND}} {
		file, err := os.OpenFile(f.path, f.flag, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		files = append(files, file)
	}
	p, _, err := tracer.Spawn(argv[0], argv, &os.ProcAttr{Dir: dir, Files: files, Env: []string{"PATH=/usr/bin:/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A process that was waited for may have given its id to another one.
		if unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil) == nil {
			p.Kill()
			finished(t, p)
		}
	})
	base, err := ReadBase(p.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p, base
}

// atGate reports whether a thread of a process sleeps in an open.
func atGate(pid int) bool {
	names, _ := filepath.Glob("/proc/" + itoa(pid) + "/task/*/syscall")
	for _, name := range names {
		b, _ := os.ReadFile(name)
		if strings.HasPrefix(string(b), "257 ") {
			return true
		}
	}
	return false
}

func itoa(n int) string { return strconv.Itoa(n) }

// finished waits for the end of a started process.
func finished(t *testing.T, p *tracer.Proc) unix.WaitStatus {
	t.Helper()
	for {
		// Threads that were held are reaped one by one, the leader last.
		var st unix.WaitStatus
		switch pid, err := unix.Wait4(-1, &st, unix.WALL, nil); {
		case err == unix.ECHILD:
			return 0
		case err != nil && err != unix.EINTR:
			t.Fatal(err)
		case pid == p.Pid && !st.Stopped():
			return st
		}
	}
}

func TestState(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prog := build(t, "state")
	dir := t.TempDir()
	p, base := template(t, dir, prog, "64")
	pages := filepath.Join(t.TempDir(), "pages")
	f, err := os.OpenFile(pages, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	im, err := Freeze(Source{Proc: p, Base: base, Dir: dir}, f)
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if err := Verify(f, im.Pieces); err != nil {
		t.Error(err)
	}
	meta := filepath.Join(t.TempDir(), "image")
	if err := im.WriteFile(meta); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		im, err := ReadFile(meta)
		if err != nil {
			t.Fatal(err)
		}
		task := t.TempDir()
		for name, text := range map[string]string{"gate": "sample\n", "stdout": "", "stderr": "", "log": "before "} {
			if err := os.WriteFile(filepath.Join(task, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		started := time.Now()
		q, personality, err := im.Spawn(task, f, &syscall.SysProcAttr{Setsid: true})
		if err != nil {
			t.Fatal(err)
		}
		spawned := time.Now()
		if err := im.Start(q, Options{Dir: task, Personality: &personality}); err != nil {
			q.Kill()
			finished(t, q)
			t.Fatal(err)
		}
		if err := q.Release(); err != nil {
			t.Fatal(err)
		}
		t.Logf("start %d: %v to spawn, %v to release", i, spawned.Sub(started), time.Since(spawned))
		st := finished(t, q)
		out, _ := os.ReadFile(filepath.Join(task, "stdout"))
		if st.ExitStatus() != 5 || string(out) != "loaded right sample\n" {
			t.Errorf("start %d: status %#x, it printed %q", i, st, out)
		}
	}
}

func TestMain(m *testing.M) {
	// Like a supervisor, close the descriptors that the tests inherited.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
