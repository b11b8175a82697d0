// Package watch says what a measurement of a running machine is.
//
// A series is one quantity of one thing over time: the bytes read each second
// from one disk, the memory of one task. It has a name, whose first part is
// the layer that it belongs to (disk.read_bytes), and labels that say of which
// thing it speaks (node=n1, device=sda). Values are levels or rates, never
// counters that only grow: who collects takes the difference, because only he
// knows when a counter began anew.
//
// A task is what was run: it has a beginning and an end and is recorded when
// each happens, so that one that lasts ten milliseconds is not missed between
// two looks. Its cgroup gives it series of its own while it lives.
//
// An event is anything else that happens at a moment: a collector that failed,
// a clock that jumped, a mount that came.
//
// The rooms below collect (collect), keep (series), find what changed first
// (explain), and show (serve).
package watch
