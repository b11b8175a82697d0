// Package lines appends to files that only grow, and reads their lines while others append.
//
// A writer knows where the last whole record ends. What lies behind was begun by a process
// that was killed, and is cut off by the next one. So a record is there whole or not at all.
// Several writers of one file take turns by a lock of theirs, and read what is new before
// they append. A reader stops before a line without an end, and goes on there later. Without
// the writers' lock it may see, at the moment in which a writer replaces what a killed one
// has begun, the beginning of the old line with the end of the new one.
//
// The content belongs to the callers: tables of package record, orders and ledgers of
// engines, histories of tags, journals of samples.
package lines
