package choose

import (
	"testing"

	"premix/transfer"
	"premix/transfer/link"
)

// A server that has to be started first, through ssh, is worth it only where the copy
// gains more than ssh's handshake takes.
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
		{2.2, 0, 1.25, own, 2.2}, // no packets were captured: all of it may be reaching
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
