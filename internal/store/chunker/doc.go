// Package chunker decides where content is cut into chunks, by the content alone. Where
// a byte is inserted, the chunk around it changes, perhaps its neighbour too, and no
// other.
//
// The method is FastCDC with normalised chunking (Xia et al., "FastCDC: a Fast
// and Efficient Content-Defined Chunking Approach for Data Deduplication",
// USENIX ATC 2016). A fingerprint rolls over the bytes,
//
//	f = 2f + gear[byte]    modulo 2^64
//
// so that its upper bits depend on the last 64 bytes at most. A chunk ends after the
// first byte, Min bytes or more into the chunk, at which f is below a threshold. The
// threshold is met once in 4 * Mean bytes until the chunk has Mean bytes, and once in
// Mean / 4 bytes from there on. A chunk also ends when it has Max bytes. The sizes
// gather around a little more than Mean.
//
// The table gear is part of the store's format, since another table would cut all
// content at other places. Entry b is the first eight bytes, little-endian, of the
// BLAKE3 digest of "premix gear 1" and the byte b.
package chunker
