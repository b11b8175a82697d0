package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/hotstart"
	"premix/internal/kit/beneath"
	"premix/internal/record"
)

// sentinel chooses the tasks that are verified. It is for one goroutine.
//
// The first and the last task of a run are verified, and of the others as many as the
// share of the CPU time allows. A run of few tasks, as where a pipeline makes a run of
// each sample, has the share together with all runs from the same snapshot, and so has a
// worker that an engine has given few tasks.
type sentinel struct {
	share    hotstart.Share
	few      bool    // the run has few tasks
	started  bool    // a first task was chosen
	vain     int     // tasks that were chosen and could not be verified
	pending  int     // tasks that were chosen and are not over
	cpu      float64 // seconds that tasks took
	spent    float64 // seconds of CPU that verifying took
	verified int     // tasks
}

// maxVain is how often another task is verified instead of a task that could not be.
const maxVain = 3

// wants reports whether the next task is to be verified. last means that no other
// task waits.
func (v *sentinel) wants(last bool) bool {
	chosen := false
	switch {
	case v.share <= hotstart.ShareNone:
	case v.share >= hotstart.ShareAll:
		chosen = true
	case v.verified == 0 && !v.started, last && !v.few:
		chosen = true
	case v.verified > 0:
		count := v.pending + 1
		if !v.few {
			count++ // for the last
		}
		mean := v.spent / float64(v.verified)
		chosen = v.spent+float64(count)*mean <= float64(v.share)*v.cpu
	}
	if chosen {
		v.started = true
		v.pending++
	}
	return chosen
}

// settle counts the record of a task; chosen is the result of wants for it.
func (v *sentinel) settle(rec *record.Task, chosen bool) {
	v.cpu += rec.User + rec.System
	v.spent += rec.Verifying
	if rec.Verified {
		v.verified++
	}
	if !chosen {
		return
	}
	v.pending--
	if !rec.Verified && v.vain < maxVain {
		v.vain++
		v.started = false
	}
}

// newSentinel begins a choice, for a lane of a number of tasks that start from the snapshot
// of id.
func (h *hot) newSentinel(id string, tasks int) sentinel {
	if h.o.Share != nil {
		tasks = min(tasks, h.before[queue.Waiting]+h.before[queue.Cancelled])
	}
	share := h.tool.Verify
	if h.opts.Verify != nil {
		share = *h.opts.Verify
	}
	v := sentinel{share: share, few: tasks < fewRounds*h.slots}
	if v.few && id != "" {
		sum, _, err := hotstart.Uses(h.opts.Store, id)
		if err != nil {
			h.progress.note("uses of snapshot %s cannot be read: %v", id, err)
		}
		v.cpu, v.spent, v.verified = sum.CPU, sum.Spent, sum.Verified
	}
	return v
}

// note adds a line to the uses of the snapshot that tasks of a lane start from.
func (h *hot) note(l *lane, u hotstart.Use) {
	if err := l.Note(u); err != nil {
		h.progress.note("the uses of the snapshot cannot be written: %v", err)
	}
}

// fewRounds is the number of tasks a slot below which a run has few tasks.
const fewRounds = 4

// comparable is the properties by which two starts are compared, beside their directories.
type comparable struct {
	exit   hotstart.Exit
	stdout []byte // digest; nil where it is not a stream
}

// compared runs the sample of a try that started hot again, from cold, and compares the two.
// err is the result of the hot try. The cold one has the same path for a directory: a tool may
// print it. compared returns a *failure if they differ, and otherwise err.
func (t *try) compared(ctx context.Context, hot *pair, err error) error {
	if f := (*failure)(nil); err != nil && (hot.pipe != nil || !errors.As(err, &f) || f.cause != record.CauseExit && f.cause != record.CauseSignal) {
		return err // this may come from elsewhere than the start
	}
	reason, verr := t.difference(ctx, hot)
	switch {
	case verr != nil:
		if ctx.Err() == nil {
			t.progress.note("sample %s was not verified: %v", t.rec.Sample, verr)
		}
		return err
	case reason == "":
		t.rec.Verified = true
		return err
	}
	f := &failure{cause: record.CauseDiffers, text: "it differs from a cold start of the same sample: " + reason}
	// At once: no further try is to start from the snapshot. If premix is killed before the record
	// is durable and the other tasks are withdrawn, Withdraw finds the quarantine.
	if err := t.starter.Quarantine(t.rec.Snapshot, hotstart.Difference{Sample: t.rec.Sample, Reason: f.text}); err != nil {
		t.progress.note("snapshot %s could not be changed: %v", t.rec.Snapshot, err)
	}
	return f
}

