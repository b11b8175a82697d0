// Package awkward builds directory trees that are hard to copy exactly, and
// compares two trees byte by byte and field by field. Only tests import it.
//
// It shares no code with the store: what the store reads wrongly this package
// would otherwise read wrongly in the same way, and call it equal. Both halves
// work below a directory's descriptor, so that paths longer than PATH_MAX are no
// obstacle.
//
// The trees are the same in every run: times, owners and contents follow from
// names. They need root (device nodes, owners, trusted attributes) and a
// filesystem with extended attributes; [Build] says so with an error that wraps
// [io/fs.ErrPermission] where it is not root.
package awkward
