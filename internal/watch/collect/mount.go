package collect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/mountinfo"
	"premix/internal/watch"
)

// pseudo are types of file systems without data of their own.
var pseudo = []string{"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
	"erofs", "fuse.lxcfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "overlay", "proc", "pstore", "ramfs", "rpc_pipefs", "rootfs",
	"securityfs", "selinuxfs", "squashfs", "sysfs", "tracefs"}

// hangsAfter is the time without an answer after which a file system is reported as
// hanging.
const hangsAfter = 5 * time.Second

// mounts is the collector of the fill level of file systems, by statfs(2). A file system
// that is mounted in several places is asked at the first. If its server is dead, it blocks
// one goroutine and nothing else: it is asked again only after it has answered.
type mounts struct {
	*machine
	statfs  func(path string, st *unix.Statfs_t) error
	b       batch
	known   kept[mount]
	started bool // there was an earlier turn
	quiet   chatter
}

// Containers and sandboxes mount and unmount all day. Of the changes within chatterTime,
// only the first ones have an event each, and the rest one for all.
const (
	chatterTime = 10 * time.Minute
	chatterMost = 6
)

// chatter counts changes of mounts since a moment.
type chatter struct {
	since          time.Time
	told           int
	added, removed int // without an event
}

// tell reports whether a change gets an event of its own, and counts it.
func (q *chatter) tell(added bool) bool {
	if q.told < chatterMost {
		q.told++
		return true
	}
	if added {
		q.added++
	} else {
		q.removed++
	}
	return false
}

// turn begins a new time when the last one is over, and returns the event for the rest of
// that one.
func (q *chatter) turn(now time.Time) (text string, ok bool) {
	if now.Sub(q.since) < chatterTime && !now.Before(q.since) {
		return "", false
	}
	if ok = q.added+q.removed > 0; ok {
		text = fmt.Sprintf("%d more file systems were mounted and %d unmounted within %.0f minutes.", q.added, q.removed, now.Sub(q.since).Minutes())
	}
	*q = chatter{since: now}
	return text, ok
}

type mount struct {
	point, kind                           string
	size, available, inodes, free, answer *gauge
	told                                  bool // an event has reported that it hangs

	mu       sync.Mutex // guards the rest
	asked    time.Time  // zero if it has answered
	took     time.Duration
	st       unix.Statfs_t
	err      error
	answered chan struct{} // closed by the answer
}

func newMounts(m *machine) *mounts { return &mounts{machine: m, statfs: unix.Statfs} }

// Name returns "mount".
func (c *mounts) Name() string { return "mount" }

// Collect asks all file systems, and reports the answers that come in time.
func (c *mounts) Collect(ctx context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	text, err := c.read("proc/self/mountinfo")
	if err != nil {
		return err
	}
	list, _ := mountinfo.Parse(text) // lines that Parse cannot read are skipped
	if text, ok := c.quiet.turn(now); ok {
		to.Event(c.event(now, "mounts_changed", text))
	}
	var all []*mount
	seen := make(map[string]bool)
	for _, l := range list {
		if slices.Contains(pseudo, l.Type) || seen[l.Dev] || strings.HasPrefix(l.Path, "/sys/") || strings.HasPrefix(l.Path, "/proc/") {
			continue
		}
		seen[l.Dev] = true
		added := false
		m := c.known.get(l.Dev+" "+l.Path, func() *mount {
			added = true
			return c.newMount(l)
		})
		if added && c.started && c.quiet.tell(true) {
			to.Event(c.event(now, "mount_added", fmt.Sprintf("%s was mounted on %s (%s).", l.Source, l.Path, l.Type)))
		}
		all = append(all, m)
		c.ask(m)
	}
	c.known.sweep(func(_ string, m *mount) {
		if c.quiet.tell(false) {
			to.Event(c.event(now, "mount_removed", fmt.Sprintf("%s is no longer mounted.", m.point)))
		}
	})
	c.started = true
	// Half of the turn is for slow file systems, the other half to report them.
	patience := time.Second
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/2)
	}
	slow := time.NewTimer(patience)
	defer slow.Stop()
	for _, m := range all {
		m.mu.Lock()
		answer := m.answered
		m.mu.Unlock()
		select {
		case <-answer:
		case <-slow.C:
			slow.Reset(0)
		case <-ctx.Done():
		}
		c.report(m, now, to)
	}
	to.Samples(c.b.samples)
	return nil
}

func (c *mounts) event(at time.Time, kind, text string) watch.Event {
	return watch.Event{Time: at, Node: c.node, Layer: watch.LayerMount, Kind: kind, Text: text}
}

func (c *mounts) newMount(l mountinfo.Mount) *mount {
	g := func(name string) *gauge { return c.level(name, l.Path, l.Type) }
	return &mount{point: l.Path, kind: l.Type, size: g("mount.size"), available: g("mount.available"),
		inodes: g("mount.inodes"), free: g("mount.inodes_free"), answer: g("mount.answer")}
}

// ask asks a file system, unless an answer is outstanding.
func (c *mounts) ask(m *mount) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.asked.IsZero() {
		return
	}
	m.asked, m.answered = c.now(), make(chan struct{})
	go func() {
		var st unix.Statfs_t
		err := c.statfs(c.path(m.point), &st)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.st, m.err, m.took, m.asked = st, err, c.now().Sub(m.asked), time.Time{}
		close(m.answered)
	}()
}

func (c *mounts) report(m *mount, now time.Time, to watch.Sink) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.asked.IsZero() {
		waited := c.now().Sub(m.asked)
		c.b.level(m.answer, waited.Seconds())
		if waited > hangsAfter && !m.told {
			m.told = true
			to.Event(c.event(now, "mount_hangs", fmt.Sprintf("%s (%s) has not answered for %.0f s.", m.point, m.kind, waited.Seconds())))
		}
		return
	}
	if m.told {
		m.told = false
		to.Event(c.event(now, "mount_answers", fmt.Sprintf("%s (%s) answers again.", m.point, m.kind)))
	}
	c.b.level(m.answer, m.took.Seconds())
	if m.err != nil || m.st.Blocks == 0 {
		return // permission denied, or it has no size
	}
	block := float64(m.st.Bsize)
	if m.st.Frsize > 0 {
		block = float64(m.st.Frsize)
	}
	c.b.level(m.size, float64(m.st.Blocks)*block)
	c.b.level(m.available, float64(m.st.Bavail)*block)
	if m.st.Files > 0 {
		c.b.level(m.inodes, float64(m.st.Files))
		c.b.level(m.free, float64(m.st.Ffree))
	}
}
