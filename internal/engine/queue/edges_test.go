package queue

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"premix/internal/record"
)

// shown lists the displayed states of all tasks.
func shown(t *testing.T, q *Queue) []string {
	t.Helper()
	list, err := q.Tasks(&Selection{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range list {
		got = append(got, s.State)
	}
	return got
}

// A task starts when all tasks before it have succeeded, in any order of the file.
func TestEdges(t *testing.T) {
	dir := t.TempDir()
	q := open(t, dir)
	submit(t, q, BatchOptions{}, Input{}, "first\n")
	submit(t, q, BatchOptions{}, Input{Format: JSONL}, `{"command":"2","id":"end","after_tasks":["l","r",1]}
{"command":"3","id":"l","after_tasks":["top"]}
{"command":"4","id":"r","name":"","after_tasks":["top"],"array":"1-2"}
{"command":"6","id":"top"}
`)
	submit(t, q, BatchOptions{AfterTasks: [][2]int{{2, 2}, {4, 5}}}, Input{}, "7\n8\n")
	other := open(t, dir) // reads the same data from the files
	for _, q := range []*Queue{q, other} {
		for task, want := range map[int][]int32{1: nil, 2: {1, 3, 4, 5}, 3: {6}, 5: {6}, 6: nil, 8: {2, 4, 5}} {
			if got := q.edges.of(task); !slices.Equal(got, want) {
				t.Errorf("task %d comes after %v, want %v", task, got, want)
			}
		}
	}
	var free []int
	if err := q.EachReady(func(int) bool { return false }, func(s *ReadyTask) bool { free = append(free, s.Task); return true }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(free, []int{1, 6}) {
		t.Errorf("tasks %v can start", free)
	}
	p := q.Picker(nil)
	var got []int
	for range 8 {
		got = append(got, next(t, q, p, ""))
	}
	if want := []int{1, 6, 3, 4, 5, 2, 7, 8}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if n := next(t, q, p, ""); n != 0 {
		t.Errorf("then %d, want nothing", n)
	}
	if spec, err := q.Spec(3); err != nil || spec.Name != "l" {
		t.Errorf("%+v, %v", spec, err)
	}
	if spec, err := q.Spec(4); err != nil || spec.Name != "" {
		t.Errorf("task 4 with an empty name is %+v, %v", spec, err)
	}
}

// A task after a failed one is skipped, is displayed with the cause, and runs after a retry.
func TestSkipped(t *testing.T) {
	q := open(t, t.TempDir())
	submit(t, q, BatchOptions{}, Input{Format: JSONL}, `{"command":"1","id":"a"}
{"command":"2","id":"b","after_tasks":["a"]}
{"command":"3","id":"c","after_tasks":["b"],"group":"g"}
{"command":"4","id":"free"}
{"command":"5","group":"late","after":["g"],"id":"e"}
{"command":"6","after_tasks":["e"]}
{"command":"7","after_tasks":["free"]}
`)
	p := q.Picker(nil)
	if n := next(t, q, p, record.CauseExit); n != 1 {
		t.Fatalf("task %d", n)
	}
	want := []string{"failed", "skipped", "skipped", "waiting", "skipped", "skipped", "waiting"}
	if got := shown(t, q); !slices.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
	list, err := q.Tasks(&Selection{Shown: []string{Skipped}})
	if err != nil || len(list) != 4 || list[0].Task != 2 {
		t.Errorf("skipped: %+v, %v", list, err)
	}
	if waiting, blocked := p.Left(); waiting != 2 || blocked != 4 {
		t.Errorf("%d wait, %d are skipped", waiting, blocked)
	}
	for _, g := range q.Status().Groups {
		want := map[string][2]int{DefaultGroup: {2, 2}, "g": {0, 1}, "late": {0, 1}}[g.Group]
		if got := [2]int{g.Waiting, g.Skipped}; got != want {
			t.Errorf("group %s: waiting and skipped %v, want %v", g.Group, got, want)
		}
	}
	for task, want := range map[int]string{
		2: "it is skipped: it comes after task 1, which failed: it failed",
		3: "it is skipped: it comes after task 1, by way of task 2, which failed: it failed",
		5: "it waits for group g, of which 0 of 1 tasks have succeeded",
		7: "it waits for task 4, of 1 tasks that it comes after",
	} {
		x, err := q.Why(task)
		if err != nil || x.Why != want {
			t.Errorf("why %d: %+v, %v", task, x, err)
		}
	}
	var seen []string
	err = q.Endings(&Selection{Tasks: [][2]int{{1, 3}}}, nil, func(x *Explanation) error {
		seen = append(seen, fmt.Sprint(x.Task, x.State, x.Because))
		return nil
	}, func() error { return nil })
	if want := []string{"1failed0", "2skipped1", "3skipped1"}; err != nil || !slices.Equal(seen, want) {
		t.Errorf("endings %q, %v", seen, err)
	}
	if _, err := q.Retry(&Selection{States: []State{Failed}}); err != nil {
		t.Fatal(err)
	}
	p.Refresh()
	var got []int
	for range 7 {
		got = append(got, next(t, q, p, ""))
	}
	slices.Sort(got)
	if !slices.Equal(got, []int{1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("then %v", got)
	}
}

// Tasks after a cancelled one are skipped, and tasks after a held one wait.
func TestCancelledAndHeldBefore(t *testing.T) {
	q := open(t, t.TempDir())
	submit(t, q, BatchOptions{}, Input{Format: JSONL}, `{"command":"1","id":"a"}
{"command":"2","after_tasks":["a"]}
{"command":"3","id":"c"}
{"command":"4","after_tasks":["c"]}
`)
	if _, err := q.Cancel(&Selection{Tasks: [][2]int{{1, 1}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Hold(&Selection{Tasks: [][2]int{{3, 3}}}); err != nil {
		t.Fatal(err)
	}
	if got, want := shown(t, q), []string{"cancelled", "skipped", "waiting", "waiting"}; !slices.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
	if x, err := q.Why(2); err != nil || x.Why != "it is skipped: it comes after task 1, which was cancelled" {
		t.Errorf("%+v, %v", x, err)
	}
	p := q.Picker(nil)
	if n := next(t, q, p, ""); n != 0 {
		t.Errorf("task %d starts", n)
	}
	if _, err := q.Release(&Selection{}); err != nil {
		t.Fatal(err)
	}
	p.Refresh()
	if a, b := next(t, q, p, ""), next(t, q, p, ""); a != 3 || b != 4 {
		t.Errorf("tasks %d and %d start", a, b)
	}
}

func TestWrongEdges(t *testing.T) {
	for _, c := range []struct {
		name, text string
		in         Input
		want       string
	}{
		{"itself", "\n" + `{"command":"x","id":"a","after_tasks":["a"]}`, Input{Format: JSONL},
			"input:2: task a would come after itself: it comes after task a\n"},
		{"a cycle", `{"command":"x","id":"s"}
{"command":"x","id":"a","after_tasks":["s","b"]}
{"command":"x","id":"b","after_tasks":["c"]}
{"command":"x","id":"c","after_tasks":["a"]}`, Input{Format: JSONL},
			"input:2: task a would come after itself: it comes after task b, which comes after task c, which comes after task a\n"},
		{"a cycle through a group", `{"command":"x","id":"a","group":"g","after_tasks":["b"]}
{"command":"x","id":"b","group":"h","after":["g"]}`, Input{Format: JSONL},
			"input:1: task a would come after itself: it comes after task b, which comes after group g, which comes after task a\n"},
		{"a table", "n,id,after_tasks\n1,a,b\n2,b,\"c; a\"\n3,c,\n", Input{Format: CSV, Template: "echo {n}"},
			"input:2: task a would come after itself: it comes after task b, which comes after task a\n"},
		{"no such id", `{"command":"x","after_tasks":["q"]}`, Input{Format: JSONL}, "input:1: no task has the id q\n"},
		{"no such task", `{"command":"x","after_tasks":[7]}`, Input{Format: JSONL}, "input:1: there is no task 7 to come after\n"},
		{"an id twice", `{"command":"x","id":"a"}` + "\n" + `{"command":"x","id":"a"}`, Input{Format: JSONL}, "input:2: the id a is already that task's in line 1\n"},
		{"no id", `{"command":"x","id":"a b"}`, Input{Format: JSONL}, `input:1: "a b" cannot be the id of a task` + "\n"},
		{"neither", `{"command":"x","after_tasks":[null,-1]}`, Input{Format: JSONL}, "input:1: after_tasks has null, which is neither an id nor the number of a task\n"},
		{"an id in a wrong line", `{"command":"x","after_tasks":["a"]}` + "\n" + `{"command":5,"id":"a"}`, Input{Format: JSONL}, "input:2: command is neither"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := open(t, t.TempDir())
			_, err := trySubmit(q, BatchOptions{}, c.in, c.text)
			if err == nil || !strings.HasPrefix(err.Error()+"\n", c.want) && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\nwant %s", err, c.want)
			}
			if c.name == "an id in a wrong line" && strings.Contains(fmt.Sprint(err), "input:1") {
				t.Errorf("a second mistake is seen: %v", err)
			}
			if err := c.in.Check(strings.NewReader(c.text), BatchOptions{}); err == nil {
				t.Error("a check lets it pass")
			}
			if n := q.Counts()[Waiting]; n != 0 {
				t.Errorf("%d tasks were submitted", n)
			}
		})
	}
	t.Run("a later group", func(t *testing.T) {
		q := open(t, t.TempDir())
		submit(t, q, BatchOptions{Options: Options{Group: "g"}}, Input{}, "x\n")
		submit(t, q, BatchOptions{Options: Options{Group: "h"}, AfterTasks: [][2]int{{1, 1}}}, Input{}, "x\n")
		_, err := trySubmit(q, BatchOptions{Options: Options{Group: "g"}, After: []string{"h"}}, Input{}, "x\n")
		if want := "group g would come after itself: it comes after group h, which comes after task 2, which comes after task 1, which comes after group h"; err == nil || !strings.Contains(err.Error(), "would come after itself") {
			t.Errorf("%v, want %s", err, want)
		}
	})
}

// The same tasks with edges are recognised, even if they have other numbers in the directory.
func TestEdgesOnce(t *testing.T) {
	text := "n,id,after_tasks\n1,a,b c\n2,b,\n3,c,b\n"
	in := Input{Format: CSV, Template: "echo {n}"}
	q := open(t, t.TempDir())
	submit(t, q, BatchOptions{}, Input{}, "x\n")
	submit(t, q, BatchOptions{Once: true}, in, text)
	if s := submit(t, q, BatchOptions{Once: true}, in, text); !s.Before || s.First != 2 {
		t.Errorf("%+v", s)
	}
	if s := submit(t, q, BatchOptions{Once: true}, in, strings.Replace(text, "3,c,b", "3,c,", 1)); s.Before {
		t.Error("tasks with other edges are taken for the same")
	}
	if got := q.edges.of(2); !slices.Equal(got, []int32{3, 4}) {
		t.Errorf("edges %v", got)
	}
	// Without after_tasks, a column id is an ordinary column.
	submit(t, q, BatchOptions{}, Input{Format: CSV, Template: "echo {id}"}, "id\na b\na b\n")
}

// Damaged edges are refused, and none is ignored.
func TestDamagedEdges(t *testing.T) {
	for _, c := range []struct{ from, to string }{
		{"[2,-1]", "[2,-3]"}, {"[2,-1]", "[2,-2]"}, {"[2,-1]", "[0,-1]"}, {"[2,-1]", "[2,11]"}, {"[2,-1]", "{2,-1]"}, {"[2,-1]\n", "[2,-1 "}, {"[2,-1]", "[2   ]"},
	} {
		dir := t.TempDir()
		q := open(t, dir)
		submit(t, q, BatchOptions{}, Input{Format: JSONL}, `{"command":"x","id":"a"}`+"\n"+`{"command":"x","after_tasks":["a"]}`)
		q.Close()
		path := filepath.Join(dir, ".premix/queue", tasksFile)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(text), c.from, c.to, 1)
		if changed == string(text) {
			t.Fatalf("no %q in %s", c.from, text)
		}
		if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
		if q, err := Open(dir, "v1", false); err == nil {
			q.Close()
			t.Errorf("%q in place of %q is accepted", c.to, c.from)
		}
	}
}

// Intermediates are kept while a later task still has to run.
func TestPruneWithEdges(t *testing.T) {
	dir := t.TempDir()
	q := open(t, dir)
	file := filepath.Join(dir, "part")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	submit(t, q, BatchOptions{Options: Options{Group: "a"}}, Input{Format: JSONL}, fmt.Sprintf(`{"command":"x","intermediates":[%q]}`, file))
	submit(t, q, BatchOptions{Options: Options{Group: "b"}, AfterTasks: [][2]int{{1, 1}}}, Input{}, "x\n")
	submit(t, q, BatchOptions{Options: Options{Group: "c"}, AfterTasks: [][2]int{{2, 2}}}, Input{}, "x\n")
	p := q.Picker(nil)
	for n := 1; n <= 3; n++ {
		if next(t, q, p, "") != n {
			t.Fatalf("task %d did not start", n)
		}
		pruned, err := q.Prune(n < 3, false)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[int]int{3: 1}[n]; pruned.Files != want {
			t.Errorf("after %d tasks %d files were removed, want %d", n, pruned.Files, want)
		}
	}
}

// TestRandomEdges compares random graphs with a direct evaluation of the definition.
func TestRandomEdges(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 20))
		const tasks = 40
		order := r.Perm(tasks) // a task depends only on earlier ones of the order
		before := make([][]int, tasks)
		var text strings.Builder
		for i := range tasks {
			at := slices.Index(order, i)
			var ids []string
			for range r.IntN(4) {
				if at > 0 {
					d := order[r.IntN(at)]
					before[i] = append(before[i], d)
					ids = append(ids, fmt.Sprintf("%q", fmt.Sprint(d)))
				}
			}
			fmt.Fprintf(&text, `{"command":"x","id":"%d","after_tasks":[%s]}`+"\n", i, strings.Join(ids, ","))
		}
		q := open(t, t.TempDir())
		submit(t, q, BatchOptions{}, Input{Format: JSONL}, text.String())
		p := q.Picker(nil)
		ended := make(map[int]bool) // the value is whether it has succeeded
		for {
			task, err := p.Next(any1)
			if err != nil {
				t.Fatal(err)
			}
			if task == nil {
				break
			}
			n := task.Number - 1
			if _, again := ended[n]; again {
				t.Fatalf("seed %d: task %d runs again", seed, n)
			}
			for _, d := range before[n] {
				if !ended[d] {
					t.Fatalf("seed %d: task %d starts before %d has succeeded", seed, n, d)
				}
			}
			cause := ""
			if r.IntN(8) == 0 {
				cause = record.CauseExit
			}
			ended[n] = cause == ""
			end(t, q, task.Number, task.Try, cause)
			p.Done(task.Number, 0.001)
		}
		can := func(i int) bool { // it has run, or all tasks before it have succeeded
			return !slices.ContainsFunc(before[i], func(d int) bool { return !ended[d] })
		}
		for i, got := range shown(t, q) {
			want := Skipped
			if ok, ran := ended[i]; ran && ok {
				want = "succeeded"
			} else if ran {
				want = "failed"
			} else if can(i) {
				want = "running, as nothing is before it"
			}
			if got != want {
				t.Errorf("seed %d: task %d is %s, want %s", seed, i, got, want)
			}
		}
	}
}

// 100,000 edges take little memory and time, as a chain, as a fan and as layers.
func TestManyEdges(t *testing.T) {
	const n = 100_000
	for name, line := range map[string]func(b *strings.Builder){
		"chain": func(b *strings.Builder) {
			for i := range n {
				fmt.Fprintf(b, `{"command":"x","id":"%d","after_tasks":["%d"]}`+"\n", i, i+1)
			}
			fmt.Fprintf(b, `{"command":"x","id":"%d"}`+"\n", n)
		},
		"fan": func(b *strings.Builder) {
			var ids []string
			for i := range n {
				fmt.Fprintf(b, `{"command":"x","id":"%d"}`+"\n", i)
				ids = append(ids, fmt.Sprintf("%q", fmt.Sprint(i)))
			}
			fmt.Fprintf(b, `{"command":"x","after_tasks":[%s]}`+"\n", strings.Join(ids, ","))
		},
		"layers": func(b *strings.Builder) {
			for i := range n / 100 {
				for j := range 10 {
					fmt.Fprintf(b, `{"command":"x","id":"%d.%d"`, i, j)
					if i > 0 {
						fmt.Fprintf(b, `,"after_tasks":["%d.0","%[1]d.1","%[1]d.2","%[1]d.3","%[1]d.4","%[1]d.5","%[1]d.6","%[1]d.7","%[1]d.8","%[1]d.9"]`, i-1)
					}
					b.WriteString("}\n")
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			line(&text)
			q := open(t, t.TempDir())
			begun := time.Now()
			submit(t, q, BatchOptions{}, Input{Format: JSONL}, text.String())
			submitted := time.Since(begun)
			text.Reset()
			var m, base runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&base)
			begun = time.Now()
			p := q.Picker(nil)
			picked := 0
			for {
				task, err := p.Next(any1)
				if err != nil {
					t.Fatal(err)
				}
				if task == nil {
					break
				}
				picked++
				// The same change as by a record, without the journal.
				e := &q.x.all()[task.Number-1]
				g := q.groups[e.group]
				e.flags |= flagDone
				g.count[Waiting]--
				g.count[Succeeded]++
				p.Done(task.Number, 0.001)
			}
			ran := time.Since(begun)
			runtime.ReadMemStats(&m)
			begun = time.Now()
			q.mu.Lock()
			q.skips()
			q.mu.Unlock()
			t.Logf("%d edges: submitted in %v, %d tasks picked in %v, skips in %v; edges take %d bytes", len(q.edges.on), submitted, picked, ran, time.Since(begun),
				4*cap(q.edges.on)+12*cap(q.edges.tasks))
			if int64(picked) != q.x.head().tasks {
				t.Errorf("%d of %d tasks", picked, q.x.head().tasks)
			}
			if took := 4*cap(q.edges.on) + 12*cap(q.edges.tasks); took > 4<<20 {
				t.Errorf("edges take %d bytes", took)
			}
		})
	}
}
