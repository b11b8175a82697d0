package collect

import (
	"context"
	"os"
	"time"

	"premix/internal/watch"
)

// infiniband is the collector of the counters of InfiniBand and Omni-Path ports, below
// /sys/class/infiniband/DEVICE/ports/PORT/counters (Documentation/ABI/stable/sysfs-class-infiniband
// of Linux). Ports that carry Ethernet have the same counters.
type infiniband struct {
	*machine
	b     batch
	ports kept[ibPort]
}

type ibPort struct{ received, sent, receivedPackets, sentPackets, errors, drops, waits *counter }

func newInfiniband(m *machine) *infiniband { return &infiniband{machine: m} }

// Name returns "infiniband".
func (c *infiniband) Name() string { return "infiniband" }

const ibDir = "sys/class/infiniband"

func (c *infiniband) present() bool {
	entries, err := os.ReadDir(c.path(ibDir))
	return err == nil && len(entries) > 0
}

// ibErrors are the counters of errors of a link.
var ibErrors = []string{"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors"}

// Collect reads the counters of all ports.
func (c *infiniband) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	devices, err := os.ReadDir(c.path(ibDir))
	if err != nil {
		if missing(err) {
			return nil // the last device is gone
		}
		return err
	}
	for _, d := range devices {
		ports, err := os.ReadDir(c.path(ibDir + "/" + d.Name() + "/ports"))
		if err != nil {
			continue
		}
		for _, port := range ports {
			dir := ibDir + "/" + d.Name() + "/ports/" + port.Name() + "/counters/"
			value := func(name string) (float64, bool) {
				text, err := c.read(dir + name)
				if err != nil {
					return 0, false
				}
				v := known(text) // "N/A (no PMA)" without counters
				return v, v >= 0
			}
			p := c.ports.get(d.Name()+"/"+port.Name(), func() *ibPort {
				one := func(name string) *counter { return c.counter("network.ib_"+name, d.Name(), port.Name()) }
				return &ibPort{one("received_bytes"), one("sent_bytes"), one("received_packets"), one("sent_packets"), one("errors"), one("drops"), one("waits")}
			})
			for _, f := range []struct {
				to    *counter
				name  string
				scale float64
			}{
				// Data are counted in words of 4 bytes.
				{p.received, "port_rcv_data", 4}, {p.sent, "port_xmit_data", 4}, {p.receivedPackets, "port_rcv_packets", 1}, {p.sentPackets, "port_xmit_packets", 1},
				{p.drops, "port_xmit_discards", 1}, {p.waits, "port_xmit_wait", 1},
			} {
				if v, ok := value(f.name); ok {
					c.b.rate(f.to, v, f.scale)
				}
			}
			sum, some := 0.0, false
			for _, name := range ibErrors {
				if v, ok := value(name); ok {
					sum, some = sum+v, true
				}
			}
			if some {
				c.b.rate(p.errors, sum, 1)
			}
		}
	}
	c.ports.sweep(nil)
	to.Samples(c.b.samples)
	return nil
}
