// Package series keeps what is collected of machines: samples, tasks and events. It
// takes them without waiting for a disk, keeps them for years in files that others can
// read, and answers for a day or a quarter of thousands of series within a second.
//
// Words:
//
//   - window: a span of two hours (see [Options]) that begins at a multiple of its length
//     since 1970, in UTC. A sample belongs to one window.
//   - head: the windows that are in memory, each with a journal on disk.
//   - segment: a closed window, or several of a day, as Parquet. It never changes.
//   - roll-up: least, mean and greatest value of each minute, or hour, and their number.
//   - table: the tasks, or the events.
//
// # The directory
//
//	DIR/lock                         held (flock(2)) by who has it open
//	DIR/journal/N.wal                what came for window N and is in no segment
//	DIR/segments/BEGIN-N/raw.parquet samples
//	                    /1m.parquet  roll-ups of a minute, if they are fewer than samples
//	                    /1h.parquet  roll-ups of an hour
//	                    /segment.json see [about]
//	DIR/tasks, DIR/events            N.jsonl while they grow, N.parquet when they are closed
//	DIR/tmp                          what is being written; emptied at the start
//
// N counts up and names a window, or a segment, for all time. A segment appears as a
// whole, by the rename of its directory. A journal whose segment is there is removed; of
// segments that another one says it replaces, too. So a kill at any moment leaves
// either the journal or the segment, and nothing is counted twice.
//
// A window that is closed waits a few seconds for others of its day, which come at once
// when much is brought in at a time. What is written by the day need not be merged.
//
// Rows are sorted by name, labels and time. The rows of each series are known from the
// metadata of the file, so that a query reads only pages with something to say; in those of
// roll-ups, and of samples that have none, are few series. The columns are those of [Row] and [RollupRow], [TaskRow] and
// [EventRow].
//
// # What comes late, twice or from another year
//
// A few windows are open at a time. A sample of any time is taken as long as it is in
// one of them, or one of them has not been written to for a while and can be closed for
// it; what is newer than all of them always opens a window. So a clock may jump forward
// and back. What comes after its window was closed goes into another segment of the same
// time, and is merged when the day is compacted. Samples that cannot be taken are
// counted, and an event says so. Of two samples of a series with the same time the later
// one counts.
//
// Nothing is removed because of its age before the clock has run for an hour without a
// jump, so that a wrong clock does not empty the directory.
//
// # When the disk is full or slow
//
// Everything is kept in memory, up to a bound; then the oldest window goes. Events tell
// when that begins and ends. As soon as the disk can be written again, everything that
// is in no journal is written as segments.
//
// # Durability
//
// What a method was given is written to the journal within a quarter of a second, which a
// kill of the process cannot take back, and is on the disk (fdatasync(2)) within a second
// more.
//
// Lock order: DB.compacting, DB.writer, DB.mu, then table.mu, files.mu and hub.mu, of which
// none is held while another is taken. During I/O only DB.compacting, DB.writer and
// table.writing are held; none of them by who brings samples, or by queries.
package series
