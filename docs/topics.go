package docs

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

//go:embed *.md how-to/*.md tutorials/*.md
var pages embed.FS

// Topic is a page of the documentation.
type Topic struct {
	Name  string `json:"name"`  // as `premix help NAME` takes it
	Title string `json:"title"` // the page's heading
}

// Topics returns all pages, in the order of their names.
func Topics() []Topic {
	var list []Topic
	each(func(name string, text []byte) {
		title, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		list = append(list, Topic{name, title})
	})
	slices.SortFunc(list, func(a, b Topic) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Page returns the text of a page, in Markdown, and whether there is one of that name.
func Page(topic string) (text string, ok bool) {
	each(func(name string, content []byte) {
		if name == topic {
			text, ok = string(content), true
		}
	})
	return text, ok
}

func each(f func(name string, text []byte)) {
	err := fs.WalkDir(pages, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := pages.ReadFile(p)
		f(strings.TrimSuffix(path.Base(p), ".md"), text)
		return err
	})
	if err != nil {
		panic(fmt.Sprintf("docs: the embedded pages cannot be read: %v", err)) // they are part of the program
	}
}
