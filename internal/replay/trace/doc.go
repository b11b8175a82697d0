// Package trace reads workload traces: the jobs submitted to a machine, with their times
// and resources.
//
// Words:
//
//   - A job is one entry of a trace. It has an index, from 0 in order of submission,
//     and a number, which is its name in the trace.
//   - asked is the run time that the user asked for, which on most machines is the
//     limit at which the job would have been killed.
//   - An array is a set of jobs that were submitted as one, of which only so many may
//     run at a time.
//   - A line is bad when it cannot be understood. Bad lines are counted, by reason, and
//     the first few are named. A line is left out when it is understood but is not a job
//     to replay: a job that never ran, or a step of another. These are counted by reason,
//     too.
//
// Formats, each with its own file here:
//
//   - Standard Workload Format, the archive of parallel workloads' (swf.go);
//   - sacct's parsable output and its JSON (sacct.go);
//   - Nextflow's trace files (nextflow.go);
//   - WfInstances of WfCommons, with the dependencies of tasks (wfinstances.go);
//   - run and task directories of premix (premix.go).
//
// Any file may be compressed: gzip, or zip with one file in it. The format of a file is
// recognised by its content, never by its name.
//
// # Memory
//
// A trace may have ten million jobs, so jobs are columns and not values: some 60 bytes a
// job, no pointers. Columns that a trace does not need are nil. Times are integers in
// milliseconds, since rounding of floating point numbers would make equal moments differ.
package trace