// difference returns how a task that started hot differs from a cold start, or "". It returns
// an error if they could not be compared.
func (t *try) difference(ctx context.Context, hot *pair) (reason string, err error) {
	if hot.copied != nil {
		if err := <-hot.copied; err != nil {
			return "", fmt.Errorf("its standard output was not read to its end: %w", err)
		}
	}
	work, hotDir, coldDir := t.work, t.work+".hot", t.work+".cold"
	if err := beneath.Move(work, hotDir, beneath.Volatile); err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(work), os.RemoveAll(coldDir), beneath.Move(hotDir, work, beneath.Volatile))
	}()
	cold, err := t.runCold(ctx)
	if err != nil {
		return "", err
	}
	reason, err = t.compare(comparable{hot.exit, hot.digest}, cold, hotDir, work)
	if reason == "" || err != nil {
		return "", err
	}
	if err := beneath.Move(work, coldDir, beneath.Volatile); err != nil {
		return "", err
	}
	again, err := t.runCold(ctx)
	if err != nil {
		return reason, nil
	}
	if self, err := t.compare(cold, again, coldDir, work); err == nil && self != "" {
		reason += hotstart.DiffersFromItself(self)
	}
	return reason, nil
}

// runCold runs the tool of a try cold in its directory, which it makes.
func (t *try) runCold(ctx context.Context) (_ comparable, err error) {
	var c comparable
	if err := os.Mkdir(t.work, 0o777); err != nil {
		return c, err
	}
	group, err := t.groups.add(fmt.Sprintf("%d.%d", t.Number, t.Try), limits{memory: t.Memory, threads: t.Cores})
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, group.remove()) }()
	tool, err := t.starter.StartCold(ctx, t.hotTask())
	if err != nil {
		return c, err
	}
	p := &pair{grace: t.o.Grace, kill: t.killed, tool: tool}
	if tool.Stdout != nil {
		p.copyStdout(t.starter, io.Discard)
	}
	p.wait(ctx, t.timeout)
	t.rec.Verifying += p.exit.User.Seconds() + p.exit.System.Seconds()
	if p.copied != nil {
		err = <-p.copied
	}
	switch {
	case err != nil, p.exitErr != nil:
		return c, errors.Join(err, p.exitErr)
	case p.finished != "" || p.killed:
		return c, errors.New("premix ended the cold start")
	case group.oomKills() > 0:
		return c, errors.New("the cold start was killed at its memory limit")
	case t.diskFull():
		return c, fmt.Errorf("outputs may be cut short: %w", unix.ENOSPC)
	}
	return comparable{p.exit, p.digest}, nil
}

// compare returns how two starts over one sample differ, or "".
func (t *try) compare(a, b comparable, aDir, bDir string) (string, error) {
	switch {
	case a.exit.Code != b.exit.Code || a.exit.Signal != b.exit.Signal:
		return fmt.Sprintf("the tool ended with %s and with %s", a.exit, b.exit), nil
	case !a.exit.OK():
		return "", nil // the outputs of a failure are not used
	case !bytes.Equal(a.stdout, b.stdout):
		return "stdout differs", nil
	}
	return t.starter.Differs(aDir, bDir)
}

// copyStdout copies the tool's standard output to a writer, and digests it.
func (p *pair) copyStdout(starter *hotstart.Starter, to io.Writer) {
	p.copied = make(chan error, 1)
	from := p.tool.Stdout
	go func() {
		var err error
		p.digest, err = starter.CopyStdout(to, from)
		err = errors.Join(err, from.Close())
		if c, ok := to.(io.Closer); ok {
			err = errors.Join(err, c.Close())
		}
		p.copied <- err
	}()
}

// Quarantine describes a snapshot in quarantine: a task that started from it differed from a
// cold start.
type Quarantine struct {
	Snapshot string `json:"snapshot"`
	hotstart.Difference
	Again   int       `json:"again"`             // tasks of this run that are run again
	Earlier []Earlier `json:"earlier,omitempty"` // other runs with tasks that started from it
}

