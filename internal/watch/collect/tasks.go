package collect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/owner"
	"premix/internal/watch"
)

const (
	stateFile = "runs.json" // in the directory of the collector's own state
	// stateEvery is the time between saves of the positions in journals. A save writes the
	// positions of the previous save: by then the sink has stored all data before them.
	stateEvery = 5 * time.Second
	// quietAfter is the time for which a run is followed after its premix is gone.
	quietAfter = 10 * time.Minute
	// forgetAfter is the time for which the positions of an ended run are kept.
	forgetAfter = 30 * 24 * time.Hour
	// gather is the time to wait for further changes before they are read.
	gather = 50 * time.Millisecond
)

// tasks follows the runs of premix, see the section on tasks in the package documentation.
// It saves its positions in
//
//	STATE/runs.json   {"runs":{DIR:{"offsets":{JOURNAL:BYTES},"changed":TIME,"pids":[...],"running":{KEY:TASK}}}}
type tasks struct {
	*machine
	place string // directory of announcements; "" for none
	state string // directory of the saved positions; "" to save none

	mu      sync.Mutex // guards the rest
	b       batch
	fixed   []string // runs that are always followed
	runs    map[string]*run
	resting map[string]savedRun
	pids    map[string]string // run directories by process id
	taken   map[string]string // run directories by announcement that still exists
	fd      int               // of inotify
	wds     map[int32]string  // run directories by watch; "" is place
	started bool
	saved   time.Time
	reached map[string]savedRun // positions at the previous save
	ends    float64
	fails   float64
	running *gauge
	endRate *counter
	badRate *counter
}

// savedRun is the saved state of a run.
type savedRun struct {
	Offsets map[string]int64      `json:"offsets"`
	Changed time.Time             `json:"changed"`
	PIDs    []string              `json:"pids,omitempty"`
	All     bool                  `json:"all,omitempty"`
	Resting bool                  `json:"resting,omitempty"`
	Running map[string]watch.Task `json:"running,omitempty"`
}

func newTasks(m *machine, place, state string, fixed []string) *tasks {
	return &tasks{machine: m, place: place, state: state, fixed: fixed, runs: make(map[string]*run), resting: make(map[string]savedRun),
		pids: make(map[string]string), taken: make(map[string]string), fd: -1, wds: make(map[int32]string),
		running: m.level("task.running"), endRate: m.counter("task.ended"), badRate: m.counter("task.failed")}
}

// Name returns "task".
func (c *tasks) Name() string { return "task" }

// RunOf returns the run directory of a premix process, or "" if it is not known.
func (c *tasks) RunOf(pid string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pids[pid]
}

// Collect reads the changes that inotify did not report, and reports the counts.
func (c *tasks) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.start()
	c.announcements()
	errs := []error{err}
	running := 0
	for dir := range c.runs {
		errs = append(errs, c.pull(dir, to))
		if r := c.runs[dir]; r != nil {
			running += len(r.running)
		}
	}
	c.rest()
	c.b.begin(now, c.now())
	c.b.level(c.running, float64(running))
	c.b.rate(c.endRate, c.ends, 1)
	c.b.rate(c.badRate, c.fails, 1)
	to.Samples(c.b.samples)
	if c.now().Sub(c.saved) >= stateEvery {
		errs = append(errs, c.save(false))
	}
	return errors.Join(errs...)
}

// Follow reads changes as they happen, until the context ends: a run could come and go with
// its directory between two turns.
func (c *tasks) Follow(ctx context.Context, to watch.Sink) {
	c.mu.Lock()
	err := c.start()
	fd := c.fd
	if err == nil {
		for dir := range c.runs { // inotify does not report changes from before the watch
			_ = c.pull(dir, to) // Collect reports errors
		}
	}
	c.mu.Unlock()
	if err != nil || fd < 0 {
		return // without inotify, only Collect reads changes
	}
	// A pipe ends the wait below.
	var stop [2]int
	if unix.Pipe2(stop[:], unix.O_CLOEXEC) != nil {
		return
	}
	defer unix.Close(stop[0])
	finished := context.AfterFunc(ctx, func() { unix.Close(stop[1]) })
	defer func() {
		if finished() {
			unix.Close(stop[1])
		}
	}()
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(stop[0]), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(gather):
		}
		c.mu.Lock()
		c.changes(to)
		c.mu.Unlock()
	}
}

// Close saves the positions. The sink must have stored all data before.
func (c *tasks) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.save(true)
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
	return err
}

// start opens inotify and the directory of announcements. The caller holds mu.
func (c *tasks) start() error {
	if c.started {
		return nil
	}
	c.started = true
	c.saved = c.now()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		err = os.NewSyscallError("inotify_init1", err)
	} else {
		c.fd = fd
	}
	c.load()
	if c.place != "" {
		if perr := makePlace(c.place); perr != nil {
			err = errors.Join(err, fmt.Errorf("runs cannot announce themselves: %w", perr))
		}
		c.watch(c.place, "", unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO)
	}
	for _, dir := range c.fixed {
		c.add(dir, "", true)
	}
	if c.place != "" && c.root == "" {
		c.existing()
	}
	c.announcements()
	return err
}

