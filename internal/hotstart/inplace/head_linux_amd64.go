package inplace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/procstate"
	"premix/internal/hotstart/tracer"
	"premix/internal/kit/proc"
)

// How tools are served that make other processes before they load their data. STAR with
// --readFilesCommand, for example, asks ls for the status of its inputs, and has a shell unpack
// them into a FIFO.
//
// The head of a tool is its execution until it loads its data, after it has made its last child.
// Each start executes the head itself, so its children, its files and all that it has learnt from
// them are those of a plain call. At the end of the head, the memory of the process is compared
// with the memory that the preparations had there. Bytes in which no two preparations differed must
// be equal, or the tool goes on plainly. Otherwise the process becomes the frozen process
// (frozen.Image.TakeOver), and keeps the bytes of its head that the load does not change.

// head is the end of the head of a trial.
type head struct {
	*frozen.Head
	files   map[string]headFile // that the tool and its children have made, by their paths
	written [3]int              // bytes that the tool had written to its streams
}

// headFile is a file that the head has made.
type headFile struct {
	mode    fs.FileMode
	content []byte // of a regular file
}

// errParked is the error of decide for a child that is to stay stopped: it reads an input.
var errParked = errors.New("the process stays stopped")

// ofChild reports whether a look belongs to a process that the head has made.
func (t *trial) ofChild(k hotstart.Access) bool { return t.heads && k.Process != t.pid }

// inHead handles the looks that have another meaning where each start executes the head. done is
// true if it has, and stop if the tool must be held there.
func (t *trial) inHead(l *tracer.Access, k hotstart.Access) (done, stop bool, err error) {
	if l.Op == tracer.AccessProcess {
		if t.stop && t.head != nil && !t.ofChild(k) {
			return false, false, unfit("while it loads its data it waits for a process, or sends it a signal")
		}
		return true, false, nil
	}
	if t.ofChild(k) {
		switch l.Op {
		case tracer.AccessRead, tracer.AccessShare, tracer.AccessFact, tracer.AccessState, tracer.AccessSystem, tracer.AccessAttributes:
			return true, false, nil
		}
		return l.Path == "" && l.Op != tracer.AccessSocket && l.Op != tracer.AccessChange, false, nil
	}
	if !t.heads {
		return false, false, nil
	}
	if t.stop && t.head != nil && l.Op != tracer.AccessRead && l.Op != tracer.AccessShare {
		if _, made := t.head.files[k.Path]; made {
			return false, false, unfit("it looks at %s, which it has made, while it loads its data", filepath.Base(k.Path))
		}
	}
	if l.Op != tracer.AccessOpen && l.Op != tracer.AccessWrite {
		return false, false, nil
	}
	name, ok := t.overlay.Name(l)
	if !ok {
		return false, false, nil
	}
	before := t.opens[name]
	t.opens[name]++
	if t.until != nil && t.head == nil {
		ends := name == t.until.Path && before == t.until.Opens
		return ends, ends, nil
	}
	if !t.stop || t.head != nil || t.loaded != t.headAt || !t.opensData(l, k) {
		return false, false, nil
	}
	if t.head, err = t.readHead(); err != nil {
		return false, false, err
	}
	t.head.Path, t.head.Opens, t.head.Seed = name, before, *t.seed
	if !t.overlay.Clock.Settle(clockAt(t.loads)) {
		return false, false, unfit("it reads the clock very often before it loads its data")
	}
	t.overlay.Streams = false
	if err := t.head.refuse(t); err != nil {
		return false, false, err
	}
	// The rest belongs to the head, too.
	t.early, t.parts = map[string]early{}, nil
	for path := range t.head.files {
		t.given[path] = true
	}
	return false, false, nil
}

// opensData reports whether a look is the open of a file that counts as data.
func (t *trial) opensData(l *tracer.Access, k hotstart.Access) bool {
	if t.name(k.Path).Word >= 0 {
		return false
	}
	if inside, ok := strings.CutPrefix(l.Path, t.dir+"/"); ok && !(hotstart.Below(k.Path, t.dir) && exists(k.Path)) {
		k.Path = filepath.Join(t.call.Dir, inside)
	}
	return hotstart.OpensData(k)
}

