package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"premix/internal/kit/exit"
	"premix/internal/replay/freecapacity"
	"premix/internal/replay/machine"
	"premix/internal/replay/trace"
)

// Policy decides which jobs start when. Only Run calls its methods, one at a time.
type Policy interface {
	Name() string
	// LooksAhead reports whether the policy asks the rooms about later moments.
	LooksAhead() bool
	// Begin is called first.
	Begin(c *Cluster) error
	// Queued is called when a job may start, for the first time or again.
	Queued(job int32)
	// Given is called when a job has started as the trace records it, without Queued.
	Given(job int32)
	// Gone is called when a job does not run any more. early is true if it was expected to
	// run longer: capacity is free that was not planned to be.
	Gone(job int32, early bool)
	// Changed is called when the free capacity differs from the plan: a job overran, or
	// nodes failed or came back.
	Changed()
	// Schedule starts jobs by calling Cluster.Start.
	Schedule() error
}

// The kinds of estimates.
const (
	Asked   = "asked"
	Exact   = "exact"
	Learned = "learned"
)

// Options are the options of a replay.
type Options struct {
	Estimates string // "" means Asked
}

// Schedule is the result of a replay: the times of all jobs.
type Schedule struct {
	Policy   string
	Eligible []trace.Time // may be the trace's own Submit
	Start    []trace.Time // of the last try; trace.Unknown if the machine refused the job
	End      []trace.Time

	Refused     []trace.Count // reasons for refusing jobs
	NoEstimate  int           // jobs without a requested time: their run time was the estimate
	Killed      int           // at their limit
	Overran     int           // number of times that an estimate was too short
	Preemptions int
	Failures    int                  // tries ended by the failure of a node
	Lost        map[int32]trace.Time // run time of tries without a result
	Earlier     map[int32]trace.Time // run time before a job was preempted and resumed
	Cancelled   map[int32]bool       // preempted for good
	Given       map[int32]bool       // started as recorded, before the policy was asked
	Moments     int
}

// Ran returns how long a job ran in its last try, to its end.
func (s *Schedule) Ran(job int) trace.Time {
	return s.End[job] - s.Start[job] + s.Earlier[int32(job)]
}

// Wait returns how long a job was eligible, minus the time that it ran to its end.
func (s *Schedule) Wait(job int) trace.Time {
	return s.End[job] - s.Eligible[job] - s.Ran(job)
}

// StuckError is returned if the policy never started some jobs.
type StuckError struct {
	Policy string
	Jobs   int
	First  int64 // number of the first
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("policy %s never started %d jobs, the first of them job %d", e.Policy, e.Jobs, e.First)
}

// ExitCode implements exit.Coded.
func (*StuckError) ExitCode() exit.Code { return exit.Failed }

// Hint returns a rule for policies.
func (e *StuckError) Hint() string {
	return "a policy is asked at each moment at which something happens: it must start a job that fits, or ask to be woken"
}

// State is the state of a job.
type State uint8

// The states.
const (
	Future  State = iota // not submitted, or waiting for other jobs to end
	Queued               // may start
	Running              //
	Done                 // ended, or was refused
)

// Cluster is the view of a policy on the replay.
type Cluster struct {
	Trace   *trace.Trace
	Machine *machine.Machine
	Rooms   []freecapacity.Pool // by pool

	policy   Policy
	options  Options
	out      *Schedule
	now      trace.Time
	state    []State
	estimate []trace.Time // run times, as the policy sees them
	until    []trace.Time // nil, or expected ends of running jobs
	events   heap
	left     int // jobs that have not ended

	submitted int // the jobs before this one were submitted

	partition []int32 // of the machine, by partition of the trace; -1: none
	pool      []int32 // by partition of the machine
	set       []int32 // by partition of the machine: the set of nodes of its jobs
	qos       []int32 // of the machine, by QOS of the trace; -1: none
	limits    *limits
	charge    func(job int32) float64
	learned   []history

	missing []int32 // by job: number of jobs that it waits for
	nextAt  []int32 // the jobs next[nextAt[j]:nextAt[j+1]] wait for job j
	next    []int32 //
	tries   map[int32]int32
	downs   []downtime
	running [][]int32 // by pool, if it can be needed; in order of start
	track   bool
	ahead   []bool
}

