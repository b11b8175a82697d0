// Package service answers searches of many users: queries against the same database,
// with the same program and options, are searched together, in one scan.
//
// Words:
//
//   - job: what a user sent in at once: some queries, a program, a database, options. Its
//     id is the RID of NCBI's BLAST URL API.
//   - result: what a job gave in one format. A job has one from the start, the format it
//     was sent in with; others are made when somebody asks for them.
//   - scan: one search for the results of several jobs with the same key.
//   - key: program, database, options and format.
//   - user: whoever a token belongs to; without tokens, an address.
//
// # Accepted is accepted
//
// A job's id is given out once the journal that holds the job is on the disk. After
// a kill, or a power failure, jobs without a result are searched again.
//
//	DIR/lock             held (flock(2)) by the service
//	DIR/journal.jsonl    record.Header, then one [event] a line
//	DIR/queries/ID       queries that are too long for a line of the journal
//	DIR/results/N        what the scan N gave: for each job its queries and its result
//
// A scan's file is on the disk before the events that speak of it are. It is removed when
// all its jobs have expired; files that no event speaks of are left by a kill, and removed
// at the next start. The journal is written anew, without what has gone, at the start and
// whenever most of it speaks of what has gone.
//
// # Who comes next
//
// Each user has a clock that runs by the letters of queries searched for it. Of the users
// with a job that has waited for the delay, the one whose clock is behind all others
// comes next; its first job leads a scan. The scan is filled with jobs of the same key,
// one of each user in turn, again by their clocks, until it has letters enough. A user who
// comes back after a pause begins at the clock of those who wait: nobody saves up.
//
// So the wait of a single job does not depend on how many jobs another user has sent, and
// while a scan runs, the next one gathers. One slot for scans is kept for small jobs, so
// that they do not wait for a large one; a scan of small jobs they wait for, for two
// seconds, and are then searched for together. While jobs keep coming, each within the
// delay of the one before, a scan that is due waits for more: for a quarter of the time
// that the last one took, or four delays where that had another key, at most a second.
//
// Where a scan of several jobs fails, its halves are searched on their own, so that a
// job fails only by itself.
//
// # Bounds
//
// Everything is bounded: bodies, letters and queries of a job, jobs and letters that wait,
// of all and of each user, scans at once, results kept. What is too much for now is
// refused with 429 and the time after which to try again; what is too large, with 413.
//
// Lock order: Service.mu, then nothing; the journal is written, and scans run, without it.
// Service.journalMu is held shared while an event is written and what it tells is
// noted under mu, exclusive while the journal is written anew.
package service
