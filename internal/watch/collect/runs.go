package collect

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/engine/spawn"
	"premix/internal/kit/owner"
	"premix/internal/record"
	"premix/internal/watch"
)

// run is a run directory or task directory that the collector follows.
//
// Its files may belong to any other user: they are opened without following links, only
// regular files are read, and lines that cannot be parsed are skipped.
type run struct {
	dir     string
	here    string          // the name of this machine
	all     bool            // include records of other machines
	pids    map[string]bool // of announcements
	offsets map[string]int64
	hosts   map[string]string // by journal: the machine that writes it; "" if not known yet
	header  *engine.Header    // of a run with a recipe
	names   *queue.Names      // of a task directory
	engine  string            // of its workers
	running map[string]watch.Task
	missing map[string]time.Time // running tasks that were not found, and since when
	changed time.Time            // when data was last read
}

func newRun(dir, here string, all bool, now time.Time) *run {
	return &run{dir: dir, here: here, all: all, pids: make(map[string]bool), offsets: make(map[string]int64), hosts: make(map[string]string),
		running: make(map[string]watch.Task), missing: make(map[string]time.Time), changed: now}
}

func (r *run) state(name ...string) string {
	return filepath.Join(append([]string{r.dir, engine.StateDir}, name...)...)
}

// watched are the directories in which a file changes when a task begins or ends.
func (r *run) watched() []string {
	return []string{r.state(), r.state("tasks"), r.state(engine.QueueDir)}
}

// lostAfter is the time after which a running task counts as lost, because its premix was
// killed: it has no record, and was not found in this time.
const lostAfter = 10 * time.Second

// maxLine is the longest line that is read.
const maxLine = record.MaxLine

// pull reports the changes since the last call, and returns how many tries ended and
// failed. mono is the time by the clock that does not jump, now the wall time.
func (r *run) pull(mono, now time.Time, to watch.Sink) (finished, failed int, err error) {
	if _, err := os.Lstat(r.dir); err != nil {
		return 0, 0, err
	}
	// Running tasks are listed first: the end of a task that ends after this is in its
	// record, which is read later.
	seen := r.look()
	done := make(map[string]bool)
	var errs []error
	for _, path := range r.journals() {
		err := r.follow(path, now, func(rec *record.Task, host string, owner int) {
			t := r.task(rec, host, owner)
			done[t.Key] = true
			delete(r.running, t.Key)
			delete(r.missing, t.Key)
			finished++
			if !t.OK {
				failed++
			}
			to.Task(t)
		})
		errs = append(errs, err)
	}
	for key, t := range seen {
		delete(r.missing, key)
		if _, known := r.running[key]; known || done[key] {
			continue
		}
		r.running[key] = t
		to.Task(t)
	}
	for key, t := range r.running {
		if _, ok := seen[key]; ok {
			continue
		}
		since, ok := r.missing[key]
		if !ok {
			r.missing[key] = mono
			continue
		}
		if gone := mono.Sub(since); gone > lostAfter {
			delete(r.running, key)
			delete(r.missing, key)
			t.End, t.Exit, t.Reason = now.Add(-gone).UTC(), -1, "it ended without a record: its premix was killed"
			finished, failed = finished+1, failed+1
			to.Task(t)
		}
	}
	if finished > 0 || len(r.running) > 0 {
		r.changed = now
	}
	return finished, failed, errors.Join(errs...)
}

// journals returns the paths of all journals.
func (r *run) journals() []string {
	var list []string
	for _, dir := range []string{r.state(), r.state(engine.QueueDir)} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "journal-") && strings.HasSuffix(e.Name(), ".jsonl") {
				list = append(list, filepath.Join(dir, e.Name()))
			}
		}
	}
	return list
}

