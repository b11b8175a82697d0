package hotstart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/hotstart/criu"
)

// Prepare makes ready, and proves, what the wished kind of start needs. probe
// is one sample, as Task.Inputs; of a FASTQ file only the head is used. With a
// nil probe nothing is proved yet, and a later Prepare with one will do it.
// scratch is a directory on the run's file system; what is left there after
// Close may be deleted.
//
// A kind that was asked for and cannot be had is an error of type
// *Unavailable. With Auto there is no such error: Decision tells.
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
		if samples, err = cutProbe(probe, dir); err != nil {
			return err
		}
	}
	pr := &preparation{Starter: s, ctx: ctx, probe: samples}
	defer pr.end()
	switch s.opt.Start {
	case Cold:
		s.decide(Cold, "as asked")
		return nil
	case Fork, Hot, Copy:
		return pr.explicit(s.opt.Start)
	case Auto:
		return pr.auto()
	}
	return fmt.Errorf("unknown kind of start %q", s.opt.Start)
}

// preparation is one call of Prepare.
type preparation struct {
	*Starter
	ctx   context.Context
	probe map[string]string

	looked   bool
	held     *stageHandle // a template at hand, not yet given to the Starter
	viaHot   bool         // held was itself restored hot
	behind   *program     // the tool proper behind a wrapper; nil: the command itself
	whole    bool         // take wrappers along: without them outputs differed
	noHot    error        // why the attempt at a hot start failed
	coldDir  string       // what the probe gave cold
	searched *Snapshot
	begun    time.Time
}

func (p *preparation) end() {
	if p.held != nil {
		p.held.close()
		p.held = nil
	}
}

// try makes one kind of start ready. Where the tool ended before it came to its
// input, that is the tool's fault (*InputError) unless it succeeds cold.
func (p *preparation) try(kind Kind) error {
	var err error
	if kind == Fork {
		err = p.tryFork()
	} else {
		err = p.tryRestore(kind)
	}
	var ended *endedEarly
	if !errors.As(err, &ended) {
		return err
	}
	if p.probe == nil {
		return &InputError{ended}
	}
	if err := p.runCold(); err != nil {
		return err
	}
	return err
}

func (p *preparation) explicit(kind Kind) error {
	err := p.try(kind)
	if err == nil {
		p.decide(kind, "as asked%s", p.provedNote(kind))
		return nil
	}
	if p.ctx.Err() != nil {
		return err
	}
	var input *InputError
	if errors.As(err, &input) {
		return err
	}
	var unavailable *Unavailable
	if !errors.As(err, &unavailable) {
		unavailable = &Unavailable{Kind: kind, Reason: err.Error()}
	}
	if unavailable.Hint == "" {
		unavailable.Hint = "use --start auto, which takes the first kind of start that is possible"
	}
	return unavailable
}

// auto tries the kinds in their order and settles on the first that will do.
func (p *preparation) auto() error {
	snap := p.find()
	if p.opt.Tasks == 1 && (snap == nil || len(snap.Kinds()) == 0) {
		p.decide(Cold, "there is one task, and no snapshot yet: preparing one would not pay")
		return nil
	}
	kinds := []Kind{Fork, Hot, Copy}
	if p.opt.Keep || snap.hotFirst(p.opt.Tasks) {
		kinds = []Kind{Hot, Copy, Fork}
	}
	var reasons []string
	for _, kind := range kinds {
		err := p.try(kind)
		if err == nil {
			p.decide(kind, "%s", strings.Join(append(reasons, p.how(kind)), "; "))
			return nil
		}
		var input *InputError
		if errors.As(err, &input) {
			return err
		}
		if p.ctx.Err() != nil {
			return p.ctx.Err()
		}
		var ended *endedEarly
		if errors.As(err, &ended) {
			// No other kind would come further.
			reasons = append(reasons, ended.text)
			break
		}
		var u *Unavailable
		why := err.Error()
		if errors.As(err, &u) {
			why = u.Reason
		}
		reasons = append(reasons, fmt.Sprintf("no %s: %s", kind, why))
	}
	p.decide(Cold, "%s", strings.Join(reasons, "; "))
	return nil
}

// how describes a kind that will be used.
func (p *preparation) how(kind Kind) string {
	switch {
	case kind == Fork && p.viaHot:
		return "forked from a template that was restored hot" + p.provedNote(kind)
	case kind == Fork:
		return "forked from a template that was loaded cold" + p.provedNote(kind)
	}
	return "restored from a snapshot" + p.provedNote(kind)
}

func (p *preparation) provedNote(kind Kind) string {
	if p.searched != nil {
		if proof, ok := p.searched.Proofs[kind]; ok && proof.Equal {
			return ", proved equal to a cold start"
		}
	}
	return ", not proved yet"
}

