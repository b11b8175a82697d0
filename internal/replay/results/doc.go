// Package results summarizes the schedules of several policies for a workload, and compares
// them.
//
// Words:
//
//   - wait: the time that a job was eligible and did not run, including tries without a
//     result.
//   - turnaround: from eligible to the end.
//   - bounded slowdown: turnaround divided by run time, of which neither counts as less than
//     10 s, and at least 1. Feitelson and Rudolph, Metrics and benchmarking for parallel job
//     scheduling, JSSPP 1998.
//   - utilisation: core time of completed jobs, divided by the machine's core time between the
//     first submission and the last end.
//   - fairness: Jain's index over the users' mean bounded slowdown: 1 when all users fare
//     alike, 1/n when one of n bears everything. Jain, Chiu and Hawe, DEC TR-301, 1984.
//   - charge: core hours, multiplied by charge factors.
//   - size: jobs by their number of cores; class: by partition and QOS.
//
// # Confidence
//
// Jobs of one week are correlated, so a bootstrap must not draw single jobs: it draws whole
// weeks, by submission, with replacement, as many as there are, 2000 times. All policies
// get the same weeks, since what differs between weeks is not a difference between
// policies. An interval is from the 2.5th to the 97.5th percentile of the draws. For traces
// shorter than 4 weeks days are drawn instead; for less than 4 days there is no interval.
package results