// openTheirs opens a file that may belong to another user, see run.
func openTheirs(path string) (*os.File, *unix.Stat_t, error) {
	f, err := owner.OpenOthers(path)
	if err != nil {
		return nil, nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return f, &st, nil
}

// follow reads the lines appended to a journal since the last call. It leaves an incomplete
// last line for later.
func (r *run) follow(path string, now time.Time, each func(rec *record.Task, host string, owner int)) error {
	name := filepath.Base(path)
	if info, err := os.Lstat(path); err != nil || info.Size() == r.offsets[name] {
		return nil // it was removed, or has no new data
	}
	f, st, err := openTheirs(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if st.Size < r.offsets[name] {
		r.offsets[name] = 0 // the directory was emptied, and another run has begun in it
	}
	host, known := r.hosts[name]
	if !known {
		if host, known = readHost(f); !known {
			return nil // its head is not complete yet
		}
		r.hosts[name] = host
	}
	if !r.all && host != r.here {
		r.offsets[name] = st.Size
		return nil
	}
	if _, err := f.Seek(r.offsets[name], io.SeekStart); err != nil {
		return err
	}
	in := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		first := r.offsets[name] == 0
		r.offsets[name] += int64(len(line))
		r.changed = now
		if first || len(line) > maxLine {
			continue
		}
		rec := &record.Task{}
		if json.Unmarshal(line, rec) == nil && rec.Task > 0 && !rec.Finished.IsZero() {
			each(rec, host, int(st.Uid))
		}
	}
}

// readLine reads a line with its end. An incomplete line is EOF.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if err == nil || !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	long := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		line, err = in.ReadSlice('\n')
		long = append(long, line...)
	}
	return long, err
}

// readHost returns the host from the head of a table.
func readHost(f *os.File) (host string, ok bool) {
	head := make([]byte, 4<<10)
	n, _ := f.ReadAt(head, 0) // a short file gives EOF
	line, _, whole := bytes.Cut(head[:n], []byte("\n"))
	var h record.Header
	if !whole || json.Unmarshal(line, &h) != nil || h.Format < 1 || h.Format > record.Format {
		return "", false
	}
	return h.Host, true
}

// key returns the key of a try of a task.
func (r *run) key(task, try int) string { return fmt.Sprintf("%s#%d.%d", r.dir, task, try) }

// task makes a report of a record.
func (r *run) task(rec *record.Task, host string, owner int) watch.Task {
	t := r.named(rec.Task, rec.Try)
	if rec.Sample != "" {
		t.Name = rec.Sample
	}
	if rec.Group != "" {
		t.Step = rec.Group
	}
	if rec.Cores > 0 {
		t.Cores = float64(rec.Cores)
	}
	if rec.Memory > 0 {
		t.Memory = rec.Memory
	}
	if t.User == "" {
		t.User = userName(owner)
	}
	t.Node = host
	t.Start, t.Reason = rec.Start, rec.Reason
	if !rec.OK() {
		t.Reason = rec.Cause + ": " + rec.Error
	}
	t.Queued, t.Began, t.End = rec.Queued, rec.Started, rec.Finished
	t.Exit, t.OK = rec.Exit, rec.OK()
	t.CPU, t.MaxRSS = rec.User+rec.System, rec.MaxRSS
	t.Read, t.Written, t.WarmedIn = rec.ReadBytes, rec.WriteBytes, rec.Latency
	return t
}

// named returns the facts about a try that are known before it has a record.
func (r *run) named(task, try int) watch.Task {
	t := watch.Task{Key: r.key(task, try), Run: r.dir, Node: r.here, Engine: r.engineName(), Cores: 1}
	if h := r.plan(); h != nil {
		t.Step, t.Cores, t.Memory = h.Recipe, float64(h.Threads), h.Memory
		return t
	}
	if r.names == nil {
		if _, err := os.Lstat(r.state(engine.QueueDir)); err != nil {
			return t
		}
		r.names = queue.NamesOf(r.dir)
	}
	if n, err := r.names.Of(task); err == nil {
		t.Name, t.Step, t.User, t.Cores, t.Memory = n.Name, n.Group, n.User, float64(n.Cores), n.Memory
	}
	return t
}

// plan returns the head of the plan, or nil if there is none.
func (r *run) plan() *engine.Header {
	if r.header != nil {
		return r.header
	}
	f, _, err := openTheirs(r.state("plan.jsonl"))
	if err != nil {
		return nil
	}
	defer f.Close()
	line, err := readLine(bufio.NewReader(io.LimitReader(f, maxLine)))
	h := &engine.Header{}
	if err != nil || json.Unmarshal(line, h) != nil {
		return nil
	}
	r.header = h
	return h
}

