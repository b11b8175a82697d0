package frozen

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/tracer"
	"premix/internal/kit/proc"
)

// Base is the state of a process at its first instruction that the process can change
// later. A started process gets only the changes, and inherits the rest from the process
// that starts it.
type Base struct {
	limits     []Limit
	nice       int
	affinity   []byte
	slack      string
	adjust     string // oom_score_adj
	group      string
	session    string
	policy     string
	priority   uintptr           // for input and output
	status     map[string]string // of keptStatus
	namespaces map[string]string
	files      []open
}

// keptStatus are lines of /proc/PID/status that no thread may have changed, and how a
// refusal names them.
var keptStatus = map[string]string{
	"Uid": "its user ids", "Gid": "its group ids", "Groups": "its groups", "CapInh": "its capabilities", "CapPrm": "its capabilities",
	"CapEff": "its capabilities", "CapBnd": "its capabilities", "CapAmb": "its capabilities", "Seccomp": "its seccomp filters",
	"Seccomp_filters": "its seccomp filters", "THP_enabled": "its use of huge pages", "untag_mask": "the tagging of its addresses",
	"Speculation_Store_Bypass": "its protection against speculation", "SpeculationIndirectBranch": "its protection against speculation",
	"x86_Thread_features": "its shadow stack", "x86_Thread_features_locked": "its shadow stack",
}

