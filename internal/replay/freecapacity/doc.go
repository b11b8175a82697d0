// Package freecapacity stores the free capacity of a pool of nodes, now and later.
//
// Words:
//
//   - room is capacity that jobs use for a time, from one moment until, but not including,
//     another.
//   - A pool is counted if its units are equal and it does not matter which of them a
//     job gets: cores of a big machine, or whole nodes of one kind. Otherwise it is placed:
//     a job gets cores, and memory, of nodes that have names.
//   - The profile is the number of free units at each moment from now on.
//
// A [Room] holds running jobs until their expected end, reservations, and planned downtime,
// all in the same way. So "may this job start now?" and "when can it start?" are the same
// question whatever the obstacle, and a policy that has put a reservation into the room
// cannot delay it by mistake.
//
// # The profile as a tree
//
// A counted pool's profile is a treap of its steps: each node holds by how much the number
// of free units changes at one moment, with the sum and the extreme prefix sums of its
// subtree. Taking room is two changes, the least that is free in an interval is one
// descent, and the earliest gap for a job is one descent for each gap that is too short:
// all in O(log n) of n steps. Priorities of the treap are a hash of the moment, so that
// equal histories give equal trees.
package freecapacity