// history holds the last two run times of a user.
type history struct{ last, before trace.Time }

// downtime is a time in which nodes are down.
type downtime struct {
	pool    int32
	request freecapacity.Request
	nodes   int
	machine.Outage
	drain *machine.Drain // nil: it is not a drain
}

// Run replays a trace. It closes a policy that is an io.Closer.
func Run(ctx context.Context, t *trace.Trace, m *machine.Machine, p Policy, o Options) (_ *Schedule, err error) {
	c, err := newCluster(t, m, p, o)
	if err != nil {
		return nil, err
	}
	if closer, ok := p.(io.Closer); ok {
		defer func() { err = errors.Join(err, closer.Close()) }()
	}
	if err := p.Begin(c); err != nil {
		return nil, err
	}
	if err := c.play(ctx); err != nil {
		return nil, err
	}
	c.out.Policy = p.Name()
	return c.out, nil
}

func newCluster(t *trace.Trace, m *machine.Machine, p Policy, o Options) (*Cluster, error) {
	n := t.Len()
	c := &Cluster{Trace: t, Machine: m, policy: p, options: o, state: make([]State, n), estimate: make([]trace.Time, n), until: make([]trace.Time, n),
		tries: make(map[int32]int32), left: n}
	c.out = &Schedule{Policy: p.Name(), Eligible: t.Submit, Start: make([]trace.Time, n), End: make([]trace.Time, n),
		Lost: make(map[int32]trace.Time), Earlier: make(map[int32]trace.Time), Cancelled: make(map[int32]bool), Given: make(map[int32]bool)}
	for _, name := range t.Partitions.Names {
		at := slices.IndexFunc(m.Partitions, func(p machine.Partition) bool { return p.Name == name })
		if at < 0 && len(m.Partitions) == 1 {
			at = 0
		}
		c.partition = append(c.partition, int32(at))
	}
	for _, p := range m.Partitions {
		c.pool = append(c.pool, int32(slices.IndexFunc(m.Pools, func(q machine.Pool) bool { return q.Name == p.Pool })))
	}
	for _, name := range t.QOSs.Names {
		c.qos = append(c.qos, int32(slices.IndexFunc(m.QOS, func(q machine.QOS) bool { return q.Name == name })))
	}
	if len(c.qos) == 0 {
		c.qos = []int32{-1}
	}
	c.track = m.Preemption()
	for i := range m.Pools {
		c.addPool(int32(i), &m.Pools[i])
	}
	c.set = make([]int32, len(m.Partitions))
	for i, p := range m.Partitions {
		if room, ok := c.Rooms[c.pool[i]].(*freecapacity.NodePool); ok && p.Nodes != nil {
			c.set[i] = room.AddSet(p.Nodes)
		}
	}
	c.running = make([][]int32, len(m.Pools))
	c.limits = newLimits(c)
	c.charge = m.Charger(t)
	if o.Estimates == Learned {
		c.learned = make([]history, len(t.Users.Names))
		for i := range c.learned {
			c.learned[i] = history{trace.Unknown, trace.Unknown}
		}
	}
	c.link()
	return c, nil
}

