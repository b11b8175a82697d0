// Package ports finds TCP ports for programs in tests that cannot choose one by themselves.
//
// A port that was free may be taken before such a program listens on it, and again while
// it is restarted. The kernel gives connections that go out ports of a range of its own,
// many in a second when a machine is busy; those found here lie below it, where a port is
// only had by who asks for it.
package ports
