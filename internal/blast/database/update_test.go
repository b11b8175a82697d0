package database

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// sequencesOf returns the sequences of a database, by its alias.
func sequencesOf(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("blastdbcmd", "-db", path, "-dbtype", "prot", "-entry", "all", "-line_length", "100000").Output()
	if err != nil {
		t.Fatalf("blastdbcmd %s: %v", path, err)
	}
	return string(out)
}

func TestUpdate(t *testing.T) {
	if _, err := exec.LookPath("makeblastdb"); err != nil {
		t.Skip("makeblastdb is not on PATH: scripts/setup.sh test")
	}
	r := rand.New(rand.NewPCG(51, 52))
	number := 0
	record := func() string {
		number++
		b := make([]byte, 50+r.IntN(200))
		for i := range b {
			b[i] = "ACDEFGHIKLMNPQRSTVWY"[r.IntN(20)]
		}
		return fmt.Sprintf(">seq%d number %d\n%s\n", number, number, b)
	}
	var list []string
	for range 200 {
		list = append(list, record())
	}
	home, path := t.TempDir(), filepath.Join(t.TempDir(), "in.fa")
	date := time.Now().Add(-24 * time.Hour)
	write := func(text string) {
		t.Helper()
		date = date.Add(time.Hour)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o644), os.Chtimes(path, date, date)); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Join(list, ""))
	if _, _, err := Add(t.Context(), home, AddOptions{Name: "db", Source: path, Type: Prot, Fragments: 5, Title: "title"}); err != nil {
		t.Fatal(err)
	}
	check := func(when string, want Updated) {
		t.Helper()
		before, err := Open(home, "db")
		if err != nil {
			t.Fatal(err)
		}
		wholeBefore := sequencesOf(t, before.Whole)
		_, desc, got, err := Update(t.Context(), home, AddOptions{Name: "db", Source: path})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if want != (Updated{-1, -1}) && got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
		// A search that has opened the former version still has it.
		if again := sequencesOf(t, before.Whole); again != wholeBefore {
			t.Errorf("%s: the former version has changed", when)
		}
		if err := before.Close(); err != nil {
			t.Fatal(err)
		}
		after, err := Open(home, "db")
		if err != nil {
			t.Fatal(err)
		}
		defer after.Close()
		whole, parts := sequencesOf(t, after.Whole), ""
		for _, f := range after.Fragments {
			parts += sequencesOf(t, f.Path)
		}
		if text := strings.Join(list, ""); whole != text || parts != text {
			t.Errorf("%s: the sequences are\n%.300s, in fragments\n%.300s, want\n%.300s", when, whole, parts, text)
		}
		if after.Sequences != int64(len(list)) || after.Title != "title" || desc.ID != after.ID || len(after.Fragments) != got.Kept+got.Formatted && got != (Updated{}) {
			t.Errorf("%s: %+v", when, after)
		}
		if v, err := Verify(t.Context(), home, "db"); err != nil || len(v.Damage) > 0 {
			t.Errorf("%s: verify: %+v, %v", when, v, err)
		}
		for _, f := range desc.Fragments {
			if f.Sum == "" || f.Head == "" {
				t.Errorf("%s: a fragment has no digest", when)
			}
		}
	}
	link := func() os.FileInfo {
		d, err := Open(home, "db")
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		rec, err := readRecord(home, "db")
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(rec.Data, "db.000.psq"))
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	first := link()
	check("the same file", Updated{5, 0})
	write(strings.ReplaceAll(strings.Join(list, ""), "\n", "\r\n"))
	check("other line ends", Updated{5, 0})
	list = append(list, record(), record())
	write(strings.Join(list, ""))
	check("appended", Updated{5, 1})
	if !os.SameFile(first, link()) {
		t.Error("the letters of a fragment that did not change were written again")
	}
	list = append(list, record())
	write(strings.Join(list, ""))
	check("appended again: the small fragment grows", Updated{5, 1})
	list[100] = record()
	write(strings.Join(list, ""))
	check("one in the middle changed", Updated{5, 1})
	list = slices.Insert(list, 0, record())
	write(strings.Join(list, ""))
	check("one before the first", Updated{-1, -1})
	list = slices.Insert(list, 0, record())
	write(strings.Join(list, ""))
	check("another before the first", Updated{-1, -1})
	list = slices.Delete(list, 30, 120)
	write(strings.Join(list, ""))
	check("many fewer", Updated{-1, -1})
	list = append(slices.Clone(list[60:]), list[:60]...)
	write(strings.Join(list, ""))
	check("in another order", Updated{-1, -1})
	for range 5 {
		switch at := r.IntN(len(list)); r.IntN(4) {
		case 0:
			list = slices.Insert(list, at, record(), record(), record())
		case 1:
			list = slices.Delete(list, at, min(len(list), at+1+r.IntN(5)))
		case 2:
			list[at] = record()
		case 3:
			for range 60 {
				list = slices.Insert(list, at, record())
			}
		}
		write(strings.Join(list, ""))
		check("a random change", Updated{-1, -1})
	}
	// Only one version is left.
	write(strings.Join(append(list, record()), ""))
	if _, _, _, err := Update(t.Context(), home, AddOptions{Name: "db", Source: path}); err != nil {
		t.Fatal(err)
	}
	if d, err := Open(home, "db"); err != nil {
		t.Error(err)
	} else if err := d.Close(); err != nil {
		t.Error(err)
	}
	versions, err := filepath.Glob(filepath.Join(home, "db", "[da]*"))
	if err != nil || len(versions) != 2 {
		t.Errorf("%q, %v", versions, err)
	}
	if err := Remove(home, "db"); err != nil {
		t.Error(err)
	}
}