func (c *Cluster) addPool(i int32, p *machine.Pool) {
	ahead := c.policy.LooksAhead()
	for _, d := range p.Down {
		ahead = ahead || !d.Failure
		c.track = true
	}
	var r freecapacity.Pool
	first, named := p.Groups[0], len(p.Drains) > 0 || c.Machine.HasParts(p.Name)
	switch {
	case p.Place == "any" && !p.Whole() && !named:
		r = freecapacity.NewCountedPool(int64(p.Cores()), 1, 0, ahead)
	case p.Whole() && len(p.Groups) == 1 && p.Place != "adjacent" && !named:
		r = freecapacity.NewCountedPool(int64(first.Count), int32(first.Cores), int64(first.Memory), ahead)
	default:
		var nodes []freecapacity.Node
		for _, g := range p.Groups {
			for range g.Count {
				nodes = append(nodes, freecapacity.Node{Name: fmt.Sprintf("%s%d", p.Name, len(nodes)+1), Cores: int32(g.Cores), Memory: int64(g.Memory)})
			}
		}
		placement := freecapacity.Pack
		switch p.Place {
		case "spread":
			placement = freecapacity.Spread
		case "adjacent":
			placement = freecapacity.Adjacent
		}
		r = freecapacity.NewNodePool(nodes, p.Whole(), placement)
	}
	c.Rooms = append(c.Rooms, r)
	c.ahead = append(c.ahead, ahead)
	c.addDrains(i, p.Drains)
	for _, d := range p.Down {
		// The last nodes go down.
		cores, nodes := 0, d.Nodes
		for k := len(p.Groups) - 1; k >= 0 && nodes > 0; k-- {
			cores += min(nodes, p.Groups[k].Count) * p.Groups[k].Cores
			nodes -= p.Groups[k].Count
		}
		at := int32(len(c.downs))
		down := downtime{pool: i, request: freecapacity.Request{Cores: int32(cores)}, nodes: d.Nodes, Outage: d}
		c.downs = append(c.downs, down)
		if !d.Failure {
			c.block(at, trace.Time(d.From))
		}
		c.events.push(event{at: trace.Time(d.From), kind: goesDown, arg: at})
		c.events.push(event{at: trace.Time(d.Until), kind: comesBack, arg: at})
	}
}

// addDrains adds the times in which single nodes of a pool take no jobs.
func (c *Cluster) addDrains(i int32, drains []machine.Drain) {
	for k, d := range drains {
		at := int32(len(c.downs))
		c.downs = append(c.downs, downtime{pool: i, drain: &drains[k], Outage: machine.Outage{From: machine.Span(d.From), Until: machine.Span(d.Until)}})
		c.events.push(event{at: d.From, kind: goesDown, arg: at})
		c.events.push(event{at: d.Until, kind: comesBack, arg: at})
	}
}

// block takes the capacity of nodes that are down.
func (c *Cluster) block(at int32, from trace.Time) {
	d := &c.downs[at]
	if p, ok := c.Rooms[d.pool].(*freecapacity.NodePool); ok {
		p.Block(-1-at, d.nodes, from, trace.Time(d.Until))
		return
	}
	c.Rooms[d.pool].Take(-1-at, d.request, from, trace.Time(d.Until))
}

// link computes which jobs wait for a job.
func (c *Cluster) link() {
	t := c.Trace
	if t.AfterAt == nil {
		return
	}
	n := t.Len()
	c.missing, c.nextAt, c.next = make([]int32, n), make([]int32, n+1), make([]int32, len(t.After))
	for _, before := range t.After {
		c.nextAt[before+1]++
	}
	for i := range n {
		c.nextAt[i+1] += c.nextAt[i]
	}
	fill := slices.Clone(c.nextAt[:n])
	for job := range n {
		list := t.Before(job)
		c.missing[job] = int32(len(list))
		for _, before := range list {
			c.next[fill[before]] = int32(job)
			fill[before]++
		}
	}
	c.out.Eligible = slices.Clone(t.Submit)
}

