package service

import (
	"path"
	"strings"

	"premix/internal/regex"
)

// makeblastdb and premix blast db add call a database after the file that it was made from,
// with its directories, where no title is given. What the server's directories are called
// does not concern those who search. Results are what BLAST+ prints, to the byte, and so
// formats with a title have all of it: premix blast db add --title gives another one.

// titleOf returns the title of a database for pages and JSON: without directories.
func titleOf(title string) string {
	if !strings.ContainsAny(title, " \t") || strings.HasPrefix(title, "/") && !strings.Contains(title, " /") {
		if base := path.Base(title); strings.Contains(title, "/") && base != "/" {
			return base
		}
		return title
	}
	return withoutDirectories(title)
}

var absolutePath = regex.Lazy(`(^|[\s"'(\[=])/(?:[^\s"')\]:]*/)*([^\s"')\]:/]+)`)

// withoutDirectories removes the directories from all absolute paths in a text.
func withoutDirectories(text string) string {
	return absolutePath().ReplaceAllString(text, "${1}${2}")
}
