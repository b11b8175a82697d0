package queue

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/recipe"
	"premix/internal/record"
)

// plan returns a plan of n tasks, each with a file and a directory as outputs.
func plan(n int) *engine.Plan {
	p := &engine.Plan{Header: engine.Header{
		Recipe: "tool", Threads: 2, Tasks: n,
		Header: record.Header{Table: "plan", Format: record.Format},
		Frozen: engine.Frozen{
			Tool: "/bin/tool", Argv: []string{"tool", "r1"}, Env: map[string]string{"K": "v"},
			Inputs: []recipe.Input{{Name: "r1", File: "r1"}}, Data: map[string]string{"ref": "/ref"},
		},
	}}
	for i := 1; i <= n; i++ {
		s := fmt.Sprintf("s%d", i)
		p.Tasks = append(p.Tasks, engine.Task{
			Task: i, Sample: s, Inputs: map[string]string{"r1": "/in/" + s}, Pipe: "cat >" + s,
			Outputs: []recipe.Output{
				{Name: "stdout", From: ".stdout", To: s + ".sam"},
				{Name: "star", Dir: true, From: "star", To: "star/" + s},
			},
		})
	}
	return p
}

func openRun(t *testing.T, dir string, p *engine.Plan, resume bool) *Run {
	t.Helper()
	r, err := OpenRun(dir, p, 0, resume)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func closeRun(t *testing.T, r *Run) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// finish publishes the outputs of a try and commits its record, as an engine does.
func finish(t *testing.T, r *Run, task *engine.Task, try int) {
	t.Helper()
	work := r.WorkDir(task.Task, try)
	write(t, filepath.Join(work, ".stdout"), "out of "+task.Sample)
	write(t, filepath.Join(work, "star", "log"), "log of "+task.Sample)
	if err := engine.Check(work, task.Outputs); err != nil {
		t.Fatal(err)
	}
	if err := engine.Publish(work, r.Dir, task.Outputs); err != nil {
		t.Fatal(err)
	}
	if err := r.Settle([]*record.Task{{Task: task.Task, Sample: task.Sample, Try: try}}); err != nil {
		t.Fatal(err)
	}
}

func pending(r *Run) []int {
	list := []int{}
	for _, task := range r.Pending() {
		list = append(list, task.Task)
	}
	return list
}

func TestPlanComesBack(t *testing.T) {
	dir := t.TempDir()
	closeRun(t, openRun(t, dir, plan(3), false))
	got, err := engine.ReadPlan(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, plan(3)) {
		t.Errorf("the plan came back as %+v", got)
	}
}

func TestResumeRunsWhatIsNotDone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "out")
	r := openRun(t, dir, plan(5), false)
	if got := pending(r); !slices.Equal(got, []int{1, 2, 3, 4, 5}) {
		t.Fatalf("pending %v", got)
	}
	tasks := r.Pending()
	finish(t, r, tasks[0], 1)
	finish(t, r, tasks[1], 1)
	finish(t, r, tasks[2], 1)
	if err := r.Settle([]*record.Task{{Task: 4, Try: 1, Cause: record.CauseExit}}); err != nil {
		t.Fatal(err)
	}
	closeRun(t, r)
	// Delete one output, and replace another one by a directory.
	if err := os.RemoveAll(filepath.Join(dir, "star", "s2")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "s3.sam")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "s3.sam"), 0o777); err != nil {
		t.Fatal(err)
	}
	r = openRun(t, dir, plan(5), true)
	if got := pending(r); !slices.Equal(got, []int{2, 3, 4, 5}) {
		t.Errorf("pending %v", got)
	}
	if r.tries(4) != 1 || r.tries(5) != 0 {
		t.Errorf("tries %d and %d", r.tries(4), r.tries(5))
	}
	finish(t, r, &r.Plan.Tasks[2], 2)
	closeRun(t, r)
	r = openRun(t, dir, plan(5), true)
	defer closeRun(t, r)
	if got := pending(r); !slices.Equal(got, []int{2, 4, 5}) {
		t.Errorf("pending %v", got)
	}
}

func TestOpenRemovesWorkDirectories(t *testing.T) {
	dir := t.TempDir()
	r := openRun(t, dir, plan(1), false)
	work := r.WorkDir(1, 1)
	write(t, filepath.Join(work, "half.bam"), "half")
	// premix is killed: the directory is not closed, and the lock is released.
	killed(t, dir)
	r2 := openRun(t, dir, plan(1), true)
	if _, err := os.Lstat(work); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the work directory is still there: %v", err)
	}
	closeRun(t, r2)
	closeRun(t, r)
}