// namespaces reads in which namespaces a thread is.
func namespaces(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir + "ns")
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, e := range entries {
		if all[e.Name()], err = os.Readlink(filepath.Join(dir, "ns", e.Name())); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// ioPriority returns the priority of a thread for input and output (ioprio_get(2)).
func ioPriority(tid int) (uintptr, error) {
	const process = 1 // IOPRIO_WHO_PROCESS
	v, _, e := unix.Syscall(unix.SYS_IOPRIO_GET, process, uintptr(tid), 0)
	if e != 0 {
		return 0, fmt.Errorf("priority of thread %d for input and output: %w", tid, e)
	}
	return v, nil
}

// ReadBase reads the Base of a process that is held at its first instruction.
func ReadBase(pid int) (Base, error) {
	var b Base
	var err error
	if b.limits, err = limits(pid); err != nil {
		return b, err
	}
	if b.affinity, err = affinity(pid); err != nil {
		return b, err
	}
	dir := fmt.Sprintf("/proc/%d/", pid)
	f, err := statFields(dir + "stat")
	if err != nil {
		return b, err
	}
	b.nice, _ = strconv.Atoi(f[19])
	b.policy = f[40] + " " + f[41]
	b.group, b.session = f[5], f[6]
	b.slack, b.adjust = readLine(dir+"timerslack_ns"), readLine(dir+"oom_score_adj")
	if b.status, err = status(dir + "status"); err != nil {
		return b, err
	}
	if b.namespaces, err = namespaces(dir); err != nil {
		return b, err
	}
	if b.priority, err = ioPriority(pid); err != nil {
		return b, err
	}
	b.files, err = readDescriptors(pid)
	return b, err
}

// WithFilters returns b of a process to which its tracer has added n seccomp filters since.
func (b Base) WithFilters(n int) Base {
	const key = "Seccomp_filters"
	if had, err := strconv.Atoi(b.status[key]); err == nil { // kernels before 5.9 do not count them
		b.status = maps.Clone(b.status)
		b.status[key] = strconv.Itoa(had + n)
	}
	return b
}

// limitNames are the resources of getrlimit(2) as /proc/PID/limits names them.
var limitNames = []string{"Max cpu time", "Max file size", "Max data size", "Max stack size", "Max core file size", "Max resident set",
	"Max processes", "Max open files", "Max locked memory", "Max address space", "Max file locks", "Max pending signals",
	"Max msgqueue size", "Max nice priority", "Max realtime priority", "Max realtime timeout"}

// limits reads the resource limits of a process from /proc. prlimit(2) returns them only
// to the process's own user.
func limits(pid int) ([]Limit, error) {
	path := fmt.Sprintf("/proc/%d/limits", pid)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []Limit
	for line := range strings.Lines(string(b)) {
		i := slices.IndexFunc(limitNames, func(name string) bool { return strings.HasPrefix(line, name+"  ") || strings.HasPrefix(line, name+" ") })
		if i < 0 {
			continue // the heading
		}
		f := strings.Fields(strings.TrimPrefix(line, limitNames[i]))
		if len(f) < 2 {
			return nil, fmt.Errorf("%s: malformed line %q", path, line)
		}
		l := Limit{Resource: i}
		for j, dst := range []*uint64{&l.Cur, &l.Max} {
			if f[j] == "unlimited" {
				*dst = ^uint64(0)
			} else if *dst, err = strconv.ParseUint(f[j], 10, 64); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		all = append(all, l)
	}
	if len(all) != len(limitNames) {
		return nil, fmt.Errorf("%s has %d known limits instead of %d", path, len(all), len(limitNames))
	}
	return all, nil
}

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// affinity returns the mask of the processors that a thread may run on.
func affinity(tid int) ([]byte, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &set); err != nil {
		return nil, fmt.Errorf("affinity of thread %d: %w", tid, err)
	}
	var b []byte
	for _, word := range set {
		b = binary.NativeEndian.AppendUint64(b, uint64(word))
	}
	return b, nil
}

// Source is a process to freeze.
type Source struct {
	*tracer.Proc        // held, and of one's own
	Base         Base   // the process at its first instruction
	Dir          string // its working directory
	// Private is true if no other process sees the files that the process writes, in any
	// directory, and a started process finds them unchanged.
	Private bool
	// Ends is true if the process is killed after it has been frozen. Large parts of its
	// memory are then released once they are in the page file.
	Ends bool
	// Like is another frozen process of the same program, or nil. Memory that has the same
	// bytes in both is compared, and not digested again.
	Like *Like
	// Inherited are descriptors that the process had at its first instruction. If it has
	// not changed them, a started process inherits them from the process that starts it.
	Inherited []int
	// Children is true if a started process may have children.
	Children bool
}

// Freeze describes a process and writes the contents of its memory to pages, an
// empty file that is open for writing. With nil, contents are digested and not kept:
// the process can be compared, through OpenMemory. State that cannot be restored
// exactly is a *Refused.
func Freeze(src Source, pages *os.File) (*Image, error) {
	f := &freezer{p: src.Proc, base: src.Base, private: src.Private, inherited: src.Inherited, children: src.Children, ends: src.Ends, like: src.Like, im: &Image{Dir: src.Dir}}
	for _, step := range []func() error{f.process, f.threads, f.signals, f.files} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if err := f.memory(pages); err != nil {
		return nil, err
	}
	if late := f.p.Late(); len(late) > 0 {
		return nil, refuse("a signal is on its way to it (%v)", late[0])
	}
	return f.im, nil
}

type freezer struct {
	p       *tracer.Proc
	base    Base
	private bool
	ends    bool
	like    *Like
	im      *Image

	inherited []int
	children  bool
}

func (f *freezer) proc(name string) string { return fmt.Sprintf("/proc/%d/%s", f.p.Pid, name) }

// process reads the state that a process has only once, and not for each thread.
func (f *freezer) process() error {
	im := f.im
	var err error
	if im.Exe, err = os.Readlink(f.proc("exe")); err != nil {
		return err
	}
	if strings.HasSuffix(im.Exe, " (deleted)") {
		return refuse("its program has been deleted or replaced (%s)", im.Exe)
	}
	if im.Argv, err = proc.Strings(f.proc("cmdline")); err != nil {
		return err
	}
	if len(im.Argv) == 0 {
		im.Argv = []string{im.Exe}
	}
	if im.Env, err = proc.Strings(f.proc("environ")); err != nil {
		return err
	}
	if cwd, err := os.Readlink(f.proc("cwd")); err != nil || cwd != im.Dir {
		return refuse("its working directory is %s, and it began in %s", cwd, im.Dir)
	}
	if root, err := os.Readlink(f.proc("root")); err != nil {
		return err
	} else if own, err := os.Readlink("/proc/self/root"); err == nil && root != own && root != "/" {
		return refuse("it has changed its root directory to %s", root)
	}
	st, err := status(f.proc("status"))
	if err != nil {
		return err
	}
	umask, err := strconv.ParseInt(st["Umask"], 8, 32)
	if err != nil {
		return fmt.Errorf("umask of process %d: %w", f.p.Pid, err)
	}
	im.Umask = int(umask)
	im.NoNewPrivs = st["NoNewPrivs"] == "1"
	if uid := strings.Fields(st["Uid"]); len(uid) != 4 || uid[0] != uid[1] || uid[0] != uid[2] || uid[0] != uid[3] {
		return refuse("its user ids differ from each other (%s)", st["Uid"])
	}
	for _, key := range []string{"SigPnd", "ShdPnd"} {
		if strings.Trim(st[key], "0") != "" {
			return refuse("a signal is on its way to it")
		}
	}
	if b, err := os.ReadFile(f.proc("timers")); err == nil && len(bytes.TrimSpace(b)) > 0 {
		return refuse("it has a timer of timer_create(2)")
	}
	children, err := filepath.Glob(f.proc("task/*/children"))
	if err != nil {
		return err
	}
	for _, path := range children {
		if line := readLine(path); line != "" && !f.children {
			return refuse("it has a child process (%s)", strings.Fields(line)[0])
		}
	}
	now, err := limits(f.p.Pid)
	if err != nil {
		return err
	}
	for i, l := range now {
		if l != f.base.limits[i] {
			l.Raised = l.Cur > f.base.limits[i].Cur
			im.Limits = append(im.Limits, l)
		}
	}
	fields, err := statFields(f.proc("stat"))
	if err != nil {
		return err
	}
	if len(fields) < 52 {
		return fmt.Errorf("stat of process %d has %d fields", f.p.Pid, len(fields))
	}
	if pgrp, session := fields[5], fields[6]; pgrp != f.base.group || session != f.base.session {
		return refuse("it has changed its process group or its session")
	}
	if readLine(f.proc("oom_score_adj")) != f.base.adjust {
		return refuse("it has changed oom_score_adj")
	}
	m := &im.Memory
	for i, dst := range map[int]*uint64{26: &m.StartCode, 27: &m.EndCode, 28: &m.StartStack, 45: &m.StartData, 46: &m.EndData,
		47: &m.StartBrk, 48: &m.ArgStart, 49: &m.ArgEnd, 50: &m.EnvStart, 51: &m.EnvEnd} {
		if *dst, err = strconv.ParseUint(fields[i], 10, 64); err != nil {
			return fmt.Errorf("stat of process %d: %w", f.p.Pid, err)
		}
	}
	if m.Auxv, err = os.ReadFile(f.proc("auxv")); err != nil {
		return err
	}
	im.Boot = BootID()
	return nil
}

// BootID names the present boot of this machine: the monotonic clock begins with
// it.
func BootID() string { return readLine("/proc/sys/kernel/random/boot_id") }

// threads reads the state of each thread.
func (f *freezer) threads() error {
	for _, tid := range f.p.Threads {
		t := Thread{Tid: tid, Regs: f.p.Registers(tid)}
		if t.Regs.Cs != 0x33 {
			return refuse("a thread runs 32-bit code")
		}
		if err := f.interrupted(&t); err != nil {
			return err
		}
		var err error
		if t.Xstate, err = f.p.Xstate(tid); err != nil {
			return err
		}
		if t.Mask, err = f.p.SignalMask(tid); err != nil {
			return err
		}
		rseq, err := f.p.Rseq(tid)
		if err != nil {
			return err
		}
		t.RseqAddress, t.RseqSize, t.RseqSig = rseq.Address, rseq.Size, rseq.Signature
		robust, err := f.p.RobustList(tid)
		if err != nil {
			return err
		}
		t.RobustHead, t.RobustSz = robust.Head, robust.Size
		dir := fmt.Sprintf("task/%d/", tid)
		t.Name = readLine(f.proc(dir + "comm"))
		mask, err := affinity(tid)
		if err != nil {
			return err
		}
		if !bytes.Equal(mask, f.base.affinity) {
			t.Affinity = mask
		}
		st, err := status(f.proc(dir + "status"))
		if err != nil {
			return err
		}
		if strings.Trim(st["SigPnd"], "0") != "" {
			return refuse("a signal is on its way to one of its threads")
		}
		if err := f.kept(&t, dir, st); err != nil {
			return err
		}
		if err := f.sequence(&t); err != nil {
			return err
		}
		var l list
		address, alt := l.space(8), l.space(len(t.AltStack))
		l.add("ask for the thread's id address", 0, unix.SYS_PRCTL, unix.PR_GET_TID_ADDRESS, address)
		l.add("ask for the thread's signal stack", 0, unix.SYS_SIGALTSTACK, 0, alt)
		data, err := l.execute(f.p, tid)
		if err != nil {
			return fmt.Errorf("thread %d: %w", tid, err)
		}
		t.TidAddress = binary.LittleEndian.Uint64(data)
		copy(t.AltStack[:], data[8:])
		const onStack, disabled = 1, 2 // SS_ONSTACK, SS_DISABLE
		flags := binary.LittleEndian.Uint32(t.AltStack[8:])
		t.HasAltStack = flags&disabled == 0
		if flags&onStack != 0 {
			return refuse("a thread is in a signal handler on a stack of its own")
		}
		f.im.Threads = append(f.im.Threads, t)
	}
	return nil
}

// kept reads the state that a thread may change for itself. It refuses a thread that has
// changed other state.
func (f *freezer) kept(t *Thread, dir string, st map[string]string) error {
	for key, name := range keptStatus {
		if st[key] != f.base.status[key] {
			return refuse("it has changed %s (%s: %q, and %q at first)", name, key, st[key], f.base.status[key])
		}
	}
	ns, err := namespaces(f.proc(dir))
	if err != nil {
		return err
	}
	if !maps.Equal(ns, f.base.namespaces) {
		return refuse("it has changed its namespaces")
	}
	if priority, err := ioPriority(t.Tid); err != nil {
		return err
	} else if priority != f.base.priority {
		return refuse("it has changed its priority for input and output")
	}
	fields, err := statFields(f.proc(dir + "stat"))
	if err != nil {
		return err
	}
	if nice, _ := strconv.Atoi(fields[19]); nice != f.base.nice {
		t.Nice = &nice
	}
	if fields[40]+" "+fields[41] != f.base.policy {
		return refuse("it has changed its scheduling policy")
	}
	if slack := readLine(fmt.Sprintf("/proc/%d/timerslack_ns", t.Tid)); slack != f.base.slack {
		if t.TimerSlack, err = strconv.ParseUint(slack, 10, 64); err != nil {
			return err
		}
	}
	const files, directories = 2, 3 // KCMP_FILES, KCMP_FS
	for kind, name := range map[int]string{files: "descriptors", directories: "a working directory"} {
		if leader := f.p.Threads[0]; t.Tid != leader {
			same, err := kcmp(leader, t.Tid, kind, 0, 0)
			if err != nil {
				return err
			}
			if !same {
				return refuse("a thread has %s of its own", name)
			}
		}
	}
	return nil
}

// kcmp compares kernel resources of two threads (kcmp(2)).
func kcmp(a, b, kind int, i, j uintptr) (bool, error) {
	r, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), uintptr(kind), i, j, 0)
	switch e {
	case 0:
		return r == 0, nil
	case unix.ENOSYS, unix.EPERM, unix.EOPNOTSUPP:
		return false, refuse("the kernel does not let its open files be compared (kcmp: %v)", e)
	}
	return false, fmt.Errorf("kcmp: %w", e)
}

