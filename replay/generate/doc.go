// Package generate fits a model to a trace and makes longer traces like it.
//
// The model:
//
//   - Users submit in sessions: jobs of one user of which none comes more than 20 minutes
//     after the one before. Zackay and Feitelson, Workload resampling for performance
//     evaluation of parallel job schedulers, ICPE 2013.
//   - Sessions begin as a Poisson process, whose rate follows the week hour by hour, if the
//     trace has a week, otherwise the day.
//   - How many jobs a session has is drawn as it was found, and so are the gaps between
//     them, from sessions about as large.
//   - Who begins a session follows Zipf's law, with the exponent that fits best.
//   - Sizes are drawn as found. A job of a session has the size of the one before as often
//     as that was so. Run times are drawn by size class, from a sample of those found,
//     together with what was asked for, memory, partition and QOS, which hang together; the
//     run time is moved towards its neighbour in the sample, so that a long trace does not
//     repeat a short one.
//
// What it does not model: that a user comes back when jobs have ended, and trends over
// months.
package generate
