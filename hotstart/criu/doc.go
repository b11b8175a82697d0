// Package criu drives CRIU (criu(8)) and rewrites its images so that a
// restored process maps its memory instead of reading it back.
//
// Words used here:
//
//   - Images are the files that `criu dump` writes into one directory.
//   - A VMA is one mapping of the process's address space (proc_pid_maps(5)).
//   - The page file is one sparse file that holds the contents of the large
//     private anonymous VMAs. A slot is the part of it that one VMA maps.
//
// Convert turns each large private anonymous VMA of the images into a
// MAP_PRIVATE mapping of its slot. Restoring then costs the same whatever the
// size: pages come from the page cache when they are touched, concurrent
// restores share them, and a write copies one page as it would after fork(2).
//
// Layout of the page file:
//
//	offset of a slot  ≡ start of its VMA, modulo 2 MiB
//	slot              the VMA's bytes, absent pages are holes
//
// Congruence lets the kernel map a slot by 2 MiB entries.
//
// A process in a container is frozen and restored by a CRIU that is executed in the
// container's namespaces (Program.Enter), so that its images hold nothing of the
// container but paths.
//
// What stays different from anonymous memory is what madvise(2) discards and
// what mremap(2) adds: both would show bytes of the page file where there have
// to be zeros. A process that is restored from converted images must therefore
// run under a tracer.Guard of the page file.
package criu
