package freecapacity

import (
	"math/rand/v2"
	"slices"
	"testing"

	"premix/internal/replay/trace"
)

// TestAgainstPlain compares the profile with an array of moments.
func TestAgainstPlain(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		// Half of the times are long enough for many blocks of steps.
		end, far, count, most := trace.Time(120), 30, 400, 0
		if seed%2 == 1 {
			end, far, count = 6000, 5000, 4000
		}
		c := NewCountedPool(10, 1, 0, true)
		plain := make([]int64, end)
		for i := range plain {
			plain[i] = 10
		}
		type taken struct {
			r           Request
			from, until trace.Time
		}
		var held []taken
		now := trace.Time(0)
		for range count {
			most = max(most, len(c.steps.blocks))
			switch from, length := now+trace.Time(rng.IntN(far)), trace.Time(1+rng.IntN(20)); rng.IntN(7) {
			case 0, 1, 2:
				r := Request{Cores: int32(1 + rng.IntN(6))}
				at := c.Earliest(r, from, length)
				want := from
				for ; ; want++ {
					fits := true
					for k := want; k < want+length; k++ {
						fits = fits && (k >= end || plain[k] >= int64(r.Cores))
					}
					if fits {
						break
					}
				}
				if at != want {
					t.Fatalf("seed %d: earliest %d, want %d", seed, at, want)
				}
				if at+length >= end {
					continue
				}
				c.Take(0, r, at, at+length)
				held = append(held, taken{r, at, at + length})
				for k := at; k < at+length; k++ {
					plain[k] -= int64(r.Cores)
				}
			case 3:
				if len(held) == 0 {
					continue
				}
				i := rng.IntN(len(held))
				if h := &held[i]; h.from > now && rng.IntN(2) == 0 {
					to := now + trace.Time(rng.Int64N(int64(h.from-now)))
					c.Move(h.r, h.until-h.from, h.from, to)
					for k := h.from; k < h.until; k++ {
						plain[k] += int64(h.r.Cores)
					}
					h.from, h.until = to, to+h.until-h.from
					for k := h.from; k < h.until; k++ {
						plain[k] -= int64(h.r.Cores)
					}
					continue
				}
				h := held[i]
				held = append(held[:i], held[i+1:]...)
				if h.until <= now {
					continue
				}
				h.from = max(h.from, now)
				c.Give(0, h.r, h.from, h.until)
				for k := h.from; k < h.until; k++ {
					plain[k] += int64(h.r.Cores)
				}
			case 4:
				if now < end/2 {
					now += trace.Time(rng.IntN(2))
					c.Forget(now)
				}
			case 6:
				// A holder whose room begins at kept looks for an earlier beginning.
				r, kept := Request{Cores: int32(1 + rng.IntN(6))}, from+trace.Time(rng.IntN(30))
				begin, last := from+trace.Time(rng.IntN(5)), from+trace.Time(rng.IntN(40))
				fits := func(from, until trace.Time) bool {
					for k := from; k < until; k++ {
						if k < end && plain[k] < int64(r.Cores) {
							return false
						}
					}
					return true
				}
				want := trace.Never
				for k := begin; k < last && k+length <= kept && want == trace.Never; k++ {
					if fits(k, k+length) {
						want = k
					}
				}
				for k := from; k < min(last, kept) && want == trace.Never; k++ {
					if fits(k, kept) {
						want = k
					}
				}
				if at := c.Sooner(r, from, begin, last, length, kept); at != want {
					t.Fatalf("seed %d: sooner %d, want %d", seed, at, want)
				}
				if fits(from, from+1) {
					until := from
					for until < end && fits(until, until+1) {
						until++
					}
					if got := min(c.Room(r, from), end); got != until {
						t.Fatalf("seed %d: room until %d, want %d", seed, got, until)
					}
				}
			case 5:
				least := int64(10)
				for k := from; k < min(from+length, end); k++ {
					least = min(least, plain[k])
				}
				for cores := int32(1); cores <= 10; cores++ {
					if got := c.Fits(Request{Cores: cores}, from, from+length); got != (least >= int64(cores)) {
						t.Fatalf("seed %d: %d cores fit: %v, least is %d", seed, cores, got, least)
					}
				}
			}
		}
		if seed%2 == 1 && most < 8 {
			t.Errorf("seed %d: at most %d blocks", seed, most)
		}
	}
}

