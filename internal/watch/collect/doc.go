// Package collect measures a running machine at regular times and reports the values.
// `premix watch` is built on it.
//
// Words:
//
//   - collector: measures one part of the machine, see [watch.Collector]. It turns
//     the counters that it reads into rates, because only it knows when one was reset.
//   - turn: one measurement by one collector. Turns fall on multiples of the collector's
//     interval of the wall clock, so that series of different collectors, and of
//     different machines, have points at the same times.
//   - skipped: a turn that did not take place, because the one before it took too long.
//   - catalogue: the list of all possible series, with their units; docs/watch.md
//     shows it. A series that is not in it cannot be reported.
//   - root: the directory with the files of the machine: "" for the machine itself, or a
//     directory that holds a copy of proc and sys, for tests.
//
// # Slow collectors
//
// Each collector has a goroutine of its own, so that none waits for another. A turn may
// last until the next one is due. A collector that takes longer, because a system call
// hangs on a dead file server, skips turns, with no effect on others. The skipped turns are
// counted and reported as an event. A collector that asks file servers has a further
// goroutine for each of them.
//
// # Counters
//
// A rate is the difference of a counter between two turns, divided by the time between them
// on a clock that does not jump. A counter that became smaller was reset, as with a device
// that was removed and inserted again: then there is no rate until the next turn. A
// collector reports no value that it does not know.
//
// # Clocks
//
// The wall clock is compared with the monotonic one at every turn of the smallest interval,
// and with the clock that also runs in suspend. Jumps and suspends are reported as events.
// Turns follow the wall clock, even after a jump.
//
// # Tasks
//
// A task that lasts five milliseconds falls between two turns. Tasks are therefore read
// from their records: premix writes a record of each, with the times of its beginning and
// end, into the journals of a run directory (engine, internal/engine/queue), and the collector of
// tasks follows those journals. [engine.Announce] announces the directories. Running tasks
// are found from boards and work directories. The collector saves its positions in the
// journals with some delay, so that after a kill it reports tasks twice, under the same
// key, and misses none.
//
// # Lost time
//
// Collector lost looks at the threads of tasks between its turns, and collector program reads
// all processes. Package explain computes from them which program delayed tasks, and for how
// long.
package collect
