package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
	"premix/internal/kit/units"
)

// order returns the order of preference of the nodes for each fragment. sizes are those of the
// fragments, and budgets the memory of the nodes for them, bytes. The first replicas
// nodes of an order hold it while they live, and the plan fits into their budgets.
//
// The first replica is laid out over the nodes in shares that are proportional to the budgets, so
// that a node has neighbouring fragments, which one process searches. Groups of as many nodes as
// there are replicas, or more, exchange their shares: so each of them has a run of neighbouring
// fragments, of which one process makes tables of the queries once, and the groups together have
// each fragment on as many nodes as there are replicas. Where budgets are too different for that,
// each replica is laid out around the ring of nodes, from another place of it.
func order(sizes, budgets []int64, replicas int) ([][]int, error) {
	var total, budget int64
	for _, s := range sizes {
		total += s
	}
	for _, b := range budgets {
		budget += b
	}
	switch {
	case replicas > len(budgets):
		return nil, &database.Error{Kind: database.Use, Message: fmt.Sprintf("%d replicas need as many nodes, and %d answer", replicas, len(budgets)), HintText: "start more nodes, or lower --replicas"}
	case total*int64(replicas) > budget:
		return nil, noFit(total, replicas, budget, len(budgets))
	}
	orders, left := layOut(sizes, budgets, replicas, true)
	if orders == nil {
		orders, left = layOut(sizes, budgets, replicas, false)
	}
	if orders == nil {
		return nil, noFit(total, replicas, budget, len(budgets))
	}
	// The others follow, those with the most memory left first.
	for f := range orders {
		var rest []int
		for i := range budgets {
			if !slices.Contains(orders[f], i) {
				rest = append(rest, i)
			}
		}
		slices.SortStableFunc(rest, func(a, b int) int {
			// Neighbouring fragments of a lost node go to different nodes.
			return cmp.Or(cmp.Compare(left[b]>>30, left[a]>>30), cmp.Compare((a+f)%len(budgets), (b+f)%len(budgets)))
		})
		orders[f] = append(orders[f], rest...)
	}
	return orders, nil
}

// layOut returns the nodes of the replicas of each fragment, and the memory that is left of the
// budgets; nil if the fragments do not fit. With groups, the nodes of a group exchange their
// shares.
func layOut(sizes, budgets []int64, replicas int, groups bool) (orders [][]int, left []int64) {
	var total, budget float64
	for _, s := range sizes {
		total += float64(s)
	}
	for _, b := range budgets {
		budget += float64(b)
	}
	left = slices.Clone(budgets)
	orders = make([][]int, len(sizes))
	for r := range replicas {
		start := 0
		if !groups {
			start = r * len(budgets) / replicas
		}
		var before int64 // bytes of the fragments before
		for f, size := range sizes {
			// The node in whose share the middle of the fragment is.
			middle := float64(before+size/2) / total * budget
			k := 0
			for sum := float64(budgets[start]); k+1 < len(budgets) && middle >= sum; {
				k++
				sum += float64(budgets[(start+k)%len(budgets)])
			}
			before += size
			n := (start + k) % len(budgets)
			if groups {
				n = partner(k, r, len(budgets), replicas)
			}
			if left[n] < size || slices.Contains(orders[f], n) {
				if groups {
					return nil, nil
				}
				// The one with the most memory left takes it.
				n = -1
				for i := range budgets {
					if left[i] >= size && !slices.Contains(orders[f], i) && (n < 0 || left[i] > left[n]) {
						n = i
					}
				}
				if n < 0 {
					return nil, nil
				}
			}
			left[n] -= size
			orders[f] = append(orders[f], n)
		}
	}
	return orders, left
}

// partner returns the node of the group of node k that has replica r of its share. The last group
// has the nodes that are left over, too.
func partner(k, r, nodes, replicas int) int {
	group := min(k/replicas, nodes/replicas-1)
	first, size := group*replicas, replicas
	if group == nodes/replicas-1 {
		size = nodes - first
	}
	return first + (k-first+r)%size
}

func noFit(total int64, replicas int, budget int64, nodes int) error {
	return &database.Error{Kind: database.NoRoom,
		Message:  fmt.Sprintf("the database does not fit: %d replicas of %s, and the %d nodes may use %s", replicas, units.Size(total), nodes, units.Size(budget)),
		HintText: "start more nodes, give them more with --memory, lower --replicas, or make more fragments with premix blast db add --fragments"}
}

// wanted returns the nodes that should hold a fragment: the first ones of its order that can.
func (p *Placement) wanted(f int, can func(node int) bool) []int {
	var list []int
	for _, n := range p.Order[f] {
		if can(n) {
			if list = append(list, n); len(list) == p.Replicas {
				break
			}
		}
	}
	return list
}

// holder is a node as far as the distribution of a search needs it.
type holder struct {
	address string
	speed   float64 // cores, less for a node that works for others
	has     map[int]bool
}

// share is a run of consecutive fragments that one node searches.
type share struct {
	node       int // -1: the head itself
	first, end int
	queries    part.Range // the pieces of them
}

// fragments returns the numbers of the fragments.
func (s share) fragments() (list []int) {
	for f := s.first; f < s.end; f++ {
		list = append(list, f)
	}
	return list
}

