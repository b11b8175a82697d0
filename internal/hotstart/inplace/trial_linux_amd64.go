package inplace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/procstate"
	"premix/internal/hotstart/tracer"
	"premix/internal/kit/proc"
)

// A trial is one execution of the command of a call in a scratch directory: with other
// words, with placeholders for its inputs, and under an overlay. In the overlay, the trial
// also sees the files of the call's working directory under its own files, and cannot
// write outside its own directory.
type trial struct {
	call    *Call
	state   procstate.Inherited
	words   []string
	values  map[string]string // of late variables
	exact   bool              // the values have their own lengths
	scratch string            // everything that belongs to the trial
	dir     string            // its working directory
	inputs  []string          // the files that replace the inputs, by index of the late word; "" for other words
	pipes   []int             // indexes of the inputs that are pipes
	stdin   string            // file that gives standard input
	number  int               // of the preparation; see late.LettersOf
	second  bool              // preparation B, which differs as much as possible
	seed    *[32]byte         // of random bytes; nil: the kernel's random bytes
	clock   frozen.Moment     // at which the tool begins, with seed
	loads   frozen.Moment     // at which it begins to load its data, if each start executes the head, and else clock
	stop    bool              // hold the tool at its first look into an input after its data
	asks    bool              // with stop: the tool opens no input until then
	data    int               // with stop: the number of opens of data until then
	closes  bool              // hold the tool where it closes the last file of its data
	heads   bool              // each start executes the head
	headAt  int               // with heads: the number of opens of data until its end

	streams *streams
	feeds   []*feed
	input0  os.FileInfo // of standard input
	overlay *tracer.Overlay
	guard   *tracer.Guard // of a tool that was started from a snapshot
	pid     int
	base    frozen.Base
	changed bool // another program took the place of the first

	looks    []hotstart.Access
	came     map[int]time.Duration // index of a look into an input -> when it came
	memory   int64                 // that it had in use at the last of them, bytes
	queued   map[int]time.Duration // the same -> the time until then for which the tool waited for a processor
	began    func(pid int)         // is called when the tool has begun; nil: none
	started  time.Time             // of the execution, with its first instruction or the start from a snapshot
	ended    time.Time
	loaded   int               // opens of data
	parts    []inputPart       // of inputs, which were read before the stop
	relative map[string]string // path of a look -> the path below the working directory
	early    map[string]early
	reads    bool // of standard input
	variable []variable
	given    map[string]bool  // paths that existed in dir before the tool started
	stats    map[int][]byte   // results of stat(2) for inputs, by late word
	streamed map[int][]string // words of standard streams that are files, before the tool began

	first    int             // the process of the program
	children []int           // that it has made
	before   int             // opens of data before the last of them
	fifos    map[string]bool // that the tool has made and opened
	passing  bool            // the tool comes to the open of a FIFO again
	closing  bool            // the trial sees the close of the last file of its data
	opens    map[string]int  // of names, as the tool gives them
	head     *head           // when it ended
	until    *frozen.Head    // hold the tool where this head ends
	parked   chan struct{}   // closed when children may no longer be stopped; nil: none is
	waits    atomic.Bool     // the tool waited for such a child

	thread  *worker // that traces the trial; nil: the thread of Prepare
	held    *tracer.Proc
	results string // directory with the outputs of a trial that has ended

	exit   unix.WaitStatus
	stdout [3][]byte // written bytes, by descriptor
	prefix [3][]byte // bytes that a snapshot had written before the stop
}

// lateDir is the directory in a trial's own for files that late words name elsewhere.
const lateDir = ".premix-late"

// lateForm is the beginning of their names.
const lateForm = "%03d~"

// path returns the path of a late word's file in the trial, and the path that the tool
// uses for it.
func (t *trial) path(word int) (here, known string) {
	known = resolve(t.dir, t.words[word])
	if hotstart.Below(known, t.dir) {
		return known, known
	}
	return filepath.Join(t.dir, lateDir, fmt.Sprintf(lateForm, word)), known
}

// name finds the name of a file that the tool knows by a path.
func (t *trial) name(path string) fileName {
	best := fileName{Word: -1}
	length := 0
	for k, w := range t.call.Words {
		if w.Role == Label {
			continue
		}
		_, known := t.path(k)
		rest, ok := strings.CutPrefix(path, known)
		if !ok || len(known) <= length || w.Role == Input && rest != "" && rest[0] != '.' {
			continue
		}
		best, length = fileName{k, rest}, len(known)
	}
	if best.Word < 0 {
		if rest, ok := strings.CutPrefix(path, t.dir+"/"); ok {
			best.Rest = rest
		} else {
			best.Word = -2
		}
	}
	return best
}