// sequence aborts a restartable sequence that a thread is in, as the kernel does before
// it resumes the thread (rseq(2)).
func (f *freezer) sequence(t *Thread) error {
	if t.RseqAddress == 0 {
		return nil
	}
	var b [8]byte
	if err := f.p.Read(t.RseqAddress+8, b[:]); err != nil { // rseq_cs
		return err
	}
	at := binary.LittleEndian.Uint64(b[:])
	if at == 0 {
		return nil
	}
	var cs [32]byte // struct rseq_cs: version, flags, start_ip, post_commit_offset, abort_ip
	if err := f.p.Read(at, cs[:]); err != nil {
		return err
	}
	start, size := binary.LittleEndian.Uint64(cs[8:]), binary.LittleEndian.Uint64(cs[16:])
	if t.Regs.Rip-start < size {
		t.Regs.Rip = binary.LittleEndian.Uint64(cs[24:])
	}
	return nil
}

// interrupted handles a thread that was stopped in a system call which the kernel would
// restart with the remaining time.
func (f *freezer) interrupted(t *Thread) error {
	nr, args, ok := f.p.Call(t.Tid)
	if !ok {
		return nil
	}
	switch nr {
	case unix.SYS_RESTART_SYSCALL:
		// The kernel does not show the call, its arguments and its remaining time. The
		// restored thread makes the call again, with the original time.
		entered, args, known := f.p.Restarting(t.Tid)
		if !known {
			return refuse("a thread waits in a system call that cannot be restarted")
		}
		switch entered {
		case unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_POLL, unix.SYS_FUTEX:
			t.Regs.Rax = entered
			if entered == unix.SYS_FUTEX && futexUntil(args) || entered == unix.SYS_CLOCK_NANOSLEEP && args[1]&1 != 0 {
				f.im.Clock = true
			}
		default:
			return refuse("a thread waits in system call %d, which cannot be restarted", entered)
		}
	case unix.SYS_FUTEX:
		const lockPI, waitRequeuePI, lockPI2 = 6, 11, 13
		if op := args[1] & 0x7f; op == lockPI || op == waitRequeuePI || op == lockPI2 {
			// The word names the owner, by which the kernel finds it.
			return refuse("a thread waits for a lock with priority inheritance")
		}
		if futexUntil(args) {
			f.im.Clock = true
		}
	case unix.SYS_CLOCK_NANOSLEEP:
		if args[1]&1 != 0 { // TIMER_ABSTIME
			f.im.Clock = true
		}
	}
	return nil
}

