package collect

import (
	"fmt"
	"strings"

	"premix/watch"
)

// Entry is a kind of series: those with one name.
type Entry struct {
	Name   string
	Unit   watch.Unit
	Labels string // keys of its labels, with blanks between; node is not named, all have it
	Help   string // one line
}

// Catalogue lists all kinds of series that collectors report, but for those that
// scripts print (layer vendor), which are declared in the configuration.
var Catalogue = []Entry{
	{"node.cpu_user", watch.Cores, "", "processor time of programs, niced ones too"},
	{"node.cpu_system", watch.Cores, "", "processor time of the kernel, interrupts too"},
	{"node.cpu_wait", watch.Cores, "", "idle while a disk was waited for"},
	{"node.cpu_stolen", watch.Cores, "", "taken by the host of a virtual machine"},
	{"node.cpu_idle", watch.Cores, "", "idle"},
	{"node.cpu_busy", watch.Ratio, "cpu", "part of the time that one processor was not idle"},
	{"node.load", watch.Count, "minutes", "mean number of threads that ran, or waited for a processor or a disk, over 1, 5 and 15 minutes"},
	{"node.running", watch.Count, "", "threads that run or wait for a processor"},
	{"node.blocked", watch.Count, "", "processes that wait for a disk"},
	{"node.forks", watch.PerSecond, "", "processes and threads begun"},
	{"node.exits", watch.PerSecond, "", "processes ended that are not of premix; where these are recorded"},
	{"node.context_switches", watch.PerSecond, "", "changes of the thread on a processor"},
	{"node.memory_total", watch.Bytes, "", "memory of the machine"},
	{"node.memory_available", watch.Bytes, "", "what programs could have without swapping"},
	{"node.memory_free", watch.Bytes, "", "memory that is used for nothing"},
	{"node.memory_cached", watch.Bytes, "", "page cache and buffers"},
	{"node.memory_dirty", watch.Bytes, "", "changed pages that are not on disk yet"},
	{"node.memory_writeback", watch.Bytes, "", "pages on their way to disk"},
	{"node.memory_anonymous", watch.Bytes, "", "memory of processes that no file backs"},
	{"node.swap_used", watch.Bytes, "", "swap in use"},
	{"node.major_faults", watch.PerSecond, "", "page faults that waited for a disk"},
	{"node.swap_in", watch.BytesPerSecond, "", "read from swap"},
	{"node.swap_out", watch.BytesPerSecond, "", "written to swap"},
	{"node.oom_kills", watch.PerSecond, "", "processes killed for want of memory"},
	{"node.pressure", watch.Ratio, "kind resource", "part of the time that some, or all (full), wanted processor, memory or disk (io) and did not get it"},
	{"node.watch_cpu", watch.Cores, "", "processor time of premix watch itself"},
	{"node.watch_memory", watch.Bytes, "", "resident memory of premix watch itself"},
	{"node.watch_seconds", watch.Seconds, "collector", "what the last turn of a collector took"},
	{"node.watch_skipped", watch.Count, "collector", "turns that a collector has skipped so far"},

	{"disk.read_bytes", watch.BytesPerSecond, "device", "read from the device"},
	{"disk.written_bytes", watch.BytesPerSecond, "device", "written to the device"},
	{"disk.reads", watch.PerSecond, "device", "reads completed"},
	{"disk.writes", watch.PerSecond, "device", "writes completed"},
	{"disk.flushes", watch.PerSecond, "device", "flushes completed"},
	{"disk.read_wait", watch.Seconds, "device", "mean time of a read, waiting in the queue included"},
	{"disk.write_wait", watch.Seconds, "device", "mean time of a write, waiting in the queue included"},
	{"disk.in_flight", watch.Count, "device", "requests that the device has at the moment"},
	{"disk.queued", watch.Count, "device", "mean number of requests that waited or were served"},
	{"disk.busy", watch.Ratio, "device", "part of the time that the device had anything to do"},

	{"network.received_bytes", watch.BytesPerSecond, "interface", "received"},
	{"network.sent_bytes", watch.BytesPerSecond, "interface", "sent"},
	{"network.received_packets", watch.PerSecond, "interface", "packets received"},
	{"network.sent_packets", watch.PerSecond, "interface", "packets sent"},
	{"network.errors", watch.PerSecond, "interface", "packets received or sent with an error"},
	{"network.drops", watch.PerSecond, "interface", "packets dropped on the way in or out"},
	{"network.tcp_sent", watch.PerSecond, "", "TCP segments sent"},
	{"network.tcp_retransmits", watch.PerSecond, "", "TCP segments sent again"},
	{"network.tcp_connections", watch.Count, "", "TCP connections that are established"},
	{"network.tcp_resets", watch.PerSecond, "", "TCP connections that were reset"},
	{"network.udp_errors", watch.PerSecond, "", "UDP datagrams that could not be delivered"},

	{"mount.size", watch.Bytes, "mount type", "size of the file system"},
	{"mount.available", watch.Bytes, "mount type", "what users may still write"},
	{"mount.inodes", watch.Count, "mount type", "files that the file system may have"},
	{"mount.inodes_free", watch.Count, "mount type", "files that it may still have"},
	{"mount.answer", watch.Seconds, "mount type", "what asking the file system for its size took; the time so far where it does not answer"},
	{"mount.nfs_read_bytes", watch.BytesPerSecond, "mount", "read from the server"},
	{"mount.nfs_written_bytes", watch.BytesPerSecond, "mount", "written to the server"},
	{"mount.nfs_requests", watch.PerSecond, "mount operation", "requests completed"},
	{"mount.nfs_round_trip", watch.Seconds, "mount operation", "mean time from sending a request to its answer"},
	{"mount.nfs_time", watch.Seconds, "mount operation", "mean time of a request, waiting to be sent included"},
	{"mount.nfs_retransmits", watch.PerSecond, "mount operation", "requests that were sent again"},
	{"mount.nfs_timeouts", watch.PerSecond, "mount operation", "major timeouts of requests"},
	{"mount.nfs_errors", watch.PerSecond, "mount operation", "requests that ended in an error (Linux 5.3)"},
	{"mount.lustre_read_bytes", watch.BytesPerSecond, "filesystem", "read by programs from Lustre"},
	{"mount.lustre_written_bytes", watch.BytesPerSecond, "filesystem", "written by programs to Lustre"},
	{"mount.lustre_calls", watch.PerSecond, "filesystem operation", "calls of programs: open, getattr, ..."},
	{"mount.lustre_requests", watch.PerSecond, "target", "requests to one server target (OST, MDT)"},
	{"mount.lustre_round_trip", watch.Seconds, "target", "mean time of a request to a target"},
	{"mount.gpfs_read_bytes", watch.BytesPerSecond, "filesystem", "read by programs from GPFS"},
	{"mount.gpfs_written_bytes", watch.BytesPerSecond, "filesystem", "written by programs to GPFS"},
	{"mount.gpfs_calls", watch.PerSecond, "filesystem operation", "calls of programs: open, close, read, write, readdir, inode_update"},
	{"mount.gpfs_waiters", watch.Count, "reason", "threads of GPFS that wait"},
	{"mount.gpfs_longest_wait", watch.Seconds, "reason", "how long the first of them has waited"},

	{"store.mounts", watch.Count, "", "trees that premix's node has mounted"},
	{"store.failed_mounts", watch.Count, "", "mounts that ought to be there and are not"},
	{"store.fetched_bytes", watch.BytesPerSecond, "tree", "content of a tree fetched from origins"},
	{"store.present", watch.Ratio, "tree", "part of a tree that is in the cache"},
	{"store.hits", watch.PerSecond, "tree", "chunks read that were in the cache"},
	{"store.misses", watch.PerSecond, "tree", "chunks read that were waited for"},
	{"store.errors", watch.PerSecond, "tree", "reads that failed"},
	{"store.corrupt", watch.PerSecond, "tree", "chunks that were wrong on disk"},
	{"store.origin_requests", watch.PerSecond, "origin", "requests to an origin"},
	{"store.origin_bytes", watch.BytesPerSecond, "origin", "received from an origin"},
	{"store.origin_errors", watch.PerSecond, "origin", "requests to an origin that failed"},
	{"store.origin_p99", watch.Seconds, "origin", "99 of 100 of the last fetches were faster"},
	{"store.cache_used", watch.Bytes, "", "what the cache takes on disk"},
	{"store.cache_free", watch.Bytes, "", "free on the cache's partition"},
	{"store.cache_evicted", watch.PerSecond, "", "chunks evicted from the cache"},
	{"store.worker_deaths", watch.Count, "", "workers of the node that died lately"},

	{"scheduler.jobs", watch.Count, "partition state", "jobs of Slurm, elements of arrays counted each"},
	{"scheduler.cycle", watch.Seconds, "", "what the last cycle of Slurm's main scheduler took"},
	{"scheduler.cycle_mean", watch.Seconds, "", "mean of the cycles since the statistics began"},
	{"scheduler.backfill_cycle", watch.Seconds, "", "what the last cycle of the backfill scheduler took"},
	{"scheduler.backfill_depth", watch.Count, "", "jobs that it looked at"},
	{"scheduler.queue_length", watch.Count, "", "jobs in the queue in the last cycle"},
	{"scheduler.agent_queue", watch.Count, "", "messages that slurmctld has not sent yet"},
	{"scheduler.threads", watch.Count, "", "threads of slurmctld that serve requests"},
	{"scheduler.jobs_submitted", watch.PerSecond, "", "jobs submitted"},
	{"scheduler.jobs_started", watch.PerSecond, "", "jobs started"},
	{"scheduler.jobs_completed", watch.PerSecond, "", "jobs completed"},
	{"scheduler.jobs_failed", watch.PerSecond, "", "jobs that failed"},

	{"task.running", watch.Count, "", "tasks of premix that run"},
	{"task.ended", watch.PerSecond, "", "tasks of premix that ended"},
	{"task.failed", watch.PerSecond, "", "tries of tasks that failed"},
	{"task.cpu", watch.Cores, "manager run task", "processor time of the task"},
	{"task.throttled", watch.Ratio, "manager run task", "part of the scheduling periods in which it was held at its CPU quota"},
	{"task.memory", watch.Bytes, "manager run task", "memory charged to its cgroup, page cache included"},
	{"task.processes", watch.Count, "manager run task", "its processes and threads, or processes where threads are not counted"},
	{"task.read_bytes", watch.BytesPerSecond, "manager run task", "read from block devices"},
	{"task.written_bytes", watch.BytesPerSecond, "manager run task", "written to block devices"},
	{"task.pressure", watch.Ratio, "kind manager resource run task", "part of the time that some of its threads, or all (full), wanted processor, memory or disk (io) and did not get it; cgroup version 2"},
	{"task.oom_kills", watch.Count, "manager run task", "its processes that were killed at its memory limit"},
}

