package generate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"premix/internal/replay/trace"
)

// pause is the gap that ends a session.
const pause = 20 * trace.Minute

// sample is the number of jobs of a size class that are kept.
const sample = 8192

// hours is the number of hours of a week.
const hours = 7 * 24

// Model is a model fitted to a trace.
type Model struct {
	Name     string
	Begin    int64 // of the trace, milliseconds since 1970
	Zone     trace.Time
	Procs    int
	Nodes    int
	Jobs     int
	Sessions int
	Length   trace.Time     // of the trace
	Week     [hours]float64 // fraction of the sessions that begin in each hour of the week
	Zipf     float64        // exponent
	Users    int
	Same     float64 // frequency with which a job has the size of the previous one in its session

	counts  []int32          // jobs of sessions, sorted
	gaps    [32][]trace.Time // within sessions, by the binary logarithm of their jobs
	classes []class
	names   *trace.Trace // the trace whose names of partitions and QOS the samples refer to
}

// class is a class of jobs of similar size.
type class struct {
	weight float64 // of the jobs
	cores  []int32 // of the trace's jobs, to be drawn from
	jobs   []job   // sorted by run time
}

type job struct {
	run, asked     trace.Time
	memory, nodes  int32
	partition, qos int32
}

// classOf returns the binary logarithm of a number of cores.
func classOf(cores int32) int { return int(math.Log2(float64(cores))) }

// Fit fits a model to a trace.
func Fit(t *trace.Trace) (*Model, error) {
	n := t.Len()
	if n < 10 || t.Submit[n-1] <= t.Submit[0] {
		return nil, fmt.Errorf("%d jobs are too few to fit anything to", n)
	}
	m := &Model{Name: t.Name, Begin: t.Begin, Zone: t.Zone, Procs: t.Procs, Nodes: t.Nodes, Jobs: n, Length: t.Submit[n-1] - t.Submit[0], Users: len(t.Users.Names), names: t}
	m.sessions(t)
	m.users(t)
	m.sizes(t)
	return m, nil
}

// hour returns the hour of the week of a moment: 0 is midnight before Monday or, if the
// trace has no date, its begin.
func (m *Model) hour(at trace.Time) int {
	const monday = 4 * trace.Day // 1970 began on a Thursday
	h := (at + trace.Time(m.Begin) + m.Zone - monday) / trace.Hour % hours
	return int((h + hours) % hours)
}

func (m *Model) sessions(t *trace.Trace) {
	last := make([]trace.Time, len(t.Users.Names))
	size := make([]int32, len(t.Users.Names))
	cores := make([]int32, len(t.Users.Names))
	gaps := make([][]trace.Time, len(t.Users.Names))
	for i := range last {
		last[i] = -trace.Never
	}
	finished := func(u int32) {
		if size[u] == 0 {
			return
		}
		m.counts = append(m.counts, size[u])
		k := classOf(size[u])
		m.gaps[k] = append(m.gaps[k], gaps[u]...)
		size[u], gaps[u] = 0, gaps[u][:0]
	}
	var week [hours]float64
	same, pairs := 0, 0
	for i := range t.Len() {
		u := t.User[i]
		gap := t.Submit[i] - last[u]
		if gap > pause {
			finished(u)
			week[m.hour(t.Submit[i])]++
			m.Sessions++
		} else {
			gaps[u] = append(gaps[u], gap)
			pairs++
			if cores[u] == t.Cores[i] {
				same++
			}
		}
		size[u]++
		last[u], cores[u] = t.Submit[i], t.Cores[i]
	}
	for u := range size {
		finished(int32(u))
	}
	if pairs > 0 {
		m.Same = float64(same) / float64(pairs)
	}
	slices.Sort(m.counts)
	if m.Length < trace.Week {
		for h := range 24 {
			sum := 0.0
			for d := range 7 {
				sum += week[h+24*d]
			}
			for d := range 7 {
				week[h+24*d] = sum / 7
			}
		}
	}
	// Count how often each hour of the week is within the trace: the first and last weeks
	// are incomplete.
	var seen [hours]float64
	for at := t.Submit[0]; at <= t.Submit[t.Len()-1]; at += trace.Hour {
		seen[m.hour(at)]++
	}
	total := 0.0
	for h := range week {
		if seen[h] > 0 {
			// Add half a session: an hour in which no session happened to begin still has
			// some probability.
			m.Week[h] = (week[h] + 0.5) / seen[h]
		} else {
			m.Week[h] = 0.5
		}
		total += m.Week[h]
	}
	for h := range m.Week {
		m.Week[h] /= total
	}
}

// users fits the exponent by least squares of the logarithms of rank and frequency, where
// each session has the same weight.
func (m *Model) users(t *trace.Trace) {
	count := make([]float64, len(t.Users.Names))
	for _, u := range t.User {
		count[u]++
	}
	slices.SortFunc(count, func(a, b float64) int { return cmp.Compare(b, a) })
	var w, x, y, xx, xy float64
	for i, c := range count {
		if c == 0 {
			continue
		}
		lx, ly := math.Log(float64(i+1)), math.Log(c)
		w, x, y, xx, xy = w+c, x+c*lx, y+c*ly, xx+c*lx*lx, xy+c*lx*ly
	}
	if d := w*xx - x*x; d > 0 {
		m.Zipf = min(max(-(w*xy-x*y)/d, 0), 5)
	}
}

