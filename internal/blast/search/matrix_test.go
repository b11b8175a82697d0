package search

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
)

// These tests are the parts of the conformance matrix. `make soak-blast` runs each for some
// minutes; `make test` runs some of their cells. A cell is a program, a database, queries, options,
// a format and a number of fragments, or a group of queries. The test compares the outputs of
// BLAST+ on the whole database and of premix byte by byte.

// testData reads each nth record of a file in PREMIX_TESTDATA.
func testData(t *testing.T, name string, nth int) string {
	t.Helper()
	top := os.Getenv("PREMIX_TESTDATA")
	if top == "" {
		t.Skip("PREMIX_TESTDATA is not set: it names a directory with real sequences, blast/ among them")
	}
	text, err := os.ReadFile(filepath.Join(top, name))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	seen := map[string]bool{}
	for i, record := range strings.Split("\n"+string(text), "\n>")[1:] {
		id, _, _ := strings.Cut(strings.Fields(record)[0], "\n")
		if i%nth == 0 && !seen[id] {
			seen[id] = true
			b.WriteString(">" + strings.TrimSuffix(record, "\n") + "\n")
		}
	}
	return b.String()
}

// some returns each nth record of a FASTA text, from the record with the number first.
func some(fasta string, first, nth int) string {
	var b strings.Builder
	for i, record := range strings.Split("\n"+fasta, "\n>")[1:] {
		if i >= first && (i-first)%nth == 0 {
			b.WriteString(">" + strings.TrimSuffix(record, "\n") + "\n")
		}
	}
	return b.String()
}

// records splits FASTA into records.
func records(fasta []byte) (list [][]byte) {
	for _, record := range bytes.Split(append([]byte("\n"), fasta...), []byte("\n>"))[1:] {
		list = append(list, []byte(">"+strings.TrimSuffix(string(record), "\n")+"\n"))
	}
	return list
}

// Real sequences: ribosomal RNA of archaea, which contains many similar sequences, and proteins of
// mitochondria in large families.
func TestConformanceReal(t *testing.T) {
	needBLAST(t)
	cuts, nth := []int{2}, 40
	if soak() {
		cuts, nth = cutsIntoAll, 8
	}
	proteins := testData(t, "blast/prokka_Mitochondria_sprot.faa", max(1, nth/8))
	several := some(proteins, 3, 97)
	query := func(c *corpus, dna string) *corpus {
		c.query(t, "several-protein", several+">nothing\nWWCCWWHHMM\n")
		c.query(t, "one-protein", some(proteins, 7, 1<<30))
		c.query(t, "several-dna", dna+">nothing\n"+letters(rand.New(rand.NewPCG(9, 9)), 40, "ACGT")+"\n")
		c.query(t, "one-dna", string(records([]byte(dna))[0]))
		return c
	}
	var coded strings.Builder // DNA that codes for some of the proteins
	for _, record := range records([]byte(several)) {
		head, seq, _ := strings.Cut(string(record), "\n")
		coded.WriteString(head + "\n" + coding(strings.ReplaceAll(seq, "\n", "")) + "\n")
	}
	mitochondria := query(newCorpus(t, "mitochondria", proteins, database.Prot, cuts, database.AddOptions{}), coded.String())
	gene := testData(t, "bact14/queries/q.gene.fasta", 1)
	ribosomal := func(name string, nth int) *corpus {
		rna := testData(t, "blast/silva-arc-16s-id95.fasta", nth)
		return query(newCorpus(t, name, rna, database.Nucl, cuts, database.AddOptions{}), gene+some(rna, 5, 31))
	}
	rna := ribosomal("rna", nth)
	few := rna
	if nth < 40 {
		few = ribosomal("few", 40)
	}
	matrix(t, func(program string, kind database.Type) *corpus {
		switch {
		case kind == database.Prot:
			return mitochondria
		case program == "tblastx": // in six frames it finds so many hits that printing takes most of its time
			return few
		}
		return rna
	}, false)
}

// coding returns DNA that codes for a protein.
func coding(protein string) string {
	var b strings.Builder
	for i := range len(protein) {
		b.WriteString(codons[protein[i]]) // other letters than amino acids are skipped
	}
	return b.String()
}

