// Package machine describes the machine on which a workload is replayed: nodes, partitions,
// qualities of service, limits and shares; from a YAML file, a slurm.conf or an output of
// sinfo, or derived from a trace.
//
// Words:
//
//   - A pool is a set of nodes. No node is in two pools.
//   - Jobs are submitted to a partition. It has one pool; several partitions may
//     share it, which permits fast lanes and scavengers.
//   - A QOS, quality of service, is a second class of a job, independent of its partition.
//   - A tier ranks before priority: among jobs that wait for the same pool, those of
//     the highest tier are first, whatever the policy.
//   - A charge factor is the cost of a core hour.
//
// The file is described in docs/replay.md; its fields are those of [Machine] as written
// here. Unknown fields are errors: otherwise a misspelt limit would have no effect.
package machine
