// Package explain tells which series left their usual range first in a window
// of time.
//
// Words:
//
//   - The window is what somebody asks about. The baseline is the time before
//     it, four times as long, from which usual ranges are learned; what the
//     caller names as explained already is left out of it.
//   - z is how many usual widths a value lies outside, see [model]. A value has
//     to be unusual against a level, against a trend and, where there is
//     history, against what happened at the same hour of earlier days.
//   - An excursion is a stretch of time in which a series stays outside. Its
//     onset is when it left.
//   - A finding is a series with an excursion in the window that chance does
//     not explain, and that is trouble or comes with trouble.
//   - Trouble is that somebody waits or is slower, that something fails, or has
//     no more to give. Work is how much is done or held: bytes, packets,
//     requests, memory. Queues of disks are work where the kernel tells who
//     waits (PSI), and trouble where it does not.
//   - A note is an excursion without trouble: work that began after all trouble,
//     or was over half a minute before it.
//
// How it is decided. A sum of z (CUSUM, Page, Biometrika 41, 1954) is kept in
// each direction: it grows by what z exceeds 2, at most 6 a point, and falls
// otherwise. An alarm is raised where it exceeds ln(n/a)V/4, where n is the
// number of points tested in all series together and a the accepted chance of
// a false alarm in the whole window (1 %): the sum of noise exceeds h with a
// chance of exp(-4h/V) at each point, V being 1 for independent values and
// (1+r)/(1-r) for those with the autocorrelation r, which is taken from the
// baseline (Siegmund, Sequential Analysis, 1985, for the first; the long-run
// variance for the second). And it has to exceed what the same sum came to in
// the baseline. Onset is where the sum last was zero.
//
// How it is ranked. Findings whose onsets cannot be told apart, within three
// seconds or the interval at which they are sampled, are one moment, and
// moments are ordered by time. Within a moment causes come before symptoms:
// tasks that were begun, disks, networks, scripts of vendors, file systems,
// the store, schedulers, the machine as a whole, tasks that took long. Then
// the score decides, the median of z over the excursion.
//
// Tasks come and go, and a series that begins in the window has no usual
// range. The series of tasks are therefore put together by step, as means over
// those that run.
package explain
