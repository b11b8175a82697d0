package service

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// queue holds the items that wait, by users. See the package's description for who
// comes next.
type queue struct {
	users   map[string]*line
	jobs    int
	letters int64
	came    time.Time // when the last one was on the disk
}

// line is what one user has waiting.
type line struct {
	name    string
	clock   int64 // letters searched for it
	items   []*item
	letters int64
}

func newQueue() *queue { return &queue{users: map[string]*line{}} }

func (q *queue) add(i *item) {
	l := q.users[i.job.User]
	if l == nil {
		l = &line{name: i.job.User}
		q.users[l.name] = l
	}
	if len(l.items) == 0 {
		l.clock = max(l.clock, q.behind())
	}
	l.items = append(l.items, i)
	l.letters += i.job.Letters
	q.jobs++
	q.letters += i.job.Letters
}

// behind is the earliest clock of those who wait.
func (q *queue) behind() int64 {
	first, any := int64(0), false
	for _, l := range q.users {
		if len(l.items) > 0 && (!any || l.clock < first) {
			first, any = l.clock, true
		}
	}
	return first
}

// order is that of the users who wait.
func (q *queue) order() []*line {
	lines := slices.DeleteFunc(slices.Collect(maps.Values(q.users)), func(l *line) bool { return len(l.items) == 0 })
	slices.SortFunc(lines, func(a, b *line) int { return cmp.Or(cmp.Compare(a.clock, b.clock), cmp.Compare(a.name, b.name)) })
	return lines
}

// take takes the items of the next scan. Items that lead it have waited for delay;
// otherwise it tells how long it takes until one has, 0 where none waits. A scan for
// small jobs only is led by one of at most most letters.
//
// While others keep coming, each within delay of the one before, and there are fewer
// letters than fill a scan, the lead waits longer, by what more tells of its key.
func (q *queue) take(now time.Time, delay time.Duration, more func(key string) time.Duration, most int64, small bool) ([]*item, time.Duration) {
	lines := q.order()
	var lead *item
	var wait time.Duration
	for _, l := range lines {
		at := slices.IndexFunc(l.items, func(i *item) bool { return !i.held && (!small || i.job.Letters <= most) })
		if at < 0 {
			continue
		}
		due := l.items[at].result.queued.Add(delay)
		left := due.Sub(now)
		if left <= 0 && q.letters < most {
			left = min(due.Add(more(l.items[at].key)).Sub(now), q.came.Add(delay).Sub(now))
		}
		if left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		lead = l.items[at]
		break
	}
	if lead == nil {
		return nil, wait
	}
	items := []*item{lead}
	q.remove(lead)
	letters, key := lead.job.Letters, lead.key
	// One of each user in turn, those whose clocks are behind first.
	for {
		found := false
		for _, l := range q.order() {
			at := slices.IndexFunc(l.items, func(i *item) bool { return !i.held && letters+i.job.Letters <= most && i.key == key })
			if at < 0 {
				continue
			}
			i := l.items[at]
			q.remove(i)
			items = append(items, i)
			letters += i.job.Letters
			found = true
		}
		if !found {
			return items, 0
		}
	}
}

// remove takes an item out, and lets its user's clock run.
func (q *queue) remove(i *item) {
	l := q.users[i.job.User]
	at := slices.Index(l.items, i)
	l.items = slices.Delete(l.items, at, at+1)
	l.letters -= i.job.Letters
	l.clock += i.job.Letters
	q.jobs--
	q.letters -= i.job.Letters
	if len(l.items) == 0 && len(q.users) > 4096 {
		// A clock that is behind everybody's means nothing.
		maps.DeleteFunc(q.users, func(_ string, l *line) bool { return len(l.items) == 0 })
	}
}

// drop takes the items of a job out.
func (q *queue) drop(j *job) {
	l := q.users[j.User]
	if l == nil {
		return
	}
	for _, i := range slices.Clone(l.items) {
		if i.job == j {
			q.remove(i)
			l.clock -= j.Letters // it was not searched for
		}
	}
}