// readHead reads the state of the tool, which is stopped at a look, at the end of its head.
func (t *trial) readHead() (*head, error) {
	addr, size := t.overlay.Memory(t.pid)
	own, err := frozen.ReadHead(t.pid, frozen.Range{Start: addr, End: addr + size}, t.inherited())
	var refused *frozen.Refused
	if errors.As(err, &refused) {
		return nil, unfit("%s", refused.What)
	}
	if err != nil {
		return nil, err
	}
	own.Children = slices.Clone(t.children)
	h := &head{Head: own, files: map[string]headFile{}}
	for i := 1; i < 3; i++ {
		b, err := t.streams.written(i)
		if err != nil {
			return nil, err
		}
		h.written[i] = len(b)
	}
	return h, filepath.WalkDir(t.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || t.given[path] {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f := headFile{mode: info.Mode()}
		if f.mode.IsRegular() {
			if info.Size() > madeLimit {
				return unfit("it makes a large file before its input")
			}
			f.content, err = os.ReadFile(path)
		}
		h.files[path] = f
		return err
	})
}

// refuse returns an error if the tool has a descriptor at the end of its head whose state a start
// cannot give back.
func (h *head) refuse(t *trial) error {
	for _, f := range h.Files {
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", t.pid, f.FD))
		if err != nil {
			return err
		}
		_, made := h.files[path]
		switch reads := f.Flags&unix.O_ACCMODE != unix.O_WRONLY; {
		case f.Type == unix.S_IFREG && made && reads:
			return unfit("it can read %s, which it has made before it loads its data", filepath.Base(path))
		case f.Type == unix.S_IFREG, f.Type == unix.S_IFIFO && t.fifos[path], slices.Contains(harmless, path):
		default:
			return unfit("before it loads its data it has opened %s", path)
		}
	}
	for _, child := range t.children {
		const memory, files = 1, 2 // KCMP_VM, KCMP_FILES
		for _, kind := range []uintptr{memory, files} {
			if order, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(t.pid), uintptr(child), kind, 0, 0, 0); e == 0 && order == 0 {
				return unfit("it shares its memory or its descriptors with a process that it has made")
			}
		}
	}
	return nil
}

// park notes that a child stays stopped. The tool must not wait for it before it is held.
func (t *trial) park() {
	if t.parked != nil {
		return
	}
	t.parked = make(chan struct{})
	pid := t.pid
	go func() {
		used := time.Duration(-1)
		for idle := 0; idle < idleLooks; {
			select {
			case <-t.parked:
				return
			case <-time.After(time.Second):
			}
			before := used
			if idle, used = idle+1, proc.Used(pid); used != before || !sleeps(pid) {
				idle = 0
			}
		}
		t.waits.Store(true)
		unix.Kill(pid, unix.SIGKILL)
	}()
}

// idleLooks is the number of seconds for which a tool may sleep while a child stays stopped.
const idleLooks = 5

// sleeps reports whether all threads of a process sleep, or are stopped by their tracer.
func sleeps(pid int) bool {
	return !slices.ContainsFunc(proc.Threads(pid), func(tid int) bool { s := proc.State(tid); return s != 'S' && s != 't' })
}

// isFIFO reports whether a path is a FIFO that the tool has made.
func (t *trial) isFIFO(path string) bool { return !t.given[path] && kindAt(path) == "pipe" }

// followFIFO has the trial see the reads of a FIFO that the tool opens.
func (t *trial) followFIFO(l *tracer.Access, path string) error {
	t.fifos[path], t.passing = true, true
	return t.overlay.FollowNext(l)
}

// readFIFO answers a use of a FIFO that the tool has made. Its children write an input into it.
func (t *trial) readFIFO(l *tracer.Access) (stop bool, err error) {
	k := hotstart.Access{Process: tracer.Process(l.Tid), Op: l.Op, Path: l.Path, Input: true}
	if t.ofChild(k) {
		return false, nil
	}
	if l.Op == tracer.AccessRead {
		t.note(k)
		if t.due() {
			return true, nil
		}
	}
	if t.stop {
		return false, unfit("it reads a FIFO that it has made before it has loaded its data")
	}
	return false, nil
}

// output returns the bytes that the tool has written to a standard stream after its head.
func (t *trial) output(fd int) []byte {
	if t.head == nil {
		return t.stdout[fd]
	}
	return t.stdout[fd][t.head.written[fd]:]
}

