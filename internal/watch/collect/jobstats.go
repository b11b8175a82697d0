package collect

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"premix/internal/kit/regex"
	"premix/internal/watch"
)

// jobstats is the collector of Lustre's statistics by job, on servers: the files job_stats
// of their targets (Lustre Operations Manual, "Lustre Jobstats"). A job that does nothing
// has no values, since there are thousands of old ones.
type jobstats struct {
	*machine
	b     batch
	tasks kept[jobstatsTask]
}

type jobstatsTask struct {
	read, written, requests *counter
	moved                   [3]bool // the last value was not 0
}

func newJobstats(m *machine) *jobstats { return &jobstats{machine: m} }

// Name returns "jobstats".
func (c *jobstats) Name() string { return "jobstats" }

// files returns the files of all targets, by the name of the target.
func (c *jobstats) files() map[string]string {
	found := make(map[string]string)
	for _, dir := range lustreDirs {
		for _, component := range []string{"obdfilter", "mdt"} {
			entries, err := os.ReadDir(c.path(filepath.Join(dir, component)))
			if err != nil {
				continue
			}
			for _, e := range entries {
				path := filepath.Join(dir, component, e.Name(), "job_stats")
				if c.there(path) && found[e.Name()] == "" {
					found[e.Name()] = path
				}
			}
		}
	}
	return found
}

func (c *jobstats) present() bool { return len(c.files()) > 0 }

// jobStat is the counters of one job on one target.
type jobStat struct {
	id            string
	read, written float64 // bytes
	requests      float64
}

var jobStatLine = regex.Lazy(`^\s+(\w+):\s*\{\s*samples:\s*(\d+),\s*unit:\s*(\w+)(?:.*\bsum:\s*(\d+))?`)

// parseJobstats parses a file job_stats. The file has the form of YAML, but identifiers may
// contain any character, so it is read line by line.
func parseJobstats(text string) []jobStat {
	var list []jobStat
	for line := range strings.Lines(text) {
		if id, ok := strings.CutPrefix(line, "- job_id:"); ok {
			list = append(list, jobStat{id: strings.Trim(strings.TrimSpace(id), `"`)})
			continue
		}
		m := jobStatLine().FindStringSubmatch(line)
		if m == nil || len(list) == 0 {
			continue
		}
		j := &list[len(list)-1]
		switch m[1] {
		case "read_bytes":
			j.read = number(m[4])
		case "write_bytes":
			j.written = number(m[4])
		case "read", "write": // newer versions have these in addition, with times
			continue
		}
		j.requests += number(m[2])
	}
	return list
}

var (
	slurmID   = regex.Lazy(`^(\d+)(?:[:.@](.*))?$`)
	programID = regex.Lazy(`^(.+)\.(\d+)$`)
)

// taskOfJobID returns the task that an identifier of Lustre names. The usual settings of
// jobid_name are %j (the number of Slurm's job), %j:%u:%H, and %e.%u (program and user).
func taskOfJobID(id string) taskName {
	if m := slurmID().FindStringSubmatch(id); m != nil {
		return taskName{manager: "slurm", task: m[1]}
	}
	if m := programID().FindStringSubmatch(id); m != nil {
		return taskName{manager: "process", task: id}
	}
	return taskName{manager: "lustre", task: id}
}

// Collect reads the files of all targets.
func (c *jobstats) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	for target, path := range c.files() {
		text, err := c.read(path)
		if err != nil {
			continue // the target was stopped in between
		}
		// Several identifiers may name one job, for example one for each client.
		sums := make(map[taskName]jobStat)
		for _, j := range parseJobstats(text) {
			if j.id == "" {
				continue
			}
			name := taskOfJobID(j.id)
			s := sums[name]
			sums[name] = jobStat{read: s.read + j.read, written: s.written + j.written, requests: s.requests + j.requests}
		}
		for name, j := range sums {
			t := c.tasks.get(target+"\x00"+name.manager+"\x00"+name.task, func() *jobstatsTask {
				one := func(quantity string) *counter {
					return c.counter("task.lustre_"+quantity, name.manager, target, name.task)
				}
				return &jobstatsTask{read: one("read_bytes"), written: one("written_bytes"), requests: one("requests")}
			})
			for i, f := range []struct {
				to *counter
				v  float64
			}{{t.read, j.read}, {t.written, j.written}, {t.requests, j.requests}} {
				delta, seconds, ok := f.to.step(f.v, c.b.read)
				if !ok {
					continue
				}
				if delta > 0 || t.moved[i] {
					c.b.level(&f.to.gauge, round(delta/seconds))
				}
				t.moved[i] = delta > 0
			}
		}
	}
	c.tasks.sweep(nil)
	to.Samples(c.b.samples)
	return nil
}
