package collect

import (
	"context"
	"strings"
	"time"

	"premix/internal/kit/mountinfo"
	"premix/internal/watch"
)

// nfs is the collector of NFS mounts: /proc/self/mountstats (proc_pid_mountstats(5);
// fs/nfs/super.c, nfs_show_stats, and net/sunrpc/stats.c, rpc_clnt_show_stats, in Linux
// write its lines).
type nfs struct {
	*machine
	b     batch
	known kept[nfsMount]
}

type nfsMount struct {
	read, written *counter
	operations    kept[nfsOperation]
}

type nfsOperation struct {
	requests, retransmits, timeouts, errors *counter
	roundTrip, time                         *gauge
	ops, rtt, exe, opsAgain                 steps
}

// nfsStats are the statistics of one mount.
type nfsStats struct {
	point         string
	read, written float64 // bytes from and to the server
	operations    []nfsCounts
}

// nfsCounts are the statistics of one kind of request. Times are sums in milliseconds.
type nfsCounts struct {
	name                                       string
	requests, sent, timeouts, rtt, exe, errors float64
	hasErrors                                  bool // version 1.1 of the statistics
}

// parseMountstats returns the NFS mounts in mountstats.
func parseMountstats(text string) []nfsStats {
	var list []nfsStats
	var m *nfsStats
	perOp := false
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if f[0] == "device" {
			m, perOp = nil, false
			_, rest, ok := strings.Cut(line, " mounted on ")
			point, kind, with := strings.Cut(rest, " with fstype ")
			if kind, _, _ = strings.Cut(strings.TrimSpace(kind), " "); ok && with && (kind == "nfs" || kind == "nfs4") {
				list = append(list, nfsStats{point: mountinfo.Unescape(point)})
				m = &list[len(list)-1]
			}
			continue
		}
		switch {
		case m == nil:
		case f[0] == "bytes:" && len(f) >= 7:
			// normal read and write, direct read and write, server read and write
			m.read, m.written = number(f[5]), number(f[6])
		case f[0] == "per-op":
			perOp = true
		case perOp && strings.HasSuffix(f[0], ":") && len(f) >= 9:
			// requests, transmissions, major timeouts, bytes sent, bytes received,
			// queue, round trip and execution time, errors
			c := nfsCounts{name: strings.ToLower(strings.TrimSuffix(f[0], ":")), requests: number(f[1]), sent: number(f[2]),
				timeouts: number(f[3]), rtt: number(f[7]), exe: number(f[8])}
			if len(f) > 9 {
				c.errors, c.hasErrors = number(f[9]), true
			}
			m.operations = append(m.operations, c)
		}
	}
	return list
}

func newNFS(m *machine) *nfs { return &nfs{machine: m} }

// Name returns "nfs".
func (c *nfs) Name() string { return "nfs" }

// Collect reads mountstats once.
func (c *nfs) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	text, err := c.read("proc/self/mountstats")
	if missing(err) {
		return nil // the kernel does not have this file
	}
	if err != nil {
		return err
	}
	for _, s := range parseMountstats(text) {
		m := c.known.get(s.point, func() *nfsMount {
			return &nfsMount{read: c.counter("mount.nfs_read_bytes", s.point), written: c.counter("mount.nfs_written_bytes", s.point)}
		})
		c.b.rate(m.read, s.read, 1)
		c.b.rate(m.written, s.written, 1)
		for _, o := range s.operations {
			if o.requests == 0 {
				continue // many kinds are never used
			}
			c.operation(m, s.point, o)
		}
		m.operations.sweep(nil)
	}
	c.known.sweep(nil)
	to.Samples(c.b.samples)
	return nil
}

func (c *nfs) operation(m *nfsMount, point string, o nfsCounts) {
	op := m.operations.get(o.name, func() *nfsOperation {
		return &nfsOperation{requests: c.counter("mount.nfs_requests", point, o.name), retransmits: c.counter("mount.nfs_retransmits", point, o.name),
			timeouts: c.counter("mount.nfs_timeouts", point, o.name), errors: c.counter("mount.nfs_errors", point, o.name),
			roundTrip: c.level("mount.nfs_round_trip", point, o.name), time: c.level("mount.nfs_time", point, o.name)}
	})
	b := &c.b
	b.rate(op.requests, o.requests, 1)
	b.rate(op.retransmits, max(o.sent-o.requests, 0), 1)
	b.rate(op.timeouts, o.timeouts, 1)
	if o.hasErrors {
		b.rate(op.errors, o.errors, 1)
	}
	b.wait(op.roundTrip, &op.rtt, &op.ops, o.rtt, o.requests, 1e-3)
	b.wait(op.time, &op.exe, &op.opsAgain, o.exe, o.requests, 1e-3)
}
