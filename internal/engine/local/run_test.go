package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/hotstart"
	"premix/internal/kit/exit"
	"premix/internal/record"
)

// sandbox is a directory with a sample sheet and a recipe whose tool is a shell script.
type sandbox struct {
	dir string
	o   Options
}

// newSandbox makes a recipe with the script as its tool and the given additional lines. Its samples
// are a, b, c..., and each input contains the name of its sample.
func newSandbox(t *testing.T, script, more string, samples int) *sandbox {
	t.Helper()
	b := &sandbox{dir: t.TempDir()}
	b.write(t, "tool.sh", script)
	b.write(t, "r.yaml", "name: tool\ncommand: sh ${data.tool} ${r1}\ndata: {tool: tool.sh}\ninputs: [r1]\n"+more)
	sheet := "sample,r1\n"
	for i := range samples {
		name := string(rune('a' + i))
		b.write(t, name+".in", name+"\n")
		sheet += name + "," + name + ".in\n"
	}
	b.write(t, "s.csv", sheet)
	b.o = Options{
		Recipe: b.path("r.yaml"), Sheet: b.path("s.csv"), Out: b.path("out"), Store: b.path("store"),
		Start: hotstart.Cold, Retries: -1, Jobs: 2, Grace: 200 * time.Millisecond,
	}
	return b
}

func (b *sandbox) path(name string) string { return filepath.Join(b.dir, name) }

func (b *sandbox) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(b.path(name), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func (b *sandbox) records(t *testing.T) []record.Task {
	t.Helper()
	var list []record.Task
	for rec, err := range queue.Records(b.o.Out) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, *rec)
	}
	return list
}

func (b *sandbox) has(name string) bool {
	_, err := os.Stat(b.path(name))
	return err == nil
}

// await waits until files that tool and pipe make exist. It may be called in any goroutine.
func (b *sandbox) await(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		for deadline := time.Now().Add(2 * time.Minute); !b.has(name); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("%s did not come", name)
				return
			}
		}
	}
}

const toStdout = "outputs: {stdout: '${sample}.txt'}\n"

