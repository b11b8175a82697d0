// Package unmount takes away file systems that tests have mounted.
//
// A file system that somebody uses stays mounted (umount(2): EBUSY), and any process of the
// machine may use one for a moment: a premix watch of another test asks all of them for
// their size, a peer that has said all has its files open until it has ended, a process
// that was just started shares those of its parent. Who keeps one in use is an error all
// the same, after two minutes.
package unmount