// Databases of both versions, with parsed IDs, taxonomy and masks.
func TestConformanceKinds(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(21, 22))
	g := newGenes(r, 3)
	taxa := filepath.Join(t.TempDir(), "taxa")
	if err := os.WriteFile(taxa, []byte("seq2 9606\nseq3 562\nseq5 562\nseq8 4932\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	families := 2
	if soak() {
		families = 6
	}
	text := map[database.Type]string{database.Nucl: generated(r, g, false, families), database.Prot: generated(r, g, true, families)}
	mask := map[database.Type]string{database.Nucl: "dust", database.Prot: "seg"}
	kinds := map[string]database.AddOptions{
		"v4":               {Version: 4},
		"v4-parsed":        {Version: 4, ParseIDs: true},
		"v5-parsed":        {ParseIDs: true},
		"v5-parsed-taxmap": {ParseIDs: true, TaxIDMap: taxa},
		"v5-taxid":         {TaxID: 562},
		"v5-masks":         {Masks: []string{"MASK"}},
		"v4-masks":         {Version: 4, ParseIDs: true, Masks: []string{"MASK"}},
	}
	for name, o := range kinds {
		t.Run(name, func(t *testing.T) {
			n := &counts{}
			defer func() { t.Logf("%d of %d equal", n.same, n.all) }()
			if !soak() && name != "v4-parsed" && name != "v5-parsed-taxmap" {
				t.Skip("in long runs only: PREMIX_SOAK=blast")
			}
			cuts := []int{3}
			if soak() {
				cuts = cutsIntoAll
			}
			for kind, fasta := range text {
				o := o
				if o.Masks != nil {
					o.Masks = []string{mask[kind]}
				}
				c := newCorpus(t, "database", fasta, kind, cuts, o)
				c.query(t, "dna", ">first\n"+g.dna[1]+"\n>nothing\nACGTACCTTAGGACC\n>last\n"+mutated(r, g.dna[2], 10, "ACGT")+"\n")
				c.query(t, "protein", ">first\n"+g.protein[1]+"\n>nothing\nWWCCWWHHMM\n>last\n"+mutated(r, g.protein[2], 10, "ARNDCQEGHILKMFPSTWYV")+"\n")
				for _, p := range programs {
					query := map[bool]string{true: "protein", false: "dna"}[p.proteins]
					if p.db != kind || !soak() && p.name != "blastn" && p.name != "blastp" {
						continue
					}
					for i, f := range append(formatsOf(p.name), "6 qacc sacc sseqid sallseqid staxid staxids saccver evalue") {
						for j, o := range []string{"", "-max_target_seqs 5", "-max_target_seqs 1 -evalue 1e-3"} {
							if late(t) {
								return
							}
							if soak() || j == i%3 {
								c.compareCuts(t, n, p.name, query, append(strings.Fields(o), "-outfmt", f), c.turn(i+j))
							}
						}
					}
				}
			}
		})
	}
}

// batched compares the output for each job of a common search with the output of BLAST+ for this
// job alone.
func (c *corpus) batched(t *testing.T, n *counts, program string, jobs [][]byte, args []string, s Settings) {
	t.Helper()
	for k, d := range c.cuts {
		o, err := ParseOptions(append([]string{"-db", c.name}, args...))
		if err != nil {
			t.Fatal(err)
		}
		var list []Job
		var got []*bytes.Buffer
		for _, text := range jobs {
			got = append(got, &bytes.Buffer{})
			list = append(list, Job{text, got[len(got)-1]})
		}
		err = Batched(t.Context(), Request{Program: program, Database: d, Options: o, Settings: s,
			Note: func(s string) { t.Errorf("%s %q: %s", program, args, s) }}, list)
		if exit := (*part.ExitError)(nil); errors.As(err, &exit) {
			// The whole search fails if BLAST+ fails.
			n.all++
			if want := singlePlain(t, program, d, jobs[0], args); exit.Code != want.code || string(exit.Stderr) != want.stderr {
				t.Errorf("%s %q: status %d, want %d: %s", program, args, exit.Code, want.code, differ(want.stderr, string(exit.Stderr)))
			} else {
				n.same++
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %q: %v", program, args, err)
			continue
		}
		for i, text := range jobs {
			n.all++
			if want := singlePlain(t, program, d, text, args).stdout; got[i].String() != want {
				t.Errorf("%s %q on %d fragments, job %d: %s", program, args, k, i, differ(want, got[i].String()))
			} else {
				n.same++
			}
		}
	}

}

// singlePlain runs BLAST+ on queries from standard input.
func singlePlain(t *testing.T, program string, d *database.Database, queries []byte, args []string, env ...string) answer {
	t.Helper()
	dir, err := alias(t.TempDir(), d, "plain", "", d.Whole)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), tool(program), append([]string{"-db", d.Name}, args...)...)
	cmd.Env = append(environment(places(dir, true)), env...)
	cmd.Dir = dir
	cmd.Stdin = bytes.NewReader(queries)
	return answered(t, cmd)
}

