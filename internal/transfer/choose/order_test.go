package choose

import (
	"slices"
	"testing"

	"premix/internal/transfer"
	"premix/internal/transfer/link"
)

// A server that must first be started through ssh is chosen only if the copy gains more
// time than the handshake of ssh takes.
func TestOrderCountsReaching(t *testing.T) {
	l := &link.Link{Protocols: []link.Protocol{{Name: own, Get: "x"}, {Name: "curl", Get: "x", Server: "x", Open: true}, {Name: ownServer, Get: "x", Server: "x"}}}
	const size = 100 << 20
	row := func(protocol string, seconds, setup, flowing float64) transfer.Copy {
		return transfer.Copy{Protocol: protocol, Direction: transfer.Get, Size: size, Files: 1, Seconds: seconds, Setup: setup, Flowing: flowing, OK: true}
	}
	for _, c := range []struct {
		mine, flowing, theirs float64
		best                  string
		seconds               float64
	}{
		{2.2, 0.75, 1.25, own, 2.2},
		{2.2, 0.5, 1.25, "curl", 2},
		{2.2, 0, 1.25, own, 2.2}, // no packets were captured, so all of the time may be spent before the data flows
	} {
		copies := []transfer.Copy{row(own, c.mine, 0, c.flowing), row("curl", c.theirs, 0.25, 0.125), row(ownServer, 0.5, 0.125, 0.125)}
		order := Order(l, copies, Task{Direction: transfer.Get, Size: size, Files: 1, Open: true})
		if order[0].Protocol != c.best || order[0].Seconds != c.seconds {
			t.Errorf("%+v: %+v", c, order)
		}
		if order := Order(l, copies, Task{Direction: transfer.Get, Size: size, Files: 1}); order[0].Protocol != own || !order[1].Left || !order[2].Left {
			t.Errorf("without open protocols: %+v", order)
		}
	}
}

// TestSurely checks whether premix's own protocol may begin without knowing the size of a
// file, and which sizes it then leaves to another protocol.
func TestSurely(t *testing.T) {
	l, err := link.ForHost("peer")
	if err != nil {
		t.Fatal(err)
	}
	mine := l.Protocols[slices.IndexFunc(l.Protocols, func(p link.Protocol) bool { return p.Name == own })]
	l.Protocols = []link.Protocol{mine, {Name: "other", Get: "x", GetTree: "x"}}
	type times struct {
		size         int64
		files        int
		mine, theirs float64
	}
	for _, c := range []struct {
		name          string
		measured      []times
		ok            bool
		keeps, remote []int64
	}{
		{"nothing is known", nil, true, []int64{0, 1 << 40}, nil},
		{"the same", []times{{5 << 20, 1, 0.3, 0.3}, {100 << 20, 1, 1.17, 1.16}}, true, []int64{1, 5 << 20, 100 << 20, 1 << 40}, nil},
		// One or two measurements scatter this much.
		{"nearly the same", []times{{5 << 20, 1, 0.39, 0.33}, {100 << 20, 1, 1.27, 1.18}}, true, []int64{1, 5 << 20, 100 << 20, 1 << 40}, nil},
		{"slower when large", []times{{5 << 20, 1, 0.3, 0.3}, {1 << 30, 1, 10, 10}, {4 << 30, 1, 60, 40}}, true, []int64{1, 1 << 30}, []int64{4 << 30, 1 << 40}},
		{"slower when small", []times{{5 << 20, 1, 1, 0.3}, {1 << 30, 1, 10, 10}}, false, nil, nil},
		{"slower in between", []times{{5 << 20, 1, 0.3, 0.3}, {50 << 20, 1, 2, 0.7}, {1 << 30, 1, 10, 10}}, false, nil, nil},
		{"slower trees", []times{{5 << 20, 1, 0.3, 0.3}, {1 << 20, 1000, 2, 1}}, false, nil, nil},
	} {
		var copies []transfer.Copy
		for _, m := range c.measured {
			row := transfer.Copy{Protocol: own, Direction: transfer.Get, Size: m.size, Files: m.files, Seconds: m.mine, Flowing: 0.2, OK: true}
			copies = append(copies, row)
			row.Protocol, row.Seconds = "other", m.theirs
			copies = append(copies, row)
		}
		j := &Copy{Link: l, Direction: transfer.Get}
		remote, ok := j.surely(copies)
		if ok != c.ok {
			t.Errorf("%s: %v", c.name, ok)
		}
		if !ok {
			continue
		}
		for _, n := range c.keeps {
			if remote(n) {
				t.Errorf("%s: it gives up %d bytes", c.name, n)
			}
		}
		for _, n := range c.remote {
			if !remote(n) {
				t.Errorf("%s: it keeps %d bytes", c.name, n)
			}
		}
	}
}
