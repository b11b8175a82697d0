package pilot

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"premix/internal/engine/local"
	"premix/internal/engine/queue"
	"premix/internal/engine/spawn"
	"premix/internal/record"
)

func TestMain(m *testing.M) {
	// A spawner is this test binary, executed again.
	if len(os.Args) > 1 && os.Args[1] == spawn.Arg {
		os.Exit(spawn.Main())
	}
	os.Exit(m.Run())
}

// ender replaces a batch system that ends jobs, because real ones count their time limits in
// minutes. Its workers are real and run in this process. It ends the job of a certain task while
// this task runs, a given number of times.
type ender struct {
	t     *testing.T
	dir   string
	task  int    // the task appends a line to the file started when it begins
	times int    // number of jobs to end; -1 means all
	how   Status // status of a job that was ended

	mu      sync.Mutex // guards the rest
	status  map[string]Status
	running sync.WaitGroup
}

func (e *ender) Name() string { return "ender" }

func (e *ender) Reach(context.Context, string) error { return nil }

// started returns how often the task has begun.
func (e *ender) started() int {
	text, err := os.ReadFile(filepath.Join(e.dir, "started"))
	if err != nil && !os.IsNotExist(err) {
		e.t.Error(err)
	}
	return bytes.Count(text, []byte("\n"))
}

func (e *ender) set(job string, st Status) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status[job] = st
}

func (e *ender) Submit(_ context.Context, w *Wave) ([]string, error) {
	var jobs []string
	for i := range w.Shares {
		job := fmt.Sprintf("%d_%d", w.Number, i)
		jobs = append(jobs, job)
		e.set(job, Status{Phase: Running})
		ends := false
		for _, r := range w.Shares[i].Ranges {
			ends = ends || r[0] <= e.task && e.task <= r[1]
		}
		e.running.Go(func() {
			st := Status{Phase: Ended, Reason: "it ended"}
			if e.work(w.Number, i, ends) {
				st = e.how
			}
			e.set(job, st)
		})
	}
	return jobs, nil
}

// work runs one job and reports whether the job was ended.
func (e *ender) work(wave, index int, ends bool) (finished bool) {
	q, err := queue.Open(e.dir, "v1", false)
	if err != nil {
		e.t.Error(err)
		return false
	}
	defer q.Close()
	d, err := OpenTasks(q, false)
	if err != nil {
		e.t.Error(err)
		return false
	}
	ctx, end := context.WithCancelCause(context.Background())
	defer end(nil)
	done := make(chan struct{})
	before := e.started()
	go func() {
		defer close(done)
		if err := Work(ctx, d, WorkOptions{Engine: e.Name(), Wave: wave, Index: index, Cores: 1, Grace: time.Minute}, Worker{}); err != nil && ctx.Err() == nil {
			e.t.Error(err)
		}
	}()
	for {
		select {
		case <-done:
			return finished
		case <-time.After(10 * time.Millisecond):
		}
		if n := e.started(); ends && !finished && n > before && (e.times < 0 || n <= e.times) {
			finished = true
			end(&local.Interrupted{Signal: syscall.SIGTERM})
		}
	}
}

func (e *ender) Find(context.Context, *Wave) ([]string, error) { return nil, nil }

func (e *ender) Status(context.Context, []string) (map[string]Status, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make(map[string]Status)
	for job, st := range e.status {
		all[job] = st
	}
	return all, nil
}

func (e *ender) Cancel(context.Context, []string) error { return nil }