// The queries of several jobs are searched together.
func TestConformanceTogether(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(31, 32))
	g := newGenes(r, 4)
	cuts, families := []int{2}, 2
	if soak() {
		cuts, families = []int{4}, 6
	}
	dbs := map[database.Type]*corpus{
		database.Nucl: newCorpus(t, "nucleotides", generated(r, g, false, families), database.Nucl, cuts, database.AddOptions{}),
		database.Prot: newCorpus(t, "proteins", generated(r, g, true, families), database.Prot, cuts, database.AddOptions{}),
	}
	amino := "ARNDCQEGHILKMFPSTWYV"
	jobs := map[bool][][]byte{
		false: {
			[]byte(">a <&> \"one\"\n" + g.dna[0] + "\n"),
			[]byte(">same\n" + mutated(r, g.dna[1], 12, "ACGT")),
			[]byte(">nothing\nACGTACCTTAGGACCATTTACGATC\n"),
			[]byte(">same\n" + g.dna[2] + "\n>none\nTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTT\n>#7 hits found\n" + g.dna[3][:200] + "\n"),
			[]byte(">\n" + g.dna[3] + "\n"),
			[]byte(">piece, two\n" + g.dna[0][40:] + "\n"),
		},
		true: {
			[]byte(">a protein\n" + g.protein[0] + "\n"),
			[]byte(">same\n" + mutated(r, g.protein[1], 8, amino)),
			[]byte(">nothing\nWWCCWWHHMM\n"),
			[]byte(">same\n" + g.protein[2] + "\n>second\n" + mutated(r, g.protein[3], 6, amino) + "\n"),
			[]byte(">\n" + g.protein[3] + "\n"),
		},
	}
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			var n counts
			sets := []string{"", "-max_target_seqs 1", "-max_target_seqs 5 -evalue 1e-3", "-evalue 1000"}
			sets = append(sets, p.options...)
			if !soak() {
				sets = sets[:1]
			}
			for i, f := range append(formatsOf(p.name), "6 sseqid qstart btop evalue") {
				for j, o := range sets {
					// Without PREMIX_SOAK, test all formats of blastn, and one format of each other
					// program.
					if !soak() && p.name != "blastn" && (i+len(p.name))%7 != 0 {
						continue
					}
					if late(t) {
						t.Logf("%d of %d equal", n.same, n.all)
						return
					}
					mode := []Mode{Auto, Fragments}[(i+j)%2]
					if soak() || i%3 > 0 {
						mode = Auto
					}
					dbs[p.db].batched(t, &n, p.name, jobs[p.proteins], append(strings.Fields(o), "-outfmt", f), Settings{Mode: mode, Cores: 2})
				}
			}
			t.Logf("%d of %d equal", n.same, n.all)
		})
	}
}