// appended returns the bytes that the tool, which is held, has added after its head to files that
// it had opened there. It refuses other changes of these files.
func (t *trial) appended() ([]appended, error) {
	if t.head == nil {
		return nil, nil
	}
	var all []appended
	changed := map[string]bool{}
	for path, f := range t.head.files {
		info, err := os.Lstat(path)
		if err != nil {
			return nil, unfit("it removes files before its input")
		}
		if info.Mode() != f.mode {
			return nil, unfit("it changes the mode of %s while it loads its data", filepath.Base(path))
		}
		if !f.mode.IsRegular() {
			continue
		}
		now, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		changed[path] = !bytes.Equal(now, f.content)
	}
	for _, f := range t.head.Files {
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", t.pid, f.FD))
		if err != nil || f.Type != unix.S_IFREG {
			continue // it was closed
		}
		pos, err := offsetOf(t.pid, f.FD)
		if err != nil {
			return nil, err
		}
		if pos == f.Offset {
			continue
		}
		had := t.head.files[path].content
		now, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if !changed[path] || f.Offset != int64(len(had)) || pos != int64(len(now)) || !bytes.HasPrefix(now, had) {
			return nil, unfit("while it loads its data, it reads on in %s, or changes it, which it had opened before", filepath.Base(path))
		}
		if len(now)-len(had) > madeLimit {
			return nil, unfit("it writes much to %s before its input", filepath.Base(path))
		}
		delete(changed, path)
		all = append(all, appended{FD: f.FD, Content: text{Bytes: now[len(had):]}})
	}
	for path, is := range changed {
		if is {
			return nil, unfit("it changes %s while it loads its data", filepath.Base(path))
		}
	}
	return all, nil
}

// offsetOf returns the offset of a descriptor of a process.
func offsetOf(pid, fd int) (int64, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(info), "\n")
	_, value, _ := strings.Cut(line, ":")
	return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
}

// needsHead reports whether the probe has shown that each start must execute the head: the tool
// loads most of the data, and a child reads an input, or the tool reads a FIFO that it has made.
func (t *trial) needsHead() bool {
	reads := len(t.fifos) > 0
	var own, others int64
	seen := map[string]bool{}
	for _, l := range t.looks {
		reads = reads || l.Input && l.Process != t.first
		if !hotstart.OpensData(l) || seen[l.Path] {
			continue
		}
		seen[l.Path] = true
		if info, err := os.Stat(l.Path); err == nil && l.Process == t.first {
			own += info.Size()
		} else if err == nil {
			others += info.Size()
		}
	}
	return reads && own > others
}

// joinHeads notes in which bytes the head of a preparation differs from the head of A.
func (p *preparation) joinHeads(t *trial) error {
	if !p.heads {
		return nil
	}
	err := p.images[0].Head.With(t.head.Head)
	var refused *frozen.Refused
	if errors.As(err, &refused) {
		return unfit("%s", refused.What)
	}
	return err
}

// beginHead executes the head of the tool, which takes the place of the frozen process, with noise
// in its memory, and is held.
func (t *trial) beginHead(ctx context.Context, s *Snapshot, noise []frozen.Patch) (*tracer.Proc, error) {
	st := &start{snap: s, noise: noise, argv: t.call.withWords(t.words), dir: t.dir, words: t.words, values: t.values,
		inherited: t.inherited(), filter: tracer.GuardFilter(), here: t.here}
	var err error
	if st.files, err = t.open(); err != nil {
		return nil, err
	}
	im, err := st.image()
	if err != nil {
		return nil, err
	}
	if err := st.openPages(); err != nil {
		return nil, err
	}
	defer st.pages.Close()
	st.env = t.environment()
	p, _, err := st.spawn(t.state, &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL})
	t.streams.given()
	if err != nil {
		return nil, err
	}
	t.pid, t.first, t.until = p.Pid, p.Pid, im.Head
	t.overlay.Random = tracer.NewEntropy(im.Head.Seed)
	if err := t.overlay.Install(p); err != nil {
		return p, err
	}
	if err := t.overlay.Start(p); err != nil {
		return p, err
	}
	if err := t.watch(ctx); err != nil {
		return nil, err
	}
	if t.held == nil {
		return nil, fmt.Errorf("it ends before it loads its data (%s)", ending(t.exit))
	}
	if reason := im.Head.Check(t.head.Head); reason != "" {
		return t.held, unfit("in a hot start %s", reason)
	}
	if err := st.make(); err != nil {
		return t.held, err
	}
	pages, err := st.openIn(t.held)
	if err != nil {
		return t.held, err
	}
	if err := st.takeOver(t.held, pages, im, t.head.Head); err != nil {
		return t.held, err
	}
	t.overlay.Forget(t.pid)
	t.guard, t.until = st.guard, nil
	return t.held, nil
}