// A restarted worker waits for its lock while its predecessor or a dispatcher that closes it holds
// the lock. It returns no error if it was closed in that time.
func TestWorkerWaitsForItsLock(t *testing.T) {
	dir := t.TempDir()
	q, err := queue.Open(dir, "v1", true)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	b, err := q.Submit(queue.BatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := (&queue.Input{Name: "input", Format: queue.Lines}).Read(strings.NewReader("true\n"), b); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	d, err := OpenTasks(q, false)
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{path: ledgerPath(dir), version: "v1"}
	defer l.close()
	share := Share{Worker: 1, WorkerSlot: 1, Ranges: [][2]int{{1, 1}}, Cores: 1}
	if err := l.append(&Entry{Event: eventWave, Wave: 1, Engine: "ender", Shares: []Share{share}}); err != nil {
		t.Fatal(err)
	}
	lock, busy, err := queue.TakeLock(d.Lock(share.SlotName()), 0)
	if err != nil || busy {
		t.Fatal(busy, err)
	}
	defer lock.Close()
	finished := make(chan error, 1)
	go func() {
		finished <- Work(t.Context(), d, WorkOptions{Engine: "ender", Wave: 1, Cores: 1, Grace: time.Minute}, Worker{})
	}()
	select {
	case err := <-finished:
		t.Fatalf("it has ended: %v", err)
	case <-time.After(1500 * time.Millisecond): // longer than a worker waits that a user starts
	}
	if err := l.append(&Entry{Event: eventClosed, Worker: 1}); err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-finished; err != nil {
		t.Error(err)
	}
	if n := q.Counts()[queue.Waiting]; n != 1 {
		t.Errorf("%d tasks wait", n)
	}
}

// lastRecords returns the record of the last try of each task.
func lastRecords(t *testing.T, dir string) map[int]*record.Task {
	t.Helper()
	last := make(map[int]*record.Task)
	for rec, err := range queue.Records(dir) {
		if err != nil {
			t.Fatal(err)
		}
		if old := last[rec.Task]; old == nil || rec.Try > old.Try {
			last[rec.Task] = rec
		}
	}
	return last
}

// A task that is interrupted because its job reached its limit gets a strike although it has a
// record. A task that is interrupted for another reason gets none.
func TestInterruptedTasks(t *testing.T) {
	for _, c := range []struct {
		name   string
		times  int
		how    Status
		starts int
		cause  string
		error  string
	}{
		{"time limit", -1, Status{Phase: Ended, Reason: "it reached its time limit"}, 1 + maxStrikes,
			record.CauseLost, "its job of ender ended 2 times before it: it reached its time limit"},
		{"cancelled by its user", 2 * maxStrikes, Status{Phase: Ended, Reason: "it was cancelled", Blameless: true}, 2*maxStrikes + 1, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			q, err := queue.Open(dir, "v1", true)
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			b, err := q.Submit(queue.BatchOptions{Options: queue.Options{Dir: dir}})
			if err != nil {
				t.Fatal(err)
			}
			const quick = 5
			text := strings.Repeat("true\n", quick) +
				fmt.Sprintf("echo >>started; test %d -ge 0 && test $(wc -l <started) -gt %[1]d || exec sleep 1000\n", c.times) +
				strings.Repeat("true\n", quick)
			if err := (&queue.Input{Name: "input", Format: queue.Lines}).Read(strings.NewReader(text), b); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Commit(); err != nil {
				t.Fatal(err)
			}
			d, err := OpenTasks(q, true)
			if err != nil {
				t.Fatal(err)
			}
			e := &ender{t: t, dir: dir, task: quick + 1, times: c.times, how: c.how, status: make(map[string]Status)}
			ctx, cancel := context.WithTimeoutCause(context.Background(), 5*time.Minute, &local.Interrupted{Signal: syscall.SIGALRM})
			defer cancel()
			err = Dispatch(ctx, d, e, Options{Version: "v1", Jobs: 2})
			e.running.Wait()
			if (err != nil) != (c.error != "") || ctx.Err() != nil {
				t.Fatalf("%v", err)
			}
			last := lastRecords(t, dir)
			for task := 1; task <= 2*quick+1; task++ {
				switch rec := last[task]; {
				case rec == nil:
					t.Errorf("task %d has no record", task)
				case task == e.task && (rec.Cause != c.cause || rec.Error != c.error):
					t.Errorf("task %d: %s: %s", task, rec.Cause, rec.Error)
				case task != e.task && !rec.OK():
					t.Errorf("task %d: %s", task, rec.Error)
				}
			}
			if n := e.started(); n != c.starts {
				t.Errorf("it was started %d times, want %d", n, c.starts)
			}
		})
	}
}