// Groups of queries are searched in parallel.
func TestConformanceQueries(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(41, 42))
	g := newGenes(r, 4)
	families, copies := 2, 5
	if soak() {
		families, copies = 4, 12
	}
	dbs := map[database.Type]*corpus{
		database.Nucl: newCorpus(t, "nucleotides", generated(r, g, false, families), database.Nucl, []int{2}, database.AddOptions{}),
		database.Prot: newCorpus(t, "proteins", generated(r, g, true, families), database.Prot, []int{2}, database.AddOptions{}),
	}
	var many, coded strings.Builder
	for i := range copies * len(g.protein) {
		p := mutated(r, g.protein[i%len(g.protein)], 6, "ARNDCQEGHILKMFPSTWYV")
		if i%7 == 3 {
			p = "XXXXXXXXXXXXXXXX" // BLAST+ warns about this query
		}
		fmt.Fprintf(&many, ">q%d of many <one>\n%s\n", i, p)
		fmt.Fprintf(&coded, ">q%d\n%s\n", i, coding(strings.ReplaceAll(p, "X", "A")))
	}
	for _, c := range dbs {
		c.query(t, "many-protein", many.String())
		c.query(t, "many-dna", coded.String())
	}
	for _, p := range programs {
		if tool(p.name) == "blastn" {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			c, query := dbs[p.db], map[bool]string{true: "many-protein", false: "many-dna"}[p.proteins]
			var n counts
			for i, f := range []string{"5", "6", "7", "10", "15", "6 qseqid sseqid stitle qseq"} {
				for j, o := range append([]string{"", "-max_target_seqs 3"}, p.options...) {
					if strings.Contains(o, "-max_hsps") || !soak() && (j > 1 || (i+j+len(p.name))%4 > 0) {
						continue
					}
					if late(t) {
						t.Logf("%d of %d equal", n.same, n.all)
						return
					}
					args := append([]string{"-db", c.name, "-query", c.queries[query]}, append(strings.Fields(o), "-outfmt", f)...)
					want := plain(t, p.name, c.cuts[2], args)
					got := searched(t, p.name, c.cuts[2], args, Settings{Mode: Queries, Cores: 3})
					n.all++
					switch {
					case got.stdout != want.stdout:
						t.Errorf("%s %q: %s", p.name, args, differ(want.stdout, got.stdout))
					case got.stderr != want.stderr || got.code != want.code:
						t.Errorf("%s %q: status %d, want %d; on standard error %s", p.name, args, got.code, want.code, differ(want.stderr, got.stderr))
					default:
						n.same++
					}
				}
			}
			t.Logf("%d of %d equal", n.same, n.all)
		})
	}
}

// TestWay checks the choice of the mode of a search, and the reason for it.
func TestWay(t *testing.T) {
	few := &queries{fasta: true, count: 3, letters: 900, last: 300}
	many := &queries{fasta: true, count: 400, letters: 120_000, last: 300}
	for _, c := range []struct {
		program, args string
		mode          Mode
		q             *queries
		cores         int
		want          Mode
		why           string
	}{
		{"blastn", "-outfmt 6", Auto, few, 2, Whole, "3 queries"},
		{"blastp", "-outfmt 5", Auto, many, 2, Queries, "400 queries"},
		{"blastp", "-outfmt 5", Auto, many, 1, Whole, "one core"},
		{"blastp", "-outfmt 6", Auto, many, 2, Whole, "threads share it"},
		{"blastn", "-outfmt 5", Auto, many, 2, Whole, "threads share it"},
		{"blastp", "-outfmt 5 -culling_limit 1", Auto, many, 2, Whole, "-culling_limit concerns"},
		{"blastp", "-outfmt 5 -culling_limit 1", Queries, many, 2, Whole, "-culling_limit concerns"},
		{"blastp", "-outfmt 0", Queries, many, 2, Whole, "-outfmt 0 is printed for all queries at once"},
		{"blastn", "-outfmt 6", Queries, many, 2, Whole, "first query"},
		{"blastp", "-outfmt 6", Fragments, few, 2, Fragments, "as asked for"},
		{"blastp", "-outfmt 6", Whole, few, 2, Whole, "as asked for"},
	} {
		o, err := ParseOptions(strings.Fields(c.args))
		if err != nil {
			t.Fatal(err)
		}
		r := Request{Program: c.program, Options: o, Database: &database.Database{Letters: 1000}, Settings: Settings{Mode: c.mode, Cores: c.cores}}
		if got, why, _ := r.chooseMode(c.q); got != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%s %s, mode %v: %v (%s), want %v (%s)", c.program, c.args, c.mode, got, why, c.want, c.why)
		}
	}
}

