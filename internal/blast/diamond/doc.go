// Package diamond searches databases of package database with DIAMOND, fragment by fragment, and
// prints the lines that DIAMOND prints for the whole.
//
// # Why the results are equal
//
// DIAMOND searches a database in blocks (option -b), and merges the results of the blocks by
// e-value, then score, then the number of the sequence, up to -k targets a query. What it
// compares are targets of one block: it extends targets in the order of a first score, and stops
// when further ones seem useless; and with --freq-masking it counts seeds. A fragment is one
// block of the whole (package database). So a search of a fragment finds what DIAMOND finds in
// this block of the whole, provided that it has
//
//   - the number of letters of the whole for e-values (--dbsize),
//   - the algorithm that DIAMOND chooses for the whole (--algo), and
//   - the same -b, which also cuts the queries.
//
// The targets of all fragments are merged in the order of DIAMOND. A line prints an e-value with
// three digits only, so that two targets may seem equal; package diamond computes their e-values
// again from lengths and scores (see [scoring]), and compares each with the printed one. A search
// fails if these differ, or if two e-values are too near to each other to be sure.
//
// # What is refused
//
// A -b, given or by default, whose blocks are not the fragments; options that compare targets of
// different blocks (--top, --iterate, --global-ranking, --range-culling, taxonomy), formats other
// than 6 and columns that DIAMOND prints differently for several blocks (approx_pident); scores
// with other matrices than BLOSUM62; and each option that is not in the table of [ParseOptions].
//
// # Sources
//
// DIAMOND 2.1.3: double_indexed.cpp and sequence_file.cpp (blocks, algorithm), extend.cpp (order of
// extensions), join_blocks.cpp (merge), score_matrix.cpp and sls_pvalues.cpp (e-values), blosum62.cpp
// (parameters).
package diamond
