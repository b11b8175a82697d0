// Package slurmtest starts a private Slurm on this machine, for tests and benchmarks: a
// controller, several node daemons, munge with a key and a socket of its own, and, if
// asked for, MariaDB and slurmdbd. They keep their files in one directory, listen on free
// loopback ports, use no service of the system, and end with the process that started
// them.
//
// Words:
//
//   - box: the private Slurm.
//   - daemon: one of its processes: munged, mariadbd, slurmdbd, slurmctld, and a slurmd
//     for each node, which has the name of the node: n1, n2 and so on.
//
// The configuration sets the number of CPUs of a node; it may be larger than the number
// of the machine. Programs of Slurm find the box by SLURM_CONF, which [Box.Env] sets.
package slurmtest
