// Package tracer stops a process, runs system calls in it and forks it. It uses only
// ptrace(2): it does not preload or patch anything, works with any program, and needs
// no privilege over a process of the same user.
//
// Words used here:
//
//   - A process is held while all its threads are traced and in a ptrace-stop. A
//     held process executes nothing, and can be read, changed and forked.
//   - To inject a system call is to make a held thread execute it with other
//     registers, and to restore the thread's registers after that.
//   - The resting state of a thread is the register set with which it continues
//     when it is released. A thread that was held in a system call which the
//     kernel had not begun executes that call again.
//
// The kernel ties a tracee to the operating-system thread that attached to it,
// so every function here must be called from that one thread
// (runtime.LockOSThread).
//
// The design depends on two properties of the kernel. First, a thread that is held by
// PTRACE_INTERRUPT while it sleeps in an interruptible system call has
// rax = -ERESTARTSYS and rip after the instruction. If orig_rax is set to -1, the kernel
// does not restart the call. So this package can inject calls, and then set rip and rax
// back to restart the call. Second, a child of an injected clone(CLONE_PARENT) has the
// same parent as the template. The parent can wait for it and gets its exit status.
package tracer