// killed removes the lock, as if premix had been killed.
func killed(t *testing.T, dir string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, ".premix", "lock")); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	started := func(t *testing.T, dir string) {
		r := openRun(t, dir, plan(2), false)
		finish(t, r, &r.Plan.Tasks[0], 1)
		closeRun(t, r)
	}
	startedAndDone := func(t *testing.T, dir string) {
		r := openRun(t, dir, plan(2), false)
		finish(t, r, &r.Plan.Tasks[0], 1)
		finish(t, r, &r.Plan.Tasks[1], 1)
		closeRun(t, r)
	}
	change := func(f func(*engine.Plan)) *engine.Plan {
		p := plan(2)
		f(p)
		return p
	}
	for _, c := range []struct {
		name   string
		before func(t *testing.T, dir string)
		plan   *engine.Plan
		resume bool
		want   string
	}{
		{"a run that is done, without --resume", startedAndDone, plan(2), false, "already holds this run, and all its tasks are done"},
		{"files that are no run", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "x"), "") }, plan(2), true, "is not empty and holds no run"},
		{"files beside an early kill", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, ".premix", "lock"), "")
			write(t, filepath.Join(dir, "x"), "")
		}, plan(2), true, "is not empty and holds no run"},
		{"another recipe without --resume", started, change(func(p *engine.Plan) { p.Header.Recipe = "other" }), false, "started with recipe tool, this one is other"},
		{"another recipe", started, change(func(p *engine.Plan) { p.Header.Recipe = "other" }), true, "started with recipe tool, this one is other"},
		{"another command", started, change(func(p *engine.Plan) { p.Header.Frozen.Argv = []string{"tool", "-x"} }), true, "started with command `tool r1`, it is now `tool -x`"},
		{"another tool", started, change(func(p *engine.Plan) { p.Header.Frozen.Tool = "/opt/tool" }), true, "started with tool /bin/tool, it is now /opt/tool"},
		{"another environment", started, change(func(p *engine.Plan) { p.Header.Frozen.Env = nil }), true, "started with environment map[K:v]"},
		{"other data", started, change(func(p *engine.Plan) { p.Header.Frozen.Data["ref"] = "/ref2" }), true, "started with data map[ref:/ref]"},
		{"other inputs in the recipe", started, change(func(p *engine.Plan) { p.Header.Frozen.Inputs[0].Decompress = true }), true, "started with other inputs"},
		{"a longer sheet", started, plan(3), true, "started with 2 samples, the sheet now has 3"},
		{"another sample", started, change(func(p *engine.Plan) { p.Tasks[1].Sample = "z" }), true, "started with sample s2 as number 2, it is now z"},
		{"another file", started, change(func(p *engine.Plan) { p.Tasks[1].Inputs["r1"] = "/y" }), true, "started with inputs map[r1:/in/s2] of sample s2"},
		{"another pipe", started, change(func(p *engine.Plan) { p.Tasks[0].Pipe = "sort" }), true, "started with pipe `cat >s1`, it is now `sort`"},
		{"other outputs", started, change(func(p *engine.Plan) { p.Tasks[0].Outputs[0].To = "q" }), true, "started with other outputs"},
		{"a damaged plan", func(t *testing.T, dir string) {
			started(t, dir)
			path := filepath.Join(dir, ".premix", "plan.jsonl")
			if err := os.Truncate(path, 900); err != nil {
				t.Fatal(err)
			}
		}, plan(2), true, "has a damaged plan"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.before(t, dir)
			_, err := OpenRun(dir, c.plan, 0, c.resume)
			var e *engine.DirError
			if !errors.As(err, &e) || !strings.Contains(e.Error(), c.want) || e.Hint() == "" {
				t.Errorf("error %v (%T), want %q", err, err, c.want)
			}
		})
	}
}

// If the system refuses to write, the error names the directory and has a hint. All cases also
// occur for root.
func TestOpenTellsWhatCannotBeWritten(t *testing.T) {
	for _, c := range []struct {
		name string
		dir  func(t *testing.T, dir string) string
		is   error
	}{
		{"a file", func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "x"), "")
			return filepath.Join(dir, "x")
		}, unix.ENOTDIR},
		{"below a file", func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "x"), "")
			return filepath.Join(dir, "x", "y")
		}, unix.ENOTDIR},
		{"a name that is too long", func(t *testing.T, dir string) string {
			return filepath.Join(dir, strings.Repeat("x", 300))
		}, unix.ENAMETOOLONG},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := c.dir(t, t.TempDir())
			_, err := OpenRun(dir, plan(1), 0, false)
			var e *engine.DirError
			if !errors.As(err, &e) || !errors.Is(err, c.is) || !strings.HasPrefix(e.Error(), "run directory "+dir+" cannot be used: ") || e.Hint() == "" {
				t.Errorf("error %v (%T)", err, err)
			}
		})
	}
}

