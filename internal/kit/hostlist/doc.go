// Package hostlist parses ranges of numbers, and expands lists of hosts in the form of Slurm, as in n1,m[01-03,7]-ib: names,
// separated by commas or spaces, with ranges of numbers in brackets. A number has at least as
// many digits as the first one of its range
// (https://slurm.schedmd.com/scontrol.html, show hostnames).
package hostlist
