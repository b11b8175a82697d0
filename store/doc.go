// Package store is a store in a directory: it publishes directories as trees,
// keeps their tags, verifies what it holds and collects what nothing names any
// more. Formats are those of store/tree, where the words are defined too.
//
// # What lies in the directory
//
// Beside what store/tree describes, and what any web server may serve, there is
// one directory that is nobody else's business:
//
//	work/            mode 0700
//	  locks/         empty files for flock(2): gc, tag-<digest>, shard-<ab>, own-<name>
//	  writers/W/     one for each running writer: its lock, staged objects, and
//	                 directories in which its owner makes up what is published
//	  own/N/         what a caller keeps there; see [Store.Own]
//
// The private key is not in it: see [KeyFile].
//
// # Writing objects
//
// An object is first written under work/writers and renamed into place when its
// bytes are on the disk: whoever finds an object finds a whole one, also after a
// power failure. To wait for the disk for each of many thousand objects would be
// slow, so it is done for all of them at once, with syncfs(2): after each GiB
// staged, and before a tag names them. A writer that is killed leaves staged
// objects, which the next gc removes, and perhaps objects that no tag names,
// which the next publish uses or a gc removes.
//
// An object that is already there is not written again. Its time of modification
// is set to now, which tells the gc that somebody has just counted on it.
//
// # Collecting beside writers
//
// A gc may run while any number of writers publish, in any process of this
// machine. It removes an object only if no kept tag leads to it and if it was
// last written or counted on before every writer that may still be running
// began, and before the gc itself began:
//
//  1. The gc makes a file and takes its time of modification as the present:
//     times are only compared with times that the same filesystem gave.
//  2. It looks at the writers. Each holds a flock on its lock file, made when it
//     began; one whose lock can be had is dead, and its directory is removed.
//     The cutoff is the earliest of these times and the one of step 1.
//  3. It reads the tags and marks what they lead to. A writer that ended between
//     steps 2 and 3 has written its tag before it ended, so it is seen here. A
//     writer that ended before step 2, likewise.
//  4. It removes what is unmarked and older than the cutoff, shard by shard (a
//     shard is the first two digits of a digest), holding the shard's lock
//     exclusively while it looks at a time and removes the file. Writers hold
//     it shared while they refresh a time, or rename a new object into place: so
//     an object is either refreshed before the gc looks, and stays, or gone
//     before the writer looks, and is written again.
//
// It follows that a writer which counts on an object that it found must have
// refreshed it first: [Writer.Has] does both.
//
// Lock order: gc, or a writer's own lock; then a tag's lock; then a shard's. No
// lock is waited for while a shard's is held. All of them are given back by the
// kernel when a process dies. On NFS flock(2) works among all clients if the
// server has a lock manager (mount option local_lock=none, the default);
// otherwise gc must run alone. The clock of a server that is set back by more
// than an instant while a writer runs could make refreshed objects look old:
// whoever does that runs no gc at the time.
//
// # Tags
//
// A tag's lock is held from reading its last record to replacing it. The new
// record is appended to the history and is on the disk before TAG.json is
// replaced by rename(2). A history that ends in a torn line was left by a crash:
// the line was never in TAG.json, and the next writer takes it away.
//
// A tag's openings are removed before TAG.json is replaced, or a profile of its tree,
// and made anew afterwards: see opening.go.
//
// # What makes a tree reproducible
//
// Names are taken in the order of their bytes. Numbers of inodes and devices,
// times other than that of modification, and how many blocks a file occupies
// appear nowhere. Holes are found by content, in pieces of 64 KiB, since
// filesystems differ in where they have them; lengths of compressed objects are
// left out of pages and manifests, since compressors differ (the fields for
// these estimates are 0). Extended attributes are taken as they are, except for
// security.selinux, whose labels belong to a machine's policy, and for
// namespaces that EROFS does not know.
package store
