// Package unmount unmounts file systems of tests.
//
// A file system in use stays mounted (umount(2): EBUSY), and any process of the machine may
// use it for a moment: a premix watch of another test asks all file systems for their size,
// a process has its files open until it has ended, a process that was just started shares
// the files of its parent. A file system that is still in use after two minutes is an error.
package unmount
