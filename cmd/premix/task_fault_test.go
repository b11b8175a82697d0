package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
	"premix/internal/engine/spawn"
	"premix/internal/kit/exit"
	"premix/internal/kit/proc"
)

// taskScene is a task directory whose tasks have a mark in their environment.
type taskScene struct {
	*scene
}

func newTaskScene(t *testing.T) *taskScene {
	t.Helper()
	s := &taskScene{&scene{dir: t.TempDir()}}
	s.mark = "PREMIX_TEST_MARK=" + s.dir
	t.Cleanup(func() { s.gone(t) })
	return s
}

func (s *taskScene) command(stdin string, args ...string) *exec.Cmd {
	cmd := exec.Command(binary, append([]string{"task"}, args...)...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.mark)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// success runs a task command that must succeed.
func (s *taskScene) success(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	cmd := s.command(stdin, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("premix task %v: %v\n%s", args, err, &out)
		}
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		<-done
		t.Fatalf("premix task %v came to no end\n%s", args, &out)
	}
	return out.String()
}

// once checks that each task has one success in the records and no record after it.
func (s *taskScene) once(t *testing.T, tasks int) {
	t.Helper()
	succeeded := make([]int, tasks+1)
	for rec, err := range queue.Records(s.path("out")) {
		if err != nil {
			t.Fatal(err)
		}
		if succeeded[rec.Task] > 0 {
			t.Errorf("task %d has a record after its success: try %d", rec.Task, rec.Try)
		}
		if rec.OK() {
			succeeded[rec.Task]++
		}
	}
	for task, n := range succeeded[1:] {
		if n != 1 {
			t.Errorf("task %d succeeded %d times", task+1, n)
		}
	}
}

// premix, its spawner or both are killed with SIGKILL at random moments. Running the same command
// again completes the tasks.
func TestTasksKilledAtRandomMoments(t *testing.T) {
	tasks, kills := 150, 8
	if soak {
		tasks, kills = 3000, 50
	}
	for _, victim := range []string{"premix", "spawner", "both"} {
		t.Run(victim, func(t *testing.T) {
			s := newTaskScene(t)
			var text strings.Builder
			for i := 1; i <= tasks; i++ {
				// Half of the tasks need a shell and leave a process behind, which premix kills.
				if i%2 == 0 {
					fmt.Fprintf(&text, "sh -c 'sleep 0.0%d; echo %d'; sleep 100 &\n", i%4, i)
				} else {
					fmt.Fprintf(&text, "sleep 0.0%d %d\n", i%3, 0)
				}
			}
			args := []string{"run", "--out", "out", "-j", "3", "-"}
			for range kills {
				cmd := s.command(text.String(), args...)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
				if victim != "premix" {
					b, err := spawn.ReadStatusFile(s.path("out/.premix/queue/board-0"))
					if err == nil && b.Session > 0 && parentOf(b.Session) == cmd.Process.Pid {
						_ = unix.Kill(b.Session, unix.SIGKILL)
					}
				}
				if victim == "spawner" {
					// premix continues with another spawner.
					time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
				}
				if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
					t.Fatal(err)
				}
				var finished *exec.ExitError
				if err := cmd.Wait(); err != nil && (!errors.As(err, &finished) || finished.ExitCode() > 0) {
					t.Fatalf("%v\n%s", err, &out)
				}
			}
			s.success(t, text.String(), args...)
			s.once(t, tasks)
			for i := 2; i <= tasks; i += 37 * 2 {
				if got := s.success(t, "", "tail", "out", fmt.Sprint(i)); got != fmt.Sprintln(i) {
					t.Errorf("task %d wrote %q", i, got)
				}
			}
		})
	}
}

