package collect

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/internal/engine/slurm"
	"premix/internal/watch"
)

// scheduler asks Slurm for the number of its jobs and for the statistics of its schedulers,
// see [slurm.TakeCensus]. It is enough to run it on one machine of a cluster.
type scheduler struct {
	*machine
	b        batch
	interval time.Duration
	take     func(ctx context.Context, interval time.Duration) (*slurm.Census, error)
	jobs     kept[gauge]
	levels   map[string]*gauge
	scales   map[string]float64
	counts   map[string]*counter
	last     time.Time // begin of the census that was last reported
}

func newScheduler(m *machine, interval time.Duration) *scheduler {
	return &scheduler{machine: m, interval: interval, take: slurm.TakeCensus,
		levels: map[string]*gauge{
			"Main schedule statistics.Last cycle":        m.level("scheduler.cycle"),
			"Main schedule statistics.Mean cycle":        m.level("scheduler.cycle_mean"),
			"Main schedule statistics.Last queue length": m.level("scheduler.queue_length"),
			"Backfilling stats.Last cycle":               m.level("scheduler.backfill_cycle"),
			"Backfilling stats.Last depth cycle":         m.level("scheduler.backfill_depth"),
			"Agent queue size":                           m.level("scheduler.agent_queue"),
			"Server thread count":                        m.level("scheduler.threads")},
		// sdiag(1) prints the time of cycles in microseconds.
		scales: map[string]float64{"Main schedule statistics.Last cycle": 1e-6, "Main schedule statistics.Mean cycle": 1e-6, "Backfilling stats.Last cycle": 1e-6},
		counts: map[string]*counter{
			"Jobs submitted": m.counter("scheduler.jobs_submitted"), "Jobs started": m.counter("scheduler.jobs_started"),
			"Jobs completed": m.counter("scheduler.jobs_completed"), "Jobs failed": m.counter("scheduler.jobs_failed")}}
}

// Name returns "slurm".
func (c *scheduler) Name() string { return "slurm" }

// present reports whether this machine asks Slurm by default: jobs are submitted from it,
// and it does not run them. Compute nodes, of which there are many, run slurmd.
func (c *scheduler) present() bool {
	if _, err := exec.LookPath("squeue"); err != nil {
		return false
	}
	dirs, err := os.ReadDir(c.path("proc"))
	if err != nil {
		return false
	}
	for _, d := range dirs {
		if _, err := strconv.Atoi(d.Name()); err != nil {
			continue
		}
		if comm, err := c.read(filepath.Join("proc", d.Name(), "comm")); err == nil && strings.TrimSpace(comm) == "slurmd" {
			return false
		}
	}
	return true
}

// Collect asks Slurm once.
func (c *scheduler) Collect(ctx context.Context, now time.Time, to watch.Sink) error {
	census, err := c.take(ctx, c.interval)
	if err != nil {
		return err
	}
	if census.Started.Equal(c.last) {
		return nil // it comes from a cache, and was reported already
	}
	c.last = census.Started
	c.b.begin(now, census.Started)
	for _, j := range census.Jobs {
		g := c.jobs.get(j.Partition+" "+j.State, func() *gauge { return c.level("scheduler.jobs", j.Partition, j.State) })
		c.b.level(g, float64(j.Jobs))
	}
	// A state without jobs is reported once more, with 0.
	c.jobs.sweep(func(_ string, g *gauge) { c.b.level(g, 0) })
	for key, v := range census.Diag {
		if g := c.levels[key]; g != nil {
			scale, ok := c.scales[key]
			if !ok {
				scale = 1
			}
			c.b.level(g, v*scale)
		}
		if n := c.counts[key]; n != nil {
			c.b.rate(n, v, 1)
		}
	}
	to.Samples(c.b.samples)
	return nil
}
