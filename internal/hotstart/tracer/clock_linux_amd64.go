package tracer

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Each reading advances the Clock by these.
const (
	clockStep  = 50_000 // ns
	cpuStep    = 500    // ns: a started process has used as little
	cyclesStep = 20_000
)

// clockCalls are the system calls that Clock answers.
var clockCalls = []uint64{unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY, unix.SYS_TIME, unix.SYS_TIMES, unix.SYS_GETRUSAGE,
	unix.SYS_SYSINFO, unix.SYS_GETCPU}

// vdsoCalls are the functions of the vDSO that Clock replaces by their system calls.
var vdsoCalls = map[string]uint64{"__vdso_clock_gettime": unix.SYS_CLOCK_GETTIME, "__vdso_gettimeofday": unix.SYS_GETTIMEOFDAY,
	"__vdso_time": unix.SYS_TIME, "__vdso_getcpu": unix.SYS_GETCPU}

// stubSize is the size of the code that takes the place of a function of the vDSO:
// mov eax, NUMBER; syscall; ret.
const stubSize = 8

// stubs finds the functions of vdsoCalls in a process: addresses and system calls.
func stubs(pid int) (map[uint64]uint64, error) {
	auxv, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", pid))
	if err != nil {
		return nil, err
	}
	const atSysinfoEhdr = 33
	var base uint64
	for ; len(auxv) >= 16; auxv = auxv[16:] {
		if binary.NativeEndian.Uint64(auxv) == atSysinfoEhdr {
			base = binary.NativeEndian.Uint64(auxv[8:])
		}
	}
	if base == 0 {
		return nil, nil // it makes the system calls
	}
	image := make([]byte, 4096) // of one page, or two
	if err := (&Proc{Pid: pid}).Read(base, image); err != nil {
		return nil, err
	}
	more := make([]byte, 4096)
	if (&Proc{Pid: pid}).Read(base+4096, more) == nil {
		image = append(image, more...)
	}
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, fmt.Errorf("vDSO: %w", err)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("vDSO: %w", err)
	}
	found := map[uint64]uint64{}
	for _, s := range symbols {
		if nr, ok := vdsoCalls[s.Name]; ok {
			found[base+s.Value] = nr
		}
	}
	return found, nil
}

// plant replaces the functions of the vDSO in a process that is held or stopped at its
// first instruction.
func (c *Clock) plant(pid int) error {
	at, err := stubs(pid)
	if err != nil {
		return err
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	for addr, nr := range at {
		code := []byte{0xb8, byte(nr), byte(nr >> 8), 0, 0, 0x0f, 0x05, 0xc3}
		if _, err := mem.WriteAt(code, int64(addr)); err != nil {
			return fmt.Errorf("replace the clock of process %d: %w", pid, err)
		}
	}
	return nil
}

// install replaces the clocks of a process that is held at its first instruction.
func (c *Clock) install(p *Proc) error {
	if _, err := p.Syscall(unix.SYS_PRCTL, unix.PR_SET_TSC, unix.PR_TSC_SIGSEGV, 0, 0, 0); err != nil {
		return fmt.Errorf("replace the time-stamp counter: %w", err)
	}
	return c.plant(p.Pid)
}

// remove gives a held process the machine's clocks again.
func (c *Clock) remove(p *Proc) error {
	at, err := stubs(p.Pid)
	if err != nil {
		return err
	}
	for _, tid := range p.Threads {
		r := p.rest[tid]
		if wait, ok := c.waits[tid]; ok && r.R10 == wait[0] {
			// A start moves the time that the thread has given on to its own clock.
			r.R10 = wait[1]
			p.rest[tid] = r
		}
		for addr, nr := range at {
			if r.Rip < addr || r.Rip >= addr+stubSize {
				continue
			}
			// The started process does not have this code, so the call is answered now and
			// the thread continues after it.
			if r.Rip < addr+stubSize-1 {
				r.Orig_rax = nr
				c.answer(p.Pid, &r)
				r.Orig_rax = ^uint64(0)
			}
			var to [8]byte
			if err := p.Read(r.Rsp, to[:]); err != nil {
				return err
			}
			r.Rip, r.Rsp = binary.NativeEndian.Uint64(to[:]), r.Rsp+8
			p.rest[tid] = r
			break
		}
		if _, err := p.SyscallIn(tid, unix.SYS_PRCTL, unix.PR_SET_TSC, unix.PR_TSC_ENABLE, 0, 0, 0); err != nil {
			return fmt.Errorf("restore the time-stamp counter: %w", err)
		}
	}
	return nil
}

// cycles emulates an instruction that reads the time-stamp counter, at which a thread was
// stopped by SIGSEGV. It returns false for any other instruction.
func (c *Clock) cycles(tid int) bool {
	var r unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &r) != nil {
		return false
	}
	var b [3]byte
	if (&Proc{Pid: tid}).Read(r.Rip, b[:]) != nil {
		return false
	}
	switch {
	case b[0] == 0x0f && b[1] == 0x31: // rdtsc
		r.Rip += 2
	case b == [3]byte{0x0f, 0x01, 0xf9}: // rdtscp
		r.Rip, r.Rcx = r.Rip+3, 0
	default:
		return false
	}
	c.Cycles += uint64(max(c.Pace, 1)) * cyclesStep
	r.Rax, r.Rdx = c.Cycles&(1<<32-1), c.Cycles>>32
	return unix.PtraceSetRegs(tid, &r) == nil
}

