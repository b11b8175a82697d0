// Package tiers shows several directories, of faster and slower disks, as one. New files
// land on the first, and files move down by rules while their paths stay as they are.
//
// Words:
//
//   - tier: a directory of one kind of disk, the fastest first. All tiers hold parts of
//     the same tree of directories; a file is in one of them.
//   - move: a file goes from one tier to another, below the same path.
//   - watermarks: a tier that is fuller than the high one is emptied down to the low one.
//   - identity: what the mount shows as a file's inode number. It is derived from where
//     the file was made, and goes along when it moves.
//   - retired: what a moved file leaves behind while somebody who opened it before the
//     move still reads it.
//
// # A move
//
// The file is copied to a hidden name on its new tier, waits until it is on the disk and
// is read back and compared. Then, while no name can change and nobody can open anything,
// the source is looked at again: if it was opened for writing or changed in any way since
// the copying began, the copy is thrown away and the move is tried another time. If not, the
// copy gets its name, and the source loses its own.
//
// Whoever reads the file keeps the source, which is then not deleted but retired, below
// [Private] of its tier. Readers that come later are given the retired file too, because
// the kernel reads an inode through one backing file only. Should somebody open the file for
// writing, the move is taken back: the retired file, which nobody can have changed, gets
// its name again. So all who have a file open see the same bytes at any time. A file that
// is open for writing, or has several names, is not moved.
//
// # After a crash
//
// What is below [Private] goes away when the tiers are mounted again. A file that is in two
// tiers with equal content keeps the lower copy. With different content (a crash while a
// file replaced one of another tier) the one that was changed last stays, and the other is
// set aside beside it, named after its tier. Nothing is lost.
//
// Sources: fuse(4); the kernel's documentation of FUSE passthrough; fcntl(2), F_SETLEASE.
package tiers
