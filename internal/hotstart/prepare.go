package hotstart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/placeholder"
	"premix/internal/hotstart/tracer"
	"premix/internal/kit/beneath"
)

// Prepare finds or makes a snapshot and proves it, if the Starter may start hot.
// probe is one sample, as in Task.Inputs; Prepare uses only the head of a FASTQ file.
// With a nil probe Prepare proves nothing, and a later Prepare with a probe does.
// scratch is a directory on the run's file system; its content may be deleted
// after Close.
//
// If the caller asked for hot starts and they are impossible, the error is an
// *Unavailable. With Auto this is not an error, and Decision returns the reason.
func (s *Starter) Prepare(ctx context.Context, probe map[string]string, scratch string) error {
	scratch, err := filepath.EvalSymlinks(scratch)
	if err != nil {
		return err
	}
	s.scratch = scratch
	var samples map[string]string
	if probe != nil {
		dir := filepath.Join(scratch, "probe")
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if samples, err = cutProbe(probe, dir, probeRecords); err != nil {
			return err
		}
	}
	p := &preparation{Starter: s, ctx: ctx, probe: samples, late: s.spec.lateNames(), circumstances: newCircumstances()}
	defer p.end()
	switch s.opt.Start {
	case Cold:
		s.decide(Cold, "as asked")
		return nil
	case Hot:
		return p.explicit()
	case Auto:
		return p.auto()
	}
	return fmt.Errorf("unknown kind of start %q", s.opt.Start)
}

// preparation is one call of Prepare.
type preparation struct {
	*Starter
	ctx   context.Context
	probe map[string]string

	held       *supervisorHandle // a template at hand
	firstDir   string            // directory of the template that was frozen
	firstLooks []access          // of its tool
	loading    time.Time         // when it was begun
	last       bool              // no later stop is tried after this one
	behind     *program          // the tool proper behind a wrapper; nil: the command itself
	coldDir    string            // directory of the probe's cold start
	coldLooks  []access          // of the tool in it
	cold       coldStart         // the probe's
	ready      ReadyKind         // event at which the template is held
	moment     moment            // where ready is ReadyOpen
	late       *lateNames        // nil: the command does not have the name of the sample
	alike      []string          // inputs whose placeholders have the content of the probe's
	snap       *Snapshot
	looked     bool   // for a snapshot
	second     *ahead // template, with which the first one is compared; nil: it is loaded later
	early      bool   // the template is loaded beside the cold run
	circumstances
	loads int
}

func (p *preparation) end() {
	if p.held != nil {
		p.held.close(&p.supervisors)
		p.held = nil
	}
}

// try prepares hot starts. If the tool ended before it opened its input, the error is an
// *InputError, unless the tool succeeds cold.
func (p *preparation) try() error {
	err := p.hot()
	var finished *endedEarly
	if !errors.As(err, &finished) {
		return err
	}
	if p.probe == nil {
		return &InputError{finished}
	}
	if err := p.runCold(); err != nil {
		return err
	}
	return err
}

func (p *preparation) explicit() error {
	err := p.try()
	if err == nil {
		p.decide(Hot, "as asked%s", p.provedNote())
		return nil
	}
	if p.ctx.Err() != nil {
		return err
	}
	var input *InputError
	if errors.As(err, &input) {
		return err
	}
	u := &Unavailable{Kind: Hot, Reason: err.Error()}
	errors.As(err, &u)
	if u.HintText == "" {
		u.HintText = "use --start auto, which starts cold where a hot start is impossible"
	}
	return u
}

// auto settles on a hot start where that is possible.
func (p *preparation) auto() error {
	if reason := p.tooFew(); p.find() == nil && reason != "" {
		p.decide(Cold, "%s", reason)
		return nil
	}
	if p.snap == nil && p.opt.Measure && p.host.noHot == "" && p.rounds() > 0 {
		p.trial = time.Duration(float64(worthTime) / p.rounds())
		p.decide(Cold, "its time shows whether a snapshot would save time")
		return nil
	}
	err := p.try()
	if err == nil {
		p.decide(Hot, "started from a snapshot%s", p.provedNote())
		return nil
	}
	var input *InputError
	if errors.As(err, &input) {
		return err
	}
	if p.ctx.Err() != nil {
		return p.ctx.Err()
	}
	var dear *notWorth
	if errors.As(err, &dear) {
		p.decide(Cold, "%s", dear)
		return nil
	}
	reason := err.Error()
	var u *Unavailable
	if errors.As(err, &u) {
		reason = u.Reason
	}
	p.decide(Cold, "not hot: %s", reason)
	return nil
}

