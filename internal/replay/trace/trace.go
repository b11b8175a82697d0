package trace

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"premix/internal/kit/hostlist"
)

// Time is a moment, in milliseconds since the begin of the trace, or a length of time.
type Time int64

// Lengths of time.
const (
	Second Time = 1000
	Minute      = 60 * Second
	Hour        = 60 * Minute
	Day         = 24 * Hour
	Week        = 7 * Day
)

// Unknown is a time that a trace does not contain.
const Unknown Time = -1

// Never is later than every moment of a trace.
const Never Time = 1 << 60

// maxTime bounds times, so that sums of times cannot overflow: 10,000 years.
const maxTime = 10_000 * 366 * Day

// Seconds returns a time as a number of seconds.
func (t Time) Seconds() float64 { return float64(t) / 1000 }

// String returns a time for messages and tests: as in 1h30m or 0.25s.
func (t Time) String() string { return (time.Duration(t) * time.Millisecond).String() }

// FromDuration converts a duration to a Time, with rounding.
func FromDuration(d time.Duration) Time { return Time((d + time.Millisecond/2) / time.Millisecond) }

// Trace is a workload. Every column that is not nil has an entry for each job, in order of
// submission.
type Trace struct {
	Name   string // of the file
	Format string // name of the format in messages
	Begin  int64  // the moment of Time 0: milliseconds since 1970, UTC; 0 if unknown
	Zone   Time   // local time minus UTC, for the cycle of days

	Procs int // cores of the machine; 0 if the trace does not say
	Nodes int // nodes of the machine; 0 if it does not

	Number    []int64 // in the trace
	Submit    []Time
	Run       []Time  // how long it ran
	Asked     []Time  // Unknown if the user did not ask for a time
	Waited    []Time  // in reality; Unknown if not recorded. nil: never recorded
	Cores     []int32 // at least 1
	NodeCount []int32 // nodes that it had or asked for; 0: any. nil: any for all jobs
	Memory    []int32 // MiB a core; 0: not recorded. nil: not recorded for all jobs
	User      []int32 // index of Users.Names
	Account   []int32 // index of Accounts.Names
	Partition []int32 // index of Partitions.Names
	QOS       []int32 // index of QOSs.Names; the queue in a Standard Workload File. nil: the first for all jobs
	Array     []int32 // index of Arrays; -1: none. nil: no arrays
	HostList  []int32 // index of HostLists; -1: not recorded. nil: not recorded for all jobs
	Think     []Time  // time from the end of the jobs it comes after to its submission. nil: 0 for all jobs

	Users, Accounts, Partitions, QOSs Names
	Arrays                            []Array
	Hosts                             Names     // nodes on which jobs ran
	HostLists                         [][]int32 // lists of indexes of Hosts.Names

	// Since is the moment from which on the trace has all jobs; 0: from its begin. A log of
	// jobs that ended in a time has the jobs that ran and waited as this time began, but
	// not the jobs that they waited for.
	Since Time

	// Job i comes after the jobs After[AfterAt[i]:AfterAt[i+1]]. nil: there are no
	// dependencies.
	AfterAt []int32
	After   []int32

	Read Report // report on the lines
}

// Array is an array of jobs.
type Array struct {
	Name  string
	Limit int // number of jobs that may run at a time; 0: all
}

// Len returns the number of jobs.
func (t *Trace) Len() int { return len(t.Submit) }

// Names are the names of users, or of other groups of jobs.
type Names struct {
	Names []string
	index map[string]int32
}

// Index returns the index of a name, which it adds if necessary.
func (n *Names) Index(name string) int32 {
	if at, ok := n.index[name]; ok {
		return at
	}
	if n.index == nil {
		n.index = make(map[string]int32)
	}
	at := int32(len(n.Names))
	n.Names = append(n.Names, name)
	n.index[name] = at
	return at
}

// Find returns the index of a name, or -1.
func (n *Names) Find(name string) int32 {
	if at, ok := n.index[name]; ok {
		return at
	}
	return -1
}

// Report counts the lines, or entries, of a file by their use.
type Report struct {
	Jobs    int      `json:"jobs"`
	Bad     int      `json:"bad"`                // could not be understood
	Reasons []Count  `json:"bad_why,omitempty"`  // by mistake, most frequent first
	First   []Line   `json:"bad_lines,omitzero"` // the first few of them
	Out     int      `json:"left_out"`           // understood, but not a job to replay
	OutWhy  []Count  `json:"left_out_why,omitempty"`
	Notes   []string `json:"notes,omitempty"` // other messages
}

