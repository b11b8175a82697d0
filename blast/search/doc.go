// Package search searches databases of package database with the options of BLAST+, and
// prints what BLAST+ prints, byte for byte.
//
// Words:
//
//   - part: neighbouring fragments that one process searches.
//   - probe: a search of one sequence, with the statistics of the whole database. What
//     it prints or writes about queries, other than hits, is right.
//   - footer: what formats for people say behind the alignments of a query.
//   - edge: an end of a batch of queries.
//
// # Three ways
//
// [Whole]: BLAST+ itself runs on an alias of the whole database, with threads. It is
// exact whatever the options.
//
// [Fragments]: a process for each part writes archives (package archive), which are
// merged as they come and piped into blast_formatter on the whole database. It is what a
// database needs that lies on several machines. There are as many parts as cores, or as
// fragments where those are fewer.
//
// [Queries]: groups of queries, each searched for in the whole database by a process with
// one thread, and put together in order as they come. Groups end where a batch of BLAST+
// ends wherever queries of one batch influence each other.
//
// # Which way
//
// [Auto] is, on one machine with several cores:
//
//   - Queries, for 16 queries a core or more with formats 5 and 15, of all programs but
//     blastn: printing these takes about as long as the search, and BLAST+ prints with
//     one thread. 40 proteins against 18,000 took 0.4 to 0.8 of the time of threads with
//     format 5, and 1.0 to 1.2 with format 6.
//   - Whole, otherwise. Fragments side by side took 0.9 to 1.5 of the time of threads, for
//     one query of blastn, blastp, blastx and tblastn; 1,000 queries of blastn in two
//     groups took 1.2 to 1.4, since each group reads the database.
//
// Where a search is for other machines (Request.Elsewhere), it is made of fragments, one
// part a task, and what needs the whole database is searched for on this one.
//
// # Together
//
// [Together] searches for the queries of several jobs in one scan, whatever their users
// are. Formats 5, 6, 7, 10 and 15 are printed once and taken apart. For 0 to 4, 11 and 17
// archives are written; each job gets the alignments of its queries, between heads and
// tails from a probe of its own, so that the statistics are its own.
//
// Three things make BLAST+ find or print for a query what it would not alone, and are undone:
//
//   - With -parse_deflines queries may be called like sequences of the database, which
//     BLAST+ mistakes for each other. There jobs are searched for alone.
//   - Where HSPs are linked (blastx, tblastn, tblastx, ungapped searches) cutoffs depend on
//     the average length of the queries of a batch. There each query is a batch, and jobs
//     of several queries are searched for alone.
//   - blastn overlooks weak HSPs at the edges of a batch: where the first query begins and
//     where the last one ends, on the strands that are searched for (the reason is at
//     edges). A job with an HSP within 11 letters of there that has no long run of equal
//     letters is searched for alone: 15 letters for -task blastn. With the word of 28
//     letters of megablast there is none, and with words of less than 11 letters none is
//     overlooked. That a run may be masked is not looked at. All jobs of a common scan are
//     one batch, of up to 900,000 letters, so that the database is read once and no query
//     in the midst of a job is at an edge. Further jobs are in further scans, and a job that
//     is longer than a batch is searched for alone.
//
// # Names
//
// Each way sees an alias that is called like the database and lies in a directory of its own,
// which is first in BLASTDB and, where possible, the working directory: names in
// outputs are the user's, and nothing of the same name gets in between.
//
// # What makes fragments exact
//
// Aliases of parts carry the number of sequences and letters of the whole (for search
// spaces) and, as NSEQ and LENGTH, for the average length of a sequence too, from which
// cutoffs for linking HSPs follow.
//
// blast_formatter prints of archives not quite what a search prints (seen with 2.12). What
// is done about it:
//
//   - An archive has the statistics of the first query of its batch only. Formats that
//     print them (0 to 5, 15) get an archive for each query, whose head and tail are from
//     a probe with one query a batch.
//   - Formats for people are begun afresh with each archive, and lack the columns a, alpha
//     and sigma. Reports are joined, and footers are those of a probe.
//   - Ungapped searches report the parameters of gapped alignments, which are not there:
//     those of ungapped ones are put in their place.
//   - Format 7 counts the queries of each archive; the counts become one.
//   - SAM repeats blast_formatter's command line in place of the user's.
//   - Warnings about queries are neither printed nor kept where archives are written. A
//     probe tells them. Formats 5 and 15 repeat them in the report: there the whole
//     database is searched.
//
// # What is searched for in the whole database
//
// Options that compare subjects (-culling_limit, -best_hit_*) or select them, options
// that are not in the table of [ParseOptions], formats that are not promised,
// -max_hsps where HSPs are linked (hits are sorted by the best e-value of all, also of those
// that are left out), -sorthits 2 in formats for people (it sorts by sums of bit scores,
// whose last bits archives do not have), and archives of blastn with more queries than its
// first batch may have, since it chooses batches by numbers of hits that only the whole
// search knows. So are queries whose sequences are not in archives (archive.ErrNoQueries).
// Request.Note is told why. So it is where BLAST+ fails on fragments before anything was
// printed, in order that its words are its own.
//
// One difference remains. BLAST+ keeps a list of preliminary hits that is little longer
// than -max_target_seqs. Where so many subjects compete that good ones fall out of it,
// fragments, which have such a list each, find hits that BLAST+ loses.
//
// # Sources
//
// BLAST Command Line Applications User Manual, https://www.ncbi.nlm.nih.gov/books/NBK279690/;
// NCBI C++ Toolkit of BLAST+ 2.12: CFormattingArgs (limits and formats), CBatchSizeMixer
// (batches), CBlastFormat (reports), seqsrc_seqdb.cpp (statistics of aliases).
package search
