package report

import (
	"cmp"
	"iter"
	"slices"

	"premix/internal/record"
)

// Limits of the page.
const (
	maxShown    = 20_000 // tries in the time line and the table
	maxStderr   = 2_000  // tasks with their standard error
	stderrBytes = 4 << 10
)

// picks chooses the tries that the page shows: all, or where there are too many those that
// failed and the longest. It needs 16 bytes a try.
type picks struct {
	keys []pickKey
	last map[int]int // the last try of each task
}

type pickKey struct {
	at      int
	seconds float32
	failed  bool
}

func newPicks() *picks { return &picks{last: make(map[int]int)} }

func (p *picks) add(rec *record.Task) {
	p.keys = append(p.keys, pickKey{len(p.keys), float32(rec.Seconds), !rec.OK()})
	p.last[rec.Task] = max(p.last[rec.Task], rec.Try)
}

// read reads the chosen tries: the last try of each task first, in the order of the tasks,
// and then the earlier ones. more is the number of the tries that were not chosen.
func (p *picks) read(records iter.Seq2[*record.Task, error], of common) (shown []try, more int, err error) {
	if more = max(0, len(p.keys)-maxShown); more > 0 {
		slices.SortFunc(p.keys, func(a, b pickKey) int {
			if a.failed != b.failed {
				return map[bool]int{true: -1, false: 1}[a.failed]
			}
			return cmp.Or(cmp.Compare(b.seconds, a.seconds), cmp.Compare(a.at, b.at))
		})
		p.keys = p.keys[:maxShown]
		slices.SortFunc(p.keys, func(a, b pickKey) int { return a.at - b.at })
	}
	at, next := 0, 0
	for rec, err := range records {
		if err != nil {
			return nil, 0, err
		}
		if next == len(p.keys) {
			break // tries that ended since
		}
		if p.keys[next].at == at {
			of.fill(rec)
			shown = append(shown, try{Task: *rec, last: rec.Try == p.last[rec.Task]})
			next++
		}
		at++
	}
	slices.SortStableFunc(shown, func(a, b try) int {
		if a.last != b.last {
			return map[bool]int{true: -1, false: 1}[a.last]
		}
		if a.last {
			return a.Task.Task - b.Task.Task
		}
		return 0
	})
	return shown, more, nil
}

// stderr adds the standard error of tasks that failed, which read returns.
func (u *Usage) stderr(read func(*record.Task) []string) {
	n := 0
	for i := range u.shown {
		t := &u.shown[i]
		if !t.last || t.OK() || t.Cause == record.CauseInterrupted {
			continue
		}
		if n++; n > maxStderr {
			return
		}
		t.stderr = read(&t.Task)
	}
}
