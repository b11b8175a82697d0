// Package shortdir makes directories of tests in which sockets have short paths.
//
// The path of a Unix socket has at most 107 bytes, see unix(7). The directory of
// [testing.T.TempDir] has the name of the test in its path, and lies where TMPDIR says,
// which may be long in jobs of a cluster.
package shortdir
