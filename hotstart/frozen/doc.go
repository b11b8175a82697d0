// Package frozen keeps a stopped process in files and starts it again from
// them, with ptrace(2) alone: without root and without capabilities, in a time that does
// not depend on the size of the process.
//
// Words used here:
//
//   - A process is frozen when an Image of it and a page file have been written.
//     The process itself is left as it was.
//   - The page file is one sparse file with the contents of the process's
//     private memory. A started process maps the large parts of it, so that
//     pages come from the page cache when they are touched and those that no
//     process writes exist once for all of them. Small parts are copied.
//   - A VMA is one mapping of an address space (proc_pid_maps(5)).
//   - The restorer is a loop of machine code that executes a list of system
//     calls inside the process that is being started. A start costs one stop of
//     that process, whatever the number of its mappings and descriptors.
//
// # Exact, or refused
//
// Freeze either keeps a kind of state, so that Start brings it back exactly, or
// returns a *Refused that names it. docs/starts.md has a row for each kind.
//
// What stays different from the memory of an ordinary process is the effect of
// madvise(2) and mremap(2) on the mappings of the page file: they would show
// bytes of the file where there have to be zeros. A started process must
// therefore run under a tracer.Guard of the page file; Start installs its filter.
//
// # Layout of the page file
//
//	offset of a slot  ≡ start of its VMA, modulo 2 MiB
//	slot              the VMA's bytes; pages of zeros are holes
//
// Congruence lets the kernel map a slot by entries of 2 MiB.
//
// # How a process is started
//
// The program of the frozen process is executed and held before its first
// instruction: so /proc/PID/exe, the name of the process, its credentials,
// namespaces and cgroups are those of a cold start. A region of scratch memory
// is mapped where neither of the two has anything, and the restorer, from there,
// unmaps the new program, moves vdso and vvar to where they were, maps all VMAs,
// opens the descriptors, installs signal actions and makes the threads. Then
// registers, extended state and signal masks are set through ptrace.
package frozen
