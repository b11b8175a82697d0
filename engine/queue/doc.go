// Package queue keeps tasks: what was asked for, what became of it, and what is to be done
// next. What runs them is in the packages beside it. Tasks with a recipe are those of the
// plan of a run; see package engine for the names in its directory. Their orders, journals
// and states are as those of tasks without one, and their index is made in memory.
//
// Words:
//
//   - task: one command. Its number counts from 1 in the order of submission.
//   - batch: the tasks of one submission. All of them are there, or none.
//   - group: tasks with a name in common. A group may come after others: its tasks
//     start when all tasks of those have succeeded.
//   - order: what a user asked for: a batch, or to cancel, retry, hold, release or
//     prune tasks.
//   - held: a task that is held is not started before it is released.
//   - try: one execution of a task. Tries are counted over all invocations.
//   - worker: a premix that runs tasks of the directory. It has a number and a
//     journal of its own.
//   - settle: to make the records of tries durable.
//   - index: what is known of each task in a few bytes, derived from the rest.
//   - intermediate: a file that nobody needs once the groups that come after have
//     succeeded.
//
// A task directory:
//
//	DIR/.premix/queue/orders.jsonl   record.Header, then one [Order] a line
//	DIR/.premix/queue/tasks.jsonl    one [Spec] a line, nothing else
//	DIR/.premix/queue/journal-N.jsonl  record.Header, then one record.Task a line
//	DIR/.premix/queue/log-W-S.out    standard output of what worker W ran in slot S
//	DIR/.premix/queue/log-W-S.err    standard error
//	DIR/.premix/queue/board-W        what worker W runs now, and what has ended; see package spawn
//	DIR/.premix/queue/board-W.alone-S  the same of a spawner for one task
//	DIR/.premix/queue/index-BOOT     the index, as one boot of one machine has it
//	DIR/.premix/queue/submit.lock    held (flock) while a batch is written
//	DIR/.premix/queue/lock           held while orders, or the index, are changed
//	DIR/.premix/queue/work-W.lock    held by worker W while it works
//
// Orders, tasks and journals are the truth. They only grow; what stands in them is
// never changed. A batch is written into tasks.jsonl first and made durable, then its
// order is; what stands in tasks.jsonl behind the last ordered batch was never
// submitted, and the next submission takes its place. The journals lack at most what
// was not settled. What had ended by then is on the boards, until the machine crashes: the
// next worker settles it. All else runs again.
//
// # The index
//
// State as a replay of JSON takes seconds for half a million tasks, and it is asked
// for while tasks run, by other processes. So there is an index: a file of fixed
// entries of 56 bytes, mapped by everybody. It can be thrown away at any time. Its
// head says how far into the orders and each journal it has got; who opens it catches
// up from there. To apply an order or a record twice changes nothing, so it does not
// matter where a process was killed. It is made afresh where it may not be whole: after a
// crash of the machine, and where a journal is shorter than the index says. Each boot of
// each machine has its own, since memory is not shared over a network; what other
// machines have done is in their journals. Processes in containers of one machine share
// one, whatever the names of their hosts and their PID namespaces: readers take no lock,
// so nobody may make an index afresh that another one uses.
// Where it cannot be written, as on a full disk or by a reader without the right to,
// it is made in memory.
//
// Orders and journals may be applied in any order, so that they need no common clock:
//
//   - A record counts if its try is higher than those before it.
//   - A cancelled task runs no more, but a success that comes in later is one.
//   - A retry says after which try it came: failures of later tries count.
//
// # Workers
//
// Usually there is one worker, 0, for all tasks. An engine that spreads a directory
// over machines gives each worker a name and a share, ranges of task numbers that no
// other worker has. All that a worker writes has its name: logs, board, journal, lock.
//
// # Who writes
//
// The truth of a batch is written under submit.lock, orders and index under lock, a
// journal by its worker alone. Lock order: submit.lock, work.lock, lock. lock is held
// for the time of a few writes and never while waiting for a user or a task, except
// that who has to make an index afresh holds it until that is done.
//
// The entries have no locks for readers: a reader may see an entry between two
// changes of it, and shows it so for a moment.
package queue
