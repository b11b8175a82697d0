package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"premix/internal/engine"
	"premix/internal/record"
	"premix/internal/watch"
)

// runDir is a run directory with a plan, as premix run makes it.
type runDir struct {
	t   *testing.T
	dir string
}

func newRunDir(t *testing.T, host string) *runDir {
	t.Helper()
	r := &runDir{t: t, dir: filepath.Join(t.TempDir(), "out")}
	if err := os.MkdirAll(filepath.Join(r.dir, engine.StateDir, "tasks"), 0o755); err != nil {
		t.Fatal(err)
	}
	h := engine.Header{Header: record.Header{Table: "plan", Format: record.Format, Host: host}, Recipe: "align", Threads: 2, Memory: 7 << 20}
	r.line("plan.jsonl", h)
	r.line("journal-0001.jsonl", record.Header{Table: "task", Format: record.Format, Host: host})
	return r
}

func (r *runDir) line(name string, v any) {
	r.t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		r.t.Fatal(err)
	}
	r.append(name, string(text)+"\n")
}

func (r *runDir) append(name, text string) {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.dir, engine.StateDir, name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		r.t.Fatal(err)
	}
}

var started = time.Date(2026, 11, 17, 12, 0, 0, 5e6, time.UTC)

func (r *runDir) record(n int) record.Task {
	return record.Task{Task: n, Sample: fmt.Sprintf("s%d", n), Try: 1, Start: "fork", Reason: "it is proved", Queued: started, Started: started, Finished: started.Add(5 * time.Millisecond),
		User: 0.5, System: 0.25, MaxRSS: 9, ReadBytes: 10, WriteBytes: 11, Latency: 0.003}
}

// following returns a collector of tasks with a directory for announcements.
func following(t *testing.T, state string) (*bench, *tasks) {
	b := newBench(t)
	b.machine.root = ""
	t.Setenv("PREMIX_HOME", filepath.Join(t.TempDir(), "home"))
	c := newTasks(b.machine, engine.AnnouncementDir(), state, nil)
	t.Cleanup(func() { c.Close() })
	return b, c
}

func (b *bench) tasks() map[string]watch.Task {
	b.sink.mu.Lock()
	defer b.sink.mu.Unlock()
	all := make(map[string]watch.Task)
	for _, t := range b.sink.tasks {
		all[t.Key] = t
	}
	return all
}

func TestRunsAreFollowed(t *testing.T) {
	here, _ := os.Hostname()
	b, c := following(t, t.TempDir())
	b.look(c)
	r := newRunDir(t, here)
	r.line("journal-0001.jsonl", r.record(1))
	engine.Announce(r.dir)
	b.look(c)
	want := watch.Task{Key: r.dir + "#1.1", Name: "s1", Run: r.dir, Step: "align", User: userName(os.Getuid()), Node: here, Engine: "local", Start: "fork", Reason: "it is proved",
		Queued: started, Began: started, End: started.Add(5 * time.Millisecond), OK: true, Cores: 2, Memory: 7 << 20, CPU: 0.75, MaxRSS: 9, Read: 10, Written: 11, WarmedIn: 0.003}
	if got := b.tasks()[want.Key]; got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// An incomplete line is ignored until it is complete. A task that failed has a reason.
	bad := r.record(2)
	bad.Cause, bad.Error, bad.Exit = record.CauseExit, "the tool ended with status 3", 3
	text, _ := json.Marshal(bad)
	r.append("journal-0001.jsonl", string(text[:40]))
	b.look(c)
	if n := len(b.tasks()); n != 1 {
		t.Errorf("%d tasks", n)
	}
	r.append("journal-0001.jsonl", string(text[40:])+"\n")
	b.look(c)
	if got := b.tasks()[r.dir+"#2.1"]; got.OK || got.Exit != 3 || got.Reason != "exit: the tool ended with status 3" {
		t.Errorf("%+v", got)
	}
	// A running task is reported once, when it begins.
	r.append("lock", fmt.Sprintf("process %d on %s\n", os.Getpid(), here))
	work := filepath.Join(r.dir, engine.StateDir, "tasks", "3.1")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	b.look(c)
	b.look(c)
	if got := b.tasks()[r.dir+"#3.1"]; got.Began.IsZero() || !got.End.IsZero() || got.Step != "align" || len(b.sink.tasks) != 3 {
		t.Errorf("%d reports, %+v", len(b.sink.tasks), got)
	}
	b.sink.want(t, map[string]float64{"task.running": 1})
	if err := os.Remove(work); err != nil {
		t.Fatal(err)
	}
	r.line("journal-0001.jsonl", r.record(3))
	b.look(c)
	if got := b.tasks()[r.dir+"#3.1"]; !got.OK {
		t.Errorf("%+v", got)
	}
	b.sink.want(t, map[string]float64{"task.running": 0, "task.ended": 0.5, "task.failed": 0})
	if c.RunOf(fmt.Sprint(os.Getpid())) != r.dir {
		t.Error("the process of the run is not known")
	}
	// A task that ends without a record is reported too.
	if err := os.Mkdir(work[:len(work)-3]+"4.1", 0o755); err != nil {
		t.Fatal(err)
	}
	b.look(c)
	if err := os.Remove(work[:len(work)-3] + "4.1"); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		b.look(c)
	}
	if got := b.tasks()[r.dir+"#4.1"]; got.End.IsZero() || got.OK || !strings.Contains(got.Reason, "without a record") {
		t.Errorf("%+v", got)
	}
	// The run directory may be removed.
	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	b.look(c)
	if len(c.runs) != 0 {
		t.Error("it is still followed")
	}
}

