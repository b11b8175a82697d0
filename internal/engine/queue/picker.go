package queue

import (
	"math"
	"slices"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/spawn"
)

// Picker chooses the next task. It holds the waiting tasks as ranges of numbers, so that
// half a million tasks of one batch are one range. It is for one goroutine.
//
// It is fair: among the users with tasks that can start, it takes the user who has had the
// least core time. Among this user's tasks the highest priority comes first, and among the
// groups with tasks of this priority the group with the least core time. A task that failed
// comes before the tasks of its group and priority that have not run.
type Picker struct {
	// Passes reports whether other tasks may start before a task that does not fit, because it
	// waits for something that they do not take. nil: they may not.
	Passes func(*Task) bool

	q      *Queue
	share  [][2]int           // nil: all
	lanes  [][]*lane          // by group; the highest priority first
	seen   int                // tasks that were added
	orders int                // number of applied orders
	active map[int]Allocation // tasks that were picked and not given back
	core   []float64          // core seconds by group
	later  map[int][]waiter   // tasks that wait for a task to succeed, by that task
	users  map[string]float64
}

// Allocation is the resources that an active task takes.
type Allocation struct {
	Cores  int
	Memory int64
	charge float64
	group  int
}

// waiter is a task that waits for another one by an edge. Once a task has succeeded it stays so,
// and each edge is looked at once.
type waiter struct{ task, position int }

// lane are the waiting tasks of one group and one priority.
type lane struct {
	priority int32
	first    []int    // that failed before
	ranges   [][2]int // in order
}

func (l *lane) empty() bool { return len(l.first) == 0 && len(l.ranges) == 0 }

// Task is a task that is to be run.
type Task struct {
	Number int
	Try    int
	Group  string
	Files  string // directory for a file a task, of its batch
	Ooms   int    // tries that ran out of memory
	Queued time.Time
	*Spec
}

// ID returns the id of the try for a spawner.
func (t *Task) ID() uint64 { return spawn.TryID(t.Number, t.Try) }

// Task returns a task as its next try runs it. It returns nil where no result of that try is
// wanted: the task does not exist, or it has ended.
func (q *Queue) Task(number int) (*Task, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, ok := q.entry(number)
	if !ok || e.state() == Succeeded || e.state() == Failed {
		return nil, nil
	}
	return q.task(number, &e)
}

// task returns a task as its next try runs it. The caller holds mu.
func (q *Queue) task(number int, e *entry) (*Task, error) {
	spec, err := q.spec(number, e)
	if err != nil {
		return nil, err
	}
	t := &Task{Number: number, Try: int(e.try) + 1, Group: q.groups[e.group].name, Files: q.list[e.order].Files, Ooms: int(e.ooms), Queued: q.list[e.order].At, Spec: spec}
	t.Memory = engine.Grown(t.Memory, t.Growth, t.Ooms)
	return t, nil
}

// Picker makes a picker for the waiting tasks of a share, given as the first and the last
// numbers of ranges. nil means all tasks, including later ones.
func (q *Queue) Picker(share [][2]int) *Picker {
	p := &Picker{q: q, share: share, active: make(map[int]Allocation), later: make(map[int][]waiter), users: make(map[string]float64)}
	p.Refresh()
	return p
}

// Refresh applies the orders given since the last call. The caller has refreshed the queue.
func (p *Picker) Refresh() {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	entries := p.q.entries()
	for len(p.lanes) < len(p.q.groups) {
		p.lanes = append(p.lanes, nil)
		p.core = append(p.core, p.least())
	}
	started := p.seen
	var e entry
	for ; p.seen < entries.len(); p.seen++ {
		if e = entries.at(p.seen + 1); e.runnable() {
			p.add(&entries, &e, p.seen+1, e.fails > 0)
		}
	}
	for ; p.orders < len(p.q.list); p.orders++ {
		o := p.q.list[p.orders]
		if o.Order != orderRetry && o.Order != orderRelease && o.Order != orderBegin {
			continue
		}
		for _, w := range o.Which {
			for t := w[0]; t <= min(w[1], started); t++ {
				e = entries.at(t)
				if _, active := p.active[t]; !active && e.runnable() {
					p.add(&entries, &e, t, o.Order == orderRetry)
				}
			}
		}
	}
}