// read returns the time by one of the clocks of clock_gettime(2).
func (c *Clock) read(id int32) int64 {
	pace := max(c.Pace, 1)
	c.Realtime += pace * clockStep
	c.Monotonic += pace * clockStep
	c.Boottime += pace * clockStep
	c.cpu += pace * cpuStep
	switch id {
	case unix.CLOCK_REALTIME, unix.CLOCK_REALTIME_COARSE, unix.CLOCK_REALTIME_ALARM:
		return c.Realtime
	case unix.CLOCK_TAI:
		return c.Realtime + c.distance(id, unix.CLOCK_REALTIME)
	case unix.CLOCK_MONOTONIC, unix.CLOCK_MONOTONIC_COARSE:
		return c.Monotonic
	case unix.CLOCK_MONOTONIC_RAW:
		return c.Monotonic + c.distance(id, unix.CLOCK_MONOTONIC)
	case unix.CLOCK_BOOTTIME, unix.CLOCK_BOOTTIME_ALARM:
		return c.Boottime
	}
	return c.cpu // of the process or a thread
}

// distance returns the distance of one of the machine's clocks from another one, in whole
// seconds, so that it is the same in two preparations.
func (c *Clock) distance(id, from int32) int64 {
	if d, known := c.apart[id]; known {
		return d
	}
	var a, b unix.Timespec
	if unix.ClockGettime(from, &a) != nil || unix.ClockGettime(id, &b) != nil {
		return 0
	}
	if c.apart == nil {
		c.apart = map[int32]int64{}
	}
	c.apart[id] = (b.Nano() - a.Nano() + 1e6) / 1e9 * 1e9 // which were not read at once
	return c.apart[id]
}

// Answer answers a system call that returns a time in place of the kernel, for a thread
// that seccomp stopped at the entry of the call. It does not answer other calls, or a
// call that the kernel would refuse.
func (c *Clock) Answer(tid int) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return gone(err)
	}
	if r.Orig_rax == unix.SYS_FUTEX {
		return c.deadline(tid, &r)
	}
	if !c.answer(tid, &r) {
		return nil
	}
	r.Orig_rax = ^uint64(0)
	return gone(unix.PtraceSetRegs(tid, &r))
}

