//go:build amd64

package tracer

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// napping are the system calls of sleep(1), which depend on the version of the C library.
var napping = []int{unix.SYS_CLOCK_NANOSLEEP, unix.SYS_NANOSLEEP}

// sleeper starts a process and waits until it sleeps in one of the given system calls. Before, it
// may sleep in others.
func sleeper(t *testing.T, calls []int, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		proc := filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid))
		// The file has the number and the arguments of the call, or "running".
		in, err := os.ReadFile(filepath.Join(proc, "syscall"))
		stat, err2 := os.ReadFile(filepath.Join(proc, "stat"))
		if err == nil && err2 == nil && slices.ContainsFunc(calls, func(nr int) bool { return strings.HasPrefix(string(in), strconv.Itoa(nr)+" ") }) && strings.Contains(string(stat), ") S ") {
			return cmd
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v does not sleep in %v: %s %s %v", argv, calls, in, stat, errors.Join(err, err2))
		}
	}
}

func TestHoldInjectRelease(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// cat sleeps in a read of a pipe. The read must be executed again and must return the data that
	// is written later.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	out := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("cat")
	cmd.Stdin, cmd.Stdout = r, f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	time.Sleep(50 * time.Millisecond) // in the read or before it: both must work

	p, err := Hold(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.Syscall(unix.SYS_GETPID); err != nil || int(got) != cmd.Process.Pid {
		t.Errorf("injected getpid: %d, %v; want %d", got, err, cmd.Process.Pid)
	}
	if _, err := p.Syscall(unix.SYS_CLOSE, 12345); !errors.Is(err, unix.EBADF) {
		t.Errorf("injected close of nothing: %v, want EBADF", err)
	}
	mem, err := p.Alloc(8192)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Write(mem+4090, []byte("across pages")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 12)
	if err := p.Read(mem+4090, b); err != nil || string(b) != "across pages" {
		t.Errorf("read back %q, %v", b, err)
	}
	if err := p.Free(mem, 8192); err != nil {
		t.Fatal(err)
	}
	if err := p.Read(mem, b); err == nil {
		t.Error("memory can be read after it was freed")
	}
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("late\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the process failed after it was let go: %v", err)
	}
	if got, _ := os.ReadFile(out); string(got) != "late\n" {
		t.Errorf("it wrote %q", got)
	}
}

func TestCall(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := sleeper(t, []int{unix.SYS_OPENAT}, "cat", fifo)
	p, err := Hold(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	nr, args, ok := p.Call(p.Threads[0])
	if !ok || nr != unix.SYS_OPENAT || int32(args[0]) != unix.AT_FDCWD {
		t.Errorf("rests at call %d %v, %v; want openat", nr, args, ok)
	}
	p.Kill()
}

func TestGone(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := sleeper(t, napping, "sleep", "600")
	p, err := Hold(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if _, err := p.Syscall(unix.SYS_GETPID); !errors.Is(err, ErrGone) {
		t.Errorf("a call in a killed process: %v, want ErrGone", err)
	}
	if _, err := Hold(1 << 22); !errors.Is(err, ErrGone) {
		t.Errorf("hold nobody: %v, want ErrGone", err)
	}
}

func TestRewind(t *testing.T) {
	errno := func(n int64) uint64 { return uint64(-n) }
	for _, c := range []struct {
		name          string
		orig, rax     uint64
		wantRax, back uint64
	}{
		{"restartable", unix.SYS_OPENAT, errno(erestartSys), unix.SYS_OPENAT, 2},
		{"without a handler", unix.SYS_WAIT4, errno(erestartNoHand), unix.SYS_WAIT4, 2},
		{"by restart_syscall", unix.SYS_NANOSLEEP, errno(erestartRestartBlock), unix.SYS_RESTART_SYSCALL, 2},
		{"finished", unix.SYS_READ, 17, 17, 0},
		{"failed", unix.SYS_READ, errno(5), errno(5), 0},
		{"in user code", ^uint64(0), errno(erestartSys), errno(erestartSys), 0},
	} {
		got := rewind(unix.PtraceRegs{Orig_rax: c.orig, Rax: c.rax, Rip: 1000})
		if got.Rax != c.wantRax || got.Rip != 1000-c.back || got.Orig_rax != ^uint64(0) {
			t.Errorf("%s: rax %#x rip %d orig %#x", c.name, got.Rax, got.Rip, got.Orig_rax)
		}
	}
}

// TestHoldEnded holds a process with a thread that has ended and was not waited for.
func TestHoldEnded(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	exe := filepath.Join(t.TempDir(), "ends")
	if out, err := exec.Command("cc", "-O1", "-pthread", "-o", exe, "testdata/ends.c").CombinedOutput(); err != nil {
		t.Fatalf("the tests need a C compiler: %v\n%s", err, out)
	}
	p, _, err := Spawn(exe, []string{exe}, &os.ProcAttr{Dir: t.TempDir(), Files: []*os.File{nil, nil, nil}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		p.Kill()
		for err := error(nil); err == nil || err == unix.EINTR; {
			_, err = unix.Wait4(-1, nil, unix.WALL, nil)
		}
	}()
	w := NewWatch()
	if err := errors.Join(w.Install(p), w.Start(p)); err != nil {
		t.Fatal(err)
	}
	for of := -1; ; {
		var st unix.WaitStatus
		tid, err := unix.Wait4(of, &st, unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || !st.Stopped() {
			t.Fatalf("thread %d: status %#x, %v", tid, st, err)
		}
		if tid != p.Pid {
			of = p.Pid // the end of the other thread is not collected
		}
		l, err := w.Handle(tid, st)
		if err != nil {
			t.Fatal(err)
		}
		if l == nil {
			continue
		}
		if filepath.Base(l.Path) != "gate" {
			if err := w.Continue(tid); err != nil {
				t.Fatal(err)
			}
			continue
		}
		held, err := w.Hold(p.Pid, tid)
		if err != nil || len(held.Threads) != 1 {
			t.Fatalf("held %+v, %v", held, err)
		}
		return
	}
}
