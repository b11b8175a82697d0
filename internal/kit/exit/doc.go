// Package exit defines the exit codes of premix, and finds the code of an error.
//
// An error type states its code by a method ExitCode. Without that method it is a
// failure of premix itself. Errors on which no caller decides are made by [Errorf]. docs/exit-codes.md describes the codes for users.
package exit
