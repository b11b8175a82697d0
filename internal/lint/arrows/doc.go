// Package arrows holds the test that keeps premix's packages in layers.
//
// An arrow is an import of one package of this module by another. Arrows point downward
// only: the table in the test lists, for each package, the packages and the other modules
// that it may import, and the test refuses all other imports. A new package or arrow is a
// new line of that table, which a reviewer sees.
//
// The test also checks two rules that the layers rely on: every package states its purpose
// in doc.go, and no package has an init function, so that the binary starts quickly however
// much it links. TestOneHome refuses a second copy of code that belongs to one package.
// TestNames refuses two packages of one name.
package arrows
