package collect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"premix/internal/watch"
)

// Options select the data to collect. Zero values have the defaults given here.
type Options struct {
	Sink     watch.Sink
	Config   *Config       // nil: an empty one
	Interval time.Duration // of collectors that have none of their own; 0: that of Config, or a second
	Runs     []string      // directories to follow in addition to Config.Runs
	Place    string        // of announcements, see engine.AnnouncementDir; "" for none
	State    string        // directory for what the watcher has to remember; "" for none
	Root     string        // defined in the package documentation
	Clock    Clock         // nil: the machine's
	Only     []string      // names of collectors, for tests; nil: all
	// Processes makes the watcher record processes that do not belong to premix, as the
	// collector "process" in the configuration does.
	Processes bool
}

// Watcher runs the collectors of a machine.
type Watcher struct {
	o     Options
	m     *machine
	clock Clock
	turns []*turns
	tasks *tasks
	group *cgroups
	lost  *lost
	procs *processes // nil: processes are not recorded
}

// Status is the state of a collector.
type Status struct {
	Name     string        `json:"name"`
	Interval time.Duration `json:"-"`
	Last     time.Time     `json:"last"`    // end of its last complete turn
	Seconds  float64       `json:"seconds"` // duration of that turn
	Error    string        `json:"error"`   // "" if that turn succeeded
	Skipped  int64         `json:"skipped"` // number of turns
	Stuck    bool          `json:"stuck"`   // a turn has not ended in time
}

// Default intervals of collectors that need not run each second.
const (
	mountInterval   = 10 * time.Second
	lostInterval    = time.Second
	programInterval = time.Second
	gpfsInterval    = 10 * time.Second
	// serverInterval is the interval of collectors that ask servers of a file system, or
	// read their long files.
	serverInterval = 10 * time.Second
	ipmiInterval   = 30 * time.Second
	gpuInterval    = 10 * time.Second
	storeInterval  = 10 * time.Second
	slurmInterval  = 30 * time.Second
	watchInterval  = 10 * time.Second
)

// New returns a watcher, which collects nothing before Run. It returns an error
// if processes are requested and cannot be recorded.
func New(o Options) (*Watcher, error) {
	if o.Config == nil {
		o.Config = &Config{}
	}
	if o.Interval == 0 {
		if o.Interval = o.Config.Interval; o.Interval == 0 {
			o.Interval = time.Second
		}
	}
	if o.Clock == nil {
		o.Clock = realClock{time.Now()}
	}
	name, err := o.Config.Name()
	if err != nil {
		return nil, err
	}
	started := time.Unix(0, 0)
	w := &Watcher{o: o, clock: o.Clock, m: &machine{catalogue: newCatalogue(name), root: o.Root,
		now:  func() time.Time { return started.Add(o.Clock.Now().Mono) },
		wall: func() time.Time { return o.Clock.Now().Wall }}}
	w.tasks = newTasks(w.m, o.Place, o.State, append(o.Config.Runs, o.Runs...))
	w.group = newCgroups(w.m, o.Config.patterns, w.tasks.RunOf)
	w.lost = newLost(w.m, o.Config.patterns, w.tasks.RunOf)
	w.add(newHardware(w.m), o.Interval, nil)
	w.add(newDisk(w.m), o.Interval, nil)
	w.add(newNetwork(w.m), o.Interval, nil)
	w.add(newMounts(w.m), max(o.Interval, mountInterval), nil)
	w.add(newNFS(w.m), o.Interval, nil)
	w.add(newLustre(w.m), o.Interval, nil)
	w.add(newGPFS(w.m), max(o.Interval, gpfsInterval), nil)
	// Machines without these have no collector for them.
	js, bee, z, ib, en, bmc := newJobstats(w.m), newBeeGFS(w.m), newZFS(w.m), newInfiniband(w.m), newEnergy(w.m), newIPMI(w.m)
	cards := newGPU(w.m, o.Config.Collectors["gpu"].DCGM, o.Config.patterns, w.tasks.RunOf)
	w.add(js, max(o.Interval, serverInterval), js.present)
	w.add(bee, max(o.Interval, serverInterval), bee.present)
	w.add(z, o.Interval, z.present)
	w.add(ib, o.Interval, ib.present)
	w.add(en, o.Interval, en.present)
	w.add(bmc, max(o.Interval, ipmiInterval), bmc.present)
	w.add(cards, max(o.Interval, gpuInterval), cards.present)
	w.add(w.group, o.Interval, nil)
	w.add(w.tasks, o.Interval, nil)
	w.add(w.lost, max(o.Interval, lostInterval), nil)
	w.add(newTakers(w.m, w.lost.Processes, w.lost.DeviceOf), max(o.Interval, programInterval), nil)
	w.add(newStore(w.m), max(o.Interval, storeInterval), nil)
	w.add(newStarts(w.m), max(o.Interval, startsInterval), nil)
	interval := max(o.Interval, slurmInterval, o.Config.Collectors["slurm"].Interval)
	slurm := newScheduler(w.m, interval)
	w.add(slurm, interval, slurm.present)
	for _, s := range o.Config.Scripts {
		w.add(newScript(w.m, s), s.Interval, nil)
	}
	if on := o.Config.Collectors["process"].On; (on == nil && o.Processes || on != nil && *on) && (o.Only == nil || slices.Contains(o.Only, "process")) {
		if w.procs, err = openProcesses(w.m); err != nil {
			return nil, err
		}
		w.add(w.procs, o.Interval, nil)
	}
	w.add(newSelf(w), max(o.Interval, watchInterval), nil)
	return w, nil
}

