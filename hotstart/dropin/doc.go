// Package dropin runs commands of pipelines in place, hot where a snapshot serves them.
//
// It joins package calls, which decides and keeps what is known of calls, and package
// inplace, which prepares and starts snapshots. Nothing here is in the way of a command
// that starts plainly: whatever goes wrong, the command is executed as it is.
package dropin
