// Package owner checks whether files, directories and peers of sockets belong to this user.
//
// premix keeps state in directories: sockets, locks, journals, commands to run. A user who
// can write there controls the commands that premix runs and the files that it
// overwrites: if a lock file is replaced by a symbolic link, premix writes to the target of
// the link. So premix uses state only where this package trusts the owner:
//
//   - this user (the effective user ID);
//   - root, who can do everything anyway;
//   - for root under sudo(8), the user who called it;
//   - in a job of an engine, the owner of the directory that the engine named.
//
// Some file systems show another owner, or another mode, for every file that this user
// makes: NFS with root_squash, or a mount with a fixed uid. There neither is evidence, so
// both are compared with a file that this process makes in the directory.
//
// There are two kinds of directories. A private directory has one user: group and others
// must not be able to write to it. A directory that a user named, such as a run directory,
// may be writable by a group, since its owner permitted that; it must not be writable by
// all.
//
// Stricter rules hold for directories in which root writes: see [Trusted].
//
// A file with a secret has mode 0600: see [ReadSecret].
//
// Sources: symlink(7), open(2), unix(7), sudo(8), proc_sys_fs(5) (protected_symlinks).
package owner
