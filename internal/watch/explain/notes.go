package explain

import (
	"slices"
	"time"
)

// work are series of the amount of work done or held. More or less of it than usual is not
// trouble unless a program waits for it. Other series report the waiting: pressure, the
// tasks, errors, response times of servers.
var work = map[string]bool{
	"node.cpu_user": true, "node.cpu_system": true, "node.cpu_wait": true, "node.cpu_idle": true, "node.cpu_busy": true,
	"node.load": true, "node.running": true, "node.forks": true, "node.exits": true, "node.context_switches": true,
	"node.memory_available": true, "node.memory_free": true, "node.memory_cached": true, "node.memory_dirty": true,
	"node.memory_writeback": true, "node.memory_anonymous": true, "node.swap_used": true,
	"node.watch_cpu": true, "node.watch_memory": true, "node.watch_seconds": true,
	"disk.read_bytes": true, "disk.written_bytes": true, "disk.reads": true, "disk.writes": true, "disk.flushes": true,
	"network.received_bytes": true, "network.sent_bytes": true, "network.received_packets": true, "network.sent_packets": true,
	"network.tcp_sent": true, "network.tcp_connections": true,
	"mount.nfs_read_bytes": true, "mount.nfs_written_bytes": true, "mount.nfs_requests": true,
	"mount.lustre_read_bytes": true, "mount.lustre_written_bytes": true, "mount.lustre_calls": true, "mount.lustre_requests": true,
	"mount.gpfs_read_bytes": true, "mount.gpfs_written_bytes": true, "mount.gpfs_calls": true,
	"store.mounts": true, "store.fetched_bytes": true, "store.hits": true, "store.origin_requests": true, "store.origin_bytes": true,
	"store.cache_used": true, "store.cache_free": true, "store.cache_evicted": true,
	runningName: true, "task.ended": true, "task.memory": true, "task.processes": true, "task.read_bytes": true, "task.written_bytes": true,
}

// queues are series of disks that background writes increase, too. Where the kernel reports
// pressure (psi.rst), pressure decides whether a program waits.
var queues = map[string]bool{
	"node.blocked": true, "disk.in_flight": true, "disk.queued": true, "disk.read_wait": true, "disk.write_wait": true,
}

// freed are series of held resources that others want, each with the direction in which
// they become free, for which no program waits.
var freed = map[string]int{
	"node.memory_dirty": -1, "node.memory_writeback": -1, "node.swap_used": -1,
	"node.memory_available": +1, "node.memory_free": +1,
}

// saturated is the fraction of time busy at which a disk has reached its capacity.
const saturated = 0.9

// pressed is the smallest pressure at which a program is held up.
const pressed = 0.05

// matters reports whether a finding is trouble by itself: something waits, is slower,
// fails, or has reached its capacity.
func (s *search) matters(f *Finding) bool {
	rose := f.level > f.Usual[1]
	switch name := f.Series.Name; {
	case work[name]:
		return false
	case queues[name]:
		return rose && !s.pressure
	case name == "disk.busy":
		return f.level >= saturated || rose && !s.pressure
	case name == "node.pressure" || name == "task.pressure":
		return rose && f.level >= pressed
	case name == ageName:
		return rose
	case name == "task.cpu":
		return !rose // something holds them up that has no series of its own
	}
	return true
}

// relieves reports whether a finding means that a resource was freed.
func relieves(f *Finding) bool {
	way := freed[f.Series.Name]
	return way < 0 && f.level < f.Usual[0] || way > 0 && f.level > f.Usual[1]
}

// felt is the longest time from a cause to its trouble.
func (s *search) felt() time.Duration { return max(30*time.Second, 2*s.step) }

// note separates notes from findings, in their order: work that ends before any trouble or
// begins after it, and freed resources.
func (s *search) note() {
	var troubles []Window
	for i := range s.Findings {
		if f := &s.Findings[i]; s.matters(f) {
			troubles = append(troubles, Window{f.Began, f.Until})
		}
	}
	together := func(f *Finding) bool {
		return slices.ContainsFunc(troubles, func(t Window) bool {
			return t.Start.Before(f.Until.Add(s.felt())) && f.Began.Before(t.End)
		})
	}
	kept := make([]Finding, 0, len(s.Findings))
	for _, f := range s.Findings {
		if together(&f) && !relieves(&f) {
			kept = append(kept, f)
		} else {
			s.Notes = append(s.Notes, f)
		}
	}
	s.Findings = kept
}