// worthRounds is the least number of rounds of tasks for which a snapshot may save time.
// In a round, each slot of the run starts one task. Preparing takes as long as three or
// more rounds.
const worthRounds = 4

// worthTime is the time of a run with cold starts from which on a snapshot may save time. To
// find out that a quick tool cannot start hot takes a tenth of it.
const worthTime = 3 * time.Second

// Trial returns the time for which the first tasks are to run cold before the caller prepares
// hot starts (see Options.Measure), or 0 if Prepare has decided how tasks start. If one of
// them succeeds within that time, all tasks should start cold, as StayCold settles. If a task
// takes longer, a Starter without Options.Measure prepares hot starts.
func (s *Starter) Trial() time.Duration { return s.trial }

// StayCold settles that tasks start cold, since a task has succeeded within the time of Trial.
func (s *Starter) StayCold(took time.Duration) {
	s.decide(Cold, "a task takes %v: a snapshot for %d tasks would take longer than it saves", took.Round(time.Millisecond), s.opt.Tasks)
}

// rounds returns the number of tasks that each slot of the run gets. It returns 0 if the
// number of tasks is not known, or if the snapshot is for later runs.
func (p *preparation) rounds() float64 {
	if p.opt.Keep {
		return 0
	}
	return float64(p.opt.Tasks) / float64(max(1, p.opt.Slots))
}

// tooFew returns the reason why a snapshot would not save time for any tool, or "".
func (p *preparation) tooFew() string {
	if n := p.rounds(); n > 0 && n < worthRounds {
		return fmt.Sprintf("a snapshot for %d tasks, %d at once, would take longer than it saves", p.opt.Tasks, max(1, p.opt.Slots))
	}
	return ""
}

// notWorth is the error for a snapshot that would not save time.
type notWorth struct {
	tasks   int
	loading time.Duration
}

func (e *notWorth) Error() string {
	return fmt.Sprintf("the tool reaches its input within %v: a snapshot for %d tasks would take longer than it saves", e.loading.Round(time.Millisecond), e.tasks)
}

// startTime is about the time that a hot start takes on a busy machine.
const startTime = 20 * time.Millisecond

// weigh compares the time that a snapshot costs with the time that it saves, by the
// probe's cold start.
func (p *preparation) weigh() error {
	n := p.rounds()
	if n == 0 || p.opt.Start != Auto || p.cold.opened == 0 {
		return nil
	}
	e := p.cold
	if p.moment.Open > 1 || p.ready != p.spec.Ready.Kind {
		e.opened = e.whole // its first look at its input is not where it is stopped
	}
	further := 0
	if p.late != nil {
		further = fewestFurther
	}
	if e.saves(n) < e.costs(further) {
		return &notWorth{p.opt.Tasks, e.plain()}
	}
	return nil
}

// coldStart is a cold start of the probe under watch.
type coldStart struct {
	opened, whole time.Duration // until it opened its input; until its end
	tool, tracing time.Duration // CPU time of the tool, and of its tracer
	memory        int64         // bytes
}

// plain returns about the time that the tool takes to its input in a task, where it is not
// traced. The tracer works before the input for the most part.
func (c coldStart) plain() time.Duration {
	if c.whole <= 0 || c.tool <= 0 {
		return c.opened
	}
	loading := float64(c.tool) * min(1, float64(c.opened)/float64(c.whole))
	return time.Duration(float64(c.opened) * loading / (loading + float64(c.tracing)))
}

// saves returns the time that hot starts save in a number of rounds.
func (c coldStart) saves(rounds float64) time.Duration {
	return time.Duration(rounds * float64(c.plain()-startTime))
}

