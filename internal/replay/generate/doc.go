// Package generate fits a model to a trace and makes longer traces like it.
//
// The model:
//
//   - Users submit in sessions: jobs of one user of which none comes more than 20 minutes
//     after the one before. Zackay and Feitelson, Workload resampling for performance
//     evaluation of parallel job schedulers, ICPE 2013.
//   - Sessions begin as a Poisson process, whose rate follows the week hour by hour, if the
//     trace has a week, otherwise the day.
//   - The number of jobs of a session is drawn from the trace's sessions, and so are the gaps between
//     them, from sessions of about the same size.
//   - The user of a session follows Zipf's law, with the exponent that fits best.
//   - Sizes are drawn from the trace. A job of a session has the size of the previous one as often
//     as in the trace. Run times are drawn by size class, from a sample of the trace,
//     together with the time asked for, memory, partition and QOS, which are correlated; the
//     run time is moved towards its neighbour in the sample, so that a long trace does not
//     repeat a short one.
//
// The model does not include that a user comes back when jobs have ended, and trends over
// months.
package generate
