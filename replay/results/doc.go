// Package results sums up what policies made of a workload, and compares them.
//
// Words:
//
//   - wait: how long a job was eligible and did not run, tries that came to nothing
//     included.
//   - turnaround: from eligible to the end.
//   - bounded slowdown: turnaround over run time, of which neither is taken to be less than
//     10 s, and at least 1. Feitelson and Rudolph, Metrics and benchmarking for parallel job
//     scheduling, JSSPP 1998.
//   - utilisation: core time that jobs ran for to their end, of all there was between the
//     first submission and the last end.
//   - fairness: Jain's index over the users' mean bounded slowdown: 1 when all users fare
//     alike, 1/n when one of n bears everything. Jain, Chiu and Hawe, DEC TR-301, 1984.
//   - charge: core hours, times charge factors.
//   - size: jobs by their number of cores; class: by partition and QOS.
//
// # Confidence
//
// Jobs of one week hang together, so single jobs must not be drawn: a bootstrap draws whole
// weeks, by submission, with replacement, as many as there are, 2000 times. All policies
// get the same weeks, since what differs between weeks is not a difference between
// policies. An interval is from the 2.5th to the 97.5th percentile of what was drawn. Of
// traces shorter than 4 weeks days are drawn instead; of less than 4 days there is none.
package results
