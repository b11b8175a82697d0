// Package around describes what a program inherits from its caller, beside its arguments
// and its environment: standard streams, other descriptors, the umask, and signals that
// are ignored or blocked. A snapshot serves calls that inherit the same.
//
// The runtime of Go installs handlers for signals before any code of a program runs, and
// so loses which of them the caller ignores, SIGHUP and SIGINT aside. A program that is
// linked with -ldflags '-E premix_entry' asks for them at its first instruction.
package around
