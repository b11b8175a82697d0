// Package figures is what the programs under bench have in common: how a figure
// is written down and how it is printed.
//
// A figure is one number with a name and a unit, compared with a peer where it
// has one. Figures are written as JSON Lines, one object a figure:
//
//	{"name":"bwa-yeast/whole/hot","value":0.09,"unit":"s","peer":"cold","ratio":2.9}
//
// ratio says how many times better than the peer the figure is: above 1 is
// better, whatever the unit.
package figures
