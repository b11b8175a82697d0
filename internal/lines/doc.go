// Package lines appends to files that only grow, and reads their lines while others append.
//
// A writer knows where the last whole record ends. What lies behind was begun by a process
// that was killed, and is cut off by the next one. So a record is there whole or not at all.
// Several writers of one file take turns by a lock of theirs, and read what is new before
// they append. A reader stops before a line without an end, and goes on there later. It needs
// no lock: what it reads while a writer replaces a torn end is read again.
//
// The content belongs to the callers: tables of package record, orders and ledgers of
// engines, histories of tags, journals of samples.
package lines
