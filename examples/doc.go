// Package examples holds workflows that ship with premix. They are files, to be copied
// and changed; there is no code here but tests, which run them with the real programs.
//
// yeast-variants calls variants of several samples: alignment by bwa, whose index is
// read once, sorting, marking of duplicates, calling scattered over 64 regions, and a
// gather. It is there three times, as groups of premix' own tasks, for Nextflow and for
// Snakemake; a test compares the calls. The workflow managers run through premix
// slurm-shim, and are there after scripts/setup.sh ecosystem; without them their tests
// are skipped.
//
// drop-in calls the same tools by Nextflow, Snakemake, make, a shell and GNU parallel,
// none of which knows premix: its links stand before PATH. A test compares the outputs
// with those of plain starts.
//
// The data are a small genome made from a fixed seed, with reads that wgsim cuts from
// it. With PREMIX_TESTDATA set, the yeast genome and real reads are used too.
package examples
