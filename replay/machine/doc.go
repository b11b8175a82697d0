// Package machine says what a workload is replayed on: nodes, partitions, qualities of
// service, limits and shares; from a YAML file, or derived from a trace.
//
// Words:
//
//   - A pool is a set of nodes. No node is in two pools.
//   - A partition is what jobs are submitted to. It has one pool; several partitions may
//     have the same one, which is how fast lanes and scavengers are made.
//   - A QOS, quality of service, is what a job has besides.
//   - A tier is what comes before priority: of jobs that wait for the same pool those of
//     the highest tier are first, whatever the policy.
//   - A charge factor is what a core hour costs.
//
// The file is described in docs/replay.md; its fields are those of [Machine] as written
// here. Unknown fields are errors: a misspelt limit would be none.
package machine
