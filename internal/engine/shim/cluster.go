package shim

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"premix/internal/engine/local"
	"premix/internal/engine/pilot"
	"premix/internal/engine/queue"
	"premix/internal/engine/slurm"
	"premix/internal/engine/spawn"
)

// cluster is a Slurm behind the clients: jobs are packed into few jobs of this Slurm.
type cluster struct {
	eng    *slurm.Engine
	o      pilot.Options
	timed  bool // an option of the engine sets the time of its jobs
	flight pilot.InFlight

	mu      sync.Mutex // guards the rest
	tested  map[string]error
	longest map[string]int // minutes, by partition; 0: it has no limit
}

// gather is how long jobs wait for company that are submitted one by one.
const gather = 250 * time.Millisecond

// clusterPartition is the partition shown for a job that names none.
const clusterPartition = "default"

// passed are options of sbatch that go on to the jobs of Slurm. Only jobs with the same
// ones are packed together.
var passed = []string{"account", "constraint", "exclude", "nodelist", "partition", "prefer", "qos", "reservation", "wckey"}

// unshared are options that mean something else where several jobs share one of Slurm's.
var unshared = []string{"clusters", "cluster", "exclusive", "licenses", "gpus-per-socket"}

// hidden are variables of the engine's jobs that the jobs in them must not see.
var hidden = []string{"SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP",
	"SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE", "SLURM_JOB_ACCOUNT", "SLURM_RESTART_COUNT", "SLURM_TASK_PID"}

// clusterVariables are the variables that the programs of Slurm get.
var clusterVariables = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "SLURM_CONF", "SLURM_CLUSTERS", "PREMIX_HOME", "XDG_RUNTIME_DIR"}

// newCluster makes the cluster of a configuration; nil if the configuration is for this
// machine. Programs of Slurm are looked up on this process's PATH.
func newCluster(c *Config) (*cluster, error) {
	if c.Engine == "" {
		return nil, nil
	}
	k := &cluster{tested: make(map[string]error), longest: make(map[string]int)}
	rest, err := k.o.ParseOptions(c.Options)
	if err != nil {
		return nil, err
	}
	_, k.timed = rest["time"]
	if k.eng, err = slurm.New(rest); err != nil {
		return nil, err
	}
	k.o.Settings = pilot.Settings{Options: rest, Unset: hidden}
	k.o.Gather, k.o.InFlight = gather, &k.flight
	return k, nil
}

// outside returns the environment in which Slurm's own programs are found. It excludes the
// clients of the directory, which would call themselves.
func outside(dir string) []string {
	var list []string
	for _, name := range clusterVariables {
		value, ok := os.LookupEnv(name)
		if !ok {
			continue
		}
		if name == "PATH" {
			value = strings.Join(slices.DeleteFunc(filepath.SplitList(value), func(d string) bool { return filepath.Clean(d) == filepath.Join(dir, "bin") }), string(filepath.ListSeparator))
		}
		list = append(list, name+"="+value)
	}
	return list
}

// real executes Slurm's own program in the place of this process.
func (c *Config) real(program string, args []string) response {
	path := ""
	for _, v := range c.Env {
		if list, ok := strings.CutPrefix(v, "PATH="); ok {
			for _, d := range filepath.SplitList(list) {
				if p, err := exec.LookPath(filepath.Join(d, program)); err == nil {
					path = p
					break
				}
			}
		}
	}
	if path == "" {
		return fail(program, 1, &optionError{fmt.Sprintf("there is no %s of Slurm", program), "make the programs again with premix slurm-shim, where Slurm's are on PATH"})
	}
	return fail(program, 1, fmt.Errorf("%s: %w", path, syscall.Exec(path, append([]string{program}, args...), c.Env)))
}

// dispatch gives jobs to Slurm until stay is closed and all have ended.
func (k *cluster) dispatch(ctx context.Context, q *queue.Queue, version string, stay, wake <-chan struct{}) error {
	d, err := pilot.OpenTasks(q, true)
	if err != nil {
		return err
	}
	o := k.o
	o.Version, o.Stay, o.Wake, o.Messages = version, stay, wake, local.NewMessages(os.Stderr, false)
	return pilot.Dispatch(ctx, d, k.eng, o)
}

