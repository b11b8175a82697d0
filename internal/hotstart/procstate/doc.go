// Package procstate describes the state that a program inherits from its caller, apart from
// arguments and environment: standard streams, other descriptors, the umask, and the
// ignored and blocked signals. A snapshot serves only calls that inherit the same state.
//
// The Go runtime installs signal handlers before any code of the program runs. After that
// the program cannot know which signals its caller ignores, apart from SIGHUP and SIGINT.
// A program that is linked with -ldflags '-E premix_entry' asks the kernel for them at its
// first instruction.
package procstate