// Settings belong to the digests, and databases that cannot be updated are refused by name.
func TestUpdateSettings(t *testing.T) {
	if _, err := exec.LookPath("makeblastdb"); err != nil {
		t.Skip("makeblastdb is not on PATH: scripts/setup.sh test")
	}
	home, dir := t.TempDir(), t.TempDir()
	path, taxa := filepath.Join(dir, "in.fa"), filepath.Join(dir, "taxa")
	put := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(path, ">a\nMKVLAAGIVGLL\n>b\nMKVLAAGIVGLLA\n")
	put(taxa, "a 9606\nb 9606\n")
	if _, _, err := Add(t.Context(), home, AddOptions{Name: "taxa", Source: path, Type: Prot, Fragments: 2, ParseIDs: true, TaxIDMap: taxa}); err != nil {
		t.Fatal(err)
	}
	var known *Error
	if _, _, _, err := Update(t.Context(), home, AddOptions{Name: "taxa", Source: path}); !errors.As(err, &known) || !strings.Contains(known.HintText, "--taxid-map") {
		t.Errorf("without the taxonomy ids: %v", err)
	}
	if _, _, n, err := Update(t.Context(), home, AddOptions{Name: "taxa", Source: path, TaxIDMap: taxa}); err != nil || n != (Updated{2, 0}) {
		t.Errorf("with the same ids: %+v, %v", n, err)
	}
	put(taxa, "a 9606\nb 10090\n")
	if _, _, n, err := Update(t.Context(), home, AddOptions{Name: "taxa", Source: path, TaxIDMap: taxa}); err != nil || n.Kept != 0 {
		t.Errorf("with others: %+v, %v", n, err)
	}
	d, err := Open(home, "taxa")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if out, err := exec.Command("blastdbcmd", "-db", d.Whole, "-dbtype", "prot", "-entry", "b", "-outfmt", "%T").Output(); string(out) != "10090\n" {
		t.Errorf("the taxonomy id is %q, %v", out, err)
	}
	if out, err := exec.Command("makeblastdb", "-in", path, "-dbtype", "prot", "-out", filepath.Join(dir, "old")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, _, err := Add(t.Context(), home, AddOptions{Name: "old", Source: filepath.Join(dir, "old")}); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := Update(t.Context(), home, AddOptions{Name: "old", Source: path}); !errors.As(err, &known) || known.Kind != Use {
		t.Errorf("a database of makeblastdb: %v", err)
	}
	if _, _, _, err := Update(t.Context(), home, AddOptions{Name: "none", Source: path}); !errors.As(err, &known) || known.Kind != NotThere {
		t.Errorf("no database: %v", err)
	}
}
