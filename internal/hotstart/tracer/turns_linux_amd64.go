package tracer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/proc"
)

// turns lets the threads of one process run one at a time, so that two executions of a
// program run in the same order.
//
// A thread keeps its turn until it waits for a futex, yields, ends, or sleeps in a call
// that waits for another thread or process. Then the next ready thread gets the turn, in
// the order in which the threads became ready (see pass). A new thread is ready when it
// starts, and a waiting thread when another thread wakes it. The tracer answers futex(2),
// so it chooses the thread to wake: the thread that has waited longest. Time-outs happen
// when no thread is ready; the Clock then advances to the time-out.
//
// A thread may wait for another thread in a loop, and not in the kernel. Its registers then
// have the same values repeatedly, by which turns finds it. If that takes long, or if the
// threads use an unknown operation of futex(2), the turns end: all threads run at once, as
// without a tracer.
type turns struct {
	clock   *Clock
	pid     int
	threads map[int]*turn
	now     int   // the thread that runs
	ready   []int // threads that can run, in their order
	waiting []int // threads that wait for a futex or a time, in their order
	free    bool  // all threads run at once

	since  time.Time // the thread that runs has its turn, or made its last call
	check  time.Duration
	looked time.Time
	slept  int    // looks in a row at which the thread that runs slept
	taking taking // why that thread is being interrupted
	spins  int    // turns that were taken away from threads that waited in a loop
	jumped bool   // the last turn began with a time-out
}

// taking is the reason for which a thread loses its turn.
type taking int

const (
	notTaking taking = iota
	fromSleep        // it sleeps
	fromLoop         // it may wait in a loop
)

// turn is a thread, and how it is stopped.
type turn struct {
	at     standing
	asleep bool   // the turn was taken away while it waited
	addr   uint64 // of the futex; 0 for a sleep
	value  uint32 // that the futex must have
	bits   uint32 // that must be woken

	limited, relative bool  // it waits until a time, which it gave relative to the present
	until             int64 // ns
	clock             int32 // CLOCK_MONOTONIC or CLOCK_REALTIME
}

// standing is the way in which a thread is stopped, if it is.
type standing int

const (
	running  standing = iota
	arriving          // it was made, and has not stopped for the first time
	atCall            // at the entry of a call that it makes when it is released
	answered          // at the entry of a call that was answered
	stopped           // at no call
)

const (
	// lookEvery is the time between two looks at a thread that runs.
	lookEvery = 2 * time.Millisecond
	// sleepLooks is the number of looks in a row that find a thread asleep before it loses
	// its turn.
	sleepLooks = 3
	// loopAfter is the time after which a thread may wait in a loop.
	loopAfter = 200 * time.Millisecond
	// loopSteps is the largest number of instructions in such a loop.
	loopSteps = 500
	// maxSpins is how many turns are taken away from threads in loops.
	maxSpins = 50
	// maxTurn is the time after which the turns end.
	maxTurn = time.Minute
)

// turnCalls are the system calls at which turns may pass.
var turnCalls = []uint64{unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_EXIT}

// waitCalls are the system calls in which a thread may sleep until another thread does
// something. They can be interrupted and made again.
var waitCalls = []uint64{unix.SYS_FUTEX, unix.SYS_POLL, unix.SYS_PPOLL, unix.SYS_SELECT, unix.SYS_PSELECT6, unix.SYS_EPOLL_WAIT,
	unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_WAIT4, unix.SYS_WAITID, unix.SYS_PAUSE, unix.SYS_RT_SIGSUSPEND,
	unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_FLOCK, unix.SYS_RESTART_SYSCALL}

