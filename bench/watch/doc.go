// Watch measures how samples are kept and asked for: 1,000 series over a simulated quarter,
// 137 million points, which is what a monitor of a large cluster collected in three months
// (Kovatch and others, Big omics data experience, SC15).
//
// What is measured, of premix (package watch/series) and of Prometheus' storage as a library
// (see the directory peer), alternating:
//
//   - ingest: points a second, from the first to when all are in files that are not going
//     to be merged any more; both read the same stream of values from a pipe. What a million
//     of them takes of processors until then tells more where others run, too.
//   - bytes a point on disk.
//   - queries: a day of one series at full resolution and in steps of two minutes, a day of
//     all series, three months of one, of a name (50 series), of a node (20) and of all in
//     steps of three hours, each with
//     least, mean and greatest value of each step. Prometheus' storage has no roll-ups:
//     its samples are iterated over and summed up by the same loop, without PromQL.
//     Medians; "first" is the first one after the directory was opened, "cpu" what one
//     takes of processors.
//
// A twentieth of the points is taken unless -scale says otherwise: -scale 1 takes all.
// Prometheus' storage is given blocks of a day, which suit a sample a minute better than
// its usual ones of two hours.
//
// The values are like those of a node: rates in whole pages, ratios with four decimals,
// counts, much that rarely changes, and some noise with all its bits.
//
// Of tasks: questions for a day that has a million of them.
//
// Of the collectors (package watch/collect): what looking at this machine once a second
// takes of a core, with what it takes to keep what they see; without tasks, and with a
// thousand in cgroups, of which a quarter does something each second, after the first 25
// seconds, in which files are opened that then stay open.
//
// A contender is a program of its own that reads a stream:
//
//	bench-watch contender DIR SERIES   < ticks
//	peer DIR SERIES                    < ticks
//
// A tick is the time (ms since 1970) and a value of each series, 8 bytes each, little
// endian. At the end of the stream a contender prints a JSON object for each figure: {"name", "value"}.
package main
