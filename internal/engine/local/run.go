package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/hotstart"
	"premix/internal/kit/exit"
	"premix/internal/kit/units"
	"premix/internal/recipe"
)

// Grace is the usual time between SIGTERM and SIGKILL.
const Grace = 10 * time.Second

// Options are the settings of a run.
type Options struct {
	Version string // of premix
	Recipe  string // file
	Sheet   string // file
	Out     string // run directory
	Store   string // of snapshots; empty: hotstart.DefaultStore

	Start    hotstart.Kind   // wished kind of start
	Trust    bool            // as recipe.Recipe.Trust
	Verify   *hotstart.Share // nil: the recipe's
	Jobs     int             // tasks at a time; 0: Cores divided by threads
	Cores    int             // that tasks take together; 0: the machine's, or as many as Jobs need
	Threads  int             // of one task; 0: the recipe's
	Memory   int64           // budget in bytes; 0: the machine's
	Resume   bool
	Retries  int           // of a task; negative: the recipe's
	Timeout  time.Duration // of a try; 0: the recipe's
	FailFast bool
	Grace    time.Duration // 0: Grace

	// Kill is closed to end the running tasks at once, after the context was
	// cancelled to end them gracefully. nil: never.
	Kill <-chan struct{}

	// Of a worker that an engine has given a share; see package pilot.
	Worker string       // seat, "" for none
	Share  [][2]int     // tasks to run, as first and last numbers of ranges
	Until  time.Time    // as in TaskOptions
	Fence  func() error // as in TaskOptions

	From recipe.Sources // of trees and images that the recipe names

	Messages io.Writer // notices and progress, for people; nil: none
	Terminal bool      // Messages is a terminal: one progress line, rewritten
}

// Run runs the tasks of a recipe over a sample sheet and returns when all have
// ended. If ctx is cancelled with an *Interrupted as cause, running tasks are
// ended and that error is returned. If not every task succeeded, the error is a
// *FailedError. The summary is nil if no task could be run at all.
func Run(ctx context.Context, o Options) (_ *Summary, err error) {
	rec, samples, plan, err := load(o)
	if err != nil {
		return nil, err
	}
	if err := checkTool(rec); err != nil {
		return nil, err
	}
	seen := thisHierarchies()
	slots, budget, err := countSlots(o, plan, seen)
	if err != nil {
		return nil, err
	}
	if o.Retries < 0 {
		o.Retries = rec.Retries
	}
	if o.Timeout == 0 {
		o.Timeout = rec.Timeout
	}
	var run *queue.Run
	if o.Worker != "" {
		run, err = queue.OpenShare(o.Out, plan, o.Retries, o.Worker, o.Share)
	} else {
		run, err = queue.OpenRun(o.Out, plan, o.Retries, o.Resume)
	}
	if err != nil {
		return nil, err
	}
	s := newScheduler(TaskOptions{Queue: run.Queue, Worker: o.Worker, Share: o.Share, Until: o.Until, Fence: o.Fence, Jobs: o.Jobs,
		Cores: o.Cores, Memory: o.Memory, Grace: o.Grace, FailFast: o.FailFast, Kill: o.Kill}, newProgress(o.Messages, o.Terminal), seen)
	defer func() {
		s.progress.clear()
		if cerr := run.Close(); cerr != nil {
			s.progress.note("closing the run: %v", cerr)
		}
	}()
	s.slots, s.capacity, s.budget = slots, slots*run.Plan.Header.Threads, budget
	s.hints = hints{failed: HintAgain}
	return s.run(ctx, &hot{scheduler: s, run: run, opts: o, tool: rec, samples: samples,
		spec: rec.Spec(run.Plan.Header.Threads, run.Plan.Header.Memory), lanes: make(map[string]*lane), timeout: o.Timeout, killed: make(chan struct{}),
		running: make(map[int]context.CancelCauseFunc), queued: make(map[int]time.Time), starts: make(Starts),
		chosen: make(map[int]bool), quarantined: make(map[string]*Quarantine)})
}

// load reads recipe and sheet, and makes the plan of the run that they are.
func load(o Options) (*recipe.Recipe, []recipe.Sample, *engine.Plan, error) {
	rec, err := recipe.LoadFrom(o.Recipe, o.From)
	if err != nil {
		return nil, nil, nil, err
	}
	rec.Trust = rec.Trust || o.Trust
	samples, note, err := rec.Sheet(o.Sheet)
	if err != nil {
		return nil, nil, nil, err
	}
	if note != "" {
		newProgress(o.Messages, false).note("%s", note)
	}
	threads := o.Threads
	if threads == 0 {
		// A run continues with the threads it was started with. Open starts a new run.
		if old, err := engine.ReadPlan(o.Out); err == nil {
			threads = old.Header.Threads
		}
	}
	plan, err := engine.NewPlan(o.Version, rec, o.Sheet, samples, threads, 0)
	if err != nil {
		return nil, nil, nil, err
	}
	plan.Header.Start = string(o.Start)
	return rec, samples, plan, nil
}

