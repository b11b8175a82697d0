// Package pack turns a directory into a tree in a store that is mounted in its place,
// and gives it back.
//
// Words:
//
//   - packed: of a directory, that its place is a mount of a tree with all that was in
//     it, and that what lies beneath the mount is empty.
//   - note: a file beside the directory that says which tree it is; see [Note].
//
// # How nothing is lost
//
//  1. The directory is published: it stays as it is.
//  2. The tree is mounted over the directory. What was there is hidden, and still open
//     to premix. Whoever is killed here leaves a directory with everything in it,
//     beneath a mount that shows the same.
//  3. What is hidden and what is mounted are compared, byte by byte: names, types,
//     owners, modes, times, attributes, link targets, hard links, contents. A file that
//     is being written ends it (a lease is refused, fcntl(2)): the mount goes, and the
//     directory is as it was.
//  4. The note is written, and is on the disk. From here on the tree is what counts.
//  5. What is hidden is removed, each file only if it is still what was compared.
//  6. The note says that it is packed.
//
// Whoever is killed between 4 and 6 leaves a note that says so, and the next one goes on
// with 5, beneath the mount. After a reboot nothing is mounted: [Remount].
//
// [Unpack] copies the tree to beneath its mount, compares, notes that, and ends the mount.
package pack
