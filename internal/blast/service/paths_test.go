package service_test

import (
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"premix/internal/blast/database"
	"premix/internal/blast/service"
)

// Users get no paths of the server: not in the list of databases, not in results of any format, and
// not in errors. The only exception is a title that BLAST+ prints.
func TestNoServerPaths(t *testing.T) {
	w := newWorld(t, &service.Programs{Threads: 1}, nil)
	// All directories of this test are below the first component of its own directory.
	root := filepath.Dir(filepath.Dir(t.TempDir()))
	clean := func(what, text string) {
		t.Helper()
		for _, secret := range []string{root, filepath.Base(filepath.Dir(t.TempDir()))} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s has a path of the server: ...%s", what, text[max(0, i-60):min(len(text), i+160)])
			}
		}
	}
	d, err := database.Open(w.options.Home, "dna")
	if err != nil {
		t.Fatal(err)
	}
	title := d.Title
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(title, root) {
		t.Fatalf("the title %q has no path that could be seen", title)
	}
	_, list, _ := w.ask("GET", "/api/v1/databases", nil)
	clean("the list of databases", list)
	if !strings.Contains(list, `"title":"dna.fa"`) {
		t.Errorf("the list of databases: %s", list)
	}
	for _, f := range []string{"xml", "xml2_s", "text", "html", "tabular", "table", "csv", "json", "sam", "archive"} {
		status, text, _ := w.ask("POST", "/api/v1/searches", map[string]any{"program": "blastn", "database": "dna", "query": ">q\n" + w.genes[3], "format": f})
		if status != http.StatusAccepted {
			t.Fatalf("%s: %d %s", f, status, text)
		}
		id := strings.Split(strings.SplitN(text, `"id":"`, 2)[1], `"`)[0]
		got := ""
		for status = http.StatusAccepted; status == http.StatusAccepted; {
			status, got, _ = w.ask("GET", "/api/v1/searches/"+id+"/result?wait=20&format="+url.QueryEscape(f), nil)
		}
		if status != http.StatusOK || len(got) == 0 {
			t.Fatalf("%s: %d %s", f, status, got)
		}
		clean("a result in the format "+f, strings.ReplaceAll(got, title, "TITLE"))
	}
	status, text, _ := w.ask("POST", "/api/v1/searches", map[string]any{"program": "blastn", "database": "none", "query": ">q\n" + w.genes[3]})
	clean("an error", text)
	if status != http.StatusNotFound {
		t.Errorf("a database that is not there: %d %s", status, text)
	}
}
