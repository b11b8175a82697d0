package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
)

func TestOrder(t *testing.T) {
	equal := func(n int, budget int64) []int64 { return slices.Repeat([]int64{budget}, n) }
	for _, c := range []struct {
		name     string
		sizes    []int64
		budgets  []int64
		replicas int
		want     [][]int // the first nodes of each order
	}{
		{"one replica, neighbours together", []int64{1, 1, 1, 1, 1, 1}, equal(3, 2), 1, [][]int{{0}, {0}, {1}, {1}, {2}, {2}}},
		{"pairs exchange their shares", []int64{1, 1, 1, 1}, equal(4, 2), 2, [][]int{{0, 1}, {1, 0}, {2, 3}, {3, 2}}},
		{"three nodes exchange their shares", []int64{1, 1, 1}, equal(3, 2), 2, [][]int{{0, 1}, {1, 2}, {2, 0}}},
		{"nodes with different memory are a ring", []int64{1, 1, 1, 1, 1, 1, 1, 1}, []int64{6, 2, 6, 2}, 2, [][]int{{0, 2}, {0, 2}, {0, 2}, {1, 3}, {2, 0}, {2, 0}, {2, 0}, {3, 1}}},
		{"a node with more memory has more", []int64{1, 1, 1, 1}, []int64{3, 1}, 1, [][]int{{0}, {0}, {0}, {1}}},
		{"a node without memory has nothing", []int64{1, 1}, []int64{0, 2}, 1, [][]int{{1}, {1}}},
		{"as many replicas as nodes", []int64{5}, equal(2, 5), 2, [][]int{{0, 1}}},
	} {
		got, err := order(c.sizes, c.budgets, c.replicas)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for f := range got {
			got[f] = got[f][:c.replicas]
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	for name, c := range map[string]struct {
		sizes    []int64
		budgets  []int64
		replicas int
		kind     database.Kind
	}{
		"too little memory":           {[]int64{4, 4}, equal(2, 3), 1, database.NoRoom},
		"enough, but in small pieces": {[]int64{4}, equal(4, 3), 1, database.NoRoom},
		"too few nodes":               {[]int64{1}, equal(2, 9), 3, database.Use},
	} {
		_, err := order(c.sizes, c.budgets, c.replicas)
		if e := (*database.Error)(nil); !errors.As(err, &e) || e.Kind != c.kind || e.HintText == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// For any sizes a plan is a permutation of the nodes for each fragment, and fits.
func TestOrderRandomly(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	planned := 0
	for range 2000 {
		sizes := make([]int64, 1+r.IntN(40))
		for i := range sizes {
			sizes[i] = 1 + r.Int64N(1000)
		}
		nodes := make([]int64, 1+r.IntN(9))
		for i := range nodes {
			nodes[i] = r.Int64N(20_000)
		}
		replicas := 1 + r.IntN(min(3, len(nodes)))
		orders, err := order(sizes, nodes, replicas)
		if err != nil {
			continue
		}
		planned++
		p := Placement{Format: placementFormat, Replicas: replicas, Order: orders}
		used := make([]int64, len(nodes))
		for i := range nodes {
			p.Nodes = append(p.Nodes, fmt.Sprint(i))
		}
		if err := p.check(); err != nil {
			t.Fatal(err)
		}
		for f, o := range orders {
			for _, n := range o[:replicas] {
				used[n] += sizes[f]
			}
		}
		for i := range nodes {
			if used[i] > nodes[i] {
				t.Fatalf("%v on %v, %d replicas: node %d gets %d", sizes, nodes, replicas, i, used[i])
			}
		}
	}
	if planned < 500 {
		t.Errorf("only %d of 2000 were possible", planned)
	}
}

func TestDistribute(t *testing.T) {
	has := func(list ...int) map[int]bool {
		m := map[int]bool{}
		for _, f := range list {
			m[f] = true
		}
		return m
	}
	for _, c := range []struct {
		name    string
		list    []int
		holders []holder
		want    []share
	}{
		{"each has its own", []int{0, 1, 2, 3}, []holder{{speed: 1, has: has(0, 1)}, {speed: 1, has: has(2, 3)}}, []share{{node: 0, first: 0, end: 2}, {node: 1, first: 2, end: 4}}},
		{"replicas share the work", []int{0, 1, 2, 3}, []holder{{speed: 1, has: has(0, 1, 2, 3)}, {speed: 1, has: has(0, 1, 2, 3)}}, []share{{node: 0, first: 0, end: 2}, {node: 1, first: 2, end: 4}}},
		{"a fast node gets more", []int{0, 1, 2, 3}, []holder{{speed: 3, has: has(0, 1, 2, 3)}, {speed: 1, has: has(0, 1, 2, 3)}}, []share{{node: 0, first: 0, end: 3}, {node: 1, first: 3, end: 4}}},
		{"no holder", []int{0, 1, 2}, []holder{{speed: 1, has: has(0, 2)}}, []share{{node: 0, first: 0, end: 1}, {node: -1, first: 1, end: 2}, {node: 0, first: 2, end: 3}}},
		{"no node", []int{0, 1}, nil, []share{{node: -1, first: 0, end: 2}}},
		{"the remaining fragments", []int{1, 4, 5}, []holder{{speed: 1, has: has(0, 1, 2, 3, 4, 5)}}, []share{{node: 0, first: 1, end: 2}, {node: 0, first: 4, end: 6}}},
	} {
		if got := distribute(c.list, func(int) int64 { return 100 }, c.holders); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	// Every fragment is in exactly one share, which belongs to a node with this fragment.
	r := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		n := 1 + r.IntN(30)
		holders := make([]holder, r.IntN(6))
		for i := range holders {
			holders[i] = holder{speed: 1 + r.Float64(), has: map[int]bool{}}
			for f := range n {
				holders[i].has[f] = r.IntN(3) == 0
			}
		}
		var list []int
		for f := range n {
			if r.IntN(4) > 0 {
				list = append(list, f)
			}
		}
		var got []int
		for _, s := range distribute(list, func(f int) int64 { return int64(1 + f) }, holders) {
			for f := s.first; f < s.end; f++ {
				got = append(got, f)
				any := slices.ContainsFunc(holders, func(h holder) bool { return h.has[f] })
				if s.node >= 0 && !holders[s.node].has[f] || s.node < 0 && any {
					t.Fatalf("node %d searches fragment %d", s.node, f)
				}
			}
		}
		if !slices.Equal(got, list) {
			t.Fatalf("got %v, want %v", got, list)
		}
	}
}

// If queries are divided over nodes of equal memory, each of them gets one run of fragments, of
// which one process makes tables once.
func TestDivideAsPlaced(t *testing.T) {
	for _, c := range []struct{ nodes, replicas, teams int }{{8, 2, 2}, {4, 2, 2}, {6, 3, 3}, {2, 2, 2}} {
		sizes, list := slices.Repeat([]int64{10}, 48), []int{}
		placed, err := order(sizes, slices.Repeat([]int64{1000}, c.nodes), c.replicas)
		if err != nil {
			t.Fatal(err)
		}
		holders := make([]holder, c.nodes)
		for i := range holders {
			holders[i] = holder{speed: 1, has: map[int]bool{}}
		}
		for f, nodes := range placed {
			list = append(list, f)
			for _, n := range nodes[:c.replicas] {
				holders[n].has[f] = true
			}
		}
		count, queries := map[int]int{}, map[part.Range]bool{}
		for _, s := range divide(list, func(int) int64 { return 1_000_000 }, holders, slices.Repeat([]int64{500_000}, 12)) {
			count[s.node]++
			queries[s.queries] = true
		}
		for i := range holders {
			if count[i] != 1 || len(queries) != c.teams {
				t.Errorf("%d nodes with %d replicas: node %d has %d shares, there are %d teams, want %d", c.nodes, c.replicas, i, count[i], len(queries), c.teams)
			}
		}
	}
}

// Queries are divided where that takes no longer, and each fragment is searched once for each of
// them.
func TestDivide(t *testing.T) {
	// Two replicas on a ring of eight nodes.
	var list []int
	ring := make([]holder, 8)
	for i := range ring {
		ring[i] = holder{speed: 1, has: map[int]bool{}}
	}
	for f := range 32 {
		list = append(list, f)
		ring[f/4].has[f], ring[(f/4+4)%8].has[f] = true, true
	}
	// One node has all fragments, and two others a copy between them, one of them nearly all.
	uneven := []holder{{speed: 1, has: map[int]bool{}}, {speed: 1, has: map[int]bool{0: true}}, {speed: 1, has: map[int]bool{}}}
	for f := range 8 {
		uneven[0].has[f], uneven[2].has[f] = true, f > 0
	}
	same := func(int) int64 { return 2 * tables }
	for _, c := range []struct {
		name    string
		list    []int
		holders []holder
		pieces  int
		want    int // runs of the queries
	}{
		{"two replicas", list, ring, 20, 2},
		{"one piece", list, ring, 1, 1},
		{"three pieces are not two halves", list, ring, 3, 1},
		{"a replica is missing", list, ring[:7], 20, 1},
		{"the slowest would take longer", list[:8], uneven, 20, 1},
		{"no holder", list, nil, 20, 1},
	} {
		sizes := make([]int64, c.pieces)
		for i := range sizes {
			sizes[i] = 500
		}
		runs := map[int]bool{}
		for _, s := range divide(c.list, same, c.holders, sizes) {
			runs[s.queries[0]] = true
		}
		if len(runs) != c.want {
			t.Errorf("%s: %d runs of the queries, want %d", c.name, len(runs), c.want)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		n, most := 1+r.IntN(12), 1+r.IntN(3)
		holders := make([]holder, r.IntN(9))
		for i := range holders {
			holders[i] = holder{speed: 1 + float64(r.IntN(3)), has: map[int]bool{}}
			for f := range n {
				holders[i].has[f] = r.IntN(4) < most
			}
		}
		sizes := make([]int64, 1+r.IntN(30))
		for i := range sizes {
			sizes[i] = int64(1 + r.IntN(1000))
		}
		seen := map[[2]int]int{}
		for _, s := range divide(list[:n], func(f int) int64 { return int64(1 + f) }, holders, sizes) {
			for f := s.first; f < s.end; f++ {
				for q := s.queries[0]; q < s.queries[1]; q++ {
					seen[[2]int{f, q}]++
				}
				any := slices.ContainsFunc(holders, func(h holder) bool { return h.has[f] })
				if s.node >= 0 && !holders[s.node].has[f] || s.node < 0 && any {
					t.Fatalf("node %d searches fragment %d", s.node, f)
				}
			}
		}
		for f := range n {
			for q := range sizes {
				if seen[[2]int{f, q}] != 1 {
					t.Fatalf("fragment %d is searched %d times for part %d of the queries", f, seen[[2]int{f, q}], q)
				}
			}
		}
	}
}
