// Package spawn starts processes for others as fast as the machine does. It uses a small
// process of its own, the spawner, which receives tasks over a socket, starts them, and
// returns their results.
//
// Words:
//
//   - spawner: the premix binary executed again with [Arg]. It only
//     starts, awaits and ends the processes of tasks.
//   - client: the premix that uses a spawner.
//   - slot: one thread of the spawner, which runs one task at a time.
//   - task: here, one process with its environment and files; see [Task].
//   - group: the process group of a task. Its number is the number of the task's first
//     process.
//   - log: a file to which all tasks of a slot append their standard output, or
//     their standard error. As one task at a time runs in a slot, the output of a task
//     is the part between two sizes of the file.
//   - status file: a file in shared memory with the running task of each slot, followed by the
//     results of ended tasks.
//
// The spawner is a process of its own for two reasons. It stays small and does not allocate,
// so that starting a process costs the same with half a million tasks in the client. And it
// can be the leader of a session, by which the processes of tasks are found again after
// both were killed. One thread per slot starts and awaits without a handover to another
// thread. A notice of a child's end (SIGCHLD) is never delivered, since the spawner does not
// need it.
//
// How a process starts: clone3(2) with CLONE_VM and CLONE_VFORK, as posix_spawn
// does, so that no page table is copied. The steps of the child before it executes its
// program are a list of system calls, prepared beforehand and executed by
// a few instructions that use no stack: no code of Go runs in the child. Names of
// programs are looked up by trying to execute, as execvp(3) does. Where clone3 is missing,
// or on another architecture, syscall.ForkExec does the same, one at a time.
//
// How things end:
//
//   - When the first process of a task ends, the task has ended: the rest of its
//     group is killed, and with cgroups also all other processes of the task, see [Cell].
//   - When the client dies, the spawner reads the end of its socket, kills all groups,
//     writes the results of all tasks to the status file, and exits.
//   - When the spawner dies, the kernel kills the first process of each task
//     (PR_SET_PDEATHSIG). The client, or a later one if the client died too, finds the other
//     processes by the session, see [StatusFile.Sweep]. A process that makes a session
//     of its own (setsid(2)) survives if it is in no [Cell].
//   - When another process stops the spawner, the client resumes it, or kills it when that
//     happens again and again, see [proc.Watch].
//
// Client and spawner talk over a socket in frames: a length of four bytes, little
// endian, and as many bytes, of which the first is the kind. Results come in
// batches: at once when nothing is left to do, and otherwise after a few
// milliseconds.
//
// Lock order: slot.mu before server.mu.
package spawn
