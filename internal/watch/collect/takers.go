package collect

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/proc"
	"premix/internal/watch"
)

const (
	// programMost is the number of programs that are reported for each resource.
	programMost = 16
	// programStays is the time for which a program is reported after its last use of note.
	programStays = time.Minute
)

// Smallest uses of note, by resource of a program.
const (
	leastProgramCPU    = 0.05     // cores
	leastProgramBytes  = 64 << 10 // a second
	leastProgramMemory = 64 << 20
)

// Indexes in the result of [proc.Fields], beside those of package proc.
const (
	childUser   = 13
	childSystem = 14
	startTime   = 19
	residentSet = 21
)

// takers is the collector of the use of the machine by programs that do not belong to
// tasks, from /proc/PID/stat and io. Processes with one name count together. Only the
// greatest users of each resource have series.
type takers struct {
	*machine
	b       batch
	tasks   func() map[int]bool // processes to leave out
	device  func(pid int) string
	procs   map[int]*livingProcess
	turn    int
	page    float64
	known   map[string]*program // by name
	ended   *gauge
	total   steps
	started bool
	buf     [4096]byte
}

// livingProcess is a process at the last turn.
type livingProcess struct {
	began          string
	cpu, child, io float64
	turn           int
}

// program holds the series of the processes with one name.
type program struct {
	use    [4]float64 // of this turn, in the order of programSeries
	leader int        // the process that uses most
	most   float64
	series [4]*gauge
	noted  [4]time.Time
	group  string
}

var programSeries = [4]string{"node.program_cpu", "node.program_forked_cpu", "node.program_bytes", "node.program_memory"}

var leastUse = [4]float64{leastProgramCPU, leastProgramCPU, leastProgramBytes, leastProgramMemory}

func newTakers(m *machine, tasks func() map[int]bool, device func(pid int) string) *takers {
	return &takers{machine: m, tasks: tasks, device: device, procs: make(map[int]*livingProcess), page: float64(os.Getpagesize()),
		known: make(map[string]*program), ended: m.level("node.ended_cpu")}
}

// Name returns "program".
func (c *takers) Name() string { return "program" }

// Collect reads all processes once.
func (c *takers) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	text, err := c.read("proc/stat")
	if err != nil {
		return err
	}
	c.b.begin(now, c.now())
	busy, seconds, ok := c.total.step(busyTicks(text), c.b.read)
	entries, err := os.ReadDir(c.path("proc"))
	if err != nil {
		return err
	}
	tasks := c.tasks()
	c.turn++
	for _, p := range c.known {
		p.use, p.leader, p.most = [4]float64{}, 0, 0
	}
	living := 0.0
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			living += c.process(pid, seconds, tasks[pid])
		}
	}
	for pid, p := range c.procs {
		if p.turn != c.turn {
			delete(c.procs, pid)
		}
	}
	if !ok || !c.started {
		c.started = true
		return nil
	}
	c.b.level(c.ended, round(max(0, busy-living)*tick/seconds))
	names := slices.Sorted(maps.Keys(c.known))
	for i := range programSeries {
		slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(c.known[b].use[i], c.known[a].use[i]) })
		for rank, name := range names {
			p := c.known[name]
			if rank < programMost && p.use[i] >= leastUse[i] {
				p.noted[i] = now
			}
			if p.noted[i].IsZero() || now.Sub(p.noted[i]) > programStays {
				continue
			}
			if p.series[i] == nil {
				if p.group == "" {
					p.group = c.groupOf(p.leader)
				}
				labels := []string{p.group, name}
				if programSeries[i] == "node.program_bytes" {
					labels = []string{p.group, c.device(p.leader), name}
				}
				p.series[i] = c.level(programSeries[i], labels...)
			}
			c.b.level(p.series[i], round(p.use[i]))
		}
	}
	for name, p := range c.known {
		if p.use == ([4]float64{}) && !slices.ContainsFunc(p.noted[:], func(t time.Time) bool { return now.Sub(t) <= programStays }) {
			delete(c.known, name)
		}
	}
	to.Samples(c.b.samples)
	return nil
}

// process adds one process, and returns the ticks that it ran since the last turn.
func (c *takers) process(pid int, seconds float64, task bool) (ran float64) {
	dir := filepath.Join("proc", strconv.Itoa(pid))
	text, ok := c.short(dir + "/stat")
	f := proc.Fields(text)
	if !ok || len(f) <= residentSet {
		return 0
	}
	cpu, child := number(f[proc.User])+number(f[proc.System]), number(f[childUser])+number(f[childSystem])
	p := c.procs[pid]
	is := p != nil && p.began == f[startTime]
	first := !is
	if first {
		p = &livingProcess{began: f[startTime]}
		c.procs[pid] = p
		if c.started { // all its time is of this turn
			is = true
		}
	}
	ran, forked := cpu-p.cpu, child-p.child
	p.cpu, p.child, p.turn = cpu, child, c.turn
	if !is {
		ran, forked = 0, 0
	}
	_, name, _ := strings.Cut(text[:max(strings.LastIndexByte(text, ')'), 0)], "(")
	if task || f[proc.Parent] == "2" || pid == kthreadd || name == "" {
		return ran
	}
	moved := 0.0
	if ran > 0 || f[0] == "D" || first {
		io := 0.0
		if text, ok := c.short(dir + "/io"); ok { // it may be of another user
			for line := range strings.Lines(text) {
				key, v, _ := strings.Cut(strings.TrimSpace(line), ": ")
				if key == "read_bytes" || key == "write_bytes" {
					io += number(v)
				}
			}
		}
		if is {
			moved = max(0, io-p.io)
		}
		p.io = io
	}
	k := c.known[name]
	if k == nil {
		k = &program{}
		c.known[name] = k
	}
	rss := number(f[residentSet]) * c.page
	if seconds > 0 {
		k.use[0] += ran * tick / seconds
		if name != premixName { // these are tasks
			k.use[1] += forked * tick / seconds
		}
		k.use[2] += moved / seconds
	}
	k.use[3] += rss
	if weight := ran + forked + moved/1e6 + rss/1e9; k.leader == 0 || weight > k.most {
		k.leader, k.most = pid, weight
	}
	return ran
}

// short returns the content of a file of at most a page. os.ReadFile would ask for its size,
// and read twice.
func (c *takers) short(name string) (string, bool) {
	fd, err := unix.Open(c.path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, c.buf[:])
	if err != nil {
		return "", false
	}
	return string(c.buf[:n]), true
}

// groupOf returns the cgroup of a process, the longest path of all hierarchies, or "" for
// the root.
func (c *takers) groupOf(pid int) (group string) {
	text, err := c.read(filepath.Join("proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(text) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && f[2] != "/" && len(f[2]) > len(group) {
			group = f[2]
		}
	}
	return group
}

// busyTicks returns the ticks of /proc/stat in which processors ran programs or the kernel.
func busyTicks(stat string) (sum float64) {
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	for _, i := range []int{1, 2, 3, 6, 7} { // user nice system irq softirq
		if i < len(f) {
			sum += number(f[i])
		}
	}
	return sum
}
