// Package pilot runs the tasks of a directory through a batch system, in few jobs.
// It is the same for every batch system; the differences are behind [Engine].
//
// Words:
//
//   - directory: a task directory (package queue), or a run with a recipe (package
//     engine); see [Directory].
//   - engine job: the unit that the batch system queues, starts and ends, for example an
//     element of a Slurm job array.
//   - worker: the premix in one engine job. It runs the local engine on its share.
//   - share: ranges of task numbers that belong to exactly one worker.
//   - wave: the shares that are submitted together, as one array. They need the same
//     cores and memory.
//   - worker slot: the name under which a worker writes: its journal, logs, status file and lock. A
//     worker slot is reused when its worker is closed, so that the number of files depends on
//     the workers at one time, and not on all workers.
//   - budget: how long a worker starts tasks. The tasks that it has not started then come
//     back.
//   - dispatcher: the premix that packs, submits and watches. There is one at a time.
//   - to close a worker: to declare that it is over, for good.
//   - to come back: the unfinished tasks of a closed worker are free to be given again.
//   - fruitless: a worker that was closed before any task of its share had ended. An
//     interrupted task has not ended: it may be the reason why the job reached its time
//     limit.
//   - strike: a fruitless worker of a share. The share is halved; a task alone in a share
//     with [maxStrikes] is given up, since it takes its job down.
//
// # The ledger
//
// The file ledger.jsonl records the tasks that the dispatcher has given away. It is beside
// the orders of a task directory or the plan of a run. It only grows, and the dispatcher
// alone writes it; the format is [Entry]. A wave is durable there before it is submitted.
// Its engine jobs carry its token, so that the next dispatcher finds the jobs by the token
// if this one is killed in between.
//
// # Why no task is done twice
//
// A worker has a number that is never used again, and a worker slot. It takes the lock of its
// worker slot (work-SEAT.lock), then reads the ledger: if it was closed, it ends. The
// dispatcher closes a worker only while it holds that lock itself, after it has read
// all records. So a job that starts late, for example because the batch system starts it
// again, finds either the lock taken or the entry. A worker that can lose its lock without
// notice, because a network was cut, reads the ledger again before it records anything:
// a closed worker records nothing (see fence).
//
// A batch system may start a worker again under the same number (a requeue after a
// lost node): it continues with the unfinished tasks of its share.
//
// # The size of a share
//
// A share is to keep its job busy for [Settings.Target]. As long as no run times are
// known, the tasks are spread over as many jobs as may be in flight. There is no small pilot
// share to wait for: a worker that was given far too much stops at its budget, and the rest
// comes back, by then with measured run times. The run times are kept by group and first
// word of the command.
//
// # Lock order
//
// The lock of the dispatcher (the lock of the local worker, or of the run), the lock of a
// worker slot, the locks of the directory.
package pilot
