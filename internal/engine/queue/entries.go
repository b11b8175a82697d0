package queue

import (
	"math"
	"slices"
	"sync/atomic"

	"premix/internal/record"
)

// The elements of an array have no entries before one of them has a state of its own: the entry
// of the first element counts for all. It has the number of the elements with an entry, which
// are always the first ones, and the flags of the others. When an element is to change, it and
// all elements before it get entries; an order about all elements without one changes their
// flags. So an array that waits takes one entry, and the file has a hole in place of the others.

// entries is the entries of the tasks as readers see them. It is for a moment: the caller holds
// mu, and changes no entry.
type entries struct {
	all    []entry
	arrays [][2]int
	// The tasks from first to last, where the last lookup was, have entries of their own, or one.
	first, last int
	shared      bool
	one         entry
}

// entries returns the entries of the tasks whose orders this queue has read. The index is
// shared: another process may have added entries whose batch, groups and defaults are not in
// q.list yet. The caller holds mu.
func (q *Queue) entries() entries {
	all := q.x.all()
	v := entries{all: all[:min(len(all), q.known)], arrays: q.arrays}
	if len(v.arrays) == 0 {
		v.first, v.last = 1, math.MaxInt
	}
	return v
}

// len returns the number of tasks.
func (v *entries) len() int { return len(v.all) }

// at returns the entry of a task.
func (v *entries) at(task int) entry {
	if task < v.first || task > v.last {
		v.find(task)
	}
	if v.shared {
		return v.one
	}
	return v.all[task-1]
}

// find looks up where the entry of a task is.
func (v *entries) find(task int) {
	i, in := arrayOf(v.arrays, task)
	v.first, v.last, v.shared = 1, math.MaxInt, false
	if !in {
		if i > 0 {
			v.first = v.arrays[i-1][1] + 1
		}
		if i < len(v.arrays) {
			v.last = v.arrays[i][0] - 1
		}
		return
	}
	a := v.arrays[i]
	e := &v.all[a[0]-1]
	without := a[0] + int(atomic.LoadUint32(&e.own)) // the first task without an entry
	if task < without {
		v.first, v.last = a[0], without-1
		return
	}
	v.first, v.last, v.shared, v.one = without, a[1], true, e.rest()
}

// arrayOf returns the position of the array of a task. If it is in none, that is the position of
// the next one.
func arrayOf(arrays [][2]int, task int) (i int, in bool) {
	i, _ = slices.BinarySearchFunc(arrays, task, func(a [2]int, task int) int { return a[1] - task })
	return i, i < len(arrays) && task >= arrays[i][0]
}

// without returns the first element without an entry of the array of a task, and the array's
// first and last task; ok is false if the task is in no array, or has an entry.
func (q *Queue) without(task int) (first, without, last int, ok bool) {
	i, in := arrayOf(q.arrays, task)
	if !in {
		return 0, 0, 0, false
	}
	a := q.arrays[i]
	without = a[0] + int(q.x.all()[a[0]-1].own)
	return a[0], without, a[1], task >= without
}

// ownEntry returns the entry of a task, to be changed. The caller holds mu and lock.
func (q *Queue) ownEntry(task int) (*entry, error) {
	first, without, last, ok := q.without(task)
	all := q.x.all()
	if !ok {
		return &all[task-1], nil
	}
	until := min(last, lastOfBlock(task))
	if err := q.x.allocate(without, until); err != nil {
		return nil, err
	}
	e := all[first-1].rest()
	for t := without; t <= until; t++ {
		all[t-1] = e
	}
	// A reader takes no lock, and reads an entry only when it is counted.
	atomic.StoreUint32(&all[first-1].own, uint32(until-first+1))
	return &all[task-1], nil
}

// changeRest applies an order that is not a batch to the elements of an array without an entry, if
// task is the first of them and the order is about all of them. It returns the last of them; 0
// if they need entries.
func (q *Queue) changeRest(o *Order, task int, which [3]int) (last int) {
	first, without, last, ok := q.without(task)
	if !ok || task > without || which[1] < last {
		return 0
	}
	e := &q.x.all()[first-1]
	after := e.rest()
	o.change(&after, which[2])
	flags := after.flags
	if after.flags = e.others; after != e.rest() {
		return 0
	}
	e.others = flags
	return last
}

// reserve has the tasks of records have entries, so that the records can be applied even if the
// disk is full then. The caller holds mu.
func (q *Queue) reserve(records []*record.Task) error {
	lacks := func(r *record.Task) bool {
		if r.Task < 1 || r.Task > min(len(q.x.all()), q.known) {
			return false
		}
		_, _, _, ok := q.without(r.Task)
		return ok
	}
	if !slices.ContainsFunc(records, lacks) {
		return nil
	}
	return q.locked(func() error {
		for _, r := range records {
			if lacks(r) {
				if _, err := q.ownEntry(r.Task); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
