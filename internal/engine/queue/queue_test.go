package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/kit/problem"
	"premix/internal/record"
)

func open(t *testing.T, dir string) *Queue {
	t.Helper()
	q, err := Open(dir, "v1", true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q
}

// submit submits text as one batch.
func submit(t *testing.T, q *Queue, o BatchOptions, in Input, text string) *Submitted {
	t.Helper()
	s, err := trySubmit(q, o, in, text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func trySubmit(q *Queue, o BatchOptions, in Input, text string) (*Submitted, error) {
	b, err := q.Submit(o)
	if err != nil {
		return nil, err
	}
	in.Name = "input"
	if err := in.Read(strings.NewReader(text), b); err != nil {
		b.Abort()
		return nil, err
	}
	return b.Commit()
}

// end settles a try of a task.
func end(t *testing.T, q *Queue, task, try int, cause string) {
	t.Helper()
	now := time.Now().UTC()
	r := &record.Task{Task: task, Try: try, Started: now, Finished: now, Cause: cause}
	if cause != "" {
		r.Error = "it failed"
	}
	if err := q.Settle([]*record.Task{r}); err != nil {
		t.Fatal(err)
	}
}

// A process in another PID namespace, as in a container with the name of the host, shares the
// index. If it rebuilt the index, concurrent readers would see tasks that do not exist, or finished
// tasks as waiting.
func TestIndexIsSharedAcrossNamespaces(t *testing.T) {
	const where = "PREMIX_TEST_DIR"
	if dir := os.Getenv(where); dir != "" {
		q := open(t, dir)
		if got := states(t, q); got != "sw" {
			t.Errorf("states %s", got)
		}
		end(t, q, 2, 1, "")
		return
	}
	q := open(t, t.TempDir())
	submit(t, q, BatchOptions{}, Input{}, "a\nb\n")
	end(t, q, 1, 1, "")
	other := q.path(indexFile + "other")
	if err := os.WriteFile(other, bytes.Repeat([]byte{0}, headSize), 0o666); err != nil {
		t.Fatal(err)
	}
	changes := q.x.head().changes
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), where+"="+q.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) {
		t.Skip("this user may make no PID namespace")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := q.x.head().changes - changes; n != 1 {
		t.Errorf("%d changes of the index for one record", n)
	}
	if got := states(t, q); got != "ss" {
		t.Errorf("states %s", got)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err) // it may belong to another machine
	}
}

// The index of an earlier boot is not used, and is removed when a new one is made.
func TestIndexOfEarlierBoot(t *testing.T) {
	q := open(t, t.TempDir())
	submit(t, q, BatchOptions{}, Input{}, "a\nb\n")
	end(t, q, 1, 1, "")
	q.x.head().place++
	q.x.all()[1].flags |= flagDone // it was incomplete when the machine stopped
	earlier := q.path(indexFile + "0123456789abcdef")
	if err := os.Rename(q.indexPath(), earlier); err != nil {
		t.Fatal(err)
	}
	if got := states(t, open(t, q.Dir)); got != "sw" {
		t.Errorf("states %s", got)
	}
	if _, err := os.Stat(earlier); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the index of an earlier boot: %v", err)
	}
}

