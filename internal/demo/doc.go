// Package demo shows a hot start on a machine that has premix and nothing else: it makes a
// reference and samples, runs an aligner over them cold and hot through the command premix,
// compares the outputs and sums up the times.
//
// The aligner is the program premix-demo, which is installed beside premix (package aligner),
// or minimap2.
package demo
