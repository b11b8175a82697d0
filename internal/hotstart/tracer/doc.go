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
// # Guard
//
// A private mapping of a file differs from anonymous memory in two calls. After
// madvise(MADV_DONTNEED) it has the bytes of the file in place of zeros, and MADV_FREE is
// refused. jemalloc, tcmalloc, the heaps of Go and the JVM and glibc's secondary arenas
// return memory in this way, and rely on zeros. After mremap(2) to a larger size it shows
// the following bytes of the file; a hole behind each slot does not help, since the kernel
// merges neighbouring mappings. A [Guard] therefore receives these calls, and only these,
// through a seccomp filter, and maps anonymous memory in their place. It follows forks of
// the tool. Some differences remain: /proc/self/maps, mincore(2), and advice that
// another process gives with process_madvise(2).
//
// The design depends on two properties of the kernel. First, a thread that is held by
// PTRACE_INTERRUPT while it sleeps in an interruptible system call has
// rax = -ERESTARTSYS and rip after the instruction. If orig_rax is set to -1, the kernel
// does not restart the call. So this package can inject calls, and then set rip and rax
// back to restart the call. Second, a child of an injected clone(CLONE_PARENT) has the
// same parent as the template. The parent can wait for it and gets its exit status.
package tracer