// turnsOf returns the turns that a thread has part in, or nil.
func (w *Watch) turnsOf(tid int) *turns {
	if w.Clock == nil {
		return nil
	}
	if t := w.turns[tid]; t != nil {
		return t
	}
	process := tgid(tid)
	t := w.turns[process]
	if t == nil {
		t = &turns{clock: w.clockOf(tid), pid: process, threads: map[int]*turn{process: {}}, free: process != tid}
		t.begin(process)
		w.turns[process] = t
	}
	if process != tid {
		w.turns[tid] = t
		t.threads[tid] = &turn{at: arriving}
		t.ready = append(t.ready, tid)
	}
	return t
}

// begin notes that a thread has its turn.
func (t *turns) begin(tid int) {
	t.now, t.since, t.looked, t.check, t.slept, t.taking = tid, time.Now(), time.Now(), loopAfter, 0, notTaking
}

// resume continues a thread, or keeps it stopped until its turn.
func (w *Watch) resume(tid, sig int, interrupted bool) error {
	t := w.turnsOf(tid)
	if t == nil || t.free {
		return proceed(tid, sig)
	}
	th := t.threads[tid]
	if tid != t.now {
		th.at = stopped
		return nil
	}
	why := t.taking
	if !interrupted || why == notTaking {
		t.begin(tid)
		th.at, th.asleep, t.taking = running, false, why
		return proceed(tid, sig)
	}
	t.taking = notTaking
	if why == fromLoop {
		other, st, err := spins(tid)
		switch {
		case err != nil:
			return err
		case other:
			_, err := w.Handle(tid, st)
			return err
		case !st.Stopped():
			return proceed(tid, 0)
		}
		t.spins++
	}
	th.at, th.asleep = stopped, true
	t.ready = append(t.ready, tid)
	if t.spins > maxSpins {
		return t.release()
	}
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return gone(err)
	}
	if int64(r.Rax) == -int64(unix.EINTR) && int64(r.Orig_rax) >= 0 {
		r = rewind(r) // no signal came
		if err := unix.PtraceSetRegs(tid, &r); err != nil {
			return gone(err)
		}
	}
	return t.pass()
}

// spins reports whether a stopped thread executes the same instructions with the same
// registers again and again: st is a stop then, and 0 if it does not. If the thread stops
// for another reason, other is set, and st says why.
func spins(tid int) (other bool, st unix.WaitStatus, err error) {
	seen := map[unix.PtraceRegs]bool{}
	for range loopSteps {
		var r unix.PtraceRegs
		if err := unix.PtraceGetRegs(tid, &r); err != nil {
			return false, 0, gone(err)
		}
		r.Orig_rax = 0
		if seen[r] {
			return false, 0x7f, nil
		}
		seen[r] = true
		var b [2]byte
		if (&Proc{Pid: tid}).Read(r.Rip, b[:]) != nil || b == [2]byte{0x0f, 0x05} {
			return false, 0, nil
		}
		if err := unix.PtraceSingleStep(tid); err != nil {
			return false, 0, gone(err)
		}
		if st, err = wait(tid); err != nil {
			return false, 0, err
		}
		if st>>16 != 0 || st.StopSignal() != unix.SIGTRAP {
			return true, st, nil
		}
	}
	return false, 0, nil
}

// proceed lets a stopped thread go on.
func proceed(tid, sig int) error {
	if err := unix.PtraceCont(tid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("ptrace continue %d: %w", tid, err)
	}
	return nil
}

// made notes a thread that another one has made.
func (w *Watch) made(maker int) error {
	msg, err := unix.PtraceGetEventMsg(maker)
	if err != nil {
		return gone(err)
	}
	if t := w.turnsOf(maker); t != nil && tgid(int(msg)) == t.pid {
		w.turnsOf(int(msg))
	}
	return nil
}

// forget forgets the threads of a process.
func (w *Watch) forget(pid int) {
	for tid, t := range w.turns {
		if t.pid == pid {
			delete(w.turns, tid)
		}
	}
}

// finished forgets a thread, and passes its turn on.
func (w *Watch) finished(tid int) error {
	t := w.turns[tid]
	if t == nil {
		return nil
	}
	delete(w.turns, tid)
	return t.finished(tid)
}

