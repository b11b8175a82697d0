package collect

import (
	"context"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/watch"
)

// self is the collector of the cost of premix watch itself.
type self struct {
	w       *Watcher
	b       batch
	cpu     *counter
	memory  *gauge
	seconds map[string]*gauge
	skipped map[string]*gauge
}

func newSelf(w *Watcher) *self {
	return &self{w: w, cpu: w.m.counter("node.watch_cpu"), memory: w.m.level("node.watch_memory"),
		seconds: make(map[string]*gauge), skipped: make(map[string]*gauge)}
}

// Name returns "watch".
func (c *self) Name() string { return "watch" }

// Collect reads the cost once.
func (c *self) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.w.m.now())
	sum := 0.0
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} { // children are scripts
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return os.NewSyscallError("getrusage", err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
	}
	c.b.rate(c.cpu, sum, 1)
	// It is always this process, whatever the root.
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if f := strings.Fields(string(text)); len(f) > 1 {
			c.b.level(c.memory, number(f[1])*float64(os.Getpagesize()))
		}
	}
	for _, s := range c.w.Status() {
		if c.seconds[s.Name] == nil {
			c.seconds[s.Name] = c.w.m.level("node.watch_seconds", s.Name)
			c.skipped[s.Name] = c.w.m.level("node.watch_skipped", s.Name)
		}
		if !s.Last.IsZero() {
			c.b.level(c.seconds[s.Name], s.Seconds)
		}
		c.b.level(c.skipped[s.Name], float64(s.Skipped))
	}
	to.Samples(c.b.samples)
	return nil
}
