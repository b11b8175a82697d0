package combine

import (
	"slices"

	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// most is the highest number of jobs in a pack, and patience the time that a pack waits for
// more.
const (
	most     = 10_000
	patience = trace.Minute
)

// Packed is a trace of packs, with the jobs in them.
type Packed struct {
	Trace *trace.Trace

	original *trace.Trace
	at       []int32 // pack i has the jobs members[at[i]:at[i+1]]
	members  []int32
}

// kind identifies jobs that may be combined.
type kind struct{ user, account, partition, qos, cores, nodes, memory int32 }

func kindOf(t *trace.Trace, job int) kind {
	return kind{t.User[job], t.Account[job], t.Partition[job], t.QOSOf(job), t.Cores[job], t.NodesOf(job), t.MemoryOf(job)}
}

// Pack packs the short jobs of a trace. target is the run time of a pack.
func Pack(t *trace.Trace, target trace.Time) *Packed {
	type sum struct {
		run   trace.Time
		count trace.Time
	}
	sums := make(map[kind]sum)
	for job := range t.Len() {
		k := kindOf(t, job)
		s := sums[k]
		sums[k] = sum{s.run + t.Run[job], s.count + 1}
	}
	// A job that waits for others, or for which others wait, is not packed.
	alone := make([]bool, t.Len())
	for job := range t.Len() {
		for _, before := range t.Before(job) {
			alone[job], alone[before] = true, true
		}
	}
	open := make(map[kind][]int32)
	var packs [][]int32
	for job := range t.Len() {
		k := kindOf(t, job)
		s := sums[k]
		mean := max(s.run/s.count, 1)
		if alone[job] || mean > target/2 {
			packs = append(packs, []int32{int32(job)})
			continue
		}
		if p := open[k]; len(p) > 0 && t.Submit[job]-t.Submit[p[0]] > patience {
			packs = append(packs, p)
			open[k] = nil
		}
		open[k] = append(open[k], int32(job))
		if len(open[k]) >= min(int(target/mean), most) {
			packs = append(packs, open[k])
			open[k] = nil
		}
	}
	for _, p := range open {
		if len(p) > 0 {
			packs = append(packs, p)
		}
	}
	// Sort by the last job, with which a pack is submitted. This also makes the order
	// independent of the map's.
	slices.SortFunc(packs, func(a, b []int32) int { return int(a[len(a)-1]) - int(b[len(b)-1]) })
	return build(t, packs)
}

func build(t *trace.Trace, packs [][]int32) *Packed {
	p := &Packed{original: t, at: make([]int32, 1, len(packs)+1), members: make([]int32, 0, t.Len())}
	copied := *t
	q := &copied
	q.Number, q.Submit, q.Run, q.Asked, q.Waited = nil, nil, nil, nil, nil
	q.Cores, q.NodeCount, q.Memory = nil, nil, nil
	q.User, q.Account, q.Partition, q.QOS, q.Array, q.Think = nil, nil, nil, nil, nil, nil
	q.AfterAt, q.After = nil, nil
	index := make([]int32, t.Len())
	for i, pack := range packs {
		last := pack[len(pack)-1]
		var run, asked trace.Time
		for _, job := range pack {
			run += t.Run[job]
			if t.Asked[job] == trace.Unknown || asked == trace.Unknown {
				asked = trace.Unknown
			} else {
				asked += t.Asked[job]
			}
			index[job] = int32(i)
		}
		q.Number = append(q.Number, t.Number[pack[0]])
		q.Submit = append(q.Submit, t.Submit[last])
		q.Run, q.Asked = append(q.Run, run), append(q.Asked, asked)
		q.Cores = append(q.Cores, t.Cores[last])
		q.User, q.Account, q.Partition = append(q.User, t.User[last]), append(q.Account, t.Account[last]), append(q.Partition, t.Partition[last])
		column(&q.NodeCount, t.NodeCount, last)
		column(&q.Memory, t.Memory, last)
		column(&q.QOS, t.QOS, last)
		column(&q.Array, t.Array, last)
		column(&q.Think, t.Think, last)
		p.members = append(p.members, pack...)
		p.at = append(p.at, int32(len(p.members)))
	}
	if t.AfterAt != nil {
		q.AfterAt = make([]int32, 1, len(packs)+1)
		for _, pack := range packs {
			if len(pack) == 1 {
				for _, before := range t.Before(int(pack[0])) {
					q.After = append(q.After, index[before])
				}
			}
			q.AfterAt = append(q.AfterAt, int32(len(q.After)))
		}
	}
	p.Trace = q
	return p
}

func column[T any](to *[]T, from []T, job int32) {
	if from != nil {
		*to = append(*to, from[job])
	}
}

// Unpack returns the schedule of the jobs in the packs. overhead is the time before the
// first job of a pack begins.
func (p *Packed) Unpack(s *simulate.Schedule, overhead trace.Time) *simulate.Schedule {
	n := p.original.Len()
	out := *s
	out.Eligible = slices.Clone(p.original.Submit)
	out.Start, out.End = make([]trace.Time, n), make([]trace.Time, n)
	out.Lost, out.Earlier, out.Cancelled = make(map[int32]trace.Time), make(map[int32]trace.Time), make(map[int32]bool)
	for i := range len(p.at) - 1 {
		members := p.members[p.at[i]:p.at[i+1]]
		if len(members) == 1 {
			// A job that waits for others is eligible when they have ended.
			out.Eligible[members[0]] = max(s.Eligible[i], p.original.Submit[members[0]])
		}
		at := s.Start[i] + overhead
		for k, job := range members {
			if s.Start[i] == trace.Unknown {
				out.Start[job], out.End[job] = trace.Unknown, trace.Unknown
				continue
			}
			// When a pack was killed, its jobs ended, too.
			out.Start[job] = min(at, s.End[i])
			at += p.original.Run[job]
			out.End[job] = min(at, s.End[i])
			if len(members) == 1 {
				out.Start[job], out.End[job] = s.Start[i], s.End[i]
			}
			if k == 0 && s.Lost[int32(i)] > 0 {
				out.Lost[job] = s.Lost[int32(i)]
			}
			if earlier := s.Earlier[int32(i)]; earlier > 0 && len(members) == 1 {
				out.Earlier[job] = earlier
			}
			if s.Cancelled[int32(i)] {
				out.Cancelled[job] = true
			}
		}
	}
	for i := range out.Refused {
		out.Refused[i].Why += " (packs)"
	}
	return &out
}
