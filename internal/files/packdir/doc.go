// Package packdir replaces a directory by a mount of a tree in a store with the same content,
// and restores it.
//
// Words:
//
//   - packed: a packed directory is the mount point of a tree with all of its content,
//     and is empty beneath the mount.
//   - note: a file beside the directory that names its tree; see [Note].
//
// # Safety
//
//  1. The directory is published: it stays as it is.
//  2. The tree is mounted over the directory. The original is hidden, and still open
//     in premix. A kill at this point leaves the directory with all its content,
//     beneath a mount with the same content.
//  3. The original and the mounted tree are compared, byte by byte: names, types,
//     owners, modes, times, attributes, link targets, hard links, contents. A file that
//     is being written (a lease is refused, fcntl(2)) ends it: the tree is unmounted, and
//     the directory is as before.
//  4. The note is written and synced. From here on the tree is the valid copy.
//  5. The original is removed, each file only if it is unchanged since the comparison.
//  6. The state in the note becomes packed.
//
// A kill between 4 and 6 leaves a note with an earlier state, and the next call continues
// with 5, beneath the mount. After a reboot the tree is not mounted; [Remount] mounts it.
//
// [Unpack] copies the tree to the directory beneath its mount, compares, records that in
// the note, and unmounts the tree.
package packdir
