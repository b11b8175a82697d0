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
// # The profile in blocks
//
// A counted pool's profile is a list of blocks of at most 64 steps. A block has the least
// and the greatest number of free units in it, and a number that is to be added to all of
// its values. Taking room changes the values of at most two blocks one by one, and the
// others by their number; a search for room looks into a block only if its bounds do not
// answer. With some thousand steps this is less work than a tree: it touches little memory,
// in order. The list depends on the order of the changes, and the values do not.
package freecapacity