func (t *turns) finished(tid int) error {
	delete(t.threads, tid)
	is := func(other int) bool { return other == tid }
	t.ready, t.waiting = slices.DeleteFunc(t.ready, is), slices.DeleteFunc(t.waiting, is)
	if t.free {
		return nil
	}
	// The kernel has changed words for it, and has woken who waits for these (set_tid_address(2)).
	for _, other := range slices.Clone(t.waiting) {
		th := t.threads[other]
		var word [4]byte
		if th.addr != 0 && (&Proc{Pid: other}).Read(th.addr, word[:]) == nil && binary.NativeEndian.Uint32(word[:]) != th.value {
			if err := t.wake(other, 0); err != nil && !errors.Is(err, ErrGone) {
				return err
			}
		}
	}
	if tid == t.now {
		return t.pass()
	}
	return nil
}

// pass gives the turn to the next thread. Ready threads that did not sleep come first, then
// the thread with the next time-out, but not twice in a row, and last the threads that
// slept.
func (t *turns) pass() error {
	awake := func(tid int) bool { return !t.threads[tid].asleep }
	next := slices.IndexFunc(t.ready, awake)
	jumped := false
	if next < 0 && !(t.jumped && len(t.ready) > 0) {
		var err error
		if jumped, err = t.timeOut(); err != nil {
			return err
		}
		if jumped {
			next = len(t.ready) - 1
		}
	}
	if next < 0 && len(t.ready) == 0 {
		return t.release() // all threads wait for something outside the process
	}
	next = max(next, 0)
	t.jumped = jumped
	t.begin(t.ready[next])
	t.ready = slices.Delete(t.ready, next, next+1)
	th := t.threads[t.now]
	if th.at == arriving {
		return nil
	}
	th.at = running
	return proceed(t.now, 0)
}

// release ends the turns and lets all threads run at once.
func (t *turns) release() error {
	t.free = true
	for _, tid := range slices.Concat(t.waiting, t.ready, []int{t.now}) {
		th := t.threads[tid]
		if th == nil || th.at == running || th.at == arriving {
			continue
		}
		if th.at == atCall {
			if err := t.limit(tid, th); err != nil && !errors.Is(err, ErrGone) {
				return err
			}
		}
		th.at = running
		if err := proceed(tid, 0); err != nil {
			return err
		}
	}
	t.ready, t.waiting = nil, nil
	return nil
}

// limit makes a thread, which waits at the entry of a call, wait by the machine's clock.
func (t *turns) limit(tid int, th *turn) error {
	if !th.limited || th.relative {
		return nil
	}
	if th.addr == 0 {
		return t.answer(tid, 0)
	}
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return gone(err)
	}
	return t.clock.deadline(tid, &r)
}

// answer answers the call at whose entry a thread is stopped.
func (t *turns) answer(tid int, result uint64) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return gone(err)
	}
	r.Orig_rax, r.Rax = ^uint64(0), result
	t.threads[tid].at = answered
	return gone(unix.PtraceSetRegs(tid, &r))
}

// wake ends the waiting of a thread.
func (t *turns) wake(tid int, result uint64) error {
	t.waiting = slices.DeleteFunc(t.waiting, func(other int) bool { return other == tid })
	t.ready = append(t.ready, tid)
	return t.answer(tid, result)
}

// timeOut ends the waiting of the thread whose time comes first. It returns false if none
// waits for a time.
func (t *turns) timeOut() (bool, error) {
	first, left := 0, int64(0)
	for _, tid := range t.waiting {
		th := t.threads[tid]
		if !th.limited {
			continue
		}
		if l := max(0, th.until-t.clock.at(th.clock)); first == 0 || l < left {
			first, left = tid, l
		}
	}
	if first == 0 {
		return false, nil
	}
	t.clock.Realtime += left
	t.clock.Monotonic += left
	th := t.threads[first]
	if th.addr != 0 {
		return true, t.wake(first, failed(unix.ETIMEDOUT))
	}
	if !th.relative {
		return true, t.wake(first, 0)
	}
	// The kernel makes the relative sleep in full, since another process may depend on it.
	t.waiting = slices.DeleteFunc(t.waiting, func(other int) bool { return other == first })
	t.ready = append(t.ready, first)
	return true, nil
}

