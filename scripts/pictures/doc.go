// Command pictures draws the pictures of docs/design.md: it makes NAME.svg from each
// NAME.txt in the directory docs/pictures. `go run ./scripts/pictures` draws them again,
// and the package's test fails where a picture is not up to date.
//
// A picture is as wide as a small screen, and has colours for light and dark pages. The
// first line of its text is the title. The other lines are of one of two forms.
//
// Layers, from top to bottom; an empty heading adds boxes to the row above:
//
//	HEADING: BOX | BOX | BOX
//
// Steps, between lanes:
//
//	lanes: LANE | LANE | LANE
//	LANE > LANE: the text over an arrow
//	LANE: the text of a step within one lane
package main
