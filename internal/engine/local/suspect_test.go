package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
	"premix/internal/engine/spawn"
	"premix/internal/kit/proc"
	"premix/internal/record"
)

// soak makes the fault tests long.
var soak = os.Getenv("PREMIX_SOAK") != ""

// Tasks that kill their spawner or their process group fail, each with the right cause. All others
// succeed on the first try, including tasks that ran at the same time or were killed with the
// spawner.
func TestTasksThatKillTheirSpawner(t *testing.T) {
	rounds := 1
	if soak {
		rounds = 125
	}
	for range rounds {
		d := newTaskDir(t)
		const ownGroup = "kill -9 0"
		poison := []string{
			"kill -9 $PPID",
			"kill -9 -$PPID",
			"kill -TERM $PPID; sleep 100",
			"sleep 0.05; kill -9 $PPID; sleep 100",
			"p=$PPID; setsid sh -c \"kill -9 $p\" & sleep 100",
			"kill -9 $PPID $(for s in /proc/[0-9]*/stat; do read -r p c s x g id rest <$s && [ \"$id\" = $PPID ] && [ $p != $$ ] && [ $p != $PPID ] && echo $p; done 2>/dev/null); sleep 100",
			ownGroup,
			"echo before; kill -9 $(ps -o ppid= $$ 2>/dev/null || cut -d' ' -f4 /proc/$$/stat); sleep 100",
		}
		var text strings.Builder
		const each = 12
		for _, p := range poison {
			for range each {
				fmt.Fprintln(&text, "sleep 0.01; echo innocent")
			}
			fmt.Fprintln(&text, p)
		}
		d.submit(queue.BatchOptions{}, queue.Lines, text.String())
		sum, err := d.run(TaskOptions{Jobs: 3})
		if sum == nil || sum.Failed != len(poison) || sum.Succeeded != len(poison)*each || sum.NotRun != 0 {
			t.Fatalf("%+v, %v", sum, err)
		}
		for task, r := range d.records() {
			if task%(each+1) == 0 && poison[task/(each+1)-1] == ownGroup {
				if r.Cause != record.CauseSignal || r.Signal != int(unix.SIGKILL) || r.Try != 1 {
					t.Errorf("task %d: %+v", task, r)
				}
			} else if task%(each+1) == 0 {
				if r.Cause != record.CauseLost || r.Try != 1 || !strings.Contains(r.Error, "was killed 3 times while it ran there alone") || r.Hint == "" {
					t.Errorf("task %d: %+v", task, r)
				}
			} else if !r.OK() || r.Try != 1 {
				t.Errorf("task %d: %+v", task, r)
			} else if got := d.output(task, false); got != "innocent\n" {
				t.Errorf("task %d wrote %q", task, got)
			}
		}
		if got := d.output(len(poison)*(each+1), false); got != "before\n" {
			t.Errorf("the last one wrote %q", got)
		}
		if boards := d.q.StatusFiles(queue.LocalWorker); len(boards) != 1 {
			t.Errorf("boards are left: %v", boards)
		}
	}
}