// futexUntil reports whether a futex(2) waits until a time of the monotonic clock.
func futexUntil(args [6]uint64) bool {
	const waitBitset, lockPI, lockPI2, waitRequeuePI = 9, 6, 13, 11
	if args[3] == 0 {
		return false
	}
	switch args[1] &^ 0x180 { // FUTEX_PRIVATE_FLAG, FUTEX_CLOCK_REALTIME
	case waitBitset, lockPI, lockPI2, waitRequeuePI:
		return true
	}
	return false
}

// process lists the properties that a process can ask the kernel for about itself, each
// with the only value that Start can restore.
var process = []struct {
	name          string
	nr, get, want uint64
}{
	{"whether it keeps capabilities", unix.SYS_PRCTL, unix.PR_GET_KEEPCAPS, 0},
	{"its secure bits", unix.SYS_PRCTL, unix.PR_GET_SECUREBITS, 0},
	{"its handling of broken memory", unix.SYS_PRCTL, unix.PR_MCE_KILL_GET, 2}, // PR_MCE_KILL_DEFAULT
	{"the use of the instruction CPUID", unix.SYS_ARCH_PRCTL, 0x1011, 1},       // ARCH_GET_CPUID
}

// signals reads the signal actions and other properties that the kernel returns only to
// the process itself.
func (f *freezer) signals() error {
	var l list
	var signals []int
	process := process
	if own, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0); err == nil {
		process = slices.Clone(process)
		process[1].want = uint64(own) // inherited
	}
	for sig := 1; sig <= 64; sig++ {
		if sig == int(unix.SIGKILL) || sig == int(unix.SIGSTOP) {
			continue
		}
		signals = append(signals, sig)
		l.add("ask for the action of signal "+strconv.Itoa(sig), 0, unix.SYS_RT_SIGACTION, uint64(sig), 0, l.space(32), 8)
	}
	timers := len(l.data)
	for which := range 3 {
		l.add("ask for interval timer "+strconv.Itoa(which), 0, unix.SYS_GETITIMER, uint64(which), l.space(32))
	}
	reaper := len(l.data)
	l.add("ask whether it is a subreaper", 0, unix.SYS_PRCTL, unix.PR_GET_CHILD_SUBREAPER, l.space(8))
	brk := len(l.calls)
	l.add("ask for the end of its heap", anyResult, unix.SYS_BRK, 0)
	own := len(l.calls)
	for _, p := range process {
		l.add("ask for "+p.name, anyResult, p.nr, p.get, 0, 0, 0, 0)
	}
	death, tsc := len(l.data), 0
	l.add("ask for the signal of its parent's death", 0, unix.SYS_PRCTL, unix.PR_GET_PDEATHSIG, l.space(8))
	tsc = len(l.data)
	l.add("ask whether it may read the time stamp counter", 0, unix.SYS_PRCTL, unix.PR_GET_TSC, l.space(8))
	dumpable := len(l.calls)
	l.add("ask whether it may be dumped", anyResult, unix.SYS_PRCTL, unix.PR_GET_DUMPABLE)
	results, data, err := l.results(f.p, f.p.Threads[0])
	if err != nil {
		return err
	}
	for i, sig := range signals {
		a := Action{Signal: sig}
		copy(a.Raw[:], data[32*i:])
		if a.Raw != [32]byte{} {
			f.im.Actions = append(f.im.Actions, a)
		}
	}
	for which := range 3 {
		t := IntervalTimer{Which: which}
		copy(t.Raw[:], data[timers+32*which:])
		if t.Raw != [32]byte{} {
			f.im.Timers = append(f.im.Timers, t)
		}
	}
	for i, p := range process {
		if results[own+i] != p.want {
			return refuse("it has changed %s", p.name)
		}
	}
	if sig := binary.LittleEndian.Uint32(data[death:]); sig != 0 && sig != uint32(unix.SIGKILL) {
		return refuse("it is sent a signal when its parent ends")
	}
	if binary.LittleEndian.Uint32(data[tsc:]) != unix.PR_TSC_ENABLE {
		return refuse("it has forbidden itself the time stamp counter")
	}
	f.im.Subreaper = binary.LittleEndian.Uint32(data[reaper:]) != 0
	f.im.Memory.Brk = results[brk]
	f.im.Dumpable = results[dumpable] == 1
	if !f.im.Dumpable {
		return refuse("it has made itself undumpable")
	}
	return nil
}

