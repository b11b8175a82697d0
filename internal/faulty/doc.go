// Package faulty is a web server with faults, for tests of what has to live with
// one: it stands before a good handler and spoils its answers as it is told.
package faulty
