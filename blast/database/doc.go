// Package database keeps BLAST databases: formatted once, cut into fragments, each
// with the statistics of the whole, and, where wished, resident in memory.
//
// Words:
//
//   - database: a BLAST database that has a name here.
//   - volume: what BLAST+ writes and opens as one set of files (x.nin, x.nsq, x.nhr, ...).
//   - fragment: a run of consecutive sequences of a database, in volumes of its own.
//   - alias: a text file by which BLAST+ takes some volumes for a database
//     (https://www.ncbi.nlm.nih.gov/books/NBK569848/). That of a fragment states how
//     many sequences and letters the whole has, so that effective search spaces, and with
//     them e-values, are those of the whole.
//   - OID: the number of a sequence in a database, from 0, in the order of the input. The
//     whole is an alias of all volumes in order; a fragment's OIDs begin at First.
//   - local copy: the files of a database on this machine's disk.
//   - resident: all files of a database also lie in memory, on a tmpfs, and are searched
//     there, while the page cache keeps none of the local copy.
//
// # What lies where
//
// In the user's directory of databases, see [Home]:
//
//	NAME/record.json    this machine's record of the database, a [Record]
//	NAME/lock           flock(2): shared by who uses the database, exclusive to remove it
//	NAME/change         flock(2): held by who changes the record or what is in memory
//	NAME/alias/         aliases of the local copy: whole.nal, 000.nal, 001.nal, ... (.pal)
//	NAME/data/          the local copy, unless it lies elsewhere, as in a mounted tree
//	.new-*/             what is being made; its lock is held by who makes it
//
// In the local copy, which is what is published as a tree and holds no path:
//
//	database.json       a [Description]
//	NAME.000.nsq ...    the volumes
//
// In memory, see [RAM]:
//
//	NAME-ID/data/       the files; ID is that of the description
//	NAME-ID/alias/      aliases of them
//	NAME-ID/lock        flock(2): shared by who uses them, exclusive to remove them
//	NAME-ID/leaving     there once nobody new may use them
//	.new-*/             what is being copied; its lock is held by who copies
//
// A directory in memory is made under another name and renamed when it is whole: one
// that is there is complete. Nobody needs to be told that a database has become
// resident, or that a reboot has made an end of it: [Open] looks.
//
// # Fragments
//
// makeblastdb cuts volumes by the size of files, which gives neither a number of them
// nor equal ones. Here the input is cut where the letters are balanced, and each piece is
// formatted on its own. BLAST+ numbers the sequences of an alias through, also in
// ids that are mere numbers (BL_ORD_ID), so that the alias of all is searched like one
// database that was formatted at once, with equal results, in versions 4 and 5, with and
// without parsed ids. Nothing lies on the disk twice.
//
// The volumes of an existing database are taken as they are, and neighbours are put
// together until there are as many fragments as wished.
//
// # Reproducible
//
// makeblastdb writes the date of the day into each volume. It is replaced by a date
// that belongs to the input, the same one that all files get: equal input gives an equal
// tree, whose objects a store has only once.
//
// # Memory
//
// A tmpfs, not locked page cache: it takes no process that must live on, no
// privilege and no limit on locked memory, and BLAST+ maps its files like any
// others, so that all searches share one copy. What the page cache holds of the local copy
// is dropped once the copy in memory is whole; otherwise there would be two. tmpfs can be
// swapped out, which [Resident] tells.
//
// Lock order: NAME/change, NAME/lock, NAME-ID/lock. A search holds the last two shared
// from [Open] to [Database.Close]. Who removes something first sees to it that nobody new
// comes (the record is removed, or leaving is made), and then waits for the lock: a
// service that searches all the time keeps nobody waiting for ever.
package database
