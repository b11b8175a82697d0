// Package pack puts short jobs together, as premix's engines for clusters do with tasks:
// many of them become one job of the machine, which runs them one after the other.
//
// Jobs go together that are of the same user, account, partition, QOS and size, come after
// no others, and are short: the mean run time of all such jobs of the trace, which is
// what an engine has measured, is at most half the target. A pack takes as many as make
// up the target by that mean, at most 10,000, and no job that was submitted more than
// a minute after its first one. It is submitted with its last job.
package pack
