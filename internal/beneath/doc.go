// Package beneath makes and replaces files in directories that other users may change at
// the same time.
//
// A directory is opened once. Names are resolved beneath it by openat2(2): no symbolic
// link is followed, and no name leads out of it. Where the kernel has no openat2 the names
// are walked one by one with O_NOFOLLOW, and ".." is refused.
//
// A file that is being written has an unpredictable name and is made with O_EXCL, so no
// other user can put a link or a file of their own in its place beforehand. [File.Replace]
// then gives it its final name by one rename. What a process that was killed has left under
// such a name is removed when a later one writes in the directory, a week after.
//
// [Move] does the last step for what other programs have made, or for a whole directory.
// Other packages rename files by this one alone (TestOneHome of internal/arrows).
//
// A [Stage] is the same for a whole tree, and for programs that write by path: a private
// directory (mode 0700) beside the destination. A record in a directory of the user says
// which stage belongs to which destination, so that a later call can go on with it.
//
// # Durability
//
// [Volatile] files are whole or absent to every process, but a crash of the machine may
// lose them or leave them empty. [Durable] files are on the disk when the call returns:
// fsync(2) of the file, rename, fsync of the directory. TestFaults stops every way to give a
// name at every call, by an error and by a kill.
package beneath
