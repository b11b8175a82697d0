package inplace

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/late"
	"premix/internal/hotstart/placeholder"
	"premix/internal/hotstart/procstate"
	"premix/internal/hotstart/tracer"
	"premix/internal/kit/beneath"
)

// Prepare makes a snapshot that serves a call, proves it, and returns it locked. It
// reads the call's inputs and data, and writes only to the store and the scratch
// directory. It checks the kinds of the call's streams, and never reads or writes the
// streams. A command that cannot start hot is an *Unfit.
//
// Prepare waits for all children of its thread, which must not have other children. It
// sets close-on-exec on the descriptors of this process.
func Prepare(ctx context.Context, store string, c Call, opt PrepareOptions) (*Snapshot, error) {
	// Only the thread that traces a process can work on it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	key, err := Key(c)
	if err != nil {
		return nil, err
	}
	// Trials have the descriptors of the call, and none of this process.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("close_range", err)
	}
	p := &preparation{ctx: ctx, call: &c, opt: opt, started: time.Now(), state: c.inherited()}
	if hint, err := hotstart.CanTrace(); err != nil {
		return nil, passing("%v (%s)", err, hint)
	}
	var unlock func()
	if p.scratch, unlock, err = makeScratch(opt.Scratch); err != nil {
		return nil, err
	}
	defer unlock()
	defer os.RemoveAll(p.scratch)
	if p.scratch, err = filepath.EvalSymlinks(p.scratch); err != nil {
		return nil, err
	}
	var unlockOther func()
	if p.other, unlockOther, err = otherScratch(p.scratch, store); err != nil {
		return nil, err
	}
	defer unlockOther()
	defer os.RemoveAll(p.other)
	defer p.end()
	base, err := hotstart.NewSnapshotIn(store, key)
	if err != nil {
		return nil, err
	}
	p.snap = &Snapshot{Snapshot: *base, Exe: c.Exe}
	p.snap.Name, p.snap.Argv = filepath.Base(c.Exe), c.Argv
	err = p.prepare()
	for _, next := range []struct{ exact, closes bool }{{false, true}, {true, false}, {true, true}} {
		if !errors.As(err, new(*Unfit)) || next.closes && !p.differs || next.exact && !p.copies {
			continue
		}
		if next.exact {
			p.log("the tool may have copied its environment")
		}
		if next.closes {
			p.log("the tool works with its late words after it has loaded its data")
		}
		if err = p.restart(next.exact, next.closes); err == nil {
			err = p.prepare()
		}
	}
	var refused *Unfit
	if errors.As(err, &refused) && !refused.Passing && p.refuse(refused.Reason) == nil {
		return nil, err
	}
	if err != nil {
		return nil, errors.Join(err, p.snap.Remove())
	}
	return p.snap, nil
}

// preparation is one call of Prepare.
type preparation struct {
	ctx     context.Context
	call    *Call
	opt     PrepareOptions
	state   procstate.Inherited
	scratch string
	other   string // a second scratch directory, for B; its path begins with another name
	started time.Time
	begun   time.Time // started, or the time of the last restart
	times   int       // loads since then
	now     Progress
	loading time.Time // when A began to load
	snap    *Snapshot

	real    []string // the input at each late word that is a regular file; "" at others
	pipes   []int    // indexes of the inputs that are pipes
	stdin   string
	cold    *trial
	copies  bool           // the tool may have copied late variables, whose lengths then matter
	exact   bool           // late variables have the lengths of the call's
	differs bool           // the memories of two preparations differ
	closes  bool           // preparations are held where they close the last file of their data
	heads   bool           // each start executes the head
	headAt  int            // with heads: the number of opens of data until its end
	data    int            // opens of data until the stop
	asks    bool           // the tool opens no input before the stop
	trials  []*trial       // A, B, and perhaps a third one
	avoid   map[int][]byte // first bytes that late words of the third one must not have
	seed    [32]byte
	clocks  [2]frozen.Moment // at which the tool begins
	images  [2]*frozen.Image
	pages   *os.File       // of A
	noise   []frozen.Patch // what B has where a rule says that the value does not matter
}

func (p *preparation) end() {
	for _, t := range append(slices.Clone(p.trials), p.cold) {
		if t != nil {
			t.end()
		}
	}
	if p.pages != nil {
		p.pages.Close()
	}
}

