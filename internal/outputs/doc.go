// Package outputs decides which files a command may replace by what it writes.
//
// A command that writes to a file which the user names replaces a file of its own kind, as
// from an earlier call, and nothing else. A kind is recognised by a mark in the content, not
// by the name of the file: a sample sheet that somebody names by mistake stays.
//
// The benchmarks in bench do not ask this package: their users name directories (-work,
// -traces), which are theirs alone, and results are appended to.
package outputs
