package queue

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"premix/internal/kit/lines"
)

// An edge makes a task come after another task, in addition to the groups that its group comes
// after. The edges of a batch are lines behind its tasks in tasks.jsonl: arrays of numbers. The
// first number is the place of the later task in its batch, from 1. The others are the tasks
// that it comes after: the number of a task of an earlier batch, or, if it is negative, a place
// in the same batch. So the same input has the same bytes in any directory. A premix that does
// not know edges finds more lines than tasks, and refuses the directory.

// MaxEdges is the highest number of edges in a directory.
const MaxEdges = 10_000_000

// edgesOfLine is the highest number of edges in one line.
const edgesOfLine = 4096

// edges are the tasks that tasks come after. An edge takes 4 bytes, and a task with edges 12.
type edges struct {
	tasks []int32 // that come after others, in order
	ends  []int   // end of the edges of each of them, in on
	on    []int32 // tasks that they come after
}

// add adds edges of a task. No later task has edges yet.
func (e *edges) add(task int, on ...int32) {
	e.on = append(e.on, on...)
	if n := len(e.tasks); n > 0 && int(e.tasks[n-1]) == task {
		e.ends[n-1] = len(e.on)
		return
	}
	e.tasks, e.ends = append(e.tasks, int32(task)), append(e.ends, len(e.on))
}

// at returns the edges of the i-th task that has some.
func (e *edges) at(i int) []int32 {
	begin := 0
	if i > 0 {
		begin = e.ends[i-1]
	}
	return e.on[begin:e.ends[i]]
}

// of returns the tasks that a task comes after.
func (e *edges) of(task int) []int32 {
	if len(e.tasks) == 0 {
		return nil
	}
	i, ok := slices.BinarySearch(e.tasks, int32(task))
	if !ok {
		return nil
	}
	return e.at(i)
}

// readEdges reads the edges of a batch. The caller holds mu.
func (q *Queue) readEdges(o *Order) error {
	end, last := o.Offset+o.Bytes, 0
	if o.Edges < o.Offset || o.Edges >= end {
		return q.damaged(tasksFile)
	}
	stop := errors.New("stop")
	got, err := lines.Read(q.tasks, o.Edges, func(line []byte, at int64) error {
		if at >= end {
			return stop
		}
		var numbers []int64
		if json.Unmarshal(line, &numbers) != nil || len(numbers) < 2 || len(q.edges.on)+len(numbers) > MaxEdges+1 {
			return q.damaged(tasksFile)
		}
		place := numbers[0]
		if place < 1 || place > int64(o.Tasks) || int(place) < last {
			return q.damaged(tasksFile)
		}
		last = int(place)
		for _, n := range numbers[1:] {
			if n < 0 && n >= -int64(o.Tasks) && n != -place {
				n = int64(o.First) - 1 - n
			} else if n < 1 || n >= int64(o.First) {
				return q.damaged(tasksFile)
			}
			q.edges.add(o.First-1+last, int32(n))
		}
		return nil
	})
	if errors.Is(err, stop) {
		return nil
	}
	if err == nil && got < end {
		err = q.damaged(tasksFile)
	}
	return err
}

// unmet returns the position, from one on, of the first edge of a task whose other task has
// not succeeded, and that task; 0 if there is none. The caller holds mu.
func (q *Queue) unmet(entries *entries, task, from int) (position, on int) {
	deps := q.edges.of(task)
	for i := from; i < len(deps); i++ {
		d := int(deps[i])
		if d > entries.len() {
			return i, d
		}
		if e := entries.at(d); e.state() != Succeeded {
			return i, d
		}
	}
	return 0, 0
}

// skips are the tasks that wait and cannot start: a task or a group before them has failed,
// was cancelled, or is skipped itself.
type skips struct {
	groups []bool
	tasks  map[int]bool // by edges
}

// has reports whether a task is skipped.
func (s *skips) has(task int, e *entry) bool {
	return e.state() == Waiting && (s.groups[e.group] || s.tasks[task])
}

