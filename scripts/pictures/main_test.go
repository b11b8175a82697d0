package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUpToDate fails if a picture is not the drawing of its text, or if the page does not
// show it.
func TestUpToDate(t *testing.T) {
	page, err := os.ReadFile("../../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	texts, err := filepath.Glob("../../docs/pictures/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	pictures, err := filepath.Glob("../../docs/pictures/*.svg")
	if err != nil {
		t.Fatal(err)
	}
	if len(texts) == 0 || len(texts) != len(pictures) {
		t.Errorf("%d texts, %d pictures", len(texts), len(pictures))
	}
	for _, name := range texts {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := draw(string(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		svg := strings.TrimSuffix(name, ".txt") + ".svg"
		if got, err := os.ReadFile(svg); err != nil || string(got) != want {
			t.Errorf("%s is not up to date (%v): go run ./scripts/pictures", svg, err)
		}
		if !strings.Contains(string(page), "](pictures/"+filepath.Base(svg)+")") {
			t.Errorf("docs/design.md does not show %s", filepath.Base(svg))
		}
		for d := xml.NewDecoder(strings.NewReader(want)); ; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", svg, err)
			}
		}
	}
}

// TestMistakes draws a text with each kind of mistake.
func TestMistakes(t *testing.T) {
	for _, text := range []string{
		"Title\nno form",
		"Title\nhead: a | " + strings.Repeat("x", 80),
		"Title\nhead: a | ",
		"Title\nlanes: a | b\na > c: there is no c",
		"Title\nlanes: a | b\na > a: an arrow to itself",
		"Title\nlanes: a | b\na > b > a: three lanes",
		"Title\nlanes: a | b\na > b:",
	} {
		if svg, err := draw(text); err == nil {
			t.Errorf("draw(%q) = %.60q", text, svg)
		}
	}
}
