package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"premix/internal/engine"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// What an engine needs that spreads a directory over workers.

// WorkerLock returns the path of the lock that a worker holds while it works.
func (q *Queue) WorkerLock(worker string) string { return q.workLock(worker) }

// Ledger returns the path of the ledger of an engine; see package pilot.
func (q *Queue) Ledger() string { return q.path("ledger.jsonl") }

// Follower reads the records of a directory as they come, of all workers. It is for
// one goroutine.
type Follower struct {
	q  *Queue
	at map[int]int64 // how far each journal was read
}

// Follower returns a Follower that begins with the first record.
func (q *Queue) Follower() *Follower { return &Follower{q: q, at: make(map[int]int64)} }

// Next calls f for each record that was not read before.
func (f *Follower) Next(each func(*record.Task)) error {
	numbers, sizes, err := f.q.journals()
	if err != nil {
		return err
	}
	for i, n := range numbers {
		if f.at[n] >= sizes[i] {
			continue
		}
		if err := f.read(n, each); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (f *Follower) read(n int, each func(*record.Task)) error {
	file, err := owner.OpenOthers(f.q.journalPath(n))
	if err != nil {
		return err
	}
	defer file.Close()
	f.at[n], err = record.Follow(file, f.at[n], func(line []byte, _ int64) error {
		var r record.Task
		if json.Unmarshal(line, &r) == nil {
			each(&r)
		}
		return nil
	})
	return err
}

// ReadyTask is a task that could start now.
type ReadyTask struct {
	Task   int
	Key    string // group and first word of the command
	Cores  int
	Memory int64  // grown for tries that ran out of it
	Ask    string // as in Spec
	// Resources are as in Options.
	Resources string
}

// EachReady calls f for the tasks that wait and are not held, with nothing before them that has not succeeded, and
// that skip does not skip. The order is: the highest priority first, then tasks that have
// failed before, then by number. EachReady ends when f returns false.
func (q *Queue) EachReady(skip func(task int) bool, f func(*ReadyTask) bool) error {
	q.mu.Lock()
	ready := make([]bool, len(q.groups))
	for g := range q.groups {
		ready[g] = !slices.ContainsFunc(q.groups[g].after, func(a int) bool { return !q.groups[a].complete() })
	}
	type place struct {
		priority int32
		fresh    bool // it has not failed before
	}
	found := make(map[place][][2]int)
	entries := q.entries()
	for i := range entries.len() {
		e := entries.at(i + 1)
		if e.state() != Waiting || e.flags&flagHeld != 0 || !ready[e.group] || skip(i+1) {
			continue
		}
		if _, on := q.unmet(&entries, i+1, 0); on > 0 {
			continue
		}
		p := place{e.priority, e.fails == 0}
		list := found[p]
		if last := len(list) - 1; last >= 0 && list[last][1] == i {
			list[last][1] = i + 1
		} else {
			found[p] = append(list, [2]int{i + 1, i + 1})
		}
	}
	q.mu.Unlock()
	var places []place
	for p := range found {
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b place) int {
		switch {
		case a.priority != b.priority:
			return int(b.priority) - int(a.priority)
		case a.fresh == b.fresh:
			return 0
		case a.fresh:
			return 1
		}
		return -1
	})
	for _, p := range places {
		for _, r := range found[p] {
			for t := r[0]; t <= r[1]; t++ {
				s, err := q.startable(t)
				if err != nil {
					return err
				}
				if !f(s) {
					return nil
				}
			}
		}
	}
	return nil
}

// Left returns how many tasks of ranges wait and are not held.
func (q *Queue) Left(ranges [][2]int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	entries := q.entries()
	for _, r := range ranges {
		for t := max(r[0], 1); t <= min(r[1], entries.len()); t++ {
			if e := entries.at(t); e.state() == Waiting && e.flags&flagHeld == 0 {
				n++
			}
		}
	}
	return n
}

func (q *Queue) startable(task int) (*ReadyTask, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, spec, err := q.look(task)
	if err != nil {
		return nil, err
	}
	return &ReadyTask{Task: task, Key: spec.key(), Cores: spec.Cores, Memory: engine.Grown(spec.Memory, spec.Growth, int(e.ooms)), Ask: spec.Ask, Resources: spec.Resources}, nil
}

// Key returns the key of a task, as in ReadyTask; "" if the task does not exist.
func (q *Queue) Key(task int) string {
	spec, err := q.Spec(task)
	if err != nil {
		return ""
	}
	return spec.key()
}

// key returns a key that tasks with about the same run time have in common: their group and
// the first word of their command.
func (s *Spec) key() string {
	word := s.Command
	if len(s.Argv) > 0 {
		word = s.Argv[0]
	} else if i := strings.IndexAny(word, " \t"); i > 0 {
		word = word[:i]
	}
	return s.Group + "\x00" + word
}

// GiveUp records that a waiting task failed for good, without a try that ended. It is
// for a worker.
func (q *Queue) GiveUp(task int, reason, hint string) error {
	for q.State(task) == Waiting {
		q.mu.Lock()
		e, ok := q.entry(task)
		q.mu.Unlock()
		if !ok {
			return nil
		}
		spec, err := q.Spec(task)
		if err != nil {
			return err
		}
		now := time.Now().UTC()
		r := &record.Task{Task: task, Sample: strings.ToValidUTF8(spec.Name, "?"), Try: int(e.try) + 1, Exit: -1, Queued: now, Started: now, Finished: now,
			Cause: record.CauseLost, Error: string(bytes.ToValidUTF8([]byte(reason), []byte("?"))), Hint: hint}
		if spec.Recipe != nil {
			r.Outputs = spec.Recipe.Paths()
		}
		if err := q.Settle([]*record.Task{r}); err != nil {
			return err
		}
	}
	return nil
}
