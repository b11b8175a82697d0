// Package faulty is a web server with faults, for tests of clients: it wraps a good
// handler and spoils its responses.
package faulty
