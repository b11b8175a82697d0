// Program blast measures searches in a BLAST database by premix, from memory, and by
// BLAST+ itself, from storage and from warm page cache, side by side.
//
// Words used here:
//
//   - resident: premix blast blastn on a database that premix blast warm has put into
//     memory.
//   - warm: blastn -num_threads 2 on the same volumes on disk, all in page cache.
//   - cold: the same, after the page cache has been emptied of them; from the disk as it
//     is, and limited to 110 and 30 MB/s (blkio controller of cgroup v1), as a file server
//     at 1 Gbit/s gives, and one that many use.
//   - small: one query of 4 kB. many: 1,000 queries of 500 letters.
//   - service: the 1,000 queries, each sent alone to premix blast serve by one of 100
//     connections, all sent before the first is fetched; and, as closed, by 100 users
//     who wait for their result before they send the next.
//   - one blastn each: a sample of the 1,000, one after the other, extrapolated.
//     CPU time is that of the service and of all programs that it starts.
//   - all in one blastn, and blastn with 100 queries each: what BLAST+ itself needs where
//     somebody has gathered the queries, and so the best that the two could come to.
//   - PSS: of the mappings of the database's files in memory, summed over the processes
//     of two premix searches at a time (proc_pid_smaps(5)): as large as the database, if
//     there is one copy.
//
// Repetitions alternate, the figure is their median, and where two searches are compared
// their outputs must be equal. The database is made by a fixed seed: a quarter mutated
// copies of the genomes of PREMIX_TESTDATA, if that is set, and random letters.
//
// Data stays in the work directory for later runs, unless -clean is given; the copy in
// memory does not.
package main
