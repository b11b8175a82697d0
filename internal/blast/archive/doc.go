// Package archive reads, merges and writes BLAST archives, which BLAST+ writes with -outfmt
// 11 and blast_formatter reads. They contain all results of a search, and nothing that
// depends on the output format.
//
// Words:
//
//   - archive: one value of the ASN.1 type Blast4-archive, in text. BLAST+ writes one
//     for each batch of queries; a file holds one after the other.
//   - head: the text of an archive before its alignments: queries, options, name of the
//     database.
//   - tail: the text after its alignments: masks, Karlin-Altschul parameters and search
//     space of the first query, messages.
//   - alignment: one Seq-align of a query and a subject: one HSP, or all HSPs in
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
// BLAST+ writes the field alignments even if it is empty, and does not use the binary form.
//
// The package parses only as much as it needs: heads, alignments and tails are kept as
// bytes, and written unchanged. That keeps outputs equal to the byte, and it is fast.
// Braces and commas within strings are recognised; line breaks have no meaning.
//
// # Merging
//
// Fragments are consecutive parts of a database and are searched with the statistics of the
// whole, so that scores and e-values equal those of a search of the whole. [Merger] puts
// the hits into the order of BLAST+ (s_EvalueCompareHSPLists in blast_hits.c): the best
// e-value first, where values below 1e-180 count as 0; then the best score, or, of more
// hits than HitlistSize, the score of the HSP with the best e-value; then the highest OID.
// All of a later source have higher OIDs than all of an earlier one, and each source is in
// order already, unless it alone has fewer hits than HitlistSize: then hits that are equal
// in both keep their order. So OIDs need not be known. At most HitlistSize hits remain.
//
// Subjects without parsed ids are named by their OID (BL_ORD_ID). A fragment counts from 0,
// so the OID of its first sequence is added.
package archive