// here returns the path of a file in the trial by its name.
func (t *trial) here(n fileName) string {
	if n.Word < 0 {
		return filepath.Join(t.dir, n.Rest)
	}
	path, _ := t.path(n.Word)
	return path + n.Rest
}

// layOut makes the files that the tool needs in its directory.
func (t *trial) layOut() error {
	if err := os.MkdirAll(filepath.Join(t.dir, lateDir), 0o700); err != nil {
		return err
	}
	original := t.call.words()
	for k, w := range t.call.Words {
		if w.Role == Label {
			continue
		}
		here, _ := t.path(k)
		real := resolve(t.call.Dir, original[k])
		if kindAt(filepath.Dir(real)) == "dir" {
			if err := os.MkdirAll(filepath.Dir(here), 0o755); err != nil {
				return err
			}
		}
		switch {
		case t.inputs[k] != "":
			if k > 0 {
				time.Sleep(apart)
			}
			if err := t.input(t.inputs[k], here); err != nil {
				return err
			}
			var err error
			if t.stats[k], err = statBytes(here); err != nil {
				return err
			}
			if e := t.overlay.FakeHost; e != nil {
				var st unix.Stat_t
				if err := unix.Stat(here, &st); err != nil {
					return &os.PathError{Op: "stat", Path: here, Err: err}
				}
				e.Files[[2]uint64{st.Dev, st.Ino}] = true
				e.Restat(t.stats[k], t.asks)
			}
		case t.call.isDirectory(k):
			if err := os.Mkdir(here, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	t.given = map[string]bool{}
	return filepath.WalkDir(t.dir, func(path string, _ fs.DirEntry, err error) error {
		t.given[path] = true
		return err
	})
}

// statBytes returns struct stat of a file, as stat(2) writes it.
func statBytes(path string) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return bytesOf(&st), nil
}

// streamWords returns the facts that a program may keep of a standard stream that is a file,
// each as a late word: the words of statWords, and the offset.
func streamWords(f *os.File) ([]string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	at, err := unix.Seek(int(f.Fd()), 0, io.SeekCurrent)
	if err != nil {
		return nil, &os.PathError{Op: "lseek", Path: f.Name(), Err: err}
	}
	return append(statWords(bytesOf(&st)), string(binary.NativeEndian.AppendUint64(nil, uint64(at)))), nil
}

// blockSize returns the block size in a struct stat.
func blockSize(b []byte) int64 {
	at := unsafe.Offsetof(unix.Stat_t{}.Blksize)
	return int64(binary.NativeEndian.Uint64(b[at:]))
}

func bytesOf(st *unix.Stat_t) []byte {
	return slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(st)), unsafe.Sizeof(*st)))
}

// statWords returns the parts of struct stat that a program may keep, each as a late word:
// the whole struct, the number of the inode, the size, the times, the seconds of the
// modification time, the device, the owner and the blocks. It leaves out other numbers that
// many files share. Placeholders have access and modification times in the past, at which no
// clock of a trial is, and preparations other than A have the device, the owner and the
// blocks of a tracer.FakeHost.
func statWords(b []byte) []string {
	var all []string
	for _, part := range [][2]int{{0, len(b)}, {8, 16}, {48, 56}, {72, 88}, {88, 104}, {104, 120}, {88, 96}, {0, 8}, {28, 36}, {64, 72}} {
		all = append(all, string(b[part[0]:part[1]]))
	}
	return all
}

// input puts a file at the place of an input: a symlink to it in the second preparation, if it is a
// regular file, and where the number of its hard links must be the same from trial to trial.
func (t *trial) input(file, here string) error {
	if (t.second && t.stop || t.heads && !t.stop) && kindAt(file) != "pipe" {
		return os.Symlink(file, here)
	}
	return os.Link(file, here)
}

// environment returns the environment of the trial, with late variables padded unless they
// are exact.
func (t *trial) environment() []string {
	var env []string
	for _, kv := range t.call.Env {
		if name, _, ok := strings.Cut(kv, "="); ok && t.call.isLate(name) {
			value := t.values[name]
			if !t.exact {
				value = strings.Repeat("x", PadSize-1)
			}
			kv = name + "=" + value
		}
		env = append(env, kv)
	}
	return env
}