// add adds a collector, unless the configuration excludes it. present reports whether the
// machine has data for it, for the case that the configuration does not say; nil: the
// collector finds out itself.
func (w *Watcher) add(c watch.Collector, interval time.Duration, present func() bool) {
	s := w.o.Config.Collectors[c.Name()]
	if w.o.Only != nil && !slices.Contains(w.o.Only, c.Name()) {
		return
	}
	if s.On != nil && !*s.On {
		return
	}
	if s.On == nil && present != nil && !present() {
		return
	}
	if s.Interval > 0 {
		interval = s.Interval
		if c.Name() == "slurm" {
			interval = max(interval, slurmInterval)
		}
	}
	w.turns = append(w.turns, &turns{w: w, c: c, interval: interval})
}

// stopWait is the time for which a stopping watcher waits for running turns.
const stopWait = 2 * time.Second

// Run runs all collectors, turn after turn, until the context ends.
func (w *Watcher) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, t := range w.turns {
		all.Go(func() { t.run(ctx) })
	}
	all.Go(func() { w.watchClock(ctx) })
	if w.has("task") {
		all.Go(func() { w.tasks.Follow(ctx, w.o.Sink) })
	}
	if w.has("lost") {
		all.Go(func() { w.lost.Follow(ctx) })
	}
	if w.procs != nil {
		all.Go(func() { w.procs.Follow(ctx, w.o.Sink) })
	}
	<-ctx.Done()
	finished := make(chan struct{})
	go func() {
		all.Wait()
		close(finished)
	}()
	select {
	case <-finished:
		// A turn that hangs in a system call may still use its open files.
		w.group.Close()
	case <-time.After(stopWait):
	}
}

func (w *Watcher) has(name string) bool {
	return slices.ContainsFunc(w.turns, func(t *turns) bool { return t.c.Name() == name })
}

// Close saves the positions in journals. Call it after Run, when the sink has stored all
// its data.
func (w *Watcher) Close() error { return w.tasks.Close() }

// Status returns the state of all collectors.
func (w *Watcher) Status() []Status {
	var list []Status
	for _, t := range w.turns {
		t.mu.Lock()
		list = append(list, t.status())
		t.mu.Unlock()
	}
	return list
}

