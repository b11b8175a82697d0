// Command premix runs one tool over many samples and starts it hot: see
// docs/run.md.
//
// Words are those of the packages below. Each file is a verb: a constructor of
// its command, its options, and one call of a package that does the work. What
// all verbs share (errors, exit codes, interrupts) is in root.go.
package main
