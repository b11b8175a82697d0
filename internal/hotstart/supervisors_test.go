package hotstart

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waiting returns the process IDs of the supervisors of a Starter that wait for a task.
func (b *bench) waiting() []int {
	s := &b.starter.supervisors
	s.mu.Lock()
	defer s.mu.Unlock()
	var pids []int
	for _, p := range s.idle {
		pids = append(pids, p.cmd.Process.Pid)
	}
	return pids
}

// supervisorState describes the state that a waiting supervisor must not keep from its last task:
// its cgroups, mounts, directory, children and descriptors.
func supervisorState(t *testing.T, pid int) string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", pid)
	link := func(name string) string {
		target, err := os.Readlink(dir + name)
		if err != nil {
			t.Fatal(err)
		}
		return target
	}
	fds, err := os.ReadDir(dir + "fd")
	if err != nil {
		t.Fatal(err)
	}
	pids, err := tree(pid)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("cgroups %q, mounts %s, root %s, directory %s, %d processes, %d descriptors, umask and limits %x",
		read(t, dir+"cgroup"), link("ns/mnt"), link("root"), link("cwd"), len(pids), len(fds), read(t, dir+"limits"))
}

// TestSupervisorAgain lets one supervisor serve several tasks of both kinds, and checks its state
// between them.
func TestSupervisorAgain(t *testing.T) {
	cgroups := cgroupsHere(t)
	b := newBench(t, newSpec("-m", "2", "input"), Hot)
	b.mustPrepare("sum\n")
	want := b.run("sum\nids\n").out
	var supervisor int
	var state string
	for i := range 6 {
		dir := b.task()
		p, err := b.starter.Start(t.Context(), Task{Dir: dir, Inputs: map[string]string{"input": b.input("sum\nids\nfork\n")}, Cgroups: cgroups})
		if err != nil {
			t.Fatal(err)
		}
		if r := b.finish(p, dir); r.out != want || !r.exit.OK() {
			t.Fatalf("task %d: %+v, output %q, want %q", i, r.exit, r.out, want)
		}
		pids := b.waiting()
		if len(pids) != 1 {
			t.Fatalf("after task %d %d supervisors wait", i, len(pids))
		}
		now := supervisorState(t, pids[0])
		switch {
		case i == 0:
			supervisor, state = pids[0], now
			if own, err := os.Readlink("/proc/self/ns/mnt"); err != nil || !strings.Contains(now, own) {
				t.Errorf("the supervisor is not in the mount namespace %s of premix, %v: %s", own, err, now)
			}
		case pids[0] != supervisor:
			t.Errorf("task %d had another supervisor", i)
		case now != state:
			t.Errorf("after task %d the supervisor has\n%s, and before\n%s", i, now, state)
		}
		for _, dir := range cgroups {
			if left := read(t, filepath.Join(dir, processFile)); left != "" {
				t.Errorf("%s has %q after its task", dir, left)
			}
		}
	}
	b.starter.Close()
	eventually(t, "the supervisor ends", func() bool { return unix.Kill(supervisor, 0) == unix.ESRCH })
}

