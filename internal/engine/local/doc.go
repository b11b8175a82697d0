// Package local is the engine that runs tasks on this machine: the tasks of a recipe
// ([Run]), and tasks without one ([RunTasks]).
//
// Words:
//
//   - slot: one of the places in which a task runs. There are as many as the
//     cores and the memory given allow, and a task waits for nothing but a
//     slot.
//   - budget: the cores and the memory that a run may take. Memory is only
//     counted for a recipe that declares it.
//   - grace: the time between SIGTERM and SIGKILL.
//   - cause: why a try failed; see record.Task.
//
// How a try runs: premix makes a work directory and a cgroup, starts the tool
// through hotstart, and connects the tool's standard output to its pipe, if the recipe
// has one. When both have ended, the slot is free again. Then outputs are
// checked, made durable and renamed into the run directory, standard error is
// appended to stderr.log, the record is committed, and the work directory
// removed. That second half overlaps with the next task in the slot, and tasks
// that end at about the same time share an fsync.
//
// A run stops starting tasks, and lets the running ones end, if the first failure
// is to stop it (Options.FailFast), or if the disk of the run directory is full,
// since no further task could succeed. If it is interrupted, it ends the running
// tasks too: SIGTERM, grace, SIGKILL.
//
// Tasks without a recipe are many and short. One goroutine sends them to a spawner
// (package spawn), receives results and sends the next ones; a second goroutine makes
// records durable in groups, while tasks run. It sends short tasks of one
// core to the spawner ahead, so that its slots never wait; the shorter they are, the more. A
// task with more cores, or with memory, is sent when it fits, and no other task overtakes it
// in the meantime. Only a task with memory has a cgroup: making one takes longer than many
// tasks. A spawner that died is replaced, and its tasks run again. To find a task that kills
// spawners, each task that ran at the death is tried in a spawner of its own.
package local
