// Package spare finds out how much memory this process may still take: of the machine,
// and of the limits of its cgroups.
package spare
