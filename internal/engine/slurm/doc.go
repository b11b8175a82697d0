// Package slurm is the engine that runs tasks in jobs of Slurm, packed by package pilot.
//
// Words:
//
//   - array: a job array, as which a wave is submitted. Its name is premix-TOKEN, its
//     indices are the places of the shares in the wave.
//   - listing: the answer of squeue for all jobs of this user that premix has submitted.
//   - allocation: the resources that Slurm has given to the job that this process runs in.
//
// A job is identified by its number and its name: a controller that was killed and comes back
// from an older state reuses numbers. It may also start a second copy of a job that
// still runs. The node then refuses it and is drained, and Slurm holds the job: such a
// job is stuck, see [pack.Status], and its share is given to another.
//
// A wave is one sbatch, whatever the number of its jobs. The script is one line: the
// same premix, at the same path on the nodes, works off its share. All jobs append their
// output to one file.
//
// # One query for all
//
// All premix processes of a user on a machine share a listing, see package programs: Slurm is
// asked at most once in [DefaultInterval], for all jobs at once, with arrays not expanded.
//
// Jobs that have ended stay in a listing for as long as the controller knows them
// (MinJobAge). For a job that is no longer listed, sacct is asked once how it ended, if the
// cluster has a slurmdbd. Without one the end is unknown, and nothing depends on it: the
// results of a job are in its journal.
//
// # A controller that does not answer
//
// Every command that fails is followed by a listing. If the listing fails too, the controller
// does not answer, and the command may or may not have been executed: the error is
// temporary. Otherwise the listing shows whether the jobs exist; if they do
// not, Slurm has refused them. No text of an error message is interpreted.
package slurm
