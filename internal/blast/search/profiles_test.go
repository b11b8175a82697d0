package search

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
)

// shelf has databases of makeblastdb and makeprofiledb in a directory, and databases of the same
// names in a home of premix.
type shelf struct {
	t         *testing.T
	dir, home string
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	needBLAST(t)
	for _, name := range []string{"psiblast", "deltablast", "rpsblast", "rpstblastn"} {
		if _, err := findProgram(name); err != nil {
			t.Skipf("%s is not on PATH: scripts/setup.sh test", name)
		}
	}
	return &shelf{t, t.TempDir(), t.TempDir()}
}

func (s *shelf) file(name, text string) string {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return name
}

// run runs a program of BLAST+ in the directory.
func (s *shelf) run(program string, args ...string) answer {
	s.t.Helper()
	path, err := findProgram(tool(program))
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.t.Context(), path, args...)
	cmd.Dir, cmd.Args[0] = s.dir, tool(program)
	return answered(s.t, cmd)
}

// must runs a program that succeeds.
func (s *shelf) must(program string, args ...string) {
	s.t.Helper()
	if a := s.run(program, args...); a.code != 0 || strings.Contains(a.stdout, "Error: ") {
		s.t.Fatalf("%s %q: %d %s %s", program, args, a.code, a.stdout, a.stderr)
	}
}

func (s *shelf) add(o database.AddOptions) {
	s.t.Helper()
	if _, _, err := database.Add(s.t.Context(), s.home, o); err != nil {
		s.t.Fatal(err)
	}
}

// posted are the parts of reports with the time at which a database was made.
var posted = regexp.MustCompile(`Posted date:.*`)

