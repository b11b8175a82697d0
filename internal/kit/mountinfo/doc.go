// Package mountinfo reads the table of mounts, /proc/self/mountinfo
// (proc_pid_mountinfo(5)). It accesses no mounted file system, so a dead server cannot
// delay it.
//
// github.com/moby/sys/mountinfo reads lines of at most 64 KiB, and overlays of many layers
// have longer ones.
package mountinfo
