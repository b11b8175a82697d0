package collect

import (
	"context"
	"os"
	"strings"
	"time"

	"premix/internal/watch"
)

// zfs is the collector of OpenZFS: its cache (ARC), and the I/O of its pools, in files below
// /proc/spl/kstat/zfs (module/os/linux/spl/spl-kstat.c of OpenZFS).
type zfs struct {
	*machine
	b            batch
	size, limit  *gauge
	hits, misses *counter
	pools        kept[zfsPool]
}

type zfsPool struct {
	read, written, reads, writes *counter // of its devices
	asked, stored                *counter // by programs
}

func newZFS(m *machine) *zfs {
	return &zfs{machine: m, size: m.level("node.zfs_cache"), limit: m.level("node.zfs_cache_limit"), hits: m.counter("node.zfs_hits"), misses: m.counter("node.zfs_misses")}
}

// Name returns "zfs".
func (c *zfs) Name() string { return "zfs" }

const kstat = "proc/spl/kstat/zfs"

func (c *zfs) present() bool { return c.there(kstat + "/arcstats") }

// parseKstat parses a file of named values: name, type and value in each line after the
// first two.
func parseKstat(text string) map[string]string {
	values := make(map[string]string)
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 && f[0] != "name" {
			values[f[0]] = f[2]
		}
	}
	return values
}

// zfsIO is the content of a file io of a pool.
type zfsIO struct{ read, written, reads, writes float64 }

// parseZFSIO parses a file io: a line of names and a line of values, after the first line.
func parseZFSIO(text string) (io zfsIO, ok bool) {
	lines := strings.Split(text, "\n")
	if len(lines) < 3 {
		return io, false
	}
	names, values := strings.Fields(lines[1]), strings.Fields(lines[2])
	if len(names) != len(values) || len(names) < 4 || names[0] != "nread" {
		return io, false
	}
	return zfsIO{number(values[0]), number(values[1]), number(values[2]), number(values[3])}, true
}

// Collect reads all files.
func (c *zfs) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	text, err := c.read(kstat + "/arcstats")
	if missing(err) {
		return nil // the module was unloaded
	}
	if err != nil {
		return err
	}
	arc := parseKstat(text)
	c.b.level(c.size, number(arc["size"]))
	c.b.level(c.limit, number(arc["c_max"]))
	c.b.rate(c.hits, number(arc["hits"]), 1)
	c.b.rate(c.misses, number(arc["misses"]), 1)
	entries, err := os.ReadDir(c.path(kstat))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		pool := e.Name()
		p := c.pools.get(pool, func() *zfsPool {
			return &zfsPool{c.counter("disk.zfs_read_bytes", pool), c.counter("disk.zfs_written_bytes", pool), c.counter("disk.zfs_reads", pool), c.counter("disk.zfs_writes", pool),
				c.counter("mount.zfs_read_bytes", pool), c.counter("mount.zfs_written_bytes", pool)}
		})
		if text, err := c.read(kstat + "/" + pool + "/io"); err == nil { // before OpenZFS 2.1
			if io, ok := parseZFSIO(text); ok {
				c.b.rate(p.read, io.read, 1)
				c.b.rate(p.written, io.written, 1)
				c.b.rate(p.reads, io.reads, 1)
				c.b.rate(p.writes, io.writes, 1)
			}
		}
		files, err := os.ReadDir(c.path(kstat + "/" + pool))
		if err != nil {
			continue
		}
		var read, written float64
		some := false
		for _, f := range files {
			if !strings.HasPrefix(f.Name(), "objset-") {
				continue
			}
			if text, err := c.read(kstat + "/" + pool + "/" + f.Name()); err == nil {
				values := parseKstat(text)
				read, written, some = read+number(values["nread"]), written+number(values["nwritten"]), true
			}
		}
		if some {
			c.b.rate(p.asked, read, 1)
			c.b.rate(p.stored, written, 1)
		}
	}
	c.pools.sweep(nil)
	to.Samples(c.b.samples)
	return nil
}
