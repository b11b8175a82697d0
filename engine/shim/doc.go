// Package shim puts programs with the names and options of Slurm's before the engine
// of this machine, or before a real Slurm, so that a workflow manager that knows Slurm
// runs on premix as it is.
//
// Words:
//
//   - front: a program named sbatch, squeue, scancel, sacct, scontrol, sinfo or srun.
//     It is a line of shell that executes premix with [FrontArg].
//   - worker: the one premix that a front starts when there is none ([WorkerArg]). It
//     answers all fronts, runs the jobs, and ends when it has been idle for a while.
//   - request: what a front sends to the worker: its arguments, environment, working
//     directory and script. The worker's answer is what the front prints, and its
//     exit code.
//   - job: one task of a task directory (package queue). The number of the task is the
//     id of the job. An array is a batch of tasks; its id is that of its first one.
//   - note: what is known of a job beyond its task: name, comment, partition and so
//     on; see [note]. It is kept with the task.
//   - blocked: a job that is held in the queue, since it waits for other jobs, for a
//     time, for its turn in an array, or for a release.
//   - step: the part of a job's name, or of its comment, that the jobs of one rule or
//     process have in common. It is the group of the task, by which reports sum up.
//
// A shim directory is a task directory with
//
//	DIR/bin/...                    the fronts
//	DIR/.premix/slurm/config.json  [Config]
//	DIR/.premix/slurm/lock         held (flock) by the worker as long as it lives
//	DIR/.premix/slurm/socket       where the worker answers
//	DIR/.premix/slurm/worker.log   what the worker has to say
//	DIR/.premix/slurm/begun        jobs that have begun and are not to run twice, one a line
//	DIR/.premix/slurm/script-N     the script of job N, where it cannot be an argument
//
// DIR/.premix is readable by its owner alone, since tasks hold the environment of who
// submitted them.
//
// # Answers
//
// The worker has all jobs in memory, and the state of each is a look into the index
// that the queue maps. No front reads or writes the queue. So a question costs a
// connection and the text of the answer, whoever asks and however often; and there is
// one process that submits, in which numbers of jobs are known beforehand.
//
// A front that is cut off, because its worker was killed, starts another worker and
// sends the same request again. A submission carries the number of its request in its
// note, and the queue does not take the same submission twice.
//
// # A worker that ends
//
// It is idle if no job runs or can start, and nobody has asked for a while. It then
// removes its socket, answers what had come before, and ends. A front that came too
// late finds no socket, or an end without an answer, and starts another worker.
//
// A worker that was killed takes its jobs with it. The next one runs them again, but
// for those that were submitted with --no-requeue: they have failed (NODE_FAIL). What
// had begun is noted every 50 ms; a job that began within the last of them runs again,
// whatever was asked for.
//
// # Before a real Slurm
//
// The worker is then a dispatcher of package pack that stays: it packs what is submitted
// into few jobs of Slurm, as the engine of package slurm does for any tasks. What a job
// asks for of a cluster goes with its task (queue.Spec.Ask), and only tasks that ask for
// the same share a job of Slurm. It is Slurm that says whether it would take one, once
// for all that ask for the same. The programs of Slurm are called with the environment of
// who made the directory, in which the fronts are not on PATH. What runs on a node is not
// this machine's to look at or to signal: a job counts as running when the job of Slurm
// does that it was given to, and a worker that was killed has taken nothing with it.
//
// # Scripts
//
// The script of a job is kept in its task, as an argument: SHELL -c SCRIPT. A file a
// script is only made where its interpreter is no shell or it is longer than an
// argument may be; it is removed when the job has ended.
//
// Lock order: worker.mu before the locks of package queue.
package shim
