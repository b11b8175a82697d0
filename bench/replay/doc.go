// Command bench-replay measures premix replay: time, CPU time and memory of real traces
// under each policy, beside AccaSim, and of ten million generated jobs.
//
// The traces come from PREMIX_TESTDATA. AccaSim is installed from PyPI into the work
// directory; it gets one core nodes, exact estimates and one unit of memory a job, by
// which its EASY divides. Only what both have is compared, FCFS and EASY on NASA-iPSC,
// where hardly any job waits, and on the same jobs closer together. The mean waits must
// agree within a hundredth, but for EASY on the crowded machine: AccaSim's lets any job
// overtake that fits now, whether it delays the first or not, or with a change that its
// code suggests, none that outlasts the reservation. The mean wait of EASY as published
// must lie between the two.
package main