// skips finds the skipped tasks. The caller holds mu.
func (q *Queue) skips() *skips {
	f := &finder{q: q, s: &skips{groups: make([]bool, len(q.groups)), tasks: make(map[int]bool)}, entries: q.entries(), spoilt: make([]bool, len(q.groups))}
	f.turn()
	for i, g := range q.groups {
		if g.count[Failed]+g.count[Cancelled] > 0 {
			f.spoil(i)
		}
	}
	for _, d := range f.targets {
		if e := f.entries.at(int(d)); e.state() == Failed || e.state() == Cancelled {
			f.todo = append(f.todo, d)
		}
	}
	for len(f.todo) > 0 {
		d := f.todo[len(f.todo)-1]
		f.todo = f.todo[:len(f.todo)-1]
		for _, t := range f.later[f.begins[d]:f.begins[d+1]] {
			f.skip(t)
		}
	}
	return f.s
}

// finder finds skipped tasks.
type finder struct {
	q       *Queue
	s       *skips
	entries entries
	spoilt  []bool             // groups with a task that has failed, was cancelled or is skipped
	later   []int32            // tasks after each task, one task after another
	begins  []int32            // where those of a task begin
	targets []int32            // tasks that others come after by edges
	members map[uint32][]int32 // the targets by group
	todo    []int32            // tasks that will not succeed, and whose later tasks are skipped
}

// turn turns the edges round.
func (f *finder) turn() {
	e := &f.q.edges
	if len(e.on) == 0 {
		return
	}
	f.begins = make([]int32, f.entries.len()+2)
	for _, d := range e.on {
		f.begins[d+1]++
	}
	for d := 1; d < len(f.begins); d++ {
		if f.begins[d] > 0 {
			f.targets = append(f.targets, int32(d-1))
		}
		f.begins[d] += f.begins[d-1]
	}
	f.later = make([]int32, len(e.on))
	next := slices.Clone(f.begins)
	for i, t := range e.tasks {
		for _, d := range e.at(i) {
			f.later[next[d]] = t
			next[d]++
		}
	}
}

// spoil has the groups after a group skipped.
func (f *finder) spoil(group int) {
	for pending := []int{group}; len(pending) > 0; {
		g := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if f.spoilt[g] {
			continue
		}
		f.spoilt[g] = true
		for h := range f.q.groups {
			if f.s.groups[h] || !slices.Contains(f.q.groups[h].after, g) {
				continue
			}
			f.s.groups[h] = true
			if f.q.groups[h].count[Waiting] > 0 {
				pending = append(pending, h)
			}
			f.skipGroup(uint32(h))
		}
	}
}

// skipGroup notes that the tasks of a group will not succeed that tasks come after by edges.
func (f *finder) skipGroup(group uint32) {
	if f.members == nil {
		f.members = make(map[uint32][]int32)
		for _, d := range f.targets {
			e := f.entries.at(int(d))
			f.members[e.group] = append(f.members[e.group], d)
		}
	}
	for _, d := range f.members[group] {
		if e := f.entries.at(int(d)); e.state() == Waiting {
			f.todo = append(f.todo, d)
		}
	}
}

// skip notes that a task is skipped.
func (f *finder) skip(task int32) {
	e := f.entries.at(int(task))
	if f.s.tasks[int(task)] || e.state() != Waiting {
		return
	}
	f.s.tasks[int(task)] = true
	f.todo = append(f.todo, task)
	f.spoil(int(e.group))
}

// cause returns the task that has failed or was cancelled and because of which a task is
// skipped, and the tasks between the two; 0 if it is skipped because of a group. The caller
// holds mu.
func (q *Queue) cause(s *skips, task int) (root int, way []int) {
	entries := q.entries()
	for at, seen := task, map[int]bool{task: true}; ; {
		next := 0
		for _, d := range q.edges.of(at) {
			switch e := entries.at(int(d)); {
			case e.state() == Failed || e.state() == Cancelled:
				return int(d), way
			case next == 0 && s.has(int(d), &e) && !seen[int(d)]:
				next = int(d)
			}
		}
		if next == 0 {
			return 0, way
		}
		at, seen[next] = next, true
		way = append(way, next)
	}
}