// refusedFlags are flags of smaps (proc_pid_smaps(5)) of memory that cannot be
// restored.
var refusedFlags = map[string]string{
	"ht": "memory of huge pages of hugetlbfs", "ss": "a shadow stack", "um": "memory under userfaultfd", "uw": "memory under userfaultfd",
	"ui": "memory under userfaultfd", "pf": "memory of a device", "io": "memory of a device", "sl": "sealed memory", "dp": "droppable memory",
}

// advised are the flags of smaps that madvise(2) sets.
var advised = []struct {
	flag   string
	advice int
}{{"dc", unix.MADV_DONTFORK}, {"wf", unix.MADV_WIPEONFORK}, {"dd", unix.MADV_DONTDUMP}, {"hg", unix.MADV_HUGEPAGE}, {"nh", unix.MADV_NOHUGEPAGE}, {"mg", unix.MADV_MERGEABLE}}

// forkAdvice reports whether a VMA has advice that has no effect on a mapping of a file, or
// loses its effect when the content of the mapping is discarded.
func (v *VMA) forkAdvice() bool {
	return slices.Contains(v.Advice, unix.MADV_DONTFORK) || slices.Contains(v.Advice, unix.MADV_WIPEONFORK)
}

// copyLimit is the size up to which memory is copied at the start rather than
// mapped, bytes: a page fault costs as much as copying some pages.
const copyLimit = 256 << 10