func TestOpenWithoutPermission(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write anywhere; the command's tests do this as another user")
	}
	parent := t.TempDir()
	if err := os.Chmod(parent, 0o555); err != nil {
		t.Fatal(err)
	}
	_, err := OpenRun(filepath.Join(parent, "out"), plan(1), 0, false)
	var e *engine.DirError
	if !errors.As(err, &e) || !errors.Is(err, fs.ErrPermission) || e.Hint() == "" {
		t.Errorf("error %v (%T)", err, err)
	}
}

func TestOpenRefusesNewerFormat(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, ".premix", "plan.jsonl"), `{"table":"plan","format":2}`+"\n")
	_, err := OpenRun(dir, plan(1), 0, true)
	var e *record.FormatError
	if !errors.As(err, &e) {
		t.Errorf("error %v", err)
	}
}

func TestOpenTakesAnEarlyKill(t *testing.T) {
	for _, c := range []struct {
		name   string
		resume bool
		before func(dir string)
	}{
		{"no plan yet", true, func(dir string) { write(t, filepath.Join(dir, ".premix", "lock"), "") }},
		{"half a plan", true, func(dir string) { write(t, filepath.Join(dir, ".premix", "plan.jsonl.tmp"), `{"table"`) }},
		{"a plan, no journal, and no --resume", false, func(dir string) { closeRun(t, openRun(t, dir, plan(9), false)) }},
		{"the same with a page", false, func(dir string) {
			closeRun(t, openRun(t, dir, plan(9), false))
			write(t, filepath.Join(dir, engine.ReportFile), "page")
		}},
		{"an empty directory and --resume", true, func(string) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.before(dir)
			r := openRun(t, dir, plan(2), c.resume)
			defer closeRun(t, r)
			if got := pending(r); !slices.Equal(got, []int{1, 2}) {
				t.Errorf("pending %v", got)
			}
		})
	}
}

func TestLockKeepsOthersOut(t *testing.T) {
	dir := t.TempDir()
	r := openRun(t, dir, plan(1), false)
	for _, resume := range []bool{false, true} {
		_, err := OpenRun(dir, plan(1), 0, resume)
		var e *engine.DirError
		if !errors.As(err, &e) || !strings.Contains(e.Error(), fmt.Sprintf("in use by another premix (process %d on ", os.Getpid())) {
			t.Errorf("error %v", err)
		}
	}
	closeRun(t, r)
	closeRun(t, openRun(t, dir, plan(1), true))
}

// A run resumes from a journal that is cut at any byte. A task without a complete record runs
// again, and a task with one does not. The test tries every byte near the ends of lines and some in
// between; package record tries all.
func TestResumeFromACutJournal(t *testing.T) {
	base := t.TempDir()
	r := openRun(t, base, plan(3), false)
	for i := range r.Plan.Tasks {
		finish(t, r, &r.Plan.Tasks[i], 1)
	}
	closeRun(t, r)
	journal := filepath.Join(base, ".premix", "journal-0001.jsonl")
	text, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndexByte(text[:len(text)-1], '\n')
	for n := range len(text) + 1 {
		if n%50 > 0 && n < len(text)-20 && (n < last-3 || n > last+3) {
			continue
		}
		if err := os.WriteFile(journal, text[:n], 0o666); err != nil {
			t.Fatal(err)
		}
		want := []int{}
		lines := bytes.SplitAfter(text[:n], []byte("\n"))
		for task := 1; task <= 3; task++ {
			if len(lines) <= task || !bytes.HasSuffix(lines[task], []byte("}\n")) {
				want = append(want, task)
			}
		}
		r := openRun(t, base, plan(3), true)
		if got := pending(r); !slices.Equal(got, want) {
			t.Fatalf("cut at %d of %d: pending %v, want %v", n, len(text), got, want)
		}
		closeRun(t, r)
	}
}

