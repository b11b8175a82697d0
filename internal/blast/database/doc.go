// Package database manages databases of BLAST+ and DIAMOND: they are formatted once, cut into
// fragments that have the statistics of the whole, and, on request, resident in memory.
//
// Words:
//
//   - database: a database with a name in this package's directory.
//   - volume: one set of files of BLAST+ (x.nin, x.nsq, x.nhr, ...), or one file of DIAMOND (x.dmnd).
//   - fragment: a run of consecutive sequences of a database, in volumes of its own.
//   - alias: a text file that makes some volumes a database of BLAST+
//     (https://www.ncbi.nlm.nih.gov/books/NBK569848/). The alias of a fragment states how
//     many sequences and letters the whole has, so that effective search spaces, and thus
//     e-values, equal those of the whole.
//   - OID: the number of a sequence in a database, from 0, in the order of the input. The
//     whole is an alias of all volumes in order; a fragment's OIDs begin at First.
//   - local copy: the files of a database on this machine's disk.
//   - holding: the fragments of a database that are in memory, on a tmpfs, and are searched
//     there, see [Holding]: some on a node of a cluster, all on this machine.
//   - resident: a database is resident if all of its fragments are in memory; the page cache
//     holds nothing of the local copy.
//
// # Files
//
// In the user's directory of databases, see [Home]:
//
//	NAME/record.json    this machine's record of the database, a [Record]
//	NAME/lock           flock(2): shared to use the database, exclusive to remove it
//	NAME/change         flock(2): held to change the record or the copy in memory
//	NAME/alias/         aliases of the local copy: whole.nal, 000.nal, 001.nal, ... (.pal); for
//	                    DIAMOND symlinks to the volumes: 000.dmnd, 001.dmnd, ...
//	NAME/data/          the local copy, unless it is in another place, for example a mounted tree
//	NAME/data-ID/, NAME/alias-ID/   the same after an [Update]
//	.new-*/             an unfinished database; the process that makes it holds its lock
//
// In the local copy, which is published as a tree and does not contain paths:
//
//	database.json       a [Description]
//	NAME.000.nsq ...    the volumes
//
// In memory, below [RAM] on this machine, and below [Holdings] on a node:
//
//	NAME-ID/lock               flock(2), exclusive: held to load or drop fragments; its content is
//	                           the directory of databases to which it belongs, none for a node
//	NAME-ID/database.json      the description, whose ID it is; a directory without it is unfinished
//	NAME-ID/data/              the files of the fragments that are here
//	NAME-ID/alias/NNN.nal      the alias of a fragment, from when its files are complete until they
//	                           are removed; flock(2): shared to use them, exclusive to remove them
//	NAME-ID/alias/NNN.leaving  exists once no new search may open the fragment
//	NAME-ID/alias/whole.nal    the alias of all, while all are here
//
// No message is needed when a database becomes resident, or when a reboot has removed it:
// [Open] checks for the aliases. A node and this machine's searches have separate directories,
// since a node removes databases that no placement names.
//
// # Fragments
//
// makeblastdb cuts volumes by the size of files, which gives neither a chosen number of
// volumes nor equal ones. This package cuts the input into pieces with equal numbers of
// letters, and formats each piece by itself. BLAST+ numbers the sequences of an alias
// consecutively, also in ids that are mere numbers (BL_ORD_ID), so that the alias of all is
// searched like one database that was formatted at once, with equal results, in versions 4
// and 5, with and without parsed ids. Each file is on the disk once.
//
// The volumes of an existing database are used unchanged; neighbours are combined until
// there are as many fragments as requested.
//
// # DIAMOND
//
// DIAMOND searches a database block by block, and merges the results of the blocks. A block is
// the shortest run of sequences with at least as many letters as the option -b says, in billions.
// A fragment is one block, in one volume. So DIAMOND finds the same in a fragment as in this block
// of the whole, whatever it compares within a block. There is no alias of the whole: no search
// needs it.
//
// # Reproducible trees
//
// makeblastdb writes the date of the day into each volume. It is replaced by a date that
// belongs to the input, the same one that all files get: equal input gives an equal tree,
// whose objects a store has only once.
//
// # Memory
//
// Databases are kept on a tmpfs and not in locked page cache: a tmpfs needs no running
// process, no privilege and no limit on locked memory, and BLAST+ maps its files like any
// others, so that all searches share one copy. Once the copy in memory is complete, the
// pages of the local copy are dropped from the page cache; otherwise there would be two
// copies. A tmpfs can be swapped out; [Resident] reports that.
//
// Lock order: NAME/change, NAME/lock, NAME-ID/lock, the aliases in memory in their order. A
// search holds NAME/lock and the aliases shared from [Open] to [Database.Close]. A process that
// removes a database first prevents new users (it removes the record, or creates the marks), and
// then waits for the locks, so that a service that searches all the time cannot block it without
// end.
package database
