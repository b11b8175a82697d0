package policy

import (
	"bufio"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"premix/internal/files"
)

// TestReadCandidates reads files that DuckDB wrote: see testdata/candidates.sql.
func TestReadCandidates(t *testing.T) {
	c, err := ReadCandidates("testdata/candidates.parquet")
	if err != nil {
		t.Fatal(err)
	}
	paths := slices.Sorted(maps.Keys(c.index))
	if want := []string{"/data/a/b", "/data/a/one.bam", "/data/a/zwei'ü.bam"}; !slices.Equal(paths, want) {
		t.Fatalf("paths %q, want %q", paths, want)
	}
	facts := make(map[string][]int64)
	for _, f := range c.facts {
		for _, p := range paths {
			facts[factName(f.column)] = append(facts[factName(f.column)], f.values[c.index[p]])
		}
	}
	if len(facts) != 2 || !slices.Equal(facts["size"], []int64{-1, 100, 0}) || !slices.Equal(facts["modified"], []int64{1700000000000000003, 1700000000000000001, 1700000000000000002}) {
		t.Errorf("facts %v", facts)
	}
	if c, err = ReadCandidates("testdata/paths.parquet"); err != nil || c.Len() != 2 || len(c.facts) != 0 {
		t.Errorf("%d candidates, %v", c.Len(), err)
	}
	whole, err := os.ReadFile("testdata/candidates.parquet")
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut.parquet")
	if err := os.WriteFile(cut, append(whole[:40:40], whole[60:]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadCandidates(cut); err == nil {
		t.Error("a damaged file is read")
	}
	for name, want := range map[string]string{
		"null.parquet":     `row 1: "" is not an absolute path`,
		"relative.parquet": `row 1: "data/a" is not an absolute path`,
		"double.parquet":   "the column size is DOUBLE",
		"twice.parquet":    `row 2: "/data/a" stands there twice, with different values of size`,
		"dir.parquet":      "it has no column path, and not both dir and name",
		"candidates.sql":   "it is not a Parquet file",
		"missing":          "no such file",
	} {
		if _, err := ReadCandidates(filepath.Join("testdata", name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// chosen writes a file of candidates.
func chosen[T any](t *testing.T, rows ...T) *Candidates {
	t.Helper()
	path := filepath.Join(t.TempDir(), "candidates.parquet")
	if err := parquet.WriteFile(path, rows); err != nil {
		t.Fatal(err)
	}
	c, err := ReadCandidates(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCandidates deletes the candidates that are as they were scanned: a and b, of which b
// changes before. c differs from the scan, d is none, e is not in the scan, and f belongs to
// an earlier rule.
func TestCandidates(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, []file{{"a", 1, 1}, {"b", 1, 1}, {"c", 1, 1}, {"d", 1, 1}, {"f", 1, 1}})
	table := scanned(t, dir)
	type row struct {
		Path string `parquet:"path"`
		Size int64  `parquet:"size"`
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	c := chosen(t, row{at("a"), 1}, row{at("b"), 1}, row{at("c"), 2}, row{at("e"), 1}, row{at("f"), 1})
	r, err := Parse("rules.sql", "RULE 'keep' EXCLUDE WHERE name = 'f'; RULE 'all' DELETE WHERE TRUE;", nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Plan(context.Background(), table, Options{Now: now, Samples: 10, Candidates: c})
	if err != nil {
		t.Fatal(err)
	}
	taken := strings.Fields(names(p.Rules[1], dir))
	slices.Sort(taken)
	if got := strings.Join(taken, " "); got != "a b" || p.Rules[0].Matched.Count != 1 {
		t.Errorf("takes %s, keeps %d", got, p.Rules[0].Matched.Count)
	}
	// The directory, c and d belong to no rule.
	if p.Unmatched != 3 || *p.Candidates != (CandidatesPlan{c.Path, 5, 1, 1}) {
		t.Errorf("unmatched %d, candidates %+v", p.Unmatched, p.Candidates)
	}
	if err := os.WriteFile(at("b"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	journal := filepath.Join(t.TempDir(), "j")
	rep, err := r.Apply(context.Background(), table, ApplyOptions{Options: Options{Now: now, Candidates: c}, Journal: journal})
	if err != nil || rep.Done != 1 || rep.Skipped != 1 || rep.Failed != 0 {
		t.Fatalf("%+v, %v", rep, err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 4 || left[0].Name() != "b" {
		t.Errorf("left %v, %v", left, err)
	}
	// The journal belongs to these candidates.
	for _, other := range []*Candidates{nil, chosen(t, row{at("d"), 1})} {
		if _, err := r.Apply(context.Background(), table, ApplyOptions{Options: Options{Candidates: other}, Journal: journal}); err == nil || !strings.Contains(err.Error(), "other candidates") {
			t.Errorf("continued with other candidates: %v", err)
		}
	}
}

// TestList writes the entries of a rule with LIST, the heaviest first, and leaves them alone.
func TestList(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, []file{{"a/small", 1, 1}, {"a/big", 100, 1}, {"a/linked", 50, 1}, {"a/go.tmp", 5, 1}})
	if err := os.Link(filepath.Join(dir, "a/linked"), filepath.Join(dir, "outside")); err != nil {
		t.Fatal(err)
	}
	table := scanned(t, filepath.Join(dir, "a"))
	r, err := Parse("rules.sql", "RULE 'tmp' DELETE WHERE name LIKE '%.tmp'; RULE 'big' LIST WEIGHT size WHERE type = 'f' AND size > 10;", nil)
	if err != nil {
		t.Fatal(err)
	}
	journal := filepath.Join(t.TempDir(), "j")
	rep, err := r.Apply(context.Background(), table, ApplyOptions{Options: Options{Now: now}, Journal: journal})
	if err != nil || rep.Actions != 1 || rep.Done != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	f, err := os.Open(filepath.Join(journal, listFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []string
	for s := bufio.NewScanner(f); s.Scan(); {
		var a Action
		if err := json.Unmarshal(s.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		list = append(list, a.Rule+" "+string(a.Verb)+" "+filepath.Base(string(a.Path)))
	}
	if want := []string{"big list big", "big list linked"}; !slices.Equal(list, want) {
		t.Errorf("list %q, want %q", list, want)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "a")); len(left) != 3 {
		t.Errorf("left %v", left)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, []file{{"a/one.bam", 100, 10}, {"a/two.bam", 2000, 200}, {"b/three.bam", 3000, 400}, {"b/four", 1, 0}})
	table := scanned(t, dir)
	find := func(condition, by string, most int) string {
		r, err := ParseFind("--where", condition, by)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		if err := r.Find(context.Background(), table, Options{Now: now}, most, func(e *files.Entry) error {
			list = append(list, e.Name)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if by == "" {
			slices.Sort(list)
		}
		return strings.Join(list, " ")
	}
	for _, test := range []struct {
		condition, by string
		most          int
		want          string
	}{
		{"", "", 0, ". a b four one.bam three.bam two.bam"},
		{"name GLOB '*.bam'", "size", 0, "three.bam two.bam one.bam"},
		{"name GLOB '*.bam'", "-size", 2, "one.bam two.bam"},
		{"type = 'f' AND modified > now() - 20 days", "", 0, "four one.bam"},
		{"size > 5 GB", "", 0, ""},
	} {
		if got := find(test.condition, test.by, test.most); got != test.want {
			t.Errorf("%q by %q: %s, want %s", test.condition, test.by, got, test.want)
		}
	}
	for _, test := range [][3]string{
		{"sise > 5", "", "--where:1:1: unknown column sise"},
		{"size > 5 size", "", "--where:1:10: SIZE is not expected here"},
		{"size", "", "WHERE needs a condition"},
		{"size > 5", "name", "WEIGHT needs a number"},
		{"files > 5", "", "only for PACK"},
	} {
		if _, err := ParseFind("--where", test[0], test[1]); err == nil || !strings.Contains(err.Error(), test[2]) {
			t.Errorf("%q by %q: %v, want %s", test[0], test[1], err, test[2])
		}
	}
}

// FuzzCandidate adds rows of any texts. Damaged files are a matter of the Parquet package.
func FuzzCandidate(f *testing.F) {
	f.Add("/data/a", "/data", "a", int64(1))
	f.Add("data", "", ".", int64(-1))
	f.Add("/a/../b", "/a/..", "..", int64(0))
	f.Fuzz(func(t *testing.T, path, dir, name string, size int64) {
		for _, text := range []map[string]int{{"path": 0, "dir": 1, "name": 2}, {"path": -1, "dir": 1, "name": 2}} {
			c := &Candidates{index: make(map[string]int32), facts: []candidateFact{{column: files.ColumnSize}}}
			row := parquet.Row{parquet.ByteArrayValue([]byte(path)).Level(0, 0, 0), parquet.ByteArrayValue([]byte(dir)).Level(0, 0, 1),
				parquet.ByteArrayValue([]byte(name)).Level(0, 0, 2), parquet.Int64Value(size).Level(0, 0, 3)}
			if c.add(row, text, []int{3}) != nil {
				continue
			}
			for p := range c.index {
				if !filepath.IsAbs(p) || filepath.Clean(p) != p || c.facts[0].values[0] != size {
					t.Fatalf("path %q, size %d", p, c.facts[0].values[0])
				}
			}
		}
	})
}