// begin executes the program and holds it before its first instruction.
func (t *trial) begin() (*tracer.Proc, error) {
	files, err := t.open()
	if err != nil {
		return nil, err
	}
	env := t.environment()
	attr := &os.ProcAttr{Dir: t.dir, Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}}
	var p *tracer.Proc
	if t.stop {
		p, _, err = tracer.Spawn(t.call.Exe, t.call.withWords(t.words), attr)
	} else {
		p, err = tracer.SpawnPlain(t.call.Exe, t.call.withWords(t.words), attr) // the proof shows what depends on addresses
	}
	t.streams.given()
	if err != nil {
		return nil, err
	}
	t.pid = p.Pid
	if !t.exact {
		if t.variable, err = variables(p, env, t.call.isLate); err != nil {
			return p, err
		}
	}
	if err := setVariables(p, t.variable, t.values); err != nil {
		return p, err
	}
	if err := setActions(p, t.state); err != nil {
		return p, err
	}
	if t.seed != nil {
		t.overlay.Random = tracer.NewEntropy(*t.seed)
		began := clockAt(t.clock)
		t.overlay.Clock = &began
		if t.heads && t.number > 0 {
			// A tool may keep the time between two readings.
			t.overlay.Clock.Pace = 783 + 227*int64(t.number)
			t.overlay.Streams = true
		}
		if t.heads {
			t.overlay.Alone = p.Pid
		}
	}
	t.overlay.Facts = t.stop
	if err := t.overlay.Install(p); err != nil {
		return p, err
	}
	t.base, err = frozen.ReadBase(p.Pid)
	return p, err
}

// clockAt returns a clock at some time.
func clockAt(m frozen.Moment) tracer.Clock {
	return tracer.Clock{Realtime: m.Realtime, Monotonic: m.Monotonic, Boottime: m.Boottime, Cycles: m.Cycles}
}

// overwritten returns the memory of the late variables.
func (t *trial) overwritten() (all []frozen.Range) {
	for _, v := range t.variable {
		all = append(all, frozen.Range{Start: v.Address, End: v.Address + PadSize})
	}
	return all
}

// open makes the streams, and returns the descriptors of the tool.
func (t *trial) open() ([]*os.File, error) {
	var err error
	number := t.number
	if !t.stop {
		number = 0
	}
	if t.streams, err = openStreams(t.scratch, t.state, t.stdin, t.stop, number); err != nil {
		return nil, err
	}
	files := slices.Clone(t.streams.files[:])
	if t.input0, err = files[0].Stat(); err != nil {
		return nil, err
	}
	t.streamed = map[int][]string{}
	for _, fd := range t.state.Files() {
		if t.streamed[fd], err = streamWords(files[fd]); err != nil {
			return nil, err
		}
	}
	for _, fd := range t.state.Extra {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		t.streams.close_ = append(t.streams.close_, null)
		for len(files) <= fd {
			files = append(files, nil)
		}
		files[fd] = null
	}
	return files, nil
}

// variables finds the values of late variables in a process that is held at its first
// instruction.
func variables(p *tracer.Proc, env []string, late func(string) bool) ([]variable, error) {
	at, err := environmentAt(p.Pid)
	if err != nil {
		return nil, err
	}
	var all []variable
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		if ok && late(name) {
			b := make([]byte, len(kv))
			if err := p.Read(at, b); err != nil {
				return nil, err
			}
			if string(b) != kv {
				return nil, fmt.Errorf("the variable %s is not in the environment at %#x", name, at)
			}
			_ = value
			all = append(all, variable{name, at + uint64(len(name)) + 1})
		}
		at += uint64(len(kv)) + 1
	}
	return all, nil
}

// environmentAt returns the address of the environment of a process.
func environmentAt(pid int) (uint64, error) {
	fields, err := proc.Stat(pid)
	if err != nil {
		return 0, err
	}
	const envStart = 50 - 3 // proc_pid_stat(5); the first field here is the third
	if len(fields) <= envStart {
		return 0, fmt.Errorf("stat of process %d has %d fields", pid, len(fields))
	}
	return strconv.ParseUint(fields[envStart], 10, 64)
}

// setActions lets a process that is held at its first instruction ignore the signals that
// the caller ignores, and no others.
func setActions(p *tracer.Proc, a procstate.Inherited) error {
	mem, err := p.Alloc(os.Getpagesize())
	if err != nil {
		return err
	}
	for sig, action := range a.Actions() {
		if err := p.Write(mem, action[:]); err != nil {
			return err
		}
		if _, err := p.Syscall(unix.SYS_RT_SIGACTION, uint64(sig), mem, 0, 8); err != nil {
			return fmt.Errorf("set the action of signal %d: %w", sig, err)
		}
	}
	return p.Free(mem, os.Getpagesize())
}

// setVariables writes the values of late variables.
func setVariables(p *tracer.Proc, all []variable, values map[string]string) error {
	for _, v := range all {
		value := values[v.Name]
		if len(value) >= PadSize {
			return unfit("the variable %s has more than %d bytes", v.Name, PadSize-1)
		}
		if err := p.Write(v.Address, append([]byte(value), make([]byte, PadSize-len(value))...)); err != nil {
			return err
		}
	}
	return nil
}

