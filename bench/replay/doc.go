// Command bench-replay measures premix replay: time, CPU time and memory of real traces
// under each policy, beside AccaSim, and of ten million generated jobs.
//
// Logs of sacct are replayed beside their record, in Slurm's order, on the machine that
// their nodes show; -sacct names more of them.
//
// The traces come from PREMIX_TESTDATA. AccaSim is installed from PyPI into the work
// directory. It gets nodes of one core, exact estimates and one unit of memory a job,
// because its EASY divides by the memory. The comparison covers the policies that both
// have, FCFS and EASY: on NASA-iPSC, where hardly any job waits, and on the same jobs
// closer together. The mean waits must agree within a hundredth, except for EASY on the
// crowded machine. There AccaSim's EASY lets any job that fits now overtake, even if it
// delays the first job; with a change that its code suggests, no job overtakes that
// would outlast the reservation. The mean wait of EASY as published must lie between
// these two.
package main