// fixedTime is about the time that a snapshot of a quick tool with little memory costs beside
// the starts of the tool: for its files and its supervisors.
const fixedTime = 300 * time.Millisecond

// writeTime is about the time in which a byte of memory is written to a page file, digested
// and compared, ns. Much of it is the time for new pages.
const writeTime = 2

// costs returns the time that a snapshot costs: two traced preparations, of which one runs
// beside the cold start, with further ones for late words, the writing and comparison of
// the memory, and the probe's hot start.
func (c coldStart) costs(further int) time.Duration {
	const preparations = 3 // two, which are watched more closely than the cold start
	return time.Duration(preparations+further)*c.opened + (c.whole - c.opened) + fixedTime + time.Duration(c.memory*writeTime)
}

func (p *preparation) provedNote() string {
	if p.snap == nil {
		return ""
	}
	memory := p.snap.MemoryProof.note()
	if p.snap.Proved() {
		return ": outputs for the probe were compared with a cold start, " + memory
	}
	return ": outputs were not compared yet, " + strings.Replace(memory, "memory too", "memory was", 1)
}

// find returns a valid snapshot, or nil. It searches the store only once.
func (p *preparation) find() *Snapshot {
	if !p.looked {
		p.looked = true
		p.use(findSnapshot(p.opt.Store, p.spec, p.host.namespaces, p.opt.Log))
		if p.snap != nil && p.spec.Image == nil && p.snap.Whole() {
			n := max(1, min(p.opt.Slots, runtime.NumCPU()))
			p.supervisors.warm(n, filepath.Join(p.snap.Dir, imageName))
		}
	}
	return p.snap
}

func (p *preparation) use(snap *Snapshot) {
	p.snap = snap
	if snap != nil {
		snap.watch()
	}
	p.mu.Lock()
	p.snapshot = snap
	p.mu.Unlock()
}

// hot finds or makes a snapshot, and proves it.
func (p *preparation) hot() error {
	if p.host.noHot != "" {
		return &Unavailable{Kind: Hot, Reason: p.host.noHot, HintText: p.host.hint}
	}
	if p.find() == nil {
		var early *ahead
		if p.probe != nil {
			early = p.loadAhead(0, p.spec.Ready.Kind, moment{Open: 1}, p.earlyDelay())
			defer early.end()
		}
		err := p.findMoment()
		if input := (*InputError)(nil); early != nil && errors.As(err, &input) {
			early.end() // perhaps it was in the way
			err = p.findMoment()
		}
		if err != nil {
			return err
		}
		if err := p.weigh(); err != nil {
			return err
		}
		early.adopt(p)
		snap, err := p.take()
		if err != nil {
			return err
		}
		p.use(snap)
	}
	return p.prove()
}

// findMoment runs the probe cold, under watch, to find the open of its input at
// which the tool has loaded its data. Without a probe it is the first.
func (p *preparation) findMoment() error {
	p.ready, p.moment = p.spec.Ready.Kind, moment{Open: 1}
	if p.probe == nil {
		return nil
	}
	if err := p.runCold(); err != nil {
		return err
	}
	if p.ready != ReadyOpen {
		return nil
	}
	p.moment = findMoment(p.coldLooks, p.spec.fileSize)
	if p.moment.Open == 0 {
		return &Unavailable{Kind: Hot, Reason: "the tool ended (exit status 0) before it reached its input"}
	}
	if float64(p.moment.Late) > (1-loadedShare)*float64(p.moment.Total) {
		// It opens its input, loads its data, and only then reads.
		p.ready = ReadyRead
	}
	return nil
}

// fileSize returns the size of a regular file that a tool sees at a path, or 0.
func (spec Spec) fileSize(path string) int64 {
	if spec.Image != nil && !slices.ContainsFunc(spec.Data, func(dir string) bool { return below(path, dir) }) {
		path = filepath.Join(spec.Image.Root, path)
	}
	return fileSize(path)
}

