package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`^#{1,6} (.*)$`)
	given   = regexp.MustCompile(`<a id="([^"]+)">`)
	fence   = regexp.MustCompile("^ *```")
	noWord  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	// mark matches signs of Markdown in a heading, and the address of a link in it.
	mark = regexp.MustCompile("`|\\*|\\]\\([^)]*\\)|\\[")
)

// pagesOf returns all Markdown files of the repository that people read, by their paths
// from its top.
func pagesOf(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch base := d.Name(); {
		case d.IsDir() && path != ".." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin" || base == "site" || base == "release" || base == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(base) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel("..", path)
		all[name] = string(text)
		return err
	})
	if err != nil || len(all) < 40 {
		t.Fatalf("%d pages, %v", len(all), err)
	}
	return all
}

// prose returns the lines of a page that are not in blocks of code.
func prose(text string) []string {
	var lines []string
	within := false
	for line := range strings.Lines(text) {
		if fence.MatchString(line) {
			within = !within
		} else if !within {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return lines
}

// anchors returns the anchors of a page's headings, as forges and mkdocs make them.
func anchors(text string) map[string]bool {
	list := map[string]bool{}
	for _, line := range prose(text) {
		for _, m := range given.FindAllStringSubmatch(line, -1) {
			list[m[1]] = true
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			plain := noWord.ReplaceAllString(mark.ReplaceAllString(strings.ToLower(m[1]), ""), "")
			list[strings.ReplaceAll(strings.TrimSpace(plain), " ", "-")] = true
		}
	}
	return list
}

// TestLinks follows each link to a file of the repository, and to a heading in it.
func TestLinks(t *testing.T) {
	pages := pagesOf(t)
	checked := 0
	for name, text := range pages {
		for _, line := range prose(text) {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				target, anchor, _ := strings.Cut(m[1], "#")
				if strings.Contains(target, ":") {
					continue // a link to another site
				}
				checked++
				to := name
				if target != "" {
					to = filepath.Join(filepath.Dir(name), target)
				}
				if _, err := os.Stat(filepath.Join("..", to)); err != nil {
					t.Errorf("%s: %s leads nowhere", name, m[1])
					continue
				}
				if page, ok := pages[to]; anchor != "" && ok && !anchors(page)[anchor] {
					t.Errorf("%s: %s has no heading #%s", name, to, anchor)
				}
			}
		}
	}
	if checked < 300 {
		t.Errorf("only %d links were checked", checked)
	}
}

// TestEveryPageHasItsPlace compares the pages of docs with index.md and with the site.
func TestEveryPageHasItsPlace(t *testing.T) {
	index, err := os.ReadFile("index.md")
	if err != nil {
		t.Fatal(err)
	}
	var site struct{ Nav yaml.Node }
	text, err := os.ReadFile("../mkdocs.yml")
	if err == nil {
		err = yaml.Unmarshal(text, &site)
	}
	if err != nil {
		t.Fatal(err)
	}
	inSite := map[string]bool{}
	var visit func(n *yaml.Node)
	visit = func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode && strings.HasSuffix(n.Value, ".md") {
			inSite[n.Value] = true
		}
		for _, c := range n.Content {
			visit(c)
		}
	}
	visit(&site.Nav)
	for name := range pagesOf(t) {
		page, ok := strings.CutPrefix(name, "docs/")
		if !ok {
			continue
		}
		if page != "index.md" && !strings.Contains(string(index), "]("+page+")") {
			t.Errorf("docs/index.md has no link to %s", page)
		}
		if !inSite[page] {
			t.Errorf("mkdocs.yml does not have %s", page)
		}
		delete(inSite, page)
	}
	for page := range inSite {
		t.Errorf("mkdocs.yml has %s, which does not exist", page)
	}
}