// Tasks of other machines in a shared directory are reported by their own watcher.
func TestRecordsOfOtherMachines(t *testing.T) {
	b, c := following(t, "")
	b.look(c)
	r := newRunDir(t, "another")
	r.line("journal-0001.jsonl", r.record(1))
	engine.Announce(r.dir)
	b.look(c)
	if n := len(b.tasks()); n != 0 {
		t.Errorf("%d tasks", n)
	}
	// The tasks are reported if the directory is in the configuration.
	all := newTasks(b.machine, "", "", []string{r.dir})
	t.Cleanup(func() { all.Close() })
	b.look(all)
	if got := b.tasks()[r.dir+"#1.1"]; got.Node != "another" {
		t.Errorf("%+v", got)
	}
}

// A watcher that follows a killed one continues where that one was. It may report tasks
// twice, but it misses none.
func TestWatcherIsKilled(t *testing.T) {
	here, _ := os.Hostname()
	state := t.TempDir()
	b, c := following(t, state)
	b.look(c)
	r := newRunDir(t, here)
	engine.Announce(r.dir)
	next := 0
	more := func(n int) {
		for range n {
			next++
			r.line("journal-0001.jsonl", r.record(next))
		}
	}
	for range 10 {
		more(10)
		b.look(c) // two seconds
	}
	// The watcher is killed without writing its state, while tasks continue.
	more(50)
	before := len(b.sink.tasks)
	again := newTasks(b.machine, engine.AnnouncementDir(), state, nil)
	b.look(again)
	if n := len(b.tasks()); n != 150 {
		t.Errorf("%d tasks", n)
	}
	if twice := len(b.sink.tasks) - before - 50; twice < 0 || twice > 60 {
		t.Errorf("%d tasks were told twice", twice)
	}
	more(1)
	b.look(again)
	// A watcher that ends regularly repeats nothing.
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	more(1)
	before = len(b.sink.tasks)
	last := newTasks(b.machine, engine.AnnouncementDir(), state, nil)
	t.Cleanup(func() { last.Close() })
	b.look(last)
	if n := len(b.sink.tasks) - before; n != 1 || len(b.tasks()) != 152 {
		t.Errorf("%d reports, %d tasks", n, len(b.tasks()))
	}
	// A damaged state is treated like a missing one.
	if err := os.WriteFile(filepath.Join(state, stateFile), []byte(`{"runs":{`), 0o644); err != nil {
		t.Fatal(err)
	}
	b.look(newTasks(b.machine, engine.AnnouncementDir(), state, nil))
}

// With inotify, all tasks of a run are read although its directory is removed at once.
func TestShortRunIsNotMissed(t *testing.T) {
	here, _ := os.Hostname()
	b, c := following(t, "")
	// All processes of this user share a limited number of inotify instances. If they are
	// used up, the test waits for one.
	answers(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		err := c.start()
		if errors.Is(err, syscall.EMFILE) {
			c.started = false
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	})
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		c.Follow(ctx, b.sink)
	}()
	t.Cleanup(func() {
		cancel()
		<-finished
	})
	answers(t, func() bool { _, err := os.Stat(engine.AnnouncementDir()); return err == nil })
	r := newRunDir(t, here)
	engine.Announce(r.dir)
	for i := range 500 {
		r.line("journal-0001.jsonl", r.record(i+1))
	}
	answers(t, func() bool { return len(b.tasks()) == 500 })
	if n := len(b.sink.tasks); n != 500 {
		t.Errorf("%d reports", n)
	}
}

// Run directories may belong to any user, and so may be hostile.
func TestHostileDirectories(t *testing.T) {
	here, _ := os.Hostname()
	b, c := following(t, "")
	b.look(c)
	r := newRunDir(t, here)
	state := filepath.Join(r.dir, engine.StateDir)
	secret := filepath.Join(t.TempDir(), "secret")
	r2 := newRunDir(t, here)
	r2.line("journal-0001.jsonl", r2.record(9))
	if err := os.Rename(filepath.Join(r2.dir, engine.StateDir, "journal-0001.jsonl"), secret); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(state, "journal-0002.jsonl")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(state, "journal-0003.jsonl"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.append("journal-0001.jsonl", `{"task":-1}`+"\n"+`{"task":1,"ended":"2026-01-01T00:00:00Z"`+"\n"+string(bytes.Repeat([]byte("x"), record.MaxLine+10))+"\n\x00\x00\n")
	r.line("journal-0001.jsonl", r.record(1))
	place := engine.AnnouncementDir()
	for name, text := range map[string]string{"0-1": "relative\n", "0-2": "/a\nb\n", "0-3": "/torn", "nopid": r.dir + "\n"} {
		if err := os.WriteFile(filepath.Join(place, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	engine.Announce(r.dir)
	b.clock.advance(time.Second)
	if err := c.Collect(context.Background(), b.wall(), b.sink); err == nil {
		t.Error("that a journal is a link is told to nobody")
	}
	var keys []string
	for k := range b.tasks() {
		keys = append(keys, strings.TrimPrefix(k, r.dir))
	}
	if !slices.Equal(keys, []string{"#1.1"}) {
		t.Errorf("%v", keys)
	}
}