// running returns the running jobs. A job counts as running when the job of Slurm that it was
// given to runs. Only the node knows which of those have begun.
func (k *cluster) running(q *queue.Queue, jobs int) map[int]spawn.Running {
	m := make(map[int]spawn.Running)
	for _, g := range k.flight.Assignments() {
		if g.Phase != pilot.Running {
			continue
		}
		for _, r := range g.Ranges {
			for id := r[0]; id <= min(r[1], jobs); id++ {
				if q.State(id) == queue.Waiting {
					m[id] = spawn.Running{ID: spawn.TryID(id, 1), Started: g.Since}
				}
			}
		}
	}
	return m
}

// admit asks Slurm whether it accepts a job like this submission, once for all submissions
// that ask for the same, and sets ask to the options of the job that it is packed into.
func (k *cluster) admit(ctx context.Context, s *submission) error {
	var options []string
	for _, name := range passed {
		if value, ok := s.set[name]; ok {
			if strings.ContainsAny(value, "\n") {
				return &optionError{fmt.Sprintf("invalid --%s %q", name, value), ""}
			}
			options = append(options, name+"="+value)
		}
	}
	if s.Gres != "" {
		options = append(options, "gres="+s.Gres)
	}
	if s.Limit > 0 && !k.timed {
		minutes, err := k.minutes(ctx, s)
		if err != nil {
			return err
		}
		options = append(options, "time="+strconv.Itoa(minutes))
	}
	s.ask = strings.Join(options, "\n")
	err := k.test(ctx, &pilot.Share{Cores: s.Cores, Memory: s.Memory, Ask: s.ask})
	var refused *pilot.RefusedError
	if errors.As(err, &refused) {
		return &optionError{refused.Reason, refused.HintText}
	}
	return err
}

// minutes returns the time limit of the Slurm job that a job with a limit is packed into.
// It is rounded up to a power of two, so that jobs with about the same limit are packed
// together; and a job that begins after others in the Slurm job must still have its own time.
// The limit does not exceed the partition's limit, unless the job's own does.
func (k *cluster) minutes(ctx context.Context, s *submission) (int, error) {
	target := k.o.Target
	if target == 0 {
		target = pilot.DefaultTarget
	}
	own := int((s.Limit + 59) / 60)
	most := 1<<bits.Len(uint(own-1)) + int(target/time.Minute) + 1
	partition, _, _ := strings.Cut(s.set["partition"], ",")
	if partition == "" {
		partition = k.o.Settings.Options["partition"]
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	longest, ok := k.longest[partition]
	if !ok {
		text, err := k.eng.Longest(ctx, partition)
		if err != nil {
			return 0, &optionError{err.Error(), ""}
		}
		if text != "" && text != "infinite" && text != "n/a" {
			limit, err := parseTime(text)
			if err != nil {
				return 0, err
			}
			longest = int(limit / time.Minute)
		}
		k.longest[partition] = longest
	}
	if longest > 0 {
		most = max(own, min(most, longest))
	}
	return most, nil
}

func (k *cluster) test(ctx context.Context, s *pilot.Share) error {
	key := fmt.Sprintf("%d\n%d\n%s", s.Cores, s.Memory, s.Ask)
	k.mu.Lock()
	defer k.mu.Unlock()
	err, ok := k.tested[key]
	if ok {
		return err
	}
	if err = k.eng.Test(ctx, s); err == nil {
		k.tested[key] = nil // a refusal may be different the next time
	}
	return err
}

// forCluster refuses options that have another meaning where jobs share a job of Slurm.
func (s *submission) forCluster() error {
	for _, name := range unshared {
		if _, ok := s.set[name]; ok {
			return &optionError{fmt.Sprintf("option '--%s' is not possible where jobs are packed into those of Slurm", name), "leave it out, or submit with Slurm's own sbatch"}
		}
	}
	if m := s.set["mem"]; m != "" && strings.Trim(m, "0") == "" {
		return &optionError{"--mem=0 asks for a whole node, and jobs are packed", "say how much memory the job needs"}
	}
	return nil
}