// answer answers the call whose number is in orig_rax, and puts the result into rax.
func (c *Clock) answer(pid int, r *unix.PtraceRegs) bool {
	var b []byte
	put := func(values ...int64) {
		for _, v := range values {
			b = binary.NativeEndian.AppendUint64(b, uint64(v))
		}
	}
	const second, tick = 1e9, 1e9 / 100
	to, result := r.Rdi, uint64(0)
	switch r.Orig_rax {
	case unix.SYS_CLOCK_GETTIME:
		if id := int32(r.Rdi); id > unix.CLOCK_TAI || id == 10 {
			return false
		}
		t := c.read(int32(r.Rdi))
		put(t/second, t%second)
		to = r.Rsi
	case unix.SYS_GETTIMEOFDAY:
		if r.Rsi != 0 && (&Proc{Pid: pid}).Write(r.Rsi, make([]byte, 8)) != nil { // UTC
			return false
		}
		t := c.read(unix.CLOCK_REALTIME)
		if to != 0 {
			put(t/second, t%second/1000)
		}
	case unix.SYS_TIME:
		t := c.read(unix.CLOCK_REALTIME) / second
		result = uint64(t)
		if to != 0 {
			put(t)
		}
	case unix.SYS_TIMES:
		cpu := c.read(unix.CLOCK_PROCESS_CPUTIME_ID) / tick
		result = uint64(c.Monotonic / tick)
		if to != 0 {
			put(cpu, cpu/8, 0, 0)
		}
	case unix.SYS_GETRUSAGE:
		t := c.read(unix.CLOCK_PROCESS_CPUTIME_ID)
		put(t/second, t%second/1000, t/8/second, t/8%second/1000)
		put(make([]int64, 14)...) // of which nothing is known
		to = r.Rsi
	case unix.SYS_SYSINFO:
		var s unix.Sysinfo_t
		if unix.Sysinfo(&s) != nil {
			return false
		}
		put(c.read(unix.CLOCK_BOOTTIME)/second, 0, 0, 0)
		total := int64(s.Totalram)
		put(total, total/2, 0, total/64, int64(s.Totalswap), int64(s.Totalswap), 100, int64(s.Totalhigh), int64(s.Freehigh), int64(s.Unit))
	case unix.SYS_GETCPU:
		for _, at := range []uint64{r.Rdi, r.Rsi} {
			if at != 0 && (&Proc{Pid: pid}).Write(at, make([]byte, 4)) != nil {
				return false
			}
		}
	default:
		return false
	}
	if len(b) > 0 && (&Proc{Pid: pid}).Write(to, b) != nil {
		return false // the kernel answers EFAULT
	}
	r.Rax = result
	return true
}

// deadline changes the absolute time-out of a futex(2), if the call has one, from the Clock
// to the machine's clock, with the same remaining time. It writes the new time-out far below
// the stack pointer of the thread, to memory that the thread does not use.
func (c *Clock) deadline(tid int, r *unix.PtraceRegs) error {
	const realtime, lockPI, waitBitset, waitRequeuePI, lockPI2 = 256, 6, 9, 11, 13
	if op := r.Rsi & 0x7f; r.R10 == 0 || op != waitBitset && op != lockPI && op != waitRequeuePI && op != lockPI2 {
		return nil
	}
	var b [16]byte
	if err := (&Proc{Pid: tid}).Read(r.R10, b[:]); err != nil {
		return nil // the kernel answers EFAULT
	}
	clock, now := int32(unix.CLOCK_MONOTONIC), c.Monotonic
	if r.Rsi&realtime != 0 || r.Rsi&0x7f == lockPI {
		clock, now = unix.CLOCK_REALTIME, c.Realtime
	}
	left := int64(binary.NativeEndian.Uint64(b[:]))*1e9 + int64(binary.NativeEndian.Uint64(b[8:])) - now
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return err
	}
	t := ts.Nano() + max(left, 0)
	binary.NativeEndian.PutUint64(b[:], uint64(t/1e9))
	binary.NativeEndian.PutUint64(b[8:], uint64(t%1e9))
	at := (r.Rsp - 2048) &^ 15
	if err := (&Proc{Pid: tid}).Write(at, b[:]); err != nil {
		return nil // it waits until the time that it has given
	}
	if c.waits == nil {
		c.waits = map[int][2]uint64{}
	}
	c.waits[tid] = [2]uint64{at, r.R10}
	r.R10 = at
	return gone(unix.PtraceSetRegs(tid, r))
}
