// Travel measures how soon a node that has nothing gives its first aligned read.
//
// minimap2 is in an image of Debian packages, its index, of some 540 MB, is data,
// and both are at an origin to which the way is 1 Gbit/s and 20 ms there and back.
// Contenders:
//
//	full         downloads the root, as one compressed archive, and the index,
//	             both at once, and starts the tool in them when they are there
//	cold         premix run of a recipe that names both as trees, started cold
//	hot          premix snapshot pull and premix run, started hot. The image has the
//	             profile of another sample's start, as published images should
//	hot+profile  the same, and the snapshot has a profile of it too
//	  +all       and all of the snapshot fetched behind that (--eager)
//
// Words used here:
//
//   - A is the node that has prepared; it serves the store. B is another mount and
//     network namespace, whose premix has a home, and so snapshots and cache, of its
//     own, and at whose end of the link nothing has arrived. The page cache is
//     dropped before each repetition.
//   - The first aligned read is the first record of SAM that comes out of the task;
//     the recipe's pipe notes the time. minimap2 is the tool because it can be told
//     to align read by read (-K) and, with a line-buffered standard output
//     (stdbuf(1)), gives each record out when it is there. STAR gives nothing out
//     before it has aligned some thousand reads, and these touch nearly all of an
//     index.
//   - all is the time until the last of the sample's reads. A sample that touches
//     all of an index waits for all of it.
//   - fetched is what B had received by then, all protocols counted.
//
// Figures are printed as a table and written as JSON Lines to results.jsonl in the
// work directory, where image, index and snapshot are kept for later runs.
package main