// restart begins again, with other values of exact and closes.
func (p *preparation) restart(exact, closes bool) error {
	p.end()
	for _, dir := range []string{p.scratch, p.other} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for _, path := range []string{p.snap.ImagePath(), p.snap.PagePath()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	p.snap.plan, p.snap.Stamps = plan{}, nil
	p.heads, p.headAt = false, 0
	p.cold, p.trials, p.images, p.pages, p.noise = nil, nil, [2]*frozen.Image{}, nil, nil
	p.copies, p.differs, p.exact, p.closes = false, false, exact, closes
	return nil
}

// refuse keeps the reason why the command starts cold in place of a snapshot.
func (p *preparation) refuse(reason string) error {
	p.end()
	s := p.snap
	s.Refused = reason
	for _, path := range []string{s.ImagePath(), s.PagePath(), filepath.Join(s.Dir, planName)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	s.Stamps = nil
	if err := p.fingerprint(nil); err != nil {
		return err
	}
	s.plan = plan{}
	defer s.Close()
	return s.save()
}

func (p *preparation) log(format string, args ...any) {
	if p.opt.Log != nil {
		p.opt.Log(format, args...)
	}
}

// loads notes that a process of the tool begins to load.
func (p *preparation) loads(pid int) {
	p.now.Tool = pid
	p.progress()
}

// loaded notes that the tool has loaded its data once more.
func (p *preparation) loaded() {
	p.times++
	p.progress()
}

func (p *preparation) progress() {
	if p.times > 0 {
		p.now.Rest = restAfter(p.times, time.Since(p.begun), cmp.Or(p.opt.Enough, enough))
	}
	if p.opt.Progress != nil {
		p.opt.Progress(p.now)
	}
}

// loadTime returns the time of a load that took some time, in which the tool waited for a
// processor. A preparation has the lowest priority, and may have waited much longer than a call
// would.
func loadTime(took, queued time.Duration) time.Duration {
	own := max(took-queued, 0)
	return own + min(queued, 3*own)
}

// restAfter returns the expected time of the rest of a preparation that has loaded some times, for
// the probe, for A, for B and for further preparations, and has taken a time for it.
func restAfter(loads int, took, enough time.Duration) time.Duration {
	each := max(took/time.Duration(loads), 1)
	further := min(max(fewest, int(enough/each)+1), most)
	return time.Duration(max(0, 3+further-loads)) * each
}

func (p *preparation) prepare() error {
	p.begun, p.times = time.Now(), 0
	if reason := p.state.Refusal(); reason != "" {
		return unfit("%s", reason)
	}
	if reason := p.call.oneFile(); reason != "" {
		return passing("%s", reason)
	}
	if err := p.inputs(); err != nil {
		return err
	}
	if err := p.runCold("p"); err != nil {
		return err
	}
	if err := p.freeze(); err != nil {
		return err
	}
	if err := p.fingerprint(p.images[0].Paths()); err != nil {
		return err
	}
	if err := p.unchanged(); err != nil {
		return err
	}
	if err := p.compare(); err != nil {
		return err
	}
	p.snap.Fingerprint.WithoutMoving()
	if err := p.images[0].WriteFile(p.snap.ImagePath()); err != nil {
		return err
	}
	p.snap.Memory = p.images[0].PageBytes
	if err := p.snap.Seal(); err != nil {
		return err
	}
	if err := p.prove(); err != nil {
		return err
	}
	p.snap.Proof = &hotstart.ProofState{Equal: true, When: time.Now().UTC()}
	p.snap.Seconds = time.Since(p.started).Seconds()
	return p.snap.save()
}

// inputs makes the probe, which is cut from the call's inputs.
func (p *preparation) inputs() error {
	words := p.call.words()
	p.real, p.pipes = make([]string, len(words)), nil
	for k, w := range p.call.Words {
		if p.call.isPipe(k) {
			p.pipes = append(p.pipes, k)
		} else if w.Role == Input {
			p.real[k] = resolve(p.call.Dir, words[k])
			if now := kindAt(p.real[k]); now != "file" && now != "empty" {
				return passing("the input %s is not a regular file that can be read", words[k])
			}
		}
	}
	if p.state.Streams[0] == procstate.File || p.state.Streams[0] == procstate.Pipe {
		// The stream itself belongs to the caller.
		p.stdin = filepath.Join(p.scratch, "stdin")
		return os.WriteFile(p.stdin, standardContent(), 0o600)
	}
	return nil
}

// standardInput is repeated as the content of standard input, and of inputs that are pipes, in
// trials.
const standardInput = "@read\nACGTTGCAAGCTTAGCATGCAAGTCGATCGATTAGCGACT\n+\nIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIII\n"

func standardContent() []byte { return []byte(strings.Repeat(standardInput, 500)) }

// trial describes one execution. Its directory has a path of the length of the call's
// directory, where that is long enough.
func (p *preparation) trial(name string, number int) (*trial, error) {
	t := &trial{call: p.call, state: p.state, scratch: filepath.Join(p.base(name), name), stdin: p.stdin, exact: p.exact, heads: p.heads, closes: p.closes, pipes: p.pipes,
		values: map[string]string{}, inputs: make([]string, len(p.real)), began: p.loads}
	if err := os.Mkdir(t.scratch, 0o700); err != nil {
		return nil, err
	}
	for k, real := range p.real {
		if real == "" {
			continue
		}
		t.inputs[k] = filepath.Join(t.scratch, fmt.Sprintf("input-%d", k))
		if _, err := placeholder.Make(real, t.inputs[k], number, false); err != nil {
			return nil, passing("the input %s: %v", real, err)
		}
	}
	for _, k := range p.pipes {
		t.inputs[k] = filepath.Join(t.scratch, fmt.Sprintf("input-%d", k))
		mode := uint32(0o600) // of the pipes of a shell
		if number == 0 {
			mode = 0o700
		}
		if err := unix.Mkfifo(t.inputs[k], mode); err != nil {
			return nil, &os.PathError{Op: "mkfifo", Path: t.inputs[k], Err: err}
		}
	}
	t.dir = p.workDir(name, number)
	return t, os.MkdirAll(t.dir, 0o700)
}

// base returns the directory of the directory of a trial.
func (p *preparation) base(name string) string {
	if name == loadName(1) {
		return p.other
	}
	return p.scratch
}

// loadName returns the name of a preparation: A (0), B (1), or a further one.
func loadName(number int) string { return strconv.Itoa(number) }

// workDir returns the path of the working directory of a trial. All of them have the length
// of the path of the call's directory, where that is long enough. A tool may keep the places
// of '/' in the path, so they differ.
func (p *preparation) workDir(name string, number int) string {
	base := p.base(name) + "/" + name + "/"
	letters := max(len(p.call.Dir), max(len(p.scratch), len(p.other))+longestName) - len(base)
	parts := []string{}
	for letters > 0 {
		n := min(letters, 200-number)
		if number == 1 && len(parts) == 0 {
			n = min(letters, 3)
		}
		if letters-n == 1 {
			n-- // no part is empty
		}
		parts = append(parts, Label.Other(strings.Repeat("d", n)))
		letters -= n + 1
	}
	return base + strings.Join(parts, "/")
}

// longestName is the length of the longest name of a trial, and of the shortest path of a
// directory in it that can have its '/' in two places, with their separators.
const longestName = len("/p/ddd/ddd")

// others chooses the late words and variables of a trial, which differ from the call's.
func (p *preparation) others(t *trial) error {
	own := p.call.words()
	roles := make([]Role, len(own))
	for k, w := range p.call.Words {
		roles[k] = w.Role
	}
	// The tool may compare a late word with a constant. The words of B are on one side of
	// the call's words, and the words of further preparations on the other side, so one of
	// them has another result of the comparison.
	first := append(own, "")[0]
	if p.exact {
		kinds, values := exactKinds(p.call)
		for _, v := range values {
			own, roles = append(own, v), append(roles, Label)
		}
		t.words = late.Contrast(own, roles, late.LettersOf(t.number, first), p.avoid)
		own, t.words = t.words[len(p.call.Words):], t.words[:len(p.call.Words)]
		for _, e := range kinds {
			switch e.Kind {
			case exactWord:
				t.values[e.Name], own = own[0], own[1:]
			case exactDir:
				t.values[e.Name] = t.dir
			case exactSame:
				t.values[e.Name] = e.Value
			}
		}
		return nil
	}
	t.words = late.Contrast(own, roles, late.LettersOf(t.number, first), p.avoid)
	for _, kv := range p.call.Env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || !p.call.isLate(name) {
			continue
		}
		if len(value) >= PadSize {
			return passing("the variable %s has more than %d bytes", name, PadSize-1)
		}
		other := Label.Other(value)
		other += Label.Other("1234567")[:1+len(other)%7]
		if name == "SHLVL" {
			other = "3"
		}
		if filepath.IsAbs(value) && kindAt(value) == "dir" {
			other = filepath.Join(t.scratch, "variable-"+name)
			if err := os.Mkdir(other, 0o700); err != nil {
				return err
			}
		}
		t.values[name] = other
	}
	return nil
}

// own gives a trial the late words and variables of the call.
func (p *preparation) own(t *trial) {
	t.words = p.call.words()
	for _, kv := range p.call.Env {
		if name, value, ok := strings.Cut(kv, "="); ok && p.call.isLate(name) {
			t.values[name] = value
			if p.exact && value == p.call.Dir {
				t.values[name] = t.dir
			}
		}
	}
}

// runCold runs the probe to its end, with late words of its own.
func (p *preparation) runCold(name string) error {
	t, err := p.trial(name, 0)
	if err != nil {
		return err
	}
	t.number = 4 // letters by chance
	p.cold = t
	if err := p.others(t); err != nil {
		return err
	}
	t.values["PWD"] = t.dir
	if err := t.run(p.ctx, t.begin); err != nil {
		return err
	}
	if !p.heads && t.needsHead() {
		if len(p.pipes) > 0 {
			return unfit("it makes processes before it loads its data, and one of its inputs is a pipe")
		}
		p.log("each start makes the processes of the tool")
		p.heads = true
		t.end()
		return p.runCold(name + name)
	}
	p.headAt = t.before
	if t.exit.ExitStatus() != 0 {
		return passing("it fails on the first part of its input (%s): %s", ending(t.exit), hotstart.LastLine(string(t.stdout[2])))
	}
	at, before, late := hotstart.FindMoment(t.looks)
	if at < 0 {
		return unfit("it does not read its input")
	}
	p.data, p.snap.Loaded = before, t.came[at].Seconds()
	p.asks = !slices.ContainsFunc(t.looks[:at], func(l hotstart.Access) bool {
		return l.Input && (l.Op == tracer.AccessOpen || l.Op == tracer.AccessRead)
	})
	p.log("the probe took %v to reach its input", t.came[at].Round(time.Millisecond))
	p.now.Load = loadTime(t.came[at], t.queued[at])
	p.loaded()
	switch {
	case t.came[at] < p.opt.Worth:
		return unfit("the tool reaches its input within %v: a hot start would save nothing", t.came[at].Round(time.Millisecond))
	case late:
		return unfit("it opens its input, and loads its data after that")
	}
	return nil
}

func ending(st unix.WaitStatus) string {
	if st.Signaled() {
		return "killed by " + st.Signal().String()
	}
	return fmt.Sprintf("exit status %d", st.ExitStatus())
}

// freeze makes both preparations and freezes them.
func (p *preparation) freeze() error {
	p.clocks, p.loading = hotstart.Clocks(p.call.Env), time.Now()
	if p.heads {
		// The times that a start moves on follow times of its head, and must not be before them.
		for i := range p.clocks {
			p.clocks[i].Realtime -= p.clocks[i].Realtime % int64(time.Second)
		}
	}
	if _, err := rand.Read(p.seed[:]); err != nil {
		return err
	}
	both := [][]int{{0, 1}}
	if atOnce(p.cold.memory) < 2 {
		both = [][]int{{0}, {1}}
	}
	if err := p.load(both[0]...); err != nil {
		return err
	}
	var err error
	if p.pages, err = os.OpenFile(p.snap.PagePath(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return err
	}
	if p.images[0], err = p.image(p.trials[0], p.pages); err != nil {
		return err
	}
	for _, numbers := range both[1:] {
		if err := p.load(numbers...); err != nil {
			return err
		}
	}
	if p.images[1], err = p.image(p.trials[1], nil); err != nil {
		return err
	}
	for _, sig := range p.state.Ignored {
		// A hot start inherits that a signal is ignored, as a plain one does.
		if !slices.ContainsFunc(p.images[0].Actions, func(a frozen.Action) bool { return a.Signal == int(sig) }) {
			return unfit("it no longer ignores signal %d, which its caller ignores", sig)
		}
	}
	return nil
}

// image freezes a preparation. A is written to its page file, and the memory of others stays
// in their processes.
func (p *preparation) image(t *trial, pages *os.File) (*frozen.Image, error) {
	var like *frozen.Like
	if pages == nil {
		like = &frozen.Like{Image: p.images[0], Pages: p.pages}
	}
	var im *frozen.Image
	err := t.thread.do(func() (err error) {
		im, err = t.freeze(pages, like)
		return err
	})
	var refused *frozen.Refused
	if errors.As(err, &refused) {
		return nil, unfit("%s", refused.What)
	}
	return im, err
}

// load makes preparations, which load their data at the same time: A (0), B (1), or further ones.
// They are in p.trials then.
func (p *preparation) load(numbers ...int) error {
	var all []*trial
	for _, number := range numbers {
		t, err := p.setUp(number)
		if err != nil {
			return err
		}
		if all = append(all, t); len(numbers) > 1 {
			t.thread = newWorker()
		}
	}
	time.Sleep(apart) // their inputs change once more when they run
	run := func(ctx context.Context, t *trial) error {
		return t.thread.do(func() error { return t.run(ctx, t.begin) })
	}
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i, t := range all[1:] {
		t.began = nil
		running.Go(func() {
			if errs[i+1] = run(ctx, t); errs[i+1] != nil {
				cancel()
			}
		})
	}
	if errs[0] = run(ctx, all[0]); errs[0] != nil {
		cancel()
	}
	running.Wait()
	// The others were cancelled.
	slices.SortStableFunc(errs, func(a, b error) int { return cmp.Compare(cancelled(a), cancelled(b)) })
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	for _, t := range all {
		p.loaded()
		switch {
		case t.held == nil:
			return unfit("it ends before it reaches its input (%s), with another name for its input", ending(t.exit))
		case t.heads && t.head == nil:
			return unfit("it does not load its data after it has made its last child")
		case t.changed && len(t.variable) > 0:
			p.copies = true
			return unfit("its first program executes another one, whose environment has late variables")
		}
	}
	return nil
}

// cancelled returns 1 if an error comes from a context that was cancelled, and 0 otherwise.
func cancelled(err error) int {
	if errors.Is(err, context.Canceled) {
		return 1
	}
	return 0
}

// setUp describes a preparation, and makes its files.
func (p *preparation) setUp(number int) (*trial, error) {
	t, err := p.trial(loadName(number), 1-number%2)
	if err != nil {
		return nil, err
	}
	p.trials = append(p.trials, t)
	t.asks, t.stop, t.data, t.headAt, t.number, t.second, t.seed, t.clock = p.asks, true, p.data, p.headAt, number, number == 1, &p.seed, p.clocks[min(number, 1)]
	if number > 1 {
		t.clock = hotstart.Later(p.clocks[0], p.call.Env)
	}
	if t.loads = t.clock; p.heads {
		other := int64(0)
		if number > 0 {
			other = p.trials[0].clock.Realtime
		}
		t.clock = hotstart.Earlier(t.loads, p.call.Env, other, number == 2)
	}
	if number == 0 {
		p.own(t)
	} else if err := p.others(t); err != nil {
		return nil, err
	}
	if p.stdin != "" {
		// The tool is held before it reads it. It is smaller than any that a call has.
		t.stdin = filepath.Join(t.scratch, "stdin")
		if err := os.WriteFile(t.stdin, []byte(standardInput[:1]), 0o600); err != nil {
			return nil, err
		}
	}
	t.values["PWD"] = t.dir
	for k, input := range t.inputs {
		if input == "" || slices.Contains(p.pipes, k) {
			continue
		}
		// No two of the times and sizes are equal: each is a late word. In A, files are
		// older than all others, and in B they are newer. The order of the inputs by size
		// and time in A is reversed in B.
		modified := time.Now().Add(-time.Duration(number)*1000*time.Hour + time.Duration(k)*10*time.Hour)
		switch number {
		case 0:
			modified = modified.AddDate(-30, 0, -k)
			if p.asks {
				if err := os.Truncate(input, int64(1+k)); err != nil {
					return nil, err
				}
			}
		case 1:
			modified = modified.AddDate(1, 0, 0)
			info, err := os.Stat(p.trials[0].inputs[k])
			if err != nil {
				return nil, err
			}
			_ = os.Truncate(input, hotstart.LargeSize-info.Size()<<6+int64(k)) // plan.Bounds has the size that it has then
			// It may not be written, and it may be executed.
			if err := os.Chmod(input, 0o550); err != nil {
				return nil, err
			}
		}
		if mode, ok := headModes[number]; ok && p.heads {
			if err := os.Chmod(input, mode); err != nil {
				return nil, err
			}
		}
		if k > 0 {
			time.Sleep(apart)
		}
		if err := os.Chtimes(input, modified.Add(time.Hour+time.Microsecond), modified); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// headModes are the permissions of inputs in further preparations. A child may print them as text:
// with those of preparation B, each letter has another value in one of the preparations.
var headModes = map[int]fs.FileMode{2: 0o777, 3: 0o400}

// apart is the time between two changes of inputs of trials that may run at the same time, and more
// than the steps of the kernel's times. A tool may keep a part of the time of a change alone, which
// must not be the same for two inputs.
const apart = 12 * time.Millisecond

// late returns the late words of a preparation, as the plan counts them.
func (p *preparation) late(t *trial) []string {
	all := append(slices.Clone(t.words), commandLines(t.call.withWords(t.words))...)
	for _, k := range p.snap.plan.Stats {
		all = append(all, statWords(t.stats[k])...)
	}
	for _, fd := range p.snap.plan.Streams {
		all = append(all, t.streamed[fd]...)
	}
	cpus := tracer.OwnCPUs()
	if e := t.overlay.FakeHost; e != nil {
		cpus = e.CPUs(cpus)
	}
	var exact []string
	for _, name := range p.snap.plan.exactWords() {
		exact = append(exact, t.values[name])
	}
	all = append(append(all, exact...), wideWords(t.words, exact, t.dir)...)
	return append(all, string(cpus), t.dir)
}

// A value of few bits that a tool computes from its late words can be the same in both
// preparations by chance. There are fewest further preparations, and up to most where they
// do not take longer than enough in all.
const (
	fewest = 2
	most   = 8
	enough = 3 * time.Second
)

// confirm makes further preparations, each with other late words. The memory of each must
// equal the memory of a start from A with the same words. confirm refuses a register that
// does not hold a known word in one of them.
func (p *preparation) confirm(c *frozen.Comparison) error {
	p.avoid = map[int][]byte{}
	for _, o := range c.Offsets {
		if o.Word < len(p.call.Words) {
			p.avoid[o.Word] = append(p.avoid[o.Word], byte(-o.Constant))
		}
	}
	p.snap.plan.Offsets = c.Offsets
	started := time.Now()
	p.trials[1].end()
	for n := 0; n < most && (n < fewest || time.Since(started) <= cmp.Or(p.opt.Enough, enough)); {
		var numbers []int
		for range atOnce(p.cold.memory) {
			numbers = append(numbers, 2+n)
			n++
		}
		if err := p.load(numbers...); err != nil {
			return err
		}
		for _, t := range p.trials[len(p.trials)-len(numbers):] {
			if err := p.further(t); err != nil {
				return err
			}
			t.end()
		}
	}
	return nil
}

// further compares a further preparation with a start from A.
func (p *preparation) further(t *trial) error {
	late := p.late(t)
	if len(t.held.Threads) != len(p.images[0].Threads) {
		return unfit("the number of its threads differs from run to run")
	}
	l := &p.snap.plan
	im, err := p.image(t, nil)
	if err != nil {
		return err
	}
	if err := p.joinHeads(t); err != nil {
		return err
	}
	l.Offsets = frozen.ConfirmedOffsets(im, l.Offsets, late)
	own := p.late(p.trials[0])
	match := func(a text, b []byte) (text, []byte) {
		other := text{Bytes: slices.Clone(b), Spans: a.Spans}
		for _, s := range a.Spans {
			if s.At+s.Length > len(b) || string(b[s.At:s.At+s.Length]) != part(late, s) {
				return a, b
			}
		}
		b = other.With(own)
		held := frozen.Hold(a.Dates, a.Bytes, b, (t.loads.Realtime-p.clocks[0].Realtime)/int64(time.Second))
		if len(held) < len(a.Dates) {
			return a, nil // not a date
		}
		a.Dates = held
		return a, b
	}
	if err := p.files(t, im, match); err != nil {
		return err
	}
	c, err := p.against(t, im, frozen.Facts{Late: &frozen.Late{Places: l.Places, Offsets: l.Offsets, Words: late},
		Dates: p.images[0].Dates, Further: true})
	if err != nil {
		return err
	}
	if len(c.Dates) < len(p.images[0].Dates) {
		return unfit("it keeps a value that is a date in two preparations, and not in a further one")
	}
	p.images[0].Dates = c.Dates
	return nil
}

// compare compares the preparations, and makes the plan.
func (p *preparation) compare() error {
	a, b := p.trials[0], p.trials[1]
	l := &p.snap.plan
	l.Words, l.Dir, l.Variables, l.Early = a.words, a.dir, a.variable, a.early
	if p.exact {
		var values []string
		l.Exact, values = exactKinds(p.call)
		l.Relations = late.Relations(append(slices.Clone(a.words), values...))
	}
	l.Streams, l.CPUs = p.state.Files(), len(tracer.OwnCPUs())
	// A tool may keep results of stat(2) for its inputs on its stack.
	for k := range a.words {
		if _, looked := a.early[fileName{Word: k}.key()]; looked && a.stats[k] != nil {
			var bounds hotstart.Bounds // a pipe has no size
			if !slices.Contains(p.pipes, k) {
				var err error
				if bounds, err = hotstart.NewBounds(a.inputs[k], b.inputs[k]); err != nil {
					return err
				}
			}
			l.Stats, l.Bounds = append(l.Stats, k), append(l.Bounds, bounds)
			if !p.asks {
				l.Block = append(l.Block, blockSize(a.stats[k]))
			}
		}
	}
	var late []frozen.LateWord
	inB := p.late(b)
	for k, text := range p.late(a) {
		late = append(late, frozen.LateWord{A: []byte(text), B: []byte(inB[k]), Whole: k == len(inB)-1})
	}
	if len(a.dir) != len(b.dir) {
		return fmt.Errorf("the directories %s and %s are of different lengths", a.dir, b.dir)
	}
	for _, part := range a.parts {
		part.Other = slices.Clone(part.Content)
		l.Parts = append(l.Parts, part)
	}
	var err error
	if l.Made, err = a.made(); err != nil {
		return err
	}
	if l.Appended, err = a.appended(); err != nil {
		return err
	}
	for i := 1; i < 3; i++ {
		l.Written[i].Bytes = a.output(i)
	}
	if l.Heads = p.heads; p.heads {
		p.images[0].Head = a.head.Head
		if err := p.joinHeads(b); err != nil {
			return err
		}
	}
	l.Stopped = a.facts().Stopped
	words := frozen.NewWords(late)
	if p.heads {
		p.images[0].Head.Without(b.head.Head, words, a.overwritten())
	}
	dates := frozen.NewDates(a.loads, b.loads, p.call.Env)
	dates.Short = true
	match := func(a text, b []byte) (text, []byte) {
		b = slices.Clone(b)
		spans := words.Exchange(a.Bytes, b)
		return text{Bytes: a.Bytes, Spans: spans, Dates: dates.Exchange(a.Bytes, b)}, b
	}
	if err := p.files(b, p.images[1], match); err != nil {
		return err
	}
	c, err := p.against(b, p.images[1], frozen.Facts{Words: late, Confirmed: true})
	if err != nil {
		return err
	}
	c.Note(p.images[0], p.trials[0].facts().Stopped)
	l.Places, p.noise = c.Words, c.Noise
	if reason := l.fitsDir(p.call); reason != "" {
		return passing("%s", reason)
	}
	return p.confirm(c)
}

// against compares A with another preparation. Each difference has a reason.
func (p *preparation) against(t *trial, im *frozen.Image, facts frozen.Facts) (*frozen.Comparison, error) {
	a := p.trials[0]
	facts.A, facts.B = a.facts(), t.facts()
	if p.heads {
		facts.Heads, facts.Kept = [2]*frozen.Head{a.head.Head, t.head.Head}, a.head.Kept
	}
	facts.Free = a.overwritten()
	other := *im
	other.Argv, other.Env, other.Files = p.images[0].Argv, p.images[0].Env, slices.Clone(other.Files)
	for i := range p.snap.plan.Files {
		other.Files[i].Path, other.Files[i].Inside = p.images[0].Files[i].Path, p.images[0].Files[i].Inside
	}
	memory, err := frozen.OpenMemory(t.pid, im)
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	c, err := frozen.Compare(p.images[0], &other, p.pages, memory, facts)
	if err != nil {
		return nil, err
	}
	p.differs = !c.Same() && p.readsData()
	if len(c.Layout) > 0 {
		return nil, unfit("the layout of its memory differs from run to run (%s)", c.Layout[0])
	}
	for i, d := range c.Unexplained {
		if i < 20 {
			p.log("unexplained: %v", d)
		}
	}
	if len(c.Unexplained) > 0 {
		return nil, unfit("its memory differs from run to run, without a known reason, in %d places: %v", len(c.Unexplained)+c.More, c.Unexplained[0])
	}
	p.copies = false
	if p.heads {
		a.head.Keep(c.Kept)
	}
	return c, nil
}

// readsData reports whether the tool reads the last file of its data. It would come too early to the
// close of a file that it maps, such as a library.
func (p *preparation) readsData() bool {
	for _, l := range slices.Backward(p.trials[0].looks) {
		if hotstart.OpensData(l) {
			path, err := filepath.EvalSymlinks(l.Path)
			return err == nil && !slices.ContainsFunc(p.images[0].Maps, func(v frozen.VMA) bool { return v.Path == path })
		}
	}
	return false
}

// files compares the looks, opened files, new files and written bytes of A and of another
// preparation. match finds the late words in the bytes that A has written. It also returns
// the bytes of the other preparation with the words of A put in.
func (p *preparation) files(t *trial, im *frozen.Image, match func(a text, b []byte) (text, []byte)) error {
	a := p.trials[0]
	p.copies = len(a.variable) > 0 // until the memories were compared, too
	l := &p.snap.plan
	for key := range a.early {
		if _, ok := t.early[key]; !ok {
			return unfit("its looks at files depend on its late words (%s)", a.early[key].Name.in(p.call.Dir, p.call.words()))
		}
	}
	if len(a.early) != len(t.early) {
		return unfit("its looks at files depend on its late words")
	}
	if err := p.parts(t); err != nil {
		return err
	}
	if path := p.otherLook(a, t); path != "" {
		return unfit("its looks at files differ from run to run (%s)", path)
	}
	fa, fb := p.images[0].Files, im.Files
	if len(fa) != len(fb) {
		return unfit("the number of its open files depends on its late words")
	}
	l.Files, l.Pipes = map[int]fileName{}, nil
	for i := range fa {
		if fa[i].Kind != frozen.FilePath || fb[i].Kind != frozen.FilePath {
			continue
		}
		na, nb := a.openName(&fa[i]), t.openName(&fb[i])
		if na.Word == -2 && hotstart.Below(fa[i].Path, p.scratch) {
			return unfit("it has moved its standard streams to other descriptors")
		}
		if na.Word == -2 {
			continue
		}
		if na != nb {
			return unfit("the names of its open files depend on its late words (%s)", fa[i].Path)
		}
		l.Files[i] = na
		if slices.Contains(p.pipes, na.Word) {
			if slices.ContainsFunc(fa, func(f frozen.File) bool { return f.Kind == frozen.FileDup && f.Of == fa[i].FD }) {
				return unfit("it has another descriptor of its input, which is a pipe")
			}
			l.Pipes = append(l.Pipes, i)
		}
	}
	made, err := t.made()
	if err != nil {
		return err
	}
	if len(l.Made) != len(made) {
		return unfit("the files that it makes before its input depend on its late words")
	}
	for i, m := range made {
		var b []byte
		if l.Made[i].Content, b = match(l.Made[i].Content, m.Content.Bytes); l.Made[i].Name != m.Name || l.Made[i].Mode != m.Mode || !bytes.Equal(l.Made[i].Content.Bytes, b) {
			return unfit("the file %s, which it makes before its input, differs from run to run", m.Name.in(p.call.Dir, p.call.words()))
		}
	}
	more, err := t.appended()
	if err != nil {
		return err
	}
	if len(l.Appended) != len(more) {
		return unfit("the files that it writes while it loads its data depend on its late words")
	}
	for i, m := range more {
		var b []byte
		if l.Appended[i].Content, b = match(l.Appended[i].Content, m.Content.Bytes); l.Appended[i].FD != m.FD || !bytes.Equal(l.Appended[i].Content.Bytes, b) {
			return unfit("the bytes that it writes to descriptor %d while it loads its data differ from run to run", m.FD)
		}
	}
	for i := 1; i < 3; i++ {
		var b []byte
		if l.Written[i], b = match(l.Written[i], t.output(i)); !bytes.Equal(l.Written[i].Bytes, b) && (i == 1 && !p.state.Joined || !late.EqualButNumbers(l.Written[i].Bytes, b)) {
			return unfit("its output to descriptor %d before its input differs from run to run", i)
		}
	}
	return nil
}

// otherLook returns the path of a file, outside of the directories of trials, at which only
// one of two preparations has looked. It returns "" if there is none. The path may be in a
// late variable, and the fingerprint has only the files at which A has looked. A tool that
// resolves the path of its working directory (realpath(3)) asks the directories above it for
// the targets of symlinks, and none of them is one: plan.Resolves notes that. A shell asks
// what these directories are.
func (p *preparation) otherLook(a, b *trial) string {
	for _, two := range [][2]*trial{{a, b}, {b, a}} {
		other := p.paths(two[1])
		for path, ops := range p.paths(two[0]) {
			switch {
			case other[path] != nil:
			case two[0].resolves(path, ops):
				p.snap.plan.Resolves = true
			default:
				return path
			}
		}
	}
	return ""
}

// paths returns the looks of a preparation outside of the directories of trials.
func (p *preparation) paths(t *trial) map[string][]tracer.AccessOp {
	all := map[string][]tracer.AccessOp{}
	for _, l := range t.looks {
		l, ok := hotstart.OfOthers(l)
		if ok && l.Op != tracer.AccessFact && !hotstart.Below(l.Path, p.scratch) && !hotstart.Below(l.Path, p.other) {
			all[l.Path] = append(all[l.Path], l.Op)
		}
	}
	return all
}

// resolves reports whether looks at a path can belong to the resolution of the path of the
// working directory.
func (t *trial) resolves(path string, ops []tracer.AccessOp) bool {
	return hotstart.Below(t.dir, path) && !slices.ContainsFunc(ops, func(op tracer.AccessOp) bool {
		return op != tracer.AccessLink && op != tracer.AccessStat
	})
}

// parts compares the parts of the inputs that A and another preparation have read.
func (p *preparation) parts(t *trial) error {
	l := &p.snap.plan
	same := func(a, b inputPart) bool {
		return a.Word == b.Word && a.Offset == b.Offset && len(a.Content) == len(b.Content)
	}
	if !slices.EqualFunc(l.Parts, t.parts, same) {
		return unfit("the number of bytes that it reads of its input before it has loaded its data depends on the input")
	}
	for i, part := range t.parts {
		for j, c := range part.Content {
			if c != l.Parts[i].Content[j] {
				l.Parts[i].Other[j] = c
			}
		}
	}
	return nil
}

// fingerprint describes the machine, and the files that the tool has looked at.
func (p *preparation) fingerprint(paths []string) error {
	fp, err := hotstart.HostFingerprint()
	if err != nil {
		return err
	}
	whole := map[string]bool{}
	add := func(path string) error {
		if whole[path] {
			return nil
		}
		whole[path] = true
		s, err := hotstart.StampFile(path)
		fp.Files = append(fp.Files, s)
		return err
	}
	for _, path := range append([]string{p.call.Exe}, paths...) {
		if strings.HasPrefix(path, "/dev/") {
			continue
		}
		if err := add(path); err != nil {
			return err
		}
	}
	t := p.cold
	if len(p.trials) > 0 {
		t = p.trials[0]
	}
	if t == nil {
		p.snap.Fingerprint = fp
		return nil
	}
	seen := map[hotstart.Stamp]bool{}
	var relative []hotstart.Stamp
	var other map[string][]tracer.AccessOp
	if len(p.trials) > 1 {
		other = p.paths(p.trials[1])
	}
	for _, l := range t.looks {
		l, ok := hotstart.OfOthers(l)
		if t.resolves(l.Path, []tracer.AccessOp{l.Op}) && other[l.Path] == nil {
			continue // each call has other directories above its own
		}
		if !ok || whole[l.Path] && t.relative[l.Path] == "" || p.snap.Refused != "" && l.Op == tracer.AccessFact {
			continue
		}
		s, err := hotstart.StampAccess(l)
		if err != nil {
			return err
		}
		if seen[s] {
			continue
		}
		seen[s] = true
		if below := t.relative[l.Path]; below != "" {
			s.Path = below
			relative = append(relative, s)
		} else {
			fp.Files = append(fp.Files, s)
		}
	}
	p.snap.Fingerprint, p.snap.plan.Relative = fp, relative
	return nil
}

// unchanged returns a passing reason if a file has changed since A began to load.
func (p *preparation) unchanged() error {
	all := hotstart.Fingerprint{Files: slices.Clone(p.snap.Fingerprint.Files)}
	for _, s := range p.snap.plan.Relative {
		s.Path = filepath.Join(p.call.Dir, s.Path)
		all.Files = append(all.Files, s)
	}
	if err := all.Unchanged(p.loading); err != nil {
		return passing("%v", err)
	}
	return nil
}

// prove compares a hot start with the cold one, with the same probe.
func (p *preparation) prove() error {
	if slices.ContainsFunc(p.snap.plan.Offsets, func(o frozen.Offset) bool {
		return o.Word < len(p.cold.words) && slices.Contains(p.avoid[o.Word], p.cold.words[o.Word][0])
	}) {
		// A start with the words of the probe would be cold.
		p.cold.end()
		if err := p.runCold("a"); err != nil {
			return err
		}
	}
	t, err := p.again("h")
	if err != nil {
		return err
	}
	defer t.end()
	if err := t.run(p.ctx, func() (*tracer.Proc, error) { return t.beginHot(p.ctx, p.snap, p.noise) }); err != nil {
		return err
	}
	if t.exit != p.cold.exit {
		return unfit("its end differs from a cold start (%s, %s): %s", ending(t.exit), ending(p.cold.exit), hotstart.LastLine(string(t.stdout[2])))
	}
	difference, err := compareTrials(p.cold, t, inOrder)
	if err != nil || difference == "" {
		return err
	}
	return p.proveAgain(t, difference)
}

// coldStarts is the largest number of further cold starts with whose outputs those of a hot start
// are compared.
const coldStarts = 4

// proveAgain compares the outputs of a hot start, which differ from those of the first cold start,
// with those of others: perhaps the tool differs from itself. If it writes its lines in another
// order then, as threads do, their order is not compared.
func (p *preparation) proveAgain(hot *trial, difference string) error {
	hot.end()
	keep := func(t *trial, name string) error {
		t.results = filepath.Join(p.scratch, name)
		return beneath.Move(t.dir, t.results, beneath.Volatile)
	}
	if err := keep(hot, "hot-results"); err != nil {
		return err
	}
	all := []*trial{p.cold}
	own, unordered := "", false
	for i := range coldStarts {
		name := fmt.Sprintf("c%d", i)
		t, err := p.again(name)
		if err != nil {
			return err
		}
		defer t.end()
		if err := t.run(p.ctx, t.begin); err != nil {
			return err
		}
		if err := keep(t, name+"-results"); err != nil {
			return err
		}
		all = append(all, t)
		if d, err := compareTrials(t, hot, inOrder); err != nil || d == "" {
			return err
		}
		other, err := compareTrials(p.cold, t, inOrder)
		if err != nil {
			return err
		}
		unordered = unordered || other != ""
		if other, err = compareTrials(p.cold, t, inAnyOrder); err != nil {
			return err
		}
		own = cmp.Or(own, other)
		for _, t := range all {
			if !unordered {
				break
			}
			if d, err := compareTrials(t, hot, inAnyOrder); err != nil || d == "" {
				return err
			}
		}
	}
	if own != "" {
		return unfit("its output differs from one cold start to the next: %s", own)
	}
	return unfit("its output differs from a cold start: %s", difference)
}

// order is inOrder if the order of lines is compared.
type order bool

const (
	inOrder    order = true
	inAnyOrder order = false
)

// of returns a text, with its lines sorted where their order is not compared.
func (o order) of(text []byte) []byte {
	if o == inOrder {
		return text
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	slices.SortFunc(lines, bytes.Compare)
	return bytes.Join(lines, nil)
}

// again describes an execution with the words, inputs and directory of the cold one,
// whose results are moved away.
func (p *preparation) again(name string) (*trial, error) {
	c := p.cold
	t := &trial{call: c.call, state: c.state, words: c.words, values: c.values, exact: c.exact, heads: c.heads, inputs: c.inputs, pipes: c.pipes, stdin: c.stdin, dir: c.dir,
		scratch: filepath.Join(p.scratch, name)}
	if c.results == "" {
		c.results = filepath.Join(p.scratch, "results")
	} else if err := os.RemoveAll(c.dir); err != nil {
		return nil, err
	}
	if exists(c.dir) {
		if err := beneath.Move(c.dir, c.results, beneath.Volatile); err != nil {
			return nil, err
		}
	}
	t.results = t.dir
	return t, errors.Join(os.Mkdir(t.scratch, 0o700), os.Mkdir(t.dir, 0o700))
}

// compareTrials returns a description of the difference between the outputs of two
// executions, or "". Times of an execution that it has printed are not a difference.
func compareTrials(a, b *trial, by order) (string, error) {
	for i := 1; i < 3; i++ {
		ta, tb := a.stdout[i], b.stdout[i]
		equal := equalTexts(a, b, ta, tb, by)
		if !equal && (i == 2 || a.state.Joined) {
			equal = late.EqualButNumbers(by.of(ta), by.of(tb))
		}
		if !equal {
			return fmt.Sprintf("descriptor %d differs at byte %d", i, differsAt(ta, tb)), nil
		}
	}
	fa, err := regular(a.results, by)
	if err != nil {
		return "", err
	}
	fb, err := regular(b.results, by)
	if err != nil {
		return "", err
	}
	for name, one := range fa {
		other, ok := fb[name]
		if !ok {
			return name + " was written by one of two", nil
		}
		if one == other {
			continue
		}
		if same, err := sameButTimes(a, b, name, by); err != nil || !same {
			return name + " differs", err
		}
	}
	for name := range fb {
		if _, ok := fa[name]; !ok {
			return name + " was written by one of two", nil
		}
	}
	return "", nil
}

// Times are looked for in files of up to maxDated bytes, of executions of up to maxWindow.
const (
	maxDated  = 16 << 20
	maxWindow = 10 * time.Minute
)

// equalTexts reports whether two texts of two executions are equal, apart from the times of
// each.
func equalTexts(a, b *trial, ta, tb []byte, by order) bool {
	if bytes.Equal(by.of(ta), by.of(tb)) {
		return true
	}
	if max(len(ta), len(tb)) > maxDated || max(a.ended.Sub(a.started), b.ended.Sub(b.started)) > maxWindow {
		return false
	}
	return bytes.Equal(by.of(a.withoutDates(ta)), by.of(b.withoutDates(tb)))
}

// withoutDates returns a text of an execution without its times, which may be rounded down.
func (t *trial) withoutDates(text []byte) []byte {
	return frozen.BlankDates(text, t.started.Add(-time.Second), t.ended, t.call.Env)
}

// sameButTimes reports whether two executions have written the same file, apart from the
// times of each, and from the numbers where it has rates.
func sameButTimes(a, b *trial, name string, by order) (bool, error) {
	var texts [2][]byte
	for i, t := range []*trial{a, b} {
		path := filepath.Join(t.results, name)
		info, err := os.Lstat(path)
		if err != nil {
			return false, err
		}
		if !info.Mode().IsRegular() || info.Size() > maxDated {
			return false, nil
		}
		if texts[i], err = os.ReadFile(path); err != nil {
			return false, err
		}
	}
	rates, err := late.CompileRates(a.call.Rates)
	if err != nil {
		return false, err
	}
	return equalTexts(a, b, rates.Blank(texts[0]), rates.Blank(texts[1]), by), nil
}

func differsAt(a, b []byte) int {
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	return i
}

// regular digests the files in a directory; directories and links are noted.
func regular(dir string, by order) (map[string]string, error) {
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		all[rel] = info.Mode().String()
		switch {
		case !info.Mode().IsRegular():
		case by == inOrder:
			s, err := hotstart.StampFile(path)
			if err != nil {
				return err
			}
			all[rel] += " " + s.Digest
		default:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			all[rel] += fmt.Sprintf(" %x", blake3.Sum256(by.of(text)))
		}
		return nil
	})
	return all, err
}