// compare compares the files and outputs of BLAST+ and of premix, which run in directories of
// their own.
func (s *shelf) compare(program string, mode Mode, files []string, args ...string) {
	t := s.t
	t.Helper()
	want := s.run(program, args...)
	o, err := ParseOptions(args)
	if err != nil {
		t.Fatal(err)
	}
	d, err := database.OpenAll(s.home, o.DB)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	own := t.TempDir()
	for _, name := range []string{"q.fa", "several.fa", "dna.fa", "one.pssm", "family.msa"} {
		if text, err := os.ReadFile(filepath.Join(s.dir, name)); err == nil {
			if err := os.WriteFile(filepath.Join(own, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Chdir(own)
	var out, errs bytes.Buffer
	var notes []string
	r := Request{Program: program, Database: d, Options: o, Settings: Settings{Mode: mode, Cores: 2}, Stdout: &out, Stderr: &errs, Note: func(s string) { notes = append(notes, s) }}
	if program == "deltablast" {
		if r.Domains, err = database.OpenAll(s.home, o.Domains()); err != nil {
			t.Fatal(err)
		}
		defer r.Domains.Close()
	}
	err = Run(t.Context(), r)
	var exit *part.ExitError
	code := 0
	if errors.As(err, &exit) {
		code = exit.Code
	} else if err != nil {
		t.Fatalf("%s %q: %v", program, args, err)
	}
	clean := func(text string) string { return posted.ReplaceAllString(text, "") }
	switch {
	case code != want.code:
		t.Errorf("%s %q: status %d, want %d: %s", program, args, code, want.code, errs.String())
	case clean(out.String()) != clean(want.stdout):
		t.Errorf("%s %q: %s", program, args, differ(clean(want.stdout), clean(out.String())))
	case errs.String() != want.stderr:
		t.Errorf("%s %q: on standard error %s", program, args, differ(want.stderr, errs.String()))
	case want.stdout == "" && len(files) == 0 && want.code == 0:
		t.Errorf("%s %q: BLAST+ printed nothing: %s", program, args, want.stderr)
	}
	// A mode that was asked for and is not possible has a note, and only that.
	if noted := mode == Fragments; noted != (len(notes) == 1) {
		t.Errorf("%s %q in mode %v: notes %q", program, args, mode, notes)
	}
	for _, name := range files {
		got, err := os.ReadFile(filepath.Join(own, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if len(want) == 0 || !bytes.Equal(got, want) {
			t.Errorf("%s %q: %s: %s", program, args, name, differ(string(want), string(got)))
		}
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSeveralDatabases compares searches of several databases at once. One of them was made by
// makeblastdb, and one by premix, in fragments.
func TestSeveralDatabases(t *testing.T) {
	s := newShelf(t)
	r := rand.New(rand.NewPCG(31, 32))
	g := newGenes(r, 3)
	for _, kind := range []database.Type{database.Nucl, database.Prot} {
		for _, name := range []string{"alpha", "beta", "gamma"} {
			name += string(kind)
			path := s.file(name+".fa", generated(r, g, kind == database.Prot, 3))
			s.must("makeblastdb", "-in", path, "-dbtype", string(kind), "-out", name, "-title", "the title of "+name)
			o := database.AddOptions{Name: name, Source: filepath.Join(s.dir, path), Type: kind, Title: "the title of " + name, Fragments: 3}
			if strings.HasPrefix(name, "alpha") {
				o.Source, o.Fragments = filepath.Join(s.dir, name), 1
			}
			s.add(o)
		}
	}
	s.file("q.fa", ">a protein\n"+g.protein[0]+"\n>b\n"+g.protein[1]+"\n>nothing\nWWWCCWWHHMM\n")
	s.file("dna.fa", ">a gene\n"+g.dna[0]+"\n>b\n"+g.dna[2]+"\n")
	for _, program := range divisible() {
		kind, query := "nucl", "dna.fa"
		if program == "blastp" || program == "blastx" {
			kind = "prot"
		}
		if program == "blastp" || program == "tblastn" {
			query = "q.fa"
		}
		db := func(names ...string) string { return strings.Join(names, kind+" ") + kind }
		for i, format := range []string{"0", "5", "6", "7 qseqid sallacc stitle evalue", "11", "15"} {
			list := [][]string{{"alpha", "beta"}, {"gamma", "alpha", "beta"}, {"beta", "alpha"}}[i%3]
			mode := []Mode{Auto, Whole, Fragments}[i/2]
			s.compare(program, mode, nil, "-db", db(list...), "-query", query, "-outfmt", format, "-evalue", "1")
		}
		if program == "blastp" {
			s.compare(program, Queries, nil, "-db", db("beta", "alpha"), "-query", query, "-outfmt", "6")
		}
	}
	// Databases of both types are refused.
	_, err := database.OpenAll(s.home, "alphanucl alphaprot")
	var known *database.Error
	if !errors.As(err, &known) || known.Kind != database.Use || known.HintText == "" {
		t.Errorf("databases of both types: %v", err)
	}
	if _, err := database.OpenAll(s.home, "alphanucl betanucl alphanucl"); !errors.As(err, &known) || known.Kind != database.Use {
		t.Errorf("a database twice: %v", err)
	}
	if _, err := database.OpenAll(s.home, "alphanucl none"); !errors.As(err, &known) || known.Kind != database.NotThere {
		t.Errorf("a database that does not exist: %v", err)
	}
}

// weighted returns a scoremat with the residue frequencies that a database for deltablast needs
// and psiblast does not write: here each column has the letter of the query alone.
func weighted(t *testing.T, scoremat string, columns int) string {
	t.Helper()
	_, after, found := strings.Cut(scoremat, "seq-data ncbistdaa '")
	letters, _, end := strings.Cut(after, "'H")
	if !found || !end {
		t.Fatal("the scoremat has no query")
	}
	letters = strings.Join(strings.Fields(letters), "")
	if len(letters) != 2*columns {
		t.Fatalf("%d letters instead of %d", len(letters)/2, columns)
	}
	var f, n strings.Builder
	for i := range columns {
		var letter int
		if _, err := fmt.Sscanf(letters[2*i:2*i+2], "%x", &letter); err != nil {
			t.Fatal(err)
		}
		for row := range 28 {
			value := "{ 0, 10, 0 }"
			if row == letter {
				value = "{ 1, 10, 0 }"
			}
			f.WriteString(value + ",\n")
		}
		n.WriteString("{ 12, 10, 0 },\n")
	}
	list := func(b *strings.Builder) string { return strings.TrimSuffix(b.String(), ",\n") }
	scoremat = strings.Replace(scoremat, "intermediateData {", "intermediateData {\n weightedResFreqsPerPos {\n"+list(&f)+"\n},", 1)
	return strings.Replace(scoremat, "\n    },\n    finalData {", ",\n numIndeptObsr {\n"+list(&n)+"\n}\n    },\n    finalData {", 1)
}

// TestConformanceProfiles compares the programs that make and search profiles, on databases that
// makeprofiledb made and on databases of premix blast db add.
func TestConformanceProfiles(t *testing.T) {
	s := newShelf(t)
	r := rand.New(rand.NewPCG(41, 42))
	g := newGenes(r, 4)
	proteins := generated(r, g, true, 6)
	if os.Getenv("PREMIX_TESTDATA") != "" {
		proteins += testData(t, "blast/prokka_Archaea_sprot.faa", 4)
	}
	for i, name := range []string{"families", "more"} {
		text := proteins
		if i > 0 {
			text = generated(r, g, true, 3)
		}
		path := s.file(name+".fa", text)
		s.must("makeblastdb", "-in", path, "-dbtype", "prot", "-out", name, "-title", name)
		s.add(database.AddOptions{Name: name, Source: filepath.Join(s.dir, path), Type: database.Prot, Title: name, Fragments: 3})
	}
	genes := s.file("genes.fa", generated(r, g, false, 3))
	s.must("makeblastdb", "-in", genes, "-dbtype", "nucl", "-out", "genes", "-title", "genes")
	s.add(database.AddOptions{Name: "genes", Source: filepath.Join(s.dir, genes), Type: database.Nucl, Title: "genes", Fragments: 2})
	s.file("q.fa", ">one a protein\n"+g.protein[0]+"\n")
	s.file("several.fa", ">one a protein\n"+g.protein[0]+"\n>two\n"+g.protein[1]+"\n>nothing\nWWCCWWHHMM\n")
	s.file("dna.fa", ">gene\n"+g.dna[0]+"\n>other\n"+g.dna[2]+"\n")
	s.file("family.msa", ">a\n"+g.protein[0][:60]+"\n>b\n"+g.protein[0][:59]+"A\n>c\n"+g.protein[0][:58]+"VA\n")

	// Profiles of the families, and databases of them, in one volume and in several.
	var list, weighty []string
	for i, p := range g.protein {
		query := s.file(fmt.Sprintf("p%d.fa", i), fmt.Sprintf(">profile%d of a family\n%s\n", i, p))
		name := fmt.Sprintf("p%d.smp", i)
		s.must("psiblast", "-db", "families", "-query", query, "-parse_deflines", "-num_iterations", "2", "-out_pssm", name, "-out", "report")
		list = append(list, filepath.Join(s.dir, name))
		text, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		weighty = append(weighty, filepath.Join(s.dir, s.file("w"+name, weighted(t, string(text), len(p)))))
		if i == 0 {
			s.file("one.pssm", string(text))
		}
	}
	names := s.file("list", strings.Join(list, "\n")+"\n")
	s.must("makeprofiledb", "-in", names, "-out", "profiles", "-title", "profiles")
	s.must("makeprofiledb", "-in", names, "-out", "volumes", "-title", "volumes", "-max_smp_vol", "2")
	s.must("makeprofiledb", "-in", names, "-out", "fresh", "-title", "fresh")
	s.must("makeprofiledb", "-in", s.file("weighty", strings.Join(weighty, "\n")), "-out", "domains", "-title", "domains", "-dbtype", "delta")
	for _, name := range []string{"profiles", "volumes", "domains"} {
		s.add(database.AddOptions{Name: name, Source: filepath.Join(s.dir, name)})
	}
	s.add(database.AddOptions{Name: "fresh", Source: filepath.Join(s.dir, names), Title: "fresh", Profiles: database.RPS})
	s.add(database.AddOptions{Name: "cdd_delta", Source: filepath.Join(s.dir, "weighty"), Title: "cdd_delta", Profiles: database.Delta})
	s.must("makeprofiledb", "-in", "weighty", "-out", "cdd_delta", "-title", "cdd_delta", "-dbtype", "delta")

	for i, format := range []string{"0", "5", "6", "7", "11", "15"} {
		mode := []Mode{Auto, Whole, Fragments}[i%3]
		s.compare("psiblast", mode, nil, "-db", "families", "-query", "several.fa", "-outfmt", format)
		s.compare("psiblast", mode, nil, "-db", "families more", "-query", "q.fa", "-num_iterations", "3", "-outfmt", format)
		s.compare("psiblast", mode, nil, "-db", "families", "-in_pssm", "one.pssm", "-outfmt", format)
		s.compare("psiblast", mode, nil, "-db", "families", "-in_msa", "family.msa", "-outfmt", format)
		if format != "11" { // in which tblastn itself fails
			s.compare("tblastn", Fragments, nil, "-db", "genes", "-in_pssm", "one.pssm", "-outfmt", format)
		}
		s.compare("rpstblastn", mode, nil, "-db", "profiles", "-query", "dna.fa", "-outfmt", format)
		s.compare("deltablast", mode, nil, "-db", "families", "-query", "q.fa", "-rpsdb", "domains", "-outfmt", format)
		s.compare("deltablast", mode, nil, "-db", "more families", "-query", "q.fa", "-num_iterations", "2", "-show_domain_hits", "-outfmt", format)
		for _, db := range []string{"profiles", "volumes", "fresh", "fresh profiles"} {
			s.compare("rpsblast", mode, nil, "-db", db, "-query", "several.fa", "-outfmt", format)
		}
	}
	s.compare("psiblast", Auto, []string{"out.pssm", "out.txt", "report"}, "-db", "families", "-query", "q.fa", "-num_iterations", "3",
		"-out_pssm", "out.pssm", "-out_ascii_pssm", "out.txt", "-save_pssm_after_last_round", "-out", "report", "-outfmt", "6")
	s.compare("deltablast", Auto, []string{"out.pssm"}, "-db", "families", "-query", "q.fa", "-out_pssm", "out.pssm", "-outfmt", "6")
	// BLAST+ refuses these, with its own words.
	s.compare("rpsblast", Auto, nil, "-db", "profiles", "-query", "q.fa", "-evalue", "nothing")
}
