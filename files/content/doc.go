// Package content copies what a file holds from one disk to another, so that the source may
// be removed afterwards: holes stay holes, the copy is brought to the disk, and it is what
// is read back from there, not what memory still has of it, that is compared by its BLAKE3
// digest. Names, owners and attributes are the business of who calls it.
//
// Sources: lseek(2), SEEK_DATA; posix_fadvise(2).
package content
