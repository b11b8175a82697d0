// Package placeholder makes files that stand in for a sample.
//
// A tool that is prepared for hot starts may look at its input before it loads its
// data. It finds a placeholder there: a file of the same format as the sample, and
// valid in it, but of another size and with other records. A tool that keeps
// something of its input then shows it, since two preparations with two placeholders
// differ.
//
// Two placeholders of one sample still have some properties in common, as their format
// and header. Kind describes them. A tool that has read its placeholder may be started
// over files of the same Kind alone.
//
// # Formats
//
//	FASTQ, FASTA, SAM, VCF, text  plain, or compressed with gzip or BGZF
//	BAM, BCF                      compressed with BGZF
//
// BGZF is the form of gzip of the SAM specification, section 4.1: members of at most
// 64 KiB, whose size stands in an extra field, and an empty member at the end. FASTQ
// with records of more than four lines, JSON, XML and binary formats other than BAM and
// BCF cannot be cut: their placeholder has the content of the sample.
package placeholder