// image reads the image of the snapshot, with the late words of the start.
func (s *start) image() (*frozen.Image, error) {
	im, err := frozen.ReadFile(s.snap.ImagePath())
	if err != nil {
		return nil, err
	}
	if im.Clock && im.Boot != frozen.BootID() {
		return nil, errors.New("a thread waits for a time of the monotonic clock, and the machine was booted since")
	}
	plan := &s.snap.plan
	if s.texts, err = s.late(); err != nil {
		return nil, err
	}
	for i, name := range plan.Files {
		im.Files[i].Path, im.Files[i].Inside = s.here(name), false
		if slices.Contains(plan.Pipes, i) {
			s.pipes = append(s.pipes, im.Files[i])
			im.Files[i].Path = os.DevNull // until openPipes
		}
	}
	s.acts = im.Actions
	return im.With(s.places())
}

// places returns the late words and their places.
func (s *start) places() *frozen.Late {
	return &frozen.Late{Places: s.snap.plan.Places, Offsets: s.snap.plan.Offsets, Words: s.texts}
}

// spawn executes the program as its preparations were executed, and holds it at its first
// instruction. It returns the personality that the program would have had.
func (s *start) spawn(state procstate.Inherited, attr *syscall.SysProcAttr) (*tracer.Proc, uint64, error) {
	p, own, err := tracer.Spawn(s.snap.Exe, s.argv, &os.ProcAttr{Dir: s.dir, Env: s.env, Files: s.files, Sys: attr})
	if err != nil {
		return nil, 0, err
	}
	if err := setVariables(p, s.snap.plan.Variables, s.values); err != nil {
		return p, own, err
	}
	return p, own, setActions(p, state)
}

// openPages opens the page file, and makes the guard of the tool. s.read closes another file.
func (s *start) openPages() (err error) {
	if s.pages, err = os.Open(s.snap.PagePath()); err != nil {
		return err
	}
	if s.guard, err = tracer.NewGuard(s.pages); err != nil {
		return err
	}
	ahead, err := os.Open(s.snap.PagePath())
	if err != nil {
		return err
	}
	if s.single, s.read, err = hotstart.ReadAhead(ahead); s.read == nil {
		ahead.Close()
	}
	return err
}

// openIn opens the page file in a held tool, and returns its descriptor. The store may be gone.
func (s *start) openIn(p *tracer.Proc) (fd uint64, err error) {
	mem, err := p.Alloc(unix.PathMax)
	if err != nil {
		return 0, err
	}
	const cwd = uint64(0xffffffff & unix.AT_FDCWD)
	for _, path := range []string{fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.pages.Fd()), s.snap.PagePath()} {
		if err := p.Write(mem, append([]byte(path), 0)); err != nil {
			return 0, err
		}
		if fd, err = p.Syscall(unix.SYS_OPENAT, cwd, mem, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			break
		}
	}
	return fd, errors.Join(err, p.Free(mem, unix.PathMax))
}

// takeOver turns the tool, which is held at the end of its head, into the frozen process, with all
// that the tool had written while it loaded its data. pages is the descriptor of the page file in
// the tool. After an error the caller must kill p.
func (s *start) takeOver(p *tracer.Proc, pages uint64, im *frozen.Image, live *frozen.Head) error {
	opt := frozen.Options{Dir: s.dir, Random: s.single, Filter: s.filter, Inherited: s.inherited, Pages: int(pages)}
	if err := im.TakeOver(p, live, opt); err != nil {
		return err
	}
	if err := frozen.Apply(p.Pid, s.noise); err != nil {
		return err
	}
	if err := s.places().Write(p); err != nil {
		return err
	}
	if err := setVariables(p, s.snap.plan.Variables, s.values); err != nil {
		return err
	}
	return s.write(p)
}