func TestRunRecordsWhatItDid(t *testing.T) {
	b := newSandbox(t, "cat \"$1\"; echo said >&2\n", toStdout+"threads: 1\n", 5)
	sum, err := Run(context.Background(), b.o)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Tasks != 5 || sum.Succeeded != 5 || sum.Failed+sum.NotRun+sum.Before != 0 {
		t.Errorf("summary %+v", sum)
	}
	if len(sum.Starts) != 1 || sum.Starts[0].Kind != "cold" || sum.Starts[0].Tasks != 5 || sum.Starts[0].Seconds <= 0 {
		t.Errorf("starts %+v", sum.Starts)
	}
	list := b.records(t)
	if len(list) != 5 {
		t.Fatalf("%d records", len(list))
	}
	for _, r := range list {
		switch {
		case !r.OK() || r.Exit != 0 || r.Signal != 0 || r.Try != 1 || r.Start != "cold" || r.Reason == "":
			t.Errorf("outcome of %+v", r)
		case r.Slot < 0 || r.Slot > 1:
			t.Errorf("slot %d", r.Slot)
		case r.Queued.After(r.Started) || !r.Started.Before(r.Finished) || r.Seconds <= 0 || r.Latency <= 0 || r.Latency > r.Seconds:
			t.Errorf("times of %+v", r)
		case r.MaxRSS < 100<<10:
			t.Errorf("max RSS %d", r.MaxRSS)
		case !slices.Equal(r.Outputs, []string{r.Sample + ".txt"}):
			t.Errorf("outputs %q", r.Outputs)
		}
		if lines, err := engine.Stderr(b.o.Out, &r, 9); err != nil || !slices.Equal(lines, []string{"said"}) {
			t.Errorf("standard error %q, %v", lines, err)
		}
		if text, err := os.ReadFile(filepath.Join(b.o.Out, r.Sample+".txt")); err != nil || string(text) != r.Sample+"\n" {
			t.Errorf("output %q, %v", text, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(b.o.Out, ".premix", "tasks")); !os.IsNotExist(err) {
		t.Errorf("work directories are left: %v, %v", entries, err)
	}
}

// noted is a pipe that makes a file when it starts. As the tool starts before it, the engine then
// knows the tool.
const noted = "pipe: '>${data.tool}.${sample}.piped; cat'\n"

func TestTimeoutEndsWhatIgnoresSIGTERM(t *testing.T) {
	const (
		tool = "trap '' TERM\n>\"$0.tool\"\n"
		pipe = "trap '' TERM; >${data.tool}.pipe; "
	)
	for _, c := range []struct {
		name, script, more string
		marks              []string // files that exist when no process can be ended by SIGTERM any more
	}{
		{"tool", tool + "sleep 600\n", "", []string{"tool.sh.tool"}},
		{"tool's child", tool + "(sleep 600)\n", "", []string{"tool.sh.tool"}},
		{"pipe", "cat \"$1\"\n", "pipe: trap '' TERM; cat; >${data.tool}.pipe; sleep 600\n", []string{"tool.sh.pipe"}},
		{"tool and pipe", tool + "sleep 600\n", "pipe: " + pipe + "cat; sleep 600\n", []string{"tool.sh.tool", "tool.sh.pipe"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			// On a slow machine the tool may not have set the trap within the timeout.
			for timeout := 300 * time.Millisecond; ; timeout *= 2 {
				b := newSandbox(t, c.script, toStdout+c.more, 1)
				b.o.Timeout = timeout
				started := time.Now()
				sum, err := Run(context.Background(), b.o)
				took := time.Since(started)
				if timeout < time.Minute && slices.ContainsFunc(c.marks, func(name string) bool { return !b.has(name) }) {
					continue
				}
				var failed *FailedError
				if !errors.As(err, &failed) || failed.Failed != 1 {
					t.Fatalf("error %v", err)
				}
				if took < timeout+b.o.Grace || took > 5*time.Minute {
					t.Errorf("took %v", took)
				}
				f := sum.Failures[0]
				if f.Error != fmt.Sprintf("ended at its timeout of %v", timeout) || !strings.Contains(f.Hint, "timeout") {
					t.Errorf("failure %+v", f)
				}
				if r := b.records(t)[0]; r.Cause != record.CauseTimeout || r.Signal != int(unix.SIGKILL) {
					t.Errorf("record %+v", r)
				}
				return
			}
		})
	}
}

func TestInterruptIsGraceful(t *testing.T) {
	b := newSandbox(t, "trap 'echo bye >&2; exit 3' TERM\n>\"$0.$(cat \"$1\")\"\nwhile :; do sleep 0.05; done\n", toStdout+noted, 3)
	b.o.Jobs, b.o.Grace = 1, 5*time.Minute
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		b.await(t, "tool.sh.a", "tool.sh.a.piped")
		cancel(&Interrupted{Signal: unix.SIGINT})
	}()
	sum, err := Run(ctx, b.o)
	var interrupted *Interrupted
	if !errors.As(err, &interrupted) || interrupted.Signal != unix.SIGINT || !strings.Contains(interrupted.Hint(), "same command") {
		t.Fatalf("error %v", err)
	}
	if sum.NotRun != 3 || sum.Failed != 0 {
		t.Errorf("summary %+v", sum)
	}
	list := b.records(t)
	if len(list) != 1 || list[0].Cause != record.CauseInterrupted {
		t.Fatalf("records %+v", list)
	}
	if lines, err := engine.Stderr(b.o.Out, &list[0], 9); err != nil || !slices.Contains(lines, "bye") {
		t.Errorf("standard error %q, %v", lines, err)
	}
	b.write(t, "tool.sh", "cat \"$1\"\n")
	b.o.Resume = true
	if sum, err := Run(context.Background(), b.o); err != nil || sum.Succeeded != 3 {
		t.Errorf("resumed: %+v, %v", sum, err)
	}
}

func TestSecondInterruptKillsAtOnce(t *testing.T) {
	b := newSandbox(t, "trap '' TERM\n>\"$0.$(cat \"$1\")\"\nsleep 600\n", toStdout+noted, 2)
	b.o.Grace = time.Hour
	kill := make(chan struct{})
	b.o.Kill = kill
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		b.await(t, "tool.sh.a", "tool.sh.a.piped", "tool.sh.b", "tool.sh.b.piped")
		cancel(&Interrupted{Signal: unix.SIGTERM})
		time.Sleep(50 * time.Millisecond)
		close(kill)
	}()
	_, err := Run(ctx, b.o)
	var interrupted *Interrupted
	if !errors.As(err, &interrupted) || interrupted.Signal != unix.SIGTERM {
		t.Fatalf("error %v", err)
	}
	if list := b.records(t); len(list) != 2 || list[0].Signal != int(unix.SIGKILL) || list[1].Signal != int(unix.SIGKILL) {
		t.Errorf("records %+v", list)
	}
}

