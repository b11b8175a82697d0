package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestFirst(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "first")
	stdout := os.Stdout
	defer func() { os.Stdout = stdout }()
	for name, c := range map[string]struct {
		text string
		seen bool
	}{
		"records": {"@HD\tx\n@SQ\ty\nr1\t0\nr2\t0\n", true},
		"header":  {"@HD\tx\n", false},
		"nothing": {"", false},
	} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout = out
		begin := time.Now()
		err = first(strings.NewReader(c.text), marker)
		os.Stdout = stdout
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(out.Name()); err != nil || string(got) != c.text {
			t.Errorf("%s: passed on %q, %v", name, got, err)
		}
		text, err := os.ReadFile(marker)
		if c.seen != (err == nil) {
			t.Errorf("%s: the marker: %v", name, err)
		}
		if c.seen {
			if at, err := strconv.ParseInt(string(text), 10, 64); err != nil || at < begin.UnixNano() || at > time.Now().UnixNano() {
				t.Errorf("%s: the first record came at %q", name, text)
			}
			if err := os.Remove(marker); err != nil {
				t.Fatal(err)
			}
		}
	}
}