// load brings a template to its input, unless there is one: number 0, which is frozen, or
// 1, with which its memory is compared. The further ones are like 1, with other late words.
func (p *preparation) load(number int) error {
	if p.held != nil {
		return nil
	}
	t, err := p.template(number)
	if err != nil {
		return err
	}
	return p.loadIn(t, number)
}

// longPath is the number of bytes by which the paths of templates are longer than usual, if
// they do not get longer than twice as many.
const longPath = 120

// template makes the directory of a template.
func (p *preparation) template(number int) (Task, error) {
	p.loads++
	which := 'a'
	if p.early {
		which = 'b'
	}
	word := p.late.word(number)
	number = min(number, 1)
	dir := filepath.Join(p.scratch, fmt.Sprintf("template-%d%c-%s", p.loads, which, p.names[number]))
	if !p.host.namespaces {
		// The paths of tasks have room where the tool keeps this one.
		dir += strings.Repeat("-", max(0, min(longPath, 2*longPath-len(dir))))
	}
	t := Task{Sample: word, Dir: dir, Inputs: p.probe}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return t, err
	}
	err := p.layOutTemplate(t, number)
	t.Inputs = nil
	return t, err
}

// loadIn brings a template to its input, in its directory.
func (p *preparation) loadIn(t Task, number int) error {
	number = min(number, 1)
	cfg := p.config(t)
	cfg.Role, cfg.Ready, cfg.Open, cfg.Early = roleLoad, p.ready, p.moment.Open, p.early
	cfg.Seed = p.seed
	cfg.Clock = p.clocks[number]
	cfg.LastPid = 11_000 + 10_000*number + int(p.seed[0])
	if b := p.behind; b != nil {
		cfg.Exe, cfg.Argv, cfg.Env = b.Exe, b.Argv, b.Env
		if cfg.Container != nil {
			cfg.Container.Request.Env = b.Env
		}
	}
	p.loading = time.Now()
	st, err := p.Starter.openSupervisor(cfg)
	if err != nil {
		return err
	}
	if err := st.await(p.ctx, evHeld); err != nil {
		st.close(&p.supervisors)
		return err
	}
	p.held = st
	return nil
}

// placeholderText is the content of an input's placeholder if there is no probe. It is a
// FASTQ record, since some tools check for an empty file before they load anything.
const placeholderText = "@placeholder\nACGTACGTACGTACGT\n+\nIIIIIIIIIIIIIIII\n"

// placeholderKind is the Kind of placeholderText.
const placeholderKind = "FASTQ"

// secondText is placeholderText of the second preparation.
const secondText = "@second\nTTGCATTGCA\n+\nFFFFFFFFFF\n@third\nGGGGAC\n+\n######\n"

// layOutTemplate makes a template's directory. Its inputs are regular files that the
// tool does not read before the stop. If possible they differ from the probe's inputs
// in size and content, so that the comparison of outputs finds a tool that keeps
// something of its input from before the stop.
func (p *preparation) layOutTemplate(t Task, number int) error {
	if err := p.makeStreams(t.Dir); err != nil {
		return err
	}
	p.alike = nil
	for i, name := range p.spec.Inputs {
		path, real := filepath.Join(t.Dir, name), t.Inputs[name]
		if real == "" {
			text := [...]string{placeholderText, secondText}[number]
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				return err
			}
		} else if cut, err := placeholder.Make(real, path, number, p.isPlain(name)); err != nil {
			return &InputError{err}
		} else if !cut && !p.asksOnly() {
			p.alike = append(p.alike, name)
		}
		if p.asksOnly() {
			// The second sizes differ, so that a size in memory shows its input. snap.Bounds has
			// the size that the file has then.
			_ = os.Truncate(path, [2]int64{1, LargeSize - int64(i)}[number])
		}
		then := placeholderTime(number).Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(path, then, then); err != nil {
			return err
		}
		if number == 1 {
			// Inputs of tasks may have other permissions and further links.
			if err := errors.Join(os.Chmod(path, 0o444), os.Link(path, t.Dir+"-"+name)); err != nil {
				return err
			}
		}
	}
	return p.spec.give(t.Dir)
}

