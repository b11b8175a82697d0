package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/local"
	"premix/internal/engine/queue"
	"premix/internal/engine/spawn"
	"premix/internal/kit/bounded"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
	"premix/internal/kit/unixpeer"
	"premix/internal/record"
)

const (
	// tick is the least time between two looks at jobs that start and end.
	tick = 50 * time.Millisecond
	// restless is how long the worker looks every tick after something has happened.
	restless = time.Second
	// rest is how often it looks at other times.
	rest = time.Second
)

// worker answers all clients of a shim directory and runs its jobs.
type worker struct {
	dir    string
	config *Config
	q      *queue.Queue
	machine
	behind *cluster // nil: jobs run on this machine
	wake   chan struct{}
	events chan struct{} // a request was answered
	active *local.Activity
	limits *local.Limits

	mu sync.Mutex // guards the rest
	jobTable
	requests map[string]int
	blocked  []*batch // with held jobs
	scripts  []*batch // that have a file of their own
	warned   map[uint64]bool
	asked    time.Time // when a client did last
	started  *os.File  // numbers of jobs that have begun and are not to run twice
	wakes    wakes
	warnAt   time.Time             // of the next warning before a time limit; zero: none
	due      time.Time             // when all blocked jobs are looked at, although nothing has changed
	moves    uint64                // of the queue, when states was read
	states   []queue.State         // of tasks
	ran      map[int]spawn.Running // when the worker last looked
	moved    *sync.Cond            // jobs have started or ended
	steps    *steps
	changes  *changes
	again    []*job // that run again when they have ended
	open     int    // requests that are being answered
	closing  bool
}

// job is a job as the worker has it in memory.
type job struct {
	*jobMeta  // elements of an array share it
	id        int
	At        int          // position in its array
	Index     int          // in its array
	places    *queue.Array // in the texts of note; nil: none
	step      string
	needs     *dependency // of note.Needs
	userHeld  bool
	noted     bool // that it has begun
	invalid   bool // its dependency can never be satisfied
	running   time.Time
	suspended bool
	last      *record.Task // once it has ended
}

// array returns the id of the job's array; its own id for a job outside an array.
func (j *job) array() int { return j.id - j.At }

// stdout returns the file that the job writes its standard output to.
func (j *job) stdout() string { return j.text(j.Stdout) }

// stderr returns the file that the job writes its standard error to.
func (j *job) stderr() string { return j.text(j.Stderr) }

// text returns one of the texts of note for this job.
func (j *job) text(s string) string {
	if j.places == nil {
		return s
	}
	return j.places.Expand(s, j.id, j.At)
}