// needed returns the tasks that tasks come after by edges, directly or through others, of
// which one has not succeeded or is of an open group. all are the tasks that a task comes
// after. The caller holds mu.
func (q *Queue) needed(open []bool) (needed, all map[int]bool) {
	needed, all = make(map[int]bool), make(map[int]bool)
	entries := q.entries()
	var todo []int
	for i, t := range q.edges.tasks {
		for _, d := range q.edges.at(i) {
			all[int(d)] = true
		}
		if e := entries.at(int(t)); e.state() != Succeeded || open[e.group] {
			todo = append(todo, int(t))
		}
	}
	for len(todo) > 0 {
		t := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, d := range q.edges.of(t) {
			if !needed[int(d)] {
				needed[int(d)] = true
				todo = append(todo, int(d))
			}
		}
	}
	return needed, all
}

// Links are the edges of a task that is submitted.
type Links struct {
	ID    string   // name of the task in its batch; "" for none
	IDs   []string // of tasks in its batch that it comes after
	Tasks [][2]int // tasks of earlier batches that it comes after, as first and last numbers of ranges
}

// span are tasks of a batch that one line has made.
type span struct {
	line        int
	first, last int // places in the batch
	group       string
}

// linked is a span with edges.
type linked struct {
	span
	id  string
	ids []string
	own [][2]int // tasks of earlier batches, besides those of the batch
}

// plain reports whether the tasks have only the edges that all tasks of the batch have.
func (l *linked) plain() bool { return l.id == "" && len(l.ids)+len(l.own) == 0 }

// link notes the edges of the tasks that were added since there were before tasks.
func (b *Batch) link(line, before int, group string, l *Links) error {
	if group == "" {
		group = b.o.Group
	}
	s := span{line: line, first: before + 1, last: b.tasks, group: group}
	if l.ID != "" {
		if err := checkID(l.ID); err != nil {
			return err
		}
		if other, ok := b.ids[l.ID]; ok {
			return &InputError{Reason: fmt.Sprintf("the id %s is already that task's in line %d", l.ID, other.line), HintText: "give each task an id of its own"}
		}
		if b.ids == nil {
			b.ids = make(map[string]span)
		}
		b.ids[l.ID] = s
	}
	if len(l.IDs)+len(l.Tasks)+len(b.o.AfterTasks) == 0 {
		return nil
	}
	n := len(b.linked) - 1
	if l.ID == "" && len(l.IDs)+len(l.Tasks) == 0 && n >= 0 && b.linked[n].plain() && b.linked[n].group == group {
		b.linked[n].last = s.last
	} else {
		b.linked = append(b.linked, linked{s, l.ID, l.IDs, l.Tasks})
	}
	return nil
}

// checkID returns an *InputError if a text cannot be the id of a task.
func checkID(id string) error {
	if id == "" || len(id) > 255 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r == ',' || r == ';' }) {
		return &InputError{Reason: fmt.Sprintf("%q cannot be the id of a task", id), HintText: "give it letters and digits"}
	}
	return nil
}

// SplitIDs divides a list of ids, which spaces, commas or semicolons separate.
func SplitIDs(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == ',' || r == ';' })
}

// connect makes the edges of a batch. It calls wrong with each mistake and its line, and
// returns an error of wrong.
func (b *Batch) connect(wrong func(line int, err error) error) error {
	known := b.First() - 1
	b.edges = edges{}
	b.q.mu.Lock()
	most := MaxEdges - len(b.q.edges.on)
	b.q.mu.Unlock()
	for i := range b.linked {
		l := &b.linked[i]
		on, err := b.resolve(l, known, most, wrong)
		if err != nil {
			return err
		}
		slices.Sort(on)
		on = slices.Compact(on)
		if len(b.edges.on)+len(on)*(l.last-l.first+1) > most {
			return wrong(l.line, &InputError{Reason: fmt.Sprintf("there are more than %d edges between tasks", MaxEdges), HintText: "give the tasks groups, and have one come after another"})
		}
		if len(on) == 0 {
			continue
		}
		for t := l.first; t <= l.last; t++ {
			b.edges.add(known+t, on...)
		}
	}
	g := b.graph(known)
	if cycle := g.cycle(); cycle != nil {
		line, text := g.describe(b, known, cycle)
		return wrong(line, &InputError{Reason: text, HintText: "remove one of these dependencies; nothing was submitted"})
	}
	return nil
}