// A task that fills the disk of its directory at worst stops the run. With room again the other
// tasks succeed, and none has a partial output.
func TestTaskThatFillsTheDisk(t *testing.T) {
	rounds := 1
	if soak {
		rounds = 250
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("no right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	stops := 0
	for range rounds {
		d := &taskDir{t: t, dir: filepath.Join(dir, "out")}
		d.open()
		const innocent = "seq 1000\n"
		const fill = "[ -e fill ] || head -c 10000000 /dev/zero >fill\n"
		d.submit(queue.BatchOptions{}, queue.Lines, strings.Repeat(innocent, 12)+fill+strings.Repeat(innocent, 12))
		for tries := 0; ; tries++ {
			_, err := d.run(TaskOptions{Jobs: 3})
			if err == nil {
				break
			}
			if err == nil || !strings.HasPrefix(err.Error(), "the run was stopped: ") || tries == 10 {
				t.Fatal(err)
			}
			stops++
			d.q.Close()
			if err := os.Truncate(filepath.Join(d.dir, "fill"), 0); err != nil {
				t.Fatal(err)
			}
			d.open()
		}
		records := d.records()
		for task := 1; task <= 25; task++ {
			if r := records[task]; r == nil || !r.OK() {
				t.Errorf("task %d: %+v", task, r)
			} else if text := d.output(task, false); task != 13 && (len(text) != 3893 || !strings.HasSuffix(text, "\n1000\n")) {
				t.Errorf("task %d wrote %d bytes", task, len(text))
			}
		}
		d.q.Close()
		if err := os.RemoveAll(d.dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the run stopped %d times in %d rounds", stops, rounds)
}

// othersOfSession is a command that stops all processes of the spawner's session except the shell
// itself.
const othersOfSession = "for s in /proc/[0-9]*/stat; do read -r p c s x g id rest <$s && [ \"$id\" = $PPID ] && [ $p != $$ ] && kill -STOP $p; done 2>/dev/null"

// Tasks that stop their spawner do not keep others from running. A task that does it once succeeds.
// A task that does it repeatedly fails with the right cause. All others succeed on the first try,
// including tasks that were stopped with it.
func TestTasksThatStopTheirSpawner(t *testing.T) {
	rounds := 1
	if soak {
		rounds = 25
	}
	const (
		succeeds = ""
		each     = 6
	)
	tasks := []struct{ command, cause string }{
		{"kill -STOP $PPID", succeeds},
		{"kill -STOP -$PPID; sleep 0.1", succeeds},
		{othersOfSession + "; true", succeeds},
		{"while :; do kill -STOP $PPID; sleep 0.01; done", record.CauseLost},
		{"p=$PPID; setsid sh -c \"while kill -STOP $p; do sleep 0.01; done\" & sleep 100", record.CauseLost},
		{"while :; do " + othersOfSession + "; sleep 0.01; done", record.CauseLost},
		{"while :; do kill -STOP 0; done", record.CauseTimeout},
		{"trap 'echo ended; exit 3' TERM; while :; do kill -STOP $$; done", record.CauseTimeout},
	}
	for range rounds {
		d := newTaskDir(t)
		var text strings.Builder
		for _, task := range tasks {
			for range each {
				fmt.Fprintln(&text, "sleep 0.01; echo innocent")
			}
			fmt.Fprintln(&text, task.command)
		}
		d.submit(queue.BatchOptions{Options: queue.Options{Timeout: 10 * time.Second}}, queue.Lines, text.String())
		sum, err := d.run(TaskOptions{Jobs: 3})
		if sum == nil || sum.Failed != 5 || sum.Succeeded != len(tasks)*each+3 || sum.NotRun != 0 {
			t.Fatalf("%+v, %v", sum, err)
		}
		for number, r := range d.records() {
			if number%(each+1) != 0 {
				if got := d.output(number, false); !r.OK() || r.Try != 1 || got != "innocent\n" {
					t.Errorf("task %d: %+v, wrote %q", number, r, got)
				}
				continue
			}
			if task := tasks[number/(each+1)-1]; r.Cause != task.cause || r.Try != 1 {
				t.Errorf("%s: %+v", task.command, r)
			} else if r.Cause == record.CauseLost && (!strings.Contains(r.Error, "was stopped again and again") || !strings.Contains(r.Hint, "SIGSTOP")) {
				t.Errorf("%s: %+v", task.command, r)
			}
		}
		// A stopped task can handle its SIGTERM.
		if got := d.output(len(tasks)*(each+1), false); got != "ended\n" {
			t.Errorf("the last one wrote %q", got)
		}
	}
}

// An interrupted run ends even while tasks stop its spawner.
func TestInterruptedWhileStopped(t *testing.T) {
	for _, loop := range []string{"kill -STOP $PPID; sleep 100", "while :; do kill -STOP $PPID; done"} {
		d := newTaskDir(t)
		d.submit(queue.BatchOptions{}, queue.Lines, strings.Repeat("sleep 100\n", 2)+"touch begun; "+loop+"\n")
		ctx, cancel := context.WithCancelCause(context.Background())
		go func() {
			for {
				if _, err := os.Stat(filepath.Join(d.dir, "begun")); err == nil {
					cancel(&Interrupted{Signal: unix.SIGINT})
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
		began := time.Now()
		sum, err := RunTasks(ctx, TaskOptions{Queue: d.q, Jobs: 3, Grace: time.Second})
		var interrupted *Interrupted
		if !errors.As(err, &interrupted) || sum == nil || sum.NotRun != 3 {
			t.Errorf("%s: %+v, %v", loop, sum, err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s: took %v", loop, took)
		}
		if b, err := spawn.ReadStatusFile(d.q.StatusFile(queue.LocalWorker)); err != nil || b.Alive() {
			t.Errorf("%s: the spawner lives, or %v", loop, err)
		}
	}
}

// An interrupted run ends even if a process of a task was stopped before it executed its program,
// so that its slot has no process to signal.
func TestInterruptedWithAStoppedChild(t *testing.T) {
	d := newTaskDir(t)
	d.submit(queue.BatchOptions{}, queue.Lines, strings.Repeat("/bin/true\n", 50000))
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	caught := make(chan bool, 1)
	go func() {
		defer cancel(&Interrupted{Signal: unix.SIGINT})
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			b, err := spawn.ReadStatusFile(d.q.StatusFile(queue.LocalWorker))
			if err != nil || b.Session == 0 {
				time.Sleep(time.Millisecond)
				continue
			}
			self := strconv.Itoa(b.Session)
			for _, pid := range proc.All() {
				f, err := proc.Stat(pid)
				if err != nil || len(f) <= proc.Session || f[proc.Parent] != self || f[proc.Session] != self || unix.Kill(pid, unix.SIGSTOP) != nil {
					continue
				}
				time.Sleep(10 * time.Millisecond)
				if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && filepath.Base(exe) != "true" && proc.State(pid) == 'T' {
					caught <- true
					return
				}
				_ = unix.Kill(pid, unix.SIGCONT)
			}
		}
		caught <- false
	}()
	sum, err := RunTasks(ctx, TaskOptions{Queue: d.q, Jobs: 2, Grace: time.Second})
	var interrupted *Interrupted
	if !errors.As(err, &interrupted) || sum == nil || sum.Failed != 0 {
		t.Errorf("%+v, %v", sum, err)
	}
	if !<-caught {
		t.Error("no process was stopped before it executed its program")
	}
	if b, err := spawn.ReadStatusFile(d.q.StatusFile(queue.LocalWorker)); err != nil || b.Alive() {
		t.Errorf("the spawner lives, or %v", err)
	}
}
