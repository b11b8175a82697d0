// Package cache keeps the fetched chunks of a node's trees, and fetches the others when
// they are read.
//
// Words:
//
//   - image file: the sparse file that has a tree's chunks at their offsets in the
//     image. A chunk that is not cached is a hole in the file.
//   - present: a chunk is in the image file. Verified: it was hashed since the
//     cache was opened, and its sums are in memory.
//   - sums: CRC-32C (RFC 3720, appendix B.4) of each 4 KiB block of the image
//     file, as far as the chunk reaches into it.
//   - part: the cached blocks of a chunk that is not present, which came with a
//     bundle. Parts are not recorded on disk: they are dropped when the cache is
//     closed, unless the whole chunk has been fetched by then (see
//     [Tree.CompleteParts]).
//   - flight: the fetch of one chunk into memory, shared by all its callers.
//   - kept: written into the image file. A chunk that quota, floor or a full disk
//     exclude is passed through: readers get it from memory.
//   - quota: the limit on the bytes of disk that the cache allocates (st_blocks, as
//     du counts them). Floor: the bytes that must stay free on the partition.
//   - pinned: never evicted. Held: mounted directly from its image file, so that
//     nothing in it may be punched.
//   - generation: a clock that advances with use. The chunk with the lowest
//     generation is the least recently used and is evicted first.
//
// # On disk
//
//	DIR/format                  "premix cache 1\n"
//	DIR/lock                    locked (flock(2)) by the process that is named in it
//	DIR/running                 exists while the cache is open, and after a crash
//	DIR/pins/<tree's digest>    "disk\n" or "ram\n"
//	DIR/trash/                  files being removed
//	DIR/objects/                see Objects
//	DIR/trees/<tree's digest>/
//	    manifest                content of the manifest's object
//	    pages                   contents of the index pages, one after another, as far as they are cached
//	    image                   the image file
//	    present                 a byte for each chunk: 0 if it is not present, else how
//	                            recently it was used, from 1 to 255
//	RAMDIR/<tree's digest>/     image and present of a tree that is pinned in memory
//
// A chunk is written first and its byte in present afterwards; before it is punched,
// its byte is cleared. If the process dies at any moment, there is at most data whose
// byte in present is 0, which the next Open punches. If the machine dies, bytes in
// present may refer to data that was never written. Therefore:
//
// # Never a wrong byte
//
// Data on disk is never trusted. Manifests and pages are hashed when they are read. A
// present chunk is hashed when it is first used after the cache was opened. From then
// on, each read compares the blocks that it returns with their sums. This is a
// hundredth of the work, and finds bytes that were corrupted or overwritten under a
// running process. Wrong chunks are punched, counted and fetched again; if that fails,
// the read fails.
//
// The sums also make it unnecessary to lock a chunk against eviction while it is read:
// if it has been punched in between, the zeros do not match its sums, and the reader
// checks again whether it is present.
//
// # Memory
//
// An indexed chunk takes about 100 bytes of memory and, once verified, 4 bytes for each
// block: some 0.15 % of the cached bytes. Chunks being fetched are bounded by
// [Options.Window] and by the number of readers.
//
// # Lock order
//
// A lock may be taken while one listed above it is held, never in the other order:
//
//	early.mu            passing on the bytes received of a bundle
//	Tree.moving         moving the image file
//	Cache.evicting      eviction
//	Cache.mu            the set of trees and their users
//	Tree.imageMu        R: writing chunks, W: punching or replacing files
//	flights.mu          flights and downloads
//	image.accounting    disk usage of image files
//	Getter.mu (above Objects.mu), index.mu, volume.mu, Objects.mu (above volume.mu), expected.mu, Cache.pinMu, Tree.loadMu, streams.mu, misses.mu,
//	Recorder.mu, slowest.mu  leaves: nothing is locked under them
//
// Only sharing blocks between two trees locks both image files at the same time, and it
// only tries to lock the second: see clone.go.
package cache