// Plan makes the plan of a run for an engine that gives it to workers. Whether the tool
// is there, they find out.
func Plan(o Options) (*recipe.Recipe, *engine.Plan, error) {
	rec, _, plan, err := load(o)
	return rec, plan, err
}

// countSlots returns how many tasks run at a time, and the memory that they may take together.
func countSlots(o Options, plan *engine.Plan, seen []hierarchy) (slots int, budget int64, err error) {
	have, err := memory(seen)
	if err != nil {
		return 0, 0, err
	}
	told := "this machine has"
	budget = have
	if o.Memory > 0 {
		budget, told = o.Memory, "--memory allows"
	}
	if slots = o.Jobs; slots == 0 || o.Cores > 0 {
		have := cores(seen)
		if o.Cores > 0 {
			have = o.Cores
		}
		if fit := max(1, have/plan.Header.Threads); slots == 0 || fit < slots {
			slots = fit
		}
	}
	need := plan.Header.Memory
	if need == 0 {
		return slots, budget, nil
	}
	if need > budget {
		return 0, 0, exit.Errorf(exit.Usage, "lower `memory` in the recipe to what the tool really needs, or give more with --memory", "a task of %s needs %s of memory and %s %s", plan.Header.Recipe, units.Size(need), told, units.Size(budget))
	}
	return min(slots, int(budget/need)), budget, nil
}

// maxProbes is how many samples are tried as a probe before a run continues
// without a proof.
const maxProbes = 3

// prepare makes the lanes of the run.
func (h *hot) prepare(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			for _, l := range h.lanes {
				err = errors.Join(err, l.Close())
			}
			clear(h.lanes)
		}
	}()
	scratch, err := h.run.Scratch("prepare")
	if err != nil {
		return err
	}
	lanes := byShape(h.spec, h.samples)
	waiting := map[string]int{} // tasks
	for i, s := range h.samples {
		if h.q.State(i+1) == queue.Waiting {
			waiting[h.spec.Shape(s.Name)]++
		}
	}
	var names, starts []string
	for i, same := range lanes {
		shape := h.spec.Shape(same[0].Name)
		tasks := min(waiting[shape], h.before[queue.Waiting]) // of this worker
		dir := filepath.Join(scratch, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o777); err != nil {
			return err
		}
		l := &lane{samples: same, scratch: dir, tasks: tasks}
		if l.Starter, err = h.starter(ctx, l, true); err != nil {
			return err
		}
		h.lanes[shape] = l
		if limit := l.Trial(); limit > 0 {
			l.trial = &trial{limit: limit, over: make(chan struct{})}
			continue
		}
		h.decided(l)
		if kind, reason := l.Decision(); tasks > 0 {
			names = append(names, namesLike(l))
			starts = append(starts, fmt.Sprintf(" start %s: %s", kind, reason))
		}
	}
	if len(lanes) == len(starts) && len(slices.Compact(slices.Clone(starts))) == 1 {
		names[0], starts = "", starts[:1]
	}
	for i, text := range starts {
		h.progress.notice("tasks%s%s", names[i], text)
	}
	return nil
}

// namesLike describes the tasks of a lane in a message.
func namesLike(l *lane) string {
	return fmt.Sprintf(" with names like %s (%d)", l.samples[0].Name, l.tasks)
}

// starter makes the starter of a lane, and the files that the wished kind of start
// needs. A sample that cannot serve as probe, for example one with a damaged file, does not
// end the run: another sample takes its place, and if none is left, tasks start cold. With
// measure, tasks may show first whether hot starts pay: see hotstart.Options.
func (h *hot) starter(ctx context.Context, l *lane, measure bool) (*hotstart.Starter, error) {
	spec := h.spec
	spec.Sample = l.samples[0].Name
	probes := probes(h.tool, l.samples)
	for i, probe := range probes {
		starter, err := hotstart.New(spec, hotstart.Options{
			Store:   h.opts.Store,
			Start:   h.opts.Start,
			Tasks:   max(1, l.tasks),
			Slots:   h.slots,
			Log:     h.progress.note,
			Measure: measure,
		})
		if err != nil {
			return nil, err
		}
		dir, err := os.MkdirTemp(l.scratch, strconv.Itoa(i)+"-")
		if err != nil {
			return nil, errors.Join(err, starter.Close())
		}
		err = starter.Prepare(ctx, probe, dir)
		var unavailable *hotstart.Unavailable
		switch {
		case err == nil:
		case errors.As(err, &unavailable), ctx.Err() != nil:
			return nil, errors.Join(err, starter.Close())
		case i+1 < len(probes):
			h.progress.note("another sample is taken to prove the start with: %v", err)
			if err := starter.Close(); err != nil {
				return nil, err
			}
			continue
		case h.opts.Start != hotstart.Auto:
			return nil, errors.Join(&ProbeError{err}, starter.Close())
		default:
			h.progress.note("no start but a cold one can be proved: %v", err)
		}
		return starter, nil
	}
	return nil, nil
}