// write has the tool write the bytes that it had written while it loaded its data.
func (s *start) write(p *tracer.Proc) error {
	if err := s.guard.Attach(p); err != nil {
		return err
	}
	now, err := frozen.Now()
	if err != nil {
		return err
	}
	all := slices.Clone(s.snap.plan.Appended)
	for fd, t := range s.snap.plan.Written {
		all = append(all, appended{fd, t})
	}
	for _, a := range all {
		if len(a.Content.Bytes) == 0 {
			continue
		}
		b, err := a.Content.Now(s.texts, s.snap.plan.Stopped, now)
		if err != nil {
			return err
		}
		mem, err := p.Alloc(len(b))
		if err != nil {
			return err
		}
		if err := p.Write(mem, b); err != nil {
			return err
		}
		for done := 0; done < len(b); {
			n, err := p.Syscall(unix.SYS_WRITE, uint64(a.FD), mem+uint64(done), uint64(len(b)-done))
			switch {
			case errors.Is(err, unix.EAGAIN):
				time.Sleep(time.Millisecond)
			case err != nil && !errors.Is(err, unix.EINTR):
				return fmt.Errorf("write to descriptor %d: %w", a.FD, err)
			}
			done += int(n)
		}
		if err := p.Free(mem, len(b)); err != nil {
			return err
		}
	}
	return nil
}

// runHead starts a call whose head each start executes, and waits for its end.
func (s *start) runHead(state procstate.Inherited, c *Call, signals *signals) (hotstart.Exit, error) {
	lost := hotstart.Exit{Code: -1}
	im, err := s.image()
	if err != nil {
		return lost, err
	}
	if err := s.openPages(); err != nil {
		return lost, err
	}
	defer s.pages.Close()
	s.env = padded(s.env, s.snap.plan.Variables)
	p, own, err := s.spawn(state, &s.attr)
	if err == nil {
		_, err = p.Syscall(unix.SYS_PERSONALITY, own)
	}
	r := &headRun{s: s, im: im, Head: tracer.Head{Path: im.Head.Path, Opens: im.Head.Opens, Random: tracer.NewEntropy(im.Head.Seed)}}
	if err == nil {
		err = r.Begin(p)
	}
	if err != nil {
		s.abandon(p)
		return lost, err
	}
	if s.read != nil {
		go s.read()
	}
	signals.to(p.Pid)
	return wait(p.Pid, signals, r)
}

// padded returns an environment in which late variables have the size that preparations have given
// them.
func padded(env []string, variables []variable) []string {
	env = slices.Clone(env)
	for i, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if slices.ContainsFunc(variables, func(v variable) bool { return v.Name == name }) {
			env[i] = name + "=" + strings.Repeat("x", PadSize-1)
		}
	}
	return env
}

// headRun handles the stops of a tool that executes its head, and then goes on from a snapshot.
type headRun struct {
	tracer.Head
	s     *start
	im    *frozen.Image
	phase headPhase
}

// headPhase is how far a tool has come.
type headPhase int

const (
	inHead headPhase = iota
	taken            // it goes on from the snapshot
	plain            // it goes on plainly
)

// Handle handles a stop.
func (r *headRun) Handle(tid int, st unix.WaitStatus) error {
	switch {
	case r.phase == plain:
		return nil
	case r.phase == taken:
		return r.s.guard.Handle(tid, st)
	case !st.Stopped():
		r.plainly("the tool ended before it had loaded its data")
		return nil
	}
	reached, left, err := r.Head.Handle(st)
	if left {
		r.plainly("the tool executes another program")
	}
	if !reached || err != nil {
		return err
	}
	live, err := frozen.ReadHead(tid, frozen.Range{}, r.s.inherited)
	reason := ""
	if err != nil {
		reason = err.Error()
	} else {
		live.Children = r.Children
		if reason = r.im.Head.Check(live); reason == "" {
			reason = r.s.appends(live)
		}
	}
	if reason != "" {
		r.plainly(reason)
		return r.Leave(0)
	}
	p, err := r.Hold()
	if err != nil {
		return err
	}
	var pages uint64
	if err = r.s.make(); err == nil {
		pages, err = r.s.openIn(p)
	}
	if err != nil {
		r.s.undo()
		r.plainly(err.Error())
		return p.Release()
	}
	r.phase = taken
	if err := r.s.takeOver(p, pages, r.im, live); err != nil {
		return err
	}
	return r.s.guard.Release(p)
}

// plainly notes that the tool goes on plainly, for a reason.
func (r *headRun) plainly(reason string) { r.phase, r.s.snap.Plain = plain, reason }

// appends returns the reason why the bytes of the plan cannot be added to the open files of a
// process, or "".
func (s *start) appends(live *frozen.Head) string {
	for _, a := range s.snap.plan.Appended {
		if f, ok := live.Offset(a.FD); !ok || f.Offset != f.Size {
			return fmt.Sprintf("its descriptor %d is not at the end of its file", a.FD)
		}
	}
	return ""
}