// memory reads the mappings and writes their contents.
func (f *freezer) memory(pages *os.File) error {
	all, err := readMappings(f.p.Pid)
	if err != nil {
		return err
	}
	pagemap, err := os.Open(f.proc("pagemap"))
	if err != nil {
		return err
	}
	defer pagemap.Close()
	w := newPageWriter(f.p.Pid, pages)
	defer w.close()
	w.like = f.like
	if f.ends && pages != nil {
		w.free = f.release
	}
	var end int64
	objects := map[uint64]*VMA{}
	for i := range all {
		m := &all[i]
		switch {
		case m.path == "[vdso]":
			f.im.Memory.VDSO = m.Range
			continue
		case strings.HasPrefix(m.path, "[vvar"):
			f.im.Memory.VVAR = append(f.im.Memory.VVAR, m.Range)
			continue
		case m.path == "[vsyscall]":
			continue
		}
		v, err := f.vma(m)
		if err != nil {
			return err
		}
		if v.Kind == KindShared {
			if err := joins(objects, &v); err != nil {
				return err
			}
		}
		if v.Kind == KindCopied && v.Prot != 0 && m.Size() <= guardLimit || m.has("gu") {
			if v.Guards, err = entries(pagemap, m, func(e uint64) bool { return e&guardPage != 0 }); err != nil {
				return err
			}
		}
		if m.rss+m.swap > 0 && (v.Kind != KindFile || m.anonymous+m.swap > 0) {
			runs, err := contents(pagemap, m, v.Kind == KindFile)
			if err != nil {
				return err
			}
			var total int64
			for _, r := range runs {
				total += r.Size
			}
			if total > copyLimit && !v.Shared && !v.Grows && !v.Locked && !v.forkAdvice() && len(v.Guards) == 0 {
				v.Kind = KindPaged
				if m.path != "" && m.path[0] == '/' {
					// The slot replaces the whole mapping, with the unchanged pages of the
					// file too.
					runs = []Extent{{0, int64(min(m.Size(), fileBytes(m)))}}
				}
			}
			if len(runs) > 0 {
				v.Page = end + int64((v.Start-uint64(end))%hugeSize)
				end = v.Page + int64(v.Size())
				if v.Data, err = w.write(v, runs); err != nil {
					return err
				}
			}
		}
		f.im.Maps = append(f.im.Maps, v)
	}
	if slices.ContainsFunc(f.im.Maps, func(v VMA) bool { return v.Locked }) {
		if f.im.LockFuture, err = f.locksFuture(); err != nil {
			return err
		}
	}
	if pages != nil {
		var fs unix.Statfs_t
		if err := unix.Fstatfs(int(pages.Fd()), &fs); err != nil {
			return &os.PathError{Op: "statfs", Path: pages.Name(), Err: err}
		}
		if fs.Flags&unix.ST_NOEXEC != 0 {
			return refuse("the file system of the snapshot is mounted noexec: no memory that maps it could be made executable")
		}
	}
	if f.im.Memory.VDSO.Size() == 0 {
		return refuse("it has no vDSO")
	}
	if err := w.finish(); err != nil {
		return err
	}
	for i := range f.im.Maps {
		v := &f.im.Maps[i]
		if len(v.Data) == 0 && v.Kind == KindPaged {
			v.Kind = KindCopied // only zeros
		}
	}
	f.im.PageBytes, f.im.Pieces = w.kept, w.pieces
	if pages == nil {
		return nil
	}
	return pages.Truncate(int64(pageUp(uint64(end))))
}

