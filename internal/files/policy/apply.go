package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"premix/internal/files"
	"premix/internal/files/content"
	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
)

// ApplyOptions configure how a policy is applied.
type ApplyOptions struct {
	Options
	Journal string  // directory of the journal
	Files   float64 // limit of files a second; 0: none
	Bytes   int64   // limit of bytes a second; 0: none
	Workers int     // number of files copied at a time; 0: see DefaultWorkers
	Packer  Packer  // for rules with PACK, which fail if it is nil
	// Progress is called now and then with the report so far. It may be nil.
	Progress func(Report)
}

// DefaultWorkers is the default number of files copied at a time.
const DefaultWorkers = 4

// Report is the result of applying a policy.
type Report struct {
	Journal string           `json:"journal"`
	Resumed bool             `json:"resumed"` // an earlier call had begun it
	Actions int64            `json:"actions"` // of the plan
	Done    int64            `json:"done"`    // in all calls together, as are the fields below
	Skipped int64            `json:"skipped"`
	Failed  int64            `json:"failed"`
	Bytes   int64            `json:"bytes"` // of completed actions
	Why     map[string]int64 `json:"why,omitempty"`
	Seconds float64          `json:"seconds"` // of this call
}

// skip is the reason for not doing an action, without an error.
type skip string

func (s skip) Error() string { return string(s) }

// The reasons for skipping an action.
const (
	skipGone    skip = "it is gone"
	skipChanged skip = "it has changed since the scan"
	skipWritten skip = "it is being written"
	skipTaken   skip = "something else is at its destination"
	skipRoom    skip = "the pool has no room"
	skipEnough  skip = "the pool is below the lower mark by now"
)

// errPath is an error and not a reason to skip: a directory of the plan was replaced, and
// the rules do not say what to do with the file then.
var errPath = errors.New("a directory in its path is a link or a file now")

// Apply makes a plan, unless the journal has one of the same rules and scan, and does all
// actions that are not done yet. It may be killed at any moment and called again.
func (r *Rules) Apply(ctx context.Context, t *files.Table, o ApplyOptions) (rep *Report, err error) {
	started := time.Now()
	if o.Workers == 0 {
		o.Workers = DefaultWorkers
	}
	if err := journalPlace(o.Journal, r, t.Roots); err != nil {
		return nil, err
	}
	j, err := openJournal(o.Journal)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := j.close(); err == nil && cerr != nil {
			err = exit.Errorf(exit.Directory, "", "the journal %s cannot be written: %w", j.dir, cerr)
		}
	}()
	path := filepath.Join(j.dir, planFile)
	resumed := true
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		resumed = false
		p, err := r.Plan(ctx, t, o.Options)
		if err != nil {
			return nil, err
		}
		if r.lists() {
			err = p.writeList(filepath.Join(j.dir, listFile))
		}
		if err == nil {
			err = p.write(path)
		}
		if err != nil {
			return nil, exit.Errorf(exit.Directory, "free space on its disk, or name another one: --journal DIR", "the journal %s cannot be written: %w", j.dir, err)
		}
	}
	f, err := owner.OpenFile(path, os.O_RDONLY, 0) // it deletes files
	if err != nil {
		return nil, exit.Errorf(exit.Directory, "", "the journal %s cannot be read: %w", j.dir, err)
	}
	defer f.Close()
	h, next, err := readPlan(f)
	if err != nil {
		return nil, exit.Errorf(exit.Directory, "name another one: --journal DIR", "the journal %s has a damaged plan: %w", j.dir, err)
	}
	digest := ""
	if o.Candidates != nil {
		digest = o.Candidates.Digest
	}
	if !h.matches(r, t.Path, t.Started) || h.Candidates != digest {
		return nil, exit.Errorf(exit.Directory, "finish it with the same ones, or name another one: --journal DIR", "the journal %s belongs to other rules, another scan or other candidates", j.dir)
	}
	x := &runner{j: j, h: h, o: o, rules: r, tops: tops{fds: make(map[string]int), run: h.runName(), swept: make(map[string]bool)}, started: started,
		rep: Report{Journal: j.dir, Resumed: resumed, Actions: h.Actions, Why: make(map[string]int64)}}
	defer x.tops.close()
	for _, p := range r.Pools {
		x.tops.dirs = append(x.tops.dirs, p.Dir)
	}
	x.tops.dirs = append(x.tops.dirs, t.Roots...)
	if o.Files > 0 {
		x.files = rate.NewLimiter(rate.Limit(o.Files), 1)
	}
	if o.Bytes > 0 {
		x.bytes = rate.NewLimiter(rate.Limit(o.Bytes), max(content.Piece, int(min(o.Bytes, 1<<30))))
	}
	if err := x.run(ctx, next); err != nil {
		return nil, err
	}
	x.rep.Seconds = time.Since(started).Seconds()
	return &x.rep, nil
}

