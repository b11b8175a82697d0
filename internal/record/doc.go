// Package record keeps premix's measurements as tables that belong to the
// user: JSON Lines while a table grows, Parquet once it is closed. Both can be
// read with DuckDB, pandas or R, without premix.
//
// Words:
//
//   - A record is one row of a table. [Task] is the record of one try of one
//     task.
//   - A table is a file of records of one kind. As JSON Lines its first line
//     is a [Header] and every further line is one record.
//   - A line is torn when the writer died, or the disk filled up, during its
//     write. A torn line is skipped and counted, and never causes an error: its
//     event counts as not having happened.
//   - A commit makes a record durable: when [Writer.Commit] returns, the record
//     outlives a crash of the machine. Commits that wait at the same time
//     share one fsync.
package record
