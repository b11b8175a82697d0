package scheduling

import (
	"cmp"
	"math"
	"slices"

	"premix/internal/replay/machine"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// multifactor is the priority of Slurm's priority/multifactor: a weighted sum of factors
// between 0 and 1. See https://slurm.schedmd.com/priority_multifactor.html
//
//   - age: for how long the job has been eligible, of max_age;
//   - size: its part of the machine's cores and, if the trace has nodes, of its nodes,
//     the mean of both; with favor_small, 1 minus that;
//   - partition, QOS: their priority, of the highest one;
//   - fair share: see [shares].
//
// Values are computed when a job is queued, and again every calc_period.
type multifactor struct {
	c         *simulate.Cluster
	config    *Config
	shares    *shares
	cores     float64
	nodes     float64
	partition float64 // the highest priority
	qos       float64
	next      trace.Time
}

func newMultifactor(c *simulate.Cluster, config *Config) *multifactor {
	m := &multifactor{c: c, config: config, cores: float64(c.Machine.Cores()), nodes: float64(c.Machine.Nodes())}
	for _, p := range c.Machine.Partitions {
		m.partition = max(m.partition, float64(p.Priority))
	}
	for _, q := range c.Machine.QOS {
		m.qos = max(m.qos, float64(q.Priority))
	}
	m.shares = newShares(c.Machine.Accounts, config.Fair == "tree", config.Dampen, trace.Time(config.HalfLife))
	return m
}

func part(of, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(max(of/whole, 0), 1)
}

func (m *multifactor) value(job int32) int64 {
	c, w := m.c, &m.config.Weights
	age := part(float64(c.Now()-c.Eligible(job)), float64(m.config.MaxAge))
	r := c.Request(job)
	size := part(float64(r.Cores), m.cores)
	if r.Nodes > 0 {
		size = (size + part(float64(r.Nodes), m.nodes)) / 2
	}
	if m.config.Small {
		size = 1 - size
	}
	partition := part(float64(c.Partition(job).Priority), m.partition)
	qos := 0.0
	if q := c.QOS(job); q != nil {
		qos = part(float64(q.Priority), m.qos)
	}
	priority := float64(w.Age)*age + float64(w.Size)*size + float64(w.Partition)*partition + float64(w.QOS)*qos
	if w.FairShare != 0 {
		priority += float64(w.FairShare) * m.shares.factor(m.leaf(job))
	}
	return -int64(priority)
}

func (m *multifactor) leaf(job int32) int {
	t := m.c.Trace
	return m.shares.leaf(t.Accounts.Names[t.Account[job]], t.Users.Names[t.User[job]])
}

func (m *multifactor) rate(job int32) float64 {
	return float64(m.c.Trace.Cores[job]) * m.c.Charge(job)
}

func (m *multifactor) started(job int32) { m.shares.change(m.leaf(job), m.rate(job), m.c.Now()) }
func (m *multifactor) gone(job int32)    { m.shares.change(m.leaf(job), -m.rate(job), m.c.Now()) }

func (m *multifactor) again() bool {
	if m.c.Now() < m.next {
		return false
	}
	m.next = m.c.Now() + max(trace.Time(m.config.Calc), 1)
	m.shares.advance(m.c.Now())
	return true
}

// shares is the tree of accounts and users with their usage: core time multiplied by charge
// factors, which decays by half every half life.
type shares struct {
	tree   bool // Fair Tree; otherwise Slurm's classic formula
	dampen float64
	half   trace.Time
	nodes  []share // 0 is the root
	byName map[string]int
	leaves map[[2]string]int
	told   map[string]map[string]int // leaves of users, by account
	last   trace.Time                // time to which usage is computed
	ranked bool                      // ranks are computed from the present usage
	users  int
}

// share is an account, or a user in one.
type share struct {
	parent   int
	children []int
	user     bool
	shares   float64
	usage    float64 // at shares.last
	rate     float64 // of running jobs; for a user
	level    float64 // level fair share
	rank     int     // of a user: number of users that are not better off, including itself
	normal   float64 // classic: normalized shares
	effect   float64 // classic: effective usage
}

func newShares(accounts []machine.Account, tree bool, dampen float64, half trace.Time) *shares {
	s := &shares{tree: tree, dampen: dampen, half: half, nodes: []share{{parent: -1, shares: 1}}, byName: map[string]int{"": 0},
		leaves: make(map[[2]string]int), told: make(map[string]map[string]int)}
	parents := make(map[string]machine.Account)
	for _, a := range accounts {
		parents[a.Name] = a
		s.told[a.Name] = a.Users
	}
	var add func(a machine.Account) int
	add = func(a machine.Account) int {
		if at, ok := s.byName[a.Name]; ok {
			return at
		}
		parent := 0
		if a.Parent != "" {
			parent = add(parents[a.Parent])
		}
		at := s.add(parent, float64(max(a.Shares, 1)), false)
		s.byName[a.Name] = at
		return at
	}
	for _, a := range accounts {
		add(a)
	}
	return s
}

func (s *shares) add(parent int, n float64, user bool) int {
	at := len(s.nodes)
	s.nodes = append(s.nodes, share{parent: parent, shares: n, user: user})
	s.nodes[parent].children = append(s.nodes[parent].children, at)
	if user {
		s.users++
	}
	s.ranked = false
	return at
}

// leaf returns the node of a user in an account. A user that the machine does not name has
// one share.
func (s *shares) leaf(account, user string) int {
	if at, ok := s.leaves[[2]string{account, user}]; ok {
		return at
	}
	parent, ok := s.byName[account]
	if !ok {
		parent = s.add(0, 1, false)
		s.byName[account] = parent
	}
	at := s.add(parent, float64(max(s.told[account][user], 1)), true)
	s.leaves[[2]string{account, user}] = at
	return at
}

// change changes the rate of a user when a job starts or, with a negative rate, ends.
func (s *shares) change(leaf int, rate float64, now trace.Time) {
	n := &s.nodes[leaf]
	n.rate += rate
	n.usage -= rate * float64(now-s.last)
}

// advance computes usage up to now.
func (s *shares) advance(now trace.Time) {
	passed := float64(now - s.last)
	keep := 1.0
	if s.half > 0 {
		keep = math.Exp2(-passed / float64(s.half))
	}
	for i := range s.nodes {
		if n := &s.nodes[i]; n.user {
			n.usage = max(n.usage*keep+n.rate*passed, 0)
		}
	}
	s.last = now
	s.ranked = false
}

// factor returns the fair-share factor of a user, from 0 to 1.
func (s *shares) factor(leaf int) float64 {
	if !s.ranked {
		s.sum()
		if s.tree {
			s.rankAll()
		} else {
			s.classic(0, 1, 1)
		}
		s.ranked = true
	}
	n := &s.nodes[leaf]
	if s.tree {
		return float64(n.rank) / float64(s.users)
	}
	if n.normal <= 0 {
		return 0
	}
	return math.Exp2(-n.effect / n.normal / s.dampen)
}

// sum adds up usage in the tree: children come after their parents.
func (s *shares) sum() {
	for i := range s.nodes {
		if !s.nodes[i].user {
			s.nodes[i].usage = 0
		}
	}
	for i := len(s.nodes) - 1; i > 0; i-- {
		s.nodes[s.nodes[i].parent].usage += s.nodes[i].usage
	}
}

// rankAll is Slurm's Fair Tree, https://slurm.schedmd.com/fair_tree.html: at each node the
// children are sorted by shares divided by usage, both relative to the totals of the
// siblings. All users below a better child come before all below a worse one. Children of
// accounts that are equal are sorted together; users that are equal have the same rank.
func (s *shares) rankAll() {
	for i := range s.nodes {
		total := 0.0
		for _, c := range s.nodes[i].children {
			total += s.nodes[c].shares
		}
		for _, c := range s.nodes[i].children {
			n := &s.nodes[c]
			n.level = math.Inf(1)
			if n.usage > 0 {
				n.level = (n.shares / total) / (n.usage / s.nodes[i].usage)
			}
		}
	}
	left := s.users
	s.rank(s.nodes[0].children, &left)
}

func (s *shares) rank(list []int, left *int) {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b int) int {
		x, y := &s.nodes[a], &s.nodes[b]
		// Among equal ones users come first.
		return cmp.Or(cmp.Compare(y.level, x.level), cmp.Compare(b2i(y.user), b2i(x.user)))
	})
	rank := *left
	for i := 0; i < len(list); {
		n := &s.nodes[list[i]]
		if n.user {
			if i == 0 || !s.nodes[list[i-1]].user || s.nodes[list[i-1]].level != n.level {
				rank = *left
			}
			n.rank = rank
			*left--
			i++
			continue
		}
		var below []int
		k := i
		for ; k < len(list) && s.nodes[list[k]].level == n.level; k++ {
			below = append(below, s.nodes[list[k]].children...)
		}
		s.rank(below, left)
		i = k
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// classic is Slurm's earlier formula, which it still uses with NO_FAIR_TREE; see
// https://slurm.schedmd.com/classic_fair_share.html
func (s *shares) classic(at int, normal, effect float64) {
	total := s.nodes[0].usage
	sum := 0.0
	for _, c := range s.nodes[at].children {
		sum += s.nodes[c].shares
	}
	for _, c := range s.nodes[at].children {
		n := &s.nodes[c]
		mine := part(n.usage, total)
		n.normal = normal * n.shares / sum
		n.effect = mine
		if at != 0 {
			n.effect = mine + (effect-mine)*n.shares/sum
		}
		s.classic(c, n.normal, n.effect)
	}
}
