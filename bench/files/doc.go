// Files measures what it costs to walk through very many files, side by side with other
// programs that do, and to apply rules to what was found.
//
// Contenders:
//
//	loop    a C program: two threads, getdents64 and statx, sums and nothing kept; the
//	        limit
//	premix  premix files scan, with a row an entry in a Parquet file
//	find    find, with a test that needs the attributes of each file
//	du      du
//	fd      fd, with a test that needs the attributes; all its threads
//
// Robinhood's scan is not measured: it is in no registry that can be reached from
// everywhere.
//
// The tree is made once, by a seed: directories of 1 to 1,000 files, half of them empty
// and the others short. It is read with all of it in the page cache. Contenders alternate,
// and a figure is a median.
//
// Rules are measured as dry runs over a made-up scan of 100 million files: one on size and
// time, one on names, one on owners, one with a threshold and weights.
//
// Small files are written one after the other by one process into a directory of the first
// tier, and into the same directory through `premix files mount`, which needs root.
//
// Figures are written as JSON Lines to results.jsonl in the work directory, see package
// figures.
package main
