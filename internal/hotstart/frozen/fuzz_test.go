//go:build amd64

package frozen

import (
	"errors"
	"fmt"
	"math/rand/v2"
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

// TestFuzz compares cold and hot starts of programs that make random legal operations.
// PREMIX_FUZZ_SEED=N repeats one of them.
func TestFuzz(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prog := build(t, "fuzz")
	count := uint64(25)
	if os.Getenv("PREMIX_SOAK") != "" {
		count = 5000
	}
	if one := os.Getenv("PREMIX_FUZZ_SEED"); one != "" {
		seed, err := strconv.ParseUint(one, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		fuzzOne(t, prog, seed, map[string]int{})
		return
	}
	first := uint64(rand.Uint32())
	t.Logf("seeds 1 to %d, and %d to %d", count, first, first+count-1)
	refused := map[string]int{}
	hot := 0
	for i := range 2 * count {
		seed := i + 1
		if i >= count {
			seed = first + i - count
		}
		if fuzzOne(t, prog, seed, refused) {
			hot++
		}
		if t.Failed() && os.Getenv("PREMIX_SOAK") == "" {
			break
		}
	}
	t.Logf("%d programs were started hot; refused: %v", hot, refused)
	if uint64(hot) < count {
		t.Errorf("%d of %d programs were started hot", hot, 2*count)
	}
}

// TestPipeRoom freezes a program that has written to a pipe and read parts of pages. A new pipe
// with the same bytes would take a write for which there is no room in the old one.
func TestPipeRoom(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	refused := map[string]int{}
	fuzzOne(t, build(t, "fuzz"), 117092657, refused)
	if refused["the room in one of its pipes cannot be restored"] != 1 {
		t.Errorf("refused: %v", refused)
	}
}

// TestPackets looks into pipes with packets: a read of a part of one discards the rest of it.
func TestPackets(t *testing.T) {
	for _, size := range []int{2, 100, pageSize} {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_DIRECT); err != nil {
			t.Fatal(err)
		}
		in, out := os.NewFile(uintptr(fds[0]), "in"), os.NewFile(uintptr(fds[1]), "out")
		defer in.Close()
		defer out.Close()
		if _, err := out.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		// Later writes make no packets.
		if _, err := unix.FcntlInt(out.Fd(), unix.F_SETFL, 0); err != nil {
			t.Fatal(err)
		}
		if parts, err := peekPipe(in, size, 16*pageSize); !errors.Is(err, errPacket) {
			t.Errorf("a packet of %d bytes: %d parts, %v", size, len(parts), err)
		}
	}
}

// fuzzOne runs one program cold once and hot twice, and reports whether it was frozen.
func fuzzOne(t *testing.T, prog string, seed uint64, refused map[string]int) bool {
	t.Helper()
	err := compare(t, prog, strconv.FormatUint(seed, 10), strconv.FormatUint(20+seed%180, 10), strconv.FormatUint(20+seed*7%180, 10))
	var no *Refused
	if errors.As(err, &no) {
		what, _, _ := strings.Cut(no.What, " (")
		what, _, _ = strings.Cut(what, ":")
		refused[what]++
		return false
	}
	if err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	return true
}

// TestGuard makes operations on large memory that a file mapping would answer differently, and
// keeps state that is spread over the whole process.
func TestGuard(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := compare(t, build(t, "guard")); err != nil {
		t.Error(err)
	}
}

// compare runs a program cold once and hot twice. The error describes a difference.
func compare(t *testing.T, argv ...string) error {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "compare-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	sub := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cold := sub("cold")
	if err := os.WriteFile(filepath.Join(cold, "gate"), []byte("sample\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = cold, []string{"PATH=/usr/bin:/bin"}
	out, err := os.Create(filepath.Join(cold, "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	want := outcome(t, cold, unix.WaitStatus(cmd.ProcessState.Sys().(syscall.WaitStatus)))

	if !strings.Contains(want, "gate") {
		return fmt.Errorf("it ends before it opens its gate: %s", want)
	}
	work := sub("template")
	p, base := template(t, work, argv...)
	f, err := os.OpenFile(filepath.Join(dir, "pages"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	im, err := Freeze(Source{Proc: p, Base: base, Dir: work, Ends: true}, f)
	p.Kill()
	finished(t, p)
	if err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	for i := range 2 {
		task := sub(fmt.Sprintf("hot-%d", i))
		copyFiles(t, work, task)
		if err := os.WriteFile(filepath.Join(task, "gate"), []byte("sample\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		st, err := runHot(im, f, task)
		if err != nil {
			return fmt.Errorf("hot start: %w", err)
		}
		if got := outcome(t, task, st); got != want {
			return fmt.Errorf("hot start %d differs from a cold one: %s", i, firstDifference(got, want))
		}
	}
	return nil
}

// copyFiles copies the regular files of a directory.
func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if !info.Mode().IsRegular() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), b, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}

// outcome returns the exit status of a program and the files in its directory.
func outcome(t *testing.T, dir string, st unix.WaitStatus) string {
	t.Helper()
	var b strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if e.Name() == "stdout" {
			fmt.Fprintf(&b, "%s", text)
		} else if e.Name() != "stderr" {
			fmt.Fprintf(&b, "file %s: %q\n", e.Name(), text)
		}
	}
	fmt.Fprintf(&b, "status %#x\n", uint32(st))
	return b.String()
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d is %q and not %q, after %q", i+1, g[i], w[i], g[max(0, i-3):i])
		}
	}
	return fmt.Sprintf("%d lines and not %d", len(g), len(w))
}

// runHot starts a frozen process under guard, and returns its exit status.
func runHot(im *Image, pages *os.File, task string) (unix.WaitStatus, error) {
	guard, err := tracer.NewGuard(pages)
	if err != nil {
		return 0, err
	}
	q, personality, err := im.Spawn(task, pages, &syscall.SysProcAttr{Setsid: true})
	if err != nil {
		return 0, err
	}
	err = im.Start(q, Options{Dir: task, Personality: &personality, Filter: tracer.GuardFilter()})
	if err == nil {
		err = guard.Release(q)
	}
	if err != nil {
		q.Kill()
	}
	var handled error
	deadline := time.AfterFunc(time.Minute, q.Kill)
	defer deadline.Stop()
	for {
		var st unix.WaitStatus
		pid, e := unix.Wait4(-1, &st, unix.WALL, nil)
		switch {
		case e == unix.EINTR:
			continue
		case e != nil:
			return 0, errors.Join(err, handled, e)
		case pid == q.Pid && !st.Stopped():
			return st, errors.Join(err, handled)
		}
		if err != nil {
			continue
		}
		if e := guard.Handle(pid, st); e != nil && !errors.Is(e, tracer.ErrGone) {
			handled = errors.Join(handled, e)
			q.Kill()
		}
	}
}
