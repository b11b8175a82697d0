package collect

import (
	"context"
	"strings"
	"time"

	"premix/internal/watch"
)

// network is the collector of interfaces and TCP: /proc/net/dev, /proc/net/snmp
// (proc_pid_net(5)).
type network struct {
	*machine
	b          batch
	interfaces kept[netInterface]
	sent       *counter
	again      *counter
	resets     *counter
	udp        *counter
	open       *gauge
}

type netInterface struct {
	receivedBytes, sentBytes, receivedPackets, sentPackets, errors, drops *counter
}

func newNetwork(m *machine) *network {
	return &network{machine: m, sent: m.counter("network.tcp_sent"), again: m.counter("network.tcp_retransmits"),
		resets: m.counter("network.tcp_resets"), udp: m.counter("network.udp_errors"), open: m.level("network.tcp_connections")}
}

// Name returns "network".
func (n *network) Name() string { return "network" }

// Collect reads both files once.
func (n *network) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	n.b.begin(now, n.machine.now())
	text, err := n.read("proc/net/dev")
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) < 12 {
			continue
		}
		name = strings.TrimSpace(name)
		var v [16]float64
		for i := range min(len(f), len(v)) {
			v[i] = number(f[i])
		}
		if v[1]+v[9] == 0 {
			continue // it was never used
		}
		i := n.interfaces.get(name, func() *netInterface {
			return &netInterface{n.counter("network.received_bytes", name), n.counter("network.sent_bytes", name),
				n.counter("network.received_packets", name), n.counter("network.sent_packets", name),
				n.counter("network.errors", name), n.counter("network.drops", name)}
		})
		n.b.rate(i.receivedBytes, v[0], 1)
		n.b.rate(i.receivedPackets, v[1], 1)
		n.b.rate(i.sentBytes, v[8], 1)
		n.b.rate(i.sentPackets, v[9], 1)
		n.b.rate(i.errors, v[2]+v[10], 1)
		n.b.rate(i.drops, v[3]+v[11], 1)
	}
	n.interfaces.sweep(nil)
	text, err = n.read("proc/net/snmp")
	if err == nil {
		n.snmp(text)
	}
	to.Samples(n.b.samples)
	return err
}

// snmp parses pairs of lines: the names and the values of one protocol.
func (n *network) snmp(text string) {
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(names) == 0 || len(f) != len(names) || f[0] != names[0] {
			names = f
			continue
		}
		for i, name := range names {
			switch names[0] + name {
			case "Tcp:OutSegs":
				n.b.rate(n.sent, number(f[i]), 1)
			case "Tcp:RetransSegs":
				n.b.rate(n.again, number(f[i]), 1)
			case "Tcp:EstabResets":
				n.b.rate(n.resets, number(f[i]), 1)
			case "Tcp:CurrEstab":
				n.b.level(n.open, number(f[i]))
			case "Udp:InErrors":
				n.b.rate(n.udp, number(f[i]), 1)
			}
		}
		names = nil
	}
}