// resolve returns the tasks that linked tasks come after.
func (b *Batch) resolve(l *linked, known, most int, wrong func(int, error) error) (on []int32, err error) {
	add := func(first, last int) bool {
		if last-first >= most-len(on) {
			return false
		}
		for t := first; t <= last; t++ {
			on = append(on, int32(t))
		}
		return true
	}
	fits := true
	for _, id := range l.ids {
		s, ok := b.ids[id]
		if !ok {
			if b.blind {
				continue // a line that could not be read may have it
			}
			hint := "give a task that id, in any line; tasks that were submitted before are named by their numbers"
			if err := wrong(l.line, &InputError{Reason: "no task has the id " + id, HintText: hint}); err != nil {
				return nil, err
			}
			continue
		}
		fits = fits && add(known+s.first, known+s.last)
	}
	for _, r := range slices.Concat(b.o.AfterTasks, l.own) {
		if r[1] == openEnd {
			r[1] = known
		}
		if r[0] < 1 || r[1] < r[0] || r[1] > known {
			hint := "tasks of the same submission are named by their ids"
			if known > 0 {
				hint = fmt.Sprintf("the tasks that were submitted before have the numbers 1 to %d; %s", known, hint)
			}
			if err := wrong(l.line, &InputError{Reason: fmt.Sprintf("there is no task %d to come after", max(r[0], min(r[1], math.MaxInt32))), HintText: hint}); err != nil {
				return nil, err
			}
			continue
		}
		fits = fits && add(r[0], r[1])
	}
	if !fits {
		return nil, wrong(l.line, &InputError{Reason: fmt.Sprintf("there are more than %d edges between tasks", MaxEdges), HintText: "give the tasks groups, and have one come after another"})
	}
	return on, nil
}

// appendEdges appends the edges of the batch as lines.
func (b *Batch) appendEdges(known int, write func(line []byte) error) error {
	var line []byte
	for i, t := range b.edges.tasks {
		for part := range slices.Chunk(b.edges.at(i), edgesOfLine) {
			line = strconv.AppendInt(append(line[:0], '['), int64(t)-int64(known), 10)
			for _, d := range part {
				n := int64(d)
				if n > int64(known) {
					n = int64(known) - n
				}
				line = strconv.AppendInt(append(line, ','), n, 10)
			}
			if err := write(append(line, ']', '\n')); err != nil {
				return err
			}
		}
	}
	return nil
}

// graph is the tasks and groups of a directory and a batch. Its nodes are the numbers of
// tasks, and -1-N for the end of all tasks of group N.
type graph struct {
	old, more *edges
	names     []string
	after     [][]int
	members   [][]int32 // tasks with edges, by group
	of        func(task int) int
}

// graph returns the graph of the directory with the batch.
func (b *Batch) graph(known int) *graph {
	q := b.q
	q.mu.Lock()
	defer q.mu.Unlock()
	g := &graph{old: &q.edges, more: &b.edges}
	number := make(map[string]int)
	group := func(name string) int {
		n, ok := number[name]
		if !ok {
			n = len(g.names)
			number[name] = n
			g.names, g.after, g.members = append(g.names, name), append(g.after, nil), append(g.members, nil)
		}
		return n
	}
	for i, o := range q.groups { // with the same numbers
		group(o.name)
		g.after[i] = slices.Clone(o.after)
	}
	for _, o := range b.groups {
		n := group(o.Name)
		for _, a := range o.After {
			if m := group(a); !slices.Contains(g.after[n], m) {
				g.after[n] = append(g.after[n], m)
			}
		}
	}
	places := make(map[int]int) // groups of the tasks with ids or edges in the batch
	note := func(s span) {
		for t := s.first; t <= s.last; t++ {
			places[known+t] = group(s.group)
		}
	}
	for _, s := range b.ids {
		note(s)
	}
	for i := range b.linked {
		note(b.linked[i].span)
	}
	g.of = func(task int) int {
		if task > known {
			return places[task]
		}
		e, _ := q.entry(task)
		return int(e.group)
	}
	for _, list := range []*edges{g.old, g.more} {
		for _, t := range list.tasks {
			n := g.of(int(t))
			g.members[n] = append(g.members[n], t)
		}
	}
	return g
}

