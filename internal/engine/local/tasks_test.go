package local

import (
	"bytes"
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

// taskDir is a task directory with helpers for tests.
type taskDir struct {
	t   *testing.T
	dir string
	q   *queue.Queue
}

func newTaskDir(t *testing.T) *taskDir {
	t.Helper()
	d := &taskDir{t: t, dir: t.TempDir()}
	d.open()
	return d
}

func (d *taskDir) open() {
	d.t.Helper()
	var err error
	if d.q, err = queue.Open(d.dir, "v1", true); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { d.q.Close() })
}

func (d *taskDir) submit(o queue.BatchOptions, format queue.Format, text string) {
	d.t.Helper()
	if o.Dir == "" {
		o.Dir = d.dir
	}
	b, err := d.q.Submit(o)
	if err != nil {
		d.t.Fatal(err)
	}
	in := queue.Input{Name: "input", Format: format}
	if err := in.Read(strings.NewReader(text), b); err != nil {
		d.t.Fatal(err)
	}
	if _, err := b.Commit(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *taskDir) run(o TaskOptions) (*Summary, error) {
	d.t.Helper()
	o.Queue = d.q
	if o.Jobs == 0 {
		o.Jobs = 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	sum, err := RunTasks(ctx, o)
	if ctx.Err() != nil {
		d.t.Error("the run came to no end")
	}
	return sum, err
}

// records returns the last record of each task. More than one success of a task is an error.
func (d *taskDir) records() map[int]*record.Task {
	d.t.Helper()
	m := make(map[int]*record.Task)
	for rec, err := range queue.Records(d.dir) {
		if err != nil {
			d.t.Fatal(err)
		}
		if old := m[rec.Task]; old != nil && (old.OK() || rec.Try <= old.Try) {
			d.t.Errorf("task %d has a record after %+v: %+v", rec.Task, old, rec)
		}
		m[rec.Task] = rec
	}
	return m
}

func (d *taskDir) output(task int, stderr bool) string {
	d.t.Helper()
	var b bytes.Buffer
	if err := d.q.Output(task, stderr, -1, &b); err != nil {
		d.t.Fatal(err)
	}
	return b.String()
}

func TestTasksRun(t *testing.T) {
	d := newTaskDir(t)
	var text strings.Builder
	for i := 1; i <= 300; i++ {
		fmt.Fprintf(&text, "printf 'out %d\\n'; printf 'err %d\\n' >&2\n", i, i)
	}
	d.submit(queue.BatchOptions{}, queue.Lines, text.String())
	sum, err := d.run(TaskOptions{})
	if err != nil || sum.Succeeded != 300 || sum.Tasks != 300 {
		t.Fatalf("%+v, %v", sum, err)
	}
	for i := 1; i <= 300; i++ {
		if out, errs := d.output(i, false), d.output(i, true); out != fmt.Sprintf("out %d\n", i) || errs != fmt.Sprintf("err %d\n", i) {
			t.Fatalf("task %d wrote %q and %q", i, out, errs)
		}
	}
	if got := len(d.records()); got != 300 {
		t.Errorf("%d records", got)
	}
	d.q.Close()
	d.open()
	if sum, err := d.run(TaskOptions{}); err != nil || sum.Before != 300 || sum.Succeeded != 0 {
		t.Errorf("again: %+v, %v", sum, err)
	}
}

func TestTaskFailures(t *testing.T) {
	d := newTaskDir(t)
	d.submit(queue.BatchOptions{Options: queue.Options{Retries: 2}}, queue.JSONL, `{"command":"echo no >&2; exit 3"}
{"command":"kill -SEGV $$","retries":0}
{"command":["no-such-program","x"],"retries":0}
{"command":"sleep 1000","timeout":0.2,"retries":0}
{"command":"test $PREMIX_TRY = 3"}
{"command":"true","cores":99,"retries":0}
{"command":"true","memory":"1T","retries":0}
{"command":"true","cwd":"/no/such/dir","retries":0}
{"command":"test $PREMIX_TASK$X = 9y","env":{"X":"y"}}
{"command":"true","stdout":"/proc/no/such/file","retries":0}
{"command":"echo made","stdout":"made/for/it","retries":0}
`)
	sum, err := d.run(TaskOptions{Memory: 1 << 30, Grace: time.Second})
	var failed *FailedError
	if !errors.As(err, &failed) || failed.Failed != 8 || sum.Succeeded != 3 {
		t.Fatalf("%+v, %v", sum, err)
	}
	recs := d.records()
	for task, want := range map[int]struct {
		cause, text string
		try         int
	}{
		1:  {record.CauseExit, "the command ended with status 3", 3},
		2:  {record.CauseSignal, "the command was killed by SIGSEGV", 1},
		3:  {record.CauseStart, "the command cannot be executed: no such file or directory", 1},
		4:  {record.CauseTimeout, "ended at its timeout of 200ms", 1},
		5:  {"", "", 3},
		6:  {record.CauseStart, "the task needs 99 cores and there are 2", 1},
		7:  {record.CauseStart, "the task needs 1 TiB of memory and there are 1 GiB", 1},
		8:  {record.CauseStart, "the command cannot enter its directory: no such file or directory", 1},
		9:  {"", "", 1},
		10: {record.CauseStart, "the command cannot open its output: no such file or directory", 1},
	} {
		if r := recs[task]; r == nil || r.Cause != want.cause || r.Error != want.text || r.Try != want.try {
			t.Errorf("task %d: %+v, want %+v", task, r, want)
		}
	}
	if got := d.output(11, false); got != "made\n" {
		t.Errorf("task 11 wrote %q", got)
	}
	x, err := d.q.Why(1)
	if err != nil || x.Why != "it failed 3 times: the command ended with status 3" || len(x.Stderr) != 1 || x.Stderr[0] != "no" {
		t.Errorf("%+v, %v", x, err)
	}
}

func TestTasksHoldTheirCores(t *testing.T) {
	d := newTaskDir(t)
	// Each task appends to the list the tasks that run with it. It does so in one write, because
	// others write there too.
	command := `{"command":"mkdir run/$PREMIX_TASK; echo $(ls run) >>seen; sleep 0.05; rmdir run/$PREMIX_TASK","cores":%d,"memory":%d}` + "\n"
	var text strings.Builder
	cores := map[string]int{}
	for i := 1; i <= 24; i++ {
		c := 1 + i%3
		cores[fmt.Sprint(i)] = c
		fmt.Fprintf(&text, command, c, c<<20)
	}
	if err := os.Mkdir(filepath.Join(d.dir, "run"), 0o777); err != nil {
		t.Fatal(err)
	}
	d.submit(queue.BatchOptions{}, queue.JSONL, text.String())
	if sum, err := d.run(TaskOptions{Jobs: 4}); err != nil {
		t.Fatalf("%+v, %v", sum, err)
	}
	seen, err := os.ReadFile(filepath.Join(d.dir, "seen"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(seen)) {
		held := 0
		for _, f := range strings.Fields(line) {
			held += cores[f]
		}
		if held > 4 {
			t.Errorf("tasks %s hold %d cores of 4", strings.TrimSpace(line), held)
		}
	}
}

func TestPinnedTasks(t *testing.T) {
	for _, pin := range []Pin{PinCore, PinNUMA} {
		d := newTaskDir(t)
		d.submit(queue.BatchOptions{}, queue.Lines, strings.Repeat("grep Cpus_allowed_list /proc/self/status\n", 6))
		if sum, err := d.run(TaskOptions{Pin: pin}); err != nil {
			t.Fatalf("%s: %+v, %v", pin, sum, err)
		}
		for i := 1; i <= 6; i++ {
			_, list, _ := strings.Cut(strings.TrimSpace(d.output(i, false)), "\t")
			if pin == PinCore && strings.ContainsAny(list, "-,") {
				t.Errorf("task %d may run on %s", i, list)
			}
		}
	}
}

// Jobs limits the number of tasks, Cores the sum of their cores.
func TestJobsAreTasks(t *testing.T) {
	for _, c := range []struct {
		name    string
		o       TaskOptions
		cores   int // of a task
		atATime int
	}{
		{"jobs of several cores", TaskOptions{Jobs: 2, Cores: 4}, 2, 2},
		{"jobs before cores", TaskOptions{Jobs: 1, Cores: 4}, 2, 1},
		{"cores before jobs", TaskOptions{Jobs: 3, Cores: 4}, 3, 1},
		{"cores before jobs of one core", TaskOptions{Jobs: 9, Cores: 3}, 1, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newTaskDir(t)
			// The first tasks wait until as many run as are allowed. Each task prints how many it
			// saw.
			script := fmt.Sprintf(`mkdir run.$PREMIX_TASK; i=0
				while [ $(ls -d run.* | wc -l) -lt %d ] && [ $PREMIX_TASK -le %[1]d ] && [ $i -lt 1200 ]; do i=$((i+1)); sleep 0.05; done
				ls -d run.* | wc -l; sleep 0.2; rmdir run.$PREMIX_TASK`, c.atATime)
			d.submit(queue.BatchOptions{Options: queue.Options{Cores: c.cores}}, queue.Lines, strings.Repeat("sh tool.sh\n", 6))
			if err := os.WriteFile(filepath.Join(d.dir, "tool.sh"), []byte(script), 0o666); err != nil {
				t.Fatal(err)
			}
			if sum, err := d.run(c.o); err != nil || sum.Succeeded != 6 {
				t.Fatalf("%+v, %v", sum, err)
			}
			most := 0
			for task := range 6 {
				n, err := strconv.Atoi(strings.TrimSpace(d.output(task+1, false)))
				if err != nil {
					t.Fatal(err)
				}
				most = max(most, n)
			}
			if most != c.atATime {
				t.Errorf("%d tasks at a time, want %d", most, c.atATime)
			}
		})
	}
}

func TestMemoryOfTasks(t *testing.T) {
	groups, _ := newCgroups(thisHierarchies(), 2)
	limits := groups != nil && groups.has("memory")
	if err := groups.close(); err != nil {
		t.Fatal(err)
	}
	if !limits {
		t.Skip("no right to make cgroups that limit memory")
	}
	d := newTaskDir(t)
	// The shell needs more than 60 MB. Its tries have 20, 40, 80 and 160 MB.
	d.submit(queue.BatchOptions{Options: queue.Options{Memory: 20 << 20, Retries: 3}}, queue.Lines,
		"x=$(head -c 60000000 /dev/zero | tr '\\0' x); echo ${#x}\n")
	sum, err := d.run(TaskOptions{Memory: 1 << 30})
	if err != nil {
		t.Fatalf("%+v, %v", sum, err)
	}
	if r := d.records()[1]; r.Try < 2 || r.Memory < 40<<20 {
		t.Errorf("%+v", r)
	}
	if got := strings.TrimSpace(d.output(1, false)); got != "60000000" {
		t.Errorf("it wrote %q", got)
	}
}

// needCells skips a test if slots have no cgroups with a limit of processes.
func needCells(t *testing.T) {
	t.Helper()
	groups, lacks := newCgroups(thisHierarchies(), 2)
	if err := groups.close(); err != nil {
		t.Fatal(err)
	}
	if groups == nil || !groups.has("pids") {
		t.Skip("no right to make cgroups that limit processes:", lacks)
	}
}

// Processes that a task leaves in new sessions end with it, unless they are to be kept.
func TestDaemons(t *testing.T) {
	needCells(t)
	for _, keep := range []bool{false, true} {
		d := newTaskDir(t)
		d.submit(queue.BatchOptions{}, queue.Lines, "setsid sh -c 'echo $$ >new; mv new pid; exec sleep 600' & while [ ! -e pid ]; do sleep 0.01; done; cat pid\n")
		if sum, err := d.run(TaskOptions{KeepDaemons: keep}); err != nil {
			t.Fatalf("%+v, %v", sum, err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(d.output(1, false)))
		if err != nil {
			t.Fatal(err)
		}
		if lives := proc.StartTime(pid) != 0; lives != keep {
			t.Errorf("kept %v, and it lives: %v", keep, lives)
		}
		if keep {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
}

// A fork bomb fails alone with the right cause, or ends with its task. Tasks before, beside and
// after it in the same slots succeed.
func TestForkBombs(t *testing.T) {
	needCells(t)
	d := newTaskDir(t)
	const bomb = "b() { b & b; }"
	var text strings.Builder
	for range 3 {
		text.WriteString(strings.Repeat("echo fine | cat\n", 20))
		text.WriteString(bomb + "; b 2>/dev/null\n" + bomb + "; b 2>/dev/null &\n")
	}
	d.submit(queue.BatchOptions{}, queue.Lines, text.String())
	sum, err := d.run(TaskOptions{Jobs: 2, processes: 64})
	if sum == nil || sum.NotRun != 0 {
		t.Fatalf("%+v, %v", sum, err)
	}
	for task, r := range d.records() {
		switch {
		case task%22 == 0 && r.OK(): // its task ended first
		case task%22 == 0 || task%22 == 21:
			if r.Cause != record.CauseProcesses || !strings.Contains(r.Error, "a task may have 64") {
				t.Errorf("task %d: %+v", task, r)
			}
		case !r.OK():
			t.Errorf("task %d: %+v", task, r)
		}
	}
}

// A running worker notices submissions, cancellations and retries.
func TestOrdersWhileItRuns(t *testing.T) {
	d := newTaskDir(t)
	d.submit(queue.BatchOptions{}, queue.Lines, "while [ ! -e go ]; do sleep 0.02; done\nsleep 1000\nsleep 1000\n")
	type result struct {
		sum *Summary
		err error
	}
	done := make(chan result)
	go func() {
		sum, err := d.run(TaskOptions{Grace: time.Second})
		done <- result{sum, err}
	}()
	other := &taskDir{t: t, dir: d.dir}
	other.open()
	for end := time.Now().Add(5 * time.Minute); len(other.q.Running()) < 2; {
		if time.Now().After(end) {
			t.Fatal("the tasks do not run")
		}
		time.Sleep(10 * time.Millisecond)
	}
	other.submit(queue.BatchOptions{Options: queue.Options{Group: "late"}, After: []string{queue.DefaultGroup}}, queue.Lines, "echo late\n")
	if x, err := other.q.Why(2); err != nil || x.State != "running" {
		t.Errorf("%+v, %v", x, err)
	}
	if n, err := other.q.Cancel(&queue.Selection{Tasks: [][2]int{{2, 3}}}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if err := os.WriteFile(filepath.Join(d.dir, "go"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	r := <-done
	var failed *FailedError
	if !errors.As(r.err, &failed) || r.sum.Cancelled != 2 || r.sum.Succeeded != 1 || r.sum.NotRun != 1 {
		t.Errorf("%+v, %v", r.sum, r.err)
	}
}

// Two workers have shares of one directory, as on two machines.
func TestWorkersWithShares(t *testing.T) {
	d := newTaskDir(t)
	d.submit(queue.BatchOptions{}, queue.Lines, strings.Repeat("echo $PREMIX_TASK\n", 100))
	done := make(chan error)
	for name, share := range map[string][][2]int{"a": {{1, 40}}, "b": {{41, 90}}} {
		w := &taskDir{t: t, dir: d.dir}
		w.open()
		go func() {
			_, err := w.run(TaskOptions{Worker: name, Share: share})
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; err != nil { // a worker ignores unfinished tasks of others
			t.Error(err)
		}
	}
	if err := d.q.Refresh(); err != nil {
		t.Fatal(err)
	}
	if c := d.q.Counts(); c[queue.Succeeded] != 90 || c[queue.Waiting] != 10 {
		t.Errorf("%v", c)
	}
	if got := d.output(41, false); got != "41\n" {
		t.Errorf("task 41 wrote %q", got)
	}
	if got := len(d.records()); got != 90 {
		t.Errorf("%d records", got)
	}
}

// Each task succeeds once although the spawner is killed repeatedly.
func TestKilledSpawners(t *testing.T) {
	d := newTaskDir(t)
	const tasks = 60
	d.submit(queue.BatchOptions{}, queue.Lines, strings.Repeat("sleep 0.03; echo $PREMIX_TASK >>done\n", tasks))
	stop := make(chan struct{})
	gone := make(chan int)
	go func() {
		kills, last, finished := 0, 0, 0
		for {
			select {
			case <-stop:
				gone <- kills
				return
			case <-time.After(20 * time.Millisecond):
			}
			// Spare a spawner that has not ended a task yet: premix gives up on a run without
			// progress.
			now := d.q.Counts()[queue.Succeeded]
			b, err := spawn.ReadStatusFile(d.q.StatusFile(queue.LocalWorker))
			if err == nil && b.Session > 0 && b.Session != last && len(b.Running) > 0 && (last == 0 || now > finished) {
				last, finished = b.Session, now
				if unix.Kill(last, unix.SIGKILL) == nil {
					kills++
				}
			}
		}
	}()
	sum, err := d.run(TaskOptions{})
	close(stop)
	kills := <-gone
	if err != nil || sum.Succeeded != tasks {
		t.Fatalf("%+v, %v", sum, err)
	}
	if got := len(d.records()); got != tasks {
		t.Errorf("%d tasks have records", got)
	}
	t.Logf("%d spawners were killed", kills)
}

func TestTasksOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("no right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := &taskDir{t: t, dir: filepath.Join(dir, "out")}
	d.open()
	const tasks = 40
	d.submit(queue.BatchOptions{Options: queue.Options{Dir: "/"}}, queue.Lines, strings.Repeat("head -c 100000 /dev/zero\n", tasks))
	sum, err := d.run(TaskOptions{})
	if err == nil || !strings.HasPrefix(err.Error(), "the run was stopped: ") || sum.Succeeded == tasks {
		t.Fatalf("%+v, %v", sum, err)
	}
	d.q.Close()
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT, "size=30m"); err != nil {
		t.Fatal(err)
	}
	d.open()
	if sum, err := d.run(TaskOptions{}); err != nil || sum.Before+sum.Succeeded != tasks {
		t.Fatalf("with room: %+v, %v", sum, err)
	}
	for task, r := range d.records() {
		if r.StdoutLength != 100000 {
			t.Errorf("task %d succeeded with %d bytes", task, r.StdoutLength)
		}
	}
}

func TestInterruptedTasks(t *testing.T) {
	d := newTaskDir(t)
	d.submit(queue.BatchOptions{}, queue.Lines, "trap 'echo term; exit 1' TERM; echo begun; while :; do sleep 0.01; done\n"+strings.Repeat("true\n", 20))
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if text, _ := os.ReadFile(filepath.Join(d.dir, ".premix", "queue", "log-0-0.out")); len(text) > 0 {
				break
			}
		}
		cancel(&Interrupted{Signal: unix.SIGINT})
	}()
	sum, err := RunTasks(ctx, TaskOptions{Queue: d.q, Jobs: 1, Grace: 5 * time.Minute})
	var i *Interrupted
	if !errors.As(err, &i) || i.Signal != unix.SIGINT || sum.Succeeded != 0 || sum.NotRun != 21 {
		t.Fatalf("%+v, %v", sum, err)
	}
	if got := d.output(1, false); got != "begun\nterm\n" {
		t.Errorf("it wrote %q", got)
	}
	if r := d.records()[1]; r.Cause != record.CauseInterrupted {
		t.Errorf("%+v", r)
	}
}

func TestParseList(t *testing.T) {
	for text, want := range map[string]string{"0-3,8": "[0 1 2 3 8]", "": "[]", "5": "[5]"} {
		if got := fmt.Sprint(parseList(text)); got != want {
			t.Errorf("%q gives %s, want %s", text, got, want)
		}
	}
}
