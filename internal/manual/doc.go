// Package manual writes the reference of the command line in the forms in which people read
// it: manual pages, pages of the documentation, and completions of shells. All of them are
// made from the commands themselves, so that they cannot differ from these.
//
// Write makes the whole of it in a directory:
//
//	man/man1/premix-VERB.1    a manual page for each command (man-pages(7), groff_man(7))
//	cli/premix-VERB.md        a page for each verb, with all of its commands
//	completions/bash/premix   and zsh/_premix, fish/premix.fish
//
// The text of a command is plain: paragraphs end at an empty line, and a line that begins
// with spaces is an example.
package manual
