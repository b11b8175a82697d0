// Tasks measures the cost of running very many short commands, side by side with other
// programs for it.
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
//	slurm     one plain job array in a private Slurm of one node with as many CPUs,
//	          configured to start jobs at once; the benchmark asks for its end every
//	          2 s, and its CPU time is not known
//	snakemake, nextflow  workflow managers with their local executors
//
// A contender may take about -bound. If that is too short for all commands, it runs as many
// as fit: the table and the figures have the number, and the comparison is between rates.
// premix runs all of them.
//
// Parts:
//
//	true      /bin/true, very many times
//	sleep     a tenth of a second of sleep, which shows how soon the next command begins
//	submit    how long it takes to submit half a million tasks, the memory that this
//	          needs, and how long premix task ls and why take while they run
//	kubernetes
//	          tasks through premix, and the same as one Job with a pod for each, on a
//	          control plane of its own (package kubetest) with four nodes; only where it
//	          is named and scripts/setup.sh kubernetes has built it
//	workflow  a Nextflow workflow with the executor slurm on a Slurm that is started for
//	          it: directly, with premix slurm-shim before it, and with premix slurm-shim
//	          alone; with the same configuration of Nextflow for all, and with several
//	snakemake a Snakemake workflow of one-line rules with its local executor and with the
//	          executor plugin of premix, and the CPU time of each job beside the CPU time
//	          of a start of Snakemake
//	sbatch    how long one sbatch takes, of many in a row: on a private Slurm, through
//	          premix slurm-shim before it, and through premix slurm-shim alone
//	slurm     true, very many times, in a private Slurm of four nodes on this machine:
//	          packed by premix, and as one job array of as many jobs (-plain: of fewer);
//	          and the cost of both for its controller. With -accounting it has MariaDB
//	          and slurmdbd
//
// Contenders alternate (A B A B), so that other load on the machine affects all of them
// alike, and a figure is a median. CPU time covers a contender with all its child
// processes; on a busy machine it is more meaningful than the elapsed time. Figures are
// written as JSON Lines to results.jsonl in the work directory, see package figures.
//
// pip installs HyperQueue into the work directory, and the loop is compiled there. A
// contender that is not available is left out, and the output says so.
package main
