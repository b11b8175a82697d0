// Package local is the engine that runs tasks on this machine: those of a recipe
// ([Run]), and those without one ([RunTasks]).
//
// Words:
//
//   - slot: one of the places in which a task runs. There are as many as the
//     cores and the memory given allow, and no task waits for anything but a
//     slot.
//   - budget: the cores and the memory that a run may take. Memory is only
//     counted for a recipe that declares it.
//   - grace: the time between SIGTERM and SIGKILL.
//   - cause: why a try failed; see record.Task.
//
// How a try goes: a work directory and a cgroup are made, the tool is started
// through hotstart, and its pipe, if the recipe has one, is started on its
// standard output. When both have ended, the slot is free again. Then outputs are
// checked, made durable and renamed into the run directory, standard error is
// appended to stderr.log, the record is committed, and the work directory
// removed. That second half overlaps with the next task in the slot, and tasks
// that end at about the same time share an fsync.
//
// A run stops starting tasks, and lets those that run end, if the first failure
// is to stop it (Options.FailFast), or if the disk of the run directory is full,
// since no further task could succeed. If it is interrupted, it ends the running
// tasks too: SIGTERM, grace, SIGKILL.
//
// Tasks without a recipe are many and short. One goroutine gives them to a spawner
// (package spawn), takes results back and gives the next ones; records are made durable
// in groups by a second one, while tasks go on. A spawner is given short tasks of one
// core ahead, so that its slots never wait; the shorter they are, the more. A task with
// more cores, or with memory, is given when it fits, and nothing comes before it in the
// meantime. Only a task with memory has a cgroup: to make one takes longer than many a
// task. A spawner that died is replaced, and what it had is run again; a task that kills spawners
// is found by trying what ran in one of its own.
package local
