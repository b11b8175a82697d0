// Package workbench is the common part of the programs under bench that need other
// programs: a directory for data and peers, processes on this machine or on a host of a
// link (package netrelay), and a web server that counts requests.
//
// Words used here:
//
//   - A lab is the work directory. [Lab.Once] makes a file or directory completely or
//     not at all, and keeps it for later runs. [Lab.Scratch] makes a directory for one
//     repetition.
//   - A daemon is a process that runs during a measurement.
//   - The origin is the web server from which all measured programs fetch.
package workbench