// A known exception: blastn overlooks weak HSPs at the edges of a batch of queries. A job that
// would get more hits from a common search than alone is searched alone.
func TestEdges(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(51, 52))
	var fasta strings.Builder
	var jobs [][]byte
	record := func(i int) string {
		// The database has the words at both ends of a query in both directions.
		first, last := dna(r, 12+i%3), dna(r, 12+(i+1)%3)
		if i%5 == 4 {
			first, last = dna(r, 28+i%3), dna(r, 28+i%4)
		}
		for k := range 4 {
			for j, w := range []string{first, last, complement(first), complement(last)} {
				fmt.Fprintf(&fasta, ">s%d-%d-%d\n%s\n", i, k, j, dna(r, 50+k)+w+dna(r, 60))
			}
		}
		return fmt.Sprintf(">q%d\n%s\n", i, dna(r, i%3)+first+dna(r, 300)+last)
	}
	for i := range 6 {
		jobs = append(jobs, []byte(record(i)))
	}
	jobs = append(jobs, []byte(record(6)+record(7)))
	// blastn searches this job in several batches.
	var many strings.Builder
	for i := range 24 {
		many.WriteString(record(8 + i))
	}
	jobs = append(jobs, []byte(many.String()))
	c := newCorpus(t, "words", fasta.String(), database.Nucl, []int{2}, database.AddOptions{})
	met := map[string]int{}
	var n counts
	for i, o := range []string{"-task blastn", "-task blastn -strand plus", "-task blastn -strand minus", "-task megablast -word_size 12", "-task megablast",
		"-task blastn -word_size 14 -evalue 1", "-task blastn-short", "-task dc-megablast"} {
		args := append(strings.Fields(o), "-dust", "no", "-searchsp", "60000000")
		d := c.cuts[2]
		var separate int
		for _, text := range jobs {
			separate += strings.Count(singlePlain(t, "blastn", d, text, append(args, "-outfmt", "6")).stdout, "\n")
		}
		t.Setenv("BATCH_SIZE", strconv.Itoa(maxBatch))
		at := singlePlain(t, "blastn", d, bytes.Join(jobs, nil), append(args, "-outfmt", "6")).stdout
		if err := os.Unsetenv("BATCH_SIZE"); err != nil {
			t.Fatal(err)
		}
		met[o] = strings.Count(at, "\n") - separate
		t.Logf("%s: %d hits, %d more together", o, separate, met[o])
		formats := []string{"6", "5", "0", "7", "10", "15", "17"}
		if !soak() {
			formats = formats[i%len(formats):][:1]
		}
		for _, f := range formats {
			c.batched(t, &n, "blastn", jobs, append(args, "-outfmt", f), Settings{Cores: 2})
		}
	}
	t.Logf("%d of %d equal", n.same, n.all)
	for _, o := range []string{"-task blastn", "-task blastn -strand plus", "-task blastn -strand minus", "-task megablast -word_size 12"} {
		if met[o] <= 0 {
			t.Errorf("%s finds nothing more in a common search: this test does not meet what it is for", o)
		}
	}
	for _, o := range []string{"-task megablast", "-task blastn-short"} {
		if met[o] != 0 {
			t.Errorf("%s finds %d hits more in a common search, where no edge should matter", o, met[o])
		}
	}
}

// complement returns the opposite strand.
func complement(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return strings.NewReplacer("A", "T", "C", "G", "G", "C", "T", "A").Replace(string(b))
}

