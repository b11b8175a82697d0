package queue

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// endingsInterval is how often Endings looks for new records and orders. A look that finds
// none reads the names and sizes of the journals.
const endingsInterval = 50 * time.Millisecond

// ending is the state of a task for which Endings has called its function.
type ending struct {
	state   State
	try     uint16
	skipped bool
}

// Endings calls f for each task of a selection that has succeeded, failed, was cancelled or is skipped:
// first for the tasks that have ended before, by number, then for the others as they end. It
// calls f again for a task that was retried and has ended once more. Without stay, Endings
// returns when all tasks of the selection have ended; otherwise it returns when stay is
// closed. between is called when f was called for all known endings. An error of f or between
// ends it.
func (q *Queue) Endings(s *Selection, stay <-chan struct{}, f func(*Explanation) error, between func() error) error {
	seen := make(map[int]ending)
	var last int64 = -1
	for leave := false; ; {
		size, err := q.written()
		if err != nil {
			return err
		}
		if size != last {
			open, err := q.endings(s, seen, f)
			if err != nil {
				return err
			}
			if err := between(); err != nil {
				return err
			}
			if !open && stay == nil {
				return nil
			}
			last = size
		}
		if leave {
			return nil
		}
		select {
		case <-stay:
			leave = true // after one more look
		case <-time.After(endingsInterval):
		}
	}
}

// written returns the number of bytes in orders and journals, which only grow.
func (q *Queue) written() (int64, error) {
	_, sizes, err := q.journals()
	if err != nil {
		return 0, err
	}
	info, err := os.Stat(q.path(ordersFile))
	if err == nil {
		sizes = append(sizes, info.Size())
	} else if !errors.Is(err, fs.ErrNotExist) { // a run may have none
		return 0, err
	}
	var sum int64
	for _, n := range sizes {
		sum += n
	}
	return sum, nil
}

// endings calls f for the endings that are not in seen, and adds them. open reports whether a
// task of the selection has not ended.
func (q *Queue) endings(s *Selection, seen map[int]ending, f func(*Explanation) error) (open bool, err error) {
	if err := q.Refresh(); err != nil {
		return false, err
	}
	var finished []int
	q.mu.Lock()
	skips := q.skips()
	err = q.each(s, func(task int, e *entry) {
		now := ending{e.state(), e.try, skips.has(task, e)}
		if now.state == Waiting && !now.skipped {
			open = true
			delete(seen, task)
			return
		}
		if seen[task] != now {
			seen[task] = now
			finished = append(finished, task)
		}
	})
	q.mu.Unlock()
	if err != nil {
		return false, err
	}
	for _, task := range finished {
		x, err := q.explain(task, nil, true)
		if err != nil {
			return false, err
		}
		if x.State == Waiting.String() {
			open = true // it was retried in between
			delete(seen, task)
			continue
		}
		if err := f(x); err != nil {
			return false, err
		}
	}
	return open, nil
}
