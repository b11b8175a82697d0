package pilot

import (
	"cmp"
	"slices"
	"time"

	"premix/internal/record"
)

// minShare is the shortest share, if there are enough tasks: queueing and starting
// an engine job takes seconds.
const minShare = 20 * time.Second

// maxRanges bounds the line of a wave.
const maxRanges = 4096

// maxStrikes is how many workers may end over a task that is alone in its share.
const maxStrikes = 2

// times are measured run times: core seconds of a task, by key.
type times struct {
	sum   map[string]float64
	count map[string]int
}

func newTimes() *times { return &times{sum: make(map[string]float64), count: make(map[string]int)} }

// add counts a record.
func (t *times) add(key string, r *record.Task) {
	switch r.Cause {
	case record.CauseInterrupted, record.CauseLost, record.CauseStart, record.CauseDisk:
		return // not caused by the task
	}
	t.sum[key] += r.Seconds * float64(max(r.Cores, 1))
	t.count[key]++
}

// mean returns the mean core time of a task in seconds, if it is known.
func (t *times) mean(key string) (seconds float64, ok bool) {
	n := t.count[key]
	if n == 0 {
		return 0, false
	}
	return max(t.sum[key]/float64(n), 1e-4), true
}

// strike is the record of a task whose workers were fruitless.
type strike struct {
	limit int // most tasks of a share that it is in
	alone int // fruitless workers that had only this task
}

// packing is the input of one decision about the sizes of shares.
type packing struct {
	cores   int   // of a job, at least
	memory  int64 // of a job; 0: what its tasks declare
	target  time.Duration
	jobs    int // in flight, at most
	room    int // jobs that may be added
	times   *times
	strikes map[int]strike
}

// class are tasks whose shares ask for the same.
type class struct {
	cores  int
	memory int64
	ask    string
	// resources are those of one task, so the tasks of a share hold them one after the other.
	resources string
}

// classOf returns the class of a task.
func (p *packing) classOf(n *Requirements) class {
	c := class{max(p.cores, n.Cores), p.memory, n.Ask, n.Resources}
	if n.Resources != "" {
		c.cores = n.Cores // more cores would be idle
	}
	if n.Memory > 0 {
		// As much as the tasks need that its cores can run at a time.
		c.memory = max(c.memory, n.Memory*int64(max(1, c.cores/max(n.Cores, 1))))
		if p.memory > 0 {
			c.memory = max(p.memory, n.Memory)
		}
	}
	return c
}

// shares makes shares of tasks, in their order, by class. Workers and worker slots are not
// filled in.
func (p *packing) shares(needs []Requirements) []Share {
	var list []Share
	var classes []class
	members := make(map[class][]*Requirements)
	for i := range needs {
		n := &needs[i]
		c := p.classOf(n)
		if s, ok := p.strikes[n.Task]; ok {
			list = p.struck(list, n.Task, c, s)
			continue
		}
		if members[c] == nil {
			classes = append(classes, c)
		}
		members[c] = append(members[c], n)
	}
	if len(list) > p.room {
		list = list[:p.room]
	}
	for _, c := range classes {
		list = append(list, p.divide(c, members[c], p.room-len(list))...)
	}
	return list
}

// struck adds a task with a strike to the last share, or begins another.
func (p *packing) struck(list []Share, task int, c class, s strike) []Share {
	if last := len(list) - 1; last >= 0 {
		l := &list[last]
		if l.Tasks() < s.limit && l.class() == c && l.Strikes == s.alone {
			l.add(task)
			return list
		}
	}
	return append(list, Share{Ranges: [][2]int{{task, task}}, Cores: c.cores, Memory: c.memory, Ask: c.ask, Resources: c.resources, Strikes: s.alone})
}

// divide makes at most room shares of the tasks of a class.
func (p *packing) divide(c class, tasks []*Requirements, room int) []Share {
	if room <= 0 {
		return nil
	}
	var total float64 // core seconds
	known := true
	weights := make([]float64, len(tasks))
	var sum, n float64
	for i, t := range tasks {
		w, ok := p.times.mean(t.Key)
		if !ok {
			known = false
			continue
		}
		weights[i] = w
		sum += w
		n++
	}
	for i := range weights {
		if weights[i] == 0 {
			weights[i] = 1 // only how they compare counts
			if n > 0 {
				weights[i] = sum / n
			}
		}
		total += weights[i]
	}
	perShare := 0.0 // core seconds
	if known {
		cores := float64(c.cores)
		each := total / cores / float64(p.jobs)
		each = max(each, minShare.Seconds())
		if p.target > 0 {
			each = min(each, p.target.Seconds())
		}
		count := max(1, int(total/cores/each+0.999))
		if count <= room {
			each = total / cores / float64(count)
		}
		perShare = each * cores
	} else {
		// Each job gets enough to keep its cores busy.
		slots := max(1, c.cores/max(tasks[0].Cores, 1))
		perShare = total / float64(min(room, (len(tasks)+slots-1)/slots))
	}
	var list []Share
	var s *Share
	var filled float64
	for i, t := range tasks {
		// Half a task over is nearer than half a task under.
		if s == nil || filled+weights[i]/2 > perShare*float64(len(list)) && len(list) < room || len(s.Ranges) >= maxRanges {
			if len(list) == room {
				break
			}
			list = append(list, Share{Cores: c.cores, Memory: c.memory, Ask: c.ask, Resources: c.resources})
			s = &list[len(list)-1]
		}
		if known && len(list) == room && filled >= perShare*float64(room) {
			break // later jobs take the rest
		}
		s.add(t.Task)
		filled += weights[i]
	}
	for i := range list {
		list[i].settle()
	}
	return list
}

// class returns the class of a share, which its engine job asks for.
func (s *Share) class() class { return class{s.Cores, s.Memory, s.Ask, s.Resources} }

// add adds a task.
func (s *Share) add(task int) {
	if last := len(s.Ranges) - 1; last >= 0 && s.Ranges[last][1] == task-1 {
		s.Ranges[last][1] = task
		return
	}
	s.Ranges = append(s.Ranges, [2]int{task, task})
}

// settle sorts the ranges.
func (s *Share) settle() {
	slices.SortFunc(s.Ranges, func(a, b [2]int) int { return cmp.Compare(a[0], b[0]) })
}

// waves groups shares that ask for the same.
func waves(shares []Share) [][]Share {
	var list [][]Share
	at := make(map[class]int)
	for _, s := range shares {
		c := s.class()
		i, ok := at[c]
		if !ok {
			i = len(list)
			at[c] = i
			list = append(list, nil)
		}
		list[i] = append(list[i], s)
	}
	return list
}
