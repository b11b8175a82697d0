// Package scheduling has the built-in scheduling policies, and the interface to external ones.
//
// Words:
//
//   - The order sorts the queued jobs of a pool. Tiers come before it;
//     equal jobs are in order of submission.
//   - The head is the first queued job that no limit holds.
//   - Backfilling starts jobs after the head, which does not fit, while it waits.
//   - A reservation is capacity for a queued job, from the moment at which it could start if all
//     estimates were right.
//
// A policy of premix is an order and a way to backfill; see [Config]. The exact rules, for
// users, are in docs/replay.md:
//
//	fcfs          order of submission, no backfilling
//	sjf           shortest estimate first, no backfilling
//	easy          order of submission, EASY backfilling
//	conservative  order of submission, conservative backfilling
//	multifactor   Slurm's priority, Slurm's backfilling
//
// EASY (Lifka 1995, as in Mu'alem and Feitelson, IEEE TPDS 12(6), 2001): the head has a
// reservation; any other job may start that does not delay it.
//
// Conservative (same paper): every job gets a reservation when it is queued, and starts no
// later as long as estimates hold. When a job ends early, all reservations are moved, in
// order, each as early as the others permit. Only reservations that could use what has
// become free since they were last moved are looked at (see openings).
//
// Slurm's (slurm.conf(5), sched/backfill): at each moment jobs start in order until one
// does not fit. Every bf_interval all jobs, up to bf_max_job_test of them, are planned
// again in order, within bf_window and in slots of bf_resolution, and those whose turn is
// now start.
//
// # Queues
//
// Each pool has a queue: a treap in the policy's order. Each node stores the fewest cores
// and the shortest estimate in its subtree, so that the next job that could be backfilled
// is found in O(log n), without trying all waiting jobs.
//
// Jobs held by a limit are parked by user, outside of the queue, until a job of the same
// user, account or array has ended.
package scheduling
