// Command premix-shim takes a tool's place on PATH, as a symbolic link with the tool's
// name. It decides in a millisecond whether a call starts plainly or hot. It is a separate
// program because premix takes longer to start.
package main
