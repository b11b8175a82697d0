package collect

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/internal/watch"
)

// lustre is the collector of the client side of Lustre: the files `stats` of llite (calls
// of programs, one a mount) and of osc and mdc (requests, one a target), which lctl shows
// as llite.*.stats, osc.*.stats and mdc.*.stats. They are below /proc/fs/lustre or
// /sys/kernel/debug/lustre, by version, and the latter needs root. The Lustre Operations
// Manual describes the format in the chapter "Lustre Parameters", Client Statistics.
type lustre struct {
	*machine
	b       batch
	mounts  kept[lustreMount]
	targets kept[lustreTarget]
}

type lustreMount struct {
	read, written *counter
	calls         kept[counter]
}

type lustreTarget struct {
	requests  *counter
	roundTrip *gauge
	time, n   steps
}

var lustreDirs = []string{"proc/fs/lustre", "sys/kernel/debug/lustre", "sys/fs/lustre"}

// lustreStat is a line of a file `stats`:
// read_bytes                658 samples [bytes] 4096 716800 5971968 1173801140224
type lustreStat struct {
	name    string
	samples float64
	unit    string
	sum     float64 // 0 if the line has none
}

// parseLustre parses a file `stats`. It skips the first lines, which have times.
func parseLustre(text string) []lustreStat {
	var list []lustreStat
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 4 || f[2] != "samples" {
			continue
		}
		s := lustreStat{name: f[0], samples: number(f[1]), unit: strings.Trim(f[3], "[]")}
		if len(f) >= 7 {
			s.sum = number(f[6])
		}
		list = append(list, s)
	}
	return list
}

func newLustre(m *machine) *lustre { return &lustre{machine: m} }

// Name returns "lustre".
func (c *lustre) Name() string { return "lustre" }

// stats returns the paths of the files of one component. A directory that exists in two
// places counts once.
func (c *lustre) stats(component string) []string {
	var list []string
	seen := make(map[string]bool)
	for _, dir := range lustreDirs {
		entries, err := os.ReadDir(c.path(filepath.Join(dir, component)))
		if err != nil {
			continue
		}
		for _, e := range entries {
			path := filepath.Join(dir, component, e.Name(), "stats")
			if _, err := os.Stat(c.path(path)); err == nil && !seen[e.Name()] {
				seen[e.Name()] = true
				list = append(list, path)
			}
		}
	}
	slices.Sort(list)
	return list
}

// instance removes the address of the superblock from a directory's name:
// work-ffff8104435c8c00 becomes work, work-OST0000-osc-ffff81032792f800 becomes
// work-OST0000.
func instance(path string) string {
	name := filepath.Base(filepath.Dir(path))
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		name = name[:i]
	}
	return strings.TrimSuffix(strings.TrimSuffix(name, "-osc"), "-mdc")
}

// Collect reads all files once.
func (c *lustre) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	for _, path := range c.stats("llite") {
		text, err := c.read(path)
		if err != nil {
			continue // it was unmounted in between
		}
		fs := instance(path)
		m := c.mounts.get(filepath.Base(filepath.Dir(path)), func() *lustreMount {
			return &lustreMount{read: c.counter("mount.lustre_read_bytes", fs), written: c.counter("mount.lustre_written_bytes", fs)}
		})
		for _, s := range parseLustre(text) {
			switch s.name {
			case "read_bytes":
				c.b.rate(m.read, s.sum, 1)
			case "write_bytes":
				c.b.rate(m.written, s.sum, 1)
			}
			name := strings.TrimSuffix(s.name, "_bytes")
			if name == s.name && (name == "read" || name == "write") {
				continue // newer versions have these in addition, with times
			}
			call := m.calls.get(name, func() *counter { return c.counter("mount.lustre_calls", fs, name) })
			c.b.rate(call, s.samples, 1)
		}
		m.calls.sweep(nil)
	}
	c.mounts.sweep(nil)
	for _, component := range []string{"osc", "mdc"} {
		for _, path := range c.stats(component) {
			text, err := c.read(path)
			if err != nil {
				continue
			}
			name := instance(path)
			t := c.targets.get(filepath.Base(filepath.Dir(path)), func() *lustreTarget {
				return &lustreTarget{requests: c.counter("mount.lustre_requests", name), roundTrip: c.level("mount.lustre_round_trip", name)}
			})
			for _, s := range parseLustre(text) {
				if s.name == "req_waittime" { // from sending a request to its answer
					c.b.rate(t.requests, s.samples, 1)
					c.b.wait(t.roundTrip, &t.time, &t.n, s.sum, s.samples, 1e-6)
				}
			}
		}
	}
	c.targets.sweep(nil)
	to.Samples(c.b.samples)
	return nil
}