// Count is the number of times that a reason occurred.
type Count struct {
	Why   string `json:"why"`
	Count int    `json:"count"`
}

// Line is a bad line.
type Line struct {
	Line int    `json:"line"` // from 1; of JSON, the entry
	Why  string `json:"why"`
}

// named is the number of bad lines that are listed.
const named = 5

// maxReasons bounds the number of stored reasons, which may quote the input.
const maxReasons = 100

func (r *Report) bad(line int, kind, detail string) {
	r.Bad++
	r.Reasons = count(r.Reasons, kind)
	if len(r.First) < named {
		if detail != "" {
			kind += ": " + detail
		}
		r.First = append(r.First, Line{line, kind})
	}
}

func (r *Report) leave(why string) {
	r.Out++
	r.OutWhy = count(r.OutWhy, why)
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func count(list []Count, why string) []Count {
	for i := range list {
		if list[i].Why == why {
			list[i].Count++
			return list
		}
	}
	if len(list) == maxReasons {
		list[maxReasons-1].Why = "other"
		list[maxReasons-1].Count++
		return list
	}
	return append(list, Count{why, 1})
}

// entry is a job as the readers find it. Its zero value is a job without any information.
type entry struct {
	number    int64
	submit    Time // milliseconds since 1970, or since the begin of the trace
	run       Time
	asked     Time // 0 means Unknown
	waited    Time
	hasWaited bool
	cores     int64
	nodes     int64
	memory    int64 // MiB a core
	user      string
	account   string
	partition string
	qos       string
	array     string
	limit     int // of the array
	hosts     string
}

// builder makes a trace of entries in any order.
type builder struct {
	t      *Trace
	arrays map[string]int32
	hosts  map[string]int32 // index of HostLists, by the text of the list
	listed int              // names in HostLists
	after  [][2]int64       // number of a job, number of a job that it comes after
}

func newBuilder(name, format string, jobs int) *builder {
	t := &Trace{Name: name, Format: format}
	// The numbers in a header must not decide how much memory is allocated.
	jobs = min(max(jobs, 0), 1<<24)
	t.Number = make([]int64, 0, jobs)
	t.Submit, t.Run, t.Asked = make([]Time, 0, jobs), make([]Time, 0, jobs), make([]Time, 0, jobs)
	t.Cores = make([]int32, 0, jobs)
	t.User, t.Account, t.Partition = make([]int32, 0, jobs), make([]int32, 0, jobs), make([]int32, 0, jobs)
	return &builder{t: t, arrays: make(map[string]int32)}
}

// add adds a job. It returns why the job is invalid, or "".
func (b *builder) add(e *entry) (why string) {
	if why := e.wrong(); why != "" {
		return why
	}
	t := b.t
	b.put(e, t.Users.Index(e.user), t.Accounts.Index(e.account), t.Partitions.Index(e.partition), t.QOSs.Index(e.qos))
	return ""
}

// wrong returns why an entry is invalid, or "". It limits values that are too large.
func (e *entry) wrong() string {
	switch {
	case e.cores < 1:
		return "no number of cores"
	case e.cores > 1<<30, e.nodes > 1<<30:
		return "too many cores"
	case e.nodes < 0:
		return "a negative number of nodes"
	case e.submit < 0, e.submit > maxTime:
		return "no time of submission"
	case e.run < 0, e.run > maxTime:
		return "no run time"
	case e.memory < 0, e.memory > 1<<30:
		return "no amount of memory"
	}
	if e.asked <= 0 || e.asked > maxTime {
		e.asked = Unknown
	}
	return ""
}

// put appends a job whose names have been looked up.
func (b *builder) put(e *entry, user, account, partition, qos int32) {
	t := b.t
	n := len(t.Submit)
	t.Number = append(t.Number, e.number)
	t.Submit = append(t.Submit, e.submit)
	t.Run = append(t.Run, e.run)
	t.Asked = append(t.Asked, e.asked)
	t.Cores = append(t.Cores, int32(e.cores))
	t.User = append(t.User, user)
	t.Account = append(t.Account, account)
	t.Partition = append(t.Partition, partition)
	waited := Unknown
	if e.hasWaited && e.waited >= 0 {
		waited = e.waited
	}
	put(&t.Waited, n, cap(t.Submit), waited, Unknown)
	put(&t.NodeCount, n, cap(t.Submit), int32(e.nodes), 0)
	put(&t.Memory, n, cap(t.Submit), int32(e.memory), 0)
	put(&t.QOS, n, cap(t.Submit), qos, 0)
	array := int32(-1)
	if e.array != "" {
		at, ok := b.arrays[e.array]
		if !ok {
			at = int32(len(t.Arrays))
			b.arrays[e.array] = at
			t.Arrays = append(t.Arrays, Array{Name: e.array})
		}
		if e.limit > 0 {
			t.Arrays[at].Limit = e.limit
		}
		array = at
	}
	put(&t.Array, n, cap(t.Submit), array, -1)
	put(&t.HostList, n, cap(t.Submit), b.hostList(e.hosts, int(e.nodes)), -1)
}

// maxHosts bounds the names in the list of nodes of a job, and maxListed in all of them.
const (
	maxHosts  = 1 << 16
	maxListed = 1 << 26
)

// hostList returns the index of a list of nodes in HostLists; -1 if it is not a list of that
// many nodes, if the number is known.
func (b *builder) hostList(text string, nodes int) int32 {
	if text == "" {
		return -1
	}
	at, ok := b.hosts[text]
	if !ok {
		at = b.newHostList(text)
	}
	if at >= 0 && nodes > 0 && len(b.t.HostLists[at]) != nodes {
		return -1
	}
	return at
}

func (b *builder) newHostList(text string) int32 {
	at := int32(-1)
	if names, err := hostlist.Expand(text, maxHosts); err == nil && len(names) > 0 && b.listed+len(names) <= maxListed {
		b.listed += len(names)
		at = int32(len(b.t.HostLists))
		list := make([]int32, len(names))
		for i, name := range names {
			list[i] = b.t.Hosts.Index(name)
		}
		b.t.HostLists = append(b.t.HostLists, list)
	}
	if b.hosts == nil {
		b.hosts = make(map[string]int32)
	}
	b.hosts[text] = at
	return at
}

// put appends to a column. The column stays nil until a value differs from the default,
// which all earlier jobs have.
func put[T comparable](column *[]T, n, capacity int, value, usual T) {
	if *column == nil {
		if value == usual {
			return
		}
		*column = make([]T, n, max(capacity, n+1))
		for i := range *column {
			(*column)[i] = usual
		}
	}
	*column = append(*column, value)
}

// finish sorts the jobs by submission, sets Time 0, and resolves dependencies. If epoch is
// true, submissions are milliseconds since 1970.
func (b *builder) finish(epoch bool) *Trace {
	t := b.t
	n := len(t.Submit)
	if t.Sort() {
		t.Read.note("the jobs were not in order of submission")
	}
	if n > 0 && epoch {
		t.Begin = int64(t.Submit[0])
		for i := range t.Submit {
			t.Submit[i] -= Time(t.Begin)
		}
	}
	b.link()
	t.Read.Jobs = n
	byCount := func(a, b Count) int { return b.Count - a.Count }
	slices.SortStableFunc(t.Read.Reasons, byCount)
	slices.SortStableFunc(t.Read.OutWhy, byCount)
	return t
}

// Sort sorts jobs by submission, with a stable order, and reports whether they were out of
// order. Call it before dependencies are resolved.
func (t *Trace) Sort() bool {
	if slices.IsSorted(t.Submit) {
		return false
	}
	order := make([]int32, len(t.Submit))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Or(cmp.Compare(t.Submit[a], t.Submit[b]), cmp.Compare(a, b)) })
	permute(&t.Number, order)
	permute(&t.Submit, order)
	permute(&t.Run, order)
	permute(&t.Asked, order)
	permute(&t.Waited, order)
	permute(&t.Cores, order)
	permute(&t.NodeCount, order)
	permute(&t.Memory, order)
	permute(&t.User, order)
	permute(&t.Account, order)
	permute(&t.Partition, order)
	permute(&t.QOS, order)
	permute(&t.Array, order)
	permute(&t.HostList, order)
	permute(&t.Think, order)
	return true
}

