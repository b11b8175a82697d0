package spawn_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/spawn"
	"premix/internal/kit/proc"
)

func TestMain(m *testing.M) {
	// A spawner is this test binary, executed again.
	if len(os.Args) > 1 && os.Args[1] == spawn.Arg {
		os.Exit(spawn.Main())
	}
	os.Exit(m.Run())
}

// bench is a spawner with the results that it has sent.
type bench struct {
	t        *testing.T
	s        *spawn.Spawner
	setup    spawn.Setup
	mu       sync.Mutex
	results  map[uint64]spawn.Result
	came     chan struct{}
	finished chan error
}

func newBench(t *testing.T, slots int, cells ...spawn.TaskCgroup) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, results: make(map[uint64]spawn.Result), came: make(chan struct{}, 1), finished: make(chan error, 1)}
	b.setup = spawn.Setup{Slots: slots, StatusFile: filepath.Join(dir, "board"), Cells: cells}
	for i := range slots {
		b.setup.Logs = append(b.setup.Logs, filepath.Join(dir, fmt.Sprintf("out-%d", i)), filepath.Join(dir, fmt.Sprintf("err-%d", i)))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if b.s, err = spawn.Start(self, b.setup); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.s.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	go func() {
		b.finished <- b.s.Results(func(batch []spawn.Result) {
			b.mu.Lock()
			for _, r := range batch {
				if _, twice := b.results[r.ID]; twice {
					t.Errorf("two results of %d", r.ID)
				}
				b.results[r.ID] = r
			}
			b.mu.Unlock()
			select {
			case b.came <- struct{}{}:
			default:
			}
		})
	}()
	return b
}

func (b *bench) start(tasks ...spawn.Task) {
	b.t.Helper()
	if err := b.s.Start(tasks); err != nil {
		b.t.Fatal(err)
	}
}

// await waits until the results of n tasks have arrived.
func (b *bench) await(n int) map[uint64]spawn.Result {
	b.t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		b.mu.Lock()
		got := len(b.results)
		b.mu.Unlock()
		if got >= n {
			return b.results
		}
		select {
		case <-b.came:
		case <-limit:
			b.t.Fatalf("%d results of %d", got, n)
		}
	}
}

// until waits until a condition is true.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !f(); {
		if time.Now().After(end) {
			t.Fatalf("%s did not come", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (b *bench) text(slot int, stderr bool, p spawn.LogRange) string {
	b.t.Helper()
	i := 2 * slot
	if stderr {
		i++
	}
	text, err := os.ReadFile(b.setup.Logs[i])
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text[p.Offset : p.Offset+p.Length])
}

// ignored returns the line of /proc/PID/status with the signals that this process, and so each
// child by default, ignores. Below make it is not empty: programs that glibc's posix_spawn starts
// ignore the signal that cancels threads.
func ignored(t *testing.T) string {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "SigIgn:") {
			return line
		}
	}
	t.Fatalf("no line tells what is ignored:\n%s", status)
	return ""
}

