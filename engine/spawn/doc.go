// Package spawn starts processes for others as fast as the machine does: a small
// process of its own, the spawner, that is told what to start and tells how it
// ended.
//
// Words:
//
//   - spawner: the premix binary executed again with [Arg]. It does nothing but to
//     start, await and end the processes of tasks.
//   - client: the premix that uses a spawner.
//   - slot: one thread of the spawner, which runs one task at a time.
//   - task: here, one process with what belongs to it; see [Task].
//   - group: the process group of a task. Its number is that of the task's first
//     process.
//   - log: a file to which all tasks of a slot append their standard output, or
//     their standard error. As one task at a time runs in a slot, what a task wrote
//     is what lies between two sizes of the file.
//   - board: a file in shared memory in which each slot says what it runs, and behind that
//     how its tasks ended.
//
// Why a process of its own: it stays small and does not allocate, so that starting
// a process costs the same with half a million tasks in the client; and it can be
// the leader of a session, which is what finds the processes of tasks again after
// both were killed. A thread a slot starts and awaits without a handover to another
// thread. A notice of a child's end (SIGCHLD) is never delivered, since nobody needs
// it.
//
// How a process starts: clone3(2) with CLONE_VM and CLONE_VFORK, as posix_spawn
// does, so that no page table is copied. What the child has to do before it
// executes its program is a list of system calls, made beforehand and worked off by
// a few instructions that use no stack: no code of Go runs in the child. Names of
// programs are looked up by trying to execute, as execvp(3) does. Where there is no
// clone3, or on another architecture, syscall.ForkExec does the same, one at a time.
//
// How things end:
//
//   - When the first process of a task ends, the task has ended: the rest of its
//     group is killed, and where there are cgroups all that it has left, see [Cell].
//   - When the client dies, the spawner reads the end of its socket, kills all groups,
//     notes on the board how each task ended, and exits.
//   - When the spawner dies, the kernel kills the first process of each task
//     (PR_SET_PDEATHSIG); the rest is found by the session, see [Board.Sweep], by the
//     client, or by a later one if the client died too. A process that makes a session
//     of its own (setsid(2)) is on its own where it is in no [Cell].
//
// Client and spawner talk over a socket in frames: a length of four bytes, little
// endian, and that many bytes, of which the first is the kind. Results come in
// batches: at once when nothing is left to do, and otherwise after a few
// milliseconds.
//
// Lock order: slot.mu before server.mu.
package spawn
