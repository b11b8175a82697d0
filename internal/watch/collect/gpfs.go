package collect

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/regex"
	"premix/internal/watch"
)

// gpfsPrograms is the directory of the programs of IBM Storage Scale (GPFS).
const gpfsPrograms = "usr/lpp/mmfs/bin"

// gpfs asks mmpmon for the I/O of programs on each file system, and mmdiag for waiting
// threads. Both need root.
type gpfs struct {
	*machine
	b       batch
	run     func(ctx context.Context, stdin, program string, args ...string) (string, error)
	systems kept[gpfsSystem]
	waiters kept[gpfsWaiting]
}

type gpfsSystem struct {
	read, written *counter
	calls         map[string]*counter
}

type gpfsWaiting struct{ count, longest *gauge }

// gpfsIO is a line of the answer to fs_io_s, or to io_s, which is the sum over all file
// systems.
type gpfsIO struct {
	system        string // "all" for io_s
	read, written float64
	calls         map[string]float64
}

// gpfsCalls are the keys of an answer that count calls.
var gpfsCalls = map[string]string{"_oc_": "open", "_cc_": "close", "_rdc_": "read", "_wc_": "write", "_dir_": "readdir", "_iu_": "inode_update"}

// parseMmpmon parses the answer of `mmpmon -p` to fs_io_s and io_s: keywords and values
// separated by blanks (IBM Storage Scale Administration Guide, "Monitoring I/O performance
// with mmpmon", fs_io_s and io_s), as in
//
//	_fs_io_s_ _n_ 10.10.1.1 _nn_ host _rc_ 0 _t_ 1421869154 _tu_ 766776 _cl_ cluster _fs_ gpfs0 _d_ 107 _br_ 3592793024 _bw_ 2552776479 _oc_ 6758 _cc_ 6542 _rdc_ 2923 _wc_ 176495 _dir_ 1367 _iu_ 1418
//
// It skips an answer whose _rc_ is not 0: no file system is mounted, for instance.
func parseMmpmon(text string) []gpfsIO {
	var list []gpfsIO
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "_fs_io_s_" && f[0] != "_io_s_" {
			continue
		}
		values := make(map[string]string)
		for i := 1; i+1 < len(f); i += 2 {
			values[f[i]] = f[i+1]
		}
		if values["_rc_"] != "0" || values["_br_"] == "" {
			continue
		}
		io := gpfsIO{system: "all", read: number(values["_br_"]), written: number(values["_bw_"]), calls: make(map[string]float64)}
		if f[0] == "_fs_io_s_" {
			io.system = values["_fs_"]
		}
		for key, call := range gpfsCalls {
			if v, ok := values[key]; ok {
				io.calls[call] = number(v)
			}
		}
		list = append(list, io)
	}
	return list
}

// gpfsWaiter is a waiting thread.
type gpfsWaiter struct {
	seconds float64
	reason  string
}

var (
	waitingLine   = regex.Lazy(`^Waiting ([0-9.]+) sec since [^,]*, (?:monitored|ignored), thread \d+ ([^:\s]+)(?:: (.*))?$`)
	waitingReason = regex.Lazy(`reason '([^']*)'?`)
	digits        = regex.Lazy(`\b(?:0x)?[0-9A-Fa-f]*\d[0-9A-Fa-f.]*\b`)
)