// Earlier are tasks of another run whose outputs may be wrong.
type Earlier struct {
	Dir     string   `json:"dir"`
	Samples []string `json:"samples"`
	Command string   `json:"command"` // runs them again
}

// Text describes it to people.
func (q *Quarantine) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "snapshot %s is in quarantine: sample %s: %s\n", q.Snapshot, q.Sample, q.Reason)
	fmt.Fprintf(&b, "  tasks of this run that started from it and are run again cold: %d\n", q.Again)
	const most = 10
	for _, e := range q.Earlier {
		names := strings.Join(e.Samples[:min(most, len(e.Samples))], ", ")
		if more := len(e.Samples) - most; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		fmt.Fprintf(&b, "  outputs in %s that may be wrong: %s\n  hint: %s runs these samples again\n", e.Dir, names, e.Command)
	}
	return b.String()
}

// Withdraw quarantines again the snapshots that a run has found to be wrong, since premix
// may have been killed before it did, and makes the tasks pending that started from a
// snapshot which is in quarantine.
func Withdraw(run *queue.Run, store string) ([]*Quarantine, error) {
	for id, d := range run.Differing() {
		if err := hotstart.Quarantine(store, id, d); err != nil {
			return nil, err
		}
	}
	var list []*Quarantine
	for _, id := range run.Snapshots() {
		d, ok := run.Differing()[id]
		if !ok {
			found := hotstart.QuarantinedAs(store, id)
			if found == nil {
				continue
			}
			d = *found
		}
		tasks, err := run.Withdraw(id)
		if err != nil {
			return list, err
		}
		list = append(list, NewQuarantine(run, store, id, d, len(tasks)))
	}
	return list, nil
}

// NewQuarantine describes the quarantine of a snapshot from which again tasks of a run are
// run again.
func NewQuarantine(run *queue.Run, store, id string, d hotstart.Difference, again int) *Quarantine {
	q := &Quarantine{Snapshot: id, Difference: d, Again: again}
	_, dirs, err := hotstart.Uses(store, id)
	if err != nil {
		return q
	}
	for _, dir := range dirs {
		if dir == run.Dir {
			continue
		}
		if e := earlier(dir, id, store); e != nil {
			q.Earlier = append(q.Earlier, *e)
		}
	}
	return q
}

// earlier returns the tasks of a run whose outputs come from a snapshot; nil if the run has
// none of them, or if its directory is gone.
func earlier(dir, snapshot, store string) *Earlier {
	plan, err := engine.ReadPlan(dir)
	if err != nil {
		return nil
	}
	from := make(map[int]bool)
	for rec, err := range queue.Records(dir) {
		if err != nil {
			return nil
		}
		from[rec.Task] = rec.OK() && rec.Snapshot == snapshot
	}
	e := &Earlier{Dir: dir, Command: fmt.Sprintf("premix run %s %s --out %s --resume", plan.Header.RecipeFile, plan.Header.SheetFile, dir)}
	if store != "" {
		e.Command += " --store " + store
	}
	for _, t := range plan.Tasks {
		if from[t.Task] {
			e.Samples = append(e.Samples, t.Sample)
		}
	}
	if len(e.Samples) == 0 {
		return nil
	}
	return e
}

// withdraw has all tasks wait again that are done and came from a snapshot.
func (h *hot) withdraw(id string, d hotstart.Difference) {
	tasks, err := h.run.Withdraw(id)
	switch {
	case err != nil && tasks == nil:
		h.fail(err) // they still count as done
	case err != nil:
		h.progress.note("outputs that may be wrong are left: %v", err)
	}
	for _, t := range tasks {
		if !h.starts.Drop(t.Task) {
			h.before[queue.Succeeded]--
		}
		h.queued[t.Task] = time.Now().UTC()
	}
	h.p.Refresh()
	if q := h.quarantined[id]; q != nil {
		q.Again += len(tasks)
		return
	}
	q := NewQuarantine(h.run, h.opts.Store, id, d, len(tasks))
	h.quarantined[id] = q
	h.progress.notice("%s", strings.TrimSuffix(q.Text(), "\n"))
}

// idle withdraws the tasks of this run where another run has found that their
// snapshot is wrong.
func (h *hot) idle() {
	for _, id := range h.run.Snapshots() {
		if d := hotstart.QuarantinedAs(h.opts.Store, id); d != nil {
			h.withdraw(id, *d)
		}
	}
}
