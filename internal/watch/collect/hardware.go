package collect

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"premix/internal/watch"
)

// tick is the unit of processor times in /proc/stat: USER_HZ is 100 on all
// architectures that premix runs on (time(7)).
const tick = 1.0 / 100

// hardware is the collector of processors, memory and pressure: /proc/stat, loadavg,
// meminfo, vmstat (proc(5)) and pressure/ (Documentation/accounting/psi.rst).
type hardware struct {
	*machine
	b        batch
	cpu      [5]*counter // in the order of cpuNames
	cpus     kept[steps2]
	busy     map[string]*gauge
	load     [3]*gauge
	counts   map[string]*counter // of /proc/stat
	levels   map[string]*gauge   // of /proc/stat
	memory   map[string]*gauge
	cached   *gauge
	swap     *gauge
	vm       map[string]*counter
	pressure map[string]*counter
	page     float64
}

// steps2 holds two counters that are compared.
type steps2 struct{ busy, all steps }

var cpuNames = [5]string{"node.cpu_user", "node.cpu_system", "node.cpu_wait", "node.cpu_stolen", "node.cpu_idle"}

func newHardware(m *machine) *hardware {
	n := &hardware{machine: m, busy: make(map[string]*gauge), page: float64(os.Getpagesize()),
		counts: map[string]*counter{"ctxt": m.counter("node.context_switches"), "processes": m.counter("node.forks")},
		levels: map[string]*gauge{"procs_running": m.level("node.running"), "procs_blocked": m.level("node.blocked")},
		memory: map[string]*gauge{
			"MemTotal": m.level("node.memory_total"), "MemAvailable": m.level("node.memory_available"), "MemFree": m.level("node.memory_free"),
			"Dirty": m.level("node.memory_dirty"), "Writeback": m.level("node.memory_writeback"), "AnonPages": m.level("node.memory_anonymous")},
		cached: m.level("node.memory_cached"), swap: m.level("node.swap_used"),
		vm: map[string]*counter{"pgmajfault": m.counter("node.major_faults"), "pswpin": m.counter("node.swap_in"),
			"pswpout": m.counter("node.swap_out"), "oom_kill": m.counter("node.oom_kills")},
		pressure: make(map[string]*counter),
	}
	for i, name := range cpuNames {
		n.cpu[i] = m.counter(name)
	}
	for i, minutes := range []string{"1", "5", "15"} {
		n.load[i] = m.level("node.load", minutes)
	}
	for _, resource := range resources {
		for _, kind := range []string{"some", "full"} {
			n.pressure[resource+kind] = m.counter("node.pressure", kind, resource)
		}
	}
	return n
}

// resources are the resources for which the kernel reports pressure.
var resources = []string{"cpu", "memory", "io"}

// Name returns "node".
func (n *hardware) Name() string { return "node" }

// Collect reads all files once.
func (n *hardware) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	n.b.begin(now, n.now())
	var errs []error
	for _, f := range []struct {
		name string
		take func(text string)
	}{
		{"proc/stat", n.stat}, {"proc/loadavg", n.loadavg}, {"proc/meminfo", n.meminfo}, {"proc/vmstat", n.vmstat},
	} {
		text, err := n.read(f.name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f.take(text)
	}
	for _, resource := range resources {
		// A kernel without pressure lacks these files, or returns EOPNOTSUPP.
		if text, err := n.read("proc/pressure/" + resource); err == nil {
			pressures(text, func(kind string, total float64) {
				if c := n.pressure[resource+kind]; c != nil {
					n.b.ratio(c, total, 1e-6)
				}
			})
		}
	}
	to.Samples(n.b.samples)
	return errors.Join(errs...)
}

// pressures calls f with each kind and its total stall time in microseconds:
// some avg10=0.00 avg60=0.00 avg300=0.00 total=123
func pressures(text string, f func(kind string, total float64)) {
	for line := range strings.Lines(text) {
		kind, _, _ := strings.Cut(line, " ")
		if _, total, ok := strings.Cut(line, "total="); ok {
			f(kind, number(strings.TrimSpace(total)))
		}
	}
}

func (n *hardware) stat(text string) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if g := n.levels[f[0]]; g != nil {
			n.b.level(g, number(f[1]))
		}
		if c := n.counts[f[0]]; c != nil {
			n.b.rate(c, number(f[1]), 1)
		}
		name, isCPU := strings.CutPrefix(f[0], "cpu")
		if !isCPU {
			continue
		}
		// user nice system idle iowait irq softirq steal; guest time is part of user.
		var v [8]float64
		for i := range min(len(f)-1, len(v)) {
			v[i] = number(f[i+1])
		}
		idle := v[3] + v[4]
		used := v[0] + v[1] + v[2] + v[5] + v[6] + v[7]
		if name == "" {
			for i, sum := range [5]float64{v[0] + v[1], v[2] + v[5] + v[6], v[4], v[7], v[3]} {
				n.b.rate(n.cpu[i], sum, tick)
			}
			continue
		}
		s := n.cpus.get(name, func() *steps2 {
			n.busy[name] = n.level("node.cpu_busy", name)
			return &steps2{}
		})
		// Ticks of one processor are coarse: their sum is the best measure of the time that
		// passed for this processor.
		busy, _, ok := s.busy.step(used, n.b.read)
		all, _, allOK := s.all.step(used+idle, n.b.read)
		if ok && allOK && all > 0 {
			n.b.level(n.busy[name], busy/all)
		}
	}
	n.cpus.sweep(func(name string, _ *steps2) { delete(n.busy, name) })
}

func (n *hardware) loadavg(text string) {
	f := strings.Fields(text)
	for i, g := range n.load {
		if i < len(f) {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				n.b.level(g, v)
			}
		}
	}
}

func (n *hardware) meminfo(text string) {
	var cached, swap float64
	pairs(strings.ReplaceAll(text, ":", ""), func(key string, kib float64) {
		if g := n.memory[key]; g != nil {
			n.b.level(g, kib*1024)
		}
		switch key {
		case "Cached", "Buffers":
			cached += kib
		case "SwapTotal":
			swap += kib
		case "SwapFree":
			swap -= kib
		}
	})
	n.b.level(n.cached, cached*1024)
	n.b.level(n.swap, max(swap, 0)*1024)
}

func (n *hardware) vmstat(text string) {
	pairs(text, func(key string, v float64) {
		if c := n.vm[key]; c != nil {
			scale := 1.0
			if strings.HasPrefix(key, "pswp") {
				scale = n.page
			}
			n.b.rate(c, v, scale)
		}
	})
}

// missing reports whether an error means that a file does not exist.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