func TestTasks(t *testing.T) {
	b := newBench(t, 2)
	dir := t.TempDir()
	own := filepath.Join(dir, "own")
	cases := []struct {
		task     spawn.Task
		out, err string
		status   int
	}{
		{task: spawn.Task{Argv: []string{"true"}}},
		{task: spawn.Task{Argv: []string{"false"}}, status: 1},
		{task: spawn.Task{Argv: []string{"printf", "%s|", "a b", "", "\xff\n'\""}}, out: "a b||\xff\n'\"|"},
		{task: spawn.Task{Shell: "echo out; echo err >&2; exit 7"}, out: "out\n", err: "err\n", status: 7},
		{task: spawn.Task{Argv: []string{"no-such-program"}, Shell: "no-such-program"}, status: 127, err: "*"},
		{task: spawn.Task{Shell: "pwd; echo $PWD $PREMIX_TASK $PREMIX_TRY", Dir: dir}, out: dir + "\n" + dir + " 6 3\n"},
		{task: spawn.Task{Argv: []string{"sh", "-c", "echo $A$B"}, Env: []string{"A=1", "B=2", "A=3"}}, out: "32\n"},
		{task: spawn.Task{Argv: []string{"tool"}, Env: []string{"PATH=" + dir}}, out: "found\n"},
		{task: spawn.Task{Argv: []string{"./tool"}, Dir: dir}, out: "found\n"},
		{task: spawn.Task{Argv: []string{"tool"}, Dir: dir, Env: []string{"PATH=:/none"}}, out: "found\n"},
		// A script without a first line runs in the shell, and precedes programs that are later on
		// PATH.
		{task: spawn.Task{Argv: []string{"bare"}, Shell: "bare", Env: []string{"PATH=" + dir + "/none:" + dir + "/sub:" + dir}}, out: "bare\n"},
		{task: spawn.Task{Shell: "echo mine; echo too >&2", Stdout: own, Stderr: own}},
		{task: spawn.Task{Shell: "ulimit -n"}, out: "*"},
		{task: spawn.Task{Shell: "readlink /proc/self/fd/0"}, out: "/dev/null\n"},
		{task: spawn.Task{Shell: "ls /proc/self/fd"}, out: descriptors(t)},
		{task: spawn.Task{Shell: "grep -E 'Sig(Blk|Ign)' /proc/self/status"}, out: "SigBlk:\t0000000000000000\n" + ignored(t)},
	}
	if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\necho found\n"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "sub"), 0o777),
		os.WriteFile(filepath.Join(dir, "sub", "bare"), []byte("echo bare\n"), 0o777),
		os.WriteFile(filepath.Join(dir, "bare"), []byte("#!/bin/sh\necho other\n"), 0o777)); err != nil {
		t.Fatal(err)
	}
	var tasks []spawn.Task
	for i := range cases {
		cases[i].task.ID = spawn.TryID(i+1, 3)
		tasks = append(tasks, cases[i].task)
	}
	b.start(tasks...)
	results := b.await(len(cases))
	for i, c := range cases {
		r := results[c.task.ID]
		if r.Errno != 0 || !r.Status.Exited() || r.Status.ExitStatus() != c.status {
			t.Errorf("%+v: %+v, want status %d", c.task, r, c.status)
			continue
		}
		if r.Finished.Before(r.Started) {
			t.Errorf("task %d: %+v", i+1, r)
		}
		if got := b.text(r.Slot, false, r.Out); got != c.out && c.out != "*" {
			t.Errorf("%+v: output %q, want %q", c.task, got, c.out)
		}
		if got := b.text(r.Slot, true, r.Err); got != c.err && c.err != "*" {
			t.Errorf("%+v: error output %q, want %q", c.task, got, c.err)
		}
	}
	if text, err := os.ReadFile(own); err != nil || string(text) != "mine\ntoo\n" {
		t.Errorf("its own file holds %q, %v", text, err)
	}
	var limit syscall.Rlimit
	out := b.text(results[cases[12].task.ID].Slot, false, results[cases[12].task.ID].Out)
	if err := syscall.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || strings.TrimSpace(out) == "" {
		t.Errorf("limit of files %q, %v", out, err)
	}
}

// descriptors returns the descriptors that a child of the spawner inherits. They are the
// descriptors with which this process was started, except 3, which the spawner uses for its socket.
func descriptors(t *testing.T) string {
	t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	cmd := exec.Command("/bin/sh", "-c", "exec 3<&-; ls /proc/self/fd")
	cmd.ExtraFiles = []*os.File{null}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestWhatCannotBeStarted(t *testing.T) {
	b := newBench(t, 1)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		task  spawn.Task
		errno syscall.Errno
		at    string
	}{
		{spawn.Task{Argv: []string{"no-such-program"}}, unix.ENOENT, "be executed"},
		{spawn.Task{Argv: []string{filepath.Join(dir, "plain")}}, unix.EACCES, "be executed"},
		{spawn.Task{Argv: []string{"true"}, Dir: filepath.Join(dir, "none")}, unix.ENOENT, "enter its directory"},
		{spawn.Task{Argv: []string{"true"}, Dir: filepath.Join(dir, "none"), Stdout: filepath.Join(dir, "none", "out")}, unix.ENOENT, "enter its directory"},
		{spawn.Task{Argv: []string{"true"}, Stdout: filepath.Join(dir, "plain", "out")}, unix.ENOTDIR, "open its output"},
		{spawn.Task{Argv: []string{"true"}, Join: []string{filepath.Join(dir, "none")}}, unix.ENOENT, "join its cgroup"},
		{spawn.Task{Shell: strings.Repeat(":", 1<<18)}, unix.E2BIG, "be executed"},
	}
	var tasks []spawn.Task
	for i := range cases {
		cases[i].task.ID = uint64(i + 1)
		tasks = append(tasks, cases[i].task)
	}
	b.start(append(tasks, spawn.Task{ID: 100, Argv: []string{"true"}})...)
	results := b.await(len(cases) + 1)
	for _, c := range cases {
		if r := results[c.task.ID]; r.Errno != c.errno || r.At != c.at {
			t.Errorf("%d: %v at %q, want %v at %q", c.task.ID, r.Errno, r.At, c.errno, c.at)
		}
	}
	if r := results[100]; r.Errno != 0 || r.Status != 0 {
		t.Errorf("the next task: %+v", r)
	}
}