// runner does the actions of a plan.
type runner struct {
	j       *journal
	h       planHeader
	o       ApplyOptions
	rules   *Rules
	tops    tops
	files   *rate.Limiter
	bytes   *rate.Limiter
	started time.Time

	finished map[int64]bool
	pending  map[int64]*Event // copied, without a result
	running  map[int64]bool   // its program may have run in an earlier call
	rep      Report
}

// Actions are done in batches, so that many of them wait for the same sync.
const (
	batchActions = 64
	batchBytes   = 1 << 30
)

func (x *runner) run(ctx context.Context, next func() (*Action, error)) error {
	x.finished, x.pending = make(map[int64]bool), make(map[int64]*Event)
	x.running = make(map[int64]bool)
	over := false
	err := x.j.events(func(e *Event) {
		switch e.Result {
		case Copied:
			x.pending[e.ID] = e
		case Running:
			x.running[e.ID] = true
		case Done, Skipped, Failed:
			if !x.finished[e.ID] {
				x.finished[e.ID] = true
				delete(x.pending, e.ID)
				x.count(e.Result, e.Why, e.Size)
			}
		case Finished:
			over = true
		}
	})
	if err != nil {
		return exit.Errorf(exit.Directory, "", "the journal %s cannot be read: %w", x.j.dir, err)
	}
	if over {
		return nil
	}
	x.j.note(nil, Event{Result: Started, Rules: x.rules.File})
	if err := x.j.write(); err != nil {
		return err
	}
	for {
		var batch []*Action
		bytes, end := int64(0), false
		for len(batch) < batchActions && bytes < batchBytes {
			a, err := next()
			if err == io.EOF {
				end = true
				break
			}
			if err != nil {
				return exit.Errorf(exit.Directory, "name another one: --journal DIR", "the journal %s has a damaged plan: %w", x.j.dir, err)
			}
			if !x.finished[a.ID] {
				batch = append(batch, a)
				bytes += a.Size
			}
		}
		if err := x.batch(ctx, batch); err != nil {
			return err
		}
		if x.o.Progress != nil {
			x.o.Progress(x.rep)
		}
		if end {
			break
		}
	}
	x.j.note(nil, Event{Result: Finished})
	return x.j.write()
}

func (x *runner) count(result, why string, size int64) {
	switch result {
	case Done:
		x.rep.Done++
		x.rep.Bytes += size
	case Skipped:
		x.rep.Skipped++
	case Failed:
		x.rep.Failed++
	}
	if why != "" {
		x.rep.Why[why]++
	}
}

// settle records the result of an action.
func (x *runner) settle(a *Action, err error, e Event) {
	var s skip
	switch {
	case err == nil:
		e.Result = Done
	case errors.As(err, &s):
		e.Result, e.Why = Skipped, string(s)
	default:
		e.Result, e.Why = Failed, err.Error()
	}
	x.count(e.Result, e.Why, a.Size)
	x.j.note(a, e)
}

// ready is an action that is prepared: only names remain to be changed.
type ready struct {
	a      *Action
	src    *os.File // with a lease, if the file system supports leases
	leased bool
	in     int // directory of the source
	name   string
	to     int // directory of the destination, or -1
	as     string
	inode  unix.Stat_t // of the copy
	kept   bool        // of Premigrate: the copy exists
}

