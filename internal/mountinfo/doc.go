// Package mountinfo reads what is mounted: /proc/self/mountinfo (proc_pid_mountinfo(5)). It
// asks no file system, so a dead server cannot delay it.
//
// github.com/moby/sys/mountinfo reads lines of at most 64 KiB, and overlays of many layers
// have longer ones.
package mountinfo