func TestManyInOrderOfASlot(t *testing.T) {
	b := newBench(t, 4)
	const tasks = 400
	var list []spawn.Task
	for i := range tasks {
		list = append(list, spawn.Task{ID: uint64(i + 1), Argv: []string{"echo", fmt.Sprint(i + 1)}})
	}
	b.start(list...)
	for id, r := range b.await(tasks) {
		if got := b.text(r.Slot, false, r.Out); got != fmt.Sprintln(id) {
			t.Errorf("task %d wrote %q", id, got)
		}
	}
}

// A search for a program remembers its path, as a shell does.
func TestSearchRemembersWhereProgramsAre(t *testing.T) {
	dir := t.TempDir()
	place := func(where, says string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, where), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, where, "tool"), []byte("#!/bin/sh\necho "+says+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	in := func(where string) string { return filepath.Join(dir, where) }
	t.Setenv("PATH", strings.Join([]string{in("none"), in("a"), in("b"), "rel", in("c"), os.Getenv("PATH")}, ":"))
	b := newBench(t, 1)
	n := uint64(0)
	says := func(cwd string) string {
		t.Helper()
		n++
		b.start(spawn.Task{ID: n, Argv: []string{"tool"}, Shell: "echo shell", Dir: cwd})
		r := b.await(int(n))[n]
		return strings.TrimSpace(b.text(0, false, r.Out))
	}
	place("cwd/rel", "relative")
	for _, step := range []struct {
		do        func()
		cwd, want string
	}{
		{func() { place("b", "b") }, "", "b"},
		{func() { place("a", "a") }, "", "b"}, // as in a shell that has hashed the path
		{func() { os.Remove(in("b/tool")) }, "", "a"},
		{func() {}, "", "a"},
		{func() { os.Remove(in("a/tool")) }, "", "shell"},
		{func() {}, in("cwd"), "relative"}, // it is not remembered
		{func() { place("c", "c") }, "", "c"},
		{func() {}, in("cwd"), "relative"}, // nor is a program behind it on PATH
		{func() { place("a", "again") }, "", "again"},
	} {
		step.do()
		if got := says(step.cwd); got != step.want {
			t.Errorf("task %d says %q, want %q", n, got, step.want)
		}
	}
}

// At its timeout a task that catches SIGTERM ends in its own way, and a task that ignores it is
// killed. The timeout grows until the shell has set its trap in time.
func TestTimeout(t *testing.T) {
	for _, c := range []struct {
		command  string
		grace    time.Duration
		finished func(syscall.WaitStatus) bool
	}{
		{"trap 'exit 3' TERM; echo begun; while :; do sleep 0.01; done", time.Minute, func(ws syscall.WaitStatus) bool { return ws.ExitStatus() == 3 }},
		{"trap '' TERM; echo begun; while :; do sleep 0.01; done", 50 * time.Millisecond, func(ws syscall.WaitStatus) bool { return ws.Signal() == unix.SIGKILL }},
	} {
		b := newBench(t, 1)
		started := false
		timeout := 100 * time.Millisecond
		for id := uint64(1); !started && timeout < time.Minute; id++ {
			b.start(spawn.Task{ID: id, Shell: c.command, Timeout: timeout, Grace: c.grace})
			r := b.await(int(id))[id]
			if !r.TimedOut {
				t.Fatalf("%s: %+v", c.command, r)
			}
			started = b.text(0, false, r.Out) == "begun\n"
			if started && !c.finished(r.Status) {
				t.Errorf("%s: %+v", c.command, r)
			}
			timeout *= 2
		}
		if !started {
			t.Errorf("%s never began", c.command)
		}
	}
}

