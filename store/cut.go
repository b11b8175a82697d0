package store

import "premix/store/chunker"

// HoleSize is the size, in bytes, of the zeros that publish takes for a hole where
// they lie at a multiple of it in a large file.
const HoleSize = holeSize

// LargeMin is the size, in bytes, from which on a file has chunks of its own.
const LargeMin = largeMin

// FileChunker cuts large files as publish does: whoever cuts the data between two
// holes by it gets the names that a store has for it. The last chunk of a file is
// stored with zeros up to the end of its block.
func FileChunker() *chunker.Chunker { return dataChunker }