// Like returns a trace whose jobs are copies of the jobs with some indexes, without their
// dependencies.
func (t *Trace) Like(jobs []int32) *Trace {
	c := *t
	c.AfterAt, c.After = nil, nil
	permute(&c.Number, jobs)
	for _, column := range []*[]Time{&c.Submit, &c.Run, &c.Asked, &c.Waited, &c.Think} {
		permute(column, jobs)
	}
	for _, column := range []*[]int32{&c.Cores, &c.NodeCount, &c.Memory, &c.User, &c.Account, &c.Partition, &c.QOS, &c.Array, &c.HostList} {
		permute(column, jobs)
	}
	return &c
}

func permute[T any](column *[]T, order []int32) {
	if *column == nil {
		return
	}
	moved := make([]T, len(order))
	for to, from := range order {
		moved[to] = (*column)[from]
	}
	*column = moved
}

// link converts pairs of numbers to After. It drops the dependency of a job on itself, on a
// job that does not exist, and on a job that depends on it in a circle.
func (b *builder) link() {
	t := b.t
	if len(b.after) == 0 {
		return
	}
	index := make(map[int64]int32, t.Len())
	for i, number := range t.Number {
		index[number] = int32(i)
	}
	type pair struct{ job, before int32 }
	var pairs []pair
	lost := 0
	for _, a := range b.after {
		job, ok := index[a[0]]
		before, found := index[a[1]]
		if !ok {
			continue // it was left out itself
		}
		if !found || job == before {
			lost++
			continue
		}
		pairs = append(pairs, pair{job, before})
	}
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Or(cmp.Compare(a.job, b.job), cmp.Compare(a.before, b.before)) })
	pairs = slices.Compact(pairs)
	build := func() {
		t.AfterAt, t.After = make([]int32, t.Len()+1), t.After[:0]
		at := 0
		for job := range t.Len() {
			for at < len(pairs) && int(pairs[at].job) == job {
				t.After = append(t.After, pairs[at].before)
				at++
			}
			t.AfterAt[job+1] = int32(len(t.After))
		}
	}
	build()
	if circle := t.circular(); circle != nil {
		n := len(pairs)
		pairs = slices.DeleteFunc(pairs, func(p pair) bool { return circle[p.job] })
		lost += n - len(pairs)
		build()
	}
	if lost > 0 {
		t.Read.note("%d dependencies were dropped: they refer to no other job of the trace, or form a circle", lost)
	}
	if len(t.After) == 0 {
		t.AfterAt, t.After = nil, nil
	}
}