// turns runs the turns of one collector.
type turns struct {
	w        *Watcher
	c        watch.Collector
	interval time.Duration

	mu      sync.Mutex    // guards the rest
	began   time.Duration // begin of the running turn, by the monotonic clock; 0 if none runs
	told    bool          // an event has reported that the turn does not end
	last    time.Time
	seconds float64
	err     error
	skipped int64
}

// status returns the state. The caller holds mu.
func (t *turns) status() Status {
	s := Status{Name: t.c.Name(), Interval: t.interval, Last: t.last, Seconds: t.seconds, Skipped: t.skipped, Stuck: t.told}
	if t.err != nil {
		s.Error = t.err.Error()
	}
	return s
}

// early is the time by which a timer may fire before the wall clock shows its time. The
// clocks differ in speed while the wall clock is being corrected.
const early = 10 * time.Millisecond

// run starts a turn at each multiple of the interval.
func (t *turns) run(ctx context.Context) {
	var before Moment
	for first := true; ; first = false {
		now := t.w.clock.Now()
		t.w.clock.Wait(ctx, now.Wall.Truncate(t.interval).Add(t.interval).Sub(now.Wall))
		if ctx.Err() != nil {
			return
		}
		now = t.w.clock.Now()
		turn := now.Wall.Add(early).Truncate(t.interval)
		if !first {
			// Computed from the monotonic clock: a jump skips no turn.
			if missed := int64((now.Mono-before.Mono+t.interval/2)/t.interval) - 1; missed > 0 {
				t.mu.Lock()
				t.skipped += missed
				t.mu.Unlock()
			}
		}
		before = now
		t.turn(ctx, turn, now)
	}
}

// turn runs one turn.
func (t *turns) turn(ctx context.Context, at time.Time, now Moment) {
	t.mu.Lock()
	t.began = max(now.Mono, 1)
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, t.interval)
	err := t.c.Collect(ctx, at, t.w.o.Sink)
	finished := ctx.Err() != nil
	cancel()
	after := t.w.clock.Now()
	t.mu.Lock()
	stuck, failed := t.told, t.err
	t.began, t.told = 0, false
	brokenOff := finished && errors.Is(err, context.Canceled) // because the watcher ends
	if !brokenOff {
		t.last, t.seconds, t.err = at, (after.Mono - now.Mono).Seconds(), err
	}
	t.mu.Unlock()
	if brokenOff {
		return
	}
	switch {
	case err != nil && failed == nil:
		kind := "collector_failed"
		var hung *hungError
		if errors.As(err, &hung) {
			kind = "script_killed"
		}
		t.event(after.Wall, kind, fmt.Sprintf("Collector %s: %v.", t.c.Name(), err))
	case err == nil && (failed != nil || stuck):
		t.event(after.Wall, "collector_recovered", fmt.Sprintf("Collector %s works again.", t.c.Name()))
	}
}

func (t *turns) event(at time.Time, kind, text string) {
	layer := watch.LayerNode
	if _, ok := t.c.(*script); ok {
		layer = watch.LayerVendor
	}
	t.w.o.Sink.Event(watch.Event{Time: at, Node: t.w.m.node, Layer: layer, Kind: kind, Text: text})
}

// stuckAfter is the number of intervals after which a turn is reported as stuck.
const stuckAfter = 3

// lookAfter reports turns that do not end.
func (w *Watcher) lookAfter(now Moment) {
	for _, t := range w.turns {
		t.mu.Lock()
		took := now.Mono - t.began
		late := t.began > 0 && !t.told && took > max(stuckAfter*t.interval, 5*time.Second)
		t.told = t.told || late
		t.mu.Unlock()
		if late {
			t.event(now.Wall, "collector_stuck", fmt.Sprintf("Collector %s has not answered for %s.", t.c.Name(), spanText(took)))
		}
	}
}
