// Package spare returns the memory that this process may still use: of the machine, and
// within the limits of its cgroups.
package spare
