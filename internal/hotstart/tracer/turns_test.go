//go:build amd64

package tracer

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// underWatch runs a program under a Watch with a Clock to its end, and returns its standard output.
func underWatch(t *testing.T, argv ...string) string {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, _, err := Spawn(argv[0], argv, &os.ProcAttr{Files: []*os.File{nil, out, out}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(50*time.Second, p.Kill) // before turns end by themselves
	defer late.Stop()
	w := NewWatch()
	w.Random = NewEntropy([32]byte{})
	w.Clock = &Clock{Realtime: 1e18, Monotonic: 1e15, Cycles: 1 << 44}
	if err := w.Install(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(p); err != nil {
		t.Fatal(err)
	}
	for {
		tid, st, err := w.Wait(unix.WALL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		l, err := w.Handle(tid, st)
		if err != nil && !errors.Is(err, ErrGone) {
			t.Fatal(err)
		}
		if l != nil {
			if err := w.Continue(tid); err != nil {
				t.Fatal(err)
			}
		}
		if tid == p.Pid && !st.Stopped() {
			if st.ExitStatus() != 0 {
				t.Fatalf("%v ended with %#x", argv, uint32(st))
			}
			break
		}
	}
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestTurns runs threads that depend on their order, and compares the orders of two executions.
func TestTurns(t *testing.T) {
	prog := filepath.Join(t.TempDir(), "turns")
	if b, err := exec.Command("cc", "-O1", "-pthread", "-o", prog, "testdata/turns.c").CombinedOutput(); err != nil {
		t.Fatalf("the tests need a C compiler: %v\n%s", err, b)
	}
	for _, what := range []string{"locks", "timed", "reads", "spins"} {
		t.Run(what, func(t *testing.T) {
			first := underWatch(t, prog, what)
			if len(first) < 4 && what != "spins" {
				t.Fatalf("it wrote %q", first)
			}
			if second := underWatch(t, prog, what); second != first {
				t.Errorf("the orders differ:\n%s%s", first, second)
			}
		})
	}
}