// find looks once for a valid snapshot; nil if there is none.
func (p *preparation) find() *Snapshot {
	if !p.looked {
		p.looked = true
		want := Hot
		if p.opt.Start == Copy {
			want = Copy
		}
		p.use(findSnapshot(p.opt.Store, p.spec, p.host.namespaces, want, p.opt.Log))
	}
	return p.searched
}

func (p *preparation) use(snap *Snapshot) {
	p.searched = snap
	p.mu.Lock()
	p.snapshot = snap
	p.mu.Unlock()
}

// tryFork gets a template that can be forked, and proves forks of it.
func (p *preparation) tryFork() error {
	snap := p.find()
	if p.spec.Image != nil && (snap == nil || !snap.has(Hot)) {
		// Only what was restored can go into the container of a task.
		err := p.tryRestore(Hot)
		var u *Unavailable
		if errors.As(err, &u) {
			p.noHot = err
			return &Unavailable{Kind: Fork, Reason: "in a container it takes what was restored hot: " + u.Reason, Hint: u.Hint}
		}
		if err != nil {
			return err
		}
		snap = p.searched
	}
	if snap != nil {
		if proof, ok := snap.Proofs[Fork]; ok && !proof.Equal {
			return &Unavailable{Kind: Fork, Reason: proof.Reason}
		}
	}
	if err := p.getTemplate(); err != nil {
		return err
	}
	if err := p.stepBehind(); err != nil {
		return err
	}
	if why := p.held.held.NoFork; why != "" {
		return &Unavailable{Kind: Fork, Reason: why}
	}
	var err error
	if snap != nil && p.behind != nil && snap.Behind == nil {
		snap.Behind = p.behind
		if err := snap.save(); err != nil {
			return err
		}
	}
	if snap == nil {
		// Without images it still remembers the proof.
		if snap, err = p.rememberProofs(); err != nil {
			p.opt.Log("the proof will not be remembered (set PREMIX_HOME to a directory of your own): %v", err)
			snap = &Snapshot{Proofs: map[Kind]ProofState{}}
		}
		p.use(snap)
	}
	p.mu.Lock()
	p.template = p.held
	p.mu.Unlock()
	if err := p.prove(Fork); err != nil {
		p.mu.Lock()
		p.template = nil
		p.mu.Unlock()
		return err
	}
	p.held = nil // the Starter's now
	return nil
}

// stepBehind loads the tool proper in place of a template that is one behind a
// wrapper. The proof compares with a start through the wrapper.
func (p *preparation) stepBehind() error {
	behind := p.held.held.Behind
	if behind == nil || p.whole || p.viaHot && p.spec.Image != nil {
		return nil // in a container only what was restored hot can be forked
	}
	p.end()
	p.behind = behind
	return p.openTemplate(roleLoad)
}

// rememberProofs makes a snapshot without images.
func (p *preparation) rememberProofs() (*Snapshot, error) {
	snap, err := newSnapshot(p.opt.Store, p.spec, p.host.namespaces)
	if err != nil {
		return nil, err
	}
	snap.Seconds, snap.Behind = p.held.held.Loaded.Seconds(), p.behind
	if snap.Fingerprint, err = newFingerprint(p.spec, p.held.held.Files); err == nil {
		err = snap.save()
	}
	if err != nil {
		return nil, errors.Join(err, snap.Remove())
	}
	return snap, nil
}

// getTemplate brings a template to its input: by a hot restore where a snapshot
// has one, else by executing the tool.
func (p *preparation) getTemplate() error {
	if p.held != nil {
		return nil
	}
	if p.searched != nil {
		p.behind = p.searched.Behind
	}
	if p.searched != nil && p.searched.has(Hot) && p.host.criu != "" {
		err := p.openTemplate(roleTemplate)
		if err == nil || p.spec.Image != nil {
			return err
		}
		p.opt.Log("the template cannot be restored hot, loading it: %v", err)
	}
	return p.openTemplate(roleLoad)
}

func (p *preparation) openTemplate(r role) error {
	dir, err := os.MkdirTemp(p.scratch, "template-")
	if err != nil {
		return err
	}
	t := Task{Dir: dir, Inputs: p.probe}
	if err := p.layOutTemplate(t); err != nil {
		return err
	}
	t.Inputs = nil
	cfg := p.config(t)
	cfg.Role = r
	if b := p.behind; r == roleLoad && b != nil {
		cfg.Exe, cfg.Argv, cfg.Env = b.Exe, b.Argv, b.Env
		if cfg.Container != nil {
			cfg.Container.Request.Env = b.Env
		}
	}
	p.begun = time.Now()
	if r == roleTemplate {
		if err := p.searched.outfit(Hot, &cfg, t); err != nil {
			return err
		}
	}
	st, err := p.Starter.openStage(cfg)
	if err != nil {
		return err
	}
	if err := st.await(p.ctx, evHeld); err != nil {
		st.close()
		return err
	}
	p.held, p.viaHot = st, r == roleTemplate
	return nil
}

