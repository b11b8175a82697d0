// Package whatif replays a workload on a changed machine, or with more jobs, and compares
// the waits with the replay without the change.
//
// A change is "more-jobs=10%" or "fewer-nodes=32". Further jobs are drawn from the jobs of
// the trace, with replacement, and are submitted up to an hour before or after the drawn
// ones, so that days and weeks keep their shape. They come after no other jobs. As they are
// drawn at random, they are drawn several times.
package whatif