// circular marks the jobs that can never start, because they depend on themselves; nil if
// there are none.
func (t *Trace) circular() []bool {
	n := t.Len()
	missing := make([]int32, n)
	next := make([][]int32, n)
	for j := range n {
		for _, before := range t.After[t.AfterAt[j]:t.AfterAt[j+1]] {
			missing[j]++
			next[before] = append(next[before], int32(j))
		}
	}
	var ready []int32
	for j := range n {
		if missing[j] == 0 {
			ready = append(ready, int32(j))
		}
	}
	done := 0
	for ; len(ready) > 0; done++ {
		j := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		for _, k := range next[j] {
			if missing[k]--; missing[k] == 0 {
				ready = append(ready, k)
			}
		}
	}
	if done == n {
		return nil
	}
	circle := make([]bool, n)
	for j := range n {
		circle[j] = missing[j] > 0
	}
	return circle
}

// Before returns the jobs that a job comes after.
func (t *Trace) Before(job int) []int32 {
	if t.AfterAt == nil {
		return nil
	}
	return t.After[t.AfterAt[job]:t.AfterAt[job+1]]
}

// HostsOf returns the nodes on which a job ran, as indexes of Hosts.Names; nil if they are
// not recorded.
func (t *Trace) HostsOf(job int) []int32 {
	if list := at(t.HostList, job, -1); list >= 0 {
		return t.HostLists[list]
	}
	return nil
}

// Given reports whether a job is recorded to have begun before Since. No policy decides on
// it: it is a part of the state in which the trace finds the machine.
func (t *Trace) Given(job int) bool {
	waited := t.WaitedOf(job)
	return waited != Unknown && t.Submit[job]+waited < t.Since
}

// Values of a job. If a column is nil, they return its default.

func (t *Trace) WaitedOf(job int) Time    { return at(t.Waited, job, Unknown) }
func (t *Trace) NodesOf(job int) int32    { return at(t.NodeCount, job, 0) }
func (t *Trace) MemoryOf(job int) int32   { return at(t.Memory, job, 0) }
func (t *Trace) QOSOf(job int) int32      { return at(t.QOS, job, 0) }
func (t *Trace) ArrayOf(job int) int32    { return at(t.Array, job, -1) }
func (t *Trace) ThinkTime(job int) Time   { return at(t.Think, job, 0) }
func (t *Trace) Moment(at Time) time.Time { return time.UnixMilli(t.Begin + int64(at)).UTC() }

func at[T any](column []T, i int, usual T) T {
	if column == nil {
		return usual
	}
	return column[i]
}
