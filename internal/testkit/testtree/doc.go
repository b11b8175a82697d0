// Package testtree builds directory trees that are hard to copy exactly, and
// compares two trees byte by byte and field by field. Only tests import it.
//
// It shares no code with the store: with shared code both would read a tree
// wrongly in the same way, and a test would find no difference. Both halves use
// paths relative to a directory's descriptor, so that a path may be longer than
// PATH_MAX.
//
// The trees are the same in every run: times, owners and contents follow from
// names. They need root (device nodes, owners, trusted attributes) and a
// filesystem with extended attributes. For another user [Build] returns an error
// that wraps [io/fs.ErrPermission].
package testtree
