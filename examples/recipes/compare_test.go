package recipes_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"premix/internal/hotstart"
	"premix/internal/recipe"
)

// compareRuns returns the differences between the outputs of two runs, and the parts that
// it left out because the recipe declares that they vary.
func compareRuns(r *recipe.Recipe, cold, other string) (differences, left []string, err error) {
	for _, sample := range samples {
		for _, out := range r.Outputs(recipe.Sample{Name: sample}) {
			a, b := filepath.Join(cold, out.To), filepath.Join(other, out.To)
			inA, err := entries(a)
			if err != nil {
				return nil, nil, err
			}
			inB, err := entries(b)
			if err != nil {
				return nil, nil, err
			}
			all := maps.Clone(inA)
			maps.Copy(all, inB)
			for _, rel := range slices.Sorted(maps.Keys(all)) {
				shown := path.Join(out.To, rel)
				if inA[rel] != inB[rel] {
					differences = append(differences, fmt.Sprintf("%s is %q, and %q cold", shown, inB[rel], inA[rel]))
					continue
				}
				if !strings.HasPrefix(inA[rel], "-") {
					continue // not a regular file, so the entries contain all of it
				}
				difference, out, err := compareFiles(r, path.Join(out.From, rel), filepath.Join(a, rel), filepath.Join(b, rel))
				if err != nil {
					return nil, nil, err
				}
				if difference != "" {
					differences = append(differences, shown+": "+difference)
				}
				for _, what := range out {
					left = append(left, shown+": "+what)
				}
			}
		}
	}
	return differences, left, nil
}

// entries describes everything in a tree by its relative path: type, permissions, and the
// target of a link.
func entries(root string) (map[string]string, error) {
	all := map[string]string{}
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		all[rel] = info.Mode().String()
		if info.Mode()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			all[rel] += " " + target
		}
		return nil
	})
	return all, err
}

// compareFiles compares two outputs with the same name. Lines may differ only if both match
// the same entry of varies.
func compareFiles(r *recipe.Recipe, name, a, b string) (difference string, left []string, err error) {
	textA, err := os.ReadFile(a)
	if err != nil {
		return "", nil, err
	}
	textB, err := os.ReadFile(b)
	if err != nil {
		return "", nil, err
	}
	if bytes.Equal(textA, textB) {
		return "", nil, nil
	}
	if name == hotstart.StdoutName {
		name = "stdout"
	}
	var lines []*regexp.Regexp
	for _, v := range r.Varies {
		if ok, err := path.Match(v.File, name); err != nil || !ok {
			continue
		}
		if v.Lines == nil {
			return "", []string{"the whole file"}, nil
		}
		lines = append(lines, v.Lines)
	}
	linesA, linesB := bytes.Split(textA, []byte("\n")), bytes.Split(textB, []byte("\n"))
	if len(linesA) != len(linesB) {
		return fmt.Sprintf("%d lines, and %d cold", len(linesB), len(linesA)), nil, nil
	}
	count := map[string]int{}
	for i := range linesA {
		if bytes.Equal(linesA[i], linesB[i]) {
			continue
		}
		n := slices.IndexFunc(lines, func(re *regexp.Regexp) bool { return re.Match(linesA[i]) && re.Match(linesB[i]) })
		if n < 0 {
			return fmt.Sprintf("line %d is %.200q, and %.200q cold", i+1, linesB[i], linesA[i]), nil, nil
		}
		count[lines[n].String()]++
	}
	for _, re := range slices.Sorted(maps.Keys(count)) {
		left = append(left, fmt.Sprintf("%d lines like %s", count[re], re))
	}
	return "", left, nil
}

// The comparison must find differences, because otherwise all tests here would pass.
func TestComparisonSeesDifferences(t *testing.T) {
	r, err := recipe.Load("star.yaml")
	if err == nil {
		t.Fatal("star.yaml loads without ./ref: its data must exist")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "ref"), 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("star.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "star.yaml"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	if r, err = recipe.Load(filepath.Join(dir, "star.yaml")); err != nil {
		t.Fatal(err)
	}
	const final = "Log.final.out"
	const began = "   Started job on |\tNov 20 20:31:13\n"
	for _, c := range []struct {
		name        string
		a, b        map[string]string // files in the directory of sample B
		differ, out int
	}{
		{"equal", map[string]string{final: began}, map[string]string{final: began}, 0, 0},
		{"a byte", map[string]string{"SJ.out.tab": "a\nb\n"}, map[string]string{"SJ.out.tab": "a\nc\n"}, 1, 0},
		{"cut short", map[string]string{"SJ.out.tab": "a\nb\n"}, map[string]string{"SJ.out.tab": "a\n"}, 1, 0},
		{"no last newline", map[string]string{"SJ.out.tab": "a\n"}, map[string]string{"SJ.out.tab": "a"}, 1, 0},
		{"missing", map[string]string{"SJ.out.tab": "a\n"}, nil, 1, 0},
		{"too many", nil, map[string]string{"SJ.out.tab": "a\n"}, 1, 0},
		{"varies", map[string]string{final: began}, map[string]string{final: strings.Replace(began, "13", "14", 1)}, 0, 1},
		{"varies on one side", map[string]string{final: began}, map[string]string{final: "  Uniquely mapped |\t3\n"}, 1, 0},
		{"varies elsewhere", map[string]string{"SJ.out.tab": began}, map[string]string{"SJ.out.tab": strings.Replace(began, "13", "14", 1)}, 1, 0},
		{"whole file", map[string]string{"Log.progress.out": "a\n"}, map[string]string{"Log.progress.out": "b\nc\n"}, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for run, files := range map[string]map[string]string{"a": c.a, "b": c.b} {
				for _, sample := range samples {
					if err := os.MkdirAll(filepath.Join(dir, run, sample), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				for name, text := range files {
					if err := os.WriteFile(filepath.Join(dir, run, "B", name), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			differences, left, err := compareRuns(r, filepath.Join(dir, "a"), filepath.Join(dir, "b"))
			if err != nil {
				t.Fatal(err)
			}
			if len(differences) != c.differ || len(left) != c.out {
				t.Errorf("differences %q, left out %q; want %d and %d", differences, left, c.differ, c.out)
			}
		})
	}
}