// at returns the present time by one of two clocks.
func (c *Clock) at(id int32) int64 {
	if id == unix.CLOCK_REALTIME {
		return c.Realtime
	}
	return c.Monotonic
}

// call deals with a call at whose entry a thread is stopped. It returns false if the thread
// is to make the call.
func (t *turns) call(tid int) (bool, error) {
	if t.free || len(t.threads) < 2 || tid != t.now {
		return false, nil
	}
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return false, gone(err)
	}
	th := t.threads[tid]
	switch r.Orig_rax {
	case unix.SYS_EXIT:
		clearEnded(tid, &r)
		return false, nil
	case unix.SYS_SCHED_YIELD:
		if err := t.answer(tid, 0); err != nil {
			return false, err
		}
		t.ready = append(t.ready, tid)
		return true, t.pass()
	case unix.SYS_NANOSLEEP:
		return t.wait(tid, turn{relative: true}, r.Rdi)
	case unix.SYS_CLOCK_NANOSLEEP:
		if id := int32(r.Rdi); id != unix.CLOCK_MONOTONIC && id != unix.CLOCK_REALTIME {
			return false, nil
		}
		return t.wait(tid, turn{clock: int32(r.Rdi), relative: r.Rsi&unix.TIMER_ABSTIME == 0}, r.Rdx)
	case unix.SYS_FUTEX:
	default:
		return false, nil
	}
	const (
		wait, wake, requeue, cmpRequeue, wakeOp, waitBitset, wakeBitset = 0, 1, 3, 4, 5, 9, 10
		private, realtime                                               = 128, 256
	)
	all := uint32(^uint32(0))
	switch op := r.Rsi & 0x7f; op {
	case wait, waitBitset:
		next := turn{addr: r.Rdi, value: uint32(r.Rdx), bits: all, clock: unix.CLOCK_MONOTONIC, relative: op == wait}
		if op == waitBitset {
			next.bits = uint32(r.R9)
		}
		if r.Rsi&realtime != 0 {
			next.clock = unix.CLOCK_REALTIME
		}
		var word [4]byte
		if next.bits == 0 || r.Rdi%4 != 0 || (&Proc{Pid: tid}).Read(r.Rdi, word[:]) != nil || binary.NativeEndian.Uint32(word[:]) != next.value {
			return false, nil // the call does not wait
		}
		return t.wait(tid, next, r.R10)
	case wake, wakeBitset:
		if op == wakeBitset {
			all = uint32(r.R9)
		}
		n, err := t.wakeAt(r.Rdi, int32(r.Rdx), all)
		if err != nil || n == 0 && r.Rsi&private == 0 {
			return false, err // threads of another process may wait
		}
		return t.reply(tid, th, n)
	case requeue, cmpRequeue, wakeOp:
		return false, t.release()
	}
	return false, nil // priority inheritance: the kernel has these waiters
}

