// Package queue keeps tasks: the requests of users, the state of each task, and the order
// in which tasks run. The packages beside it run them. Tasks with a recipe are the tasks of
// the plan of a run; see package engine for the names in its directory. Their orders,
// journals and states are the same as for tasks without one, and their index is made in
// memory.
//
// Words:
//
//   - task: one command. Its number counts from 1 in the order of submission.
//   - batch: the tasks of one submission. Either all of them exist, or none.
//   - array: a batch whose tasks, its elements, are one line of tasks.jsonl; see [Array].
//   - group: tasks with a name in common. A group may come after others: its tasks
//     start when all tasks of the other groups have succeeded.
//   - edge: a task comes after another one, besides what its group comes after; see edges.go.
//   - skipped: a waiting task is, if a task or group before it has failed, was cancelled or is
//     skipped. That is derived, and not recorded.
//   - order: a request of a user: a batch, or to cancel, retry, hold, release or
//     prune tasks.
//   - held: a task that is held does not start before it is released.
//   - try: one execution of a task. Tries are counted over all invocations.
//   - worker: a premix that runs tasks of the directory. It has a number and a
//     journal of its own.
//   - settle: to make the records of tries durable.
//   - index: the state of each task in a few bytes, derived from the other files.
//   - intermediate: a file that is no longer needed once the groups that come after have
//     succeeded.
//
// A task directory:
//
//	DIR/.premix/queue/orders.jsonl   record.Header, then one [Order] a line
//	DIR/.premix/queue/tasks.jsonl    one [Spec] a line, of a task or an array, nothing else
//	DIR/.premix/queue/journal-N.jsonl  record.Header, then one record.Task a line
//	DIR/.premix/queue/log-W-S.out    standard output of the tasks in slot S of worker W
//	DIR/.premix/queue/log-W-S.err    standard error
//	DIR/.premix/queue/board-W        running and ended tasks of worker W; see package spawn
//	DIR/.premix/queue/board-W.alone-S  the same of a spawner for one task
//	DIR/.premix/queue/index-BOOT     the index for one boot of one machine
//	DIR/.premix/queue/submit.lock    held (flock) while a batch is written
//	DIR/.premix/queue/lock           held while orders, or the index, are changed
//	DIR/.premix/queue/work-W.lock    held by worker W while it works
//
// Orders, tasks and journals are the truth. They only grow; their lines never change.
// A batch is first written into tasks.jsonl and made durable, then its
// order is. Lines of tasks.jsonl behind the last ordered batch were never
// submitted, and the next submission overwrites them. The journals lack at most the
// unsettled records. Until the machine crashes, the status files have the results of the ended
// tasks among them, and the next worker settles these. All other tasks run again.
//
// # The index
//
// Replaying JSON takes seconds for half a million tasks, and other processes ask for the state
// while tasks run. So there is an index: a file of fixed entries of 56 bytes, which all processes
// map. The elements of an array share the entry of the first one until they have a state of their
// own; the file has a hole there. See entries.go. It can be thrown away at any time. Its head
// holds the offsets up to which the orders and each journal were applied; a process that opens it
// applies the rest. Applying an order or a record twice changes nothing, so it does not matter
// where a process was killed. The index is rebuilt where it may be incomplete: after a crash of
// the machine, and where a journal is shorter than the index says. Each boot of each machine has
// its own index, since memory is not shared over a network; the work of other machines is in their
// journals. Processes in containers of one machine share an index, regardless of their host names
// and PID namespaces. Readers take no lock, so no process may rebuild an index that another one
// uses. Where the index cannot be written, because the disk is full or the reader has no right to,
// it is made in memory.
//
// Orders and journals may be applied in any order, so that they need no common clock:
//
//   - A record counts if its try is higher than the tries before it.
//   - A cancelled task does not run again, but a success that arrives later counts.
//   - A retry names the try that it came after: failures of later tries count.
//
// # Workers
//
// Usually there is one worker, 0, for all tasks. An engine that spreads a directory
// over machines gives each worker a name and a share, ranges of task numbers that no
// other worker has. All files that a worker writes have its name: logs, status file, journal,
// lock.
//
// # Writers and locks
//
// A batch is written under submit.lock, orders and index under lock, a
// journal by its worker alone. Lock order: submit.lock, work.lock, lock. lock is held
// for the time of a few writes and never while waiting for a user or a task, with one
// exception: a process that must rebuild the index holds it until the index is complete.
//
// Readers of entries take no locks: a reader may see an entry between two
// changes of it, and then shows this state for a moment.
package queue