// waitOwn keeps wait4(2) to the children and tracees of the calling thread (__WNOTHREAD).
const waitOwn = 0x20000000

// watch lets the tool run until its end, or until the look into an input at which the
// trial is to stop. The tool is then held.
func (t *trial) watch(ctx context.Context) error {
	pid := t.pid
	stop := context.AfterFunc(ctx, func() { unix.Kill(pid, unix.SIGKILL) })
	defer stop()
	for {
		tid, st, err := t.overlay.Wait(unix.WALL | waitOwn)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("wait for the tool: %w", err)
		}
		if !st.Stopped() {
			_, _ = t.overlay.Handle(tid, st) // it forgets the thread
			if tid != t.pid {
				continue
			}
			t.exit = st
			t.pid = 0
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if t.waits.Load() {
				return passing("before it loads its data it waits for a process that reads its input")
			}
			return nil
		}
		l, err := t.handle(tid, st)
		if errors.Is(err, tracer.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		stop, err := t.decide(l)
		if errors.Is(err, tracer.ErrRedirect) {
			return unfit("it executes a program in the directory of its files (%s)", l.Path)
		}
		if err != nil && !errors.Is(err, tracer.ErrGone) && !errors.Is(err, errParked) {
			return err
		}
		if errors.Is(err, errParked) {
			continue
		}
		if stop {
			return t.hold(tid)
		}
		if err := t.overlay.Continue(tid); err != nil {
			return err
		}
	}
}

func (t *trial) handle(tid int, st unix.WaitStatus) (*tracer.Access, error) {
	if child := tracer.Child(tid, st); child != 0 && tracer.Process(tid) == t.pid {
		t.children, t.before = append(t.children, child), t.loaded
		if t.head != nil && t.stop {
			return nil, unfit("it makes a process while it loads its data")
		}
	}
	exec := int(st)>>16 == unix.PTRACE_EVENT_EXEC
	if exec && tid == t.pid {
		t.changed = true
	}
	if t.guard == nil || int(st)>>16 == unix.PTRACE_EVENT_SECCOMP && t.overlay.Sees(tid) {
		return t.overlay.Handle(tid, st)
	}
	if exec {
		t.overlay.Forget(tid)
	}
	return nil, t.guard.Handle(tid, st)
}

// hold holds the tool at a look of one of its threads.
func (t *trial) hold(tid int) error {
	process := tracer.Process(tid)
	all, err := hotstart.Processes(t.pid)
	if err != nil {
		return err
	}
	if len(all) > 1 && !t.heads || process != t.pid {
		return unfit("it consists of %d processes at its input", len(all))
	}
	if t.until != nil {
		if t.head, err = t.readHead(); err != nil {
			return err
		}
	}
	if t.held, err = t.overlay.Hold(process, tid); err != nil {
		return err
	}
	for i := 1; i < 3; i++ {
		if t.stdout[i], err = t.streams.written(i); err != nil {
			return err
		}
	}
	return nil
}

// temporary returns the trial's path for a file that the tool names in a directory for
// temporary files, or "". Another process may use the same name in that directory.
func (t *trial) temporary(path string) string {
	dirs := []string{"/tmp", "/var/tmp", "/dev/shm"}
	if v := t.values["TMPDIR"]; v != "" {
		dirs = append(dirs, v)
	}
	if v, ok := lookup(t.call.Env, "TMPDIR"); ok && v != "" {
		dirs = append(dirs, v)
	}
	if !slices.ContainsFunc(dirs, func(dir string) bool { return hotstart.Below(path, dir) }) {
		return ""
	}
	return filepath.Join(t.scratch, "tmp", path)
}

// intoTemporary redirects a look at a temporary file.
func (t *trial) intoTemporary(l *tracer.Access, path, here string, changes bool) (bool, error) {
	if here == "" || t.stop {
		return false, nil // a started process would not find files that were made before the stop
	}
	if !changes && !exists(here) {
		return false, nil
	}
	if err := makeParent(path, here); err != nil {
		return false, err
	}
	return true, t.overlay.Redirect(l, here, "")
}

// makeParent makes the directory of the file here, which replaces path. It does nothing
// if the directory of path does not exist.
func makeParent(path, here string) error {
	if kindAt(filepath.Dir(path)) != "dir" {
		return nil
	}
	return os.MkdirAll(filepath.Dir(here), 0o700)
}

// note keeps a look.
func (t *trial) note(k hotstart.Access) {
	if k.Process != t.pid && t.heads {
		return // the process is made in each start
	}
	if k.Input {
		t.came[len(t.looks)], t.queued[len(t.looks)] = time.Since(t.started), proc.Queued(t.pid)
		t.memory = resident(t.pid)
	}
	if hotstart.OpensData(k) {
		t.loaded++
	}
	t.looks = append(t.looks, k)
}

