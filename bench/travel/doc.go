// Travel measures how soon an empty node outputs its first aligned read.
//
// minimap2 is in an image of Debian packages; its index, of some 540 MB, is data. Both
// are at an origin behind a link of 1 Gbit/s and 20 ms there and back. Contenders:
//
//	full         downloads the root, as one compressed archive, and the index,
//	             both at once, and starts the tool in them when they are complete
//	cold         premix run of a recipe that names both as trees, started cold
//	hot          premix snapshot pull and premix run, started hot. The image has the
//	             profile of another sample's start, as published images should
//	hot+profile  the same, with a profile of the snapshot too
//	  +all       and with the rest of the snapshot fetched after that (--eager)
//
// Words used here:
//
//   - A is the node that has prepared; it serves the store. B is another mount and
//     network namespace at the far end of the link. Its premix has a separate, empty
//     home, and with it separate snapshots and an empty cache. The page cache is
//     dropped before each repetition.
//   - The first aligned read is the first record of SAM in the output of the task;
//     the recipe's pipe records its time. minimap2 is the tool because it has an option
//     to align read by read (-K) and, with a line-buffered standard output
//     (stdbuf(1)), outputs each record at once. STAR outputs nothing before it has
//     aligned some thousand reads, and these touch nearly all of an index.
//   - all is the time until the last of the sample's reads. A sample that touches
//     all of an index waits for all of it.
//   - fetched is the number of bytes that B had received by the first aligned read, with
//     all protocol overhead.
//
// Figures are printed as a table and written as JSON Lines to results.jsonl in the
// work directory, where image, index and snapshot are kept for later runs.
package main
