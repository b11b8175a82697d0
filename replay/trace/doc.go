// Package trace reads workload traces: what jobs were submitted to a machine, when,
// and what they took.
//
// Words:
//
//   - A job is one entry of a trace. It has an index, from 0 in order of submission,
//     and a number, which is what the trace calls it.
//   - asked is the run time that the user asked for, which on most machines is the
//     limit at which the job would have been killed.
//   - An array is a set of jobs that were submitted as one, of which only so many may
//     run at a time.
//   - A line is bad when it cannot be understood. Bad lines are counted, by reason, and
//     the first few are named. A line is left out when it is understood and is no job
//     to replay: one that never ran, or a step of another. Those are counted by reason,
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
// Any file may be compressed: gzip, or zip with one file in it. What format a file has
// is seen from its content, never from its name.
//
// # Memory
//
// A trace may have ten million jobs, so jobs are columns and not values: some 60 bytes a
// job, no pointers. Columns that a trace has no use for are nil. Times are whole
// milliseconds, since floating point numbers would make equal moments differ.
package trace
