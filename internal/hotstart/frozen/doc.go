// Package frozen saves a stopped process to files and starts it again from them. It uses
// only ptrace(2), and needs neither root nor capabilities. The time of a start does not
// depend on the size of the process.
//
// Words used here:
//
//   - A process is frozen when an Image of it and a page file have been written.
//     The process itself does not change.
//   - The page file is one sparse file with the contents of the process's
//     private memory. A started process maps the large parts of it. Pages then
//     come from the page cache at their first use, and all processes share the
//     pages that they do not write. Small parts are copied.
//   - A VMA is one mapping of an address space (proc_pid_maps(5)).
//   - The restorer is a loop of machine code that executes a list of system
//     calls inside the process that is being started. A start costs one stop of
//     that process, whatever the number of its mappings and descriptors.
//
// # Exact, or refused
//
// For each kind of state, Freeze either saves it so that Start restores it exactly, or
// returns a *Refused that names it. docs/starts.md has a row for each kind.
//
// One difference from the memory of an ordinary process stays: after madvise(2) or
// mremap(2), a mapping of the page file would show bytes of the file in place of zeros.
// A started process must therefore run under a tracer.Guard of the page file; Start
// installs its filter.
//
// # Layout of the page file
//
//	offset of a slot  ≡ start of its VMA, modulo 2 MiB
//	slot              the VMA's bytes; pages of zeros are holes
//
// Congruence lets the kernel map a slot by entries of 2 MiB.
//
// The page file has memory that the tool's allocator has freed, too. A program can read
// such memory, calloc trusts the top of a heap to be zero, and only the allocator knows
// which pages are free.
//
// # How a process is started
//
// The program of the frozen process is executed and held before its first instruction.
// So /proc/PID/exe, the name of the process, its credentials, namespaces and cgroups are
// as in a cold start. Start maps a region of scratch memory at addresses that are free in
// both the new and the frozen process. From there the restorer unmaps the new program,
// moves vdso and vvar to their old addresses, maps all VMAs, opens the descriptors,
// installs signal actions and makes the threads. Then Start sets registers, extended
// state and signal masks through ptrace.
package frozen
