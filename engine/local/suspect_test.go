package local

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"premix/engine/queue"
	"premix/record"
)

// soak makes fault runs long.
var soak = os.Getenv("PREMIX_SOAK") != ""

// Tasks that kill their spawner fail, each with its cause. All others succeed in their
// first try, also those that ran beside them.
func TestTasksThatKillTheirSpawner(t *testing.T) {
	rounds := 1
	if soak {
		rounds = 50
	}
	for range rounds {
		d := newTaskDir(t)
		poison := []string{
			"kill -9 $PPID",
			"kill -9 -$PPID",
			"kill -TERM $PPID; sleep 100",
			"sleep 0.05; kill -9 $PPID; sleep 100",
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
			if task%(each+1) == 0 {
				if r.Cause != record.CauseLost || r.Try != 1 || !strings.Contains(r.Error, "was killed 3 times while it ran there alone") || r.Hint == "" {
					t.Errorf("task %d: %+v", task, r)
				}
			} else if !r.OK() || r.Try != 1 {
				t.Errorf("task %d: %+v", task, r)
			} else if got := d.output(task, false); got != "innocent\n" {
				t.Errorf("task %d wrote %q", task, got)
			}
		}
		if got := d.output(5*(each+1), false); got != "before\n" {
			t.Errorf("the last one wrote %q", got)
		}
		if boards := d.q.Boards(queue.LocalWorker); len(boards) != 1 {
			t.Errorf("boards are left: %v", boards)
		}
	}
}