func TestJournalsAreReadInOrder(t *testing.T) {
	dir := t.TempDir()
	closeRun(t, openRun(t, dir, plan(1), false))
	for _, n := range []int{2, 9999, 10000, 1} {
		w, err := record.Create(filepath.Join(dir, ".premix", fmt.Sprintf("journal-%04d.jsonl", n)), record.Header{Table: "task"})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(&record.Task{Task: 1, Try: n}); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var tries []int
	for rec, err := range Records(dir) {
		if err != nil {
			t.Fatal(err)
		}
		tries = append(tries, rec.Try)
	}
	if !slices.Equal(tries, []int{1, 2, 9999, 10000}) {
		t.Errorf("order %v", tries)
	}
	for rec := range Records(dir) {
		if rec.Try != 1 {
			t.Errorf("first try %d", rec.Try)
		}
		break
	}
}

func TestStderr(t *testing.T) {
	dir := t.TempDir()
	r := openRun(t, dir, plan(1), false)
	defer closeRun(t, r)
	long := strings.Repeat("filling\n", 10_000)
	for _, c := range []struct {
		name  string
		parts []string
		want  []string
	}{
		{"nothing", nil, nil},
		{"empty", []string{""}, nil},
		{"one line", []string{"a\n"}, []string{"a"}},
		{"more lines than asked for", []string{"a\nb\nc\nd\n"}, []string{"b", "c", "d"}},
		{"no newline", []string{"a\nb"}, []string{"a", "b"}},
		{"tool and pipe", []string{"tool\n", "pipe\n"}, []string{"tool", "pipe"}},
		{"a line that was rewritten", []string{"1%\r50%\r100%\nend\r\n"}, []string{"100%", "end"}},
		{"much", []string{long + "x\ny\nz\n"}, []string{"x", "y", "z"}},
		{"bytes that are no text", []string{"\xff\xfe ok\n"}, []string{"? ok"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			paths := []string{filepath.Join(t.TempDir(), "missing")}
			for i, p := range c.parts {
				paths = append(paths, filepath.Join(t.TempDir(), fmt.Sprint(i)))
				write(t, paths[len(paths)-1], p)
			}
			offset, length, err := r.AppendStderr(paths...)
			if err != nil {
				t.Fatal(err)
			}
			if length != int64(len(strings.Join(c.parts, ""))) {
				t.Errorf("length %d", length)
			}
			got, err := engine.Stderr(dir, &record.Task{StderrOffset: offset, StderrLength: length}, 3)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("lines %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// A task has all its retries in each invocation, and its last try determines its state.
func TestStatesOfARun(t *testing.T) {
	dir := t.TempDir()
	r := openRun(t, dir, plan(1), false)
	closeRun(t, r)
	for i, c := range []struct {
		cause   string
		resumes bool // before the try
		want    State
	}{
		{record.CauseExit, false, Waiting},
		{record.CauseMemory, false, Failed},
		{record.CauseExit, true, Waiting},
		{record.CauseInterrupted, false, Waiting},
		{record.CauseDiffers, false, Waiting},
		{record.CauseInput, false, Failed},
		{"", true, Succeeded},
		{record.CauseExit, false, Waiting},
		{record.CauseLost, true, Failed},
	} {
		if i == 0 || c.resumes {
			r, err := OpenRun(dir, plan(1), 1, true)
			if err != nil {
				t.Fatal(err)
			}
			if s := r.State(1); s != Waiting {
				t.Errorf("state %v before try %d", s, i+1)
			}
			closeRun(t, r)
		}
		r, err := OpenShare(dir, plan(1), 1, "w", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Settle([]*record.Task{{Task: 1, Sample: "s1", Try: i + 1, Cause: c.cause}}); err != nil {
			t.Fatal(err)
		}
		if s := r.State(1); s != c.want || r.tries(1) != i+1 {
			t.Errorf("state %v after try %d of %d, want %v", s, i+1, r.tries(1), c.want)
		}
		closeRun(t, r)
		q, err := Open(dir, "v1", false)
		if err != nil {
			t.Fatal(err)
		}
		if s := q.State(1); s != c.want {
			t.Errorf("another reads state %v after try %d, want %v", s, i+1, c.want)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A task with missing outputs waits again, for each reader, until a later try succeeds. The order
// in which orders and records are read does not matter.
func TestOutputsThatHaveGone(t *testing.T) {
	dir := t.TempDir()
	state := func(want State) {
		t.Helper()
		q, err := Open(dir, "v1", false)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		if s := q.State(1); s != want {
			t.Errorf("state %v, want %v", s, want)
		}
	}
	r := openRun(t, dir, plan(1), false)
	finish(t, r, r.Pending()[0], 1)
	if tasks, err := r.Withdraw("x"); len(tasks) > 0 || err != nil {
		t.Fatal(tasks, err)
	}
	state(Succeeded)
	r.Take(&record.Task{Task: 1, Snapshot: "x"})
	if tasks, err := r.Withdraw("x"); len(tasks) != 1 || err != nil || r.State(1) != Waiting || r.present(tasks[0]) {
		t.Fatal(tasks, err, r.State(1))
	}
	state(Waiting)
	finish(t, r, r.Pending()[0], 2)
	state(Succeeded)
	closeRun(t, r)
	if err := os.Remove(filepath.Join(dir, "s1.sam")); err != nil {
		t.Fatal(err)
	}
	closeRun(t, openRun(t, dir, plan(1), false))
	state(Waiting)
}
