// Package cache keeps what a node has fetched of its trees, and fetches the rest
// when it is read.
//
// Words:
//
//   - image file: the sparse file in which a tree's chunks lie at their place.
//     What is not there is a hole in the file.
//   - present: a chunk is in the image file. Verified: it was hashed since the
//     cache was opened, and its sums are in memory.
//   - sums: CRC-32C (RFC 3720, appendix B.4) of each 4 KiB block of the image
//     file, as far as the chunk reaches into it.
//   - part: what is here of a chunk that is not present: some blocks, which a bundle
//     has brought. Nothing on disk speaks of it; it goes when the cache is closed,
//     unless the chunk has come whole by then (see [Tree.CompleteParts]).
//   - flight: one chunk on its way into memory, whoever asked for it.
//   - kept: written into the image file. What quota, floor or a full disk do not
//     let in is passed through: readers get it from memory all the same.
//   - quota: the most bytes of disk that the cache may allocate (st_blocks, as du
//     counts them). Floor: the bytes that must stay free on the partition.
//   - pinned: never evicted. Held: mounted directly from its image file, so that
//     not a byte of it may be punched.
//   - generation: a clock that ticks with use. The chunk with the lowest one was
//     used longest ago and goes first.
//
// # On disk
//
//	DIR/format                  "premix cache 1\n"
//	DIR/lock                    locked (flock(2)) by the process that is named in it
//	DIR/running                 there while the cache is open: left over by a crash
//	DIR/pins/<tree's digest>    "disk\n" or "ram\n"
//	DIR/trash/                  what is being removed
//	DIR/trees/<tree's digest>/
//	    manifest                content of the manifest's object
//	    pages                   contents of the index pages, one after another, as far as they are here
//	    image                   the image file
//	    present                 a byte for each chunk: 0 where it is not here, else how
//	                            recently it was used, from 1 to 255
//	RAMDIR/<tree's digest>/     image and present of a tree that is pinned in memory
//
// A chunk is written first and its byte in present afterwards; it is punched
// after its byte was cleared. The death of the process at any moment leaves at
// most data that no byte speaks of, which the next opening punches. The death of
// the machine may leave bytes that speak of data that was never written; hence:
//
// # Never a wrong byte
//
// Nothing that lies on disk is believed. Manifest and pages are hashed when they
// are read. A present chunk is hashed when it is first touched after the cache
// was opened. From then on each read compares the blocks that it returns with
// their sums, which is a hundredth of the work and finds bytes that rotted, or
// were overwritten, under a running process. What is wrong is punched, counted
// and fetched again; where that fails, reading fails.
//
// The sums also make it needless to lock a chunk against eviction while it is
// read: a reader that finds zeros where a chunk was finds sums that don't fit,
// looks again, and sees that the chunk has gone.
//
// # Memory
//
// A known chunk takes about 100 bytes and, once verified, 4 bytes for each
// block: some 0.15 % of what is cached. Chunks on their way are bounded by
// [Options.Window] and by the number of readers.
//
// # Lock order
//
// A lock may be taken while one that stands above it is held, never the other
// way round:
//
//	early.mu            who takes what has come of a bundle
//	Tree.moving         who changes where the image file lies
//	Cache.evicting      who makes room
//	Cache.mu            which trees there are, who uses them
//	Tree.imageMu        R: who writes chunks, W: who punches or replaces files
//	flights.mu          what is on its way
//	image.accounting    what its files take
//	index.mu, volume.mu, expected.mu, Cache.pinMu, Tree.loadMu, streams.mu, misses.mu,
//	Recorder.mu, slowest.mu  leaves: nothing is locked under them
//
// The image files of two trees are locked at the same time only by who shares
// blocks between them, and the second one is only tried: see clone.go.
package cache