// TestSupervisorKilledBetweenTasks kills a supervisor that waits for a task. The next task gets
// another supervisor.
func TestSupervisorKilledBetweenTasks(t *testing.T) {
	for _, kind := range kinds {
		b := newBench(t, newSpec("-m", "2", "input"), kind)
		b.mustPrepare("sum\n")
		want := b.run("sum\n").out
		killed := b.waiting()
		if len(killed) != 1 {
			t.Fatalf("%d supervisors wait", len(killed))
		}
		b.starter.supervisors.mu.Lock()
		done := b.starter.supervisors.idle[0].done
		b.starter.supervisors.mu.Unlock()
		if err := unix.Kill(killed[0], unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-done
		if r := b.run("sum\n"); r.out != want || r.proc.Kind != kind {
			t.Errorf("%s start gave %q, want %q", r.proc.Kind, r.out, want)
		}
		if pids := b.waiting(); len(pids) != 1 || pids[0] == killed[0] {
			t.Errorf("supervisors %v wait, and %v was killed", pids, killed)
		}
	}
}

// TestSignalTooLate signals a task that has ended, while its supervisor serves another task.
func TestSignalTooLate(t *testing.T) {
	b := newBench(t, newSpec("-m", "2", "input"), Hot)
	b.mustPrepare("sum\n")
	first, dir := b.start("sum\n")
	b.finish(first, dir)
	second, dir := b.start("say up\nhang\n")
	if first.supervisor.supervisorProcess != second.supervisor.supervisorProcess {
		t.Fatal("the second task has another supervisor")
	}
	if err := first.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := second.Signal(syscall.SIGTERM); err != nil { // it arrives after the other signal
		t.Fatal(err)
	}
	if r := b.finish(second, dir); r.exit.Signal != syscall.SIGTERM {
		t.Errorf("the second task ended with %v", r.exit)
	}
}

// TestManyStarts starts many tasks in sequence and many at once, and looks for remains of them.
func TestManyStarts(t *testing.T) {
	row, atOnce := 40, 12
	if os.Getenv("PREMIX_SOAK") != "" {
		row, atOnce = 1000, 200
	}
	mark := fmt.Sprintf("PREMIX_TEST_MANY=%d", os.Getpid())
	spec := newSpec("-m", "2", "-t", "1", "input")
	spec.Env = append(spec.Env, mark)
	b := newBench(t, spec, Hot)
	before := mounts(t, b.dir)
	b.mustPrepare("sum\n")
	want := b.run("sum\nids\n").out
	for range row {
		if r := b.run("sum\nids\nfork\n"); r.out != want || !r.exit.OK() || r.proc.Kind != Hot {
			t.Fatalf("%s start: %+v, output %q, want %q", r.proc.Kind, r.exit, r.out, want)
		}
	}
	if pids := b.waiting(); len(pids) != 1 {
		t.Errorf("%d supervisors wait after tasks in a row", len(pids))
	}
	var all sync.WaitGroup
	for range atOnce {
		dir, in := b.task(), b.input("sum\nids\n")
		all.Go(func() {
			p, err := b.starter.Start(t.Context(), Task{Dir: dir, Inputs: map[string]string{"input": in}})
			if err != nil {
				t.Error(err)
				return
			}
			exit, err := p.Wait()
			out, rerr := os.ReadFile(filepath.Join(dir, StdoutName))
			if err := errors.Join(err, rerr); err != nil || !exit.OK() || string(out) != want {
				t.Errorf("%+v, %v, output %q, want %q", exit, err, out, want)
			}
		})
	}
	all.Wait()
	b.nothingRemains(mark, before)
}

// nothingRemains closes the Starter and checks that no processes, mounts, and files of tasks are
// left.
func (b *bench) nothingRemains(mark, before string) {
	b.t.Helper()
	supervisors := b.waiting()
	b.starter.Close()
	for _, pid := range supervisors {
		eventually(b.t, "the supervisors end", func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
	}
	eventually(b.t, "no process is left", func() bool { return len(processesWith(b.t, mark)) == 0 })
	if after := mounts(b.t, b.dir); after != before {
		b.t.Errorf("mounts changed:\n%s", after)
	}
	dirs, err := filepath.Glob(filepath.Join(b.dir, "tasks", "*"))
	if err != nil || len(dirs) == 0 {
		b.t.Errorf("%d directories of tasks, %v", len(dirs), err)
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, e := range entries {
			if n := e.Name(); n != StdoutName && n != StderrName && n != "input" {
				b.t.Errorf("%s has %s", dir, n)
			}
		}
	}
}

// TestKilledParts kills supervisors and tools at random moments of concurrent tasks. A task either
// gives the right output or is reported as ended, and nothing is left.
func TestKilledParts(t *testing.T) {
	tasks := 60
	if os.Getenv("PREMIX_SOAK") != "" {
		tasks = 3000
	}
	mark := fmt.Sprintf("PREMIX_TEST_PARTS=%d", os.Getpid())
	spec := newSpec("-m", "4", "-t", "1", "input")
	spec.Env = append(spec.Env, mark)
	b := newBench(t, spec, Auto)
	before := mounts(t, b.dir)
	b.mustPrepare("sum\n")
	want := b.run("sum\n").out
	type work struct{ dir, in string }
	jobs := make(chan work)
	var all sync.WaitGroup
	var mu sync.Mutex
	good, failed := 0, 0
	for range 4 {
		all.Go(func() {
			for w := range jobs {
				ok, err := b.tryTask(w.dir, w.in, want)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				if ok {
					good++
				} else {
					failed++
				}
				mu.Unlock()
			}
		})
	}
	stop := killParts(20 * time.Millisecond)
	for range tasks {
		jobs <- work{b.task(), b.input("sum\n")}
	}
	close(jobs)
	all.Wait()
	stop()
	t.Logf("%d tasks ended well, %d were reported as killed", good, failed)
	if r := b.run("sum\n"); r.out != want {
		t.Errorf("a %s start afterwards gave %q, want %q", r.proc.Kind, r.out, want)
	}
	b.nothingRemains(mark, before)
}

// killParts kills supervisors and tools, which are descendants of this process, at random moments.
// The returned function stops it and returns the killed processes.
func killParts(every time.Duration) (stop func() []int) {
	end := make(chan struct{})
	var killer sync.WaitGroup
	var killed []int
	killer.Go(func() {
		for {
			select {
			case <-end:
				return
			case <-time.After(rand.N(every)):
			}
			pids, err := tree(os.Getpid())
			if err != nil || len(pids) < 2 {
				continue
			}
			for range 1 + len(pids)/20 { // with many processes, kill several at the same time
				pid := pids[1+rand.IntN(len(pids)-1)]
				if unix.Kill(pid, unix.SIGKILL) == nil {
					killed = append(killed, pid)
				}
			}
		}
	})
	return func() []int {
		close(end)
		killer.Wait()
		return killed
	}
}

// TestKilledAtOnce kills supervisors and tools at random moments while many tasks start at once,
// until enough of them have been killed.
func TestKilledAtOnce(t *testing.T) {
	atOnce, enough := 30, 10
	if os.Getenv("PREMIX_SOAK") != "" {
		atOnce, enough = 200, 300
	}
	mark := fmt.Sprintf("PREMIX_TEST_AT_ONCE=%d", os.Getpid())
	spec := newSpec("-m", "2", "-t", "1", "input")
	spec.Env = append(spec.Env, mark)
	b := newBench(t, spec, Auto)
	before := mounts(t, b.dir)
	b.mustPrepare("sum\n")
	want := b.run("sum\n").out
	var killed []int
	rounds, good, failed := 0, 0, 0
	for ; len(killed) < enough; rounds++ {
		if rounds == 10*enough {
			t.Fatalf("%d processes were killed in %d rounds", len(killed), rounds)
		}
		var all sync.WaitGroup
		var mu sync.Mutex
		stop := killParts(10 * time.Millisecond)
		for range atOnce {
			dir, in := b.task(), b.input("sum\n")
			all.Go(func() {
				ok, err := b.tryTask(dir, in, want)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if ok {
					good++
				} else {
					failed++
				}
			})
		}
		all.Wait()
		killed = append(killed, stop()...)
	}
	t.Logf("%d rounds of %d tasks, %d processes killed: %d tasks ended well, %d were reported as killed", rounds, atOnce, len(killed), good, failed)
	if good == 0 {
		t.Error("no task ended well")
	}
	b.noticed(killed)
	if r := b.run("sum\n"); r.out != want || r.proc.Kind != Hot {
		t.Errorf("a %s start afterwards gave %q (%s), want %q", r.proc.Kind, r.out, r.proc.Reason, want)
	}
	b.nothingRemains(mark, before)
}

// noticed waits until the Starter knows that supervisors were killed while they waited for a
// task. Without it, the next task could be given to one of them, and would start cold.
func (b *bench) noticed(killed []int) {
	s := &b.starter.supervisors
	s.mu.Lock()
	idle := slices.Clone(s.idle)
	s.mu.Unlock()
	for _, p := range idle {
		if slices.Contains(killed, p.cmd.Process.Pid) {
			<-p.done
		}
	}
}

// tryTask runs a task that may be killed. A successful task must have the expected output.
func (b *bench) tryTask(dir, in, want string) (ok bool, err error) {
	p, err := b.starter.Start(b.t.Context(), Task{Dir: dir, Inputs: map[string]string{"input": in}})
	if err != nil {
		return false, nil // two supervisors of the task were killed
	}
	exit, err := p.Wait()
	if err != nil || !exit.OK() {
		if exit.Signal != 0 && exit.Signal != unix.SIGKILL || exit.Code > 0 {
			return false, fmt.Errorf("a task ended with %v", exit)
		}
		return false, nil
	}
	out, err := os.ReadFile(filepath.Join(dir, StdoutName))
	if err != nil || string(out) != want {
		return false, fmt.Errorf("a %s start gave %q, %v, want %q", p.Kind, out, err, want)
	}
	return true, nil
}
