// Package series stores samples, tasks and events. It accepts them without waiting for a
// disk, keeps them for years in files that other programs can read, and answers queries
// over a day or a quarter of thousands of series within a second.
//
// Words:
//
//   - window: a span of two hours (see [Options]) that begins at a multiple of its length
//     since 1970, in UTC. A sample belongs to one window.
//   - journal: the file on disk with the samples of a window that is still in memory.
//   - segment: a closed window, or several of a day, as Parquet. It never changes.
//   - roll-up: least, mean and greatest value of each minute, or hour, and their number.
//   - table: the tasks, or the events.
//
// # The directory
//
//	DIR/lock                         locked (flock(2)) by the process that has it open
//	DIR/journal/N.wal                samples of window N, until a segment has them
//	DIR/segments/BEGIN-N/raw.parquet samples
//	                    /1m.parquet  roll-ups of a minute, if they are far fewer than samples
//	                    /1h.parquet  roll-ups of an hour
//	                    /segment.json see [about]
//	DIR/tasks, DIR/events            N.jsonl while they grow, N.parquet when they are closed
//	DIR/tmp                          files being written; emptied at the start
//
// N increases and is never used twice, for a window or for a segment. A rename of its
// directory makes a segment appear as a whole. When the segment is there, its journals are
// removed, and so are the segments that it says it replaces. A kill at any moment therefore
// leaves either the journal or the segment, and no sample is counted twice.
//
// A closed window waits a few seconds for others of its day, which close together during a
// bulk load. Windows that are written as one segment for the day need not be merged later.
//
// Rows are sorted by name, labels and time. The rows of each series are known from the
// metadata of the file, so that a query reads only pages with rows of its series. Pages of
// roll-ups, and of samples without roll-ups, hold few series each. The columns are those of
// [Row] and [RollupRow], [TaskRow] and [EventRow].
//
// # Late samples, duplicates, and wrong clocks
//
// A few windows are open at a time. A sample is accepted if it belongs to one of them, or
// if one of them has not been written to for a while and can be closed to open its window.
// A sample newer than all of them always opens a window. So a clock may jump forward and
// back. A sample that arrives after its window was closed goes into another segment of the
// same time, which is merged when the day is compacted. Refused samples are counted, and an
// event reports them. Of two samples of a series with the same time the later one counts.
//
// No data is removed because of its age before the clock has run for an hour without a
// jump, so that a wrong clock does not empty the directory.
//
// # When the disk is full or slow
//
// All samples are kept in memory, up to a limit; then the oldest window is dropped. Events
// report when this begins and ends. As soon as the disk can be written again, all samples
// that are not in a journal are written as segments.
//
// # Durability
//
// Data passed to a method is written to the journal within a quarter of a second and then
// survives a kill of the process. Within a second more it is on the disk (fdatasync(2)) and
// survives a crash of the machine. Sync waits for that.
//
// Lock order: DB.compacting, DB.writer, DB.mu, then table.mu, files.mu and hub.mu, of which
// none is held while another is taken. During I/O only DB.compacting, DB.writer and
// table.writing are held; neither queries nor the methods that accept samples hold any of
// them.
package series
