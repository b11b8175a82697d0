// Command premix-shim stands in a tool's place on PATH, by a symbolic link with the
// tool's name. It decides in a millisecond whether a call starts plainly or hot, and is a
// program of its own because premix takes longer to start.
package main