// TestEdgesOf checks for which options edges matter, and the length of a run of equal letters above
// which they do not matter.
func TestEdgesOf(t *testing.T) {
	for _, c := range []struct {
		args   string
		matter bool
		strong int
	}{
		{"", false, 28},
		{"-task megablast -word_size 16", false, 16},
		{"-word_size 12", true, 15},
		{"-task blastn", true, 15},
		{"-task blastn -word_size 15", false, 15},
		{"-task blastn-short", false, 15},
		{"-task dc-megablast", true, 21},
		{"-task rmblastn", true, math.MaxInt},
		{"-task blastn -reward 0 -penalty 0", true, math.MaxInt},
	} {
		o, err := ParseOptions(strings.Fields(c.args))
		if err != nil {
			t.Fatal(err)
		}
		if e := (&Request{Program: "blastn", Options: o}).edges(); e.matter != c.matter || e.strong != c.strong {
			t.Errorf("%s: %v, %d letters; want %v, %d", c.args, e.matter, e.strong, c.matter, c.strong)
		}
	}
	e := edges{matter: true, strong: 15}
	for _, c := range []struct {
		h    hsp
		want bool
	}{
		{hsp{1, []run{{1, 14}}}, true},
		{hsp{1, []run{{1, 15}}}, false},
		{hsp{margin, []run{{margin, 14}}}, true},
		{hsp{margin + 1, []run{{margin + 1, 14}}}, false},
	} {
		if got := e.more([]hsp{c.h}); got != c.want {
			t.Errorf("%v: %v", c.h, got)
		}
	}
}

// A known exception: jobs of a group do not get the standard error of BLAST+.
func TestTogetherSaysNothing(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(61, 62))
	c := newCorpus(t, "proteins", generated(r, newGenes(r, 2), true, 2), database.Prot, []int{2}, database.AddOptions{})
	o, err := ParseOptions([]string{"-db", c.name, "-outfmt", "6"})
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	jobs := []Job{{[]byte(">a\nXXXXXXXXXXXXXXX\n"), io.Discard}, {[]byte(">b\nMKVLAAGIVGLLLAQWERTYHHKLPN\n"), io.Discard}}
	if err := Batched(t.Context(), Request{Program: "blastp", Database: c.cuts[2], Options: o, Stderr: &errs}, jobs); err != nil || errs.Len() > 0 {
		t.Errorf("%v, %q", err, errs.String())
	}
}

// BLAST+ keeps a list of preliminary hits that is only slightly longer than -max_target_seqs, and
// loses good hits if many compete. Each fragment has its own list, and would find hits that BLAST+
// loses. Here 1,500 random proteins compete for 20 places.
func TestConformanceCrowded(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(71, 72))
	var fasta strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&fasta, ">s%d\n%s\n", i, peptide(r, 120))
	}
	c := newCorpus(t, "proteins", fasta.String(), database.Prot, []int{4}, database.AddOptions{})
	c.query(t, "q", ">q\n"+peptide(r, 300)+"\n>none\nWWCCWWHHMM\n>third\n"+peptide(r, 200)+"\n")
	var n counts
	for _, f := range []string{"6", "0", "5", "11"} {
		c.compare(t, &n, "blastp", "q", []string{"-evalue", "1000", "-max_target_seqs", "20", "-outfmt", f})
	}
	t.Logf("%d of %d equal", n.same, n.all)
}

// A family of more members than a list of hits holds, all of which have a place in the list of
// preliminary hits: no query is searched for again.
func TestConformanceLongLists(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(75, 76))
	gene := peptide(r, 150)
	var prot, nucl strings.Builder
	for i := range 260 {
		m := mutated(r, gene, 4+i%30, "ARNDCQEGHILKMFPSTWYV")
		fmt.Fprintf(&prot, ">s%d\n%s\n", i, m)
		fmt.Fprintf(&nucl, ">s%d\n%s\n", i, coding(mutated(r, gene, 8+i%30, "ARNDCQEGHILKMFPSTWYV")))
	}
	p := newCorpus(t, "proteins", prot.String(), database.Prot, []int{2, 3}, database.AddOptions{})
	p.query(t, "q", ">q\n"+gene+"\n>none\nWWCCWWHHMM\n")
	n := newCorpus(t, "nucleotides", nucl.String(), database.Nucl, []int{2, 3}, database.AddOptions{})
	n.query(t, "q", ">q\n"+coding(gene)+"\n")
	var same counts
	for _, f := range []string{"6", "0", "5", "7"} {
		p.compare(t, &same, "blastp", "q", []string{"-max_target_seqs", "160", "-outfmt", f})
		n.compare(t, &same, "blastn", "q", []string{"-max_target_seqs", "220", "-outfmt", f})
	}
	t.Logf("%d of %d equal", same.same, same.all)
	for program, c := range map[string]struct {
		*corpus
		hits string
	}{"blastp": {p, "160"}, "blastn": {n, "220"}} {
		o, err := ParseOptions([]string{"-db", c.name, "-query", c.queries["q"], "-max_target_seqs", c.hits, "-outfmt", "6"})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = Run(t.Context(), Request{Program: program, Database: c.cuts[2], Options: o, Settings: Settings{Mode: Fragments, Cores: 2, Processes: 2}, Stdout: &out,
			Explain: func(s string) {
				if strings.Contains(s, "whole database") {
					t.Errorf("%s: %s", program, s)
				}
			}})
		subjects := map[string]bool{}
		for line := range strings.Lines(out.String()) {
			if f := strings.Fields(line); f[0] == "q" {
				subjects[f[1]] = true
			}
		}
		if err != nil || fmt.Sprint(len(subjects)) != c.hits {
			t.Errorf("%s: %d hits, want %s: the list is not full (%v)", program, len(subjects), c.hits, err)
		}
	}
}

