// Package programs runs the programs of a batch system, and shares their answers.
//
// A query makes the controller of a batch system lock its tables and send them, and a user
// with ten dispatchers that all ask can overload a controller. So all premix processes of a
// user on a machine share an answer: a file, and a lock that is held while the file is
// renewed. A failed query is kept in the file, too.
//
//	NAME.json       [Answer]
//	NAME.json.lock  held (flock) while the program runs
package programs
