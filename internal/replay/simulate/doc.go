// Package simulate replays a trace on a machine under a policy.
//
// Words:
//
//   - A moment is a time at which something happens. The policy gets all events of a moment
//     before it is asked, once, which jobs to start.
//   - A job is queued when it may start: it was submitted, and the jobs it comes after have
//     ended. It is eligible from then on.
//   - The estimate is the run time of a job that the policy sees; it never sees the real
//     one. A job overruns when it still runs at the end of its estimate, which is then
//     made longer.
//   - A job is held while a limit prevents its start.
//   - To preempt a running job is to end it so that another one can start.
//
// # Moments
//
// At one moment things happen in this order: jobs end; estimates run out; nodes come back;
// nodes go down; jobs are submitted, in the order of the trace; then the policy is asked. A
// started job with a run time of 0 ends at the same moment, after which the policy is asked
// again. The result of a replay is a function of its input: it depends neither on a clock
// nor on chance.
//
// # Estimates
//
//   - asked: the time that the user asked for; else the default of the partition; else the limit of
//     the partition; else the run time.
//   - exact: the run time.
//   - learned: the mean of the run times of the two jobs of the same user that ended last,
//     at most the time asked for; for a user without two, as in asked. Tsafrir, Etsion and
//     Feitelson, Backfilling using system-generated predictions, IEEE TPDS 18(6), 2007.
//
// A job that overruns gets, one after the other, a minute, 5, 15, 30 minutes, 1, 2, 5, 10,
// 20, 50 and 100 hours more, as in that paper, and again 100 hours for as long as it runs.
//
// # Memory
//
// Each of 10 million jobs takes 40 bytes, in addition to the trace, and 16 more with
// conservative backfilling. Only running jobs have
// events: submissions are taken from the trace.
package simulate
