// Package archive reads, merges and writes BLAST archives, what BLAST+ writes with
// -outfmt 11 and blast_formatter reads. All that a search found is in them, and nothing
// that depends on how it will be printed.
//
// Words:
//
//   - archive: one value of the ASN.1 type Blast4-archive, in text. BLAST+ writes one
//     for each batch of queries; a file holds one after the other.
//   - head: the text of an archive before its alignments: queries, options, name of the
//     database.
//   - tail: the text behind its alignments: masks, Karlin-Altschul parameters and search
//     space of the first query, messages.
//   - alignment: one Seq-align of a query and a subject: one HSP, or all that there are in
//     ungapped searches.
//   - hit: the alignments of one query with one subject.
//   - source: a stream of archives from one fragment of a database.
//
// The type is defined in NCBI's module NCBI-Blast4 (blast.asn) and alignments in
// NCBI-Seqalign (seqalign.asn), both part of
// https://github.com/ncbi/ncbi-cxx-toolkit-public under src/objects; the text is ASN.1
// value notation (X.680) as NCBI's serial library lays it out:
//
//	Blast4-archive ::= {
//	  request {
//	    body queue-search {
//	      queries bioseq-set { seq-set { seq { id { local str "Query_1" }, ... }, ... } },
//	      subject database "nt",
//	      algorithm-options { { name "HitlistSize", value integer 500 }, ... }
//	    }
//	  },
//	  results {
//	    alignments { { type partial, ..., segs denseg { ids { QUERY, SUBJECT }, ... } }, ... },
//	    masks { ... },
//	    ka-blocks { ... },
//	    search-stats { ... }
//	  }
//	}
//
// BLAST+ writes alignments also where there are none, and has no binary form of it all.
//
// What need not be understood is not: heads, alignments and tails are kept as the
// bytes they were, and written as such. That keeps outputs equal to the byte, and it is
// fast. Braces and commas within strings are told from others, lines are not relied on.
//
// # Merging
//
// Fragments are consecutive parts of a database and are searched with the statistics of
// the whole, so that scores and e-values are those of the whole. [Merger] puts the
// hits into the order of BLAST+ (s_EvalueCompareHSPLists in blast_hits.c): the best e-value
// first, where what is below 1e-180 counts as 0; then the best score, or, of more hits than
// HitlistSize, the score of the HSP with the best e-value; then the highest OID.
// All of a later source have higher OIDs than all of an earlier one, and each source is in
// order already, unless it alone has fewer hits than HitlistSize: then those that tie in both
// ways stay as they are. So OIDs need not be known. As many hits remain as HitlistSize says.
//
// Subjects without parsed ids are called by their OID (BL_ORD_ID). A fragment counts from
// 0, so the OID of its first sequence is added.
package archive
