package slurm

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/engine/pilot"
	"premix/internal/engine/programs"
	"premix/internal/engine/queue"
	"premix/internal/kit/exit"
	"premix/internal/kit/units"
)

// Name is the name of this engine for --engine.
const Name = "slurm"

// DefaultInterval is how old a listing may be.
const DefaultInterval = 5 * time.Second

// overhead is memory of a job that premix itself may take.
const overhead = 128 << 20

// Options that premix sets itself.
var own = []string{"array", "chdir", "cpus-per-task", "error", "input", "job-name", "mem", "mem-per-cpu", "nodes", "ntasks",
	"open-mode", "output", "parsable", "test-only", "wait", "wrap"}

// Engine is Slurm.
type Engine struct {
	premix   string   // path on the nodes
	options  []string // of sbatch
	interval time.Duration
	cache    *programs.Shared[listing]
	known    programs.FirstSeen
	history  map[string]pilot.Status
	storage  *bool // there is a slurmdbd; nil: it was not asked
}

// errMissing is the error where Slurm is not installed.
var errMissing = exit.Errorf(exit.Unavailable, "run it on a machine from which Slurm jobs are submitted", "there is no sbatch on PATH")

// New makes the engine. It passes options that it does not know to sbatch:
// partition=short becomes --partition=short, and exclusive= becomes --exclusive.
func New(options map[string]string) (*Engine, error) {
	e := &Engine{interval: DefaultInterval, known: make(programs.FirstSeen), history: make(map[string]pilot.Status)}
	for _, key := range slices.Sorted(maps.Keys(options)) {
		value := options[key]
		switch {
		case key == "premix":
			if !filepath.IsAbs(value) {
				return nil, exit.Errorf(exit.Usage, "give the path of premix on the nodes", "--engine-opt premix=%s is not an absolute path", value)
			}
			e.premix = value
		case key == "poll":
			d, err := units.ParseDuration(value)
			if err != nil {
				return nil, exit.Errorf(exit.Usage, "as in poll=10s", "--engine-opt poll=%s: %v", value, err)
			}
			e.interval = d
		case slices.Contains(own, key):
			return nil, exit.Errorf(exit.Usage, "cores=N, memory=SIZE and jobs=N say what its jobs ask for", "--engine-opt %s: premix sets this option of sbatch itself", key)
		case value == "":
			e.options = append(e.options, "--"+key)
		default:
			e.options = append(e.options, "--"+key+"="+value)
		}
	}
	if e.premix == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, err
		}
		e.premix = path
	}
	if _, err := exec.LookPath("sbatch"); err != nil {
		return nil, errMissing
	}
	e.cache = newCache(e.interval)
	return e, nil
}

// Name returns the name of the engine for --engine.
func (e *Engine) Name() string { return Name }

// Reach asks for a listing.
func (e *Engine) Reach(ctx context.Context, _ string) error {
	_, _, err := e.list(ctx, time.Time{})
	return err
}

// Submit submits a wave as one array.
func (e *Engine) Submit(ctx context.Context, w *pilot.Wave) ([]string, error) {
	s := &w.Shares[0]
	args := []string{"--parsable", "--job-name=" + programs.JobName(w.Token), fmt.Sprintf("--array=0-%d", len(w.Shares)-1), "--nodes=1", "--ntasks=1",
		fmt.Sprintf("--cpus-per-task=%d", s.Cores), "--output=" + logPattern(w.Log), "--error=" + logPattern(w.Log), "--open-mode=append", "--chdir=" + w.Dir}
	if s.Memory > 0 {
		args = append(args, memoryOption(s))
	}
	args = append(append(args, e.options...), asked(s)...)
	out, err := programs.Run(ctx, e.script(w), "sbatch", args...)
	if err != nil {
		ids, ferr := e.Find(ctx, w)
		if ferr != nil {
			return nil, err
		}
		if ids == nil {
			return nil, &pilot.RefusedError{Engine: Name, Reason: programs.Message(err), HintText: "options of sbatch are given as --engine-opt partition=NAME, account=NAME, time=TIME"}
		}
		return ids, nil
	}
	// JOB, or JOB;CLUSTER.
	id, _, _ := strings.Cut(strings.TrimSpace(out), ";")
	if _, err := strconv.Atoi(id); err != nil {
		return nil, fmt.Errorf("sbatch says %q, which is not the number of a job", out)
	}
	return e.elements(id, w), nil
}

// gresOption begins an option of tasks that names resources in Slurm's words, which may say more
// than their own.
const gresOption = "gres="

// asked returns the options of sbatch that the tasks of a share need. They come last and
// override others.
func asked(s *pilot.Share) []string {
	var list []string
	named := false
	for option := range strings.Lines(s.Ask) {
		named = named || strings.HasPrefix(option, gresOption)
		list = append(list, "--"+strings.TrimSuffix(option, "\n"))
	}
	if s.Resources != "" && !named {
		list = append(list, "--"+gresOption+strings.ReplaceAll(s.Resources, "=", ":")) // gpu=2,fpga=1
	}
	return list
}

