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
// There is one scheduler for both kinds of tasks. It decides which task starts when, applies
// orders, ends tasks, and has records made durable in groups by a second goroutine, while tasks
// run. Its launcher starts the tries. An invocation stops starting tasks, and lets the running
// ones end, if the first failure is to stop it (FailFast), or if the disk of the directory is
// full, since no further task could succeed. If it is interrupted, it ends the running tasks
// too: SIGTERM, grace, SIGKILL.
//
// The launcher of a run is hot. Each try has a goroutine of its own. It makes a work
// directory, starts the tool in its cgroup through hotstart, and connects the tool's standard
// output to its pipe, if the recipe has one. When both have ended, the slot is free again. Then
// outputs are checked, made durable and renamed into the run directory, standard error is
// appended to stderr.log, and the work directory is removed. That second half overlaps with the
// next task in the slot. Then the scheduler has the record.
//
// Tasks without a recipe are many and short. Their launcher sends them to a spawner
// (package spawn). It sends short tasks of one
// core to the spawner ahead, so that its slots never wait; the shorter they are, the more. A
// task with more cores, or with memory, is sent when it fits, and no other task overtakes it
// in the meantime. Only a task with memory has a cgroup: making one takes longer than many
// tasks. A spawner that died is replaced, and its tasks run again. To find a task that kills
// spawners, each task that ran at the death is tried in a spawner of its own.
package local
