package simulate

import "premix/internal/replay/machine"

// limits count running jobs for each bound of the machine or the trace.
type limits struct {
	c        *Cluster
	users    *bound
	accounts *bound
	qos      []*bound // by QOS of the machine; nil: no limits
	arrays   []int32  // running jobs; nil: no array has a limit
}

// bound is a limit that applies to each of many users, accounts or partitions.
type bound struct {
	machine.Limit
	jobs  []int32
	cores []int64
}

func newBound(l machine.Limit, n int) *bound {
	if l == (machine.Limit{}) {
		return nil
	}
	return &bound{l, make([]int32, n), make([]int64, n)}
}

func (b *bound) held(who, cores int32) bool {
	return b != nil && (b.Jobs > 0 && int(b.jobs[who]) >= b.Jobs || b.Cores > 0 && b.cores[who]+int64(cores) > int64(b.Cores))
}

func (b *bound) change(who, cores, sign int32) {
	if b != nil {
		b.jobs[who] += sign
		b.cores[who] += int64(sign * cores)
	}
}

func newLimits(c *Cluster) *limits {
	t := c.Trace
	l := &limits{c: c, users: newBound(c.Machine.User, len(t.Users.Names)), accounts: newBound(c.Machine.Account, len(t.Accounts.Names))}
	for _, q := range c.Machine.QOS {
		l.qos = append(l.qos, newBound(q.User, len(t.Users.Names)))
	}
	for _, a := range t.Arrays {
		if a.Limit > 0 {
			l.arrays = make([]int32, len(t.Arrays))
			break
		}
	}
	return l
}

// each calls f with the bounds that apply to a job.
func (l *limits) each(job int32, f func(b *bound, who int32)) {
	t := l.c.Trace
	if l.users != nil {
		f(l.users, t.User[job])
	}
	if l.accounts != nil {
		f(l.accounts, t.Account[job])
	}
	if len(l.qos) > 0 {
		if at := l.c.qos[t.QOSOf(int(job))]; at >= 0 && l.qos[at] != nil {
			f(l.qos[at], t.User[job])
		}
	}
}

func (l *limits) held(job int32) bool {
	t := l.c.Trace
	held := false
	l.each(job, func(b *bound, who int32) { held = held || b.held(who, t.Cores[job]) })
	if a := t.ArrayOf(int(job)); a >= 0 && l.arrays != nil {
		limit := t.Arrays[a].Limit
		held = held || limit > 0 && int(l.arrays[a]) >= limit
	}
	return held
}

// impossible reports whether a job alone exceeds a bound.
func (l *limits) impossible(job int32) bool {
	never := false
	l.each(job, func(b *bound, _ int32) { never = never || b.Cores > 0 && int(l.c.Trace.Cores[job]) > b.Cores })
	return never
}

func (l *limits) change(job, sign int32) {
	t := l.c.Trace
	l.each(job, func(b *bound, who int32) { b.change(who, t.Cores[job], sign) })
	if a := t.ArrayOf(int(job)); a >= 0 && l.arrays != nil {
		l.arrays[a] += sign
	}
}
