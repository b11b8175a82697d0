package htmlpage

import (
	"regexp"
	"strings"
	"testing"
)

// TestNew checks that a page is complete, and that its title is escaped.
func TestNew(t *testing.T) {
	p, err := New(`{{head .Title}}<p>{{twice .Text}}</p></body></html>`, ".own { color: var(--text); }\n",
		map[string]any{"twice": func(s string) string { return s + s }})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := p.Execute(&b, map[string]string{"Title": "</title><script>", "Text": "<b>"}); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	if !strings.HasPrefix(got, "<!doctype html>\n") || strings.Contains(got, "<script>") || strings.Contains(got, "<b>") {
		t.Errorf("got %s", got)
	}
	for _, want := range []string{"<title>&lt;/title&gt;&lt;script&gt;</title>", ".own { color: var(--text); }", "<p>&lt;b&gt;&lt;b&gt;</p>", "--ground:", "@media print", "max-width: 600px"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in the page", want)
		}
	}
}

// TestColours checks that the light, dark and paper schemes define the same colours, and that the
// base style uses only these.
func TestColours(t *testing.T) {
	name := regexp.MustCompile(`--[a-z]+`)
	var sets [3]map[string]bool
	parts := strings.Split(Colours, "@media")
	if len(parts) != len(sets) {
		t.Fatalf("%d schemes", len(parts))
	}
	for i, p := range parts {
		sets[i] = make(map[string]bool)
		for _, n := range name.FindAllString(p, -1) {
			sets[i][n] = true
		}
		for n := range sets[0] {
			if !sets[i][n] {
				t.Errorf("scheme %d has no %s", i, n)
			}
		}
		if len(sets[i]) != len(sets[0]) {
			t.Errorf("scheme %d has %d colours, the first has %d", i, len(sets[i]), len(sets[0]))
		}
	}
	for _, n := range name.FindAllString(base, -1) {
		if !sets[0][n] {
			t.Errorf("the base style uses %s, which no scheme defines", n)
		}
	}
}