// due reports whether a look into an input is the one at which the tool must be held.
func (t *trial) due() bool { return t.stop && t.loaded >= t.data }

// partLimits are the number of reads of inputs before the stop, and their bytes, up to which
// they are kept.
const (
	maxParts    = 10_000
	maxPartSize = 1 << 20
)

// read answers a use of the descriptor of an open input, and reports whether the tool must
// be held there.
func (t *trial) read(l *tracer.Access) (stop bool, err error) {
	if t.fifos[l.Path] {
		return t.readFIFO(l)
	}
	word := t.inputAt(l.Path)
	if word < 0 {
		return false, nil // the descriptor is another file's now
	}
	if l.Op == tracer.AccessRead {
		t.note(hotstart.Access{Process: tracer.Process(l.Tid), Op: l.Op, Path: l.Path, Input: true})
	}
	if l.Op == tracer.AccessRead && t.due() || !t.stop {
		return t.due(), nil
	}
	if slices.Contains(t.pipes, word) {
		return false, unfit("it reads its input, which is a pipe, before it has loaded its data")
	}
	offset, length, ok, err := t.overlay.Part(l)
	if err != nil || !ok {
		return false, errors.Join(err, unfit("it maps its input, or makes another descriptor of it, before it has loaded its data"))
	}
	part := inputPart{Word: word, Offset: offset}
	if part.Content, err = readPart(t.inputs[word], offset, min(length, maxPartSize)); errors.Is(err, io.EOF) {
		return false, unfit("it reads its input to the end before it has loaded its data")
	} else if err != nil {
		return false, err
	}
	if t.parts = append(t.parts, part); len(t.parts) > maxParts || length > maxPartSize {
		return false, unfit("it reads much of its input before it has loaded its data")
	}
	return false, nil
}

// inputAt returns the index of the late word of the input at a path in the trial, or -1.
func (t *trial) inputAt(path string) int {
	for k, input := range t.inputs {
		if here, _ := t.path(k); input != "" && (path == input || path == here) {
			return k
		}
	}
	return -1
}

// isStandardInput reports whether descriptor 0 of a thread is the standard input of the
// trial. A script gives its children other files.
func (t *trial) isStandardInput(tid int) bool {
	now, err := os.Stat(fmt.Sprintf("/proc/%d/fd/0", tid))
	return err != nil || t.input0 == nil || os.SameFile(now, t.input0)
}