// Behind reports whether the queue has orders that the picker has not applied.
func (p *Picker) Behind() bool {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	return p.orders < len(p.q.list)
}

// least returns the least core time of a group that has tasks. A new group begins with it, so
// that it does not come before all others until it has caught up.
func (p *Picker) least() float64 {
	least := math.Inf(1)
	for g, lanes := range p.lanes {
		if len(lanes) > 0 {
			least = min(least, p.core[g])
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

func (p *Picker) lane(e *entry) *lane {
	lanes := p.lanes[e.group]
	i, ok := slices.BinarySearchFunc(lanes, e.priority, func(l *lane, priority int32) int { return int(priority) - int(l.priority) })
	if !ok {
		p.lanes[e.group] = slices.Insert(lanes, i, &lane{priority: e.priority})
	}
	return p.lanes[e.group][i]
}

func (p *Picker) add(entries *entries, e *entry, task int, failed bool) {
	if p.share != nil && !slices.ContainsFunc(p.share, func(r [2]int) bool { return task >= r[0] && task <= r[1] }) {
		return
	}
	if p.awaits(entries, task, 0) {
		return
	}
	l := p.lane(e)
	if failed {
		l.first = append(l.first, task)
		return
	}
	if last := len(l.ranges) - 1; last >= 0 && l.ranges[last][1] == task-1 {
		l.ranges[last][1] = task
		return
	}
	l.ranges = append(l.ranges, [2]int{task, task})
}

// awaits reports whether a task comes after a task that has not succeeded, and notes that it
// waits for that one. A worker with a share gets only tasks that can start.
func (p *Picker) awaits(entries *entries, task, from int) bool {
	if p.share != nil {
		return false
	}
	position, on := p.q.unmet(entries, task, from)
	if on == 0 {
		return false
	}
	p.later[on] = append(p.later[on], waiter{task, position})
	return true
}

// succeeded adds the tasks that waited for a task only.
func (p *Picker) succeeded(task int) {
	entries := p.q.entries()
	waiters := p.later[task]
	delete(p.later, task)
	for _, w := range waiters {
		e := entries.at(w.task)
		if _, active := p.active[w.task]; !active && !p.awaits(&entries, w.task, w.position+1) && e.runnable() {
			p.add(&entries, &e, w.task, e.fails > 0)
		}
	}
}

// clean drops tasks that must not run any more from the head of a lane.
func (p *Picker) clean(l *lane, entries *entries) (task int, ok bool) {
	for !l.empty() {
		if len(l.first) > 0 {
			task = l.first[0]
		} else {
			task = l.ranges[0][0]
		}
		e := entries.at(task)
		if _, active := p.active[task]; !active && e.runnable() {
			return task, true
		}
		l.pop()
	}
	return 0, false
}

func (l *lane) pop() {
	switch {
	case len(l.first) > 0:
		l.first = l.first[1:]
	case l.ranges[0][0] == l.ranges[0][1]:
		l.ranges = l.ranges[1:]
	default:
		l.ranges[0][0]++
	}
}

// Next returns the task to run next, or nil if none can start now. It calls fits with the
// first task in order, to ask whether it can start; if not, the task stays where it is, and
// Next goes on with the tasks that pass it.
func (p *Picker) Next(fits func(*Task) bool) (t *Task, err error) {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	entries := p.q.entries()
	var best *lane
	var number, group int
	for passed := []*lane(nil); ; passed = append(passed, best) {
		if best, number, group = p.first(&entries, passed); best == nil {
			return nil, nil
		}
		e := entries.at(number)
		if t, err = p.q.task(number, &e); err != nil {
			return nil, err
		}
		if fits(t) {
			break
		}
		if p.Passes == nil || !p.Passes(t) {
			return nil, nil
		}
	}
	best.pop()
	h := Allocation{Cores: t.Cores, Memory: t.Memory, group: group, charge: float64(t.Cores) * 0.001}
	p.active[number] = h
	p.charge(group, h.charge)
	return t, nil
}

// first returns the lane whose head comes first, of the lanes that are not passed, with the
// head's task and group.
func (p *Picker) first(entries *entries, passed []*lane) (best *lane, number, group int) {
	group = -1
	for g := range p.lanes {
		if len(p.lanes[g]) == 0 || !p.ready(g) {
			continue
		}
		for i := 0; i < len(p.lanes[g]); {
			l := p.lanes[g][i]
			task, ok := p.clean(l, entries)
			if !ok {
				p.lanes[g] = slices.Delete(p.lanes[g], i, i+1)
				continue
			}
			if slices.Contains(passed, l) {
				i++
				continue
			}
			if best == nil || p.before(g, l, group, best) {
				best, number, group = l, task, g
			}
			break
		}
	}
	return best, number, group
}

// Last reports whether every waiting task has been picked.
func (p *Picker) Last() bool {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	entries := p.q.entries()
	for _, lanes := range p.lanes {
		for _, l := range lanes {
			if _, ok := p.clean(l, &entries); ok {
				return false
			}
		}
	}
	return true
}

func (p *Picker) charge(group int, v float64) {
	p.core[group] += v
	p.users[p.q.groups[group].user] += v
}

// ready reports whether all groups before a group are complete.
func (p *Picker) ready(group int) bool {
	for _, a := range p.q.groups[group].after {
		if !p.q.groups[a].complete() {
			return false
		}
	}
	return true
}

// before reports whether the head of lane a of group g comes before the head of lane b of
// group h.
func (p *Picker) before(g int, a *lane, h int, b *lane) bool {
	u, v := p.q.groups[g].user, p.q.groups[h].user
	if u != v && p.users[u] != p.users[v] {
		return p.users[u] < p.users[v]
	}
	if u == v && a.priority != b.priority {
		return a.priority > b.priority
	}
	return p.core[g] < p.core[h]
}

// Done takes an active task back, which has run for some time. Its records are
// settled; if it waits again it is picked again.
func (p *Picker) Done(task int, seconds float64) {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	e, ok := p.q.entry(task)
	if ok && e.state() == Succeeded {
		p.succeeded(task)
	}
	h, active := p.active[task]
	if !active {
		return
	}
	delete(p.active, task)
	p.charge(h.group, float64(h.Cores)*seconds-h.charge)
	if ok && e.runnable() {
		l := p.lane(&e)
		l.first = append(l.first, task)
	}
}

// Cancelled returns the active tasks that were cancelled.
func (p *Picker) Cancelled() []int {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	var list []int
	for t := range p.active {
		if e, ok := p.q.entry(t); ok && e.state() == Cancelled {
			list = append(list, t)
		}
	}
	return list
}

// Left counts the waiting tasks: tasks that can start, now or when active tasks have ended,
// and skipped ones.
func (p *Picker) Left() (waiting, blocked int) {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	s := p.q.skips()
	entries := p.q.entries()
	for t := 1; t <= entries.len(); t++ {
		switch e := entries.at(t); {
		case s.has(t, &e):
			blocked++
		case e.state() == Waiting:
			waiting++
		}
	}
	return waiting, blocked
}

// Counts returns how many tasks of the directory are in each state.
func (q *Queue) Counts() (count [4]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, g := range q.groups {
		for s, n := range g.count {
			count[s] += n
		}
	}
	return count
}

// CountsOf returns how many tasks of ranges are in each state.
func (q *Queue) CountsOf(ranges [][2]int) (count [4]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	entries := q.entries()
	for _, r := range ranges {
		for t := max(r[0], 1); t <= min(r[1], entries.len()); t++ {
			e := entries.at(t)
			count[e.state()]++
		}
	}
	return count
}

// State returns the state of a task.
func (q *Queue) State(task int) State {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, ok := q.entry(task)
	if !ok {
		return Waiting
	}
	return e.state()
}