// asksOnly reports whether the tool opens no input before it is held.
func (p *preparation) asksOnly() bool { return p.ready == ReadyOpen && p.moment.Open == 1 }

// kinds returns the format of each input of the probe, which its placeholder gets as well.
// It returns nil if the tool has opened no input early.
func (p *preparation) kinds(early []string) (map[string]string, error) {
	if !slices.Contains(early, string(tracer.AccessOpen)) {
		return nil, nil
	}
	all := map[string]string{}
	for _, name := range p.spec.Inputs {
		real := p.probe[name]
		if real == "" {
			all[name] = placeholderKind
			continue
		}
		var err error
		if all[name], err = placeholder.Kind(real, p.isPlain(name)); err != nil {
			return nil, &InputError{err}
		}
	}
	return all, nil
}

// take loads a template and freezes it. It does so again if a file that the tool has
// read changed during the load.
func (p *preparation) take() (*Snapshot, error) {
	const tries = 3
	for try := 1; ; try++ {
		p.last = try == tries
		snap, err := p.takeOnce()
		var changed *changedMeanwhile
		if !errors.As(err, &changed) || p.last {
			return snap, err
		}
		p.end()
		select {
		case <-time.After(changed.wait):
		case <-p.ctx.Done():
			return nil, p.ctx.Err()
		}
	}
}

func (p *preparation) takeOnce() (*Snapshot, error) {
	started := time.Now()
	err := p.load(0)
	var finished *endedEarly
	if errors.As(err, &finished) && p.ready == ReadyRead && p.spec.Ready.Kind == ReadyOpen {
		// It does not take a FIFO for an input.
		p.ready = ReadyOpen
		err = p.load(0)
	}
	if err != nil {
		return nil, err
	}
	if behind := p.held.held.Behind; behind != nil {
		if p.late != nil {
			return nil, &Unavailable{Kind: Hot, Reason: "it executes another program, and its command has ${sample}"}
		}
		// The tool is loaded once more without its wrapper. The proof compares with
		// a start through the wrapper.
		wrapper := p.held.looks
		p.end()
		p.behind = behind
		if err := p.load(0); err != nil {
			return nil, err
		}
		if n := len(wrapper); n > 0 {
			wrapper = wrapper[:n-1] // the last one is where it was held
		}
		p.held.looks = append(wrapper, p.held.looks...)
	}
	snap, err := newSnapshot(p.opt.Store, p.spec, p.host.namespaces)
	if err != nil {
		return nil, p.noRoom(err)
	}
	first, loading := p.held.held, p.loading
	snap.Loaded, snap.Behind = first.Loaded.Seconds(), p.behind
	looks := p.held.looks
	snap.Data, snap.Opened = p.moment.Total, p.moment.Total-p.moment.Late
	if snap.Stop = string(p.ready); p.ready == ReadyOpen {
		snap.Stop = fmt.Sprintf("open %d", p.moment.Open)
	}
	if p.ready == ReadyRead {
		snap.Opened = opened(looks, p.spec.fileSize)
	}
	p.firstDir, p.firstLooks = p.held.dir, looks
	if err = p.admit(snap, looks, first.Processes); err == nil {
		p.second = nil
		if p.secondAhead() {
			p.second = p.loadAhead(1, p.ready, p.moment, 0)
		}
		defer p.second.end()
		err = p.fill(snap, first)
	}
	if err == nil {
		snap.Seconds = time.Since(started).Seconds()
		err = snap.save()
	}
	var refused *refusal
	if errors.As(err, &refused) && p.remember(snap, looks, refused.text) == nil {
		return nil, err
	}
	var depends *dependence
	if path := p.accessed(looks, loading); errors.As(err, &depends) && path != "" && !p.last {
		return nil, errors.Join(&changedMeanwhile{path, 0}, snap.Remove())
	}
	if errors.As(err, &depends) && p.remember(snap, looks, depends.text) == nil {
		return nil, &Unavailable{Kind: Hot, Reason: depends.text, HintText: p.trustHint()}
	}
	if err != nil {
		return nil, errors.Join(p.noRoom(err), snap.Remove())
	}
	return snap, nil
}