// byShape divides samples by the shapes of their names, in the order of the first ones.
func byShape(spec hotstart.Spec, samples []recipe.Sample) (all [][]recipe.Sample) {
	at := make(map[string]int)
	for _, sample := range samples {
		shape := spec.Shape(sample.Name)
		i, ok := at[shape]
		if !ok {
			i = len(all)
			at[shape] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], sample)
	}
	return all
}

// probes returns the inputs that can prove a start, by fixed input name: the recipe's
// probe, or else the first samples.
func probes(rec *recipe.Recipe, samples []recipe.Sample) []map[string]string {
	if rec.Probe != nil {
		return []map[string]string{rec.Files(rec.Probe)}
	}
	var list []map[string]string
	for _, sample := range samples[:min(len(samples), maxProbes)] {
		list = append(list, rec.Files(sample.Inputs))
	}
	return list
}

// PrepareOptions are the arguments of Prepare.
type PrepareOptions struct {
	Recipe   string // file
	Sheet    string // file whose first sample is the probe, of each shape of their names; empty: the recipe's probe
	Store    string // of snapshots; empty: hotstart.DefaultStore
	Start    hotstart.Kind
	Trust    bool           // as recipe.Recipe.Trust
	Threads  int            // 0: the recipe's
	From     recipe.Sources // of trees and images that the recipe names
	Messages io.Writer      // notices, for people; nil: none
}

// Prepared is the result of Prepare: how tasks of a recipe will start.
type Prepared struct {
	Recipe  string        `json:"recipe"`
	Start   hotstart.Kind `json:"start"`
	Reason  string        `json:"reason"`
	Seconds float64       `json:"seconds"` // that preparing took
}

// Prepare makes and proves the snapshots that hot starts of a recipe need, without a run.
func Prepare(ctx context.Context, o PrepareOptions) (_ *Prepared, err error) {
	rec, err := recipe.LoadFrom(o.Recipe, o.From)
	if err != nil {
		return nil, err
	}
	rec.Trust = rec.Trust || o.Trust
	var samples []recipe.Sample
	if o.Sheet != "" {
		var note string
		if samples, note, err = rec.Sheet(o.Sheet); err != nil {
			return nil, err
		}
		if note != "" {
			newProgress(o.Messages, false).note("%s", note)
		}
		rec.Probe = nil
	}
	if err := checkTool(rec); err != nil {
		return nil, err
	}
	started := time.Now()
	p := newProgress(o.Messages, false)
	spec := rec.Spec(o.Threads, 0)
	lanes := byShape(spec, samples)
	switch {
	case spec.Shape("") != "" && len(lanes) == 0:
		return nil, exit.Errorf(exit.Usage, "give a sample sheet with --probe", "the command has ${sample}, and a snapshot is for names of one length: no names are known")
	case len(lanes) == 0:
		lanes = [][]recipe.Sample{nil}
	}
	done := &Prepared{Recipe: rec.Name}
	for i, same := range lanes {
		kind, reason, err := prepareLane(ctx, o, rec, spec, same, p)
		if err != nil {
			return nil, err
		}
		if len(lanes) > 1 {
			p.note("samples with names like %s start %s: %s", same[0].Name, kind, reason)
		}
		if i == 0 || kind != hotstart.Hot && done.Start == hotstart.Hot {
			done.Start, done.Reason = kind, reason
		}
	}
	done.Seconds = time.Since(started).Seconds()
	return done, nil
}

// prepareLane prepares the snapshot of samples whose commands can share one.
func prepareLane(ctx context.Context, o PrepareOptions, rec *recipe.Recipe, spec hotstart.Spec, samples []recipe.Sample, p *progress) (_ hotstart.Kind, _ string, err error) {
	if len(samples) > 0 {
		spec.Sample = samples[0].Name
	}
	starter, err := hotstart.New(spec, hotstart.Options{
		Keep:  true,
		Store: o.Store,
		Start: o.Start,
		Log:   p.note,
	})
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, starter.Close()) }()
	scratch, err := os.MkdirTemp("", "premix-prepare-")
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	var probe map[string]string
	if p := probes(rec, samples); len(p) > 0 {
		probe = p[0]
	}
	if err := starter.Prepare(ctx, probe, scratch); err != nil {
		var i *Interrupted
		if ctx.Err() != nil && errors.As(context.Cause(ctx), &i) {
			return "", "", i
		}
		var unavailable *hotstart.Unavailable
		if errors.As(err, &unavailable) {
			return "", "", err
		}
		return "", "", &ProbeError{err}
	}
	kind, reason := starter.Decision()
	return kind, reason, nil
}