// Large families: ribosomal RNA, where hundreds of sequences compete for few places, and the
// proteins of mitochondria. Most queries are crowded with few places, some also with the default of
// 500.
func TestConformanceFamilies(t *testing.T) {
	needBLAST(t)
	nth, cuts := 40, []int{3}
	if soak() {
		nth, cuts = 4, []int{2, 4, 7}
	}
	rna := testData(t, "blast/silva-arc-16s-id95.fasta", max(1, nth/8))
	c := newCorpus(t, "rna", rna, database.Nucl, cuts, database.AddOptions{})
	c.query(t, "q", testData(t, "bact14/queries/q.gene.fasta", 1)+some(rna, 5, 20*nth))
	proteins := testData(t, "blast/prokka_Mitochondria_sprot.faa", max(1, nth/8))
	p := newCorpus(t, "mitochondria", proteins, database.Prot, cuts, database.AddOptions{})
	p.query(t, "q", some(proteins, 5, 12*nth))
	var n counts
	for _, hits := range []string{"5", "50", "500"} {
		for _, f := range []string{"6", "0"} {
			if late(t) || !soak() && f == "0" && hits != "50" {
				continue
			}
			c.compare(t, &n, "blastn", "q", []string{"-max_target_seqs", hits, "-outfmt", f})
			p.compare(t, &n, "blastp", "q", []string{"-max_target_seqs", hits, "-outfmt", f})
		}
	}
	t.Logf("%d of %d equal", n.same, n.all)
}

// Linked HSPs in hits with equal e-values, where the list of hits has or does not have room for all
// of them.
func TestConformanceLinked(t *testing.T) {
	needBLAST(t)
	rna := testData(t, "blast/silva-arc-16s-id95.fasta", 8)
	c := newCorpus(t, "rna", rna, database.Nucl, []int{2, 4}, database.AddOptions{})
	at := strings.Index(rna, ">UncA6829 ")
	if at < 0 {
		t.Fatal("the sequence UncA6829 is not among those of the database")
	}
	c.query(t, "q", string(records([]byte(rna[at:]))[0]))
	var n counts
	for _, hits := range []string{"500", "12"} {
		c.compare(t, &n, "tblastx", "q", []string{"-max_target_seqs", hits, "-outfmt", "6"})
	}
	t.Logf("%d of %d equal", n.same, n.all)
}