func TestInputThatVanishes(t *testing.T) {
	// The tool of the first task removes the input of the second one.
	b := newSandbox(t, "cat \"$1\"; rm -f \"$(dirname \"$0\")/b.in\"\n", toStdout, 3)
	b.o.Jobs, b.o.Retries = 1, 2
	sum, err := Run(context.Background(), b.o)
	var failed *FailedError
	if !errors.As(err, &failed) || failed.Failed != 1 || sum.Succeeded != 2 {
		t.Fatalf("summary %+v, error %v", sum, err)
	}
	if want := "input r1 is no longer there: " + b.path("b.in"); sum.Failures[0].Error != want {
		t.Errorf("error %q, want %q", sum.Failures[0].Error, want)
	}
	for _, r := range b.records(t) {
		if r.Sample == "b" && (r.Cause != record.CauseInput || r.Try != 1) {
			t.Errorf("record %+v", r)
		}
	}
	b.write(t, "b.in", "b\n")
	b.o.Resume = true
	if sum, err := Run(context.Background(), b.o); err != nil || sum.Succeeded != 1 || sum.Before != 2 {
		t.Errorf("resumed: %+v, %v", sum, err)
	}
}

func TestMemoryLimit(t *testing.T) {
	ours := writable(t)
	if !slices.ContainsFunc(ours, func(h hierarchy) bool { return slices.Contains(h.controllers, "memory") }) {
		t.Skip("no memory controller")
	}
	for _, c := range []struct{ name, script, more string }{
		{"tool", "head -c 100M /dev/zero | tail -c 90M\n", ""},
		{"pipe", "head -c 100M /dev/zero\n", "pipe: tail -c 90M | wc -c\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newSandbox(t, c.script, toStdout+c.more+"memory: 32M\n", 1)
			sum, err := Run(context.Background(), b.o)
			r := b.records(t)[0]
			var failed *FailedError
			if !errors.As(err, &failed) || r.Cause != record.CauseMemory {
				t.Fatalf("error %v, record %+v", err, r)
			}
			if f := sum.Failures[0]; f.Error != "killed at its memory limit of 32 MiB" || !strings.Contains(f.Hint, "`memory`") {
				t.Errorf("failure %+v", f)
			}
		})
	}
}

// A retry after a try that ran out of memory has twice as much memory, also in a later invocation,
// but never more than there is.
func TestMemoryGrows(t *testing.T) {
	ours := writable(t)
	if !slices.ContainsFunc(ours, func(h hierarchy) bool { return slices.Contains(h.controllers, "memory") }) {
		t.Skip("no memory controller")
	}
	b := newSandbox(t, "head -c 100M /dev/zero | tail -c 90M\n", toStdout+"memory: 32M\nretries: 1\n", 2)
	b.o.Memory = 150 << 20
	sum, err := Run(context.Background(), b.o)
	var failed *FailedError
	if !errors.As(err, &failed) || sum.Failed != 2 || sum.Failures[0].Error != "killed at its memory limit of 64 MiB" {
		t.Fatalf("%+v, %v", sum, err)
	}
	b.o.Resume, b.o.Retries = true, 2
	if sum, err = Run(context.Background(), b.o); err != nil || sum.Succeeded != 2 {
		t.Fatalf("resumed: %+v, %v", sum, err)
	}
	memory := make(map[int][]int64)
	recs := b.records(t)
	for _, r := range recs {
		memory[r.Task] = append(memory[r.Task], r.Memory>>20)
	}
	if got := fmt.Sprint(memory); got != "map[1:[32 64 128] 2:[32 64 128]]" {
		t.Errorf("%s MiB", got)
	}
	// Two tasks with 128 MiB do not fit into 150 MiB at the same time.
	if a, b := recs[4], recs[5]; a.Finished.After(b.Started) {
		t.Errorf("one began at %v before another had ended at %v", b.Started, a.Finished)
	}
}

