// Package lines appends to files that only grow, and reads their lines while others append.
//
// A writer knows the end of the last whole record. Bytes behind it are the start of a record
// whose writer was killed; the next writer removes them. So a file has whole records only.
// Several writers of one file take turns with a lock of their own, and read the new records
// before they append. A reader stops before a line without a newline, and reads it later. It
// needs no lock: if a writer replaces the end of the file during a reading, Read reads again.
//
// The callers define the content: tables of package record, orders and ledgers of engines,
// histories of tags, journals of samples.
package lines