// The index is shared. A queue ignores entries that another process has added until it has read
// their batch, because it does not know the groups and defaults before.
func TestEntriesOfBatchNotRead(t *testing.T) {
	dir := t.TempDir()
	writer := open(t, dir)
	submit(t, writer, BatchOptions{Options: Options{Group: "a"}}, Input{}, "one\n")
	reader, err := Open(dir, "v1", true)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	submit(t, writer, BatchOptions{Options: Options{Group: "b", Cores: 2}}, Input{}, "two\nthree\n")
	if n := len(reader.x.all()); n != 3 {
		t.Fatalf("the shared index has %d entries: the test does not test", n)
	}
	p := reader.Picker(nil)
	next := func() int {
		task, err := p.Next(func(*Task) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		if task == nil {
			return 0
		}
		return task.Number
	}
	if got := []int{next(), next()}; !slices.Equal(got, []int{1, 0}) {
		t.Errorf("picked %v before the batch was read, want task 1", got)
	}
	if got := reader.Left([][2]int{{1, 3}}); got != 1 {
		t.Errorf("%d tasks left, want 1", got)
	}
	if err := reader.Refresh(); err != nil {
		t.Fatal(err)
	}
	p.Refresh()
	if got := []int{next(), next(), next()}; !slices.Equal(got, []int{2, 3, 0}) {
		t.Errorf("picked %v after the batch was read, want tasks 2 and 3", got)
	}
}

func states(t *testing.T, q *Queue) string {
	t.Helper()
	list, err := q.Tasks(&Selection{})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, s := range list {
		b.WriteByte(s.State[0])
	}
	return b.String()
}

// again opens the directory with its old index and with a rebuilt one, and checks that the states
// are the same.
func again(t *testing.T, dir, want string) {
	t.Helper()
	q := open(t, dir)
	if got := states(t, q); got != want {
		t.Errorf("with the index: states %s, want %s", got, want)
	}
	q.Close()
	if err := os.Remove(q.indexPath()); err != nil {
		t.Fatal(err)
	}
	q = open(t, dir)
	defer q.Close()
	if got := states(t, q); got != want {
		t.Errorf("with a new index: states %s, want %s", got, want)
	}
}

func TestLife(t *testing.T) {
	dir := t.TempDir()
	q := open(t, dir)
	s := submit(t, q, BatchOptions{Options: Options{Retries: 1}}, Input{}, "a\nb\nc\nd\ne\n")
	if s.First != 1 || s.Tasks != 5 {
		t.Fatalf("%+v", s)
	}
	if err := q.Work(LocalWorker); err != nil {
		t.Fatal(err)
	}
	end(t, q, 1, 1, "")
	end(t, q, 2, 1, record.CauseExit)
	end(t, q, 3, 1, record.CauseExit)
	end(t, q, 3, 2, record.CauseSignal)
	end(t, q, 4, 1, record.CauseInterrupted)
	end(t, q, 4, 2, record.CauseInterrupted)
	other := open(t, dir) // as another process
	if n, err := other.Cancel(&Selection{Tasks: [][2]int{{4, 5}}}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if !q.Changed() {
		t.Error("the order is not seen")
	}
	if err := q.Refresh(); err != nil {
		t.Fatal(err)
	}
	if got := states(t, q); got != "swfcc" {
		t.Errorf("states %s", got)
	}
	end(t, q, 5, 1, "") // it was running when it was cancelled
	again(t, dir, "swfcs")
	if n, err := other.Retry(&Selection{States: []State{Failed}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	again(t, dir, "swwcs")
	if err := q.Refresh(); err != nil {
		t.Fatal(err)
	}
	end(t, q, 3, 3, record.CauseExit) // it has all its tries again
	again(t, dir, "swwcs")
	if err := q.Refresh(); err != nil {
		t.Fatal(err)
	}
	end(t, q, 3, 4, record.CauseExit)
	if n, err := q.Retry(&Selection{Tasks: [][2]int{{4, 4}}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	again(t, dir, "swfws")
	more := open(t, dir)
	submit(t, more, BatchOptions{}, Input{}, "f\n")
	again(t, dir, "swfwsw")
}

// The spec of a task is read as it was submitted, with any bytes.
func TestSpecs(t *testing.T) {
	q := open(t, t.TempDir())
	var all []byte
	for c := 1; c < 256; c++ {
		if c != '\n' {
			all = append(all, byte(c))
		}
	}
	index := 3
	specs := []*Spec{
		{Command: "true 1"},
		{Command: string(all)},
		{Command: `quotes " and \ backslash`},
		{Command: "newline\nin it"},
		{Argv: []string{"a", "", "b c", "ü\n"}},
		{Argv: []string{"printf", string(all)}},
		{Command: "x", Name: "n", Env: map[string]string{"A": "1"}, Stdout: "o", Stderr: "e", Intermediates: []string{"i"}, Index: &index,
			Options: Options{Group: "g", Dir: "/d", Cores: 3, Memory: 1 << 30, Priority: -5, Timeout: 90 * time.Second, Retries: 0, Pure: true, Growth: 1.5}},
	}
	b, err := q.Submit(BatchOptions{Options: Options{Dir: "/dir", Retries: 7}})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		c := *s
		if err := b.Add(&c, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	for i, s := range specs {
		want := *s
		want.under(&Options{Group: DefaultGroup, Dir: "/dir", Retries: 7, Growth: 2})
		got, err := q.Spec(i + 1)
		if err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("task %d came back as %+v, want %+v; %v", i+1, got, want, err)
		}
	}
}

func TestSubmissionsThatAreRefused(t *testing.T) {
	q := open(t, t.TempDir())
	long := strings.Repeat("x", maxString+1)
	for _, c := range []struct {
		name, text string
		in         Input
		o          BatchOptions
		line       int
		reason     string
	}{
		{"nothing", "\n# only a comment\n", Input{}, BatchOptions{}, 0, "there are no tasks"},
		{"zero byte", "a\nb\x00\n", Input{}, BatchOptions{}, 2, "byte of value 0"},
		{"too long", "a\n\n" + long + "\n", Input{}, BatchOptions{}, 3, "longer than"},
		{"bad JSON", "{\"command\":\"a\"}\n{", Input{Format: JSONL}, BatchOptions{}, 2, "not a task"},
		{"unknown field", `{"command":"a","cpu":1}`, Input{Format: JSONL}, BatchOptions{}, 1, "cpu"},
		{"no command", `{"name":"a"}`, Input{Format: JSONL}, BatchOptions{}, 1, "command"},
		{"memory", `{"command":"a","memory":"lots"}`, Input{Format: JSONL}, BatchOptions{}, 1, "memory"},
		{"relative cwd", `{"command":"a","cwd":"x"}`, Input{Format: JSONL}, BatchOptions{}, 1, "not absolute"},
		{"no such group", "a\n", Input{}, BatchOptions{After: []string{"none"}}, 0, "no group none"},
		{"after itself", `{"command":"a","group":"x","after":["x"]}`, Input{Format: JSONL}, BatchOptions{}, 1, "after itself"},
		{"table without template", "a\n1\n", Input{Format: CSV}, BatchOptions{}, 0, "no commands"},
		{"no such column", "a\n1\n", Input{Format: CSV, Template: "x {b}"}, BatchOptions{}, 0, "no column b"},
		{"short row", "a,b\n1,2\n3\n", Input{Format: CSV, Template: "x {b}"}, BatchOptions{}, 3, "1 fields"},
	} {
		_, err := trySubmit(q, c.o, c.in, c.text)
		var bad *InputError
		var list problem.List
		switch {
		case errors.As(err, &bad):
			list = problem.List{{Message: bad.Reason, Hint: bad.Hint()}}
		case !errors.As(err, &list) || list[0].File != "input":
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if len(list) != 1 || list[0].Line != c.line || !strings.Contains(list[0].Message, c.reason) || list[0].Hint == "" {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if s := submit(t, q, BatchOptions{}, Input{}, "good\n"); s.First != 1 {
		t.Errorf("after refusals the first task is %d", s.First)
	}
	if spec, err := q.Spec(1); err != nil || spec.Command != "good" {
		t.Errorf("%+v, %v", spec, err)
	}
}

// All mistakes in an input are reported with their lines, up to a limit, without consequential
// errors. The messages are the same before the directory exists.
func TestAllMistakes(t *testing.T) {
	q := open(t, t.TempDir())
	const fields = "\n  hint: see premix help task for the fields; nothing was submitted"
	const again = "\n  hint: fix it and submit all again: nothing was submitted"
	const table = "\n  hint: fix the table and submit it again: nothing was submitted"
	for _, c := range []struct {
		name, text string
		in         Input
		want       []string
	}{
		{"nothing", "\n\n", Input{Format: JSONL}, []string{`input: there are no tasks` + "\n  hint: " + `give one task a line, as in {"command": "gzip a"}`}},
		{"header only", "a\n", Input{Format: CSV, Template: "x {a}"}, []string{"input: there are no tasks\n  hint: give a header and one row a task"}},
		{"fields", `{"command":"a"}` + "\n" + `{"comand":"a","cpu":1}` + "\n\n" + `{"command":5,"memory":"lots","timeout":[],"cwd":"x","array":"x"}` + "\n" + `{"command":"a","cores":"two"}` + "\n" + `{"command":"a"} {"command":"b"}`, Input{Format: JSONL}, []string{
			"input:2: unknown field comand\n  hint: did you mean command?",
			"input:2: unknown field cpu\n  hint: there are: command, name, group, after, id, after_tasks, cwd, env, cores, memory, timeout, priority, retries, growth, array, resources, stdin, stdout, stderr, intermediates",
			"input:4: cwd \"x\" is not absolute" + fields,
			"input:4: command is neither a string nor a list of strings" + fields,
			"input:4: memory: \"lots\" is not a size" + fields,
			"input:4: timeout is neither a number nor a string" + fields,
			"input:4: \"x\" is not a list of indexes\n  hint: write numbers and ranges, as in 1-10,15",
			"input:5: cores cannot be a string" + fields,
			"input:6: more stands behind the task: a line has one" + fields,
		}},
		{"a group of a wrong task", `{"command":5,"group":"a"}` + "\n" + `{"command":"x","group":"b","after":["a"]}` + "\n" + `{"command":"x","after":["c"]}`, Input{Format: JSONL}, []string{
			"input:1: command is neither a string nor a list of strings" + fields,
			"input:3: there is no group c for tasks to wait for\n  hint: submit its tasks first",
		}},
		{"a group that may stand in an unread line", "{\n" + `{"command":"x","after":["c"]}` + "\n{", Input{Format: JSONL}, []string{
			"input:1: not a task: unexpected EOF" + fields,
			"input:3: not a task: unexpected EOF" + fields,
		}},
		{"lines", "a\x00\nb\nc\x00\n", Input{}, []string{
			"input:1: a command cannot hold a byte of value 0" + again,
			"input:3: a command cannot hold a byte of value 0" + again,
		}},
		{"rows", "a,b\n1\n1,2\n1,2,3\n\"1\n2,3\n", Input{Format: CSV, Template: "x {b}"}, []string{
			"input:2: the row has 1 fields and the header 2" + table,
			"input:4: the row has 3 fields and the header 2" + table,
			"input:6: extraneous or missing \" in quoted-field" + table,
		}},
	} {
		want := strings.Join(c.want, "\n")
		if _, err := trySubmit(q, BatchOptions{}, c.in, c.text); err == nil || err.Error() != want {
			t.Errorf("%s:\n%v\nwant\n%s", c.name, err, want)
		}
		c.in.Name = "input"
		if err := c.in.Check(strings.NewReader(c.text), BatchOptions{}); err == nil || err.Error() != want {
			t.Errorf("%s, before there is a directory:\n%v\nwant\n%s", c.name, err, want)
		}
	}
	var list problem.List
	for _, format := range []Format{Lines, JSONL} {
		_, err := trySubmit(q, BatchOptions{}, Input{Format: format}, strings.Repeat("\x00\n", 1000))
		if !errors.As(err, &list) || len(list) != problem.MaxProblems || list[problem.MaxProblems-1].Line != problem.MaxProblems {
			t.Errorf("of 1000 mistakes in %s: %v", format, err)
		}
	}
	if err := (&Input{}).Check(strings.NewReader("a\n"), BatchOptions{}); err != nil {
		t.Errorf("nothing is wrong: %v", err)
	}
}

func TestOnce(t *testing.T) {
	q := open(t, t.TempDir())
	submit(t, q, BatchOptions{Once: true}, Input{}, "a\nb\n")
	if s := submit(t, q, BatchOptions{Once: true}, Input{}, "a\nb\n"); !s.Before || s.First != 1 {
		t.Errorf("%+v", s)
	}
	for _, o := range []Options{{Dir: "/other"}, {Group: "other"}} {
		if s := submit(t, q, BatchOptions{Once: true, Options: o}, Input{}, "a\nb\n"); s.Before {
			t.Errorf("%+v: %+v", o, s)
		}
	}
}

// A premix that is killed during a submission leaves no partial data, at any byte of the orders and
// the journal.
func TestEveryCutOfOrdersAndJournal(t *testing.T) {
	dir := t.TempDir()
	q := open(t, dir)
	submit(t, q, BatchOptions{}, Input{}, "a\nb\n")
	submit(t, q, BatchOptions{Options: Options{Group: "g"}}, Input{}, "c\n")
	if err := q.Work(LocalWorker); err != nil {
		t.Fatal(err)
	}
	for task := 1; task <= 3; task++ {
		end(t, q, task, 1, "")
	}
	orders, err := os.ReadFile(q.path(ordersFile))
	if err != nil {
		t.Fatal(err)
	}
	q.Close()
	journal, err := os.ReadFile(q.journalPath(1))
	if err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(q.indexPath())
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string, text []byte) {
		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, n, tasks, done int) {
		t.Helper()
		for _, old := range []bool{false, true} {
			if err := os.Remove(q.indexPath()); err != nil {
				t.Fatal(err)
			}
			if old {
				write(q.indexPath(), index)
			}
			again, err := Open(dir, "v1", false)
			if err != nil {
				t.Fatalf("%s cut at %d: %v", what, n, err)
			}
			c := again.Counts()
			if got := c[0] + c[1] + c[2] + c[3]; got != tasks || c[Succeeded] != done {
				t.Fatalf("%s cut at %d, old index %v: %d tasks and %d done, want %d and %d", what, n, old, got, c[Succeeded], tasks, done)
			}
			again.Close()
		}
	}
	whole := func(text []byte, n int) int { return max(0, bytes.Count(text[:n], []byte("\n"))-1) }
	step := 5 // over all lines this covers each position in a line
	if os.Getenv("PREMIX_SOAK") != "" {
		step = 1
	}
	for n := 0; n <= len(journal); n += step {
		write(q.journalPath(1), journal[:n])
		check("journal", n, 3, whole(journal, n))
	}
	write(q.journalPath(1), journal) // the last step may not have reached the end
	for n := 0; n <= len(orders); n += step {
		write(q.path(ordersFile), orders[:n])
		tasks := []int{0, 2, 3}[whole(orders, n)]
		check("orders", n, tasks, tasks)
	}
	// The part that was cut off is written again.
	write(q.path(ordersFile), orders[:len(orders)-5])
	q = open(t, dir)
	if s := submit(t, q, BatchOptions{}, Input{}, "d\n"); s.First != 3 {
		t.Errorf("%+v", s)
	}
	if spec, err := q.Spec(3); err != nil || spec.Command != "d" {
		t.Errorf("%+v, %v", spec, err)
	}
}

// A batch that does not fit on the disk is refused completely with an error. It can be submitted
// once there is room, and earlier tasks are kept.
func TestSubmitOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("no right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	q := open(t, dir)
	submit(t, q, BatchOptions{}, Input{}, "a\nb\n")
	many := strings.Repeat("true "+strings.Repeat("x", 200)+"\n", 100000)
	if _, err := trySubmit(q, BatchOptions{}, Input{}, many); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%v", err)
	}
	count := func(q *Queue) int { return q.Counts()[Waiting] }
	if n := count(q); n != 2 {
		t.Errorf("%d tasks wait", n)
	}
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT, "size=100m"); err != nil {
		t.Fatal(err)
	}
	submit(t, q, BatchOptions{}, Input{}, many)
	q.Close()
	if n := count(open(t, dir)); n != 100002 {
		t.Errorf("%d tasks wait", n)
	}
}

func TestReadersNeedNoRights(t *testing.T) {
	dir := t.TempDir()
	q := open(t, dir)
	submit(t, q, BatchOptions{}, Input{}, "a\nb\n")
	reader := open(t, dir)
	reader.orders.Close()
	reader.orders, reader.own = nil, true
	reader.x.close()
	var err error
	if reader.x, err = openIndex(""); err != nil {
		t.Fatal(err)
	}
	if err := reader.Refresh(); err != nil {
		t.Fatal(err)
	}
	if got := states(t, reader); got != "ww" {
		t.Errorf("a reader sees %s", got)
	}
	var refused *engine.DirError
	if _, err := reader.Cancel(&Selection{}); !errors.As(err, &refused) {
		t.Errorf("a reader's order: %v", err)
	}
}

func TestOneWorker(t *testing.T) {
	dir := t.TempDir()
	q, other := open(t, dir), open(t, dir)
	if q.HasWorker() {
		t.Error("there is a worker before one came")
	}
	if err := q.Work(LocalWorker); err != nil {
		t.Fatal(err)
	}
	if !other.HasWorker() {
		t.Error("the worker is not seen")
	}
	var busy *engine.DirError
	if err := other.Work(LocalWorker); !errors.As(err, &busy) || !strings.Contains(busy.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("a second worker: %v", err)
	}
}

func any1(*Task) bool { return true }

// next picks a task, ends it, and returns its number, or 0 if there is none.
func next(t *testing.T, q *Queue, p *Picker, cause string) int {
	t.Helper()
	task, err := p.Next(any1)
	if err != nil {
		t.Fatal(err)
	}
	if task == nil {
		return 0
	}
	end(t, q, task.Number, task.Try, cause)
	p.Done(task.Number, 0.001)
	return task.Number
}

func TestOrderOfTasks(t *testing.T) {
	q := open(t, t.TempDir())
	submit(t, q, BatchOptions{}, Input{Format: JSONL}, `{"command":"1"}
{"command":"2","priority":5}
{"command":"3"}
{"command":"4","priority":5,"retries":1}
`)
	submit(t, q, BatchOptions{Options: Options{Group: "gather"}, After: []string{DefaultGroup}}, Input{}, "5\n")
	p := q.Picker(nil)
	var got []int
	for _, cause := range []string{"", record.CauseExit, "", "", ""} {
		got = append(got, next(t, q, p, cause))
	}
	if want := []int{2, 4, 4, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if n := next(t, q, p, ""); n != 5 {
		t.Errorf("then %d, want the gather", n)
	}
	if n := next(t, q, p, ""); n != 0 {
		t.Errorf("then %d, want nothing", n)
	}
}

func TestAGroupWaitsForFailures(t *testing.T) {
	q := open(t, t.TempDir())
	submit(t, q, BatchOptions{Options: Options{Group: "a"}}, Input{}, "1\n2\n")
	submit(t, q, BatchOptions{Options: Options{Group: "b"}, After: []string{"a"}}, Input{}, "3\n")
	submit(t, q, BatchOptions{Options: Options{Group: "c"}, After: []string{"b"}}, Input{}, "4\n")
	p := q.Picker(nil)
	next(t, q, p, record.CauseExit)
	next(t, q, p, "")
	if n := next(t, q, p, ""); n != 0 {
		t.Fatalf("task %d starts", n)
	}
	if waiting, blocked := p.Left(); waiting != 0 || blocked != 2 {
		t.Errorf("%d wait, %d are blocked", waiting, blocked)
	}
	for task, want := range map[int]string{
		1: "it failed once: it failed",
		3: "it waits for group a, of which 1 tasks failed",
		4: "it waits for group b, of which 0 of 1 tasks have succeeded",
	} {
		x, err := q.Why(task)
		if err != nil || x.Why != want {
			t.Errorf("why %d: %+v, %v", task, x, err)
		}
	}
	if _, err := q.Retry(&Selection{States: []State{Failed}}); err != nil {
		t.Fatal(err)
	}
	p.Refresh()
	for want := range []int{1, 3, 4} {
		want = []int{1, 3, 4}[want]
		if n := next(t, q, p, ""); n != want {
			t.Errorf("task %d, want %d", n, want)
		}
	}
}

func TestShares(t *testing.T) {
	q := open(t, t.TempDir())
	submit(t, q, BatchOptions{}, Input{}, strings.Repeat("x\n", 10))
	p := q.Picker([][2]int{{2, 3}, {7, 7}})
	var got []int
	for n := next(t, q, p, ""); n != 0; n = next(t, q, p, "") {
		got = append(got, n)
	}
	if !slices.Equal(got, []int{2, 3, 7}) {
		t.Errorf("tasks %v", got)
	}
}

func TestFairness(t *testing.T) {
	q := open(t, t.TempDir())
	many := strings.Repeat("x\n", 50)
	for user, groups := range map[string][]string{"ann": {"a1", "a2"}, "bob": {"b"}} {
		q.user = user
		for _, g := range groups {
			submit(t, q, BatchOptions{Options: Options{Group: g}}, Input{}, many)
		}
	}
	p := q.Picker(nil)
	count := make(map[string]int)
	for range 40 {
		task, err := p.Next(any1)
		if err != nil || task == nil {
			t.Fatal(task, err)
		}
		count[task.Group]++
		end(t, q, task.Number, task.Try, "")
		p.Done(task.Number, 1)
	}
	if count["a1"] != 10 || count["a2"] != 10 || count["b"] != 20 {
		t.Errorf("shares %v", count)
	}
}

// Memory grows only after a try that ran out of it.
func TestMemoryGrows(t *testing.T) {
	q := open(t, t.TempDir())
	submit(t, q, BatchOptions{Options: Options{Memory: 100, Retries: 5, Growth: 1.5}}, Input{}, "x\n")
	p := q.Picker(nil)
	for _, c := range []struct {
		cause string
		want  int64
	}{{record.CauseExit, 100}, {record.CauseMemory, 100}, {record.CauseMemory, 150}, {"", 225}} {
		task, err := p.Next(any1)
		if err != nil || task == nil || task.Memory != c.want {
			t.Fatalf("%+v, %v, want %d", task, err, c.want)
		}
		end(t, q, 1, task.Try, c.cause)
		p.Done(1, 1)
	}
}

func TestPrune(t *testing.T) {
	q := open(t, t.TempDir())
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("xyz"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	here := func() string {
		var b strings.Builder
		for _, name := range []string{"a", "b", "c"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				b.WriteString(name)
			}
		}
		return b.String()
	}
	submit(t, q, BatchOptions{Options: Options{Group: "1", Dir: dir}}, Input{Format: JSONL}, `{"command":"x","intermediates":["a"]}`+"\n"+`{"command":"x","intermediates":["b"]}`)
	submit(t, q, BatchOptions{Options: Options{Group: "2", Dir: dir}, After: []string{"1"}}, Input{Format: JSONL}, `{"command":"x","intermediates":["c"]}`)
	for _, step := range []struct {
		task int
		last bool
		want string
	}{{1, true, "abc"}, {2, true, "abc"}, {3, false, "c"}, {0, true, ""}} {
		if step.task > 0 {
			end(t, q, step.task, 1, "")
		}
		if _, err := q.Prune(step.last, true); err != nil {
			t.Fatal(err)
		}
		if got := here(); got != step.want {
			t.Errorf("after task %d: %q are here, want %q", step.task, got, step.want)
		}
	}
}

func TestRecordLine(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	r := record.Task{Task: 1, Sample: "n\"ü\n", Try: 2, Slot: 3, Start: "cold", Reason: "r", Queued: now, Started: now, Finished: now.Add(time.Second),
		Wait: 1.5, Latency: 1e-9, Seconds: 1e21, User: 0.25, System: 3, MaxRSS: 1 << 40, ReadBytes: 1, WriteBytes: 2, Exit: -1, Signal: 9,
		Cause: "exit", Error: "e\\", Hint: "h", StderrOffset: 5, StderrLength: 6, Group: "g", Cores: 7, Memory: 8, Log: "0-1", StdoutOffset: 9, StdoutLength: 10}
	for _, want := range []record.Task{r, {Task: 5}} {
		line, err := appendRecord(nil, &want)
		if err != nil {
			t.Fatal(err)
		}
		var got record.Task
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("came back as %+v, want %+v", got, want)
		}
	}
}

func TestManyBatchesAndGrowth(t *testing.T) {
	dir := t.TempDir()
	q, other := open(t, dir), open(t, dir)
	big := strings.Repeat("true\n", 30000)
	for i := range 5 {
		submit(t, []*Queue{q, other}[i%2], BatchOptions{}, Input{}, big)
	}
	if err := q.Refresh(); err != nil {
		t.Fatal(err)
	}
	if c := q.Counts(); c[Waiting] != 150000 {
		t.Errorf("%v", c)
	}
	if s, err := q.Spec(150000); err != nil || s.Command != "true" {
		t.Errorf("%+v, %v", s, err)
	}
}

// Commands that premix parses itself have the same effect as in the shell.
func TestDirect(t *testing.T) {
	if !knownShell() {
		t.Skip("/bin/sh is neither dash nor bash here")
	}
	bin := t.TempDir()
	script := "#!/bin/sh\nfor a; do printf '<%s>' \"$a\"; done\n"
	if err := os.WriteFile(filepath.Join(bin, "show"), []byte(script), 0o777); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	direct := 0
	for _, command := range []string{
		"show", " show  a\tb ", "show a=b /x/../y -o=1 @file +x 5%", "show 'a b' c'd e'f '' 'x'\"'\"'y'", "show a'", "show '\\' '$HOME'",
		"show ~", "show a~", "show $HOME", "show *", "show a#b", "show # c", "show \"a b\"", "show a;show b", "show a&", "show a|cat",
		"A=1 show", "show {a,b}", "show [a]", "show ?", "show !x", "show \\a", "show `show a`", "(show a)", "show >/dev/null", "! show a", "show ^",
		"'show' a", "show é 'ü'", "show a\nshow b", "if true; then show a; fi", "echo a", "true a b", "true --help", "false", "false --version",
		"test a = b", ".", ":", "no-such-program a", bin + "/show a", "./show", "cd /", "time show a", "show\ra", "show a\vb", "show \x01", "%1", "[ a = a ]",
		"show 'a\\' b", "show ''", "show ''''", "show a''b",
	} {
		argv, ok := Direct(command)
		if !ok {
			continue
		}
		direct++
		want := exec.Command("/bin/sh", "-c", command)
		want.Env = env
		wantOut, wantErr := want.Output()
		path := argv[0]
		if !strings.Contains(path, "/") {
			if found, err := exec.LookPath(path); err == nil {
				path = found
			} else if _, err := os.Stat(filepath.Join(bin, path)); err == nil {
				path = filepath.Join(bin, path)
			} else {
				continue // the shell runs it
			}
		}
		got := exec.Command(path)
		got.Args, got.Env = argv, env
		gotOut, gotErr := got.Output()
		if !bytes.Equal(gotOut, wantOut) || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
			if errors.Is(gotErr, os.ErrNotExist) {
				continue // the shell runs it
			}
			t.Errorf("%q gives %q, %v as %q; the shell gives %q, %v", command, gotOut, gotErr, argv, wantOut, wantErr)
		}
	}
	if direct < 10 {
		t.Errorf("only %d commands go without a shell", direct)
	}
}

// After expansion of a template, the shell reads each value unchanged.
func TestTemplates(t *testing.T) {
	var odd []byte
	for c := 1; c < 256; c++ {
		odd = append(odd, byte(c))
	}
	values := []string{"plain", "a b", "it's", `"quoted" $HOME \ ` + "`x`", "*", "~", "-n", "é", "", string(odd), "a\nb"}
	for _, template := range []string{"printf %s {1}", "printf %s x{1}y", "printf %s \"{1}\"", "printf %s 'a'\"{1}\"", "printf %s '{1}'", "printf %s \"$(printf %s. {1})\"", "printf %s \"$(printf %s. \"{1}\")\""} {
		tpl, err := ParseTemplate(template, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			command, err := tpl.Fill([]string{v}, 1)
			if err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("/bin/sh", "-c", command).Output()
			want := v
			switch {
			case strings.Contains(template, "%s."):
				want = v + "."
			case strings.Contains(template, "x{1}y"):
				want = "x" + v + "y"
			case strings.Contains(template, "'a'"):
				want = "a" + v
			}
			if err != nil || string(out) != want {
				t.Errorf("%s with %q: the shell gives %q, %v", template, v, out, err)
			}
		}
	}
	columns := []string{"sample", "r1"}
	for _, c := range []struct{ template, want string }{
		{"x {}", "x s1 /d/s1.fq.gz"}, {"{sample} {r1} {2} {#}", "s1 /d/s1.fq.gz /d/s1.fq.gz 7"},
		{"{r1.} {r1/} {r1//} {r1/.} {2/}", "/d/s1.fq s1.fq.gz /d s1.fq s1.fq.gz"},
		{"${HOME} {{sample}} {a,b} awk '{print $1}'", "${HOME} {sample} {a,b} awk '{print $1}'"},
	} {
		tpl, err := ParseTemplate(c.template, columns)
		if err != nil {
			t.Errorf("%s: %v", c.template, err)
			continue
		}
		if got, err := tpl.Fill([]string{"s1", "/d/s1.fq.gz"}, 7); err != nil || got != c.want {
			t.Errorf("%s gives %q, %v; want %q", c.template, got, err, c.want)
		}
	}
	if _, err := ParseTemplate("echo `cat {}`", nil); err == nil {
		t.Error("a place between backquotes is taken")
	}
}

func TestInputs(t *testing.T) {
	for _, c := range []struct {
		in   Input
		text string
		want []string
	}{
		{Input{}, "a\n\n  # no\nb", []string{"a", "b"}},
		{Input{Null: true}, "a\nb\x00c\x00", []string{"a\nb", "c"}},
		{Input{Template: "gzip"}, "x y\n#z\n", []string{"gzip 'x y'", "gzip '#z'"}},
		{Input{Format: CSV, Template: "t {b} {1}"}, "a,b\n1,\"2 \"\"x\"\n", []string{`t '2 "x' 1`}},
		{Input{Format: TSV, Template: "t {b}"}, "a\tb\n1\t2 3\n", []string{"t '2 3'"}},
		{Input{Format: JSONL}, `{"command":["a","b c"]}` + "\n\n" + `{"command":"x","array":"1-2,5"}`, []string{"a 'b c'", "x", "x", "x"}},
		{Input{Array: [][2]int{{1, 2}}}, "a\nb\n", []string{"a", "a", "b", "b"}},
	} {
		q := open(t, t.TempDir())
		s, err := trySubmit(q, BatchOptions{}, c.in, c.text)
		if err != nil {
			t.Errorf("%+v: %v", c.in, err)
			continue
		}
		var got []string
		for i := range s.Tasks {
			spec, err := q.Spec(i + 1)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, spec.Text())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v gives %q, want %q", c.in, got, c.want)
		}
	}
}