// placeholderText is what a template finds where there is no probe: a record of
// FASTQ, since some tools refuse an empty file before they load anything.
const placeholderText = "@placeholder\nACGTACGTACGTACGT\n+\nIIIIIIIIIIIIIIII\n"

// placeholderBytes is how much of a probe's input a template finds at its
// input's path, should it look at the size before it opens.
const placeholderBytes = 64 << 10

// layOutTemplate makes a template's directory: its inputs are regular files
// that nobody is going to read.
func (p *preparation) layOutTemplate(t Task) error {
	if err := p.makeStreams(t.Dir); err != nil {
		return err
	}
	for _, name := range p.spec.Inputs {
		out, err := os.OpenFile(filepath.Join(t.Dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if real := t.Inputs[name]; real != "" {
			in, err := os.Open(real)
			if err != nil {
				out.Close()
				return &InputError{err}
			}
			_, err = io.CopyN(out, in, placeholderBytes)
			in.Close()
			if err != nil && !errors.Is(err, io.EOF) {
				out.Close()
				return err
			}
		} else if _, err := out.WriteString(placeholderText); err != nil {
			out.Close()
			return err
		}
		if err := out.Close(); err != nil {
			return err
		}
	}
	return p.spec.give(t.Dir)
}

// tryRestore gets a snapshot with images of this kind, and proves them.
func (p *preparation) tryRestore(kind Kind) error {
	if kind == Hot && p.noHot != nil {
		return p.noHot
	}
	if p.host.criu == "" {
		return &Unavailable{Kind: kind, Reason: p.host.noCriu, Hint: p.host.hint}
	}
	if im := p.spec.Image; im != nil && im.UID != 0 && !hasCapability(unix.CAP_SYS_RESOURCE) {
		return &Unavailable{Kind: kind, Reason: fmt.Sprintf("the image's user is %d, and to freeze another user's process takes CAP_SYS_RESOURCE, which premix does not have here", im.UID),
			Hint: "give premix the capability, or build the image without USER"}
	}
	snap, err := p.find(), error(nil)
	if snap != nil && !snap.has(kind) {
		if proof, ok := snap.Proofs[kind]; ok && !proof.Equal {
			return &Unavailable{Kind: kind, Reason: proof.Reason}
		}
		// It was made for another kind of start. What it proved stays true.
		former := snap
		p.use(nil)
		if snap, err = p.takeSnapshot(kind, former.Proofs); err != nil {
			former.unlock()
			return err
		}
		p.use(snap)
		former.unlock()
		if len(former.Kinds()) == 0 {
			if err := former.Remove(); err != nil && !errors.Is(err, ErrInUse) {
				return err
			}
		}
	}
	if snap == nil {
		if snap, err = p.takeSnapshot(kind, nil); err != nil {
			return err
		}
		p.use(snap)
	}
	if err := p.prove(kind); err != nil {
		var differs *Unavailable
		if snap.Behind == nil || p.whole || !errors.As(err, &differs) {
			return err
		}
		// The wrapper does more than to wait, it seems.
		p.whole, p.behind = true, nil
		p.use(nil)
		if err := snap.Remove(); err != nil {
			return err
		}
		return p.tryRestore(kind)
	}
	if kind == Hot && p.opt.Start != Copy && snap.has(Copy) && snap.Proofs[Hot].Equal {
		// Proved: CRIU's own images, as large again, are of no more use.
		if err := os.RemoveAll(filepath.Join(snap.Dir, string(Copy))); err != nil {
			return err
		}
		if err := snap.seal(); err != nil {
			return err
		}
		return snap.save()
	}
	return nil
}

// takeSnapshot dumps a template that was executed afresh, and converts it
// unless only a copy start is wanted.
func (p *preparation) takeSnapshot(kind Kind, proofs map[Kind]ProofState) (*Snapshot, error) {
	if p.held != nil && (p.viaHot || p.whole) {
		p.end()
	}
	if p.held == nil {
		if err := p.openTemplate(roleLoad); err != nil {
			return nil, err
		}
	}
	if err := p.stepBehind(); err != nil {
		return nil, err
	}
	begun := p.begun
	info := p.held.held
	snap, err := newSnapshot(p.opt.Store, p.spec, p.host.namespaces)
	if err != nil {
		return nil, err
	}
	if err := p.fillSnapshot(snap, kind, info); err != nil {
		snap.Remove()
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("there is no room for a snapshot in %s: %w", p.opt.Store, err)
		}
		return nil, err
	}
	snap.Seconds, snap.Behind = time.Since(begun).Seconds(), p.behind
	if proof, ok := proofs[Fork]; ok {
		snap.Proofs[Fork] = proof
	}
	if err := snap.save(); err != nil {
		snap.Remove()
		return nil, err
	}
	return snap, nil
}

func (p *preparation) fillSnapshot(snap *Snapshot, kind Kind, info templateInfo) error {
	copyImages, hotImages := filepath.Join(snap.Dir, string(Copy)), filepath.Join(snap.Dir, string(Hot))
	if err := os.Mkdir(copyImages, 0o700); err != nil {
		return err
	}
	templateDir := p.held.dir
	if _, err := p.held.ask(p.ctx, request{Op: opDump, Dir: copyImages}); err != nil {
		return err
	}
	p.end()
	if p.spec.Image != nil {
		if err := os.Rename(filepath.Join(copyImages, upperName), filepath.Join(snap.Dir, upperName)); err != nil {
			return err
		}
	}
	workDir := filepath.Join(snap.Dir, workName)
	if err := os.Mkdir(workDir, 0o700); err != nil {
		return err
	}
	if err := copyDir(templateDir, workDir, p.spec.Inputs); err != nil {
		return err
	}
	if err := criu.Settle(copyImages, FixedDir); err != nil {
		return err
	}
	if kind == Hot {
		if err := os.Mkdir(hotImages, 0o700); err != nil {
			return err
		}
		// Before Convert, which drops what it has read from the page cache.
		if err := snap.seal(); err != nil {
			return err
		}
		pages := filepath.Join(snap.Dir, pageName)
		mapped := pages
		if p.spec.Image != nil {
			mapped = pagesPath
		}
		done, err := criu.Convert(copyImages, hotImages, pages, mapped)
		if err != nil {
			return err
		}
		snap.Slots = done.Slots
		if p.spec.Stream {
			if err := os.Link(filepath.Join(copyImages, prefixName), filepath.Join(hotImages, prefixName)); err != nil {
				return err
			}
		}
	}
	var err error
	if snap.Fingerprint, err = newFingerprint(p.spec, info.Files); err != nil {
		return err
	}
	return snap.seal()
}

// prove compares the probe's outputs by this kind of start with those of a
// cold one, unless that has been done or there is no probe.
func (p *preparation) prove(kind Kind) error {
	snap := p.searched
	if proof, ok := snap.Proofs[kind]; ok {
		if !proof.Equal {
			return &Unavailable{Kind: kind, Reason: proof.Reason}
		}
		return nil
	}
	if p.probe == nil {
		return nil
	}
	if err := p.runCold(); err != nil {
		return err
	}
	proof := ProofState{When: time.Now().UTC()}
	dir, exit, err := p.runProbe(kind)
	switch {
	case err != nil && p.ctx.Err() != nil:
		return p.ctx.Err()
	case err != nil:
		return &Unavailable{Kind: kind, Reason: err.Error()} // may be passing: not recorded
	case !exit.OK():
		proof.Reason = fmt.Sprintf("the tool fails where it succeeds cold (%s): %s", exit, lastWords(dir))
	default:
		if proof.Reason, err = compareDirs(p.coldDir, dir, p.spec); err != nil {
			return err
		}
		if proof.Reason != "" {
			proof.Reason = "outputs differ from those of a cold start: " + proof.Reason
		}
	}
	proof.Equal = proof.Reason == ""
	snap.Proofs[kind] = proof
	if err := snap.save(); err != nil {
		return err
	}
	if !proof.Equal {
		return &Unavailable{Kind: kind, Reason: proof.Reason}
	}
	return nil
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
	// A directory of its own, since that of tasks covers its neighbours.
	parent, err := os.MkdirTemp(p.scratch, "prove-"+string(kind)+"-")
	if err != nil {
		return "", Exit{}, err
	}
	dir := filepath.Join(parent, "task")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", Exit{}, err
	}
	proc, err := p.start(p.ctx, kind, Task{Dir: dir, Inputs: p.probe})
	if err != nil {
		return dir, Exit{}, err
	}
	stop := context.AfterFunc(p.ctx, func() { proc.Signal(unix.SIGKILL) })
	defer stop()
	copied := make(chan error, 1)
	go func() { copied <- saveStream(proc.Stdout, filepath.Join(parent, StdoutName)) }()
	exit, err := proc.Wait()
	if cerr := <-copied; err == nil {
		err = cerr
	}
	if err == nil && proc.Stdout != nil {
		// Where the comparison looks for it; the FIFO has served.
		err = os.Rename(filepath.Join(parent, StdoutName), filepath.Join(dir, StdoutName))
	}
	return dir, exit, err
}

// saveStream writes a streamed stdout to a file; nil is no stream.
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
