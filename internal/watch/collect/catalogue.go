package collect

import (
	"fmt"
	"strings"

	"premix/internal/watch"
)

// Entry describes all series with one name.
type Entry struct {
	Name   string
	Unit   watch.Unit
	Labels string // keys of its labels, separated by blanks; all series have node, which is not listed
	Help   string // one line
}

// Catalogue is the list of all series that collectors report, except the series of scripts
// (layer vendor), which the configuration declares.
var Catalogue = []Entry{
	{"node.cpu_user", watch.Cores, "", "processor time of programs, including niced ones"},
	{"node.cpu_system", watch.Cores, "", "processor time of the kernel, including interrupts"},
	{"node.cpu_wait", watch.Cores, "", "idle while threads waited for a disk"},
	{"node.cpu_stolen", watch.Cores, "", "taken by the host of a virtual machine"},
	{"node.cpu_idle", watch.Cores, "", "idle"},
	{"node.cpu_busy", watch.Ratio, "cpu", "part of the time in which one processor was not idle"},
	{"node.load", watch.Count, "minutes", "mean number of threads that ran or waited for a processor or a disk, over 1, 5 and 15 minutes"},
	{"node.running", watch.Count, "", "threads that run or wait for a processor"},
	{"node.blocked", watch.Count, "", "processes that wait for a disk"},
	{"node.forks", watch.PerSecond, "", "processes and threads started"},
	{"node.exits", watch.PerSecond, "", "processes outside premix that ended; only where these are recorded"},
	{"node.context_switches", watch.PerSecond, "", "context switches"},
	{"node.memory_total", watch.Bytes, "", "memory of the machine"},
	{"node.memory_available", watch.Bytes, "", "memory that programs could get without swapping"},
	{"node.memory_free", watch.Bytes, "", "unused memory"},
	{"node.memory_cached", watch.Bytes, "", "page cache and buffers"},
	{"node.memory_dirty", watch.Bytes, "", "dirty pages: changed and not yet on disk"},
	{"node.memory_writeback", watch.Bytes, "", "pages being written to disk"},
	{"node.memory_anonymous", watch.Bytes, "", "anonymous memory of processes"},
	{"node.swap_used", watch.Bytes, "", "swap in use"},
	{"node.major_faults", watch.PerSecond, "", "page faults that waited for a disk"},
	{"node.swap_in", watch.BytesPerSecond, "", "read from swap"},
	{"node.swap_out", watch.BytesPerSecond, "", "written to swap"},
	{"node.oom_kills", watch.PerSecond, "", "processes killed because memory was exhausted"},
	{"node.pressure", watch.Ratio, "kind resource", "part of the time in which some threads, or all (full), waited for processor, memory or disk (io)"},
	{"node.program_cpu", watch.Cores, "cgroup program", "processor time of the processes with this name that belong to no task; the greatest users only"},
	{"node.program_forked_cpu", watch.Cores, "cgroup program", "processor time of children that they have waited for"},
	{"node.program_bytes", watch.BytesPerSecond, "cgroup device program", "read from and written to storage by them; device has files that the greatest of them has open"},
	{"node.program_memory", watch.Bytes, "cgroup program", "resident memory of them"},
	{"node.ended_cpu", watch.Cores, "", "processor time of processes that began and ended between two turns, and of interrupts"},
	{"node.watch_cpu", watch.Cores, "", "processor time of premix watch itself"},
	{"node.watch_memory", watch.Bytes, "", "resident memory of premix watch itself"},
	{"node.watch_seconds", watch.Seconds, "collector", "duration of the last turn of a collector"},
	{"node.watch_skipped", watch.Count, "collector", "turns that a collector has skipped so far"},

	{"node.gpu_busy", watch.Ratio, "gpu", "part of the time in which the GPU had work"},
	{"node.gpu_memory_used", watch.Bytes, "gpu", "memory of the GPU in use"},
	{"node.gpu_memory_total", watch.Bytes, "gpu", "memory of the GPU"},
	{"node.gpu_power", watch.Watts, "gpu", "power of the GPU"},
	{"node.gpu_temperature", watch.Celsius, "gpu", "temperature of the GPU"},
	{"node.power", watch.Watts, "", "power of the machine, as its management controller measures it (IPMI)"},
	{"node.power_of", watch.Watts, "zone", "power of a part of the machine: a processor, its cores, memory (RAPL)"},
	{"node.zfs_cache", watch.Bytes, "", "cache of ZFS (ARC)"},
	{"node.zfs_cache_limit", watch.Bytes, "", "limit of the cache of ZFS"},
	{"node.zfs_hits", watch.PerSecond, "", "reads from the cache of ZFS"},
	{"node.zfs_misses", watch.PerSecond, "", "reads that the cache of ZFS did not have"},

	{"disk.read_bytes", watch.BytesPerSecond, "device", "read from the device"},
	{"disk.written_bytes", watch.BytesPerSecond, "device", "written to the device"},
	{"disk.reads", watch.PerSecond, "device", "reads completed"},
	{"disk.writes", watch.PerSecond, "device", "writes completed"},
	{"disk.flushes", watch.PerSecond, "device", "flushes completed"},
	{"disk.read_wait", watch.Seconds, "device", "mean time of a read, including the wait in the queue"},
	{"disk.write_wait", watch.Seconds, "device", "mean time of a write, including the wait in the queue"},
	{"disk.in_flight", watch.Count, "device", "requests in flight"},
	{"disk.queued", watch.Count, "device", "mean number of requests waiting or being served"},
	{"disk.busy", watch.Ratio, "device", "part of the time in which the device was busy"},

	{"disk.zfs_read_bytes", watch.BytesPerSecond, "pool", "read from the devices of the pool (before OpenZFS 2.1)"},
	{"disk.zfs_written_bytes", watch.BytesPerSecond, "pool", "written to the devices of the pool (before OpenZFS 2.1)"},
	{"disk.zfs_reads", watch.PerSecond, "pool", "reads of the pool (before OpenZFS 2.1)"},
	{"disk.zfs_writes", watch.PerSecond, "pool", "writes of the pool (before OpenZFS 2.1)"},

	{"network.received_bytes", watch.BytesPerSecond, "interface", "received"},
	{"network.sent_bytes", watch.BytesPerSecond, "interface", "sent"},
	{"network.received_packets", watch.PerSecond, "interface", "packets received"},
	{"network.sent_packets", watch.PerSecond, "interface", "packets sent"},
	{"network.errors", watch.PerSecond, "interface", "packets received or sent with an error"},
	{"network.drops", watch.PerSecond, "interface", "packets dropped on the way in or out"},
	{"network.tcp_sent", watch.PerSecond, "", "TCP segments sent"},
	{"network.tcp_retransmits", watch.PerSecond, "", "TCP segments retransmitted"},
	{"network.tcp_connections", watch.Count, "", "TCP connections that are established"},
	{"network.tcp_resets", watch.PerSecond, "", "TCP connections that were reset"},
	{"network.udp_errors", watch.PerSecond, "", "UDP datagrams that could not be delivered"},
	{"network.ib_received_bytes", watch.BytesPerSecond, "device port", "received by the InfiniBand port"},
	{"network.ib_sent_bytes", watch.BytesPerSecond, "device port", "sent by the port"},
	{"network.ib_received_packets", watch.PerSecond, "device port", "packets received"},
	{"network.ib_sent_packets", watch.PerSecond, "device port", "packets sent"},
	{"network.ib_errors", watch.PerSecond, "device port", "errors of the link, and packets received with an error"},
	{"network.ib_drops", watch.PerSecond, "device port", "packets that could not be sent"},
	{"network.ib_waits", watch.PerSecond, "device port", "ticks in which the port had data to send, and no credit of its peer"},

	{"mount.size", watch.Bytes, "mount type", "size of the file system"},
	{"mount.available", watch.Bytes, "mount type", "free space for users"},
	{"mount.inodes", watch.Count, "mount type", "capacity in files"},
	{"mount.inodes_free", watch.Count, "mount type", "files that can still be created"},
	{"mount.answer", watch.Seconds, "mount type", "duration of asking the file system for its size; while it does not answer, the time so far"},
	{"mount.nfs_read_bytes", watch.BytesPerSecond, "mount", "read from the server"},
	{"mount.nfs_written_bytes", watch.BytesPerSecond, "mount", "written to the server"},
	{"mount.nfs_requests", watch.PerSecond, "mount operation", "requests completed"},
	{"mount.nfs_round_trip", watch.Seconds, "mount operation", "mean time from sending a request to its answer"},
	{"mount.nfs_time", watch.Seconds, "mount operation", "mean time of a request, including the wait before it was sent"},
	{"mount.nfs_retransmits", watch.PerSecond, "mount operation", "requests that were retransmitted"},
	{"mount.nfs_timeouts", watch.PerSecond, "mount operation", "major timeouts of requests"},
	{"mount.nfs_errors", watch.PerSecond, "mount operation", "requests that ended in an error (Linux 5.3)"},
	{"mount.lustre_read_bytes", watch.BytesPerSecond, "filesystem", "read by programs from Lustre"},
	{"mount.lustre_written_bytes", watch.BytesPerSecond, "filesystem", "written by programs to Lustre"},
	{"mount.lustre_calls", watch.PerSecond, "filesystem operation", "system calls of programs: open, getattr, ..."},
	{"mount.lustre_requests", watch.PerSecond, "target", "requests to one server target (OST, MDT)"},
	{"mount.lustre_round_trip", watch.Seconds, "target", "mean time of a request to a target"},
	{"mount.gpfs_read_bytes", watch.BytesPerSecond, "filesystem", "read by programs from GPFS"},
	{"mount.gpfs_written_bytes", watch.BytesPerSecond, "filesystem", "written by programs to GPFS"},
	{"mount.gpfs_calls", watch.PerSecond, "filesystem operation", "system calls of programs: open, close, read, write, readdir, inode_update"},
	{"mount.gpfs_waiters", watch.Count, "reason", "waiting threads of GPFS"},
	{"mount.gpfs_longest_wait", watch.Seconds, "reason", "longest time that one of them has waited"},
	{"mount.beegfs_read_bytes", watch.BytesPerSecond, "", "read by this machine from BeeGFS"},
	{"mount.beegfs_written_bytes", watch.BytesPerSecond, "", "written by this machine to BeeGFS"},
	{"mount.beegfs_requests", watch.PerSecond, "service", "requests of this machine to the servers of metadata (meta) or storage"},
	{"mount.beegfs_calls", watch.PerSecond, "operation service", "these requests by kind, in the words of BeeGFS: stat, open, ops-rd, ..."},
	{"mount.zfs_read_bytes", watch.BytesPerSecond, "pool", "read by programs from the datasets of the pool"},
	{"mount.zfs_written_bytes", watch.BytesPerSecond, "pool", "written by programs to the datasets of the pool"},

	{"store.mounts", watch.Count, "", "trees that premix's node has mounted"},
	{"store.failed_mounts", watch.Count, "", "mounts that should be there and are not"},
	{"store.fetched_bytes", watch.BytesPerSecond, "tree", "content of a tree fetched from origins"},
	{"store.present", watch.Ratio, "tree", "part of a tree that is in the cache"},
	{"store.hits", watch.PerSecond, "tree", "chunks read from the cache"},
	{"store.misses", watch.PerSecond, "tree", "chunks that a read waited for"},
	{"store.errors", watch.PerSecond, "tree", "reads that failed"},
	{"store.corrupt", watch.PerSecond, "tree", "chunks found corrupt on disk"},
	{"store.origin_requests", watch.PerSecond, "origin", "requests to an origin"},
	{"store.origin_bytes", watch.BytesPerSecond, "origin", "received from an origin"},
	{"store.origin_errors", watch.PerSecond, "origin", "requests to an origin that failed"},
	{"store.origin_p99", watch.Seconds, "origin", "99th percentile of the duration of recent fetches"},
	{"store.cache_used", watch.Bytes, "", "size of the cache on disk"},
	{"store.cache_free", watch.Bytes, "", "free space on the cache's partition"},
	{"store.cache_evicted", watch.PerSecond, "", "chunks evicted from the cache"},
	{"store.worker_deaths", watch.Count, "", "workers of the node that died recently"},

	{"scheduler.jobs", watch.Count, "partition state", "jobs of Slurm; each element of an array counts"},
	{"scheduler.cycle", watch.Seconds, "", "duration of the last cycle of Slurm's main scheduler"},
	{"scheduler.cycle_mean", watch.Seconds, "", "mean duration of its cycles since the statistics began"},
	{"scheduler.backfill_cycle", watch.Seconds, "", "duration of the last cycle of the backfill scheduler"},
	{"scheduler.backfill_depth", watch.Count, "", "jobs that it considered"},
	{"scheduler.queue_length", watch.Count, "", "jobs in the queue in the last cycle"},
	{"scheduler.agent_queue", watch.Count, "", "messages that slurmctld has not sent yet"},
	{"scheduler.threads", watch.Count, "", "threads of slurmctld that serve requests"},
	{"scheduler.jobs_submitted", watch.PerSecond, "", "jobs submitted"},
	{"scheduler.jobs_started", watch.PerSecond, "", "jobs started"},
	{"scheduler.jobs_completed", watch.PerSecond, "", "jobs completed"},
	{"scheduler.jobs_failed", watch.PerSecond, "", "jobs that failed"},

	{"task.running", watch.Count, "", "running tasks of premix"},
	{"task.ended", watch.PerSecond, "", "tasks of premix that ended"},
	{"task.failed", watch.PerSecond, "", "failed tries of tasks"},
	{"task.observed", watch.Count, "run", "mean number of running tasks whose threads are observed: those with a cgroup"},
	{"task.lost", watch.Count, "cause device run thing", "mean number of these that did not proceed, by cause: processor (another one ran), quota, disk, memory, filesystem (its server), network; thing is the mount point or the cgroup"},
	{"task.cpu", watch.Cores, "manager run task", "processor time of the task"},
	{"task.throttled", watch.Ratio, "manager run task", "part of the scheduling periods in which it was throttled at its CPU quota"},
	{"task.memory", watch.Bytes, "manager run task", "memory charged to its cgroup, including page cache"},
	{"task.processes", watch.Count, "manager run task", "its processes and threads, or only processes where threads are not counted"},
	{"task.read_bytes", watch.BytesPerSecond, "manager run task", "read from block devices"},
	{"task.written_bytes", watch.BytesPerSecond, "manager run task", "written to block devices"},
	{"task.pressure", watch.Ratio, "kind manager resource run task", "part of the time in which some of its threads, or all (full), waited for processor, memory or disk (io); cgroup version 2"},
	{"task.oom_kills", watch.Count, "manager run task", "processes killed at its memory limit"},
	{"task.gpu_busy", watch.Ratio, "gpu manager run task", "part of the time in which a GPU that the task uses had work, of all its users"},
	{"task.gpu_memory", watch.Bytes, "gpu manager run task", "memory of the GPU that the task uses"},
	{"task.lustre_read_bytes", watch.BytesPerSecond, "manager target task", "read by the task from the target of this server of Lustre"},
	{"task.lustre_written_bytes", watch.BytesPerSecond, "manager target task", "written by the task to the target"},
	{"task.lustre_requests", watch.PerSecond, "manager target task", "requests of the task to the target"},
	{"task.week_hot_starts", watch.Count, "user", "hot starts of the user's commands by premix hot and premix shim in seven days"},
	{"task.week_cold_starts", watch.Count, "user", "cold starts of these commands in seven days"},
	{"task.week_saved", watch.Seconds, "user", "loading that hot starts saved in seven days"},
	{"task.week_not_loaded", watch.Bytes, "user", "memory that hot starts did not load in seven days"},
}

// catalogue makes the series of one machine.
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

// gauge returns a new series, with the values of its labels in the order of the catalogue;
// an empty value leaves its label out. It panics if the catalogue lacks the name or has
// another number of labels.
func (c *catalogue) gauge(name string, values ...string) gauge {
	e := c.entries[name]
	if e == nil {
		panic("series " + name + " is not in the catalogue")
	}
	keys := strings.Fields(e.Labels)
	if len(keys) != len(values) {
		panic(fmt.Sprintf("series %s has the labels %q, but got %d values", name, keys, len(values)))
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
