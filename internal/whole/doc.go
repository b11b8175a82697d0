// Package whole writes files that are there whole or not at all: pages, traces and lists
// that somebody may read, or write too, at any moment, and that can be made again. They
// are not synced: what must outlive a crash of the machine is written elsewhere, by whoever
// knows what else has to be on the disk before it.
//
// Source: rename(2).
package whole
