package service

import (
	"path"
	"strings"

	"premix/internal/kit/regex"
)

// If no title is given, makeblastdb and premix blast db add use the path of the source file
// as the title. The names of the server's directories do not concern its users. Results
// must equal the output of BLAST+ to the byte, and so formats with a title show all of it:
// premix blast db add --title sets another one.

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
