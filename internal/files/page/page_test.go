package page

import (
	"strings"
	"testing"
	"time"

	"premix/internal/files"
)

// The page has the numbers, escapes its input, and requests no external resources.
func TestWrite(t *testing.T) {
	u := &files.Usage{Table: "scan.parquet", Roots: []string{"/data/<b>run"}, Started: time.Unix(1e9, 0), Files: files.Amount{Count: 1000, Bytes: 4096, Zero: 430},
		Deciles:     []files.Decile{{Percent: 100, Size: 2048, Bytes: 4096}},
		Sizes:       []files.Class{{Name: "0", Amount: files.Amount{Count: 430}}, {Name: "1-10 B"}},
		Suffixes:    []files.Class{{Name: `.<script>`, Amount: files.Amount{Count: 1, Bytes: 1}}},
		Owners:      []files.Owner{{Name: "anna", Amount: files.Amount{Count: 570, Bytes: 4096}}},
		Directories: files.Directories{Count: 9, One: 3, Classes: []files.DirectoryClass{{Name: "1", Count: 3, Entries: 3}}, Largest: []files.Directory{{Path: "/data/<i>", Entries: 7}}}}
	var b strings.Builder
	if err := Write(&b, u); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{"Deciles of size", "43.0 %", "anna", "33.3 %", "/data/&lt;b&gt;run", "&lt;script&gt;", "Largest directories", "1,000"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
	for _, not := range []string{"<script", "<b>run", "<i>", "http://", "https://", "url(", "1-10 B", "ZgotmplZ"} {
		if strings.Contains(page, not) {
			t.Errorf("%q is in the page", not)
		}
	}
}

// An empty scan also has a page.
func TestEmpty(t *testing.T) {
	var b strings.Builder
	if err := Write(&b, &files.Usage{Roots: []string{"/none"}}); err != nil {
		t.Fatal(err)
	}
}
