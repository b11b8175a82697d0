// Program blast measures searches in a BLAST database by premix, from memory, and by
// BLAST+ itself, from storage and from warm page cache, side by side.
//
// Words used here:
//
//   - resident: premix blast blastn on a database that premix blast warm has loaded into
//     memory.
//
//   - warm: blastn -num_threads 2 on the same volumes on disk, all in page cache.
//
//   - cold: the same, after the volumes have been dropped from the page cache; from the
//     disk at its own speed, and limited to 110 and 30 MB/s (blkio controller of cgroup
//     v1), the rates of a file server at 1 Gbit/s, and of a busy file server.
//
//   - small: one query of 4 kB. many: 1,000 queries of 500 letters.
//
//   - service: the 1,000 queries, each sent alone to premix blast serve by one of 100
//     connections, all sent before the first result is fetched; and, as closed, by 100
//     users who wait for their result before they send the next query. CPU time includes
//     the service and all programs that it starts.
//
//   - one blastn each: a sample of the 1,000 queries, one after the other, extrapolated.
//
//   - all in one blastn, and blastn with 100 queries each: the cost in BLAST+ itself if
//     the queries have been collected beforehand. It is the lower bound for service and
//     for one blastn each.
//
//   - PSS: of the mappings of the database's files in memory, summed over the processes
//     of two simultaneous premix searches (proc_pid_smaps(5)). It equals the size of the
//     database if both share one copy.
//
//   - cluster: nodes with one core each, as processes of this machine, which have their own
//     homes and hold the fragments of a second database in memory. The CPU time of a search
//     is that of all nodes and of the head. Nodes of one machine share its cores and its
//     memory, so their aggregate is the CPU time with one node over the CPU time of the node
//     that needs the most: the speed that they would have on machines of their own.
//
//   - overhead: the time of a search of the 4 kB query less the time of the slowest node.
//
//   - loss: the time that a kill -9 of a node in the middle of a search costs.
//
//   - bandwidth: of reading memory with all cores. No scan of a database is faster.
//
// Repetitions alternate, the figure is their median, and the outputs of compared searches
// must be equal. The database is made with a fixed seed: a quarter of it is mutated
// copies of the genomes of PREMIX_TESTDATA, if that is set, and the rest random letters.
//
// Data stays in the work directory for later runs, unless -clean is given; the copy in
// memory is removed.
package main
