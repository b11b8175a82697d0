package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
)

// TestTrialOfQuickTasks checks that nothing is prepared for a run of quick tasks.
func TestTrialOfQuickTasks(t *testing.T) {
	b := newSandbox(t, "cat \"$1\"\n", toStdout, 8)
	b.o.Start = hotstart.Auto
	if _, err := Run(context.Background(), b.o); err != nil {
		t.Fatal(err)
	}
	const limit = 0.75 // seconds: 3 s for 4 rounds
	quick := true      // as on any machine that is not busy
	for _, r := range b.records(t) {
		quick = quick && r.Seconds < limit
	}
	left, err := filepath.Glob(b.path("store") + "/*")
	if err != nil || quick && len(left) > 0 {
		t.Errorf("the store has %q, %v", left, err)
	}
	trials := 0 // each slot has one, and they may end behind others
	for i, r := range b.records(t) {
		trial := strings.Contains(r.Reason, "its time shows whether a snapshot would save time")
		if trial {
			trials++
		}
		if !r.OK() || quick && (r.Start != "cold" || !trial && !strings.Contains(r.Reason, "longer than it saves")) {
			t.Errorf("task %d, of %.2f s, started %s: %s", i+1, r.Seconds, r.Start, r.Reason)
		}
	}
	if trials > b.o.Jobs {
		t.Errorf("%d tasks were trials of %d slots", trials, b.o.Jobs)
	}
}

// slowScript loads for longer than a trial.
const slowScript = "sleep 1; cat \"$1\"\n"

// TestTrialIsOutlasted checks that tasks that outlast the trial begin again when it is decided
// how tasks start.
func TestTrialIsOutlasted(t *testing.T) {
	b := newSandbox(t, slowScript, toStdout, 8)
	b.o.Start = hotstart.Auto
	sum, err := Run(context.Background(), b.o)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Succeeded != 8 || sum.Failed > 0 {
		t.Errorf("summary %+v", sum)
	}
	list := b.records(t)
	if len(list) != 8 {
		t.Fatalf("%d records", len(list))
	}
	for _, r := range list {
		if !r.OK() || r.Try != 1 || r.Start == "cold" && !strings.HasPrefix(r.Reason, "not hot: ") && !strings.Contains(r.Reason, "than it saves") {
			t.Errorf("outcome of %+v", r)
		}
		if text, err := os.ReadFile(filepath.Join(b.o.Out, r.Sample+".txt")); err != nil || string(text) != r.Sample+"\n" {
			t.Errorf("output %q, %v", text, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(b.o.Out, ".premix", "tasks")); !os.IsNotExist(err) {
		t.Errorf("work directories are left: %v, %v", entries, err)
	}
}

// TestTrialIsInterrupted interrupts a run while its first tasks are measured, and while hot starts
// are prepared.
func TestTrialIsInterrupted(t *testing.T) {
	for name, after := range map[string]time.Duration{"trial": 300 * time.Millisecond, "preparation": 1300 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			b := newSandbox(t, strings.Replace(slowScript, "sleep 1", "sleep 3", 1), toStdout, 8)
			b.o.Start = hotstart.Auto
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(after, func() { cancel(&Interrupted{Signal: unix.SIGTERM}) })
			_, err := Run(ctx, b.o)
			if i := (*Interrupted)(nil); !errors.As(err, &i) {
				t.Errorf("error %v", err)
			}
			b.o.Start, b.o.Resume = hotstart.Cold, true
			b.write(t, "tool.sh", "cat \"$1\"\n")
			if _, err := Run(context.Background(), b.o); err != nil {
				t.Error(err)
			}
		})
	}
}
