// Package dropin runs commands of pipelines in place, hot if a snapshot serves them.
//
// It connects package calls, which decides about calls and keeps records of them, with
// package inplace, which prepares and starts snapshots. No failure here stops a command:
// if a hot start fails, the command is executed unchanged.
package dropin
