package shim

import (
	"maps"
	"slices"
	"time"

	"premix/internal/engine/queue"
	"premix/internal/engine/spawn"
)

// wakes is the blocked batches by the events that may release jobs of them: a job has started
// or ended. A batch that is no longer blocked stays until its event comes.
type wakes struct {
	byArray map[int][]*batch    // by the id of the array, or of the job
	byName  map[string][]*batch // --dependency=singleton
	due     map[*batch]bool     // to be looked at the next time
}

func newWakes() wakes {
	return wakes{byArray: make(map[int][]*batch), byName: make(map[string][]*batch), due: make(map[*batch]bool)}
}

// add notes the events for which a job of a batch waits.
func (k *wakes) add(b *batch, j *job) {
	k.due[b] = true
	if j.Width > 0 {
		k.on(j.array(), b)
	}
	if j.needs == nil {
		return
	}
	for _, c := range j.needs.conditions {
		if c.kind == "singleton" {
			k.byName[j.Name] = append(k.byName[j.Name], b)
		}
		for _, text := range c.jobs {
			k.on(leading(text), b)
		}
	}
}

func (k *wakes) on(array int, b *batch) { k.byArray[array] = append(k.byArray[array], b) }

// leading returns the number with which the name of a job begins.
func leading(text string) (n int) {
	for _, c := range text {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int(c-'0')
	}
	return n
}

// happened notes that jobs have started or ended.
func (k *wakes) happened(jobs []*job) {
	for _, j := range jobs {
		k.byArray[j.array()] = k.rouse(k.byArray[j.array()])
		if list := k.byName[j.Name]; list != nil {
			k.byName[j.Name] = k.rouse(list)
		}
		if len(k.byArray[j.array()]) == 0 {
			delete(k.byArray, j.array())
		}
	}
}

// rouse has blocked batches looked at, and returns these.
func (k *wakes) rouse(list []*batch) []*batch {
	list = slices.DeleteFunc(list, func(b *batch) bool { return !b.blocked })
	for _, b := range list {
		k.due[b] = true
	}
	return list
}

// recheck is the time after which blocked jobs are looked at although nothing has changed:
// premix task may have released one.
const recheck = 30 * time.Second

// happened returns the jobs that have started or ended since the last call. The caller holds
// mu.
func (w *worker) happened(running map[int]spawn.Running) (jobs []*job) {
	seen := make(map[int]bool)
	note := func(id int) {
		if id <= w.known && !seen[id] {
			seen[id] = true
			jobs = append(jobs, w.job(id))
		}
	}
	if moves := w.q.Moves(); moves != w.moves {
		w.moves = moves
		var ids []int
		w.states, ids = w.q.Moved(w.states)
		for _, id := range ids {
			note(id)
		}
	}
	for id, r := range running {
		if before, ok := w.ran[id]; !ok || before.ID != r.ID {
			note(id)
		}
	}
	for id := range w.ran {
		if _, ok := running[id]; !ok {
			note(id)
		}
	}
	w.ran = running
	return jobs
}

// pass is one look at blocked batches.
type pass struct {
	w       *worker
	running map[int]spawn.Running
	now     time.Time
	room    map[int]int      // elements that may start, by array
	tallies map[string]tally // by the name of jobs
	free    [][2]int
	doomed  [][2]int
}

// later has blocked jobs looked at at a time.
func (p *pass) later(t time.Time) {
	if t.After(p.now) && t.Before(p.w.due) {
		p.w.due = t
	}
}

// release has blocked jobs run whose time has come: of all batches, or of those that an event
// concerns. The caller holds mu.
func (w *worker) release(running map[int]spawn.Running, all bool) {
	if len(w.blocked) == 0 {
		clear(w.wakes.due)
		return
	}
	p := &pass{w: w, running: running, now: time.Now(), room: make(map[int]int), tallies: make(map[string]tally)}
	var look []*batch
	if all = all || !p.now.Before(w.due); all {
		w.due = p.now.Add(recheck)
		look = w.blocked
	} else {
		for b := range w.wakes.due {
			if b.blocked {
				look = append(look, b)
			}
		}
		slices.SortFunc(look, func(a, b *batch) int { return a.first - b.first })
	}
	clear(w.wakes.due)
	done := false
	for _, b := range look {
		b.blocked = p.batch(b)
		done = done || !b.blocked
	}
	if done {
		w.blocked = slices.DeleteFunc(w.blocked, func(b *batch) bool { return !b.blocked })
	}
	// On an error, for example a full disk, the next worker tries again when it starts.
	if len(p.free) > 0 {
		_, _ = w.q.Release(&queue.Selection{Tasks: p.free})
		w.stir()
	}
	if len(p.doomed) > 0 {
		_, _ = w.q.Cancel(&queue.Selection{Tasks: p.doomed})
	}
}

// batch looks at the held jobs of a batch, and reports whether some stay held.
func (p *pass) batch(b *batch) (held bool) {
	for _, id := range slices.Sorted(maps.Keys(b.apart)) {
		held = p.some(b, b.own[id], [][2]int{{id, id}}) || held
	}
	apart := func(id int) bool { return b.apart[id] && b.array != nil }
	first := p.w.q.HeldFrom(b.first, b.last(), 1, apart)
	if len(first) == 0 {
		return held
	}
	j := b.job(first[0][0])
	if j.needs == nil || !j.needs.corresponds() || b.array == nil {
		return p.some(b, j, p.w.q.HeldFrom(b.first, b.last(), b.n, apart)) || held
	}
	for _, r := range p.w.q.HeldFrom(b.first, b.last(), b.n, apart) {
		for j := range p.w.span(r[0], r[1]) {
			held = p.some(b, j, [][2]int{{j.id, j.id}}) || held
		}
	}
	return held
}

// some looks at held jobs that are in the same position as one of them, and reports whether
// some stay held.
func (p *pass) some(b *batch, j *job, ranges [][2]int) (held bool) {
	if p.w.q.State(j.id) != queue.Waiting || !p.w.q.Held(j.id) {
		return false
	}
	if p.later(j.Begin); j.userHeld || p.now.Before(j.Begin) {
		return true
	}
	if j.needs != nil {
		switch p.w.satisfied(j, p) {
		case never:
			if j.KillDep {
				p.doomed = append(p.doomed, ranges...)
				return false
			}
			p.invalidate(b, j)
			return true
		case notYet:
			if j.needs.waits() {
				p.later(p.now.Add(time.Second))
			}
			return true
		}
	}
	if j.Width == 0 {
		p.free = append(p.free, ranges...)
		return false
	}
	left, ok := p.room[j.array()]
	if !ok {
		first, last := j.array(), j.array()+j.Array-1
		c := p.w.q.Census(first, last)
		left = max(0, j.Width-(c.Counts[queue.Waiting]-c.Held)-p.w.leaving(first, last, p.running))
	}
	for _, r := range ranges {
		n := min(left, r[1]-r[0]+1)
		if n > 0 {
			p.free = append(p.free, [2]int{r[0], r[0] + n - 1})
			left -= n
		}
		held = held || n < r[1]-r[0]+1
	}
	p.room[j.array()] = left
	return held
}

// invalidate notes that the dependency of a job can never be satisfied, and with it those of
// the elements that have the same one.
func (p *pass) invalidate(b *batch, j *job) {
	if b.array != nil && !b.apart[j.id] {
		if j.needs.corresponds() {
			j.invalid = true
			p.w.apart(j)
			return
		}
		b.proto.invalid = true
	}
	j.invalid = true
}
