// Package content copies the content of a file from one disk to another so safely that the
// source may then be removed: holes stay holes, the copy is synced, and the bytes read back
// from the disk, not from memory, are compared by BLAKE3 digest. The caller copies names,
// owners and attributes.
//
// Sources: lseek(2), SEEK_DATA; posix_fadvise(2).
package content