// A task that has ended does not run again after a kill of premix: at most the running tasks begin
// a second time, and none whose end the spawner has recorded.
func TestEndedTasksDoNotRunAgain(t *testing.T) {
	tasks, kills := 300, 5
	if soak {
		tasks, kills = 30000, 1000
	}
	const slots = 3
	for _, victim := range []string{"premix", "both"} {
		t.Run(victim, func(t *testing.T) {
			s := newTaskScene(t)
			// The long tasks run when premix is killed, and the short ones end at that time.
			text := strings.Repeat("echo $PREMIX_TASK >>begun\necho $PREMIX_TASK >>begun; sleep 0.03\n", tasks/2)
			args := []string{"run", "--out", "out", "-j", fmt.Sprint(slots), "-"}
			board := s.path("out/.premix/queue/board-0")
			finished := make(map[int]int) // how often each task had begun when its end was known
			killed := 0
			for killed < kills {
				cmd := s.command(text, args...)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				// Wait until some time after the first task has begun, or until the end.
				before := s.started(t)
				done := make(chan error, 1)
				go func() { done <- cmd.Wait() }()
				for over := false; !over && len(done) == 0; time.Sleep(time.Millisecond) {
					b, err := spawn.ReadStatusFile(board)
					over = err == nil && len(b.Running) > 0 && parentOf(b.Session) == cmd.Process.Pid
				}
				time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
				b, err := spawn.ReadStatusFile(board)
				if err != nil {
					t.Fatal(err)
				}
				if victim == "both" && parentOf(b.Session) == cmd.Process.Pid {
					_ = unix.Kill(b.Session, unix.SIGKILL)
				}
				_ = cmd.Process.Kill() // it may have ended
				if <-done == nil {
					break // all tasks are done
				}
				killed++
				for b.Alive() {
					time.Sleep(time.Millisecond)
				}
				if b, err = spawn.ReadStatusFile(board); err != nil {
					t.Fatal(err)
				}
				results, err := b.Finished()
				if err != nil {
					t.Fatal(err)
				}
				now := s.started(t)
				for _, r := range results {
					if task, _ := spawn.SplitTryID(r.ID); r.Status.Exited() && finished[task] == 0 {
						finished[task] = now[task]
					}
				}
				again := 0
				for task, n := range now {
					if before[task] > 0 && n > before[task] {
						again++
					}
				}
				if again > slots {
					t.Errorf("after a kill %d tasks began again", again)
				}
			}
			s.success(t, text, args...)
			s.once(t, tasks)
			last := s.started(t)
			more := 0
			for task, n := range last {
				more += n - 1
				if finished[task] > 0 && n > finished[task] {
					t.Errorf("task %d had ended and began again", task)
				}
			}
			t.Logf("%d kills, %d ends noted, %d tasks began once more", killed, len(finished), more)
			if killed == 0 || len(finished) == 0 {
				t.Error("nothing was tested")
			}
		})
	}
}