// WorkerMain is the main function of a worker. args follow WorkerArg.
func WorkerMain(args []string, version string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "error: this is for the programs that premix slurm-shim makes")
		return 2
	}
	if err := work(args[0], version); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func work(dir, version string) error {
	if err := belongs(dir); err != nil {
		return err
	}
	lock, err := lockWorker(dir)
	if lock == nil {
		return err // nil: another one is there
	}
	defer lock.Close()
	w := &worker{dir: dir, wake: make(chan struct{}, 1), events: make(chan struct{}, 1), active: local.NewActivity(), limits: local.NewLimits(), requests: make(map[string]int), wakes: newWakes(), warned: make(map[uint64]bool), asked: time.Now()}
	w.moved = sync.NewCond(&w.mu)
	if w.config, err = readConfig(dir); err != nil {
		return err
	}
	if w.cores, w.memory, err = local.Machine(); err != nil {
		return err
	}
	if w.config.Jobs > 0 {
		w.cores = w.config.Jobs
	}
	if w.config.Memory > 0 {
		w.memory = w.config.Memory
	}
	if w.gres, err = parseGres(w.config.Resources); err != nil {
		return err
	}
	if w.behind, err = newCluster(w.config); err != nil {
		return err
	}
	if w.behind != nil {
		w.cores, w.memory, w.gres.remote = math.MaxInt32, math.MaxInt64, true // Slurm itself is asked
	}
	if w.q, err = queue.Open(dir, version, false); err != nil {
		return err
	}
	defer w.q.Close()
	if w.steps, err = readSteps(dir, &w.mu); err != nil {
		return err
	}
	defer w.steps.log.Close()
	if w.changes, err = readChanges(dir); err != nil {
		return err
	}
	defer w.changes.log.Close()
	w.limits.Set(limitsOf(w.changes.notes))
	if err := w.follow(); err != nil {
		return err
	}
	w.states, _ = w.q.Moved(nil)
	if err := w.requeueLost(); err != nil {
		return err
	}
	defer w.started.Close()
	l, err := listen(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	signal.Ignore(unix.SIGHUP)
	go func() {
		<-signals
		cancel(&local.Interrupted{Signal: unix.SIGTERM})
	}()
	stay, ran := make(chan struct{}), make(chan error, 1)
	go func() {
		if w.behind != nil {
			ran <- w.behind.dispatch(ctx, w.q, version, stay, w.wake)
			return
		}
		_, err := local.RunTasks(ctx, local.TaskOptions{Queue: w.q, Cores: w.cores, Memory: w.memory, Resources: w.gres.total, Grace: Grace, Stay: stay, Wake: w.wake, Activity: w.active, Limits: w.limits})
		ran <- err
	}()
	var answers sync.WaitGroup
	accepted := make(chan struct{})
	// A client that has asked may wait for its job to end.
	most := bounded.Descriptors()
	clients := bounded.New(unixpeer.Listener{Listener: l}, bounded.Options{Total: most, Strangers: max(1, most/4), Source: max(1, most/4), Patience: askTime})
	go func() {
		defer close(accepted)
		for {
			conn, err := clients.Accept()
			if err != nil {
				return
			}
			answers.Go(func() { w.serve(conn.(bounded.Conn)) })
		}
	}()
	w.watch(ran)
	w.mu.Lock()
	w.closing = true
	w.moved.Broadcast()
	w.mu.Unlock()
	_ = os.Remove(statePath(dir, "socket")) // a client that comes now starts another worker
	l.Close()
	<-accepted
	answers.Wait()
	close(stay)
	err = <-ran
	var failed *local.FailedError
	var interrupted *local.Interrupted
	if errors.As(err, &failed) || errors.As(err, &interrupted) {
		return nil // the jobs report it themselves
	}
	return err
}

// watch does the periodic work until the worker is idle, or the engine has ended. It does it after
// events, and rarely without them.
func (w *worker) watch(ran chan error) {
	var last, event time.Time
	var flight <-chan struct{}
	if w.behind != nil {
		flight = w.behind.flight.Moved()
	}
	for t := time.NewTimer(0); ; {
		select {
		case <-t.C:
		case <-w.active.Moved():
			event = time.Now()
		case <-flight:
		case <-w.events:
			event = time.Now()
		case err := <-ran: // it was interrupted, or cannot go on
			ran <- err
			return
		}
		if wait := tick - time.Since(last); wait > 0 {
			t.Reset(wait)
			continue
		}
		last = time.Now()
		if w.runOnce(); w.idle() {
			return
		}
		t.Reset(w.pause(event))
	}
}

// pause returns the time until the next periodic work, if nothing happens before. event is when
// something did.
func (w *worker) pause(event time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	// The spawner starts tasks a little after the engine has given them to it. A dispatcher reports
	// all that it sees.
	if w.behind == nil && (time.Since(event) < restless || w.active.Active() != len(w.ran) || len(w.again) > 0) {
		return tick
	}
	wait := min(rest, time.Until(w.due))
	if len(w.blocked) == 0 {
		wait = rest
	}
	if !w.warnAt.IsZero() {
		wait = min(wait, time.Until(w.warnAt))
	}
	return max(tick, wait)
}

// lockWorker makes this process the worker. held is nil if another one is and answers.
func lockWorker(dir string) (held *os.File, err error) {
	f, err := owner.OpenFile(statePath(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return nil, err
	}
	for range 100 {
		err := lock.Try(f, lock.Exclusive)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, lock.ErrHeld) {
			return nil, errors.Join(os.NewSyscallError("flock", err), f.Close())
		}
		if _, err := os.Lstat(statePath(dir, "socket")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond) // it is starting, or ending
	}
	return nil, f.Close()
}

// listen makes the socket, and replaces the socket of a worker that was killed.
func listen(dir string) (*net.UnixListener, error) {
	folder, err := os.Open(statePath(dir, ""))
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	if err := os.Remove(statePath(dir, "socket")); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketIn(folder), Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	// Who may connect has jobs run as this user.
	if err := os.Chmod(statePath(dir, "socket"), 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

const (
	// askTime is how long a client may take to ask, and to read its answer.
	askTime = time.Minute
	// askMost is the length of the longest request, bytes: a script, arguments and an
	// environment.
	askMost = 256 << 20
)

// requeueLost records the failure of jobs that were running when the last worker was killed, and
// that are not to run twice. It reads them from the file of begun jobs: the
// board does not have them, since the spawner has outlived the worker and cleared it.
func (w *worker) requeueLost() error {
	path := statePath(w.dir, "begun")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if w.behind != nil {
		text = nil // jobs outlive the worker
	}
	var records []*record.Task
	for _, line := range strings.Fields(string(text)) {
		id, err := strconv.Atoi(line)
		if err != nil || id < 1 || id > w.known || w.q.State(id) != queue.Waiting {
			continue
		}
		j := w.job(id)
		if rec, err := w.q.Record(id); err != nil || rec != nil {
			continue // it was to run again, and the file is older
		}
		now := time.Now()
		records = append(records, &record.Task{Task: id, Try: 1, Start: "cold", Group: j.step, Sample: j.Name,
			Queued: j.Submitted, Started: now, Finished: now, Exit: -1, Cores: j.Cores, Memory: j.Memory,
			Cause: record.CauseLost, Error: "the worker was killed while it ran, and it is not to run twice (--no-requeue)", Hint: "submit it again"})
	}
	if len(records) > 0 {
		if err := w.q.Settle(records); err != nil {
			return err
		}
	}
	w.started, err = owner.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o664)
	return err
}

// idle reports whether the worker has nothing to do and has had no request for a while.
func (w *worker) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open > 0 || time.Since(w.asked) < w.config.Idle {
		return false
	}
	if c := w.q.Census(1, w.known); c.Counts[queue.Waiting] > c.Held {
		return false
	}
	for _, b := range w.blocked {
		apart := func(id int) bool { return b.apart[id] && b.array != nil }
		if !b.proto.userHeld && !b.proto.invalid && len(w.q.HeldFrom(b.first, b.last(), 1, apart)) > 0 {
			return false // its time may come
		}
		for id := range b.apart {
			if j := b.own[id]; w.q.Held(id) && !j.userHeld && !j.invalid {
				return false
			}
		}
	}
	return true
}

// mine reports whether the peer of a connection is this user, or root.
func mine(conn net.Conn) bool {
	user, err := unixpeer.UID(conn)
	return err == nil && (user == 0 || int(user) == os.Geteuid())
}

// serve answers one request.
func (w *worker) serve(conn bounded.Conn) {
	defer conn.Close()
	if !mine(conn) {
		return
	}
	w.mu.Lock()
	w.open++
	w.mu.Unlock()
	r := &request{}
	if receive(io.LimitReader(conn, askMost), r) == nil && conn.Trust() {
		// A client that is gone does not need the answer.
		a := w.answer(r)
		_ = conn.SetWriteDeadline(time.Now().Add(askTime))
		_ = send(conn, a)
	}
	w.mu.Lock()
	w.open--
	w.asked = time.Now()
	w.mu.Unlock()
	select {
	case w.events <- struct{}{}:
	default:
	}
}

func (w *worker) answer(r *request) response {
	if r.Format > wireFormat {
		return fail(r.Program, 1, errors.New("the worker is of an older premix: it ends when it is idle, or with the signal TERM"))
	}
	args := toStrings(r.Args)
	var out string
	var err error
	exit := 1
	if r.Program != "sbatch" {
		w.mu.Lock()
		err = w.follow()
		w.mu.Unlock()
	}
	if err == nil {
		switch r.Program {
		case "sbatch":
			return w.sbatch(r)
		case "squeue":
			out, err = w.squeue(args)
		case "sacct":
			out, err = w.sacct(args)
		case "scancel":
			return w.scancel(args)
		case "scontrol":
			out, err = w.scontrol(args)
		case "sinfo":
			out, err = w.sinfo(args)
		case "sstat":
			out, err = w.sstat(args)
		case "sprio":
			out, err = w.sprio(args)
		case "sshare":
			out, err = w.sshare(args)
		case "sacctmgr":
			out, err = w.sacctmgr(args)
		case stepBegin:
			out, err = w.beginStep(r.Step)
		case stepEnd:
			if r.Step != nil {
				w.mu.Lock()
				w.steps.end(r.Step)
				w.mu.Unlock()
			}
		case awaitEnd:
			out, err = w.await(args)
		default:
			err = fmt.Errorf("premix has no %s", r.Program)
		}
	}
	if err != nil {
		a := fail(r.Program, exit, err)
		a.Stdout = []byte(out)
		return a
	}
	return response{Format: wireFormat, Stdout: []byte(out)}
}

// sbatch submits a job or an array.
func (w *worker) sbatch(r *request) response {
	s, _, err := parseSbatch(toStrings(r.Args))
	if err != nil {
		return fail("sbatch", 1, err)
	}
	environ := r.environ()
	script := r.Script
	if _, ok := s.set["wrap"]; !ok {
		variables := environ
		if r.Interactive {
			variables = nil
		}
		err = s.directives(variables, script)
	} else if err = s.directives(environ, nil); err == nil {
		script = []byte("#!/bin/sh\n" + s.set["wrap"] + "\n")
	}
	if err == nil && w.behind != nil {
		err = s.forCluster()
	}
	if err == nil {
		err = s.interpret(environ, string(r.Dir), w.machine, time.Now())
	}
	if err == nil && w.behind != nil {
		if s.set["partition"] == "" {
			s.Partition = clusterPartition
		}
		err = w.behind.admit(context.Background(), s)
	}
	var first int
	if err == nil {
		first, err = w.submit(r, s, script, environ)
	}
	if err != nil {
		return fail("sbatch", 1, err)
	}
	if s.testOnly {
		return response{Format: wireFormat, Stderr: fmt.Appendf(nil, "sbatch: Job %d to start at %s using %d processors on nodes %s in partition %s\n", first, clock(time.Now()), s.Cores, nodeName(), s.Partition)}
	}
	a := response{Format: wireFormat}
	switch {
	case s.parsable:
		a.Stdout = []byte(strconv.Itoa(first))
		if c := s.set["clusters"]; c != "" {
			a.Stdout = append(a.Stdout, ";"+clusterName...)
		}
		a.Stdout = append(a.Stdout, '\n')
	case !s.quiet:
		a.Stdout = fmt.Appendf(nil, "Submitted batch job %d\n", first)
	}
	if s.wait {
		a.Exit = w.wait(first, max(1, len(s.indices)))
	}
	return a
}

// submit makes tasks of a submission, and returns the id of the job.
func (w *worker) submit(r *request, s *submission, script []byte, environ map[string]string) (first int, err error) {
	argv, inArgument, err := interpreter(script)
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if first, ok := w.requests[r.ID]; ok {
		return first, nil // the answer got lost
	}
	if err := w.follow(); err != nil {
		return 0, err
	}
	var needs *dependency
	if s.Needs != "" {
		if needs, err = parseDependency(s.Needs); err == nil {
			err = w.exist(needs)
		}
		if err != nil {
			return 0, err
		}
	}
	if s.testOnly {
		return w.known + 1, nil
	}
	b, err := w.q.Submit(queue.BatchOptions{Options: queue.Options{Group: s.step(), Dir: s.Dir, Cores: s.Cores, Memory: s.Memory, Resources: s.resourceText,
		Timeout: time.Duration(s.Limit * float64(time.Second)), Priority: s.Priority}, Held: s.held})
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			b.Abort()
		}
	}()
	first = b.First()
	s.Request, s.Submitted, s.Allocated, s.Line = r.ID, time.Now(), r.Interactive, strings.Join(toStrings(r.Args), " ")
	own := ""
	switch {
	case inArgument:
		argv = append(argv, "-c", string(script))
	default:
		own = statePath(w.dir, "script-"+strconv.Itoa(first))
		if err := os.WriteFile(own, script, 0o700); err != nil {
			return 0, err
		}
		argv = append(argv, own)
	}
	if inArgument {
		argv = append(argv, "slurm_script")
	}
	argv = append(argv, s.args...)
	env := s.environment(environ)
	s.Script = own // it is removed when all have ended
	spec := &queue.Spec{Argv: argv, Env: env, Name: s.Name, Ask: s.ask}
	if s.Array > 0 {
		texts := slices.Concat(argv, slices.Collect(maps.Values(env)), []string{s.output, s.stderr, s.Name, s.Dir, s.Account, s.Partition, s.QOS, w.dir, string(r.Dir), userName(), nodeName()})
		spec.Array = queue.NewArray(s.indices, texts...)
	}
	s.Stdout = s.expand(s.output, first, spec.Array, userName())
	if s.Stderr = s.Stdout; s.stderr != "" {
		s.Stderr = s.expand(s.stderr, first, spec.Array, userName())
	}
	spec.Stdout, spec.Stderr = s.Stdout, s.Stderr
	s.tell(env, first, spec.Array, w.dir, string(r.Dir), userName(), os.Getuid())
	if w.behind != nil {
		for _, name := range ofNode {
			delete(env, name) // the job of Slurm has them
		}
	}
	if s.appended {
		spec.Argv = append([]string{"/bin/sh", "-c", `exec >>"$1" 2>>"$2"; shift 2; exec "$@"`, "sh", s.Stdout, s.Stderr}, argv...)
		spec.Stdout, spec.Stderr = "/dev/null", "/dev/null"
	}
	text, err := json.Marshal(&s.jobMeta)
	if err != nil {
		return 0, err
	}
	spec.Note = string(text)
	if err := b.Add(spec, nil); err != nil {
		return 0, err
	}
	if _, err := b.Commit(); err != nil {
		return 0, err
	}
	if err := w.follow(); err != nil {
		return 0, err
	}
	w.stir()
	return first, nil
}

