// Package shortdir makes directories with short paths for sockets of tests.
//
// The path of a Unix socket has at most 107 bytes, see unix(7). The directory of
// [testing.T.TempDir] has the name of the test in its path, and lies in $TMPDIR, whose
// path may be long in jobs of a cluster.
package shortdir
