// Package files scans directory trees of millions of files into a table, summarizes the
// table, and compares two of them.
//
// Words:
//
//   - root: a directory at which a scan begins. The scan reads nothing above it.
//   - entry: anything with a name: a file, a directory, a symbolic link, a device and so on.
//     A root is an entry of its own, with the name ".".
//   - scan: the table of all entries below some roots; see [Entry].
//   - vanished: an entry that was listed, and was gone when its attributes were read.
//     It is counted and has no row.
//   - unread: a directory that could not be listed, or an entry whose attributes could
//     not be read. Its row has the reason.
//
// A scan is not an image of one moment. Directories are read one after another while
// programs change them: an entry that existed all the time is in the scan once; one that
// was created, removed or moved during the scan may or may not be. Symbolic links are not
// followed, and no concurrent change can lead a scan out of its roots: names are resolved
// beneath an open directory, without links (openat2(2), RESOLVE_BENEATH and
// RESOLVE_NO_SYMLINKS; where the kernel lacks it, one component at a time with O_NOFOLLOW).
//
// # How it walks
//
// Workers share a stack of directories. A worker lists one with getdents64(2) and reads
// attributes with statx(2), by names that stay in the buffer of the listing; it passes some
// names of a large directory to idle workers. The last directory is taken first, so that
// few are open or waiting at a time. Each worker fills its own row groups, encodes them
// page by page, and writes each when it is full: memory does not grow with the number of
// entries.
//
// # The table
//
// A scan is one Parquet file with one row an entry in no particular order. Strings, sizes
// and times are compressed by Snappy. The columns are the fields of [Entry]; the key-value
// metadata has the keys premix.files.format ("1"), premix.files.roots (a JSON array),
// premix.files.begun and premix.files.ended (RFC 3339).
//
// Sources: getdents(2), statx(2), openat2(2); the Apache Parquet format.
package files
