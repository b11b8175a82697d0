package spawn

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket is the descriptor on which a spawner talks with its client.
const socket = 3

// Results are sent after batchWait, or when there are batchMost.
const (
	batchWait = 50 * time.Millisecond
	batchMost = 256
)

// shortWait is how long await hides a task from the scheduler of Go, if the task before it in
// the slot was a short one.
const shortWait = 10 * time.Millisecond

// server is the spawner's side.
type server struct {
	setup  Setup
	env    *environ
	status *statusFile
	limit  syscall.Rlimit
	wakes  bool // result of wakeable
	conn   *os.File

	mu      sync.Mutex
	work    sync.Cond // the queue has something, or closed is set
	queue   []Task
	results []byte // encoded, without the head of a frame
	count   int    // of results
	armed   bool   // the batch is going to be sent
	busy    int    // slots that run a task
	closed  bool
	last    syscall.Signal // last signal sent to all; tasks that were about to start get it too

	send  sync.Mutex // held while a batch is written
	arm   chan struct{}
	slots []*slot
}

// slot runs one task at a time in a thread of its own.
type slot struct {
	*server
	n        int
	words    []uint64
	out, err int // logs
	outSize  int64
	errSize  int64
	pinned   bool
	short    bool  // the last task was a short one
	peak     int64 // of the spawner's own resident set, as far as it is known
	home     unix.CPUSet
	hash     *hash
	noted    []byte // room for a result
	cell     *cell  // nil: none

	// mu guards the fields that other goroutines set while a task runs. Lock order: server.mu
	// before mu.
	mu       sync.Mutex
	id       uint64 // of the task that was taken last
	timeout  time.Duration
	grace    time.Duration
	since    time.Time   // when the process started
	timer    *time.Timer // nil: none
	pid      int         // 0: none runs
	timedOut bool
	signaled bool
	lost     bool
}

// Main is the main function of the spawner. It returns the exit status.
func Main() int {
	// It allocates little and lives long; a collection would only stop its threads.
	debug.SetGCPercent(400)
	unix.CloseOnExec(socket)
	// The scheduler of Go watches a thread that waits in read(2) all the time.
	if err := unix.SetNonblock(socket, true); err != nil {
		return 1
	}
	s := &server{conn: os.NewFile(socket, "socket"), arm: make(chan struct{}, 1)}
	in := bufio.NewReaderSize(s.conn, 256<<10)
	s.work.L = &s.mu
	if err := s.begin(in); err != nil {
		b := endFrame(append(beginFrame(nil, frameError), err.Error()...), 0)
		_, _ = s.conn.Write(b) // if the client is gone, the reason is not needed
		return 1
	}
	go s.flusher()
	shrink()
	err := s.serve(in)
	s.killAll(unix.SIGKILL)
	if err != nil {
		return 1
	}
	return 0
}

// begin reads the setup and starts the slots.
func (s *server) begin(in *bufio.Reader) error {
	frame, err := readFrame(in, nil)
	if err != nil {
		return err
	}
	if frame[0] != frameSetup {
		return errFrame
	}
	if err := json.Unmarshal(frame[1:], &s.setup); err != nil {
		return err
	}
	if _, err := unix.Setsid(); err != nil {
		return os.NewSyscallError("setsid", err)
	}
	if err := defaultChild(); err != nil {
		return err
	}
	if s.limit, err = fileLimit(); err != nil {
		return err
	}
	s.wakes = wakeable()
	s.env = newEnviron(os.Environ(), ownNames...)
	if s.status, err = createStatusFile(s.setup.StatusFile, s.setup.Slots, s.setup.First); err != nil {
		return err
	}
	// A thread that waits for its child holds a processor only for a short time. With more than
	// one further processor the scheduler would wake threads that find nothing to do.
	runtime.GOMAXPROCS(s.setup.Slots + 1)
	began := make(chan error, s.setup.Slots)
	for i := range s.setup.Slots {
		t := &slot{server: s, n: i, words: s.status.slot(i), hash: newHash(s.env)}
		s.slots = append(s.slots, t)
		var c TaskCgroup
		if i < len(s.setup.Cells) {
			c = s.setup.Cells[i]
		}
		go t.main(s.setup.Logs[2*i], s.setup.Logs[2*i+1], c, began)
	}
	for range s.setup.Slots {
		if err := <-began; err != nil {
			return err
		}
	}
	return nil
}

// ownNames are variables that each task has with values of its own.
var ownNames = []string{"PREMIX_TASK", "PREMIX_TRY", "PWD"}

