package cluster

import (
	"cmp"
	"fmt"
	"slices"

	"premix/internal/blast/database"
	"premix/internal/kit/units"
)

// order returns the order of preference of the nodes for each fragment. sizes are those of the
// fragments, and budgets the memory of the nodes for them, bytes. The first replicas
// nodes of an order hold it while they live, and the plan fits into their budgets.
//
// Each replica is laid out around the ring of nodes, in shares that are proportional to the
// budgets, so that a node has neighbouring fragments, which one process searches. The
// replicas begin at different places of the ring, so that those of a fragment are on
// different nodes.
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
	left := slices.Clone(budgets)
	orders := make([][]int, len(sizes))
	for r := range replicas {
		start := r * len(budgets) / replicas
		var before int64 // bytes of the fragments before
		for f, size := range sizes {
			// The node in whose share the middle of the fragment is.
			middle := float64(before+size/2) / float64(total) * float64(budget)
			k := 0
			for sum := float64(budgets[start]); k+1 < len(budgets) && middle >= sum; {
				k++
				sum += float64(budgets[(start+k)%len(budgets)])
			}
			before += size
			// If it cannot take the fragment, the one with the most memory left takes it.
			n := (start + k) % len(budgets)
			if left[n] < size || slices.Contains(orders[f], n) {
				n = -1
				for i := range budgets {
					if left[i] >= size && !slices.Contains(orders[f], i) && (n < 0 || left[i] > left[n]) {
						n = i
					}
				}
				if n < 0 {
					return nil, noFit(total, replicas, budget, len(budgets))
				}
			}
			left[n] -= size
			orders[f] = append(orders[f], n)
		}
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
	speed float64 // cores, less for a node that works for others
	has   map[int]bool
}

// share is a run of consecutive fragments that one node searches.
type share struct {
	node       int // -1: the head itself
	first, end int
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
			shares = append(shares, share{best, f, f + 1})
		}
		last = best
	}
	return shares
}
