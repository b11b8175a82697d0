// Package part is the search of databases in fragments: fragments are held in memory, a process
// searches a part of them with the statistics of the whole, and the results of all parts are
// merged. It knows no program that searches.
//
// Words:
//
//   - part: neighbouring fragments that are searched by one order.
//   - program: BLAST+ (package search) or DIAMOND (package diamond), see [Program].
//   - order: a description of a search, which other machines carry out, see [Order].
//
// A program decides about the form of its results, and merges them. How an order reaches other
// machines is a [Remote]: package cluster sends it to the nodes that hold the fragments, and
// [InDirectory] writes it into a directory that the tasks of a batch system see.
package part
