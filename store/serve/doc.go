// Package serve is the web server of a store.
//
// It answers GET and HEAD for exactly the names that package tree describes and
// for nothing else: no listings, no other files of the directory, no links that
// lead out of it. Objects never change and say so, so that any cache may keep
// them for a year; the other files must be revalidated, for which they have an
// ETag. Ranges and conditional requests are those of RFC 9110.
//
// # Bounds
//
// Descriptors: connections are limited, by default to what the process may open
// with two descriptors each; more wait in the kernel's queue. Memory: objects are
// sent by the kernel (sendfile(2)) over plain HTTP; requests that are answered at
// the same time are limited, more wait; headers are limited to 16 KiB. Time: a
// client must send its header within 10 seconds and take an object at 8 KiB/s or
// faster; a connection without a request is closed after two minutes.
//
// # Tokens
//
// With tokens, every request must bear one ("Authorization: Bearer TOKEN"), and
// objects are marked private: a shared cache would otherwise hand them to whoever
// asks.
package serve
