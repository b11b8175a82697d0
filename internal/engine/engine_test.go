package engine_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"premix/internal/engine"
	"premix/internal/recipe"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestCheck(t *testing.T) {
	file := []recipe.Output{{Name: "bam", From: "x.bam", To: "a.bam"}}
	stdout := []recipe.Output{{Name: "stdout", From: ".stdout", To: "a.sam"}}
	piped := []recipe.Output{{Name: "stdout", From: recipe.PipeStdoutName, To: "a.sam"}}
	star := []recipe.Output{{Name: "star", Dir: true, From: "star", To: "a"}}
	for _, c := range []struct {
		name    string
		outputs []recipe.Output
		make    func(dir string)
		want    string // an empty string means no error
	}{
		{"file", file, func(d string) { write(t, d+"/x.bam", "x") }, ""},
		{"empty file", file, func(d string) { write(t, d+"/x.bam", "") }, ""},
		{"no file", file, func(string) {}, "output bam: the tool succeeded but left no x.bam"},
		{"directory for a file", file, func(d string) { write(t, d+"/x.bam/y", "") }, "output bam: x.bam is a directory"},
		{"link for a file", file, func(d string) {
			if err := os.Symlink("/etc/passwd", d+"/x.bam"); err != nil {
				t.Fatal(err)
			}
		}, "output bam: x.bam is not a regular file"},
		{"stdout", stdout, func(d string) { write(t, d+"/.stdout", "x") }, ""},
		{"empty stdout", stdout, func(d string) { write(t, d+"/.stdout", "") }, "output stdout: the tool succeeded but wrote nothing"},
		{"empty stdout of a pipe", piped, func(d string) { write(t, d+"/"+recipe.PipeStdoutName, "") }, "output stdout: the tool succeeded but wrote nothing"},
		{"directory", star, func(d string) { write(t, d+"/star/log", "") }, ""},
		{"file for a directory", star, func(d string) { write(t, d+"/star", "") }, "output star: star is not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(dir)
			err := engine.Check(dir, c.outputs)
			var e *engine.OutputError
			switch {
			case c.want == "" && err != nil:
				t.Errorf("error %v", err)
			case c.want != "" && (!errors.As(err, &e) || !strings.Contains(e.Error(), c.want) || e.Hint() == ""):
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestPublishReplacesWhatIsThere(t *testing.T) {
	outputs := []recipe.Output{
		{Name: "bam", From: "x.bam", To: "deep/er/a.bam"},
		{Name: "star", Dir: true, From: "star", To: "star/a"},
	}
	for _, c := range []struct {
		name   string
		before func(dir string)
	}{
		{"nothing", func(string) {}},
		{"the same", func(d string) {
			write(t, d+"/deep/er/a.bam", "old")
			write(t, d+"/star/a/old", "old")
		}},
		{"a directory for the file and a file for the directory", func(d string) {
			write(t, d+"/deep/er/a.bam/old", "old")
			write(t, d+"/star/a", "old")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.before(dir)
			work := filepath.Join(dir, ".premix", "1.1")
			write(t, work+"/x.bam", "new")
			write(t, work+"/star/in/log", "new")
			if err := engine.Publish(work, dir, outputs); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{"deep/er/a.bam", "star/a/in/log"} {
				if text, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(text) != "new" {
					t.Errorf("%s: %q, %v", path, text, err)
				}
			}
			if _, err := os.Lstat(filepath.Join(dir, "star", "a", "old")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a file of the old directory is still there: %v", err)
			}
		})
	}
}