// defaultChild has the kernel not deliver SIGCHLD: its default disposition is to be
// ignored without a signal, and without reaping.
func defaultChild() error {
	var act [4]uint64 // struct sigaction of the kernel: handler, flags, restorer, mask
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("sigaction", errno)
	}
	return nil
}

// fileLimit returns the limit of open files that premix was started with. Go raises it
// for itself and gives children the old limit, but does not export it: so fileLimit asks a
// child.
func fileLimit() (syscall.Rlimit, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return limit, os.NewSyscallError("getrlimit", err)
	}
	out, err := exec.Command(shellPath, "-c", "ulimit -Sn").Output()
	if err != nil {
		return limit, fmt.Errorf("%s: %w", shellPath, err)
	}
	if n, err := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64); err == nil {
		limit.Cur = n
	}
	return limit, nil
}

// serve reads the client's frames until the client is gone.
func (s *server) serve(in *bufio.Reader) error {
	var frame []byte
	var err error
	for {
		if frame, err = readFrame(in, frame); err != nil {
			return nil // the client is gone
		}
		r := &reader{b: frame[1:]}
		switch frame[0] {
		case frameTask:
			s.mu.Lock()
			for len(r.b) > 0 && err == nil {
				var t Task
				if err = t.get(r); err == nil {
					s.queue = append(s.queue, t)
				}
			}
			s.mu.Unlock()
			s.work.Broadcast()
		case frameSignal:
			id, sig := r.uint(), syscall.Signal(r.uint())
			if r.bad {
				return errFrame
			}
			if id == 0 {
				s.mu.Lock()
				s.last = sig
				s.mu.Unlock()
			}
			for _, t := range s.slots {
				t.signal(id, sig)
			}
		case frameDrop:
			id := r.uint()
			if r.bad {
				return errFrame
			}
			s.drop(id)
		case frameTimeout:
			id, timeout := r.uint(), time.Duration(r.uint())
			if r.bad {
				return errFrame
			}
			s.setTimeout(id, timeout)
		default:
			return errFrame
		}
		if err != nil {
			return err
		}
	}
}

// setTimeout gives a task another timeout. A task that was taken from the queue is in its slot.
func (s *server) setTimeout(id uint64, timeout time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.queue {
		if s.queue[i].ID == id {
			s.queue[i].Timeout = timeout
			return
		}
	}
	for _, t := range s.slots {
		t.mu.Lock()
		if t.id == id {
			t.timeout = timeout
			t.setTimer()
		}
		t.mu.Unlock()
	}
}

// drop gives back a task that has not begun, or all of them if id is 0.
func (s *server) drop(id uint64) {
	s.mu.Lock()
	kept := s.queue[:0]
	now := time.Now()
	for _, t := range s.queue {
		if id != 0 && t.ID != id {
			kept = append(kept, t)
			continue
		}
		r := Result{ID: t.ID, Dropped: true, Started: now, Finished: now}
		s.results = r.put(s.results)
		s.count++
	}
	s.queue = kept
	s.mu.Unlock()
	s.flush()
}