func TestCountSlots(t *testing.T) {
	for _, c := range []struct {
		jobs, cores, threads int
		budget, need         int64
		want                 int // 0 means an error
	}{
		{jobs: 3, threads: 1, want: 3},
		{jobs: 3, threads: 8, want: 3},
		{jobs: 10, threads: 1, budget: 8 << 30, need: 3 << 30, want: 2},
		{jobs: 1, threads: 1, budget: 8 << 30, need: 1 << 20, want: 1},
		{jobs: 2, threads: 1, budget: 8 << 30, need: 8 << 30, want: 1},
		{jobs: 2, threads: 1, budget: 1 << 30, need: 2 << 30, want: 0},
		{threads: 100_000, want: 1},
		{cores: 8, threads: 3, want: 2},
		{jobs: 2, cores: 8, threads: 1, want: 2},
		{jobs: 9, cores: 8, threads: 3, want: 2},
	} {
		p := &engine.Plan{Header: engine.Header{Threads: c.threads, Memory: c.need, Recipe: "tool"}}
		got, _, err := countSlots(Options{Jobs: c.jobs, Cores: c.cores, Memory: c.budget}, p, nil)
		if got != c.want || (c.want == 0) != (exit.Of(err) == exit.Usage) {
			t.Errorf("%+v: %d slots, error %v", c, got, err)
		}
	}
}