// play runs the replay.
func (c *Cluster) play(ctx context.Context) error {
	t := c.Trace
	n := t.Len()
	for c.left > 0 {
		at := trace.Never
		if c.submitted < n {
			at = t.Submit[c.submitted]
		}
		if len(c.events) > 0 {
			at = min(at, c.events[0].at)
		}
		if at == trace.Never {
			return c.stuck()
		}
		c.now = at
		for _, r := range c.Rooms {
			r.Forget(at)
		}
		for len(c.events) > 0 && c.events[0].at == at && c.events[0].kind < eligible {
			c.happen(c.events.pop())
		}
		for c.submitted < n && t.Submit[c.submitted] == at {
			job := int32(c.submitted)
			c.submitted++
			if c.missing == nil || c.missing[job] == 0 {
				c.arrive(job)
			}
		}
		for len(c.events) > 0 && c.events[0].at == at {
			c.happen(c.events.pop())
		}
		if err := c.policy.Schedule(); err != nil {
			return err
		}
		if c.out.Moments++; c.out.Moments%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

func (c *Cluster) stuck() error {
	e := &StuckError{Policy: c.policy.Name()}
	for j, s := range c.state {
		if s != Done {
			if e.Jobs == 0 {
				e.First = c.Trace.Number[j]
			}
			e.Jobs++
		}
	}
	return e
}

func (c *Cluster) happen(e event) {
	switch e.kind {
	case ends:
		if c.tries[e.arg] == e.try {
			c.end(e.arg)
		}
	case overruns:
		if c.tries[e.arg] == e.try && c.state[e.arg] == Running {
			c.overrun(e.arg, e.step)
		}
	case eligible:
		c.submit(e.arg, true)
	case comesBack:
		d := &c.downs[e.arg]
		if d.Failure && !c.ahead[d.pool] {
			c.Rooms[d.pool].Give(-1-e.arg, d.request, c.now, trace.Time(d.Until))
		}
		c.policy.Changed()
	case goesDown:
		c.down(e.arg)
	case startsAsRecorded:
		c.startAsRecorded(e.arg)
	case isQueued:
		c.submit(e.arg, false)
	case wakes:
	}
}

// arrive queues a job that was submitted, unless it came before the trace has all jobs. Then
// it starts as recorded, or is queued when the trace has all.
func (c *Cluster) arrive(job int32) {
	t := c.Trace
	switch {
	case t.Given(int(job)):
		c.events.push(event{at: c.now + t.WaitedOf(int(job)), kind: startsAsRecorded, arg: job})
	case c.now < t.Since:
		c.events.push(event{at: t.Since, kind: isQueued, arg: job})
	default:
		c.submit(job, false)
	}
}

// startAsRecorded starts a job without asking the policy. If it has no room, it is queued.
func (c *Cluster) startAsRecorded(job int32) {
	if c.refuse(job) != "" {
		c.submit(job, false)
		return
	}
	c.estimate[job] = c.guess(job)
	room, r := c.Rooms[c.Pool(job)], c.Request(job)
	until := c.now + c.estimate[job]
	nodes := c.recordedNodes(job)
	switch {
	case nodes != nil:
		room.(*freecapacity.NodePool).TakeOn(job, r, nodes, c.now, until)
	case room.Fits(r, c.now, until):
		room.Take(job, r, c.now, until)
	default:
		c.queue(job)
		return
	}
	c.out.Given[job] = true
	c.started(job, until)
	c.policy.Given(job)
}

// recordedNodes returns the nodes of the pool of a job on which it ran in reality; nil if
// they are not known.
func (c *Cluster) recordedNodes(job int32) (nodes []int32) {
	pool := &c.Machine.Pools[c.Pool(job)]
	if _, ok := c.Rooms[c.Pool(job)].(*freecapacity.NodePool); !ok {
		return nil
	}
	for _, host := range c.Trace.HostsOf(int(job)) {
		at := slices.Index(pool.Names, c.Trace.Hosts.Names[host])
		if at < 0 {
			return nil
		}
		nodes = append(nodes, int32(at))
	}
	return nodes
}

// submit queues a job, or refuses it.
func (c *Cluster) submit(job int32, waited bool) {
	if waited {
		c.out.Eligible[job] = c.now
	}
	if why := c.refuse(job); why != "" {
		at := slices.IndexFunc(c.out.Refused, func(r trace.Count) bool { return r.Why == why })
		if at < 0 {
			at = len(c.out.Refused)
			c.out.Refused = append(c.out.Refused, trace.Count{Why: why})
		}
		c.out.Refused[at].Count++
		c.out.Start[job], c.out.End[job] = trace.Unknown, trace.Unknown
		c.finish(job)
		return
	}
	c.estimate[job] = c.guess(job)
	c.queue(job)
}

func (c *Cluster) queue(job int32) {
	c.state[job] = Queued
	c.policy.Queued(job)
}

// refuse returns why the machine can never run a job, or "".
func (c *Cluster) refuse(job int32) string {
	p := c.Partition(job)
	if p == nil {
		return fmt.Sprintf("the machine has no partition %q", c.Trace.Partitions.Names[c.Trace.Partition[job]])
	}
	if asked := c.Trace.Asked[job]; p.Limit > 0 && asked > trace.Time(p.Limit) {
		return fmt.Sprintf("it asks for more time than partition %q has", p.Name)
	}
	if !c.Rooms[c.Pool(job)].Possible(c.Request(job)) {
		return fmt.Sprintf("it is larger than pool %q", c.Machine.Pools[c.Pool(job)].Name)
	}
	if c.limits.impossible(job) {
		return "it is larger than a limit"
	}
	return ""
}

// runtime returns how long a job will hold its capacity, from its start.
func (c *Cluster) runtime(job int32) trace.Time {
	run := c.Trace.Run[job]
	if limit := c.limit(job); c.Machine.Kill && limit != trace.Unknown {
		run = min(run, limit)
	}
	return max(run-c.out.Earlier[job], 0) + trace.Time(c.Machine.Overhead)
}

// limit returns the time after which a job would be killed.
func (c *Cluster) limit(job int32) trace.Time {
	if asked := c.Trace.Asked[job]; asked > 0 {
		return asked
	}
	p := c.Partition(job)
	if p.Default > 0 {
		return trace.Time(p.Default)
	}
	if p.Limit > 0 {
		return trace.Time(p.Limit)
	}
	return trace.Unknown
}

// guess returns the estimate of a job, at least a millisecond.
func (c *Cluster) guess(job int32) trace.Time {
	run := c.Trace.Run[job]
	asked := c.limit(job)
	estimate := asked
	switch c.options.Estimates {
	case Exact:
		estimate = run
		if c.Machine.Kill && asked != trace.Unknown {
			estimate = min(run, asked)
		}
	case Learned:
		if h := c.learned[c.Trace.User[job]]; h.before != trace.Unknown {
			estimate = (h.last + h.before) / 2
			if asked != trace.Unknown {
				estimate = min(estimate, asked)
			}
		}
	}
	if estimate == trace.Unknown {
		estimate = run
		c.out.NoEstimate++
	}
	return max(estimate+trace.Time(c.Machine.Overhead), 1)
}

// increments are the times by which an estimate that was too short is extended.
var increments = []trace.Time{trace.Minute, 5 * trace.Minute, 15 * trace.Minute, 30 * trace.Minute, trace.Hour, 2 * trace.Hour, 5 * trace.Hour,
	10 * trace.Hour, 20 * trace.Hour, 50 * trace.Hour, 100 * trace.Hour}

func (c *Cluster) overrun(job int32, step uint8) {
	more := increments[min(int(step), len(increments)-1)]
	was := c.until[job]
	c.until[job] = was + more
	c.Rooms[c.Pool(job)].Extend(job, c.Request(job), was, was+more)
	c.out.Overran++
	if c.out.Start[job]+c.runtime(job) > was+more {
		c.events.push(event{at: was + more, kind: overruns, arg: job, try: c.tries[job], step: step + 1})
	}
	c.policy.Changed()
}

func (c *Cluster) end(job int32) {
	early := c.leave(job)
	if limit := c.limit(job); c.Machine.Kill && limit != trace.Unknown && c.Trace.Run[job] > limit {
		c.out.Killed++
	}
	if c.learned != nil {
		h := &c.learned[c.Trace.User[job]]
		h.before, h.last = h.last, c.Trace.Run[job]
	}
	c.finish(job)
	c.policy.Gone(job, early)
}

// leave releases the capacity of a job, and reports whether it was expected to run longer.
func (c *Cluster) leave(job int32) bool {
	c.out.End[job] = c.now
	early := c.until[job] > c.now
	pool := c.Pool(job)
	if until := c.until[job]; early || !c.ahead[pool] || c.placed(pool) {
		c.Rooms[pool].Give(job, c.Request(job), c.now, until)
	}
	c.limits.change(job, -1)
	if c.track {
		at := slices.Index(c.running[pool], job)
		c.running[pool] = slices.Delete(c.running[pool], at, at+1)
	}
	return early
}

func (c *Cluster) placed(pool int32) bool {
	_, ok := c.Rooms[pool].(*freecapacity.NodePool)
	return ok
}

// finish queues the jobs that waited only for this one.
func (c *Cluster) finish(job int32) {
	c.state[job] = Done
	c.left--
	if c.missing == nil {
		return
	}
	for _, next := range c.next[c.nextAt[job]:c.nextAt[job+1]] {
		if c.missing[next]--; c.missing[next] > 0 {
			continue
		}
		at := max(c.now+c.Trace.ThinkTime(int(next)), c.Trace.Submit[next])
		if at == c.Trace.Submit[next] && int(next) >= c.submitted {
			continue // it is not submitted yet; then it will miss no job
		}
		c.missing[next] = -1 // its later submission, if any, will not make it eligible
		c.events.push(event{at: at, kind: eligible, arg: next})
	}
}

func (c *Cluster) down(at int32) {
	d := &c.downs[at]
	if room, ok := c.Rooms[d.pool].(*freecapacity.NodePool); ok && d.drain != nil {
		room.Drain(-1-at, d.drain.Node, d.drain.Cores, int64(d.drain.Memory), c.now, trace.Time(d.Until))
		c.policy.Changed()
		return
	}
	if d.Failure {
		c.block(at, c.now)
	}
	// Choose the jobs to end: the youngest first and, if nodes have names, the jobs on
	// nodes that are down.
	placed, named := c.Rooms[d.pool].(*freecapacity.NodePool)
	list := slices.Clone(c.running[d.pool])
	for i := len(list) - 1; i >= 0 && c.Rooms[d.pool].Short(c.now); i-- {
		if named && !placed.Crowded(list[i], c.now) {
			continue
		}
		c.out.Failures++
		c.requeue(list[i], machine.Requeue)
	}
	c.policy.Changed()
}

// requeue makes a running job wait again, or ends it for good.
func (c *Cluster) requeue(job int32, how string) {
	c.leave(job)
	c.tries[job]++
	ran := c.now - c.out.Start[job]
	switch how {
	case machine.Cancel:
		c.out.Cancelled[job] = true
		c.out.Lost[job] += ran
		c.finish(job)
		c.policy.Gone(job, true)
		return
	case machine.Resume:
		gone := max(ran-trace.Time(c.Machine.Overhead), 0)
		c.out.Earlier[job] += gone
		c.estimate[job] = max(c.estimate[job]-gone, 1)
	default:
		c.out.Lost[job] += ran
	}
	c.policy.Gone(job, true)
	c.queue(job)
}

// Now returns the present moment.
func (c *Cluster) Now() trace.Time { return c.now }

// State returns the state of a job.
func (c *Cluster) State(job int32) State { return c.state[job] }

// Estimate returns the expected run time of a queued job.
func (c *Cluster) Estimate(job int32) trace.Time { return c.estimate[job] }

// Given reports whether a job started as recorded, without the policy.
func (c *Cluster) Given(job int32) bool { return c.out.Given[job] }

// Until returns the expected end of a running job.
func (c *Cluster) Until(job int32) trace.Time { return c.until[job] }

// Eligible returns since when a job may start.
func (c *Cluster) Eligible(job int32) trace.Time { return c.out.Eligible[job] }

// StartOf returns when a running job started.
func (c *Cluster) StartOf(job int32) trace.Time { return c.out.Start[job] }

// Partition returns the partition of a job on the machine, or nil.
func (c *Cluster) Partition(job int32) *machine.Partition {
	at := c.partition[c.Trace.Partition[job]]
	if at < 0 {
		return nil
	}
	return &c.Machine.Partitions[at]
}

// QOS returns the QOS of a job on the machine, or nil.
func (c *Cluster) QOS(job int32) *machine.QOS {
	at := c.qos[c.Trace.QOSOf(int(job))]
	if at < 0 {
		return nil
	}
	return &c.Machine.QOS[at]
}

// Pool returns the index of the pool of a job.
func (c *Cluster) Pool(job int32) int32 { return c.pool[c.partition[c.Trace.Partition[job]]] }

// Tier returns the tier of a job, which comes before any priority.
func (c *Cluster) Tier(job int32) int {
	tier := c.Partition(job).Tier
	if q := c.QOS(job); q != nil {
		tier += q.Tier
	}
	return tier
}

// Charge returns the cost of a core hour of a job.
func (c *Cluster) Charge(job int32) float64 { return c.charge(job) }

// Request returns the resources that a job needs.
func (c *Cluster) Request(job int32) freecapacity.Request {
	i := int(job)
	return freecapacity.Request{Cores: c.Trace.Cores[i], Nodes: c.Trace.NodesOf(i), Memory: c.Trace.MemoryOf(i), Set: c.set[c.partition[c.Trace.Partition[i]]]}
}

// Held reports whether a limit prevents a job from starting now.
func (c *Cluster) Held(job int32) bool { return c.limits.held(job) }

// Fits reports whether there is enough free capacity to start a job now.
func (c *Cluster) Fits(job int32) bool {
	return c.Rooms[c.Pool(job)].Fits(c.Request(job), c.now, c.now+c.estimate[job])
}

// Start starts a job.
func (c *Cluster) Start(job int32) error {
	fail := func(reason string) error {
		return exit.Errorf(exit.Failed, "see the protocol: premix help replay", "policy %s wants to start job %d, which %s", c.policy.Name(), c.Trace.Number[job], reason)
	}
	if c.state[job] != Queued {
		return fail("is not waiting")
	}
	if c.limits.held(job) {
		return fail("is held by a limit")
	}
	r, q := c.Rooms[c.Pool(job)], c.Request(job)
	until := c.now + c.estimate[job]
	if !r.Fits(q, c.now, until) {
		return fail("does not fit now")
	}
	r.Take(job, q, c.now, until)
	c.started(job, until)
	return nil
}

// started records that a job has started and has its room.
func (c *Cluster) started(job int32, until trace.Time) {
	c.limits.change(job, 1)
	c.state[job] = Running
	c.out.Start[job], c.until[job] = c.now, until
	end := c.now + c.runtime(job)
	c.events.push(event{at: end, kind: ends, arg: job, try: c.tries[job]})
	if end > until {
		c.events.push(event{at: until, kind: overruns, arg: job, try: c.tries[job]})
	}
	if c.track {
		pool := c.Pool(job)
		c.running[pool] = append(c.running[pool], job)
	}
}

// Running returns the running jobs of a pool, in order of start, if the machine has
// preemption or downtime.
func (c *Cluster) Running(pool int32) []int32 { return c.running[pool] }

// MayPreempt reports whether a job may make another one end, and the effect on that one.
func (c *Cluster) MayPreempt(job, victim int32) (how string, ok bool) {
	p, q := c.Partition(job), c.QOS(job)
	vp, vq := c.Partition(victim), c.QOS(victim)
	may := func(list []string) bool {
		return slices.Contains(list, vp.Name) && vp.Name != p.Name || vq != nil && slices.Contains(list, vq.Name) && (q == nil || q.Name != vq.Name)
	}
	if !may(p.Preempts) && (q == nil || !may(q.Preempts)) {
		return "", false
	}
	how = vp.Preempted
	if vq != nil && vq.Preempted != "" {
		how = vq.Preempted
	}
	if how == "" {
		how = machine.Requeue
	}
	return how, true
}

// Preempts reports whether a job may make any other one end.
func (c *Cluster) Preempts(job int32) bool {
	q := c.QOS(job)
	return c.track && (len(c.Partition(job).Preempts) > 0 || q != nil && len(q.Preempts) > 0)
}

// Preempt ends a running job, which is queued again unless how is machine.Cancel.
func (c *Cluster) Preempt(victim int32, how string) {
	c.out.Preemptions++
	c.requeue(victim, how)
}

// Wake makes the policy be called at a later moment.
func (c *Cluster) Wake(at trace.Time) {
	if at > c.now && at < trace.Never {
		c.events.push(event{at: at, kind: wakes})
	}
}
