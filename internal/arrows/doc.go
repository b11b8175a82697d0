// Package arrows holds the test that keeps premix's packages in layers.
//
// A room is a package of this module. An arrow is an import of one room by
// another. Arrows point downward only: the table in the test lists, for each
// room, the rooms and the other modules that it may import, and the test refuses
// all other imports. A new room or arrow is a new line of that table, which a
// reviewer sees.
//
// The test also checks two rules that the layers rely on: every room states its
// purpose in doc.go, and no room has an init function, so that the binary starts
// quickly however much it links. TestOneHome refuses a second copy of code that
// belongs to one package.
package arrows