// Groups with more letters than blastn takes at once: several common scans, and jobs that are
// longer than a batch.
func TestConformanceLarge(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(81, 82))
	g := newGenes(r, 12)
	dbs := map[database.Type]*corpus{
		database.Nucl: newCorpus(t, "nucleotides", generated(r, g, false, 2), database.Nucl, []int{2}, database.AddOptions{}),
		database.Prot: newCorpus(t, "proteins", generated(r, g, true, 2), database.Prot, []int{2}, database.AddOptions{}),
	}
	n, sets := 6, map[string][]string{"blastn": {"-task blastn"}}
	if soak() {
		n = 24
		sets = map[string][]string{
			"blastn":    {"-task blastn", "-task blastn -strand plus", "-task blastn-short -evalue 1e-3", "-task dc-megablast"},
			"megablast": {"", "-word_size 12", "-max_target_seqs 2"},
			"blastp":    {""},
			"blastx":    {""},
			"tblastn":   {""},
			"tblastx":   {""},
		}
	}
	jobs := map[bool][][]byte{
		false: largeJobs(r, n, 2*maxBatch, dna, g.dna, "ACGT"),
		true:  largeJobs(r, n, maxBatch, peptide, g.protein, "ARNDCQEGHILKMFPSTWYV"),
	}
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			if len(sets[p.name]) == 0 {
				t.Skip("in long runs only: PREMIX_SOAK=blast")
			}
			var n counts
			defer func() { t.Logf("%d of %d equal", n.same, n.all) }()
			formats := []string{"6", "0"}
			if soak() && tool(p.name) == "blastn" {
				formats = []string{"6", "0", "5", "17"}
			}
			for _, f := range formats {
				for _, o := range sets[p.name] {
					if late(t) {
						return
					}
					dbs[p.db].batched(t, &n, p.name, jobs[p.proteins], append(strings.Fields(o), "-outfmt", f), Settings{Cores: 2})
				}
			}
		})
	}
}

// largeJobs returns n jobs of one or of several queries, with almost total letters. If total is
// more than a batch, a long run also has two jobs that are longer than a batch. Queries have pieces
// of genes between random letters, and often at their ends.
func largeJobs(r *rand.Rand, n, total int, random func(*rand.Rand, int) string, genes []string, alphabet string) (jobs [][]byte) {
	job := func(records, letters int) {
		var job bytes.Buffer
		for i := range records {
			var b strings.Builder
			for b.Len() < letters {
				if b.Len() > 0 || r.IntN(2) > 0 {
					b.WriteString(random(r, r.IntN(letters)))
				}
				s := genes[r.IntN(len(genes))]
				from := r.IntN(len(s) / 2)
				b.WriteString(mutated(r, s[from:from+1+r.IntN(len(s)-from)], 3+r.IntN(30), alphabet))
			}
			fmt.Fprintf(&job, ">q%d-%d\n%s\n", len(jobs), i, b.String()[:letters])
		}
		jobs = append(jobs, job.Bytes())
	}
	for i := range n {
		records := []int{1, 20, 5}[i%3]
		job(records, total/n*9/10/records)
	}
	if soak() && total > maxBatch {
		job(250, maxBatch/200)
		job(1, maxBatch+200_000)
	}
	return jobs
}

// A job that is longer than a batch of a common scan is searched alone: if the batch ended within
// it, blastn would overlook weak HSPs.
func TestJobLongerThanBatch(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(91, 92))
	const length = 30_000
	var job, fasta strings.Builder
	for i := range maxBatch/length + 3 {
		s := strings.Repeat("N", 40) + dna(r, length-40)
		if i == maxBatch/length {
			// The first query of a second batch has weak words near its begin.
			s = dna(r, length)
			for k := range 8 {
				fmt.Fprintf(&fasta, ">s%d\n%s\n", k, dna(r, 53)+s[:12]+complement(s[12:13])+dna(r, 60))
			}
		}
		fmt.Fprintf(&job, ">q%d\n%s\n", i, s)
	}
	c := newCorpus(t, "words", fasta.String(), database.Nucl, []int{2}, database.AddOptions{})
	jobs := [][]byte{[]byte(job.String()), []byte(">another\n" + dna(r, 500) + "\n")}
	args := []string{"-task", "blastn", "-dust", "no", "-searchsp", "60000000"}
	edge := append(args, "-outfmt", "6 qseqid sseqid qstart")
	alone := singlePlain(t, "blastn", c.cuts[2], jobs[0], edge).stdout
	cut := singlePlain(t, "blastn", c.cuts[2], jobs[0], edge, "BATCH_SIZE="+strconv.Itoa(maxBatch)).stdout
	if strings.Count(cut, "\n") >= strings.Count(alone, "\n") {
		t.Error("blastn overlooks nothing where a batch begins: this test does not meet what it is for")
	}
	var n counts
	for _, f := range []string{"6", "0"} {
		c.batched(t, &n, "blastn", jobs, append(args, "-outfmt", f), Settings{Cores: 2})
	}
	t.Logf("%d of %d equal", n.same, n.all)
}
