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
//	behind a slot     a hole at least as large as the machine's memory
//
// Congruence lets the kernel map a slot by 2 MiB entries. The hole is what a
// growing mremap(2) of the VMA finds behind its old end: zeros, as behind an
// anonymous mapping. The file's length covers the last hole, since a touch
// beyond the end of a file raises SIGBUS.
//
// What stays different from anonymous memory is madvise(2): MADV_DONTNEED
// brings back the bytes of the page file instead of zeros, and MADV_FREE is
// refused with EINVAL. Heaps that rely on either are not to be converted; the
// caller names them (see Options.Keep).
package criu