func TestVerdict(t *testing.T) {
	exit := func(code int, sig unix.Signal) hotstart.Exit { return hotstart.Exit{Code: code, Signal: sig} }
	for _, c := range []struct {
		name  string
		p     pair
		oom   int
		cause string
		text  string
	}{
		{"success", pair{}, 0, "", ""},
		{"success although a child was killed for memory", pair{}, 1, record.CauseMemory, "killed at its memory limit of 1 GiB"},
		{"success of both", pair{pipe: &pipe{}}, 0, "", ""},
		{"success just before the interrupt", pair{finished: record.CauseInterrupted}, 0, "", ""},
		{"status", pair{exit: exit(3, 0)}, 0, record.CauseExit, "the tool ended with status 3"},
		{"signal", pair{exit: exit(-1, unix.SIGSEGV)}, 0, record.CauseSignal, "the tool was killed by SIGSEGV"},
		{"memory", pair{exit: exit(-1, unix.SIGKILL)}, 1, record.CauseMemory, "killed at its memory limit of 1 GiB"},
		{"timeout before memory", pair{exit: exit(-1, unix.SIGKILL), finished: record.CauseTimeout}, 1, record.CauseTimeout, "ended at its timeout of 1m0s"},
		{"interrupt", pair{exit: exit(-1, unix.SIGTERM), finished: record.CauseInterrupted}, 0, record.CauseInterrupted, "interrupted"},
		{"pipe's status", pair{pipe: &pipe{code: 2}}, 0, record.CauseExit, "the pipe ended with status 2"},
		{"pipe's signal", pair{pipe: &pipe{code: -1, sig: unix.SIGABRT}}, 0, record.CauseSignal, "the pipe was killed by SIGABRT"},
		{"tool dies of a pipe that failed", pair{exit: exit(-1, unix.SIGPIPE), pipe: &pipe{code: 2}}, 0, record.CauseExit, "the pipe ended with status 2"},
		{"tool ended because its pipe had failed", pair{exit: exit(-1, unix.SIGTERM), pipe: &pipe{code: 2}, sunk: true}, 0, record.CauseExit, "the pipe ended with status 2"},
		{"tool that caught SIGTERM in its shell", pair{exit: exit(128+15, 0), pipe: &pipe{code: 2}, sunk: true}, 0, record.CauseExit, "the pipe ended with status 2"},
		{"tool that ignored SIGTERM", pair{exit: exit(-1, unix.SIGKILL), pipe: &pipe{code: 2}, sunk: true, killed: true}, 0, record.CauseExit, "the pipe ended with status 2"},
		{"tool killed by somebody, and its pipe heard of first", pair{exit: exit(-1, unix.SIGKILL), pipe: &pipe{code: 2}, sunk: true}, 0, record.CauseSignal, "the tool was killed by SIGKILL"},
		{"tool failed, and its pipe heard of first", pair{exit: exit(1, 0), pipe: &pipe{code: 2}, sunk: true}, 0, record.CauseExit, "the tool ended with status 1"},
		{"tool crashed, and its pipe heard of first", pair{exit: exit(-1, unix.SIGSEGV), pipe: &pipe{code: 2}, sunk: true}, 0, record.CauseSignal, "the tool was killed by SIGSEGV"},
		{"SIGTERM that premix did not send", pair{exit: exit(-1, unix.SIGTERM), pipe: &pipe{code: 2}}, 0, record.CauseSignal, "the tool was killed by SIGTERM"},
		{"lost, and its pipe failed", pair{exit: exit(-1, 0), exitErr: errors.New("the task was lost"), pipe: &pipe{code: 2}}, 0, record.CauseStart, "the task was lost"},
		{"pipe that ended early, under a shell", pair{exit: exit(128+13, 0), pipe: &pipe{}}, 0, record.CauseSignal, "the pipe ended before it had read all that the tool wrote"},
		{"pipe that ended early", pair{exit: exit(-1, unix.SIGPIPE), pipe: &pipe{}}, 0, record.CauseSignal, "the pipe ended before it had read all that the tool wrote"},
		{"both fail for themselves", pair{exit: exit(1, 0), pipe: &pipe{code: 2}}, 0, record.CauseExit, "the tool ended with status 1"},
		{"lost", pair{exit: exit(-1, 0), exitErr: errors.New("the task was lost")}, 0, record.CauseStart, "the task was lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.p.verdict(c.oom, 1<<30, time.Minute)
			var f *failure
			if !errors.As(err, &f) {
				if c.cause != "" || err != nil {
					t.Errorf("error %v", err)
				}
				return
			}
			if f.cause != c.cause || f.text != c.text {
				t.Errorf("%s: %q", f.cause, f.text)
			}
		})
	}
}

// A failing tool ends its pipe too. Whichever end is noticed first, the error and the record of
// each task contain the status of the tool.
func TestToolThatFailsIsBlamedNotItsPipe(t *testing.T) {
	for _, c := range []struct{ name, script string }{
		{"tool ends first", "cat \"$1\" >&2; exit 7\n"},
		{"pipe ends first", "cat \"$1\" >&2; trap '' TERM; exec >&-; sleep 0.1; exit 7\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newSandbox(t, c.script, toStdout+"pipe: grep .\n", 8)
			b.o.Grace = 5 * time.Minute
			sum, err := Run(context.Background(), b.o)
			var failed *FailedError
			if !errors.As(err, &failed) || failed.Failed != 8 {
				t.Fatalf("error %v", err)
			}
			for _, f := range sum.Failures {
				if f.Error != "the tool ended with status 7" {
					t.Errorf("sample %s: %s", f.Sample, f.Error)
				}
			}
			for _, r := range b.records(t) {
				if r.Exit != 7 || r.Signal != 0 || r.Cause != record.CauseExit {
					t.Errorf("record %+v", r)
				}
			}
		})
	}
}

