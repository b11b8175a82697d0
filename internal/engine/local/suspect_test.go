package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
	"premix/internal/record"
)

// soak makes fault runs long.
var soak = os.Getenv("PREMIX_SOAK") != ""

// Tasks that kill their spawner or their group fail, each with its cause. All others succeed
// in their first try, also those that ran beside them, and also if they were killed with the
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

// A task that fills the disk of its directory stops the run at worst. With room again the
// others succeed, none with a part of its output.
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
			var stopped *StoppedError
			if !errors.As(err, &stopped) || tries == 10 {
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