// engineName returns the engine that runs the tasks. A ledger names it.
func (r *run) engineName() string {
	if r.engine != "" {
		return r.engine
	}
	for _, path := range []string{r.state("ledger.jsonl"), r.state(engine.QueueDir, "ledger.jsonl")} {
		f, _, err := openTheirs(path)
		if err != nil {
			continue
		}
		in := bufio.NewReader(io.LimitReader(f, maxLine))
		for range 16 {
			line, err := readLine(in)
			var e struct {
				Engine string `json:"engine"`
			}
			if err != nil {
				break
			}
			if json.Unmarshal(line, &e) == nil && e.Engine != "" {
				r.engine = e.Engine
				break
			}
		}
		f.Close()
	}
	if r.engine == "" {
		return "local" // a ledger may still appear
	}
	return r.engine
}

// look returns the tries that run on this machine: from the status files for tasks without a
// recipe, from the work directories for others.
func (r *run) look() map[string]watch.Task {
	seen := make(map[string]watch.Task)
	add := func(task, try int, began time.Time) {
		key := r.key(task, try)
		t, known := r.running[key]
		if !known {
			t = r.named(task, try)
			t.Began = began
			if t.User == "" {
				var st unix.Stat_t
				if unix.Lstat(r.dir, &st) == nil {
					t.User = userName(int(st.Uid))
				}
			}
			if t.Name == "" {
				t.Name = strconv.Itoa(task)
			}
		}
		seen[key] = t
	}
	entries, err := os.ReadDir(r.state(engine.QueueDir))
	if err == nil {
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "board-") || !e.Type().IsRegular() {
				continue
			}
			b, err := spawn.ReadStatusFile(r.state(engine.QueueDir, e.Name()))
			if err != nil || !b.Alive() {
				continue
			}
			for _, running := range b.Running {
				task, try := spawn.SplitTryID(running.ID)
				add(task, try, running.Started)
			}
		}
		return seen
	}
	for _, dir := range r.workDirs() {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			task, try, ok := strings.Cut(e.Name(), ".")
			t, err := strconv.Atoi(task)
			n, terr := strconv.Atoi(try)
			if !ok || err != nil || terr != nil || !e.IsDir() {
				continue
			}
			if info, err := e.Info(); err == nil {
				add(t, n, info.ModTime().UTC())
			}
		}
	}
	return seen
}

// workDirs returns the directories of work directories that a premix of this machine uses.
// Those of a killed premix stay until the run is resumed.
func (r *run) workDirs() []string {
	var list []string
	// The lock file contains "process PID on HOST".
	if f, _, err := openTheirs(r.state("lock")); err == nil {
		var pid int
		var host string
		if n, err := fmt.Fscanf(f, "process %d on %s", &pid, &host); err == nil && n == 2 && host == r.here && alive(strconv.Itoa(pid)) {
			list = append(list, r.state("tasks"))
		}
		f.Close()
	}
	entries, err := os.ReadDir(r.state())
	if err != nil {
		return list
	}
	for _, e := range entries {
		// It belongs to a worker of an engine, which may be on another machine.
		seat, ok := strings.CutPrefix(e.Name(), "tasks-")
		if ok && e.IsDir() && r.holds(engine.WorkerLock(r.dir, seat)) {
			list = append(list, r.state(e.Name()))
		}
	}
	return list
}

// holds reports whether a premix that has announced this run has a file open.
func (r *run) holds(path string) bool {
	for pid := range r.pids {
		dir := filepath.Join("/proc", pid, "fd")
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended, or belongs to another user
		}
		for _, e := range entries {
			if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && to == path {
				return true
			}
		}
	}
	return false
}

// alive reports whether a process with an id exists.
func alive(pid string) bool {
	_, err := os.Stat("/proc/" + pid)
	return err == nil
}

// userName returns the name of a user, or its number as text.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}
