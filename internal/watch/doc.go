// Package watch defines the data model for measurements of a running machine: series,
// samples, tasks and events.
//
// A series is one quantity of one thing over time: the bytes read each second from one
// disk, the memory of one task. It has a name, whose first part is the layer that it
// belongs to (disk.read_bytes), and labels that identify the thing (node=n1, device=sda).
// Values are levels or rates, never growing counters: the collector computes the
// difference, because only the collector knows when a counter was reset.
//
// A task is a command that ran. Its begin and its end are recorded when they happen, so
// that a task that lasts ten milliseconds is not missed between two samples. While it
// lives, its cgroup has series of its own.
//
// An event is anything else that happens at a moment: a collector that failed, a clock that
// jumped, a file system that was mounted.
//
// Package collect collects these, package series stores them, package explain finds the
// series that changed first, and package web shows them.
package watch