// decide answers a look, and reports whether the tool must be held there.
func (t *trial) decide(l *tracer.Access) (stop bool, err error) {
	k := hotstart.Access{Process: tracer.Process(l.Tid), Op: l.Op, Path: filepath.Clean(l.Path)}
	if k.Process == t.pid && t.passing {
		t.passing = false
		return false, nil
	}
	if k.Process == t.pid && t.stop && t.closes {
		if l.Op == tracer.AccessClose {
			return t.due(), nil
		}
		if l.Op == tracer.AccessOpen && !t.closing && t.loaded == t.data-1 && t.opensData(l, k) {
			t.closing = true
			return false, t.overlay.FollowClose(l)
		}
	}
	if done, stop, err := t.inHead(l, k); done || err != nil {
		return stop, err
	}
	switch {
	case l.Op == tracer.AccessRead && l.Descriptor == 0 && t.isStandardInput(l.Tid):
		if t.reads {
			return false, nil
		}
		t.reads = true
		t.note(hotstart.Access{Process: k.Process, Op: l.Op, Path: "standard input", Input: true})
		if t.stop && !t.due() {
			return false, unfit("it reads its standard input before it has loaded its data")
		}
		return t.stop, nil
	case l.Op == tracer.AccessRead || l.Op == tracer.AccessShare:
		return t.read(l)
	case l.Op == tracer.AccessSocket:
		return false, t.socket(l)
	case l.Op == tracer.AccessFact, l.Op == tracer.AccessState, l.Op == tracer.AccessSystem, l.Op == tracer.AccessAttributes:
		return false, t.asked(k)
	case l.Op == tracer.AccessChange && l.Path == "":
		return false, unfit("it changes a file that it names by a descriptor")
	case l.Path == "":
		return false, nil
	case l.Op == tracer.AccessOpen && isOwnTable(k.Path, k.Process):
		return false, unfit("it reads %s before it has loaded its data", filepath.Base(k.Path))
	case l.Target != "":
		return false, t.move(l)
	}
	name := t.name(k.Path)
	if former, _ := lookup(t.call.Env, formerDir); name.Word == -2 && l.Op == tracer.AccessStat && l.Path == t.values[formerDir] && isDirectory(former) {
		return false, t.overlay.Redirect(l, t.scratch, "") // a shell asks whether it is a directory
	}
	changes := l.Op == tracer.AccessWrite || l.Op == tracer.AccessChange
	if changes && name.Word > -2 && !t.contains(t.here(name)) {
		return false, unfit("it writes to %s through a link", k.Path)
	}
	below := hotstart.Below(k.Path, t.dir)
	inside, relative := strings.CutPrefix(l.Path, t.dir+"/") // with ".." it may lead out
	switch {
	case name.Word >= 0:
		if changes && t.call.Words[name.Word].Role == Input {
			u := &Unfit{Reason: fmt.Sprintf("it writes to %s, which is an input", t.words[name.Word]+name.Rest)}
			if name.Rest == "" {
				u.Written = &t.call.Words[name.Word]
			}
			return false, u
		}
		into := l.Op == tracer.AccessOpen && t.inputs[name.Word] != "" && name.Rest == ""
		k.Input = into
		if into {
			t.note(k)
			if t.ofChild(k) && t.stop {
				t.park()
				return false, errParked
			}
			if t.due() {
				return true, nil
			}
		}
		if t.stop && !into && slices.Contains(t.pipes, name.Word) {
			return false, unfit("it looks at its input, which is a pipe, before it has loaded its data")
		}
		if _, known := t.early[name.key()]; !known && !t.ofChild(k) {
			t.early[name.key()] = early{name, kindAt(t.here(name))}
		}
		if l.Op == tracer.AccessOpen && k.Process == t.pid && below && t.isFIFO(k.Path) {
			return false, t.followFIFO(l, k.Path)
		}
		switch {
		case into && t.guard == nil && !t.ofChild(k):
			return false, t.overlay.Follow(l, t.here(name))
		case l.Op == tracer.AccessStat && t.overlay.FakeHost != nil: // it has the result altered
		case below:
			return false, nil
		}
		return false, t.overlay.Redirect(l, t.here(name), "")
	case below && l.Op == tracer.AccessOpen && k.Process == t.pid && t.isFIFO(k.Path):
		return false, t.followFIFO(l, k.Path)
	case below && exists(k.Path) && l.Op == tracer.AccessStat && t.heads && t.overlay.FakeHost != nil:
		return false, t.overlay.Redirect(l, l.Path, "") // it has the result altered
	case below && exists(k.Path) && !(changes && t.given[k.Path]):
		if t.stop && !t.ofChild(k) && l.Op == tracer.AccessOpen && kindAt(k.Path) == "dir" {
			return false, unfit("it lists a directory below its working directory")
		}
		return false, nil
	case below && changes:
		if t.given[k.Path] {
			return false, unfit("it changes %s", inside)
		}
		if _, known := t.early[name.key()]; !known && !t.ofChild(k) {
			t.early[name.key()] = early{name, kindAt(k.Path)}
		}
		return false, nil
	case relative:
		k.Path = filepath.Join(t.call.Dir, inside)
		if changes {
			return false, unfit("it writes to %s, which no late word names", k.Path)
		}
		t.relative[k.Path] = inside
		t.note(k)
		if !exists(k.Path) {
			return false, nil // nor is it there in the scratch directory
		}
		return false, t.overlay.Redirect(l, k.Path, "")
	case slices.Contains(harmless, k.Path):
		return false, nil
	}
	if done, err := t.intoTemporary(l, k.Path, t.temporary(k.Path), changes); done || err != nil {
		return false, err
	}
	if changes {
		return false, unfit("it writes to %s, which no late word names", k.Path)
	}
	if !hotstart.Below(k.Path, t.scratch) {
		t.note(k)
	}
	if l.Op == tracer.AccessStat && t.overlay.FakeHost != nil && (t.heads || kindAt(k.Path) == "dir") {
		return false, t.overlay.Redirect(l, l.Path, "") // it has the result altered
	}
	return false, nil
}

// isOwnTable reports whether a path names the cgroups or the mounts of a process. They
// differ between calls, and the preparations of one call have the same.
func isOwnTable(path string, process int) bool {
	rest, ok := strings.CutPrefix(path, fmt.Sprintf("/proc/%d/", process))
	if !ok {
		rest, ok = strings.CutPrefix(path, "/proc/self/")
	}
	return ok && slices.Contains([]string{"cgroup", "mountinfo", "mountstats"}, rest)
}

// varied are the facts that differ between preparations, or that have snapshots of their own
// (package procstate).
var varied = []string{tracer.FactProcessors, tracer.FactNice, tracer.FactIO, tracer.FactPolicy, tracer.FactInherited}

