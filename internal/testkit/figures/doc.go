// Package figures writes and prints the figures of the programs under bench.
//
// A figure is one number with a name and a unit. It may be compared with the number
// of a peer. Figures are written as JSON Lines, one object for each:
//
//	{"name":"bwa-yeast/whole/hot","value":0.09,"unit":"s","peer":"cold","ratio":2.9}
//
// ratio is the factor by which the figure is better than the peer: above 1 is better,
// whatever the unit.
package figures
