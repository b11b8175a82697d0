package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
	"premix/internal/kit/quantile"
)

// variant is one of the compared kinds of start.
type variant string

const (
	cold variant = "cold"
	hot  variant = "hot"
)

func (v variant) kind() hotstart.Kind { return hotstart.Kind(v) }

// lab is the place where tasks run.
type lab struct {
	dir string // work directory, absolute
	log func(format string, args ...any)

	mu   sync.Mutex // guards next
	next int
}

func (l *lab) fresh(parent string) (string, error) {
	l.mu.Lock()
	l.next++
	n := l.next
	l.mu.Unlock()
	dir := filepath.Join(l.dir, parent, strconv.Itoa(n))
	return dir, os.MkdirAll(dir, 0o755)
}

// bench is a case with its starters.
type bench struct {
	*lab
	*benchCase
	starters map[variant]*hotstart.Starter
	prepared map[variant]preparation
	digests  map[string][sha256.Size]byte // of a sample's stdout
}

// preparation is the cost of a variant before its first task.
type preparation struct {
	took  time.Duration
	bytes int64 // of the snapshot
}

func (l *lab) open(c *benchCase) *bench {
	return &bench{lab: l, benchCase: c, starters: map[variant]*hotstart.Starter{},
		prepared: map[variant]preparation{}, digests: map[string][sha256.Size]byte{}}
}

func (b *bench) close() {
	for v := range b.starters {
		b.drop(v)
	}
	os.RemoveAll(b.store(""))
}

// drop closes the starter of v.
func (b *bench) drop(v variant) {
	if s := b.starters[v]; s != nil {
		s.Close()
		delete(b.starters, v)
	}
}

func (b *bench) store(v variant) string {
	return filepath.Join(b.dir, "store", b.name, string(v))
}

// prepare makes v ready. An *hotstart.Unavailable means that the tool does not support
// this kind of start, which is also a result.
func (b *bench) prepare(ctx context.Context, v variant) error {
	if b.starters[v] != nil {
		return nil
	}
	s, err := hotstart.New(b.spec, hotstart.Options{Store: b.store(v), Start: v.kind(), Tasks: 100, Log: b.log})
	if err != nil {
		return err
	}
	scratch, err := b.fresh("scratch")
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := s.Prepare(ctx, b.samples[startSample], scratch); err != nil {
		s.Close()
		return err
	}
	took := time.Since(begin)
	b.starters[v] = s
	if _, again := b.prepared[v]; !again {
		snaps, err := hotstart.List(b.store(v))
		if err != nil {
			return err
		}
		p := preparation{took: took}
		for _, snap := range snaps {
			p.bytes += snap.Bytes()
		}
		b.prepared[v] = p
	}
	return nil
}

// prepareAll prepares variants and returns those available.
func (b *bench) prepareAll(ctx context.Context, variants ...variant) ([]variant, error) {
	var can []variant
	for _, v := range variants {
		err := b.prepare(ctx, v)
		var u *hotstart.Unavailable
		switch {
		case errors.As(err, &u):
			b.log("%s: no %s: %s", b.name, v, u.Reason)
		case err != nil:
			return nil, fmt.Errorf("prepare %s %s: %w", b.name, v, err)
		default:
			can = append(can, v)
		}
	}
	return can, nil
}

// measured has the figures of one task.
type measured struct {
	opened time.Duration
	whole  time.Duration
	exit   hotstart.Exit
	stderr string
}

// task runs one task over a sample and checks that its stdout equals the stdout of every
// other task over it.
func (b *bench) task(ctx context.Context, v variant, sample string) (measured, error) {
	t, err := b.begin(ctx, v, sample)
	if err != nil {
		return measured{}, err
	}
	return t.end()
}

// running is a started task.
type running struct {
	*bench
	v      variant
	sample string
	dir    string
	began  time.Time
	p      *hotstart.Process
}

func (b *bench) begin(ctx context.Context, v variant, sample string) (*running, error) {
	dir, err := b.fresh("tasks")
	if err != nil {
		return nil, err
	}
	t := &running{bench: b, v: v, sample: sample, dir: dir, began: time.Now()}
	if t.p, err = b.starters[v].Start(ctx, hotstart.Task{Dir: dir, Inputs: b.samples[sample]}); err != nil {
		os.RemoveAll(dir)
		return nil, t.failed(err)
	}
	return t, nil
}