func TestPlaced(t *testing.T) {
	nodes := []Node{{Cores: 4, Memory: 4000}, {Cores: 4, Memory: 4000}, {Cores: 8, Memory: 16000}}
	p := NewNodePool(nodes, false, Pack)
	two := Request{Cores: 6, Nodes: 2}
	if !p.Take(1, two, 0, 10) || len(p.Shares(1)) != 2 || p.Shares(1)[0].Cores != 3 {
		t.Fatalf("shares %+v", p.Shares(1))
	}
	// 1, 1 and 8 cores are left.
	if p.Fits(Request{Cores: 9, Nodes: 1}, 0, 5) || p.Fits(two, 0, 5) || !p.Fits(Request{Cores: 10}, 0, 5) {
		t.Error("what fits beside it is wrong")
	}
	if at := p.Earliest(two, 0, 5); at != 10 {
		t.Errorf("two nodes at %d, want 10", at)
	}
	if p.Fits(Request{Cores: 2, Memory: 9000}, 0, 5) {
		t.Error("memory that is not there")
	}
	if !p.Take(2, Request{Cores: 1}, 0, 5) || p.Shares(2)[0].Node == 2 {
		t.Errorf("pack took %+v", p.Shares(2))
	}
	p.Give(1, two, 3, 10)
	if at := p.Earliest(two, 0, 5); at != 3 {
		t.Errorf("two nodes at %d, want 3", at)
	}
	whole := NewNodePool(nodes, true, Spread)
	whole.Take(1, Request{Cores: 1}, 0, 10)
	if whole.Fits(Request{Cores: 9}, 0, 5) || !whole.Fits(Request{Cores: 8}, 0, 5) {
		t.Error("a node is shared")
	}
}

func TestAdjacent(t *testing.T) {
	// Nodes 3 and 6 are taken: the runs that are free are 0 to 2, 4 and 5, and 7.
	free := func() *NodePool {
		p := NewNodePool(make([]Node, 8), true, Adjacent)
		for i := range p.nodes {
			p.nodes[i].Cores = 2
			p.lines[i][0].cores = 2
		}
		p.lines[3].change(0, 10, -2, 0)
		p.lines[6].change(0, 10, -2, 0)
		return p
	}
	for _, test := range []struct {
		r    Request
		want []int32
	}{
		{Request{Cores: 1}, []int32{7}},
		{Request{Cores: 4}, []int32{4, 5}},
		{Request{Cores: 5}, []int32{0, 1, 2}},
		{Request{Cores: 7}, []int32{0, 1, 2, 7}},        // the longest, and the shortest for the rest
		{Request{Cores: 10}, []int32{0, 1, 2, 4, 5}},    //
		{Request{Cores: 3, Nodes: 3}, []int32{0, 1, 2}}, // a core of each
		{Request{Cores: 12}, []int32{0, 1, 2, 4, 5, 7}}, // all
		{Request{Cores: 12, Nodes: 7}, nil},             // more than there are
	} {
		p := free()
		if took := p.Take(1, test.r, 0, 5); took != (test.want != nil) {
			t.Errorf("%+v: took room: %v", test.r, took)
		}
		var got []int32
		for _, s := range p.Shares(1) {
			got = append(got, s.Node)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%+v: nodes %v, want %v", test.r, got, test.want)
		}
	}
	if at := free().Earliest(Request{Cores: 14}, 0, 5); at != 10 {
		t.Errorf("seven nodes at %d, want 10", at)
	}
}

// TestParts has requests that may have only some nodes, drains, and jobs on given nodes.
func TestParts(t *testing.T) {
	p := NewNodePool([]Node{{Cores: 4, Memory: 8}, {Cores: 4, Memory: 8}, {Cores: 4, Memory: 8}}, false, Adjacent)
	set := p.AddSet([]int32{0, 2})
	if p.Possible(Request{Cores: 9, Set: set}) || !p.Possible(Request{Cores: 8, Set: set}) || !p.Possible(Request{Cores: 9}) {
		t.Error("a set of two nodes has 8 cores")
	}
	p.TakeOn(1, Request{Cores: 3, Nodes: 2, Memory: 1}, []int32{0, 1}, 0, 10)
	if got := p.Shares(1); got[0].Cores != 2 || got[1].Cores != 1 {
		t.Errorf("shares %+v", got)
	}
	p.Drain(-1, 2, 3, 6, 0, 5)
	for _, test := range []struct {
		r  Request
		at trace.Time
	}{
		{Request{Cores: 1, Set: set}, 0},
		{Request{Cores: 2, Set: set}, 0},
		{Request{Cores: 4, Set: set}, 5}, // 2 and 1 are free before
		{Request{Cores: 1, Memory: 7, Set: set}, 5},
		{Request{Cores: 6, Set: set}, 5},
		{Request{Cores: 7, Set: set}, 10},
		{Request{Cores: 6}, 0},
	} {
		if at := p.Earliest(test.r, 0, 3); at != test.at {
			t.Errorf("%+v at %d, want %d", test.r, at, test.at)
		}
	}
	p.Give(1, Request{}, 4, 10)
	if at := p.Earliest(Request{Cores: 8, Set: set}, 4, 3); at != 5 {
		t.Errorf("at %d, want 5", at)
	}
}
