// Package explain finds the causes that delayed tasks in a window of time, and their costs.
// Where no task is observed, it finds the series that left their usual range first.
//
// Words:
//
//   - The window is the time to explain. The baseline is the time before
//     it, four times as long, from which usual ranges are learned; times that the
//     caller names as explained already are left out of it.
//   - z is the distance of a value from its range in usual widths, see [model]. A value has
//     to be unusual against a level, against a trend and, where there is
//     history, against the same hour of earlier days.
//   - An excursion is a stretch of time in which a series stays outside. Its
//     onset is the time at which it left.
//   - A loss is the time in which tasks did not proceed, by cause (task.lost of package
//     collect). A cost is the part of a loss that exceeds the usual one, in seconds of the
//     tasks. A taker is a program that used more of the lost resource than usual.
//   - A finding is a cause with a cost. Without observed tasks, it is a series with an excursion in the window that chance does
//     not explain, and that is trouble or comes with trouble.
//   - Trouble means that a program waits or is slower, or that something fails or has
//     reached its capacity. Work is the amount done or held: bytes, packets,
//     requests, memory. Queues of disks are work where the kernel reports waiting
//     (PSI), and trouble where it does not.
//   - A note is an excursion without a known cost, or without trouble: work that began
//     after all trouble, or was over half a minute before it.
//
// # Costs
//
// A loss counts if its part of the tasks' time exceeds the median of the stretches of the
// baseline by leastShare, and by beyond times the distance of the greatest stretch from the
// median; or, for a disk, if the disk is used more than in any stretch. Stretches are
// as long as the window. Each loss is split between its takers in proportion to their
// additional use. The cause's kind follows from the use: small writes, large ones, a file
// system that fills, short processes. Parts of one cause are joined, and the greatest cost
// comes first. A loss that no taker explains is stated in [Lost], and has no finding. So a
// busy machine whose load does not change has none, and load that comes and goes has.
//
// # Detection ln(n/a)V/4, where n is the number of points tested in all series together and
// a the accepted chance of a false alarm in the whole window (1 %): the sum of noise
// exceeds h with a chance of exp(-4h/V) at each point, V being 1 for independent values and
// (1+r)/(1-r) for those with the autocorrelation r, which is taken from the baseline
// (Siegmund, Sequential Analysis, 1985, for the first; the long-run variance for the
// second). It also has to exceed the largest value of the same sum in the baseline. The
// onset is where the sum was last zero.
//
// # Ranking Within a moment causes come before symptoms: started tasks, disks, networks,
// scripts of vendors, file systems, the store, schedulers, the machine as a whole, tasks
// that took long. Among equals the score decides: the median of z over the excursion.
//
// Tasks come and go, and a series that begins in the window has no usual range. The series
// of tasks are therefore combined by step, as means over the running tasks.
package explain
