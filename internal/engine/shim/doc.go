// Package shim puts programs with the names and options of Slurm's before the engine
// of this machine, or before a real Slurm, so that a workflow manager that knows Slurm
// runs on premix as it is.
//
// Words:
//
//   - client: a program named sbatch, squeue and so on; see [ClientNames]. It is a line of shell
//     that executes premix with [FrontArg].
//   - worker: the one premix that a client starts when none is running ([WorkerArg]). It
//     answers all clients, runs the jobs, and ends when it has been idle for a while.
//   - request: the message of a client to the worker: its arguments, environment, working
//     directory and script. The worker's answer is the output of the client, and its
//     exit code.
//   - job: one task of a task directory (package queue). The number of the task is the
//     id of the job. An array is a batch of tasks; its id is the id of its first job. Its
//     elements share a line of the queue and a note, and get a job in memory of their own
//     when they begin or are changed; see [queue.Array].
//   - note: the properties of a job that its task has no fields for: name, comment,
//     partition and so on; see [note]. It is kept with the task.
//   - blocked: a job that is held in the queue, since it waits for other jobs, for a
//     time, for its turn in an array, or for a release.
//   - step: one call of srun in a job: processes that belong together. The word also
//     means the part of a job's name, or of its comment, that the jobs of one rule or
//     process have in common: the group of the task, by which reports sum up.
//
// A shim directory is a task directory with
//
//	DIR/bin/...                    the clients
//	DIR/.premix/slurm/config.json  [Config]
//	DIR/.premix/slurm/lock         held (flock) by the worker as long as it lives
//	DIR/.premix/slurm/socket       where the worker answers
//	DIR/.premix/slurm/worker.log   messages of the worker
//	DIR/.premix/slurm/begun        jobs that have begun and are not to run twice, one a line
//	DIR/.premix/slurm/steps        steps that have ended, one JSON value a line
//	DIR/.premix/slurm/changes      properties of jobs that scontrol has changed, the same
//	DIR/.premix/slurm/step-N       the socket of the holder of job N
//	DIR/.premix/slurm/script-N     the script of job N, where it cannot be an argument
//
// Only its owner can read DIR/.premix, since tasks hold the environment of the user who
// submitted them.
//
// # Answers
//
// The worker has all jobs in memory, and reads the state of each from the index
// that the queue maps. No client reads or writes the queue. So a question costs a
// connection and the text of the answer, however many clients ask and however often; and
// only one process submits, so that it knows the numbers of jobs beforehand.
//
// A client whose connection breaks, because its worker was killed, starts another worker and
// sends the same request again. A submission carries the number of its request in its
// note, and the queue does not accept the same submission twice.
//
// # A worker that ends
//
// A worker is idle if no job runs or can start, and no client has asked for a while. It then
// removes its socket, answers the requests that had already arrived, and ends. A client that
// came too late finds no socket, or an end without an answer, and starts another worker.
//
// A worker that was killed takes its jobs with it. The next one runs them again, except
// jobs that were submitted with --no-requeue, which have failed (NODE_FAIL). The worker
// records within 50 ms which jobs have begun; a job that began within the last 50 ms runs
// again, even with --no-requeue.
//
// # Steps and allocations
//
// srun in a job asks the worker for the cores of its step, starts the tasks as its children,
// and reports their end. Outside of a job srun, like salloc, submits a job whose only process
// is a holder ([HolderArg]). The holder connects to srun, which then knows that the job runs,
// and takes steps at a socket of its own. A step comes with the descriptors of srun's
// standard streams, so its processes belong to the job and write where srun would. The job
// ends when the connection does.
//
// # Before a real Slurm
//
// The worker is then a dispatcher of package pilot that stays: it packs the submitted jobs
// into few jobs of Slurm, as the engine of package slurm does for any tasks. The options for
// Slurm of a job are kept with its task (queue.Spec.Ask), and only tasks with the same options
// share a job of Slurm. It has the GPUs and other resources of one of them, which they hold one
// after the other. Slurm decides whether it would accept a job with these options; it is
// asked once for all jobs that have the same ones. The programs of Slurm are called with the
// environment of the user who made the directory, in which the clients are not on PATH. This
// machine can neither see nor signal the processes on a node: a job counts as running when the
// job of Slurm that it was given to runs, and a worker that was killed takes no job with it.
//
// # Scripts
//
// The script of a job is kept in its task, as an argument: SHELL -c SCRIPT. A script gets a
// file only if its interpreter is not a shell, or if it is longer than an
// argument may be; the file is removed when the job has ended.
//
// Lock order: worker.mu before the locks of package queue.
package shim