// Test asks Slurm whether it would take a job for a share, without submitting one. The
// error is a *pilot.RefusedError if it would not.
func (e *Engine) Test(ctx context.Context, s *pilot.Share) error {
	args := []string{"--test-only", "--quiet", "--nodes=1", "--ntasks=1", fmt.Sprintf("--cpus-per-task=%d", s.Cores)}
	if s.Memory > 0 {
		args = append(args, memoryOption(s))
	}
	args = append(append(args, e.options...), asked(s)...)
	if _, err := programs.Run(ctx, "", "sbatch", append(args, "--wrap=true")...); err != nil {
		return &pilot.RefusedError{Engine: Name, Reason: programs.Message(err), HintText: "ask for what the cluster has"}
	}
	return nil
}

// Longest returns how long a job may run in a partition, in Slurm's words, as in 1-00:00:00 or
// infinite; for "" in the default partition. It returns "" if the partition does not exist.
func (e *Engine) Longest(ctx context.Context, partition string) (string, error) {
	out, err := programs.Run(ctx, "", "sinfo", "--noheader", "--format=%R|%P|%l")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), "|") // the default one has a star in %P
		if len(f) == 3 && (f[0] == partition || partition == "" && strings.HasSuffix(f[1], "*")) {
			return f[2], nil
		}
	}
	return "", nil
}

// memoryOption returns the option for the memory that the tasks and premix need.
func memoryOption(s *pilot.Share) string {
	return fmt.Sprintf("--mem=%dM", (s.Memory+overhead+1<<20-1)>>20)
}

// logPattern escapes a path, so that Slurm replaces nothing in it.
func logPattern(path string) string { return strings.ReplaceAll(path, "%", "%%") }

// script returns the script of each job. The index is in the environment.
func (e *Engine) script(w *pilot.Wave) string {
	words := []string{"exec", queue.Quote(e.premix)}
	for _, a := range w.Command(Name, "\x00") {
		if a == "\x00" {
			words = append(words, `"$SLURM_ARRAY_TASK_ID"`)
			continue
		}
		words = append(words, queue.Quote(a))
	}
	return "#!/bin/sh\n" + strings.Join(words, " ") + "\n"
}

// elements returns the ids of the jobs of a wave.
func (e *Engine) elements(array string, w *pilot.Wave) []string {
	return e.known.Jobs(len(w.Shares), func(i int) string { return makeID(array, i, programs.JobName(w.Token)).String() })
}

// Find looks for the array of a wave.
func (e *Engine) Find(ctx context.Context, w *pilot.Wave) ([]string, error) {
	l, _, err := e.list(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	if j := programs.Find(l, w.Token, func(j *job) string { return j.Name }); j != nil {
		return e.elements(j.Array, w), nil
	}
	return nil, nil
}

// Status looks jobs up in the listing.
func (e *Engine) Status(ctx context.Context, jobs []string) (map[string]pilot.Status, error) {
	l, started, err := e.list(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	status := make(map[string]pilot.Status)
	for _, id := range jobs {
		e.known.Add(id)
		if st, ok := l.status(parseID(id)); ok {
			status[id] = st
		} else if started.After(e.known[id]) {
			status[id] = e.gone(ctx, id)
		}
	}
	return status, nil
}

// Cancel cancels jobs.
func (e *Engine) Cancel(ctx context.Context, jobs []string) error {
	named := make(map[string][]string)
	for _, text := range jobs {
		id := parseID(text)
		named[id.name] = append(named[id.name], id.element)
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		args := []string{"--quiet"}
		if name != "" {
			args = append(args, "--name="+name) // scancel then only ends jobs that have this name as well
		}
		if _, err := programs.Run(ctx, "", "scancel", append(args, named[name]...)...); err == nil {
			continue
		} else if _, _, lerr := e.list(ctx, time.Now()); lerr != nil {
			// A job that has ended is an error for scancel, too. But this controller
			// does not answer.
			return err
		}
	}
	return nil
}

// gone returns the status of a job that is in no listing.
func (e *Engine) gone(ctx context.Context, id string) pilot.Status {
	st, ok := e.history[id]
	if !ok {
		st = pilot.Status{Phase: pilot.Gone, Reason: "Slurm knows it no more"}
		if word, node := e.account(ctx, parseID(id)); word != "" {
			st = pilot.Status{Phase: pilot.Gone, Word: word, Reason: finished(word), Node: node, Blameless: blameless(word)}
		}
		e.history[id] = st
	}
	return st
}

// account asks slurmdbd, where there is one, how a job ended.
func (e *Engine) account(ctx context.Context, id jobID) (word, node string) {
	if e.storage == nil {
		out, err := programs.Run(ctx, "", "scontrol", "show", "config")
		if err != nil {
			return "", ""
		}
		has := false
		for line := range strings.Lines(out) {
			key, value, _ := strings.Cut(line, "=")
			if strings.TrimSpace(key) == "AccountingStorageType" {
				has = strings.TrimSpace(value) == "accounting_storage/slurmdbd"
			}
		}
		e.storage = &has
	}
	if !*e.storage {
		return "", ""
	}
	args := []string{"--noheader", "--allocations", "--parsable2", "--jobs=" + id.element, "--format=State,NodeList"}
	if id.name != "" {
		args = append(args, "--name="+id.name)
	}
	out, err := programs.Run(ctx, "", "sacct", args...)
	if err != nil {
		return "", "" // the status then only has less detail
	}
	line, _, _ := strings.Cut(out, "\n")
	state, node, _ := strings.Cut(line, "|")
	word, _, _ = strings.Cut(state, " ") // CANCELLED by 1000
	if live(word) {
		return "", "" // the controller has lost it, and slurmdbd does not know yet
	}
	return word, node
}
