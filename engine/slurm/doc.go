// Package slurm is the engine that runs tasks in jobs of Slurm, packed by package pack.
//
// Words:
//
//   - array: a job array, as which a wave is submitted. Its name is premix-TOKEN, its
//     indices are the places of the shares in the wave.
//   - listing: what squeue said about all jobs of this user that premix has submitted.
//   - allocation: what Slurm has given to the job that this process runs in.
//
// A job is known by its number and its name: a controller that was killed and comes back
// from an older state gives numbers again. It may also start a second copy of a job that
// still runs. The node then refuses it and is drained, and Slurm holds the job: such a
// job is stuck, see [pack.Status], and its share is given to another.
//
// A wave is one sbatch, whatever the number of its jobs. The script is one line: the
// same premix, at the same path on the nodes, works off its share. All jobs append what
// they print to one file.
//
// # One query for all
//
// squeue makes the controller lock its tables and send them, and a user with ten
// dispatchers, each of whom asks, is what drowns a controller. So all premix processes
// of a user on a machine share a listing: a file, and a lock that is held while it is
// made anew. It is asked for at most once in [DefaultInterval], for all jobs at once,
// arrays not expanded; an answer that did not come is kept there, too.
//
//	listing-HASH.json       [listing]; HASH stands for the cluster
//	listing-HASH.json.lock  held (flock) while squeue runs
//
// Jobs that have ended stay in a listing for as long as the controller knows them
// (MinJobAge). How one ended that is there no more is asked of sacct, once, where there
// is a slurmdbd. Without one it is not known, and nothing depends on it: what a job has
// done is in its journal.
//
// # A controller that does not answer
//
// Every command that fails is followed by a listing. If there is none, the controller
// does not answer, and what was asked may or may not have been done: the error is
// passing. If there is one, the listing says whether the jobs are there; if they are
// not, Slurm has refused them. No text of an error message is interpreted.
package slurm
