// Watch measures the storage and the queries of samples: 1,000 series over a simulated
// quarter, 137 million points, as many as a monitor of a large cluster collected in three
// months (Kovatch and others, Big omics data experience, SC15).
//
// It measures premix (package internal/watch/series) and Prometheus' storage as a library (see the
// directory peer), alternating:
//
//   - ingest: points a second, from the first point until all are in files that will not
//     be merged again; both read the same stream of values from a pipe. On a busy machine
//     the CPU time of a million points until then is more meaningful.
//   - bytes a point on disk.
//   - queries: a day of one series at full resolution and in steps of two minutes, a day of
//     all series, three months of one, of a name (50 series), of a node (20) and of all in
//     steps of three hours, each with
//     least, mean and greatest value of each step. Prometheus' storage lacks roll-ups: the
//     same loop iterates over its samples and sums them up, without PromQL.
//     The figures are medians; "first" is the first query after opening the directory,
//     "cpu" the CPU time of one query.
//
// By default a twentieth of the points is used; -scale 1 uses all of them. Prometheus'
// storage is configured with blocks of a day, which suit a sample a minute better than
// its default of two hours.
//
// The values resemble the values of a node: rates in whole pages, ratios with four decimals,
// counts, many values that rarely change, and some noise with all its bits.
//
// For tasks it measures queries on a day with a million of them.
//
// For the collectors (package internal/watch/collect) it measures the part of a core that it takes
// to watch this machine once a second and to store the samples; without tasks, and with a
// thousand in cgroups, of which a quarter does something each second. The first 25 seconds,
// in which the collectors open files that then stay open, do not count.
//
// For many machines ("-part nodes", needs bin/premix) it measures a receiver to which 200
// simulated machines send 500 series each once a second, and the page of a job on all of
// them, of ten minutes and of a week.
//
// A contender is a separate program that reads a stream:
//
//	bench-watch contender DIR SERIES   < ticks
//	peer DIR SERIES                    < ticks
//
// A tick is the time (ms since 1970) and a value of each series, 8 bytes each, little
// endian. At the end of the stream a contender prints a JSON object for each figure: {"name", "value"}.
package main
