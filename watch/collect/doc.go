// Package collect looks at a running machine, at regular times, and reports what it
// sees: `premix watch` is made of it.
//
// Words:
//
//   - collector: what looks at one part of the machine, see [watch.Collector]. It turns
//     the counters that it reads into rates, as only it knows when one began anew.
//   - turn: one look of one collector. Turns fall on multiples of the collector's
//     interval of the wall clock, so that series of different collectors, and of
//     different machines, have points at the same times.
//   - skipped: a turn that did not take place, because the one before it took too long.
//   - catalogue: the list of all series there can be, with their units; docs/watch.md
//     shows it. What is not in it cannot be reported.
//   - root: where the files of the machine are found: "" for the machine itself, or a
//     directory that holds a copy of proc and sys, for tests.
//
// # Who waits for whom
//
// Each collector has a goroutine of its own, so none waits for another. A turn is
// given until the next one would begin. A collector that does not heed that, because a
// system call hangs on a dead file server, loses turns and nothing else: they are
// counted, and told as an event. A collector that asks file servers has a goroutine for
// each of them besides.
//
// # Counters
//
// A rate is the difference of a counter between two looks, divided by the time between
// them by a clock that does not jump. A counter that has become smaller began anew, as
// with a device that was taken out and put in again: then there is no rate until the
// next look. Nothing is reported where nothing is known.
//
// # Clocks
//
// The wall clock is compared with the monotonic one at every turn of the smallest
// interval, and with the one that also runs in suspend: a jump, and a machine that was
// suspended, are events. Turns follow the wall clock as it is then.
//
// # Tasks
//
// A task that lasts five milliseconds falls between two looks. Tasks are therefore not
// looked for but read: premix writes a record of each, with the times of its beginning
// and end, into the journals of a run directory (engine, engine/queue), and the
// collector of tasks follows those, from where it had got to. Where the directories
// are it is told by [engine.Announce]. What runs at the moment it takes from boards
// and work directories. The place that was reached is written down with some delay, so
// that after a kill tasks are reported twice, under the same key, rather than never.
package collect