// started returns how often each task has begun.
func (s *taskScene) started(t *testing.T) map[int]int {
	t.Helper()
	count := make(map[int]int)
	text, err := os.ReadFile(s.path("begun"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, line := range strings.Fields(string(text)) {
		task, err := strconv.Atoi(line)
		if err != nil {
			t.Fatal(err)
		}
		count[task]++
	}
	return count
}

// parentOf returns the parent of a process, or 0.
func parentOf(pid int) int {
	f, err := proc.Stat(pid)
	if err != nil || len(f) <= proc.Parent {
		return 0
	}
	parent, _ := strconv.Atoi(f[proc.Parent]) // the kernel writes a number
	return parent
}

// A premix that is killed during a submission has submitted all tasks or none.
func TestKilledWhileSubmitting(t *testing.T) {
	s := newTaskScene(t)
	const each = 20000
	text := strings.Repeat("true\n", each)
	rounds := 6
	if soak {
		rounds = 50
	}
	for range rounds {
		cmd := s.command(text, "submit", "--out", "out", "-")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}
	s.success(t, text, "submit", "--out", "out", "-")
	q, err := queue.Open(s.path("out"), "v1", false)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if n := q.Counts()[queue.Waiting]; n == 0 || n%each != 0 {
		t.Errorf("%d tasks", n)
	}
}

func TestTenThousandFailures(t *testing.T) {
	s := newTaskScene(t)
	tasks := 1000
	if soak {
		tasks = 10000
	}
	cmd := s.command(strings.Repeat("false\n", tasks), "run", "--out", "out", "-")
	out, err := cmd.CombinedOutput()
	var finished *exec.ExitError
	if !errors.As(err, &finished) || finished.ExitCode() != int(exit.Failed) {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := bytes.Count(out, []byte("\n")); n > 40 {
		t.Errorf("%d lines are printed:\n%s", n, out)
	}
	if !bytes.Contains(out, []byte(fmt.Sprintf("and %d more", tasks-10))) {
		t.Errorf("%s", out)
	}
	s.success(t, "", "retry", "out", "--failed")
	q, err := queue.Open(s.path("out"), "v1", false)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if n := q.Counts()[queue.Waiting]; n != tasks {
		t.Errorf("%d tasks wait again", n)
	}
}

// All bytes that a command can contain are passed unchanged, by each way of input.
func TestOddBytes(t *testing.T) {
	s := newTaskScene(t)
	var odd []byte
	for c := 1; c < 256; c++ {
		odd = append(odd, byte(c))
	}
	s.success(t, "printf %s "+queue.Quote(string(odd))+"\x00", "run", "--out", "out", "-0", "-")
	if got := s.success(t, "", "tail", "out", "1"); got != string(odd) {
		t.Errorf("as a command: %q", got)
	}
	s.success(t, string(odd)+"\x00", "run", "--out", "out", "-0", "-t", "printf '%s' {}", "-")
	if got := s.success(t, "", "tail", "out", "2"); got != string(odd) {
		t.Errorf("through a template: %q", got)
	}
	s.success(t, `{"command":["printf","%s","a\u0001\u007f\n\"'ü\\"]}`, "run", "--out", "out", "--format", "jsonl", "-")
	if got := s.success(t, "", "tail", "out", "3"); got != "a\x01\x7f\n\"'ü\\" {
		t.Errorf("as JSON: %q", got)
	}
}

// The first Ctrl-C ends the running tasks, and the same command continues.
func TestTasksInterrupted(t *testing.T) {
	s := newTaskScene(t)
	text := "trap 'touch ended; exit 1' TERM; touch begun; while [ ! -e go ]; do sleep 0.01; done\ntrue\n"
	args := []string{"run", "--out", "out", "-j", "1", "-"}
	cmd := s.command(text, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.await(t, "begun")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var finished *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &finished) || finished.ExitCode() != int(exit.Signal(syscall.SIGINT)) {
		t.Errorf("%v\n%s", err, &out)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "ended")); err != nil {
		t.Errorf("the task was not asked to end: %v", err)
	}
	s.write(t, "go", "")
	s.success(t, text, args...)
	s.once(t, 2)
}

// A task that fills /dev/shm fails; all others succeed on the first try.
func TestTaskThatFillsSharedMemory(t *testing.T) {
	s := newTaskScene(t)
	const mount = "mount --make-rprivate / && mount -t tmpfs -o size=1m none /dev/shm"
	private := func(line string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", line)
		cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.mark)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		return cmd
	}
	if out, err := private(mount).CombinedOutput(); err != nil {
		t.Skipf("no right to mount: %v\n%s", err, out)
	}
	const each = 12
	innocent := strings.Repeat("test $PREMIX_TRY = 1 && seq 1000\n", each)
	tasks := innocent + "head -c 10000000 /dev/zero >/dev/shm/fill || exit 3\n" + innocent
	if err := os.WriteFile(s.path("tasks"), []byte(tasks), 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := private(mount + " && exec '" + binary + "' task run --out out -j 3 tasks").CombinedOutput()
	if err == nil || !strings.Contains(string(out), fmt.Sprintf("%d of %d tasks succeeded", 2*each, 2*each+1)) {
		t.Fatalf("%v\n%s", err, out)
	}
	if why := s.success(t, "", "why", "out", fmt.Sprint(each+1)); !strings.Contains(why, "status 3") {
		t.Errorf("the task that fills it: %s", why)
	}
	for task := 1; task <= 2*each+1; task++ {
		if got := s.success(t, "", "tail", "out", fmt.Sprint(task)); task != each+1 && (len(got) != 3893 || !strings.HasSuffix(got, "\n1000\n")) {
			t.Errorf("task %d wrote %d bytes", task, len(got))
		}
	}
}