// remember keeps the reason why a tool cannot start hot in place of a snapshot,
// so that later runs do not load it to find the same.
func (p *preparation) remember(snap *Snapshot, looks []access, reason string) error {
	defer snap.unlock()
	p.end()
	var err error
	if snap.Fingerprint, err = newFingerprint(p.spec, nil, p.outside(looks)); err != nil {
		return err
	}
	snap.Proof = &ProofState{Reason: reason, When: time.Now().UTC()}
	return snap.discard()
}

// noRoom adds the store's path to an error that comes from a full disk.
func (p *preparation) noRoom(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("there is not enough space for a snapshot in %s: %w", p.opt.Store, err)
	}
	return err
}

// admit returns an error if the looks and the processes of a template show that it cannot
// start hot. That costs nothing, so it comes before the template is frozen and a second one
// is loaded.
func (p *preparation) admit(snap *Snapshot, looks []access, processes int) error {
	if processes > 1 {
		return &refusal{fmt.Sprintf("it cannot be frozen: it consists of %d processes at its input", processes)}
	}
	if i := slices.IndexFunc(looks, func(l access) bool { return l.Op == tracer.AccessState }); i >= 0 {
		return &refusal{"it cannot be frozen: it has used " + looks[i].Path}
	}
	if snap.Early = early(looks, p.ready); len(snap.Early) > 0 && len(p.alike) > 0 {
		return &Unavailable{Kind: Hot, Reason: fmt.Sprintf("the tool looks at its input before it loads its data (%s), and the probe's %s has no part of another size, which would show that the size does not matter", strings.Join(snap.Early, ", "), p.alike[0]),
			HintText: "let the first sample, or the recipe's probe, be a file of several records or lines"}
	}
	var err error
	if snap.Kinds, err = p.kinds(snap.Early); err != nil {
		return err
	}
	return p.unvaried(snap)
}

// fill freezes the template into a snapshot.
func (p *preparation) fill(snap *Snapshot, first templateInfo) error {
	templateDir, looks := p.held.dir, p.held.looks
	if _, err := p.held.ask(p.ctx, request{Op: opFreeze, Dir: snap.Dir}); err != nil {
		return err
	}
	p.end()
	work := filepath.Join(snap.Dir, workName)
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	if err := copyDir(templateDir, work, p.spec.Inputs); err != nil {
		return err
	}
	im, err := frozen.ReadFile(filepath.Join(snap.Dir, imageName))
	if err != nil {
		return err
	}
	snap.Memory = im.PageBytes
	outside := p.outside(looks)
	if err := p.unwritten(outside); err != nil {
		return err
	}
	if snap.Fingerprint, err = newFingerprint(p.spec, im.Paths(), outside); err != nil {
		return err
	}
	if err := snap.Fingerprint.unchanged(p.loading); err != nil {
		return err
	}
	if err := p.compareMemory(snap, first); err != nil {
		return err
	}
	snap.Fingerprint.Files = withoutMoving(snap.Fingerprint.Files)
	return snap.seal()
}

// unvaried returns an error if the tool has read or asked for a property of its input that
// the two preparations have in common, and other inputs may not have.
func (p *preparation) unvaried(snap *Snapshot) error {
	if p.spec.Trust {
		return nil
	}
	for _, op := range []tracer.AccessOp{tracer.AccessSystem, tracer.AccessAttributes} {
		if slices.Contains(snap.Early, string(op)) {
			return &refusal{fmt.Sprintf("the tool asks for the file system or the extended attributes of its input before it loads its data (%s)", op)}
		}
	}
	for _, name := range p.spec.Inputs {
		if kind, opened := snap.Kinds[name]; opened && !placeholder.FullyVariable(kind) {
			return &refusal{fmt.Sprintf("the tool reads its input %s before it loads its data, and may keep a property of it: premix can vary the properties of FASTQ and FASTA, and this is %s", name, kind)}
		}
	}
	return nil
}

// javaCounters is part of the path of the directory in which each Java virtual machine of
// a user has a file while it runs.
const javaCounters = "/hsperfdata_"