func (m *Model) sizes(t *trace.Trace) {
	m.classes = make([]class, 32)
	count := make([]int, 32)
	for _, c := range t.Cores {
		count[classOf(c)]++
	}
	seen := make([]int, 32)
	for i, c := range t.Cores {
		k := classOf(c)
		// Take jobs at equal distances over the trace.
		seen[k]++
		if count[k] > sample && int64(seen[k])*sample/int64(count[k]) == int64(seen[k]-1)*sample/int64(count[k]) {
			continue
		}
		cl := &m.classes[k]
		cl.cores = append(cl.cores, c)
		cl.jobs = append(cl.jobs, job{t.Run[i], t.Asked[i], t.MemoryOf(i), t.NodesOf(i), t.Partition[i], t.QOSOf(i)})
	}
	for k := range m.classes {
		m.classes[k].weight = float64(count[k]) / float64(t.Len())
		slices.SortFunc(m.classes[k].jobs, func(a, b job) int { return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(a.asked, b.asked)) })
	}
}

// Generate generates a trace with a number of jobs. It is as dense as the original one,
// multiplied by density, and as long as necessary.
func (m *Model) Generate(jobs int, density float64, seed uint64) *trace.Trace {
	rng := rand.New(rand.NewPCG(seed, 0x67656e6572617465))
	t := &trace.Trace{Name: "like " + m.Name, Format: "generated", Begin: m.Begin, Zone: m.Zone, Procs: m.Procs, Nodes: m.Nodes,
		Number: make([]int64, jobs), Submit: make([]trace.Time, 0, jobs), Run: make([]trace.Time, 0, jobs), Asked: make([]trace.Time, 0, jobs), Cores: make([]int32, 0, jobs),
		User: make([]int32, 0, jobs), Account: make([]int32, jobs), Partition: make([]int32, 0, jobs), QOS: make([]int32, 0, jobs)}
	for _, name := range m.names.Partitions.Names {
		t.Partitions.Index(name)
	}
	for _, name := range m.names.QOSs.Names {
		t.QOSs.Index(name)
	}
	for u := range m.Users {
		t.Users.Index(fmt.Sprintf("user%d", u+1))
	}
	t.Accounts.Index("")
	if m.names.Memory != nil {
		t.Memory = make([]int32, 0, jobs)
	}
	if m.names.NodeCount != nil {
		t.NodeCount = make([]int32, 0, jobs)
	}
	users := cumulated(m.Users, func(i int) float64 { return math.Pow(float64(i+1), -m.Zipf) })
	classes := cumulated(len(m.classes), func(i int) float64 { return m.classes[i].weight })
	// The mean rate is sessions a millisecond; an hour with twice its share of the week has
	// twice the rate. This is thinning: candidates come at the highest rate, and are
	// accepted with the probability of their hour.
	rate := float64(m.Sessions) / float64(m.Length) * density
	peak := 0.0
	for _, w := range m.Week {
		peak = max(peak, w*hours)
	}
	now := 0.0
	for len(t.Submit) < jobs {
		now += rng.ExpFloat64() / (rate * peak)
		if rng.Float64() > m.Week[m.hour(trace.Time(now))]*hours/peak {
			continue
		}
		m.session(t, trace.Time(now), int32(draw(users, rng)), classes, jobs, rng)
	}
	t.Sort()
	begin := t.Submit[0]
	for i := range t.Submit {
		t.Submit[i] -= begin
		t.Number[i] = int64(i + 1)
	}
	if t.Begin > 0 {
		t.Begin += int64(begin)
	}
	t.Read.Jobs = t.Len()
	return t
}

// session appends the jobs of a session.
func (m *Model) session(t *trace.Trace, at trace.Time, user int32, classes []float64, most int, rng *rand.Rand) {
	n := m.counts[rng.IntN(len(m.counts))]
	var cl *class
	var cores int32
	for i := range n {
		if len(t.Submit) == most {
			return
		}
		if gaps := m.gaps[classOf(n)]; i > 0 && len(gaps) > 0 {
			at += gaps[rng.IntN(len(gaps))]
		}
		if cl == nil || rng.Float64() >= m.Same {
			cl = &m.classes[draw(classes, rng)]
			cores = cl.cores[rng.IntN(len(cl.cores))]
		}
		k := rng.IntN(len(cl.jobs))
		j := cl.jobs[k]
		run := j.run
		if k+1 < len(cl.jobs) {
			run += trace.Time(rng.Float64() * float64(cl.jobs[k+1].run-j.run))
		}
		if run = run / trace.Second * trace.Second; j.asked != trace.Unknown && j.run <= j.asked {
			run = min(run, j.asked)
		}
		t.Submit = append(t.Submit, at/trace.Second*trace.Second)
		t.Run, t.Asked = append(t.Run, run), append(t.Asked, j.asked)
		t.Cores = append(t.Cores, cores)
		t.User = append(t.User, user)
		t.Partition, t.QOS = append(t.Partition, j.partition), append(t.QOS, j.qos)
		if t.Memory != nil {
			t.Memory = append(t.Memory, j.memory)
		}
		if t.NodeCount != nil {
			t.NodeCount = append(t.NodeCount, min(j.nodes, cores))
		}
	}
}

// cumulated returns cumulative sums of weights, the last of which is 1.
func cumulated(n int, weight func(i int) float64) []float64 {
	list := make([]float64, n)
	sum := 0.0
	for i := range list {
		sum += weight(i)
		list[i] = sum
	}
	for i := range list {
		list[i] /= sum
	}
	return list
}

func draw(list []float64, rng *rand.Rand) int {
	i, _ := slices.BinarySearch(list, rng.Float64())
	return min(i, len(list)-1)
}
