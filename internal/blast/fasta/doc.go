// Package fasta checks sequences in FASTA format, in one pass and at the speed of memory,
// before anything expensive is done with them.
//
// Words:
//
//   - header: a line that begins with '>'. Its id reaches to the first blank.
//   - sequence: the lines after a header, up to the next one.
//   - letters: the characters of a sequence, without blanks and line ends.
//   - problem: a mistake, with file and line.
//
// The format is the one that BLAST+ reads, without the mistakes that BLAST+ silently
// accepts (https://www.ncbi.nlm.nih.gov/books/NBK279690/): it drops gaps and digits, and
// makes letters that it does not know ambiguous. Accepted are the one-letter codes of
// IUPAC-IUB in either case, U among nucleotides, and '*' (a stop) among amino acids. Lines
// end in LF or CRLF; blank lines and blanks within lines are passed over, and so are lines
// that begin with ';'. gzip, of any number of members, is recognised by its first bytes.
package fasta
