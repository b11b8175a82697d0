// Package examples holds workflows that ship with premix, as files to copy and change. Its
// only code is tests, which run the workflows with the real programs.
//
// yeast-variants calls variants of several samples: alignment by bwa, whose index is
// read once, sorting, marking of duplicates, calling scattered over 64 regions, and a
// gather. There are three versions: groups of premix's own tasks, Nextflow and Snakemake.
// A test compares their calls. The workflow managers run through premix slurm-shim.
// scripts/setup.sh ecosystem installs them; without them their tests are skipped.
//
// slurm-clients submits jobs by submitit, PSI/J, Parsl and Dask, which know Slurm. They run
// through premix slurm-shim as well.
//
// drop-in calls the same tools from Nextflow, Snakemake, make, a shell and GNU parallel,
// none of which knows premix: premix's links come first on PATH. A test compares the
// outputs with the outputs of plain starts.
//
// The data are a small genome made from a fixed seed, with reads that wgsim cuts from
// it. With PREMIX_TESTDATA set, the yeast genome and real reads are used too.
package examples
