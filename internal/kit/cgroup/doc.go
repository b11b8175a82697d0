// Package cgroup moves services out of the cgroups of tasks.
//
// When a task ends, premix kills all its processes. A task may be the first to need a
// service, such as the node, and start it. Other tasks use the service too, so it must not
// end with that task.
package cgroup
