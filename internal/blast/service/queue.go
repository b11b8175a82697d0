package service

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// queue holds the waiting items by user. See the package documentation for the order.
type queue struct {
	users   map[string]*line
	jobs    int
	letters int64
	came    time.Time // time at which the last one was on the disk
}

// line holds the waiting items of one user.
type line struct {
	name    string
	clock   int64 // number of letters searched for this user
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

// behind returns the lowest clock of the waiting users.
func (q *queue) behind() int64 {
	first, any := int64(0), false
	for _, l := range q.users {
		if len(l.items) > 0 && (!any || l.clock < first) {
			first, any = l.clock, true
		}
	}
	return first
}

// order returns the waiting users, ordered by clock.
func (q *queue) order() []*line {
	lines := slices.DeleteFunc(slices.Collect(maps.Values(q.users)), func(l *line) bool { return len(l.items) == 0 })
	slices.SortFunc(lines, func(a, b *line) int { return cmp.Or(cmp.Compare(a.clock, b.clock), cmp.Compare(a.name, b.name)) })
	return lines
}

// take removes and returns the items of the next scan. An item can lead it after waiting
// for delay. If none has, take returns the time until one will have, or 0 if none waits. A
// scan for small jobs is led by an item of at most most letters.
//
// While others keep coming, each within delay of the one before, and they do not fill a
// scan yet, the leading item waits longer, by the time that more returns for its key.
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
	// Take one item of each user in turn, those with the lowest clocks first.
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

// remove removes an item, and advances its user's clock.
func (q *queue) remove(i *item) {
	l := q.users[i.job.User]
	at := slices.Index(l.items, i)
	l.items = slices.Delete(l.items, at, at+1)
	l.letters -= i.job.Letters
	l.clock += i.job.Letters
	q.jobs--
	q.letters -= i.job.Letters
	if len(l.items) == 0 && len(q.users) > 4096 {
		// A clock below all others has no effect, so drop it.
		maps.DeleteFunc(q.users, func(_ string, l *line) bool { return len(l.items) == 0 })
	}
}

// drop removes the items of a job.
func (q *queue) drop(j *job) {
	l := q.users[j.User]
	if l == nil {
		return
	}
	for _, i := range slices.Clone(l.items) {
		if i.job == j {
			q.remove(i)
			l.clock -= j.Letters // no search was made for it
		}
	}
}
