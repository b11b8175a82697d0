// Package simulate replays a trace on a machine under a policy.
//
// Words:
//
//   - A moment is a time at which something happens. All that happens at a moment is told
//     to the policy before it is asked, once, what is to start.
//   - A job is queued when it may start: it was submitted, and what it comes after has
//     ended. It is eligible from then on.
//   - The estimate is how long the policy believes that a job runs; it never sees how long
//     it does. A job overruns when it still runs at the end of its estimate, which is then
//     made longer.
//   - A job is held while a limit keeps it from starting.
//   - To preempt is to make a running job end for the sake of another.
//
// # Moments
//
// At one moment things happen in this order: jobs end; estimates run out; nodes come back;
// nodes go down; jobs are submitted, in the order of the trace; then the policy is asked.
// What it starts with a run time of 0 ends at the same moment, after which it is asked
// again. So the result of a replay is a function of its input: there is no clock, and no
// choice is left to chance.
//
// # Estimates
//
//   - asked: what the user asked for; else the default of the partition; else the limit of
//     the partition; else the run time.
//   - exact: the run time.
//   - learned: the mean of the run times of the two jobs of the same user that ended last,
//     at most what was asked for; of a user without two, as asked. Tsafrir, Etsion and
//     Feitelson, Backfilling using system-generated predictions, IEEE TPDS 18(6), 2007.
//
// A job that overruns gets, one after the other, a minute, 5, 15, 30 minutes, 1, 2, 5, 10,
// 20, 50 and 100 hours more, as in that paper, and again 100 hours for as long as it runs.
//
// # Memory
//
// 10 million jobs take 40 bytes each here, besides the trace. Events are kept for running
// jobs only: submissions are read off the trace.
package simulate
