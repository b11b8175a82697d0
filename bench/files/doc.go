// Files measures the cost of a walk through very many files, side by side with other
// programs for it, and the cost of applying rules to the result.
//
// Contenders:
//
//	loop    a C program: two threads, getdents64 and statx, sums and nothing kept; the
//	        limit
//	premix  premix files scan, with a row an entry in a Parquet file
//	premix_find, premix_policy, premix_candidates
//	        the test of find, over that scan, in files find, in a rule, and in
//	        a rule with all entries as candidates, a dry run
//	find    find, with a test that needs the attributes of each file
//	du      du
//	fd      fd, with a test that needs the attributes; all its threads
//
// Robinhood's scan is not measured: the usual package registries do not have it.
//
// The tree is made once, from a seed: directories of 1 to 1,000 files, half of them empty
// and the others short. All of it is in the page cache when it is read. Contenders
// alternate, and a figure is a median.
//
// Rules are measured as dry runs over a made-up scan of 100 million files: one on size and
// time, one on names, one on owners, one with a threshold and weights.
//
// One process writes small files one after the other, and then appends small pieces to one
// file: into a directory, through `premix files mount`, which needs root, and through peers:
//
//	mergerfs        two directories as one, as the tiers are
//	passthrough_ll  the small pass-through of libfuse, one directory, from Debian's
//	                libfuse3-dev, with the permissions checked by the kernel as for tiers
//	passthrough_hp  libfuse's larger one, which uses the kernel's passthrough from version
//	                3.17 on; it is measured if it is on PATH, and a second time over
//	                io_uring where the kernel offers it, as the tiers then are
//
// Figures are written as JSON Lines to results.jsonl in the work directory, see package
// figures.
package main