// clearEnded clears two parts of the memory of a thread that is about to end: the number of
// the processor, which the kernel has written there (rseq(2)), and the unused stack, which
// may have this number too. The program may keep this memory for another thread. If a part
// cannot be cleared, it stays unchanged.
func clearEnded(tid int, r *unix.PtraceRegs) {
	p := &Proc{Pid: tid}
	if rseq, err := p.Rseq(tid); err == nil && rseq.Address != 0 {
		// struct rseq: cpu_id_start, cpu_id; after rseq_cs and flags node_id, mm_cid
		for _, at := range []uint64{0, 20} {
			if at+8 <= uint64(rseq.Size) {
				_ = p.Write(rseq.Address+at, make([]byte, 8))
			}
		}
	}
	const redZone, page = 128, 4096
	areas, err := readAreas(fmt.Sprintf("/proc/%d/maps", tid), "", 0, ^uint64(0))
	i := slices.IndexFunc(areas, func(a area) bool { return a.start <= r.Rsp && r.Rsp < a.end })
	// The C library makes a stack with a guard below it and the control block at its top.
	if err != nil || i < 1 || areas[i-1].end != areas[i].start || areas[i-1].prot != 0 || r.Fs_base <= r.Rsp || r.Fs_base >= areas[i].end {
		return
	}
	end := (r.Rsp - redZone) &^ 7
	for empty := 0; empty < 64 && end > areas[i].start; {
		start := max((end-1)&^(page-1), areas[i].start)
		b, zeros := make([]byte, end-start), make([]byte, end-start)
		if p.Read(start, b) != nil {
			return
		}
		if empty++; !bytes.Equal(b, zeros) {
			empty = 0
			if p.Write(start, zeros) != nil {
				return
			}
		}
		end = start
	}
}

// reply answers the call of the thread that runs, and lets it go on.
func (t *turns) reply(tid int, th *turn, result uint64) (bool, error) {
	if err := t.answer(tid, result); err != nil {
		return false, err
	}
	th.at = running
	return true, proceed(tid, 0)
}

// wakeAt wakes up to n threads that wait for a futex.
func (t *turns) wakeAt(addr uint64, n int32, bits uint32) (woken uint64, err error) {
	for _, tid := range slices.Clone(t.waiting) {
		if th := t.threads[tid]; th.addr != addr || th.bits&bits == 0 {
			continue
		}
		if int32(woken) >= n {
			break
		}
		if err := t.wake(tid, 0); err != nil && !errors.Is(err, ErrGone) {
			return woken, err
		}
		woken++
	}
	return woken, nil
}

// wait makes the running thread wait until it is woken, or until the time at an address.
func (t *turns) wait(tid int, next turn, limit uint64) (bool, error) {
	if next.clock != unix.CLOCK_REALTIME {
		next.clock = unix.CLOCK_MONOTONIC
	}
	if limit != 0 {
		var b [16]byte
		if (&Proc{Pid: tid}).Read(limit, b[:]) != nil {
			return false, nil // the kernel answers EFAULT
		}
		s, ns := int64(binary.NativeEndian.Uint64(b[:])), int64(binary.NativeEndian.Uint64(b[8:]))
		if s < 0 || ns < 0 || ns >= 1e9 {
			return false, nil
		}
		next.limited, next.until = true, min(s, 1e9)*1e9+ns
		if next.relative {
			next.until += t.clock.at(next.clock)
		} else if s >= 1e9 {
			next.until = s*1e9 + ns
		}
	}
	next.at = atCall
	*t.threads[tid] = next
	t.waiting = append(t.waiting, tid)
	return true, t.pass()
}

// hold holds the threads that the tracer has stopped.
func (t *turns) hold(p *Proc, at int) error {
	for tid, th := range t.threads {
		if tid == at {
			continue
		}
		var err error
		switch th.at {
		case running, arriving:
			continue
		case atCall:
			if err = t.limit(tid, th); err == nil && th.at == atCall {
				err = p.skipCall(tid)
				break
			}
			if err == nil {
				err = p.skipAnswered(tid)
			}
		case answered:
			err = p.skipAnswered(tid)
		case stopped:
			err = p.rests(tid)
		}
		if err != nil && !errors.Is(err, ErrGone) {
			return err
		}
	}
	return nil
}

// skipAnswered takes a thread that is stopped at the entry of an answered call to the exit
// of the call.
func (p *Proc) skipAnswered(tid int) error {
	if _, err := p.toSyscallStop(tid); err != nil {
		return err
	}
	return p.rests(tid)
}

