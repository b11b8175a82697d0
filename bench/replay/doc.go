// Command bench-replay measures premix replay: time, CPU time and memory of real traces
// under each policy, beside AccaSim, and of ten million generated jobs.
//
// The traces come from PREMIX_TESTDATA. AccaSim is installed from PyPI into the work
// directory; it gets one core nodes, exact estimates and one unit of memory a job, by
// which its EASY divides. Only what both have is compared: FCFS and EASY on NASA-iPSC,
// and there the mean waits of both must agree within a hundredth.
package main
