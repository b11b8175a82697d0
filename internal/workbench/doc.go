// Package workbench is what the programs under bench that need other programs have
// in common: a directory in which data and peers are made once, processes on this
// machine or on a host of a link (package netrelay), and a web server that counts.
//
// Words used here:
//
//   - A lab is the work directory. What [Lab.Once] makes is there whole or not at
//     all, and is kept for later runs; [Lab.Scratch] is for one repetition.
//   - A daemon is a process that stays while something is measured.
//   - The origin is the one web server from which everything measured fetches.
package workbench
