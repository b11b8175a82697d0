// Package outputs decides which files a command may replace by its output.
//
// A command that writes to a file named by the user replaces only a file of the same kind,
// such as the output of an earlier call. It recognises a kind by a mark in the content, not
// by the name of the file. So it does not replace a sample sheet that the user names by
// mistake.
//
// The benchmarks in bench do not use this package: their users name directories for them
// alone (-work, -traces), and results are appended.
package outputs