// stir wakes the engine, so that it applies new orders.
func (w *worker) stir() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wait waits until jobs have ended and returns the highest exit code.
func (w *worker) wait(first, elements int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.ended(first, first+elements-1, w.running()) {
		if w.closing {
			return 1
		}
		w.moved.Wait()
	}
	code := 0
	running := w.running()
	for j := range w.span(first, first+elements-1) {
		switch st := w.status(j, running); {
		case st.exit > 0:
			code = max(code, st.exit)
		case st.state != completed:
			code = max(code, 1)
		}
	}
	return code
}

// await waits until a job has ended, and answers its state.
func (w *worker) await(args []string) (string, error) {
	w.mu.Lock()
	jobs, err := w.named(args)
	w.mu.Unlock()
	if err != nil {
		return "", err
	}
	w.wait(jobs[0].id, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	st := w.status(jobs[0], w.running())
	return st.name, nil
}

// over reports whether a job has ended. The caller holds mu.
func (w *worker) over(id int) bool {
	return id < 1 || id > w.known || w.q.State(id) != queue.Waiting
}

// beginStep starts a step of a job of this directory, and answers its id.
func (w *worker) beginStep(s *step) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s == nil || s.Job < 1 || s.Job > w.known {
		return "", &optionError{"Unable to create step: Invalid job id specified", "keep the variables of the job"}
	}
	err := w.steps.begin(s, w.job(s.Job).Cores, func() bool { return w.closing || w.over(s.Job) })
	if s.GPUs > 0 {
		return s.ID + " " + strings.Join(s.held, ","), err
	}
	return s.ID, err
}

