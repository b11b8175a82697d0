// Package late makes the values of late words for preparations, and puts late words into
// text. A late word is a part of a command that changes from one start to the next, and
// that a start writes into the memory of a frozen tool.
package late
