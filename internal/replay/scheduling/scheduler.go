package scheduling

import (
	"slices"

	"premix/internal/replay/freecapacity"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// scheduler is a policy that consists of an order and a way to backfill.
type scheduler struct {
	Config
	c      *simulate.Cluster
	pools  []*pool
	order  order
	parked map[string][]int32 // jobs held by a limit, by the group of jobs that may free them
	waits  []key              // by job: its key in its queue
	plans  []reservation      // by job, with conservative backfilling
	work   bool               // an event may permit a job to start
}

// pool is the state of one pool.
type pool struct {
	room  freecapacity.Pool
	queue *queue
	// For conservative backfilling.
	due    moments  // times of reservations
	vacant openings // what reservations may be moved into
	fresh  []int32  // queued jobs that get their reservations after others have been moved
	early  bool     // a job ended early: reservations may be moved to the front
	broken bool     // an estimate was too short: reservations may be invalid
	cut    bool     // not all reservations were moved as far as possible
	// For Slurm's backfilling.
	next  trace.Time // time of the next pass
	stale bool       // something has changed since the last pass
	woken bool       // the policy will be called at next
}

// order sorts jobs.
type order interface {
	// value returns the value of a job that is queued now; lower is first.
	value(job int32) int64
	// started and gone are called for running jobs, from which usage is computed.
	started(job int32)
	gone(job int32)
	// again reports whether all values have to be computed again, and assumes that they
	// will be.
	again() bool
}

func (s *scheduler) Name() string     { return s.Config.Name }
func (s *scheduler) LooksAhead() bool { return s.Backfill != None }

func (s *scheduler) Begin(c *simulate.Cluster) error {
	s.c = c
	s.waits = make([]key, c.Trace.Len())
	s.parked = make(map[string][]int32)
	for _, r := range c.Rooms {
		s.pools = append(s.pools, &pool{room: r, queue: newQueue()})
	}
	if s.Backfill == Conservative {
		s.plans = make([]reservation, c.Trace.Len())
		for i := range s.plans {
			s.plans[i].at = trace.Unknown
		}
		for _, p := range s.pools {
			p.due.place = make([]int32, c.Trace.Len())
		}
	}
	switch s.Order {
	case SJF:
		s.order = shortest{c}
	case Multifactor:
		s.order = newMultifactor(c, &s.Config)
	default:
		s.order = submitted{}
	}
	return nil
}

// submitted is the order of submission, which is the order of the jobs' indexes.
type submitted struct{}

func (submitted) value(int32) int64 { return 0 }
func (submitted) started(int32)     {}
func (submitted) gone(int32)        {}
func (submitted) again() bool       { return false }

// shortest is the order of estimates.
type shortest struct{ c *simulate.Cluster }

func (o shortest) value(job int32) int64 { return int64(o.c.Estimate(job)) }
func (shortest) started(int32)           {}
func (shortest) gone(int32)              {}
func (shortest) again() bool             { return false }

func (s *scheduler) Queued(job int32) {
	s.work = true
	s.enqueue(job)
}

func (s *scheduler) enqueue(job int32) {
	p := s.pools[s.c.Pool(job)]
	if s.Backfill == Conservative && (p.early || p.broken) {
		p.fresh = append(p.fresh, job) // the jobs that wait already are planned before it
		return
	}
	s.insert(p, job)
}

func (s *scheduler) insert(p *pool, job int32) {
	p.stale = true
	k := key{tier: -int32(s.c.Tier(job)), value: s.order.value(job), job: job}
	s.waits[job] = k
	p.queue.add(k, p.room.Least(s.c.Request(job)), s.c.Estimate(job))
	if s.Backfill == Conservative {
		s.reserve(p, job)
		// A job that comes before others that wait must be planned before them.
		if _, ok := p.queue.next(k); ok {
			p.broken = true
		}
	}
}

func (s *scheduler) Given(job int32) {
	s.order.started(job)
	s.Changed()
}

func (s *scheduler) Gone(job int32, early bool) {
	s.work = true
	p := s.pools[s.c.Pool(job)]
	if early && s.Backfill == Conservative {
		p.vacant.add(s.c.Now(), s.c.Until(job))
	}
	p.early, p.stale = p.early || early || p.cut, true
	s.order.gone(job)
	s.unpark(job)
}

func (s *scheduler) Changed() {
	s.work = true
	for _, p := range s.pools {
		p.broken, p.stale = true, true
	}
}

func (s *scheduler) Schedule() error {
	if s.order.again() {
		s.sort()
		s.work = true
	}
	if !s.work && s.Backfill != Conservative && s.Backfill != Slurm {
		return nil
	}
	s.work = false
	for _, p := range s.pools {
		if p.queue.n == 0 && len(p.fresh) == 0 {
			continue
		}
		var err error
		switch s.Backfill {
		case EASY:
			err = s.easy(p)
		case Conservative:
			err = s.conservative(p)
		case Slurm:
			err = s.slurm(p)
		default:
			_, _, err = s.head(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sort sorts all queues again.
func (s *scheduler) sort() {
	var jobs []int32
	for _, p := range s.pools {
		jobs = jobs[:0]
		p.queue.all(func(k key) bool { jobs = append(jobs, k.job); return true })
		p.queue.clear()
		for _, job := range jobs {
			k := key{tier: -int32(s.c.Tier(job)), value: s.order.value(job), job: job}
			s.waits[job] = k
			p.queue.add(k, p.room.Least(s.c.Request(job)), s.c.Estimate(job))
		}
		p.broken, p.stale = true, true
	}
}

// start starts a job and removes it from its queue.
func (s *scheduler) start(p *pool, k key) error {
	if err := s.c.Start(k.job); err != nil {
		return err
	}
	p.queue.remove(k)
	s.order.started(k.job)
	return nil
}

// park removes a job that is held by a limit from its queue.
func (s *scheduler) park(p *pool, k key) {
	p.queue.remove(k)
	name := s.holder(k.job)
	s.parked[name] = append(s.parked[name], k.job)
	if s.reserved(k.job) {
		s.vacate(p, k.job)
		p.early = true
	}
}

// holder returns the group of a parked job. Groups are coarse: when any job ends that could
// have been the reason, all jobs of the group are tried again.
func (s *scheduler) holder(job int32) string {
	t := s.c.Trace
	if s.c.Machine.Account.Jobs > 0 || s.c.Machine.Account.Cores > 0 {
		return ""
	}
	return t.Users.Names[t.User[job]]
}

func (s *scheduler) unpark(job int32) {
	if len(s.parked) == 0 {
		return
	}
	name := s.holder(job)
	list := s.parked[name]
	delete(s.parked, name)
	slices.Sort(list)
	for _, j := range list {
		if s.c.Held(j) {
			s.parked[name] = append(s.parked[name], j)
			continue
		}
		s.enqueue(j)
	}
}

// head starts jobs in order until one does not fit, and returns that one.
func (s *scheduler) head(p *pool) (key, bool, error) {
	at := first
	for {
		k, ok := p.queue.next(at)
		if !ok {
			return key{}, false, nil
		}
		if s.c.Held(k.job) {
			s.park(p, k)
			continue
		}
		if s.c.Fits(k.job) || s.makeRoom(k.job) {
			if err := s.start(p, k); err != nil {
				return key{}, false, err
			}
			continue
		}
		return k, true, nil
	}
}

// makeRoom preempts running jobs for a job that does not fit, if that helps: the lowest
// tier first, and among equal ones those that started last. Jobs that turn out not to be in
// the way are not preempted.
func (s *scheduler) makeRoom(job int32) bool {
	if !s.c.Preempts(job) {
		return false
	}
	c, at := s.c, s.c.Pool(job)
	r, now := c.Rooms[at], c.Now()
	type victim struct {
		job  int32
		how  string
		gone bool
	}
	var list []victim
	for _, v := range slices.Backward(c.Running(at)) {
		if how, ok := c.MayPreempt(job, v); ok {
			list = append(list, victim{job: v, how: how})
		}
	}
	slices.SortStableFunc(list, func(a, b victim) int { return c.Tier(a.job) - c.Tier(b.job) })
	// This tries it only on the capacity. A placed pool remembers places, so capacity that
	// was released is taken again in the opposite order.
	n := 0
	for ; n < len(list) && !c.Fits(job); n++ {
		v := list[n].job
		r.Give(v, c.Request(v), now, c.Until(v))
		list[n].gone = true
	}
	enough := c.Fits(job)
	for i := n - 1; i >= 0; i-- {
		v := list[i].job
		r.Take(v, c.Request(v), now, c.Until(v))
		if list[i].gone = enough && !c.Fits(job); list[i].gone {
			r.Give(v, c.Request(v), now, c.Until(v))
		}
	}
	for i := range n {
		if list[i].gone {
			v := list[i].job
			r.Take(v, c.Request(v), now, c.Until(v))
		}
	}
	if !enough {
		return false
	}
	for i := range n {
		if list[i].gone {
			c.Preempt(list[i].job, list[i].how)
		}
	}
	return c.Fits(job)
}

// easy does EASY backfilling.
func (s *scheduler) easy(p *pool) error {
	head, ok, err := s.head(p)
	if !ok || err != nil {
		return err
	}
	now := s.c.Now()
	free := p.room.Free(now)
	if free <= 0 || p.queue.n == 1 {
		return nil
	}
	r, length := s.c.Request(head.job), s.c.Estimate(head.job)
	from := p.room.Earliest(r, now, length)
	if from == trace.Never {
		return nil // nodes are down, without a known end
	}
	held := p.room.Take(head.job, r, from, from+length)
	at := head
	for tried := 0; free > 0 && (s.Depth == 0 || tried < s.Depth); tried++ {
		k, ok := p.queue.candidate(at, free, from-now, p.room.Free(from))
		if !ok {
			break
		}
		at = k
		if s.c.Held(k.job) {
			s.park(p, k)
			continue
		}
		if s.c.Fits(k.job) {
			if err = s.start(p, k); err != nil {
				break
			}
			free = p.room.Free(now)
		}
	}
	if held {
		p.room.Give(head.job, r, from, from+length)
	}
	return err
}

// slurm does Slurm's scheduling: the main loop, and backfilling at intervals.
func (s *scheduler) slurm(p *pool) error {
	_, ok, err := s.head(p)
	if !ok || err != nil {
		return err
	}
	c, now := s.c, s.c.Now()
	if !p.stale {
		return nil // the plan would be the same
	}
	if now < p.next {
		if !p.woken {
			c.Wake(p.next)
			p.woken = true
		}
		return nil
	}
	type plan struct {
		job  int32
		from trace.Time
	}
	var plans []plan
	at := first
	for tested := 0; s.Depth == 0 || tested < s.Depth; tested++ {
		k, ok := p.queue.next(at)
		if !ok {
			break
		}
		at = k
		if c.Held(k.job) {
			s.park(p, k)
			continue
		}
		r, length := c.Request(k.job), c.Estimate(k.job)
		from := p.room.Earliest(r, now, s.slots(now, length))
		if from == now {
			if err = s.start(p, k); err != nil {
				break
			}
			continue
		}
		if from == trace.Never || s.Window > 0 && from > now+trace.Time(s.Window) {
			continue
		}
		if p.room.Take(k.job, r, from, from+length) {
			plans = append(plans, plan{k.job, from})
		}
	}
	for _, l := range plans {
		p.room.Give(l.job, c.Request(l.job), l.from, l.from+c.Estimate(l.job))
	}
	p.next, p.stale, p.woken = now+max(trace.Time(s.Interval), 1), false, false
	return err
}

// slots returns the time for which a job needs free capacity from now on to be planned.
// Slurm's plan consists of slots, whose length is the resolution, and reserves a job's
// capacity to the end of the slot in which the job would end.
func (s *scheduler) slots(now, length trace.Time) trace.Time {
	slot := max(trace.Time(s.Resolution), 1)
	return ((now+length)/slot+1)*slot - now
}

// moment is the time at which a reservation is due.
type moment struct {
	at  trace.Time
	job int32
}

func (m moment) before(o moment) bool {
	return m.at < o.at || m.at == o.at && m.job < o.job
}

// moments is a heap with the earliest moment first, and at most one moment of each job.
type moments struct {
	list  []moment
	place []int32 // by job: the index in list, plus 1; 0: it has none
}

// set adds the moment of a job, or changes it.
func (h *moments) set(m moment) {
	i := int(h.place[m.job]) - 1
	if i < 0 {
		i = len(h.list)
		h.list = append(h.list, m)
	}
	h.settle(i, m)
}

// remove removes the moment of a job, if it has one.
func (h *moments) remove(job int32) {
	i := int(h.place[job]) - 1
	if i < 0 {
		return
	}
	h.place[job] = 0
	last := h.list[len(h.list)-1]
	if h.list = h.list[:len(h.list)-1]; i < len(h.list) {
		h.settle(i, last)
	}
}

// settle finds the place of a moment, beginning at an index whose moment is not needed.
func (h *moments) settle(i int, m moment) {
	s := h.list
	put := func(m moment) {
		s[i] = m
		h.place[m.job] = int32(i) + 1
	}
	for i > 0 && m.before(s[(i-1)/2]) {
		up := (i - 1) / 2
		put(s[up])
		i = up
	}
	for {
		child := 2*i + 1
		if child >= len(s) {
			break
		}
		if child+1 < len(s) && s[child+1].before(s[child]) {
			child++
		}
		if !s[child].before(m) {
			break
		}
		put(s[child])
		i = child
	}
	put(m)
}