// runOnce does the periodic work: it releases blocked jobs, sends warnings before a time
// limit, and removes the scripts of ended jobs.
func (w *worker) runOnce() {
	w.mu.Lock()
	defer w.mu.Unlock()
	running := w.running()
	jobs := w.happened(running)
	if len(jobs) > 0 {
		w.wakes.happened(jobs)
		w.moved.Broadcast()
	}
	if len(w.wakes.due) > 0 || !time.Now().Before(w.due) {
		w.release(running, false)
	}
	if len(jobs) > 0 {
		w.removeScripts(running)
	}
	runs := func(id int) bool { _, ok := running[id]; return ok }
	w.steps.check(func(id int) bool { return !runs(id) && w.over(id) })
	w.runAgain(runs)
	if w.behind != nil {
		return // the nodes record begun jobs and send signals
	}
	w.warnAt = time.Time{}
	for id, r := range running {
		j := w.job(id)
		if j.NoRequeue && !j.noted {
			_, err := fmt.Fprintln(w.started, id)
			j.noted = err == nil
		}
		if j.Warn == 0 || j.Limit == 0 || w.warned[r.ID] || r.PID <= 0 {
			continue
		}
		at := r.Started.Add(time.Duration((j.Limit - j.WarnAt) * float64(time.Second)))
		if time.Now().Before(at) {
			if w.warnAt.IsZero() || at.Before(w.warnAt) {
				w.warnAt = at
			}
		} else {
			w.warned[r.ID] = true
			if j.WarnSteps {
				w.steps.signal(id, syscall.Signal(j.Warn))
			} else {
				_ = unix.Kill(r.PID, syscall.Signal(j.Warn)) // it may have ended
			}
		}
	}
}

// removeScripts removes the scripts of jobs that have all ended. The caller holds mu.
func (w *worker) removeScripts(running map[int]spawn.Running) {
	w.scripts = slices.DeleteFunc(w.scripts, func(b *batch) bool {
		if !w.ended(b.proto.array(), b.last(), running) {
			return false
		}
		_ = os.Remove(b.proto.Script) // or it stays: it is small
		return true
	})
}

// running returns the running tasks, by job. The caller holds mu.
func (w *worker) running() map[int]spawn.Running {
	if w.behind != nil {
		return w.behind.running(w.q, w.known)
	}
	m := make(map[int]spawn.Running)
	for _, r := range w.q.Running() {
		if id, _ := spawn.SplitTryID(r.ID); id >= 1 && id <= w.known {
			m[id] = r
			if j := w.job(id); j.running != r.Started {
				j.running = r.Started
				w.keep(j)
			}
		}
	}
	return m
}
