// Package ondisk keeps data of any size in temporary files, with bounded memory: a [File]
// that is appended to and read, an [Array] of records, a [Sorter], and a [Map].
//
// # Files
//
// All files are in a directory that the caller names, and have no name in it: they are
// removed when they are closed, and also when the process is killed. (On NFS the client
// keeps a hidden name until then.) The errors are those of the system, so that a full disk
// is an ENOSPC.
//
// # Memory
//
// A File has one buffer of 64 KiB, and each Reader one of its own. An Array keeps 8 MiB of
// its blocks. A Sorter keeps [SortMemory] bytes of records, and a Map [MapRecent] keys; both
// write what is beyond that to the disk as sorted runs, and merge runs.
//
// The values are for one goroutine at a time.
package ondisk