// asked notes a question of the tool about the machine, the process or a file.
func (t *trial) asked(l hotstart.Access) error {
	switch {
	case l.Op == tracer.AccessState:
		return unfit("it has used %s", l.Path)
	case l.Op == tracer.AccessSystem, slices.Contains(varied, l.Path), strings.HasPrefix(l.Path, tracer.FactLimit):
		return nil
	case l.Op == tracer.AccessAttributes && (t.name(l.Path).Word > -2 || hotstart.Below(l.Path, t.scratch)):
		return unfit("it asks for the extended attributes of %s before it has loaded its data", t.name(l.Path).in(t.call.Dir, t.call.words()))
	case l.Path != ".":
		t.note(l)
	}
	return nil
}

// harmless are files that a trial may write to.
var harmless = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/stdout", "/dev/stderr"}

// contains reports whether a file that is going to be changed is one of the trial's own,
// links followed.
func (t *trial) contains(path string) bool {
	for range 10 {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return true // the call will fail
		}
		path = filepath.Join(dir, filepath.Base(path))
		if !hotstart.Below(path, t.dir) {
			return false
		}
		to, err := os.Readlink(path)
		if err != nil {
			return true
		}
		path = resolve(dir, to)
	}
	return false
}

// socket answers a call that makes a socket. Another machine, or a service of this one,
// must not hear of a trial.
func (t *trial) socket(l *tracer.Access) error {
	family, err := t.overlay.Family(l)
	if err != nil {
		return err
	}
	if family == unix.AF_UNIX || family == unix.AF_NETLINK {
		return t.overlay.Fail(l, unix.EAFNOSUPPORT) // as on a machine without the service
	}
	return unfit("it makes a socket")
}

