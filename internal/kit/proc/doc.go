// Package proc reads what the kernel shows of processes and threads below /proc: their state,
// their start, their threads (proc_pid_stat(5)).
package proc
