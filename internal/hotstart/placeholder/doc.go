// Package placeholder makes files that replace a sample.
//
// A tool that is prepared for hot starts may look at its input before it loads its
// data. It then finds a placeholder: a valid file of the same format as the sample, but
// with another size and other records. If a tool keeps something of its input, two
// preparations with two placeholders differ.
//
// Two placeholders of one sample still have some common properties, for example their
// format and header. Kind describes these properties. A tool that has read its placeholder
// may start only over files of the same Kind.
//
// # Formats
//
//	FASTQ, FASTA, SAM, VCF, text  plain, or compressed with gzip or BGZF
//	BAM, BCF                      compressed with BGZF
//
// BGZF is the form of gzip of the SAM specification, section 4.1: members of at most
// 64 KiB, whose size is in an extra field, and an empty member at the end. FASTQ
// with records of more than four lines, JSON, XML and binary formats other than BAM and
// BCF cannot be cut: their placeholder has the content of the sample.
package placeholder