func (t *running) failed(err error) error {
	return fmt.Errorf("%s %s, sample %s: %w", t.name, t.v, t.sample, err)
}

// end waits for the end of the task and removes its files.
func (t *running) end() (measured, error) {
	defer os.RemoveAll(t.dir)
	exit, err := t.p.Wait()
	m := measured{whole: time.Since(t.began), opened: t.p.Latency, exit: exit}
	if err != nil {
		return m, t.failed(err)
	}
	stderr, err := os.ReadFile(filepath.Join(t.dir, hotstart.StderrName))
	if err != nil {
		return m, t.failed(err)
	}
	m.stderr = string(stderr)
	if !exit.OK() {
		return m, t.failed(fmt.Errorf("exit status %d, signal %d: %s", exit.Code, exit.Signal, m.stderr))
	}
	if t.p.Kind != t.v.kind() {
		return m, t.failed(fmt.Errorf("started %s: %s", t.p.Kind, t.p.Reason))
	}
	return m, t.sameOutput(t.sample, filepath.Join(t.dir, hotstart.StdoutName))
}

func (b *bench) sameOutput(sample, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	b.mu.Lock()
	defer b.mu.Unlock()
	if old, ok := b.digests[sample]; ok && old != sum && b.fixedStdout() {
		return fmt.Errorf("%s: stdout of sample %s differs between starts", b.name, sample)
	}
	b.digests[sample] = sum
	return nil
}

// fixedStdout reports whether the stdout of the case is its output and the same in each
// task. Other tools print times to it.
func (b *bench) fixedStdout() bool { return len(b.spec.Dirs) == 0 }

// patience is the time limit for the repetitions of one figure, from the third on.
const patience = 3 * time.Minute

// alternate runs each variant over the sample in turn, after a first round that does
// not count. It measures two rounds, and more, up to repetitions, within patience.
func (b *bench) alternate(ctx context.Context, variants []variant, sample string, repetitions int) (map[variant][]measured, error) {
	all := map[variant][]measured{}
	begin := time.Now()
	for i := range repetitions + 1 {
		if i > 2 && time.Since(begin) > patience {
			break
		}
		for _, v := range variants {
			m, err := b.task(ctx, v, sample)
			if err != nil {
				return nil, err
			}
			if i > 0 {
				all[v] = append(all[v], m)
			}
		}
	}
	return all, nil
}

func opened(all []measured) float64 {
	return medianOf(all, func(m measured) float64 { return m.opened.Seconds() })
}

func whole(all []measured) float64 {
	return medianOf(all, func(m measured) float64 { return m.whole.Seconds() })
}

// cpu is the median CPU time of a task, page faults included. Other load on the machine
// hardly changes it, unlike whole, so that small differences show.
func cpu(all []measured) float64 {
	return medianOf(all, func(m measured) float64 { return (m.exit.User + m.exit.System).Seconds() })
}

func medianOf(all []measured, of func(measured) float64) float64 {
	var values []float64
	for _, m := range all {
		values = append(values, of(m))
	}
	return quantile.Median(values)
}

// memory is the memory of this benchmark's processes, in bytes.
type memory struct {
	tools       int64 // PSS of tools
	supervisors int64 // PSS of supervisors
	tasks       int   // tools seen
	filePmd     int64 // of tools: file pages mapped by 2 MiB entries
	anonHuge    int64 // of tools: anonymous pages mapped by 2 MiB entries
}

// errTooShort reports that tasks ended before all of them had been measured together.
var errTooShort = errors.New("the sample is too short to look at all tasks together")

