// Package owner says whether files, directories and peers of sockets belong to this user.
//
// premix keeps state in directories: sockets, locks, journals, commands that are to be
// run. Whoever can write there decides what premix does, and what it overwrites: a
// symbolic link in the place of a lock file makes premix write where the link leads. So
// premix uses state only where this package trusts the owner:
//
//   - this user (the effective user ID);
//   - root, who can do everything anyway;
//   - for root under sudo(8), the user who called it;
//   - in a job of an engine, the owner of the directory that the engine named.
//
// Some file systems show another owner, or another mode, for everything that this user
// makes: NFS with root_squash, or a mount with a fixed uid. There neither says anything,
// so both are compared with a file that this process makes in the directory.
//
// Two kinds of directories differ. A private directory has one user: group and others
// must not be able to write to it. A directory that a user named, such as a run directory,
// may be writable by a group, which is then trusted by the one who opened it to the group;
// it must not be writable by all.
//
// Root is more careful where it is about to write: see [Trusted].
//
// A file with a secret has mode 0600: see [ReadSecret].
//
// Sources: symlink(7), open(2), unix(7), sudo(8), proc_sys_fs(5) (protected_symlinks).
package owner