// makePlace creates the directory of announcements. If root does, all users may write in
// it.
func makePlace(place string) error {
	if base, runtime := owner.RuntimeDir(); strings.HasPrefix(place, runtime+"/") {
		return owner.MakePrivate(base, place)
	}
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o777 | os.ModeSticky
		above := filepath.Dir(place)
		if err := os.MkdirAll(above, 0o755); err != nil {
			return err
		}
		// Another program may have created the directory for a socket first.
		if err := os.Chmod(above, 0o755); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(place, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Do not follow a link that another user has put there.
	f, err := os.OpenFile(place, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := owner.CheckNamed(place); err != nil {
		return err
	}
	return f.Chmod(mode) // whatever the umask
}

func (c *tasks) watch(dir, run string, mask uint32) {
	if c.fd < 0 {
		return
	}
	if wd, err := unix.InotifyAddWatch(c.fd, dir, mask|unix.IN_ONLYDIR); err == nil {
		c.wds[int32(wd)] = run
	}
}

// announcements reads all announcements. The caller holds mu.
func (c *tasks) announcements() {
	if c.place == "" {
		return
	}
	entries, err := os.ReadDir(c.place)
	if err != nil {
		return
	}
	for _, e := range entries {
		_, pid, ok := strings.Cut(e.Name(), "-")
		path := filepath.Join(c.place, e.Name())
		if !ok || c.taken[path] != "" {
			continue
		}
		f, _, err := openTheirs(path)
		if err != nil {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(f, 2*unix.PathMax))
		f.Close()
		dir, whole := strings.CutSuffix(string(text), "\n")
		if err != nil || !whole {
			continue // it is being written
		}
		if !filepath.IsAbs(dir) || strings.Contains(dir, "\n") {
			_ = os.Remove(path)
			continue
		}
		dir = filepath.Clean(dir)
		c.add(dir, pid, false)
		if c.taken[path] = dir; c.state == "" {
			c.remove(path)
		}
	}
}

// remove removes an announcement. It stays until the state file lists the run: a watcher
// that is killed before that finds it again.
func (c *tasks) remove(path string) {
	_ = os.Remove(path) // another user's directory may be in its place
	delete(c.taken, path)
}

// existing finds the runs of processes that began before the watcher, by the lock files
// that they have open. Processes with another PREMIX_HOME would not have announced
// themselves here.
func (c *tasks) existing() {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, d := range dirs {
		if _, err := strconv.Atoi(d.Name()); err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join("/proc", d.Name(), "comm"))
		if err != nil || strings.TrimSpace(string(comm)) != "premix" {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", d.Name(), "environ"))
		if err != nil || homeOf(string(environ)) != os.Getenv("PREMIX_HOME") {
			continue
		}
		fds := filepath.Join("/proc", d.Name(), "fd")
		entries, err := os.ReadDir(fds)
		if err != nil {
			continue
		}
		for _, e := range entries {
			path, err := os.Readlink(filepath.Join(fds, e.Name()))
			if err != nil || !strings.Contains(path, "/.premix/") {
				continue
			}
			base := filepath.Base(path)
			if base == "lock" || strings.HasPrefix(base, "work-") && strings.HasSuffix(base, ".lock") {
				dir, _, _ := strings.Cut(path, "/.premix/")
				c.add(dir, d.Name(), false)
			}
		}
	}
}

// homeOf returns PREMIX_HOME in an environment as /proc shows it.
func homeOf(environ string) string {
	for _, kv := range strings.Split(environ, "\x00") {
		if home, ok := strings.CutPrefix(kv, "PREMIX_HOME="); ok {
			return home
		}
	}
	return ""
}

// add begins to follow a run.
func (c *tasks) add(dir, pid string, all bool) {
	r := c.runs[dir]
	if r == nil {
		here, _ := os.Hostname() // an empty name is fine
		r = newRun(dir, here, all, c.wall())
		if old, ok := c.resting[dir]; ok {
			c.restore(r, old)
			delete(c.resting, dir)
		}
		c.runs[dir] = r
	}
	r.all = r.all || all
	if pid != "" {
		r.pids[pid] = true
		c.pids[pid] = dir
	}
	c.watchRun(r)
}

func (c *tasks) watchRun(r *run) {
	for _, dir := range r.watched() {
		c.watch(dir, r.dir, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_MOVED_TO)
	}
}

// changes reads the events of inotify, and pulls from the runs that they name. The caller
// holds mu.
func (c *tasks) changes(to watch.Sink) {
	dirty := make(map[string]bool)
	announced := false
	buf := make([]byte, 64<<10)
	for c.fd >= 0 {
		n, err := unix.Read(c.fd, buf)
		if err != nil || n <= 0 {
			break // EAGAIN: that was all
		}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at]))
			at += unix.SizeofInotifyEvent + int(e.Len)
			run, ok := c.wds[e.Wd]
			switch {
			case e.Mask&unix.IN_Q_OVERFLOW != 0:
				announced = true
				for dir := range c.runs {
					dirty[dir] = true
				}
			case e.Mask&unix.IN_IGNORED != 0:
				delete(c.wds, e.Wd)
			case ok && run == "":
				announced = true
			case ok:
				dirty[run] = true
			}
		}
	}
	if announced {
		before := len(c.runs)
		c.announcements()
		if len(c.runs) > before {
			for dir := range c.runs {
				dirty[dir] = true
			}
		}
	}
	for dir := range dirty {
		// Collect reports errors, and reads what failed here.
		_ = c.pull(dir, to)
	}
}

