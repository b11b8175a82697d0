package store

import "premix/internal/store/chunker"

// HoleSize is the number of zero bytes that publish stores as a hole, at a multiple of
// this offset in a large file.
const HoleSize = holeSize

// LargeMin is the smallest size, in bytes, of a file with chunks of its own.
const LargeMin = largeMin

// MaxCut is the size of the largest chunk of a file, in bytes.
const MaxCut = chunkMax

// FileChunker returns the chunker that publish uses for files of size bytes. Cutting the
// data between two holes with it gives the chunks, and so the names, that a store has for
// this data. The last chunk of a file is stored with zeros up to the end of its block.
func FileChunker(size int64) *chunker.Chunker {
	if size < fineMin {
		return coarseChunker
	}
	return fineChunker
}
