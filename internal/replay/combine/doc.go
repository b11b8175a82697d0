// Package combine combines short jobs, as premix's engines for clusters do with tasks: many of
// them become one job of the machine, which runs them one after the other.
//
// Jobs are combined if they have the same user, account, partition, QOS and size, come
// after no others, and are short: the mean run time of all jobs of this kind in the trace,
// which an engine would have measured, is at most half the target. A pack takes as many
// jobs as reach the target by that mean, at most 10,000, and no job that was submitted more
// than a minute after its first one. It is submitted with its last job.
package combine
