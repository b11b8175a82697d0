// Tasks measures what it costs to run very many short commands, side by side with
// other programs that do.
//
// Contenders:
//
//	loop      a C program with a thread a core, each of which calls posix_spawn and
//	          waitpid in turn and keeps no record: the limit
//	premix    premix task run, with a record of each task on disk
//	xargs     xargs -P, no records
//	parallel  GNU parallel, no records
//	make      make -j with a target a command, no records
//	hq        HyperQueue's server and worker in one process, from its Python package
//	snakemake, nextflow  workflow managers with their local executors, as many times as
//	          tells their rate: at most 1,000, and once
//
// Parts:
//
//	true      /bin/true, very many times
//	sleep     a tenth of a second of sleep, so that what counts is how soon the next
//	          command begins
//	submit    how long it takes to submit half a million tasks, the memory that this
//	          needs, and how long premix task ls and why take while they run
//	kubernetes
//	          tasks through premix, and the same as one Job with a pod for each, on a
//	          control plane of its own (package kubebox) with four nodes; only where it
//	          is named and scripts/setup.sh kubernetes has built it
//	workflow  a Nextflow workflow with the executor slurm on a Slurm that is started for
//	          it: directly, with premix slurm-shim before it, and with premix slurm-shim
//	          alone; with the same configuration of Nextflow for all, and with several
//	slurm     true, very many times, in a private Slurm of four nodes on this machine:
//	          packed by premix, and as one job array of as many jobs; and what either
//	          costs its controller
//
// Contenders alternate (A B A B), so that whatever else the machine does meets all of
// them, and a figure is a median. CPU time is that of a contender with all that it
// ran; it says more than the clock does on a machine that has other work. Figures are
// written as JSON Lines to results.jsonl in the work directory, see package figures.
//
// HyperQueue is installed by pip into the work directory, and the loop is compiled
// there; what cannot be had is left out, and the output says so.
package main