// move answers a call that renames or links a file.
func (t *trial) move(l *tracer.Access) error {
	if t.stop {
		return unfit("it renames or links files before its input")
	}
	var here [2]string
	for i, path := range []string{l.Path, l.Target} {
		path = filepath.Clean(path)
		here[i] = t.here(t.name(path))
		if n := t.name(path); n.Word == -2 {
			if here[i] = t.temporary(path); here[i] == "" || i == 0 && !exists(here[i]) {
				return unfit("it renames or links %s, which no late word names", path)
			}
			if err := makeParent(path, here[i]); err != nil {
				return err
			}
		} else if !t.contains(here[i]) || n.Word >= 0 && t.call.Words[n.Word].Role == Input {
			return unfit("it renames or links %s", path)
		}
	}
	return t.overlay.Redirect(l, here[0], here[1])
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// kill ends the tool and all that it has begun, and waits for their end.
func (t *trial) kill() {
	for {
		all := t.overlay.Tids()
		if t.pid != 0 {
			all = append(all, t.pid)
		}
		all = slices.DeleteFunc(all, func(tid int) bool { return unix.Kill(tid, unix.SIGKILL) != nil })
		if len(all) == 0 {
			return
		}
		var st unix.WaitStatus
		tid, err := unix.Wait4(-1, &st, unix.WALL|unix.WNOHANG|waitOwn, nil)
		switch {
		case err == unix.ECHILD:
			return
		case tid <= 0:
			time.Sleep(time.Millisecond)
			continue
		}
		_, _ = t.overlay.Handle(tid, st) // it is dying
		if tid == t.pid && !st.Stopped() {
			t.pid = 0
		}
	}
}

// end kills the tool, and closes its streams.
func (t *trial) end() {
	if t.overlay != nil {
		_ = t.thread.do(func() error { t.kill(); return nil })
	}
	t.thread.end()
	t.thread = nil
	if t.streams != nil {
		t.streams.end()
		t.streams = nil
	}
}

// run runs the command to its end, or to its input.
func (t *trial) run(ctx context.Context, begin func() (*tracer.Proc, error)) error {
	t.overlay = tracer.NewOverlay()
	if t.stop && t.number > 0 {
		t.overlay.FakeHost = &tracer.FakeHost{Number: t.number, Files: map[[2]uint64]bool{}}
		if t.heads {
			t.overlay.FakeHost.Since = time.Now().Unix()
		}
	}
	t.early, t.relative, t.stats = map[string]early{}, map[string]string{}, map[int][]byte{}
	t.fifos, t.opens = map[string]bool{}, map[string]int{}
	t.came, t.queued = map[int]time.Duration{}, map[int]time.Duration{}
	if err := t.layOut(); err != nil {
		return err
	}
	for _, k := range t.pipes {
		t.feeds = append(t.feeds, startFeed(t.inputs[k], !t.stop))
	}
	defer t.endFeeds()
	t.started = time.Now()
	p, err := begin()
	if err != nil {
		return err
	}
	if t.guard != nil {
		err = t.guard.Release(p)
	} else {
		err = t.overlay.Start(p)
	}
	if err != nil {
		return err
	}
	if t.began != nil {
		t.began(p.Pid)
	}
	t.first = p.Pid
	err = t.watch(ctx)
	if t.parked != nil {
		close(t.parked)
	}
	if err != nil {
		return err
	}
	if t.stop {
		return nil
	}
	t.ended = time.Now()
	t.kill()
	for i := 1; i < 3; i++ {
		if t.stdout[i], err = t.streams.written(i); err != nil {
			return err
		}
		t.stdout[i] = append(t.prefix[i], t.stdout[i]...)
	}
	return nil
}

// facts describes a trial that is held, for a comparison.
func (t *trial) facts() frozen.Preparation {
	p := frozen.Preparation{Pid: t.pid, Children: t.children, Began: t.loads, Dir: t.dir}
	if c := t.overlay.Clock; c != nil {
		p.Stopped = frozen.Moment{Realtime: c.Realtime, Monotonic: c.Monotonic, Boottime: c.Boottime, Cycles: c.Cycles}
	}
	return p
}

// freeze freezes a trial that is held. If pages is not nil, the trial cannot go on. Otherwise
// its memory is kept, and is compared with like.
func (t *trial) freeze(pages *os.File, like *frozen.Like) (*frozen.Image, error) {
	src := frozen.Source{Proc: t.held, Base: t.base.WithFilters(t.overlay.Filters(t.held.Pid)), Dir: t.dir, Ends: pages != nil, Like: like,
		Inherited: t.inherited(), Children: t.heads}
	if t.head != nil {
		src.Base = src.Base.WithHead(t.head.Head)
		for _, f := range t.head.Files {
			src.Inherited = append(src.Inherited, f.FD)
		}
	}
	return frozen.Freeze(src, pages)
}

func (t *trial) inherited() []int { return append([]int{0, 1, 2}, t.state.Extra...) }

// nameOf finds the name of a file that is in the trial's directory.
func (t *trial) nameOf(path string) fileName {
	late, ok := strings.CutPrefix(path, filepath.Join(t.dir, lateDir)+"/")
	if !ok {
		return t.name(path)
	}
	var n fileName
	if _, err := fmt.Sscanf(late, lateForm, &n.Word); err != nil {
		return fileName{Word: -2}
	}
	_, n.Rest, _ = strings.Cut(late, "~")
	return n
}

// openName finds the name of an open file; Word is -2 where it is the same in every call.
func (t *trial) openName(f *frozen.File) fileName {
	if k := t.inputAt(f.Path); k >= 0 {
		return fileName{Word: k}
	}
	if !f.Inside {
		return fileName{Word: -2}
	}
	return t.nameOf(filepath.Join(t.dir, f.Path))
}

// made returns the files and directories that the tool has made, directories first.
func (t *trial) made() ([]made, error) {
	var all []made
	found := 0
	err := filepath.WalkDir(t.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if t.given[path] {
			found++
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		m := made{Name: t.nameOf(path), Mode: info.Mode()}
		switch {
		case m.Mode.IsRegular():
			if info.Size() > madeLimit {
				return unfit("it makes a large file before its input")
			}
			m.Content.Bytes, err = os.ReadFile(path)
		case !m.Mode.IsDir():
			err = unfit("it makes a file of an unsupported type (%v)", m.Mode.Type())
		}
		all = append(all, m)
		return err
	})
	if err == nil && found != len(t.given) {
		err = unfit("it removes files before its input")
	}
	return all, err
}

// madeLimit is the size up to which a file that the tool makes before its input is kept,
// bytes.
const madeLimit = 1 << 20

// beginHot starts the tool from a snapshot, with noise in its memory, and holds it.
func (t *trial) beginHot(ctx context.Context, s *Snapshot, noise []frozen.Patch) (*tracer.Proc, error) {
	if s.plan.Heads {
		return t.beginHead(ctx, s, noise)
	}
	files, err := t.open()
	if err != nil {
		return nil, err
	}
	st := &start{snap: s, noise: noise, argv: t.call.withWords(t.words), env: t.call.Env, dir: t.dir, words: t.words, values: t.values,
		files: files, inherited: t.inherited(), filter: t.overlay.GuardedFilter(), here: t.here,
		attr: syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}}
	p, err := st.begin()
	t.streams.given()
	if p != nil {
		t.pid = p.Pid
	}
	if err != nil {
		return nil, err
	}
	t.guard = st.guard
	if err := st.openPipes(nil); err != nil {
		return p, err
	}
	return p, st.finish(func(fd int, b []byte) error {
		t.prefix[fd] = b
		return nil
	})
}