func (r *ready) close() {
	if r == nil {
		return
	}
	if r.src != nil {
		r.src.Close()
	}
	for _, fd := range []int{r.in, r.to} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (x *runner) batch(ctx context.Context, batch []*Action) error {
	// Actions that a killed premix had begun come first.
	rest, programs := batch[:0:0], batch[:0:0]
	for _, a := range batch {
		if a.Verb == Exec {
			programs = append(programs, a)
			continue
		}
		if a.Verb == Pack {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if err := x.pack(ctx, a); err != nil {
				return err
			}
			continue
		}
		if x.rep.Resumed && a.Verb != Delete {
			if err := x.sweep(a); err != nil {
				x.settle(a, err, Event{})
				continue
			}
		}
		if e := x.pending[a.ID]; e != nil {
			if again, err := x.recover(a, e); !again {
				x.settle(a, err, Event{})
				continue
			}
		}
		rest = append(rest, a)
	}
	list, errs := make([]*ready, len(rest)), make([]error, len(rest))
	defer func() {
		for _, r := range list {
			r.close()
		}
	}()
	full := x.enough()
	var all sync.WaitGroup
	slots := make(chan struct{}, x.o.Workers)
	for i, a := range rest {
		if full[a.Rule] && a.Verb == x.ruleOf(a).Verb {
			errs[i] = skipEnough
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			list[i], errs[i] = x.prepare(ctx, a)
		})
	}
	all.Wait()
	for i, r := range list {
		if errs[i] == nil {
			x.j.note(r.a, Event{Result: Copied, Device: int64(r.inode.Dev), Inode: int64(r.inode.Ino)})
		}
	}
	if err := x.j.write(); err != nil {
		x.discard(list)
		return err
	}
	for i, a := range rest {
		if errs[i] == nil {
			errs[i] = x.finish(list[i])
		}
		if ctx.Err() != nil && errors.Is(errs[i], context.Cause(ctx)) {
			continue // it was not begun
		}
		x.settle(a, errs[i], Event{})
	}
	if err := x.j.write(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return x.execute(ctx, programs)
}

// enough returns the rules that have reached their lower mark, for whatever reason.
func (x *runner) enough() map[string]bool {
	list := make(map[string]bool)
	for _, r := range x.rules.Rules {
		p := x.rules.Pool(r.From)
		if r.High == 0 || p.Capacity > 0 {
			continue
		}
		var st unix.Statfs_t
		if unix.Statfs(p.Dir, &st) == nil {
			used := int64(st.Blocks-st.Bfree) * st.Bsize
			pool := PoolPlan{Pool: Pool{Capacity: used + int64(st.Bavail)*st.Bsize}}
			list[r.Name] = used <= mark(&pool, r.Low)
		}
	}
	return list
}

// sweep removes the temporary copy of a killed premix, whatever happened to the source, and
// directories that were being made for it.
func (x *runner) sweep(a *Action) error {
	paths := []string{string(a.To)}
	for _, name := range a.Names {
		paths = append(paths, x.destination(a, string(name)))
	}
	for _, path := range paths {
		if err := x.tops.sweep(path); err != nil {
			return fmt.Errorf("a directory of an earlier call cannot be removed: %w", err)
		}
	}
	to, _, err := x.tops.parent(string(a.To))
	if err != nil {
		return nil // without the directory there cannot be a copy, and the action itself will fail
	}
	defer unix.Close(to)
	if err := unix.Unlinkat(to, a.own(x.h.runName(), ""), 0); err != nil && !isNone(err) {
		return fmt.Errorf("its copy of an earlier call cannot be removed: %w", err)
	}
	return nil
}

// discard removes copies that will not be used.
func (x *runner) discard(list []*ready) {
	for _, r := range list {
		if r != nil && r.to >= 0 {
			// A copy that cannot be removed is found by its name and removed when the plan
			// is resumed.
			_ = unix.Unlinkat(r.to, r.a.own(x.h.runName(), ""), 0)
		}
	}
}

// pace waits until the limits permit copying a number of bytes.
func (x *runner) pace(ctx context.Context, bytes int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if x.bytes == nil || bytes == 0 {
		return nil
	}
	return interrupted(ctx, x.bytes.WaitN(ctx, bytes))
}

// interrupted returns the cause of the context's end, if it has ended, in place of the
// limiter's error.
func interrupted(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// reason translates an error of the system into a reason to skip an action, where it is
// one.
func reason(err error) error {
	switch {
	case err == nil:
		return nil
	case isNone(err), errors.Is(err, unix.ESTALE):
		return skipGone
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return errPath
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return skipRoom
	}
	return err
}

// open opens the file of an action, if it is the file that the scan found.
func (x *runner) open(a *Action) (r *ready, err error) {
	r = &ready{a: a, in: -1, to: -1}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.in, r.name, err = x.tops.parent(string(a.Path)); err != nil {
		return nil, reason(err)
	}
	st, err := statAt(r.in, r.name)
	if err != nil {
		return nil, reason(err)
	}
	if !a.stamped(&st) {
		return nil, skipChanged
	}
	fd, err := beneath.OpenAt(r.in, r.name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) { // the file belongs to another user
		fd, err = beneath.OpenAt(r.in, r.name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, reason(err)
	}
	r.src = os.NewFile(uintptr(fd), string(a.Path))
	var written bool
	if r.leased, written = lease(fd); written {
		return nil, skipWritten
	}
	return r, r.unchanged(true)
}

// unchanged reports whether the open file is still as the scan found it. With untouched it
// also compares the time of status change, which premix's own changes set.
func (r *ready) unchanged(untouched bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(r.src.Fd()), &st); err != nil {
		return err
	}
	if !r.a.same(&st) || untouched && !r.a.stamped(&st) || r.leased && !leased(int(r.src.Fd())) {
		return skipChanged
	}
	return nil
}

// prepare opens the file and, for a move, makes a verified copy beside its destination.
func (x *runner) prepare(ctx context.Context, a *Action) (r *ready, err error) {
	if x.files != nil {
		if err := interrupted(ctx, x.files.Wait(ctx)); err != nil {
			return nil, err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if r, err = x.open(a); err != nil || a.Verb == Delete {
		return r, err
	}
	defer func() {
		if err != nil {
			r.close()
			r = nil
		}
	}()
	if a.Verb == Premigrate {
		r.as = filepath.Base(string(a.To))
		r.to, err = x.copies(a, true)
	} else {
		r.to, r.as, err = x.tops.makeParent(string(a.To), string(a.Path))
	}
	if err != nil {
		return r, reason(err)
	}
	switch _, err := statAt(r.to, r.as); {
	case err == nil && a.Verb == Premigrate:
		r.kept = true
		return r, nil
	case err == nil:
		return r, skipTaken
	case !isNone(err):
		return r, err
	}
	tmp := a.own(x.h.runName(), "")
	if err := unix.Unlinkat(r.to, tmp, 0); err != nil && !isNone(err) { // left by a killed premix
		return r, err
	}
	pace := func(n int) error {
		// A program that opens the file for writing waits until the lease ends: here, at
		// most for the copying of one piece.
		if r.leased && !leased(int(r.src.Fd())) {
			return skipWritten
		}
		return x.pace(ctx, n)
	}
	var dst *os.File
	if a.Verb != Premigrate {
		if dst, err = x.takeCopy(r, pace); err != nil {
			return r, err
		}
	}
	if dst == nil {
		if dst, err = x.copy(r, tmp, pace); err != nil {
			return r, err
		}
	}
	defer dst.Close()
	var st unix.Stat_t
	err = unix.Fstat(int(r.src.Fd()), &st)
	if err == nil && a.Verb != Premigrate {
		err = dress(int(dst.Fd()), int(r.src.Fd()), &st)
	}
	if err == nil {
		err = dst.Sync()
	}
	if err == nil {
		err = unix.Fstat(int(dst.Fd()), &r.inode)
	}
	if err == nil {
		err = r.unchanged(true)
	}
	if err != nil {
		if !errors.Is(err, context.Cause(ctx)) || ctx.Err() == nil {
			err = reason(err)
		}
		return r, errors.Join(err, unix.Unlinkat(r.to, tmp, 0))
	}
	return r, nil
}

// copy makes a copy of the file of an action under a temporary name.
func (x *runner) copy(r *ready, tmp string, pace func(int) error) (*os.File, error) {
	var room unix.Statfs_t
	if err := unix.Fstatfs(r.to, &room); err != nil {
		return nil, err
	}
	if int64(room.Bavail)*room.Bsize < r.a.Allocated {
		return nil, skipRoom
	}
	fd, err := unix.Openat(r.to, tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, reason(err)
	}
	dst := os.NewFile(uintptr(fd), string(r.a.To))
	if err := content.Copy(dst, r.src, r.a.Size, pace); err != nil {
		return nil, errors.Join(reason(err), dst.Close(), unix.Unlinkat(r.to, tmp, 0))
	}
	return dst, nil
}

// finish gives the copy its names and removes the source. After that the file exists once,
// unchanged, under all of its names.
func (x *runner) finish(r *ready) (err error) {
	run := x.h.runName()
	if r.a.Verb == Premigrate {
		if r.kept {
			return nil
		}
		return r.keep(run)
	}
	if r.to >= 0 {
		tmp := r.a.own(run, "")
		if err := r.unchanged(true); err != nil {
			return errors.Join(err, unix.Unlinkat(r.to, tmp, 0))
		}
		if err := unix.Renameat2(r.to, tmp, r.to, r.as, unix.RENAME_NOREPLACE); err != nil {
			if errors.Is(err, unix.EEXIST) {
				err = skipTaken
			}
			return errors.Join(err, unix.Unlinkat(r.to, tmp, 0))
		}
		// A program that may write to the destination can give the temporary name to
		// another file.
		if st, err := statAt(r.to, r.as); err != nil || st.Ino != r.inode.Ino || st.Dev != r.inode.Dev {
			return errors.Join(errors.New("another file has taken the place of its copy"), err)
		}
		if err := unix.Fsync(r.to); err != nil {
			return err
		}
		if err := x.link(r); err != nil {
			return errors.Join(err, x.takeBack(r))
		}
	}
	return x.replace(r)
}

// replace removes the source or, if that fails, the copy. It never removes both.
func (x *runner) replace(r *ready) error {
	removed, err := x.remove(r.a, r)
	switch {
	case err == nil || r.to < 0:
		return err
	case removed:
		return fmt.Errorf("it has moved, but an old name is left: %w", err)
	}
	return errors.Join(err, x.takeBack(r))
}

// link gives the copy the additional names of its source.
func (x *runner) link(r *ready) error {
	for _, name := range r.a.Names {
		to, as, err := x.tops.makeParent(x.destination(r.a, string(name)), string(name))
		if err != nil {
			return reason(err)
		}
		if st, serr := statAt(to, as); serr == nil && st.Ino == r.inode.Ino && st.Dev == r.inode.Dev {
			unix.Close(to)
			continue // made by a killed premix
		}
		err = unix.Linkat(r.to, r.as, to, as, 0)
		if errors.Is(err, unix.EEXIST) {
			err = skipTaken
		} else if err == nil {
			err = unix.Fsync(to)
		}
		unix.Close(to)
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *runner) destination(a *Action, name string) string {
	return x.rules.destination(x.ruleOf(a), name)
}

func (x *runner) ruleOf(a *Action) *Rule {
	i := slices.IndexFunc(x.rules.Rules, func(r Rule) bool { return r.Name == a.Rule })
	return &x.rules.Rules[i]
}

// takeBack removes the names of the copy; the source stays.
func (x *runner) takeBack(r *ready) error {
	var errs []error
	for _, name := range r.a.Names {
		to, as, err := x.tops.parent(x.destination(r.a, string(name)))
		if err != nil {
			continue // it was not made
		}
		if st, err := statAt(to, as); err == nil && st.Ino == r.inode.Ino && st.Dev == r.inode.Dev {
			errs = append(errs, unix.Unlinkat(to, as, 0))
		}
		unix.Close(to)
	}
	if st, err := statAt(r.to, r.as); err == nil && st.Ino == r.inode.Ino && st.Dev == r.inode.Dev {
		errs = append(errs, unix.Unlinkat(r.to, r.as, 0))
	}
	return errors.Join(errs...)
}

// remove removes all names of the source. It first renames each to a name of premix: if
// another file has replaced the source, that is noticed, and the file gets its name back.
// remove reports whether a name was removed.
func (x *runner) remove(a *Action, r *ready) (removed bool, err error) {
	aside := a.own(x.h.runName(), "-old")
	for i, path := range append([]Path{a.Path}, a.Names...) {
		in, name := r.in, r.name
		if i > 0 {
			if in, name, err = x.tops.parent(string(path)); reason(err) == skipGone {
				continue
			} else if err != nil {
				return removed, err
			}
		}
		err := removeName(in, name, aside, func(st *unix.Stat_t) error {
			if !a.same(st) {
				return skipChanged
			}
			return r.unchanged(false)
		})
		if err == nil {
			removed = true
			err = unix.Fsync(in)
		}
		if i > 0 {
			unix.Close(in)
			if errors.Is(err, skipGone) {
				err = nil
			}
		}
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// removeName removes a name if wanted accepts the file that it refers to.
func removeName(in int, name, aside string, wanted func(*unix.Stat_t) error) error {
	if err := unix.Renameat2(in, name, in, aside, unix.RENAME_NOREPLACE); err != nil {
		return reason(err)
	}
	st, err := statAt(in, aside)
	if err == nil {
		err = wanted(&st)
	}
	if err == nil {
		return unix.Unlinkat(in, aside, 0)
	}
	if back := unix.Renameat2(in, aside, in, name, unix.RENAME_NOREPLACE); back != nil {
		return fmt.Errorf("%w; another file was in its place: it is now %s, because its name is in use again: %w", err, aside, back)
	}
	return err
}

// recover completes or reverts an action that a killed premix had begun. If again is true,
// it was reverted, and is to be done like any other.
func (x *runner) recover(a *Action, e *Event) (again bool, err error) {
	run := x.h.runName()
	if a.Verb == Premigrate {
		return true, nil // the copy exists whole, or it does not
	}
	r := &ready{a: a, in: -1, to: -1}
	defer r.close()
	if r.in, r.name, err = x.tops.parent(string(a.Path)); err != nil {
		return false, reason(err)
	}
	r.inode.Ino, r.inode.Dev = uint64(e.Inode), uint64(e.Device)
	aside := a.own(run, "-old")
	old, oldErr := statAt(r.in, aside)
	now, nowErr := statAt(r.in, r.name)
	if a.Verb == Delete {
		switch {
		case oldErr == nil && a.same(&old):
			if err := x.forget(r, aside); err != nil {
				return false, err
			}
			return false, x.removeRest(r)
		case oldErr == nil:
			return false, x.putBack(r, aside)
		case isNone(nowErr): // it was deleted
			return false, x.removeRest(r)
		}
		return true, nil
	}
	if r.to, r.as, err = x.tops.parent(string(a.To)); err != nil {
		return true, nil
	}
	if err := unix.Unlinkat(r.to, a.own(run, ""), 0); err != nil && !isNone(err) {
		return false, err
	}
	copied, err := statAt(r.to, r.as)
	ours := err == nil && copied.Ino == r.inode.Ino && copied.Dev == r.inode.Dev
	intact := ours && copied.Size == a.Size && copied.Mtim.Nano() == a.Modified
	switch {
	case !ours && oldErr == nil: // the copy was removed, so restore the source
		return false, x.putBack(r, aside)
	case !ours:
		return true, nil
	case oldErr == nil && !a.same(&old): // another file took the source's place at the last moment
		return false, errors.Join(x.putBack(r, aside), skipChanged)
	case oldErr == nil: // the copy is verified, and the source was about to be removed
		if err := x.link(r); err != nil {
			return false, err
		}
		if err := x.forget(r, aside); err != nil {
			return false, err
		}
		return false, x.removeRest(r)
	case isNone(nowErr): // the source is removed, but perhaps not under all of its names
		if err := x.link(r); err != nil {
			return false, err
		}
		return false, x.removeRest(r)
	case nowErr != nil:
		return false, nowErr
	case !a.same(&now) && intact: // the source was written to since: it is the newer one
		return false, errors.Join(x.takeBack(r), skipChanged)
	case !a.same(&now):
		return false, errors.New("source and copy were both changed after premix was killed: both are kept")
	case !intact: // a program has changed the copy, which was complete
		return false, errors.New("the copy was changed after premix was killed, and the source is as it was: both are kept")
	}
	fd, err := beneath.OpenAt(r.in, r.name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, reason(err)
	}
	r.src = os.NewFile(uintptr(fd), string(a.Path))
	var written bool
	if r.leased, written = lease(fd); written {
		return false, errors.Join(x.takeBack(r), skipWritten)
	}
	if err := x.link(r); err != nil {
		return false, errors.Join(err, x.takeBack(r))
	}
	return false, x.replace(r)
}

// forget removes a source that has its temporary name.
func (x *runner) forget(r *ready, aside string) error {
	if err := unix.Unlinkat(r.in, aside, 0); err != nil {
		return err
	}
	return unix.Fsync(r.in)
}

// putBack renames a source from its temporary name back to its own.
func (x *runner) putBack(r *ready, aside string) error {
	if err := unix.Renameat2(r.in, aside, r.in, r.name, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("it is now %s in its directory, because its name is in use again: %w", aside, err)
	}
	return skipChanged
}

// removeRest removes additional names of a source whose first name was removed.
func (x *runner) removeRest(r *ready) error {
	aside := r.a.own(x.h.runName(), "-old")
	for _, path := range r.a.Names {
		in, name, err := x.tops.parent(string(path))
		if err != nil {
			continue // its directory was removed, too
		}
		if st, serr := statAt(in, aside); serr == nil && r.a.same(&st) {
			err = unix.Unlinkat(in, aside, 0)
		} else if st, serr := statAt(in, name); serr == nil && r.a.same(&st) {
			err = removeName(in, name, aside, func(st *unix.Stat_t) error {
				if !r.a.same(st) {
					return skipChanged
				}
				return nil
			})
		}
		unix.Close(in)
		if err != nil {
			return err
		}
	}
	return nil
}
