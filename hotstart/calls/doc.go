// Package calls decides whether a command of a pipeline starts plainly or hot, and keeps
// what is known of such commands. It is part of a program that stands in a tool's place
// on PATH, so it imports little, and its decisions cost a fraction of a millisecond.
//
// Words used here:
//
//   - A Call is one command as its caller would execute it. Its late words and late
//     variables change from call to call (package inplace).
//   - A form is what calls have in common that one snapshot could serve: the program, the
//     words of the command, and the shapes of its late words.
//   - A pattern is what calls of a program have in common that the catalogue (package
//     tools) does not describe: the number of words, and the options.
//   - A shim is a symbolic link with a tool's name to the program premix-shim.
//
// # How a command comes to start hot
//
// The first call of a form starts plainly and is noted: its words, and the names of its
// variables with keyed hashes of their values. Beside the second one, a process of its
// own prepares a snapshot. Later calls start hot.
//
// Of a program that the catalogue does not describe, the calls of a pattern are compared.
// A word that differs is late where it names a file, or names the sample as the inputs do
// (pattern). Any other word belongs to the command: with another value the program may do
// another thing before its input, which two preparations with random words do not show.
// The same holds for variables of all programs (envSeen). The snapshot is prepared beside
// the third call.
//
// A preparation runs at the lowest priority, in a session of its own. There is one at a
// time for a user on a machine; a call that finds another one at work does not wait. One
// that was killed, as at the end of a container or a batch job that had the call alone, is
// made up for before a call, which then waits and starts hot. A
// form whose preparation failed is tried again, each time after a longer while, and
// maxTries times at most. A form that cannot start hot is tried again after a week, or
// when the program has changed.
//
// # State
//
// The state is in a directory of the user, $PREMIX_HOME/calls or premix/calls in the
// cache directory, with mode 0700:
//
//	forms/KEY       a form, JSON
//	patterns/KEY    a pattern, JSON
//	starts.jsonl    a Start a line; starts.1.jsonl has the lines before
//	preparing       the lock (flock) of the process that prepares
//
// Every file is replaced whole. None is on the disk for certain (package beneath,
// Volatile): what a crash of the machine loses is learned again. There are at most
// maxForms forms and patterns, of which the oldest go, and two files of starts of
// maxStarts bytes.
package calls