// outside leaves of a tool's looks those at files that belong to neither the task,
// nor the machine, nor the image.
func (p *preparation) outside(looks []access) []access {
	dirs := []string{p.scratch, FixedDir}
	var left []access
	for _, l := range looks {
		in := func(dir string) bool { return below(l.Path, dir) }
		switch {
		case strings.Contains(l.Path, javaCounters) && l.Op != tracer.AccessFact:
		case l.Op == tracer.AccessState:
			left = append(left, l)
		case isFact(l):
			left = append(left, asFact(l))
		case l.Input || l.Op == tracer.AccessSocket || isUnwatched(l.Path) || slices.ContainsFunc(dirs, in):
		case p.spec.Image != nil && !slices.ContainsFunc(p.spec.Data, in):
		default:
			left = append(left, l)
		}
	}
	return left
}

// unwritten returns an error if a tool has written to or changed a file outside its
// directory, since a hot start would not. A file that was opened for writing and not changed, for
// example a database, counts as read.
func (p *preparation) unwritten(looks []access) error {
	for i, l := range looks {
		if l.Op != tracer.AccessWrite && l.Op != tracer.AccessChange {
			continue
		}
		var st unix.Stat_t
		stat := unix.Stat
		if l.Op == tracer.AccessChange {
			stat = unix.Lstat
		}
		switch err := stat(l.Path, &st); {
		case err != nil:
			// It was removed.
		case st.Mode&unix.S_IFMT == unix.S_IFDIR && born(l.Path, &st) <= p.loading.Add(-coarse).UnixNano():
			// It was there. Its permissions and owner are in the stamp.
			looks[i].Op = tracer.AccessStat
			continue
		case l.Op == tracer.AccessWrite && st.Mode&unix.S_IFMT != unix.S_IFREG && st.Mode&unix.S_IFMT != unix.S_IFDIR:
		case st.Ctim.Nano() > p.loading.Add(-coarse).UnixNano():
			if !p.last { // it may be a cache that is there now, or another process wrote to it
				return &changedMeanwhile{l.Path, 2 * coarse}
			}
			does := "writes to"
			if l.Op == tracer.AccessChange {
				does = "changes"
			} else if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				does = "makes"
			}
			return &refusal{fmt.Sprintf("the tool %s %s before it opens its input, and a hot start would not", does, l.Path)}
		}
		if looks[i].Op = tracer.AccessOpen; l.Op == tracer.AccessChange {
			looks[i].Op = tracer.AccessStat
		}
	}
	return nil
}

// born returns the time at which a file was made, ns since the epoch, or a later time if the
// file system does not have it.
func born(path string, st *unix.Stat_t) int64 {
	var x unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &x) != nil || x.Mask&unix.STATX_BTIME == 0 {
		return st.Ctim.Nano()
	}
	return x.Btime.Sec*1e9 + int64(x.Btime.Nsec)
}

