package collect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/engine"
	"premix/internal/watch"
)

// tasksOnly is a sink that keeps tasks.
type tasksOnly struct{ list []watch.Task }

func (s *tasksOnly) Samples([]watch.Sample) {}
func (s *tasksOnly) Task(t watch.Task)      { s.list = append(s.list, t) }
func (s *tasksOnly) Event(watch.Event)      {}

// FuzzRuns follows a run directory of another user, which root's watch reads. Its tasks are
// tasks of this directory and of its owner, and are reported once.
func FuzzRuns(f *testing.F) {
	const header = `{"table":"task","format":1,"host":"here"}` + "\n"
	f.Add([]byte(header+`{"task":1,"sample":"a","try":1,"start":"hot","queued":"2026-11-17T12:00:00Z","started":"2026-11-17T12:00:00Z","ended":"2026-11-17T12:00:01Z"}`+"\n"),
		[]byte(`{"table":"plan","format":1,"recipe":"align","threads":2,"memory":7}`+"\n"), false)
	f.Add([]byte(header+`{"task":-1,"try":99999999999,"ended":"9999-12-31T23:59:59Z","error":"\u0000"}`+"\n{\n"), []byte("{}\n"), true)
	f.Fuzz(func(t *testing.T, journal, plan []byte, queue bool) {
		dir := t.TempDir()
		state := filepath.Join(dir, engine.StateDir)
		at := state
		if queue {
			at = filepath.Join(state, engine.QueueDir)
		}
		for name, text := range map[string][]byte{filepath.Join(at, "journal-0001.jsonl"): journal, filepath.Join(state, "plan.jsonl"): plan} {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		now := time.Now()
		r, sink := newRun(dir, "here", true, now), &tasksOnly{}
		finished, failed, err := r.pull(now, now, sink)
		if err != nil || failed > finished || finished != len(sink.list) {
			t.Fatalf("%d ended, %d failed, %d tasks: %v", finished, failed, len(sink.list), err)
		}
		for _, task := range sink.list {
			if task.Run != dir || !strings.HasPrefix(task.Key, dir+"#") || task.User != userName(os.Getuid()) {
				t.Errorf("%+v", task)
			}
		}
		if again, _, err := r.pull(now, now, sink); err != nil || again != 0 {
			t.Errorf("%d tasks ended again: %v", again, err)
		}
	})
}