// look checks the running thread.
func (t *turns) look() error {
	if t.free || t.now == 0 || len(t.threads) < 2 || time.Since(t.looked) < lookEvery {
		return nil
	}
	t.looked = time.Now()
	awake := slices.ContainsFunc(t.ready, func(tid int) bool { return !t.threads[tid].asleep })
	switch standsIn(t.now) {
	case finished:
		return t.finished(t.now) // the first thread, which the kernel reports after all others
	case sleeps:
		t.slept++
		timed := slices.ContainsFunc(t.waiting, func(tid int) bool { return t.threads[tid].limited })
		if t.slept < sleepLooks || !awake && t.slept < 2*sleepLooks || len(t.ready) == 0 && !timed {
			return nil
		}
		return t.take(fromSleep)
	}
	t.slept = 0
	passed := time.Since(t.since)
	if len(t.ready) == 0 || passed < t.check {
		return nil
	}
	if passed > maxTurn {
		return t.release()
	}
	t.check = 2 * passed
	return t.take(fromLoop)
}

// take interrupts the thread that runs.
func (t *turns) take(why taking) error {
	if t.taking != notTaking {
		return nil
	}
	t.taking = why
	if err := unix.PtraceInterrupt(t.now); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("ptrace interrupt %d: %w", t.now, err)
	}
	return nil
}

// doing is the present activity of a released thread.
type doing int

const (
	works  doing = iota
	sleeps       // in a call that waits for another thread or process
	finished
)

// standsIn returns the activity of a thread, as /proc shows it: whether it works or waits.
func standsIn(tid int) doing {
	dir := "/proc/" + strconv.Itoa(tid)
	switch proc.State(tid) {
	case 'Z', 'X':
		return finished
	case 'S':
	default:
		return works
	}
	var nr, fd uint64
	b, err := os.ReadFile(dir + "/syscall")
	if n, _ := fmt.Sscanf(string(b), "%d 0x%x", &nr, &fd); err != nil || n < 2 {
		return works
	}
	if slices.Contains(waitCalls, nr) {
		return sleeps
	}
	var st unix.Stat_t
	if (nr == unix.SYS_READ || nr == unix.SYS_READV) && unix.Stat(fmt.Sprintf("%s/fd/%d", dir, fd), &st) == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return sleeps
	}
	return works
}

// Settled reports whether all threads of the processes with turns wait, as far as the
// kernel shows this.
func (w *Watch) Settled() bool {
	for _, t := range w.turns {
		if t.free || len(t.threads) < 2 {
			continue
		}
		if t.slept < sleepLooks || slices.ContainsFunc(t.ready, func(tid int) bool { return !t.threads[tid].asleep }) {
			return false
		}
	}
	return true
}

// turning reports whether threads take turns.
func (w *Watch) turning() bool {
	for _, t := range w.turns {
		if !t.free && len(t.threads) > 1 {
			return true
		}
	}
	return false
}

// Wait calls wait4(2) for the children and tracees of the calling thread. While it waits,
// it ends the turns of threads that sleep or may wait in a loop.
func (w *Watch) Wait(options int) (tid int, st unix.WaitStatus, err error) {
	for started := time.Now(); ; {
		turning := w.turning()
		flags := options
		if turning {
			flags |= unix.WNOHANG
		}
		tid, err = unix.Wait4(-1, &st, flags, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || tid != 0 || !turning:
			return tid, st, err
		}
		for _, t := range w.turns {
			if err := t.look(); err != nil {
				return 0, st, err
			}
		}
		if options&unix.WNOHANG != 0 {
			return 0, st, nil
		}
		if passed := time.Since(started); passed < 100*time.Microsecond {
			unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		} else {
			ts := unix.NsecToTimespec(int64(min(passed/8, time.Millisecond)))
			unix.Nanosleep(&ts, nil)
		}
	}
}