// pull reads the new data of a run. The caller holds mu.
func (c *tasks) pull(dir string, to watch.Sink) error {
	r := c.runs[dir]
	if r == nil {
		return nil
	}
	c.watchRun(r) // directories may have been added since
	finished, failed, err := r.pull(c.now(), c.wall(), to)
	c.ends += float64(finished)
	c.fails += float64(failed)
	if missing(err) && !slices.Contains(c.fixed, dir) {
		// The directory was removed with all its records.
		for _, t := range r.running {
			t.End, t.Exit, t.Reason = c.wall().UTC(), -1, "its run directory was removed"
			to.Task(t)
		}
		c.drop(r)
		return nil
	}
	if missing(err) {
		return nil // it may still appear
	}
	return err
}

func (c *tasks) drop(r *run) {
	delete(c.runs, r.dir)
	for pid := range r.pids {
		delete(c.pids, pid)
	}
	for path, dir := range c.taken {
		if _, resting := c.resting[dir]; dir == r.dir && !resting {
			c.remove(path) // the run is over and needs no announcement
		}
	}
	for wd, run := range c.wds {
		if run == r.dir {
			_, _ = unix.InotifyRmWatch(c.fd, uint32(wd)) // it may have been removed with its directory
			delete(c.wds, wd)
		}
	}
}

// rest stops following runs that are over. The caller holds mu.
func (c *tasks) rest() {
	now := c.wall()
	for dir, r := range c.runs {
		if slices.Contains(c.fixed, dir) || now.Sub(r.changed) < quietAfter {
			continue
		}
		if slices.ContainsFunc(slices.Collect(maps.Keys(r.pids)), alive) {
			continue
		}
		c.resting[dir] = r.save(true)
		c.drop(r)
	}
	for dir, s := range c.resting {
		if now.Sub(s.Changed) > forgetAfter {
			delete(c.resting, dir)
		}
	}
}

func (r *run) save(resting bool) savedRun {
	return savedRun{Offsets: maps.Clone(r.offsets), Changed: r.changed, PIDs: slices.Sorted(maps.Keys(r.pids)), All: r.all, Resting: resting, Running: maps.Clone(r.running)}
}

func (c *tasks) restore(r *run, s savedRun) {
	if s.Offsets != nil {
		r.offsets = maps.Clone(s.Offsets)
	}
	for _, pid := range s.PIDs {
		if !s.Resting && alive(pid) {
			r.pids[pid] = true
			c.pids[pid] = r.dir
		}
	}
	r.all, r.changed = r.all || s.All, s.Changed
	for key, t := range s.Running {
		r.running[key] = t
	}
}

// save saves the positions of the previous call or, if last is true, the present ones.
func (c *tasks) save(last bool) error {
	if c.state == "" || !c.started {
		return nil
	}
	now := maps.Clone(c.resting)
	for dir, r := range c.runs {
		now[dir] = r.save(false)
	}
	write := c.reached
	if last {
		write = now
	}
	c.saved, c.reached = c.now(), now
	if write == nil {
		return nil
	}
	text, err := json.Marshal(map[string]any{"runs": write})
	if err == nil {
		path := filepath.Join(c.state, stateFile)
		if err = os.MkdirAll(c.state, 0o750); err == nil {
			err = beneath.Replace(path, 0o600, beneath.Volatile, append(text, '\n'))
		}
	}
	if err != nil {
		return fmt.Errorf("the positions in journals cannot be saved: %w", err)
	}
	for path, dir := range c.taken {
		if _, ok := write[dir]; ok {
			c.remove(path)
		}
	}
	return nil
}

// load reads the saved positions. Journals without one are read from the beginning.
func (c *tasks) load() {
	if c.state == "" {
		return
	}
	text, err := os.ReadFile(filepath.Join(c.state, stateFile))
	if err != nil {
		return
	}
	var saved struct {
		Runs map[string]savedRun `json:"runs"`
	}
	if json.Unmarshal(text, &saved) != nil {
		return
	}
	for dir, s := range saved.Runs {
		c.resting[dir] = s
		if !s.Resting {
			c.add(dir, "", false)
		}
	}
}
