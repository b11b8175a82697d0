// Command premix runs one tool over many samples and starts it hot: see
// docs/run.md.
//
// The packages below define the words. Each file is a verb: a constructor of its
// command, its options, and one call of a package that does the work. root.go has
// the common part of all verbs: errors, exit codes, interrupts.
package main
