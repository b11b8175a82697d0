// Package tracer stops a process, runs system calls in it and forks it, by
// ptrace(2) alone: nothing is preloaded, patched or required of the program,
// and no privilege is needed over a process of one's own.
//
// Words used here:
//
//   - A process is held while every one of its threads is traced and in a
//     ptrace-stop. Held processes are inert: they can be read, changed, forked.
//   - A system call is injected when a held thread is made to execute it, with
//     registers of our choosing, and is put back as it was.
//   - The resting state of a thread is the register set with which it goes on
//     when it is let go. A thread that was held inside a system call which the
//     kernel had not begun to carry out executes that call again.
//
// The kernel ties a tracee to the operating-system thread that attached to it,
// so every function here must be called from that one thread
// (runtime.LockOSThread).
//
// Two facts of the kernel carry the design. A thread that is held by
// PTRACE_INTERRUPT while it sleeps in an interruptible system call shows
// rax = -ERESTARTSYS with rip behind the instruction; setting orig_rax to -1
// keeps the kernel from restarting it by itself, so that rip and rax can be
// rewound by hand and calls injected in between. And a child made by an
// injected clone(CLONE_PARENT) has the template's parent as its own parent,
// which therefore can wait for it and learns its true exit status.
package tracer