// before returns the nodes that a node comes after.
func (g *graph) before(node int) (list []int) {
	group := -1 - node
	if node > 0 {
		group = g.of(node)
		for _, e := range []*edges{g.old, g.more} {
			for _, d := range e.of(node) {
				list = append(list, int(d))
			}
		}
	} else {
		for _, t := range g.members[group] {
			list = append(list, int(t))
		}
	}
	for _, a := range g.after[group] {
		list = append(list, -1-a)
	}
	return list
}

// cycle returns the nodes of a cycle, each before the node that it comes after; nil if there
// is none. Every new cycle has an edge or a group of the batch in it.
func (g *graph) cycle() []int {
	if len(g.more.on)+len(g.old.on) == 0 {
		return nil // cycles of groups alone were refused before
	}
	type step struct {
		node int
		rest []int
	}
	const open, done = 1, 2
	state := make(map[int]uint8)
	var begins []int
	for _, t := range g.more.tasks {
		begins = append(begins, int(t))
	}
	for n := range g.names {
		if len(g.after[n]) > 0 {
			begins = append(begins, -1-n)
		}
	}
	for _, begin := range begins {
		if state[begin] != 0 {
			continue
		}
		state[begin] = open
		for way := []step{{begin, g.before(begin)}}; len(way) > 0; {
			top := &way[len(way)-1]
			if len(top.rest) == 0 {
				state[top.node] = done
				way = way[:len(way)-1]
				continue
			}
			next := top.rest[0]
			top.rest = top.rest[1:]
			switch state[next] {
			case 0:
				state[next] = open
				way = append(way, step{next, g.before(next)})
			case open:
				var nodes []int
				for i := slices.IndexFunc(way, func(s step) bool { return s.node == next }); i < len(way); i++ {
					nodes = append(nodes, way[i].node)
				}
				return nodes
			}
		}
	}
	return nil
}

// maxCycle is how many tasks of a cycle a message names.
const maxCycle = 8

// describe returns the first line of the batch that is in a cycle, and a text about it that
// begins there.
func (g *graph) describe(b *Batch, known int, cycle []int) (line int, text string) {
	at := func(node int) *linked {
		i, ok := slices.BinarySearchFunc(b.linked, node-known, func(l linked, place int) int {
			switch {
			case l.last < place:
				return -1
			case l.first > place:
				return 1
			}
			return 0
		})
		if !ok {
			return nil
		}
		return &b.linked[i]
	}
	begin := 0
	for i, n := range cycle {
		if l := at(n); l != nil && (line == 0 || l.line < line) {
			begin, line = i, l.line
		}
	}
	name := func(node int) string {
		for id, s := range b.ids {
			if node-known >= s.first && node-known <= s.last {
				return "task " + id
			}
		}
		switch {
		case node < 0:
			return "group " + g.names[-1-node]
		case node <= known:
			return fmt.Sprintf("task %d", node)
		default:
			return "a task without an id"
		}
	}
	cycle = slices.Concat(cycle[begin:], cycle[:begin], cycle[begin:begin+1])
	text = name(cycle[0]) + " would come after itself: it comes after "
	for i, n := range cycle[1:] {
		if i > 0 {
			text += ", which comes after "
		}
		if i == maxCycle && len(cycle) > maxCycle+2 {
			return line, text + fmt.Sprintf("%d others, and these after %s", len(cycle)-2-i, name(cycle[0]))
		}
		text += name(n)
	}
	return line, text
}
