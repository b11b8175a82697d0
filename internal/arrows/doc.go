// Package arrows holds the test that keeps premix's packages in layers.
//
// A room is a package of this module. An arrow is an import of one room by
// another. Arrows point downward only: the table in the test names, for each
// room, the rooms and the other modules that it may import, and everything that
// is not named is refused. A new room, or a new arrow, is a line of that table
// and therefore a decision that somebody sees.
//
// The test also holds two habits that the layers rely on: every room says in
// doc.go what it is for before any code, and nothing runs in an init function,
// so that the binary starts at once whatever it links. TestOneHome refuses code of
// which one package has the only copy.
package arrows