// release releases memory of the process. The process keeps the memory if the kernel
// refuses that: it costs time, and changes nothing.
func (f *freezer) release(at, size uint64) {
	_, _ = f.p.Syscall(unix.SYS_MADVISE, at, size, unix.MADV_DONTNEED)
}

// guardLimit is the size up to which memory without content is searched for guard
// pages (MADV_GUARD_INSTALL) on kernels that do not show which has them, bytes.
const guardLimit = 1 << 30

// locksFuture reports whether new mappings of the process are locked (mlockall(2)).
func (f *freezer) locksFuture() (bool, error) {
	at, err := f.p.Alloc(pageSize)
	if err != nil {
		return false, err
	}
	all, err := readMappings(f.p.Pid)
	if err := errors.Join(err, f.p.Free(at, pageSize)); err != nil {
		return false, err
	}
	i := slices.IndexFunc(all, func(m mapping) bool { return m.Start <= at && at < m.End })
	return i >= 0 && all[i].has("lo"), nil
}

// fileBytes returns how many bytes of a mapping lie within its file. The rest cannot be
// read.
func fileBytes(m *mapping) uint64 {
	st, err := os.Stat(m.path)
	if err != nil || st.Size() <= m.offset {
		return 0
	}
	return pageUp(uint64(st.Size() - m.offset))
}