// catalogue makes series of one machine.
type catalogue struct {
	node    string
	entries map[string]*Entry
}

func newCatalogue(node string) *catalogue {
	c := &catalogue{node: node, entries: make(map[string]*Entry, len(Catalogue))}
	for i := range Catalogue {
		c.entries[Catalogue[i].Name] = &Catalogue[i]
	}
	return c
}

// gauge makes a series, with the values of its labels in the order of the catalogue;
// one that is "" is left out. A name that the catalogue lacks, or another number of
// values, is a mistake of the program.
func (c *catalogue) gauge(name string, values ...string) gauge {
	e := c.entries[name]
	if e == nil {
		panic("no series " + name + " in the catalogue")
	}
	keys := strings.Fields(e.Labels)
	if len(keys) != len(values) {
		panic(fmt.Sprintf("series %s has labels %q, and not %d", name, keys, len(values)))
	}
	labels := []string{"node", c.node}
	for i, k := range keys {
		if values[i] != "" {
			labels = append(labels, k, values[i])
		}
	}
	return gauge{watch.NewID(name, labels...), e.Unit}
}

func (c *catalogue) counter(name string, values ...string) *counter {
	return &counter{gauge: c.gauge(name, values...)}
}

func (c *catalogue) level(name string, values ...string) *gauge {
	g := c.gauge(name, values...)
	return &g
}
