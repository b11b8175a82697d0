// Package server implements the web server of a store.
//
// It answers GET and HEAD for exactly the paths that package tree describes: no
// listings, no other files of the directory, no links that lead out of it. Objects are
// marked immutable, so that any cache may keep them for a year; the other files have an
// ETag and must be revalidated. Ranges and conditional requests follow RFC 9110.
//
// # Bounds
//
// Descriptors: the number of connections is limited, by default to half of the
// descriptors that the process may open; further ones wait in the kernel's queue.
// Memory: over plain HTTP the kernel sends objects (sendfile(2)); concurrent requests
// are limited, and further ones wait; headers are limited to 16 KiB. Time: a client
// must send its header within 10 seconds and receive an object at 8 KiB/s or faster; an
// idle connection is closed after two minutes.
//
// # Tokens
//
// With tokens, every request must carry one ("Authorization: Bearer TOKEN"), and
// objects are marked private: otherwise a shared cache would give them to clients
// without a token.
package server
