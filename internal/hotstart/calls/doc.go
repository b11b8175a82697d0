// Package calls decides whether a command of a pipeline starts cold or hot, and keeps
// records of these commands. It is part of a program that replaces a tool on PATH, so it
// imports few packages, and a decision takes a fraction of a millisecond.
//
// Words used here:
//
//   - A Call is one command as its caller would execute it. Its late words and late
//     variables change from call to call (package inplace).
//   - A form is a group of calls that one snapshot could serve. They have the same program,
//     the same words of the command, and late words of the same shapes.
//   - A pattern is a group of calls of a program that the catalogue (package tools) does
//     not describe. They have the same number of words and the same options.
//   - A shim is a symbolic link with a tool's name to the program premix-shim.
//
// # Which calls start hot
//
// The first call of a form starts cold. Its record has the words, and the names of the
// variables with keyed hashes of their values. During the second call, a separate process
// prepares a snapshot. Later calls start hot.
//
// If the catalogue does not describe the program, the calls of a pattern are compared. A
// word that differs is late if it names a file, or if it names the sample as the inputs do
// (pattern). Any other word belongs to the command: with another value the program may
// behave differently before its input, and two preparations with random words do not show
// this. The same is true of the variables of all programs (envSeen). The snapshot is
// prepared during the third call.
//
// A preparation runs at the lowest priority, in its own session. Each user has at most one
// preparation at a time on a machine. A preparation may be killed at the end of a container
// or a batch job that ran only this one call. In that case a later call prepares first, waits
// for it, and starts hot. If a preparation of a form failed, it is tried again, after
// increasing times and at most maxTries times. A form that cannot start hot is tried again
// after a week, or when the program has changed.
//
// # Which calls wait
//
// A call whose snapshot is being prepared for another call may wait for it. It waits while the
// rest of the preparation is expected to be shorter than the load that a hot start saves, or
// while other processes use all processors (Progress). It starts plainly after longestWait
// loads, if the preparation gets no processor (pace), or if the preparation ends without a
// snapshot. A signal ends a call that waits, as it ends a tool that loads.
//
// # State
//
// The state is in a directory of the user, $PREMIX_HOME/calls or premix/calls in the
// cache directory, with mode 0700:
//
//	forms           the lock (flock) of changes of forms and patterns, which is best effort
//	forms/KEY       a form, JSON
//	patterns/KEY    a pattern, JSON
//	scripts/KEY     the form of the program that calls of a script execute, and that starts cold, JSON
//	starts.jsonl    one Start per line; starts.1.jsonl has the earlier lines
//	preparing       the lock (flock) of the process that prepares
//	progress.json   the Progress of that process
//
// A file is always replaced as a whole. Files are not synced to the disk (package beneath,
// Volatile): later calls learn again whatever a crash of the machine loses. There are at
// most maxForms files in each of these directories; the oldest are removed. The two files of
// starts have at most maxStarts bytes each.
package calls