// vma returns the VMA of a mapping, without its content.
func (f *freezer) vma(m *mapping) (VMA, error) {
	v := VMA{Range: m.Range, Prot: m.prot, Shared: m.shared, Grows: m.has("gd"), Reserves: !m.has("nr"), Locked: m.has("lo"), Path: m.path, Offset: m.offset, Inode: m.inode}
	name := m.path
	if name == "" {
		name = fmt.Sprintf("at %#x", m.Start)
	}
	for _, flag := range m.flags {
		if what, ok := refusedFlags[flag]; ok {
			return v, refuse("it has %s (%s)", what, name)
		}
	}
	if m.key != 0 {
		return v, refuse("it has memory with a protection key (%s)", name)
	}
	for _, a := range advised {
		if m.has(a.flag) {
			v.Advice = append(v.Advice, a.advice)
		}
	}
	gone := strings.HasSuffix(m.path, " (deleted)")
	switch {
	case m.path == "/dev/zero (deleted)" && m.shared:
		v.Kind = KindShared
	case strings.HasPrefix(m.path, "/SYSV"):
		return v, refuse("it has System V shared memory")
	case strings.HasPrefix(m.path, "/memfd:"):
		return v, refuse("it has mapped a memfd (%s)", m.path)
	case strings.HasPrefix(m.path, "anon_inode:"):
		return v, refuse("it has mapped %s", m.path)
	case strings.HasPrefix(m.path, "/"):
		if m.shared && m.prot&unix.PROT_WRITE != 0 {
			if PerfData(m.path) && !gone {
				v.Kind = KindShared
				break
			}
			return v, refuse("it has mapped a file for writing, shared with others (%s)", m.path)
		}
		if m.shared && m.has("mw") {
			return v, refuse("it has mapped a file that it may write to, shared with others (%s)", m.path)
		}
		if gone {
			return v, refuse("it has mapped a file that has been deleted (%s)", m.path)
		}
		if strings.HasPrefix(m.path, "/dev/") && !strings.HasPrefix(m.path, "/dev/shm/") {
			return v, refuse("it has mapped a device (%s)", m.path)
		}
		v.Kind = KindFile
	case m.shared:
		return v, refuse("it has shared memory of an unknown kind (%s)", name)
	default:
		v.Kind = KindCopied
	}
	return v, nil
}

// joins sees that the mappings of one object of shared memory lie side by side:
// they are made by one mmap(2) then.
func joins(objects map[uint64]*VMA, v *VMA) error {
	last := objects[v.Inode]
	if last == nil && v.Offset != 0 {
		return refuse("it has unmapped the beginning of shared memory")
	}
	if last != nil && (last.End != v.Start || last.Offset+int64(last.Size()) != v.Offset) {
		return refuse("it has mapped shared memory in more than one place")
	}
	keep := *v
	objects[v.Inode] = &keep
	return nil
}

// Bits of an entry of /proc/PID/pagemap.
const (
	guardPage = 1 << 58
	fromFile  = 1 << 61
	swapped   = 1 << 62
	present   = 1 << 63
)

// contents returns the pages of a mapping that have their own content. With changed it
// leaves out the pages that are equal to the file.
func contents(pagemap *os.File, m *mapping, changed bool) ([]Extent, error) {
	return entries(pagemap, m, func(e uint64) bool {
		return e&(present|swapped) != 0 && e&guardPage == 0 && (!changed || e&fromFile == 0)
	})
}

// entries returns the pages of a mapping for whose pagemap entry wanted returns true.
func entries(pagemap *os.File, m *mapping, wanted func(uint64) bool) ([]Extent, error) {
	const chunk = 1 << 16
	var runs []Extent
	buf := make([]byte, 8*chunk)
	count := int64(m.Size() / pageSize)
	first := int64(m.Start / pageSize)
	for at := int64(0); at < count; {
		n := min(chunk, count-at)
		k, err := pagemap.ReadAt(buf[:8*n], 8*(first+at))
		if int64(k) < 8*n {
			return nil, fmt.Errorf("read pagemap: %d of %d bytes: %w", k, 8*n, err)
		}
		for i := range n {
			if !wanted(binary.NativeEndian.Uint64(buf[8*i:])) {
				continue
			}
			off := (at + i) * pageSize
			if last := len(runs) - 1; last >= 0 && runs[last].Offset+runs[last].Size == off {
				runs[last].Size += pageSize
			} else {
				runs = append(runs, Extent{off, pageSize})
			}
		}
		at += n
	}
	return runs, nil
}
