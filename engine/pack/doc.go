// Package pack runs the tasks of a directory through a batch system, in few jobs of
// it. It is the same for every batch system; what is not is behind [Engine].
//
// Words:
//
//   - directory: a task directory (package queue), or a run with a recipe (package
//     engine); see [Directory].
//   - engine job: what the batch system queues, starts and ends, such as an element of
//     a Slurm job array.
//   - worker: the premix in one engine job. It runs the local engine on its share.
//   - share: ranges of task numbers that one worker has, and nobody else.
//   - wave: the shares that are submitted together, as one array. They need the same
//     cores and memory.
//   - seat: the name under which a worker writes: its journal, logs, board and lock. A
//     seat is taken again when its worker is closed, so that there are as many files as
//     workers at a time, not as workers.
//   - budget: how long a worker starts tasks. What it has not started then comes back.
//   - dispatcher: the premix that packs, submits and watches. It is one at a time.
//   - to close a worker: to declare that it is over, for good.
//   - to come back: what a worker that was closed has not done is free to be given
//     again.
//   - fruitless: a worker that was closed before any task of its share had ended. One
//     that was interrupted has not: it may be why the job came to its time limit.
//   - strike: a fruitless worker of a share. It is halved; a task alone in a share with
//     [maxStrikes] is given up, as it takes its job down.
//
// # The ledger
//
// What the dispatcher has given away stands in ledger.jsonl, beside the orders of a
// task directory or the plan of a run. It only grows, and the dispatcher alone writes
// it; the format is [Entry]. A wave is durable there before it is submitted, under a
// token that its engine jobs carry, so that a dispatcher that is killed in between
// finds them again by it.
//
// # Why no task is done twice
//
// A worker has a number that is never used again, and a seat. It takes the lock of its
// seat (work-SEAT.lock), then reads the ledger: if it was closed, it ends. The
// dispatcher closes a worker only while it holds that lock itself, after it has taken
// in all records. So whoever is late, such as a job that the batch system starts again,
// finds either the lock or the entry. A worker that can lose its lock without notice,
// because a network was cut, looks into the ledger again before it records anything:
// what was closed records nothing ([Fence]).
//
// A batch system may start a worker again under the same number (a requeue after a
// lost node): it goes on with what its share still lacks.
//
// # How much goes into a share
//
// A share is to keep its job busy for [Settings.Target]. As long as nothing is known of
// the tasks, they are spread over as many jobs as may be in flight. No small pilot share
// is sent ahead and waited for: a worker that has been given far too much stops at its
// budget, and the rest comes back, by then with measured run times. These are kept by
// group and first word of the command.
//
// # Lock order
//
// The lock of the dispatcher (that of the local worker, or of the run), the lock of a
// seat, those of the directory.
package pack
