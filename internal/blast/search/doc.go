// Package search searches databases of package database with the options of BLAST+, and
// prints the same output as BLAST+, byte for byte.
//
// Words:
//
//   - part: neighbouring fragments that one process searches.
//   - probe: a search of one sequence, with the statistics of the whole database. Its
//     output about queries, other than hits, is right.
//   - footer: the text after the alignments of a query in formats for people.
//   - edge: an end of a batch of queries.
//
// # Three modes
//
// [Whole]: BLAST+ itself runs on an alias of the whole database, with threads. It is exact
// whatever the options.
//
// [Fragments]: a process for each part writes archives (package archive), which are merged
// as they arrive and piped into blast_formatter on the whole database. Searches on several
// machines need this mode. There are as many parts as cores, or as fragments where those
// are fewer.
//
// [Queries]: groups of queries, each searched for in the whole database by a process with
// one thread; the outputs are joined in order as they arrive. If queries of one batch of
// BLAST+ influence each other, groups end where batches end.
//
// # Choice of the mode
//
// [Auto] chooses, on one machine with several cores:
//
//   - Queries, for 16 queries a core or more with formats 5 and 15, of all programs but
//     blastn: printing these takes about as long as the search, and BLAST+ prints with
//     one thread. 40 proteins against 18,000 took 0.4 to 0.8 of the time of threads with
//     format 5, and 1.0 to 1.2 with format 6.
//   - Whole, otherwise. Fragments side by side took 0.9 to 1.5 of the time of threads, for
//     one query of blastn, blastp, blastx and tblastn; 1,000 queries of blastn in two
//     groups took 1.2 to 1.4, since each group reads the database.
//
// A search on other machines (Request.Elsewhere) uses fragments, one part a task; searches
// that need the whole database run on this machine.
//
// # Common scans
//
// [Together] searches for the queries of several jobs in one scan, even of different users.
// Formats 5, 6, 7, 10 and 15 are printed once and split. For 0 to 4, 11 and 17 archives are
// written; each job gets the alignments of its queries, between heads and tails from a
// probe of its own, so that the statistics are its own.
//
// In three cases BLAST+ finds or prints something for a query that it would not if it
// searched for the query alone. They are handled as follows:
//
//   - With -parse_deflines queries may have the names of sequences of the database, which
//     BLAST+ confuses with each other. These jobs are searched for alone.
//   - If HSPs are linked (blastx, tblastn, tblastx, ungapped searches), cutoffs depend on
//     the average length of the queries of a batch. Then each query is a batch, and jobs
//     of several queries are searched for alone.
//   - blastn misses weak HSPs at the edges of a batch: where the first query begins and
//     where the last one ends, on the searched strands (for the reason see
//     edges). A job with an HSP within 11 letters of there that has no long run of equal
//     letters is searched for alone: 15 letters for -task blastn. With the word of 28
//     letters of megablast there is no such HSP, and with words of less than 11 letters none is
//     missed. Masking of runs is not considered. All jobs of a common scan are
//     one batch, of up to 900,000 letters, so that the database is read once and no query
//     in the middle of a job is at an edge. Further jobs are in further scans, and a job that
//     is longer than a batch is searched for alone.
//
// # Names
//
// In each mode, BLAST+ opens an alias with the name of the database, in a directory of its
// own that is first in BLASTDB and, where possible, the working directory. So outputs have
// the name that the user gave, and no other database of the same name is used.
//
// # Exact results from fragments
//
// Aliases of parts carry the number of sequences and letters of the whole (for search
// spaces) and, as NSEQ and LENGTH, for the average length of a sequence too, from which
// cutoffs for linking HSPs follow.
//
// The output of blast_formatter for an archive differs from the output of a search (seen
// with 2.12). These differences are corrected:
//
//   - An archive has the statistics of the first query of its batch only. Formats that
//     print them (0 to 5, 15) get an archive for each query, whose head and tail are from
//     a probe with one query a batch.
//   - Formats for people begin again with each archive, and lack the columns a, alpha
//     and sigma. Reports are joined, and footers come from a probe.
//   - Ungapped searches report the parameters of gapped alignments, which do not exist:
//     the parameters of ungapped ones are written in their place.
//   - Format 7 counts the queries of each archive; the counts are added up.
//   - SAM repeats blast_formatter's command line in place of the user's.
//   - Warnings about queries are neither printed nor stored when archives are written. A
//     probe prints them. Formats 5 and 15 repeat them in the report: for these the whole
//     database is searched.
//
// # Tables
//
// For gapped searches of blastn in the formats 6, 7 and 10, fragments print tables with the columns
// sseqid, score and evalue added, and the rows are merged: by score, then by the later fragment. For
// these searches e-values depend on the score alone, as the lengths of query and database are
// equal everywhere; if a row is not in this order, the search fails. So there is no archive to
// write, to read and to format. Neighbouring rows with one id are one hit, so each sequence must
// have an id of its own (Description.UniqueIDs of package database). Titles, which may contain
// tabs, and names of taxa, which come from another database, take archives.
//
// Other machines get the queries in pieces, which end where batches end. So a run of pieces has the
// same results as in a search of all queries, and each machine may search some of the pieces only.
// Archives number their queries from 1, and are searched for in one piece.
//
// # Searches that need the whole database
//
// These searches run on the whole database: options that compare subjects (-culling_limit,
// -best_hit_*) or select them, options that are not in the table of [ParseOptions], formats
// that are not listed above, -max_hsps if HSPs are linked (hits are sorted by the best
// e-value of all HSPs, including those left out), -sorthits 2 in formats for people (it
// sorts by sums of bit scores, whose last bits archives do not have), and archives of
// blastn with more queries than its first batch may have, since it chooses batches by
// numbers of hits that only the whole search knows, and queries whose sequences are not in
// archives (archive.ErrNoQueries). Request.Note gets the reason. If BLAST+ fails on
// fragments before anything was printed, the whole database is searched, too, so that the
// user sees BLAST+'s own message.
//
// # Crowded queries
//
// BLAST+ keeps a list of preliminary hits that is little longer than -max_target_seqs. If so
// many subjects compete that good ones drop out of it, fragments, which have a list each,
// find hits that BLAST+ loses. The merged hits of such a query are replaced by those of a
// search of the whole database for the same batches of queries, which runs on this machine
// from the first crowded query on. A query is crowded if all fragments together may have more
// preliminary hits than the list of BLAST+ holds. So that they can be counted, fragments are
// searched for one hit more than that list holds, and the merged hits are cut to
// -max_target_seqs. Archives of the user's (-outfmt 11) name the options as given, so for them
// the fragments' lists have that length, and a query is also crowded if one of them is full.
//
// # Sources
//
// BLAST Command Line Applications User Manual,
// https://www.ncbi.nlm.nih.gov/books/NBK279690/; NCBI C++ Toolkit of BLAST+ 2.12:
// CFormattingArgs (limits and formats), CBatchSizeMixer (batches), CBlastFormat (reports),
// seqsrc_seqdb.cpp (statistics of aliases).
package search