// distribute gives each of the fragments in list, which is sorted, to one of its holders, so
// that all holders need about the same time. A holder gets neighbouring fragments where that
// does not take longer, since one process searches them.
func distribute(list []int, letters func(fragment int) int64, holders []holder) []share {
	var total, speed float64
	for _, f := range list {
		total += float64(letters(f))
	}
	for _, h := range holders {
		for _, f := range list {
			if h.has[f] {
				speed += h.speed
				break
			}
		}
	}
	load := make([]float64, len(holders))
	var shares []share
	last := -1
	for _, f := range list {
		best := -1
		for i, h := range holders {
			if h.has[f] && (best < 0 || load[i]/h.speed < load[best]/holders[best].speed) {
				best = i
			}
		}
		half := float64(letters(f)) / 2
		if last >= 0 && holders[last].has[f] && load[last]+half <= total*holders[last].speed/speed {
			best = last
		}
		if best >= 0 {
			load[best] += 2 * half
		}
		if n := len(shares); n > 0 && shares[n-1].node == best && shares[n-1].end == f {
			shares[n-1].end = f + 1
		} else {
			shares = append(shares, share{node: best, first: f, end: f + 1})
		}
		last = best
	}
	return shares
}

// divide distributes fragments and pieces of queries, whose sizes are given, over the holders.
//
// BLAST+ makes tables of all its queries, however few fragments it searches. If there are several holders of each fragment, they are divided into teams that each
// have all fragments, and each team gets a run of the queries. Its nodes search more fragments, for
// fewer queries: their scans take as long, and their tables less. divide makes as many teams as
// take the least time.
func divide(list []int, letters func(fragment int) int64, holders []holder, sizes []int64) []share {
	var best []share
	var least float64
	for n := 1; n <= len(sizes) && n <= len(holders) || n == 1; n++ {
		all := teams(list, letters, holders, n)
		if len(all) < n {
			break
		}
		if shares, slowest := assign(list, letters, holders, all, sizes); n == 1 || slowest < least {
			best, least = shares, slowest
		}
	}
	return best
}

// tables is the number of letters of a database that blastn scans in the time in which it makes the
// tables of the same queries: 0.15 to 0.25 s for 500,000 letters of them, and 2.6 s for a scan of
// 800,000,000.
const tables = 50_000_000

// assign gives each team a run of the queries. slowest is the longest time of a node, in letters
// of the database times bytes of queries by speed.
func assign(list []int, letters func(fragment int) int64, holders []holder, all [][]int, sizes []int64) (shares []share, slowest float64) {
	var speed, total float64
	speeds := make([]float64, len(all))
	for t, team := range all {
		for _, i := range team {
			speeds[t] += holders[i].speed
		}
		speed += speeds[t]
	}
	for _, n := range sizes {
		total += float64(n)
	}
	piece := 0
	var sum, until float64 // bytes
	for t, team := range all {
		queries := part.Range{piece, piece}
		until += speeds[t] / speed * total
		var bytes float64
		for ; piece < len(sizes) && (t+1 == len(all) || sum+float64(sizes[piece])/2 <= until); piece++ {
			sum, bytes = sum+float64(sizes[piece]), bytes+float64(sizes[piece])
		}
		if queries[1] = piece; queries[0] == queries[1] {
			continue
		}
		own := make([]holder, len(team))
		for k, i := range team {
			own[k] = holders[i]
		}
		load := make([]float64, len(team))
		for _, s := range distribute(list, letters, own) {
			if s.queries = queries; s.node >= 0 {
				for f := s.first; f < s.end; f++ {
					load[s.node] += float64(letters(f))
				}
				slowest = max(slowest, (load[s.node]+tables)*bytes/own[s.node].speed)
				s.node = team[s.node]
			}
			shares = append(shares, s)
		}
	}
	return shares, slowest
}

// teams divides holders into n teams of which each has all fragments in list, or into fewer.
// Holders without any of the fragments are in none.
func teams(list []int, letters func(fragment int) int64, holders []holder, n int) [][]int {
	var free []int
	for i, h := range holders {
		if slices.ContainsFunc(list, func(f int) bool { return h.has[f] }) {
			free = append(free, i)
		}
	}
	if n == 1 {
		return [][]int{free}
	}
	var all [][]int
	for len(all) < n {
		missing := map[int]bool{}
		for _, f := range list {
			missing[f] = true
		}
		var team []int
		rest := slices.Clone(free)
		for len(missing) > 0 {
			best, most := -1, int64(0)
			for k, i := range rest {
				var gain int64
				for f := range missing {
					if holders[i].has[f] {
						gain += letters(f)
					}
				}
				if gain > most {
					best, most = k, gain
				}
			}
			if best < 0 {
				return all
			}
			maps.DeleteFunc(missing, func(f int, _ bool) bool { return holders[rest[best]].has[f] })
			team, rest = append(team, rest[best]), slices.Delete(rest, best, best+1)
		}
		all, free = append(all, team), rest
	}
	for _, i := range free {
		slowest := slices.MinFunc(all, func(a, b []int) int { return cmp.Compare(total(holders, a), total(holders, b)) })
		k := slices.IndexFunc(all, func(team []int) bool { return team[0] == slowest[0] })
		all[k] = append(all[k], i)
	}
	return all
}

// total returns the speed of a team.
func total(holders []holder, team []int) (speed float64) {
	for _, i := range team {
		speed += holders[i].speed
	}
	return speed
}