// The timeout of a task can be changed while the task waits and while it runs. It counts from the
// start of the task.
func TestSetTimeout(t *testing.T) {
	b := newBench(t, 1)
	runs := func(id uint64) {
		until(t, "the task on the board", func() bool {
			board, err := spawn.ReadStatusFile(b.setup.StatusFile)
			return err == nil && len(board.Running) == 1 && board.Running[0].ID == id && board.Running[0].PID > 0
		})
	}
	set := func(id uint64, timeout time.Duration) {
		if err := b.s.SetTimeout(id, timeout); err != nil {
			t.Fatal(err)
		}
	}
	b.start(spawn.Task{ID: 1, Argv: []string{"sleep", "1000"}},
		spawn.Task{ID: 2, Argv: []string{"sleep", "0.1"}, Timeout: time.Nanosecond},
		spawn.Task{ID: 3, Argv: []string{"sleep", "1000"}, Timeout: time.Hour})
	runs(1)
	set(2, 0)
	set(3, time.Millisecond)
	set(1, time.Millisecond) // it has run for longer
	set(99, time.Millisecond)
	results := b.await(3)
	for id, timedOut := range map[uint64]bool{1: true, 2: false, 3: true} {
		if r := results[id]; r.TimedOut != timedOut || !timedOut && r.Status.ExitStatus() != 0 {
			t.Errorf("task %d: %+v", id, r)
		}
	}
	// On a busy machine the longer timeout may be set too late.
	timeout := 200 * time.Millisecond
	for id := uint64(4); ; id++ {
		flag := filepath.Join(t.TempDir(), "go")
		b.start(spawn.Task{ID: id, Shell: "until [ -e " + flag + " ]; do sleep 0.01; done", Timeout: timeout})
		runs(id)
		set(id, time.Hour)
		time.Sleep(timeout)
		if err := os.WriteFile(flag, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r := b.await(int(id))[id]
		if !r.TimedOut && r.Status.ExitStatus() == 0 {
			return
		}
		if timeout *= 2; timeout > time.Minute {
			t.Fatalf("%+v", r)
		}
	}
}

func TestSignalAndDrop(t *testing.T) {
	b := newBench(t, 1)
	b.start(
		spawn.Task{ID: 3, Argv: []string{"sleep", "1000"}},
		spawn.Task{ID: 4, Argv: []string{"true"}},
	)
	until(t, "task 3 on the board", func() bool {
		board, err := spawn.ReadStatusFile(b.setup.StatusFile)
		return err == nil && len(board.Running) == 1 && board.Running[0].ID == 3 && board.Running[0].PID > 0
	})
	if err := b.s.Drop(4); err != nil {
		t.Fatal(err)
	}
	if r := b.await(1)[4]; !r.Dropped {
		t.Errorf("dropped: %+v", r)
	}
	until(t, "the end of task 3", func() bool {
		// The task appears in the status file a moment before it can be signalled.
		if err := b.s.Signal(3, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.results) == 2
	})
	if r := b.results[3]; !r.Signaled || r.TimedOut || r.Status.Signal() != unix.SIGTERM {
		t.Errorf("signalled: %+v", r)
	}
}

// Processes that a task has started end with it.
func TestTheGroupEndsWithTheTask(t *testing.T) {
	b := newBench(t, 1)
	b.start(spawn.Task{ID: 1, Shell: "sleep 1000 & echo $!"})
	r := b.await(1)[1]
	pid := strings.TrimSpace(b.text(r.Slot, false, r.Out))
	until(t, "the end of "+pid, func() bool { return gone(pid) })
}

// gone reports whether a process has ended or is a zombie.
func gone(pid string) bool {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	return err != nil || strings.Contains(string(text), ") Z ")
}

// When a spawner is killed, its tasks and their processes end, and the client gets an error.
func TestKilledSpawner(t *testing.T) {
	b := newBench(t, 2)
	dir := t.TempDir()
	for i := range 2 {
		b.start(spawn.Task{ID: uint64(i + 1), Shell: fmt.Sprintf("sh -c 'echo $$ >%s/%d.tmp; mv %[1]s/%[2]d.tmp %[1]s/%[2]d; exec sleep 1000'; :", dir, i)})
	}
	var pids []string
	for i := range 2 {
		until(t, "a task", func() bool {
			text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
			if err == nil {
				pids = append(pids, strings.TrimSpace(string(text)))
			}
			return err == nil
		})
	}
	if err := unix.Kill(b.s.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-b.finished; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the client was told %v", err)
	}
	if err := b.s.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	for _, pid := range pids {
		until(t, "the end of process "+pid, func() bool { return gone(pid) })
	}
	board, err := spawn.ReadStatusFile(b.setup.StatusFile)
	if err != nil || board.Session != b.s.PID() {
		t.Fatalf("board %+v, %v", board, err)
	}
	b.s, err = spawn.Start(os.Args[0], b.setup) // for the cleanup
	if err != nil {
		t.Fatal(err)
	}
}

// All tasks end when their client closes the connection.
func TestCloseEndsTasks(t *testing.T) {
	b := newBench(t, 1)
	b.start(spawn.Task{ID: 1, Shell: "trap '' TERM HUP INT; echo $$; while :; do sleep 0.01; done"})
	var pid string
	until(t, "the task", func() bool {
		text, err := os.ReadFile(b.setup.Logs[0])
		pid = strings.TrimSpace(string(text))
		return err == nil && strings.HasSuffix(string(text), "\n")
	})
	if err := b.s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-b.finished; err != nil {
		t.Errorf("after Close: %v", err)
	}
	until(t, "the end of process "+pid, func() bool { return gone(pid) })
	var err error
	if b.s, err = spawn.Start(os.Args[0], b.setup); err != nil {
		t.Fatal(err)
	}
}

func TestSetupThatCannotBe(t *testing.T) {
	s, err := spawn.Start(os.Args[0], spawn.Setup{Slots: 1, StatusFile: filepath.Join(t.TempDir(), "none", "board"), Logs: []string{"/none/a", "/none/b"}})
	if err != nil {
		t.Fatal(err)
	}
	var told *spawn.Error
	if err := s.Results(func([]spawn.Result) {}); !errors.As(err, &told) {
		t.Errorf("%v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestPin(t *testing.T) {
	var home unix.CPUSet
	if err := unix.SchedGetaffinity(0, &home); err != nil {
		t.Fatal(err)
	}
	cpu := slices.IndexFunc(make([]struct{}, 1024), func(struct{}) bool { return true })
	for ; !home.IsSet(cpu); cpu++ {
	}
	b := newBench(t, 1)
	show := "grep Cpus_allowed_list /proc/self/status"
	b.start(spawn.Task{ID: 1, Shell: show}, spawn.Task{ID: 2, Shell: show, CPUs: []int{cpu}}, spawn.Task{ID: 3, Shell: show})
	r := b.await(3)
	text := func(id uint64) string { return b.text(0, false, r[id].Out) }
	if text(2) != fmt.Sprintf("Cpus_allowed_list:\t%d\n", cpu) || text(1) != text(3) {
		t.Errorf("%q, pinned %q, then %q", text(1), text(2), text(3))
	}
}

// Results returns after a kill of the spawner even if a child was stopped before it executed its
// program and therefore still holds the socket.
func TestKilledWithAStoppedChild(t *testing.T) {
	caught := 0
	for range 20 {
		b := newBench(t, 2)
		tasks := make([]spawn.Task, 20000)
		for i := range tasks {
			tasks[i] = spawn.Task{ID: uint64(i + 1), Argv: []string{"/bin/true"}}
		}
		b.start(tasks...)
		b.await(1)
		self := strconv.Itoa(b.s.PID())
		var stopped []int
		for range 3 {
			for _, pid := range proc.All() {
				if f, err := proc.Stat(pid); err == nil && len(f) > proc.Session && f[proc.Parent] == self && f[proc.Session] == self {
					_ = unix.Kill(pid, unix.SIGSTOP) // it may have ended
					stopped = append(stopped, pid)
				}
			}
		}
		if slices.ContainsFunc(stopped, func(pid int) bool {
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
			return err == nil && filepath.Base(exe) != "true" && proc.State(pid) == 'T'
		}) {
			caught++
		}
		b.s.Kill()
		select {
		case err := <-b.finished:
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("Results did not return")
		}
		if err := b.s.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("in %d of 20 rounds a child was stopped before it executed its program", caught)
}
