// Package cgroup moves services out of the cgroups of tasks.
//
// A task of premix ends with all its processes. A service that premix starts when it first
// needs one, such as the node, serves others too: it must not end with the task that came
// first.
package cgroup