func (s *server) killAll(sig syscall.Signal) {
	s.mu.Lock()
	s.closed, s.queue = true, nil
	s.mu.Unlock()
	// A slot that is about to start a task is waited for.
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		busy := false
		for _, t := range s.slots {
			t.lose(sig)
			busy = busy || atomic.LoadUint64(&t.words[0]) != 0
		}
		if !busy {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// signal sends a signal to the task with an id, or to whatever runs if it is 0.
func (t *slot) signal(id uint64, sig syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pid == 0 || id != 0 && t.id != id {
		return
	}
	t.signaled = true
	t.kill(sig)
}

// kill sends a signal to the group of the running task, and SIGCONT after SIGTERM: a process
// that is stopped handles no SIGTERM. The caller holds mu.
func (t *slot) kill(sig syscall.Signal) {
	_ = unix.Kill(-t.pid, sig) // it may just have ended
	if sig == unix.SIGTERM {
		_ = unix.Kill(-t.pid, unix.SIGCONT)
	}
}

// lose sends a signal to the running task, because the client is gone.
func (t *slot) lose(sig syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pid != 0 {
		t.lost = true
		_ = unix.Kill(-t.pid, sig) // it may just have ended
	}
}

// main is the thread of a slot.
func (t *slot) main(stdout, stderr string, c TaskCgroup, began chan<- error) {
	runtime.LockOSThread() // for good: children die with it
	st, err := t.open(stdout, stderr, c)
	began <- err
	if err != nil {
		return
	}
	for {
		t.server.mu.Lock()
		for len(t.queue) == 0 && !t.closed {
			t.work.Wait()
		}
		if t.closed {
			t.server.mu.Unlock()
			select {} // the process is about to end
		}
		task := t.queue[0]
		t.queue[0] = Task{}
		t.queue = t.queue[1:]
		t.busy++
		t.mu.Lock()
		t.id, t.timeout, t.grace = task.ID, task.Timeout, task.Grace
		t.mu.Unlock()
		t.server.mu.Unlock()
		t.finished(t.run(st, &task))
	}
}

// finished notes a result, and sees to it that it is sent: soon, or with others.
func (t *slot) finished(r *Result) {
	t.server.mu.Lock()
	t.busy--
	t.results = r.put(t.results)
	t.count++
	now := len(t.queue) == 0 || t.count >= batchMost
	arm := !now && !t.armed
	t.armed = t.armed || arm
	t.server.mu.Unlock()
	if now {
		t.flush()
	} else if arm {
		select {
		case t.arm <- struct{}{}:
		default: // the flusher is already notified, and a slot never waits for it
		}
	}
}

func (t *slot) open(stdout, stderr string, c TaskCgroup) (*starter, error) {
	var err error
	if c.Dir != "" {
		if t.cell, err = openCell(c); err != nil {
			return nil, err
		}
	}
	if t.out, t.outSize, err = openLog(stdout); err != nil {
		return nil, err
	}
	if t.err, t.errSize, err = openLog(stderr); err != nil {
		return nil, err
	}
	if err := unix.SchedGetaffinity(0, &t.home); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	st, err := newStarter(t.limit, t.wakes)
	if err == nil && t.cell != nil && t.cell.V2 {
		t.tryBirth(st)
	}
	return st, err
}

// tryBirth finds out whether the kernel kills processes that are born in the cell. In that
// case children join the cell after their birth. The kernel kills them if the file cgroup.kill
// was ever used on the cell or on the spawner's own cgroup.
func (t *slot) tryBirth(st *starter) {
	pid, _, errno := st.start(&child{env: &environ{}, stdout: t.out, stderr: t.err, into: t.cell.dir, procs: t.cell.procs})
	if errno != 0 {
		return // the child lived until it executed its program, which does not exist
	}
	var status syscall.WaitStatus
	st.await(pid, false, &status, nil)
	st.joins = true
}

func openLog(path string) (fd int, size int64, err error) {
	fd, err = open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return 0, 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, sizeOf(fd), nil
}

// open opens a file, however often it is interrupted.
func open(path string, flags int, mode uint32) (fd int, err error) {
	for {
		if fd, err = unix.Open(path, flags|unix.O_CLOEXEC, mode); err != unix.EINTR {
			return fd, err
		}
	}
}

func sizeOf(fd int) int64 {
	var st unix.Stat_t
	for {
		if err := unix.Fstat(fd, &st); err == nil {
			return st.Size
		} else if err != unix.EINTR {
			return 0
		}
	}
}

// isFile reports whether a descriptor is of a file or a device such as /dev/null.
func isFile(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && (st.Mode&unix.S_IFMT == unix.S_IFREG || st.Mode&unix.S_IFMT == unix.S_IFCHR)
}

// child returns the process of a task, with the files of the slot.
func (t *slot) child(task *Task) *child {
	c := &child{argv: task.Argv, shell: task.Shell, env: t.env, dir: task.Dir, stdout: t.out, stderr: t.err}
	c.more = append(c.more, "PREMIX_TASK="+strconv.FormatUint(task.ID>>idShift, 10), "PREMIX_TRY="+strconv.FormatUint(task.ID&(1<<idShift-1), 10))
	if task.Dir != "" {
		c.more = append(c.more, "PWD="+task.Dir)
	}
	if len(task.Env) > 0 {
		c.env, c.more = newEnviron(append(append(append([]string{}, t.env.entries...), c.more...), task.Env...)), nil
	}
	if len(task.Argv) > 0 {
		if c.env == t.env {
			c.paths = t.hash.pathsOf(task.Argv[0])
		} else {
			c.paths = c.env.pathsOf(task.Argv[0], nil)
		}
	}
	return c
}

// files opens the files of a task's own, and the cgroups that it is to join. The caller closes
// the descriptors, also after an error.
func (t *slot) files(task *Task, c *child) (own []int, at step, errno syscall.Errno) {
	openOwn := func(path string, flags int) (int, error) {
		fd, err := open(path, flags, 0o666)
		if err == nil {
			own = append(own, fd)
		}
		return fd, err
	}
	if task.Stdin != "" {
		// To open a FIFO could take for ever.
		fd, err := openOwn(task.Stdin, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil {
			return own, stepInput, errnoOf(err)
		}
		if !isFile(fd) {
			return own, stepInput, unix.EINVAL
		}
		c.stdin = fd
	}
	for _, f := range []struct {
		path string
		fd   *int
	}{{task.Stdout, &c.stdout}, {task.Stderr, &c.stderr}} {
		if f.path == "" {
			continue
		}
		if f.path == task.Stdout && f.fd == &c.stderr {
			*f.fd = c.stdout // both into one file, in one order
			continue
		}
		fd, err := openOwn(f.path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_APPEND)
		if err == unix.ENOENT && task.Dir != "" {
			// What is missing may be the task's own directory, which is not to be made.
			if err := unix.Access(task.Dir, unix.X_OK); err != nil {
				return own, stepDirectory, errnoOf(err)
			}
		}
		if err == unix.ENOENT && os.MkdirAll(filepath.Dir(f.path), 0o777) == nil {
			fd, err = openOwn(f.path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_APPEND)
		}
		if err != nil {
			return own, stepOutput, errnoOf(err)
		}
		*f.fd = fd
	}
	for _, dir := range task.Join {
		fd, err := openOwn(dir+"/cgroup.procs", unix.O_WRONLY)
		if err != nil {
			return own, stepCgroup, errnoOf(err)
		}
		c.joins = append(c.joins, fd)
	}
	return own, at, 0
}

// run runs a task to its end.
func (t *slot) run(st *starter, task *Task) *Result {
	r := &Result{ID: task.ID, Slot: t.setup.First + t.n, Started: time.Now()}
	fail := func(at step, errno syscall.Errno) *Result {
		r.At, r.Errno, r.Finished = at.String(), errno, time.Now()
		t.noted = t.status.note(r, t.noted)
		atomic.StoreUint64(&t.words[0], 0)
		return r
	}
	atomic.StoreUint64(&t.words[1], 0)
	atomic.StoreUint64(&t.words[2], uint64(r.Started.UnixNano()))
	atomic.StoreUint64(&t.words[3], uint64(t.outSize))
	atomic.StoreUint64(&t.words[4], uint64(t.errSize))
	atomic.StoreUint64(&t.words[0], task.ID)
	c := t.child(task)
	own, at, errno := t.files(task, c)
	defer func() {
		for _, fd := range own {
			unix.Close(fd)
		}
	}()
	if errno != 0 {
		return fail(at, errno)
	}
	if t.cell != nil && t.cell.V2 && len(c.joins) == 0 {
		c.into, c.procs = t.cell.dir, t.cell.procs
	}
	if err := t.pin(task); err != nil {
		return fail(stepPrepare, errnoOf(err))
	}
	pid, at, errno := st.start(c)
	if errno != 0 {
		return fail(at, errno)
	}
	if len(task.Argv) > 0 && c.env == t.env {
		t.hash.learn(c.found)
	}
	atomic.StoreUint64(&t.words[1], uint64(pid))
	t.mu.Lock()
	t.pid, t.since, t.timedOut, t.signaled, t.lost = pid, time.Now(), false, false, false
	t.setTimer()
	t.mu.Unlock()
	if sig, closed := t.stopping(); closed {
		t.lose(sig)
	} else if sig != 0 {
		t.signal(0, sig)
	}
	var usage syscall.Rusage
	st.await(pid, t.short, &r.Status, &usage)
	r.Finished = time.Now()
	t.mu.Lock()
	t.pid = 0
	t.setTimer()
	r.TimedOut, r.Signaled, r.Lost = t.timedOut, t.signaled, t.lost
	t.mu.Unlock()
	// What the task left behind. A number is not given to another group while this
	// one has members, and numbers come round only after all others were given.
	if t.cell == nil || len(task.Join) > 0 {
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	if t.cell != nil {
		r.Refused = t.cell.end()
	}
	t.short = r.Finished.Sub(r.Started) < shortWait
	r.User, r.System = time.Duration(usage.Utime.Nano()), time.Duration(usage.Stime.Nano())
	r.MaxRSS = t.exact(usage.Maxrss << 10)
	r.Read, r.Written = usage.Inblock<<9, usage.Oublock<<9
	r.Out, t.outSize = grown(t.out, t.outSize)
	r.Err, t.errSize = grown(t.err, t.errSize)
	r.OOMKills = OOMKills(task.Events)
	r.Full = t.status.full(r)
	t.noted = t.status.note(r, t.noted)
	atomic.StoreUint64(&t.words[0], 0)
	return r
}

// OOMKills returns how many processes the kernel killed at the memory limit of a cgroup, from
// the file that counts them; 0 if the path is empty.
func OOMKills(path string) int {
	if path == "" {
		return 0
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0 // the cgroup is gone
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "oom_kill" {
			n, _ := strconv.Atoi(f[1]) // the kernel writes a number
			return n
		}
	}
	return 0
}

// idShift is the position of the task's number in an id; the number of the try is below it.
const idShift = 16

// TryID returns the id of a try of a task.
func TryID(task, try int) uint64 { return uint64(task)<<idShift | uint64(try&(1<<idShift-1)) }

// SplitTryID returns the task and the try of an id.
func SplitTryID(id uint64) (task, try int) { return int(id >> idShift), int(id & (1<<idShift - 1)) }

// stopping returns the signal for a task that began while all tasks were signalled, 0 for
// none, and whether the client is gone.
func (s *server) stopping() (sig syscall.Signal, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return unix.SIGKILL, true
	}
	return s.last, false
}

// setTimer sets the timer of the timeout, or stops it where no task runs. The caller holds mu.
func (t *slot) setTimer() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	if id := t.id; t.pid != 0 && t.timeout > 0 && !t.timedOut {
		t.timer = time.AfterFunc(t.timeout-time.Since(t.since), func() { t.expire(id) })
	}
}

// expire ends a task at its timeout: SIGTERM, grace, SIGKILL.
func (t *slot) expire(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pid == 0 || t.id != id {
		return
	}
	if !t.timedOut && (t.timeout == 0 || time.Since(t.since) < t.timeout) {
		return // it has got a longer one meanwhile
	}
	grace := t.grace
	sig := unix.SIGTERM
	if t.timedOut || grace == 0 {
		sig = unix.SIGKILL
	}
	t.timedOut = true
	t.kill(sig)
	if sig == unix.SIGTERM {
		time.AfterFunc(grace, func() { t.expire(id) })
	}
}

// grown returns the piece that was appended to a log since it had a size, and its size now.
func grown(fd int, before int64) (LogRange, int64) {
	size := sizeOf(fd)
	return LogRange{Offset: before, Length: max(0, size-before)}, size
}

// pin sets the CPUs and NUMA nodes of this thread, which its children inherit.
func (t *slot) pin(task *Task) error {
	if len(task.CPUs) == 0 && len(task.Nodes) == 0 {
		if !t.pinned {
			return nil
		}
		t.pinned = false
		if err := setNodes(nil); err != nil {
			return err
		}
		return unix.SchedSetaffinity(0, &t.home)
	}
	t.pinned = true
	set := t.home
	if len(task.CPUs) > 0 {
		set.Zero()
		for _, n := range task.CPUs {
			set.Set(n)
		}
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return err
	}
	return setNodes(task.Nodes)
}

// Policies of set_mempolicy(2).
const (
	mpolDefault = 0
	mpolBind    = 2
)

func setNodes(nodes []int) error {
	var mask [16]uint64
	policy := uintptr(mpolDefault)
	for _, n := range nodes {
		if n < 64*len(mask) {
			mask[n/64] |= 1 << (n % 64)
			policy = mpolBind
		}
	}
	bits := uintptr(64 * len(mask))
	at := uintptr(unsafe.Pointer(&mask))
	if policy == mpolDefault {
		bits, at = 0, 0
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SET_MEMPOLICY, policy, at, bits)
	runtime.KeepAlive(&mask)
	if errno != 0 && errno != unix.ENOSYS {
		return errno
	}
	return nil
}

func errnoOf(err error) syscall.Errno {
	if e, ok := err.(syscall.Errno); ok {
		return e
	}
	return unix.EIO
}

// flusher sends a batch some time after its first result.
func (s *server) flusher() {
	for range s.arm {
		time.Sleep(batchWait)
		s.flush()
	}
}

// flush sends the results that there are.
func (s *server) flush() {
	s.send.Lock()
	defer s.send.Unlock()
	s.mu.Lock()
	body := s.results
	s.results, s.count, s.armed = nil, 0, false
	s.mu.Unlock()
	if len(body) == 0 {
		return
	}
	frame := make([]byte, 0, len(body)+5)
	frame = append(beginFrame(frame, frameResults), body...)
	_, _ = s.conn.Write(endFrame(frame, 0)) // if the client is gone, serve notices that too, and ends all tasks
}