// parseWaiters parses the output of `mmdiag --waiters`, as text or with -Y as fields (IBM
// Storage Scale Command Reference, mmdiag). Both forms are as in the samples of
// treydock/gpfs_exporter, which were recorded from versions 4 and 5:
//
//	Waiting 64.3890 sec since 17:55:45, monitored, thread 120655 NSDThread: for I/O completion
//	mmdiag:waiters:0:1:::101445:00000000F57FC500:RebuildWorkThread:2021-09-23_15%3A31%3A33-0400:64.3:monitored::::::for I/O completion:::
//
// The reason is the text that the thread gives, without numbers, so that there are few
// different reasons. A thread without a text has its name as the reason.
func parseWaiters(text string) []gpfsWaiter {
	var list []gpfsWaiter
	column := make(map[string]int)
	add := func(seconds, thread, reason string) {
		s, err := strconv.ParseFloat(seconds, 64)
		if err != nil {
			return
		}
		if m := waitingReason().FindStringSubmatch(reason); m != nil {
			reason = m[1]
		}
		reason = strings.Join(strings.Fields(digits().ReplaceAllString(reason, "")), " ")
		if reason == "" {
			reason = thread
		}
		list = append(list, gpfsWaiter{s, reason})
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := waitingLine().FindStringSubmatch(line); m != nil {
			add(m[1], m[2], m[3])
			continue
		}
		f := strings.Split(line, ":")
		if len(f) < 4 || f[0] != "mmdiag" || f[1] != "waiters" {
			continue
		}
		if f[2] == "HEADER" {
			clear(column)
			for i, name := range f {
				column[name] = i
			}
			continue
		}
		field := func(name string) string {
			i, ok := column[name]
			if !ok || i >= len(f) {
				return ""
			}
			text, err := url.PathUnescape(f[i])
			if err != nil {
				return f[i]
			}
			return text
		}
		reason := field("condVarReason")
		if reason == "" {
			reason = field("auxReason")
		}
		add(field("waitTime"), field("threadName"), reason)
	}
	return list
}

func newGPFS(m *machine) *gpfs { return &gpfs{machine: m, run: runProgram} }

// Name returns "gpfs".
func (c *gpfs) Name() string { return "gpfs" }

// present reports whether the machine has GPFS.
func (c *gpfs) present() bool {
	_, err := os.Stat(c.path(filepath.Join(gpfsPrograms, "mmpmon")))
	return err == nil
}

// Collect runs mmpmon and mmdiag once.
func (c *gpfs) Collect(ctx context.Context, now time.Time, to watch.Sink) error {
	if !c.present() {
		return nil
	}
	c.b.begin(now, c.now())
	out, err := c.run(ctx, "fs_io_s\n", c.path(filepath.Join(gpfsPrograms, "mmpmon")), "-p", "-s", "-r", "1")
	for _, io := range parseMmpmon(out) {
		s := c.systems.get(io.system, func() *gpfsSystem {
			s := &gpfsSystem{c.counter("mount.gpfs_read_bytes", io.system), c.counter("mount.gpfs_written_bytes", io.system), make(map[string]*counter)}
			for _, call := range gpfsCalls {
				s.calls[call] = c.counter("mount.gpfs_calls", io.system, call)
			}
			return s
		})
		c.b.rate(s.read, io.read, 1)
		c.b.rate(s.written, io.written, 1)
		for call, n := range io.calls {
			c.b.rate(s.calls[call], n, 1)
		}
	}
	c.systems.sweep(nil)
	out, werr := c.run(ctx, "", c.path(filepath.Join(gpfsPrograms, "mmdiag")), "--waiters", "-Y")
	count, longest := make(map[string]float64), make(map[string]float64)
	for _, w := range parseWaiters(out) {
		count[w.reason]++
		longest[w.reason] = max(longest[w.reason], w.seconds)
	}
	report := func(reason string) {
		g := c.waiters.get(reason, func() *gpfsWaiting {
			return &gpfsWaiting{c.level("mount.gpfs_waiters", reason), c.level("mount.gpfs_longest_wait", reason)}
		})
		c.b.level(g.count, count[reason])
		c.b.level(g.longest, longest[reason])
	}
	for reason := range count {
		report(reason)
	}
	if werr == nil {
		// A reason that is gone is reported once more, so that its series ends at 0.
		c.waiters.sweep(func(_ string, g *gpfsWaiting) {
			c.b.level(g.count, 0)
			c.b.level(g.longest, 0)
		})
	}
	to.Samples(c.b.samples)
	return errors.Join(err, werr)
}
