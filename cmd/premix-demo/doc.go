// Command premix-demo is the aligner of `premix demo`, for machines that have no other one:
//
//	premix-demo REFERENCE READS >SAM
//
// It is a separate program, since premix itself has opened files at its start that cannot be
// frozen.
package main