func TestProgressLine(t *testing.T) {
	dir := t.TempDir()
	plan := &engine.Plan{Header: engine.Header{Recipe: "r", Threads: 1, Tasks: 120, Header: record.Header{Format: record.Format}}}
	for i := range 120 {
		plan.Tasks = append(plan.Tasks, engine.Task{Task: i + 1})
	}
	run, err := queue.OpenRun(dir, plan, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	settle := func(first, last int, kind, cause string, l launcher) {
		for n := first; n <= last; n++ {
			rec := &record.Task{Task: n, Try: 1, Start: kind, Cause: cause}
			if err := run.Settle([]*record.Task{rec}); err != nil {
				t.Fatal(err)
			}
			if l != nil {
				l.settled(rec)
			}
		}
	}
	settle(1, 20, "cold", "", nil)
	started := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := newScheduler(TaskOptions{Queue: run.Queue}, newProgress(nil, false), nil)
	h := &hot{scheduler: s, lanes: map[string]*lane{"": {}}, run: run, starts: make(Starts), chosen: make(map[int]bool), queued: make(map[int]time.Time)}
	s.l, s.started, s.slots = h, started, 2
	s.active = map[uint64]*activeTask{1: nil, 2: nil}
	if got, want := s.line(started), "20/120 done, 2 running"; got != want {
		t.Errorf("line %q, want %q", got, want)
	}
	settle(21, 60, "hot", "", h)
	settle(61, 69, "cold", "", h)
	settle(70, 70, "cold", record.CauseExit, h)
	s.over = 50
	if got, want := s.line(started.Add(10*time.Second)), "69/120 done, 2 running, 1 failed · cold 9, hot 40 · 5.0/s · 0:10 left"; got != want {
		t.Errorf("line %q, want %q", got, want)
	}
}

func TestNotesAreNotRepeated(t *testing.T) {
	var b strings.Builder
	p := newProgress(&b, false)
	for i := range 100 {
		p.note("task %d", i)
	}
	p.note("other")
	if got, want := b.String(), "note: task 0\nnote: task 1\nnote: task 2 (more notes like this are not printed)\nnote: other\n"; got != want {
		t.Errorf("notes %q, want %q", got, want)
	}
}

func TestProgressOnATerminal(t *testing.T) {
	var b strings.Builder
	p := newProgress(&b, true)
	s := drawn("0/2 done")
	p.draw(s)
	p.notice("hello")
	p.draw(s)
	p.clear()
	p.clear()
	const erase, line = "\r\x1b[2K", "0/2 done"
	if got, want := b.String(), erase+line+erase+"hello\n"+erase+line+erase; got != want {
		t.Errorf("wrote %q, want %q", got, want)
	}
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		durationText(59 * time.Second): "0:59", durationText(3661 * time.Second): "1:01:01",
		rateText(2.25): "2.2/s", rateText(0.5): "30.0/min", rateText(0.001): "3.6/h",
		secondsText(0.0123): "12 ms", secondsText(9.94): "9.9 s", secondsText(100): "1:40",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A task that stops its supervisor once continues, and a task that stops it repeatedly fails with
// its supervisor. All others succeed on the first try.
func TestTasksThatStopTheirSupervisor(t *testing.T) {
	b := newSandbox(t, "case $(cat \"$1\") in a) kill -STOP $PPID; sleep 0.5;; b) while :; do kill -STOP $PPID; sleep 0.01; done;; esac; cat \"$1\"\n", toStdout, 6)
	sum, err := Run(context.Background(), b.o)
	var failed *FailedError
	if !errors.As(err, &failed) || sum.Succeeded != 5 || sum.Failed != 1 {
		t.Errorf("%+v, %v", sum, err)
	}
	list := b.records(t)
	if len(list) != 6 {
		t.Fatalf("%d records", len(list))
	}
	for _, r := range list {
		if lost := strings.Contains(r.Error, "its supervisor ended"); lost != (r.Sample == "b") || !lost && !r.OK() || r.Try != 1 {
			t.Errorf("%+v", r)
		}
	}
}
