// Package ports finds TCP ports for programs in tests that cannot choose one by themselves.
//
// Another process may take a free port before such a program listens on it, or while it is
// restarted. The kernel gives outgoing connections ports of a range of its own, many in a
// second on a busy machine. The ports found here lie below this range, where a process gets
// a port only if it asks for that number.
package ports
