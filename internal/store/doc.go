// Package store implements a store in a directory: it publishes directories as trees,
// keeps their tags, verifies its content, and removes objects that are no longer
// needed. The formats are those of internal/store/tree, which also defines the words.
//
// # Layout of the directory
//
// Besides the files that internal/store/tree describes, which any web server may serve, there is
// one private directory:
//
//	work/            mode 0700
//	  locks/         empty files for flock(2): gc, tag-<digest>, shard-<ab>, own-<name>
//	  writers/W/     one for each running writer: its lock, staged objects, scratch
//	                 directories that are published later, and temporary files
//	                 without a name
//	  own/N/         a caller's private data; see [Store.Own]
//
// The private key is not in it: see [KeyFile].
//
// # Writing objects
//
// An object is first written under work/writers and renamed into place when its bytes
// are on the disk: an object that is found is whole, even after a power failure.
// Syncing each of many thousand objects would be slow. So syncfs(2) syncs all of them
// at once: after each GiB staged, and before a tag names them. A writer that is killed
// leaves staged objects, which the next gc removes, and perhaps objects that no tag
// names, which the next publish uses or a gc removes.
//
// An object that already exists is not written again. Its modification time is set to
// the present, which signals to the gc that a writer has just relied on it.
//
// # Memory
//
// A publish needs the same memory for any number of entries and chunks: less than 300 MB on
// two cores, and some 30 MB for each further core. It keeps what grows in temporary files
// of internal/kit/ondisk in its writer's directory, about 400 bytes for each entry besides
// names and small contents: the entries of the walk, the nodes of the image, the chunks, and
// sorted runs of the digests of small files, of hard links and of extended attributes. The
// exception is the list of chunks of each large file that is being read, 90 bytes for each
// chunk: 350 MB for a file of 1 TB.
//
// A gc and a mirror keep the digests of all objects that tags lead to, and a diff, a
// verify and a mount the list of the chunks of their tree, 50 to 100 bytes for each.
//
// # Garbage collection beside writers
//
// A gc may run while any number of writers publish, in any process of this machine. It
// removes an object only if no kept tag leads to it, and if the object was last written
// or refreshed before every writer that may still be running began, and before the gc
// itself began:
//
//  1. The gc creates a file and takes its modification time as the present: times
//     are compared only with times from the same filesystem.
//  2. It looks at the writers. Each holds a flock on its lock file, created when it
//     began. A writer whose lock is free is dead, and its directory is removed.
//     The cutoff is the earliest of these times and the time of step 1.
//  3. It reads the tags and marks the objects that they lead to. A writer that ended
//     before step 3 wrote its tag before it ended, so its tag is read here.
//  4. It removes the objects that are unmarked and older than the cutoff, shard by
//     shard (a shard is the first two digits of a digest). It holds the shard's lock
//     exclusively while it compares a time and removes the file. Writers hold the lock
//     shared while they refresh a time, or rename a new object into place. So an
//     object is either refreshed before the gc compares its time, and stays, or is
//     removed before the writer looks for it, and is written again.
//
// It follows that a writer which relies on an existing object must have refreshed it
// first: [Writer.Has] does both.
//
// Lock order: gc, or a writer's own lock; then a tag's lock; then a shard's. No
// lock is waited for while a shard's is held. The kernel releases all locks when a
// process dies. On NFS flock(2) works among all clients if the server has a lock
// manager (mount option local_lock=none, the default); otherwise gc must run alone.
// If the clock of a file server is set back while a writer runs, refreshed objects
// may look old: no gc may run then.
//
// # Tags
//
// A tag's lock is held from reading its last record to replacing it. The new
// record is appended to the history and synced before TAG.json is replaced by
// rename(2). A torn line at the end of a history was left by a crash: it was never
// in TAG.json, and the next writer removes it.
//
// A tag's bootstraps are removed before TAG.json, or a profile of its tree, is
// replaced, and are made again afterwards: see bootstrap.go.
//
// # Reproducible trees
//
// Names are sorted by their bytes. Inode and device numbers, times other than the
// modification time, and the number of blocks of a file are not recorded. Holes are
// found by content, in pieces of 64 KiB, since filesystems report them differently.
// Pages and manifests have no lengths of compressed objects, since compressors differ
// (the fields for these estimates are 0). Extended attributes are copied, except
// security.selinux, whose labels belong to a machine's policy, and namespaces that
// EROFS does not support.
package store
