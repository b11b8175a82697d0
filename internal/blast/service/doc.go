// Package service is an HTTP service for BLAST searches of many users: queries of the same
// database, with the same program and options, are searched together, in one scan.
//
// Words:
//
//   - job: one request of a user: some queries, a program, a database, options. Its
//     id is the RID of NCBI's BLAST URL API.
//   - result: the output for a job in one format. A job has one from the start, in the format of
//     its request; others are made on demand.
//   - scan: one search for the results of several jobs with the same key.
//   - key: program, database, options and format.
//   - user: the owner of a token; without tokens, an address.
//
// # Durability
//
// The service returns a job's id after the journal with the job is on the disk. After a
// kill, or a power failure, jobs without a result are searched again.
//
//	DIR/lock             held (flock(2)) by the service
//	DIR/journal.jsonl    record.Header, then one [event] a line
//	DIR/queries/ID       queries that are too long for a line of the journal
//	DIR/results/N        output of scan N: for each job its queries and its result
//
// A scan's file is on the disk before the events that refer to it. It is removed when all
// its jobs have expired; files without an event are left by a kill, and removed at the next
// start. The journal is rewritten without expired jobs at the start, and whenever most of
// it is about expired jobs.
//
// # Scheduling
//
// Each user has a clock that advances by the letters of queries searched for this user.
// Among the users with a job that has waited for the delay, the one with the lowest clock
// is next; its first job leads a scan. The scan is filled with jobs of the same key, one of
// each user in turn, again by their clocks, until it has enough letters. A user who returns
// after a pause starts at the lowest clock of the waiting users, so that pauses earn no
// credit.
//
// So the wait of a single job does not depend on how many jobs another user has sent, and
// while a scan runs, the next one gathers. One slot for scans is reserved for small jobs,
// so that they do not wait for a large one. For a scan of small jobs they wait up to two
// seconds, and are then searched together. While jobs keep coming, each within the delay of
// the one before, a scan that is due waits for more: for a quarter of the time of the last
// scan, or four delays if that had another key, at most a second.
//
// If a scan of several jobs fails, its halves are searched separately, so that a job fails
// only because of its own queries.
//
// # Limits
//
// These are limited: bodies, letters and queries of a job, waiting jobs and letters, in
// total and of each user, concurrent scans, stored results and their bytes. A request that exceeds a
// temporary limit is refused with 429 and the time after which to try again; a request that
// is too large, with 413.
//
// If a scan's file cannot be written, old results make room for it. If that does not help, its
// jobs go back into the queue, and scans pause for a second, then for longer, up to
// half a minute. In the meantime /healthz reports it, and jobs are refused with 503.
//
// Lock order: Service.mu, then nothing; the journal is written, and scans run, without it.
// Service.journalMu is held shared while an event is written and applied under mu, and
// exclusive while the journal is rewritten.
package service
