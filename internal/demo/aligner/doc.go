// Package aligner is a small aligner, for a demonstration that needs no other program. Align
// finds reads in a reference by sampled words of 24 bases, as aligners with an index do, and
// writes SAM. It loads its reference and builds its index each time, as aligners do.
//
// The reference is a file of 16 bytes (the words "premix demo", a newline, and the number of
// bases as a little-endian uint32) and 2 bits for each base, the first in the lowest bits:
// A, C, G, T. Its bases come from a generator with a fixed seed, so that all machines have
// the same ones.
package aligner
