// Package beneath makes and replaces files in directories that other users may change at
// the same time.
//
// A directory is opened once. Names are resolved beneath it by openat2(2): no symbolic
// link is followed, and no name leads out of it. Where the kernel has no openat2 the names
// are walked one by one with O_NOFOLLOW, and ".." is refused.
//
// A file that is being written has an unpredictable name and is made with O_EXCL, so no
// other user can put a link or a file of their own in its place beforehand. [File.Replace]
// then gives it its final name by one rename. A process that is killed leaves its file
// under the temporary name. A later process that writes in the directory removes it after
// a week.
//
// [Move] renames a file that another program has made, or a whole directory. Other
// packages rename files only through this package (TestOneHome of internal/lint/arrows).
//
// A [Stage] does the same for a whole tree, and for programs that write by path. It is a
// private directory (mode 0700) beside the destination. A record in a directory of the
// user names the stage of each destination, so that a later call can resume the work.
//
// # Durability
//
// [Volatile] files are whole or absent to every process, but a crash of the machine may
// lose them or leave them empty. [Durable] files are on the disk when the call returns:
// fsync(2) of the file, rename, fsync of the directory. TestFaults interrupts each of these
// functions at each system call, by an error and by a kill.
package beneath
