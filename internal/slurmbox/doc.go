// Package slurmbox starts a private Slurm on this machine, for tests and benchmarks: a
// controller, several node daemons, munge with a key and a socket of its own, and, if
// asked for, MariaDB and slurmdbd. All of it lives in one directory, listens on
// loopback on free ports, touches no service of the system, and ends with the process
// that started it.
//
// Words:
//
//   - box: one such Slurm.
//   - daemon: one of its processes: munged, mariadbd, slurmdbd, slurmctld, and a slurmd
//     for each node, which has the node's name, n1 and on.
//
// The nodes have as many CPUs as they are told to, whatever the machine has. Programs
// of Slurm find the box by SLURM_CONF, which [Box.Env] has.
package slurmbox