// accessed returns the path of a file whose access time was set since the tool was loaded,
// or "". Most file systems set the atime at the first read after a change, and once a day.
// So a tool that keeps the result of stat(2) has another time in its second preparation,
// and the same time in all later ones.
func (p *preparation) accessed(looks []access, loading time.Time) string {
	for _, l := range p.outside(looks) {
		var st unix.Stat_t
		if unix.Stat(l.Path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Atim.Nano() > loading.Add(-coarse).UnixNano() {
			return l.Path
		}
	}
	return ""
}

// prove starts the probe hot and cold and compares the outputs, unless the snapshot is
// already proved or there is no probe.
func (p *preparation) prove() error {
	snap := p.snap
	if snap.Proof != nil {
		switch {
		case snap.Quarantined():
			return &Unavailable{Kind: Hot, Reason: quarantineText(snap.ID, Difference{snap.Proof.Sample, snap.Proof.Reason})}
		case !snap.Proof.Equal:
			return &Unavailable{Kind: Hot, Reason: snap.Proof.Reason}
		}
		return nil
	}
	if p.probe == nil {
		return nil
	}
	if p.late != nil && slices.ContainsFunc(snap.Late.Offsets, func(o frozen.Offset) bool { return byte(-o.Constant) == p.late.probe[0] }) {
		// A start with this name would be cold.
		p.late.probe, p.coldDir = p.late.other(), ""
	}
	if err := p.runCold(); err != nil {
		return err
	}
	proof := &ProofState{When: time.Now().UTC()}
	dir, exit, err := p.runProbe(Hot)
	switch {
	case err != nil && p.ctx.Err() != nil:
		return p.ctx.Err()
	case err != nil:
		return &Unavailable{Kind: Hot, Reason: err.Error()} // may be passing: not recorded
	case !exit.OK():
		proof.Reason = fmt.Sprintf("the tool fails where it succeeds cold (%s): %s", exit, lastWords(dir))
	default:
		if proof.Reason, err = compareDirs(p.coldDir, dir, p.spec, false); err != nil {
			return err
		}
		if proof.Reason != "" {
			proof.Reason = "outputs differ from the outputs of a cold start: " + proof.Reason
			note, err := p.differsFromItself()
			if err != nil {
				return err
			}
			proof.Reason += note
		}
	}
	proof.Equal = proof.Reason == ""
	snap.Proof = proof
	if proof.Equal {
		return snap.save()
	}
	if err := snap.discard(); err != nil {
		return err
	}
	return &Unavailable{Kind: Hot, Reason: proof.Reason}
}

// differsFromItself runs the probe cold once more. It returns an addition to the reason
// of a difference: whether two cold runs differ too.
func (p *preparation) differsFromItself() (string, error) {
	dir, exit, err := p.runProbe(Cold)
	if err != nil {
		return "", err
	}
	reason := ""
	if exit.OK() {
		if reason, err = compareDirs(p.coldDir, dir, p.spec, false); err != nil {
			return "", err
		}
	}
	if reason == "" {
		return "", nil
	}
	return DiffersFromItself(reason), nil
}

// runCold runs the probe cold, once, for comparisons. A tool that fails is an
// *InputError.
func (p *preparation) runCold() error {
	if p.coldDir != "" {
		return nil
	}
	dir, exit, err := p.runProbe(Cold)
	if err != nil {
		return err
	}
	if !exit.OK() {
		return &InputError{fmt.Errorf("the tool fails on the first sample even when started cold (%s): %s", exit, lastWords(dir))}
	}
	p.coldDir = dir
	return nil
}

// runProbe runs the probe to its end and returns its directory.
func (p *preparation) runProbe(kind Kind) (string, Exit, error) {
	// The proof has its own directory, since the directory of tasks hides its siblings.
	parent, err := os.MkdirTemp(p.scratch, "prove-"+string(kind)+"-")
	if err != nil {
		return "", Exit{}, err
	}
	dir := filepath.Join(parent, "task")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", Exit{}, err
	}
	proc, err := p.start(p.ctx, kind, Task{Sample: p.late.probeName(), Dir: dir, Inputs: p.probe, watch: kind == Cold, prove: kind == Hot})
	if err != nil {
		return dir, Exit{}, err
	}
	stop := context.AfterFunc(p.ctx, func() { proc.Signal(unix.SIGKILL) })
	defer stop()
	copied := make(chan error, 1)
	go func() { copied <- saveStream(proc.Stdout, filepath.Join(parent, StdoutName)) }()
	exit, err := proc.Wait()
	if kind == Cold {
		p.coldLooks = proc.looks
		p.cold = coldStart{proc.Latency, time.Since(proc.started), exit.User + exit.System, proc.tracing, exit.MaxRSS}
	}
	if cerr := <-copied; err == nil {
		err = cerr
	}
	if err == nil && proc.Stdout != nil {
		// Where the comparison looks for it; the FIFO has served.
		err = beneath.Move(filepath.Join(parent, StdoutName), filepath.Join(dir, StdoutName), beneath.Volatile)
	}
	return dir, exit, err
}

// saveStream writes a streamed stdout to a file. It does nothing if from is nil.
func saveStream(from *os.File, path string) error {
	if from == nil {
		return nil
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	return to.Close()
}