// together runs n tasks at once and returns their memory at its peak, among the times at
// which all of them ran.
func (b *bench) together(ctx context.Context, v variant, sample string, n int) (memory, error) {
	type outcome struct {
		t   *running
		err error
	}
	started := make(chan outcome, n)
	for range n {
		go func() {
			t, err := b.begin(ctx, v, sample)
			started <- outcome{t, err}
		}()
	}
	finished := make(chan error, n)
	left := 0
	var errs []error
	for range n {
		o := <-started
		if o.err != nil {
			errs = append(errs, o.err)
			continue
		}
		left++
		go func() {
			_, err := o.t.end()
			finished <- err
		}()
	}
	whole := left == n
	var peak memory
	const pause = 50 * time.Millisecond
	tick := time.NewTimer(pause)
	defer tick.Stop()
	for left > 0 {
		select {
		case err := <-finished:
			left--
			whole = false
			errs = append(errs, err)
		case <-tick.C:
			if !whole {
				continue
			}
			begin := time.Now()
			now, err := residents()
			errs = append(errs, err)
			// With many pages one measurement takes long; leave the tools most of the
			// time to run.
			tick.Reset(max(pause, 5*time.Since(begin)))
			if now.tasks >= n && now.tools > peak.tools {
				peak = now
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return memory{}, err
	}
	if peak.tools == 0 {
		return memory{}, errTooShort
	}
	return peak, nil
}

// residents sums the memory of the descendants of this process (proc_pid_smaps(5)). It
// stops the tools during the reads: if shares changed between two reads, the sum would be
// wrong.
func residents() (memory, error) {
	var m memory
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return m, err
	}
	pids, err := descendants(os.Getpid())
	if err != nil {
		return m, err
	}
	var tools, supervisors []int
	for _, pid := range pids {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		switch {
		case err != nil: // it has ended
		case exe == self:
			supervisors = append(supervisors, pid)
		default:
			tools = append(tools, pid)
		}
	}
	for _, pid := range tools {
		state := processState(pid)
		if state != "R" && state != "S" && state != "D" {
			continue // it is already stopped
		}
		if unix.Kill(pid, unix.SIGSTOP) == nil {
			defer unix.Kill(pid, unix.SIGCONT)
		}
	}
	time.Sleep(2 * time.Millisecond)
	for _, pid := range tools {
		f, ok := rollupOf(pid)
		if !ok {
			continue
		}
		m.tasks++
		m.tools += f["Pss"]
		m.filePmd += f["FilePmdMapped"] + f["ShmemPmdMapped"]
		m.anonHuge += f["AnonHugePages"]
	}
	for _, pid := range supervisors {
		f, _ := rollupOf(pid)
		m.supervisors += f["Pss"]
	}
	return m, nil
}

// processState returns the state letter of proc_pid_stat(5), or "" if the process ended.
func processState(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name may contain parentheses and blanks.
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(f) == 0 {
		return ""
	}
	return f[0]
}

func rollupOf(pid int) (map[string]int64, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return nil, false
	}
	f := rollup(string(text))
	_, ok := f["Pss"]
	return f, ok
}

var rollupLine = regexp.MustCompile(`(?m)^(\w+): +(\d+) kB$`)

func rollup(text string) map[string]int64 {
	f := map[string]int64{}
	for _, m := range rollupLine.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseInt(m[2], 10, 64)
		if err == nil {
			f[m[1]] = n << 10
		}
	}
	return f
}

// descendants returns the processes below pid.
func descendants(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, e := range entries {
		p, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// proc_pid_stat(5): the name may contain parentheses and blanks.
		rest := string(text[strings.LastIndexByte(string(text), ')')+1:])
		if f := strings.Fields(rest); len(f) > 1 {
			if parent, err := strconv.Atoi(f[1]); err == nil {
				children[parent] = append(children[parent], p)
			}
		}
	}
	var all []int
	for queue := children[pid]; len(queue) > 0; queue = queue[1:] {
		all = append(all, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return all, nil
}

// available returns the memory that is available without swapping, in bytes.
func available() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return rollup(string(text))["MemAvailable"], nil
}

// readLine matches a line of synth's stderr: the number of its reads, and their time in
// seconds.
var readLine = regexp.MustCompile(`(?m)^read (\d+): ([0-9.]+) s$`)

// readRates returns the reads per second of each line.
func readRates(stderr string) []float64 {
	var rates []float64
	for _, m := range readLine.FindAllStringSubmatch(stderr, -1) {
		n, err1 := strconv.ParseFloat(m[1], 64)
		s, err2 := strconv.ParseFloat(m[2], 64)
		if err1 == nil && err2 == nil && s > 0 {
			rates = append(rates, n/s)
		}
	}
	return rates
}

// dropCaches empties the page cache. It needs root.
func dropCaches() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}
