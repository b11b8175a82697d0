package search

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
)

// needBLAST skips a test if BLAST+ is not installed.
func needBLAST(t *testing.T) {
	t.Helper()
	for _, name := range []string{"blastn", "blastp", "blast_formatter", "makeblastdb"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not on PATH: scripts/setup.sh test", name)
		}
	}
}

// soak reports whether to run the whole matrix: make soak-blast.
func soak() bool { return os.Getenv("PREMIX_SOAK") == "blast" }

// nth returns N if PREMIX_SOAK_NTH=N selects each Nth cell of a matrix, and 1 otherwise.
func nth(t *testing.T) int {
	t.Helper()
	s := os.Getenv("PREMIX_SOAK_NTH")
	if s == "" {
		return 1
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("PREMIX_SOAK_NTH=%s is not a number above 0", s)
	}
	t.Logf("one cell of %d only: PREMIX_SOAK_NTH", n)
	return n
}

// late reports whether the time of the test is nearly over. The test then logs the number of
// compared cells and that it is incomplete.
func late(t *testing.T) bool {
	t.Helper()
	end, ok := t.Deadline()
	if !ok || time.Until(end) > 2*time.Minute { // the longest time of a cell on a busy machine
		return false
	}
	t.Error("the time is over, and cells are left: give more with -timeout")
	return true
}

// dna and peptide return random sequences.
func dna(r *rand.Rand, n int) string { return letters(r, n, "ACGT") }

func peptide(r *rand.Rand, n int) string {
	return letters(r, n, "AAAAAAAARRRRRNNNNDDDDDCQQQQEEEEEEGGGGGGGHHIIIIIILLLLLLLLLKKKKKKMMFFFFPPPPPSSSSSSSTTTTTWYYYVVVVVVV")
}

func letters(r *rand.Rand, n int, alphabet string) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(b)
}

// mutated changes or removes about one letter in every.
func mutated(r *rand.Rand, s string, every int, alphabet string) string {
	var b strings.Builder
	for i := range len(s) {
		switch {
		case r.IntN(every) > 0:
			b.WriteByte(s[i])
		case r.IntN(8) == 0:
		default:
			b.WriteByte(alphabet[r.IntN(len(alphabet))])
		}
	}
	return b.String()
}

// genes are sequences that generated databases and queries share.
type genes struct {
	dna, protein []string
}

var codons = map[byte]string{'A': "GCT", 'R': "CGT", 'N': "AAC", 'D': "GAC", 'C': "TGC", 'Q': "CAG", 'E': "GAA", 'G': "GGT", 'H': "CAC", 'I': "ATC",
	'L': "CTG", 'K': "AAA", 'M': "ATG", 'F': "TTC", 'P': "CCG", 'S': "TCT", 'T': "ACC", 'W': "TGG", 'Y': "TAC", 'V': "GTT"}

func newGenes(r *rand.Rand, n int) *genes {
	g := &genes{}
	for range n {
		p := peptide(r, 80+r.IntN(300))
		var d strings.Builder
		for i := range len(p) {
			d.WriteString(codons[p[i]])
		}
		g.protein = append(g.protein, p)
		g.dna = append(g.dna, d.String())
	}
	return g
}

// generated returns families of similar sequences as FASTA, with duplicates, which lead to ties,
// and with sequences that differ only in the order of their parts.
func generated(r *rand.Rand, g *genes, protein bool, families int) string {
	var b strings.Builder
	base, alphabet := g.dna, "ACGT"
	if protein {
		base, alphabet = g.protein, "ARNDCQEGHILKMFPSTWYV"
	}
	n := 0
	for range families {
		for i, s := range base {
			n++
			kind := mutated(r, s, 4+r.IntN(40), alphabet)
			if !protein {
				kind = dna(r, r.IntN(400)) + kind + dna(r, r.IntN(400))
			}
			for range 1 + r.IntN(3) {
				n++
				fmt.Fprintf(&b, ">seq%d family %d of the gene, [organism=Generated %d], with a title that is long enough to be broken\n%s\n", n, i, n%5, kind)
			}
		}
	}
	return b.String()
}

// corpus is a database that is divided in several ways, and queries.
type corpus struct {
	name    string
	kind    database.Type
	cuts    map[int]*database.Database
	queries map[string]string // name to file
}

var cutsIntoAll = []int{1, 2, 4, 7}

func newCorpus(t *testing.T, name, fasta string, kind database.Type, cuts []int, o database.AddOptions) *corpus {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, name+".fa")
	if err := os.WriteFile(path, []byte(fasta), 0o644); err != nil {
		t.Fatal(err)
	}
	c := &corpus{name: name, kind: kind, cuts: map[int]*database.Database{}, queries: map[string]string{}}
	for _, k := range cuts {
		home := filepath.Join(dir, fmt.Sprintf("home-%d", k))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		o.Source, o.Name, o.Type, o.Fragments = path, name, kind, k
		_, _, err := database.Add(ctx, home, o)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		d, err := database.Open(home, name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		if len(d.Fragments) != k {
			t.Fatalf("%s: %d fragments instead of %d", name, len(d.Fragments), k)
		}
		c.cuts[k] = d
	}
	return c
}

func (c *corpus) query(t *testing.T, name, fasta string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".fa")
	if err := os.WriteFile(path, []byte(fasta), 0o644); err != nil {
		t.Fatal(err)
	}
	c.queries[name] = path
}

// answer is the output and the status of a search.
type answer struct {
	stdout, stderr string
	code           int
}

// plain runs BLAST+ itself on the whole database.
func plain(t *testing.T, program string, d *database.Database, args []string) answer {
	t.Helper()
	dir, err := alias(t.TempDir(), d, "plain", "", d.Whole)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), tool(program), args...)
	cmd.Env = environment(map[string]string{"BLASTDB": dir})
	return answered(t, cmd)
}

// answered runs a program of BLAST+.
func answered(t *testing.T, cmd *exec.Cmd) answer {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return answer{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// searched runs a search of this package.
func searched(t *testing.T, program string, d *database.Database, args []string, s Settings) answer {
	t.Helper()
	o, err := ParseOptions(args)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs, notes bytes.Buffer
	err = Run(t.Context(), Request{Program: program, Database: d, Options: o, Settings: s, Stdout: &out, Stderr: &errs,
		Note: func(s string) { fmt.Fprintln(&notes, s) }})
	a := answer{stdout: out.String(), stderr: errs.String()}
	var exit *part.ExitError
	if errors.As(err, &exit) {
		a.code = exit.Code
	} else if err != nil {
		t.Fatalf("%s %q: %v", program, args, err)
	}
	// Whether BLAST+ warns of a query depends on the query, as do its batches and the contents of
	// archives; see TestWholeDatabase and TestKnownQueries.
	said := notes.String()
	known := func(why string) bool { return strings.Contains(said, why) }
	if said != "" && !known("reports repeat") && !known("is refused by BLAST+") && !known("writes archives of as many queries") && !known("writes archives without them") {
		t.Errorf("%s %q: %s", program, args, said)
	}
	return a
}

// differ describes the first difference of two outputs.
func differ(a, b string) string {
	x, y := strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")
	for i := range max(len(x), len(y)) {
		var p, q string
		if i < len(x) {
			p = x[i]
		}
		if i < len(y) {
			q = y[i]
		}
		if p != q {
			return fmt.Sprintf("line %d of %d and %d:\n  BLAST+ %.300q\n  premix %.300q", i+1, len(x), len(y), p, q)
		}
	}
	return ""
}

// formats are the formats for which equal output is promised.
//
// The format 17 is SAM, which BLAST+ supports only in blastn.
var formats = []string{"0", "5", "6", "7", "10", "11", "15", "17", "6 qseqid sseqid stitle qlen slen pident positive qcovs qcovhsp qseq sseq btop sstart send evalue bitscore score"}

func formatsOf(program string) []string {
	var list []string
	for _, f := range formats {
		if f != "17" || tool(program) == "blastn" {
			list = append(list, f)
		}
	}
	return list
}

// counts are the numbers of equal and of all cells in a matrix.
type counts struct{ same, all int }

func (c *corpus) compare(t *testing.T, n *counts, program, query string, args []string) {
	t.Helper()
	c.compareCuts(t, n, program, query, args, c.cuts)
}

// turn returns the nth of the divisions in rotation.
func (c *corpus) turn(n int) map[int]*database.Database {
	k := slices.Sorted(maps.Keys(c.cuts))[n%len(c.cuts)]
	return map[int]*database.Database{k: c.cuts[k]}
}

func (c *corpus) compareCuts(t *testing.T, n *counts, program, query string, args []string, cuts map[int]*database.Database) {
	t.Helper()
	args = append([]string{"-db", c.name, "-query", c.queries[query]}, args...)
	ways := slices.Sorted(maps.Keys(cuts))
	whole := plain(t, program, cuts[ways[0]], args)
	for _, k := range ways {
		d := cuts[k]
		got := searched(t, program, d, args, Settings{Mode: Fragments, Cores: k, Processes: k})
		n.all++
		switch {
		case got.stdout != whole.stdout:
			t.Errorf("%s %q on %d fragments: %s", program, args, k, differ(whole.stdout, got.stdout))
		case got.code != whole.code:
			t.Errorf("%s %q on %d fragments: status %d, want %d", program, args, k, got.code, whole.code)
		case got.stderr != whole.stderr:
			t.Errorf("%s %q on %d fragments: on standard error %s", program, args, k, differ(whole.stderr, got.stderr))
		default:
			n.same++
		}
	}
}

// programs lists the programs, with the kind of database and the kind of query that they take.
var programs = []struct {
	name     string
	db       database.Type
	proteins bool // queries
	options  []string
}{
	{"blastn", database.Nucl, false, []string{"-task blastn", "-task blastn-short", "-task dc-megablast", "-word_size 11", "-word_size 16 -reward 1 -penalty -3", "-gapopen 5 -gapextend 2 -reward 2 -penalty -3", "-perc_identity 90", "-dust no", "-dust yes", "-strand plus", "-strand minus", "-ungapped", "-no_greedy", "-qcov_hsp_perc 60", "-max_hsps 1", "-min_raw_gapped_score 50", "-soft_masking false"}},
	{"megablast", database.Nucl, false, []string{"-evalue 1e-20"}},
	{"blastp", database.Prot, true, []string{"-task blastp-short", "-task blastp-fast", "-word_size 2", "-matrix BLOSUM45", "-matrix PAM30 -gapopen 9 -gapextend 1", "-comp_based_stats 0", "-comp_based_stats 1", "-comp_based_stats 3", "-seg yes", "-ungapped -comp_based_stats F", "-use_sw_tback", "-max_hsps 1", "-qcov_hsp_perc 50", "-threshold 15", "-window_size 0", "-xdrop_gap_final 40"}},
	{"blastx", database.Prot, false, []string{"-task blastx-fast", "-query_gencode 11", "-seg no", "-comp_based_stats 0", "-strand plus", "-max_intron_length 500 -sum_stats true", "-matrix BLOSUM80"}},
	{"tblastn", database.Nucl, true, []string{"-task tblastn-fast", "-db_gencode 11", "-seg no", "-comp_based_stats 0", "-max_intron_length 500", "-ungapped -comp_based_stats F"}},
	{"tblastx", database.Nucl, false, []string{"-db_gencode 11 -query_gencode 11", "-seg no", "-strand plus", "-word_size 4"}},
}

// common are options of all programs.
var common = []string{"", "-max_target_seqs 1", "-max_target_seqs 5", "-max_target_seqs 50", "-max_target_seqs 500", "-evalue 1e-5", "-evalue 100", "-dbsize 100000000", "-searchsp 1000000000", "-subject_besthit", "-parse_deflines", "-num_alignments 3", "-show_gis"}

// forPeople are options of the formats up to 4.
var forPeople = []string{"-html", "-num_alignments 2 -num_descriptions 7", "-num_descriptions 3", "-num_alignments 0", "-num_descriptions 0", "-sorthits 1", "-sorthits 3", "-sorthits 4", "-sorthsps 1", "-sorthsps 4", "-line_length 100", "-outfmt 1", "-outfmt 2", "-outfmt 3", "-outfmt 4"}

func TestConformanceGenerated(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(1, 2))
	g := newGenes(r, 5)
	cuts, families := []int{3}, 3
	if soak() {
		cuts, families = cutsIntoAll, 9
	}
	dbs := map[database.Type]*corpus{
		database.Nucl: newCorpus(t, "nucleotides", generated(r, g, false, families), database.Nucl, cuts, database.AddOptions{}),
		database.Prot: newCorpus(t, "proteins", generated(r, g, true, families), database.Prot, cuts, database.AddOptions{}),
	}
	for _, c := range dbs {
		c.query(t, "one-dna", ">one gene\n"+g.dna[0]+"\n")
		c.query(t, "several-dna", ">first\n"+g.dna[1]+"\n>nothing\nACGTACCTTAGGACC\n>\n"+mutated(r, g.dna[2], 10, "ACGT")+"\n>low\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n>last one with a title\n"+g.dna[3]+g.dna[4]+"\n")
		c.query(t, "one-protein", ">one protein\n"+g.protein[0]+"\n")
		c.query(t, "several-protein", ">first\n"+g.protein[1]+"\n>nothing\nWWCCWWHHMM\n>\n"+mutated(r, g.protein[2], 10, "ARNDCQEGHILKMFPSTWYV")+"\n>last one with a title\n"+g.protein[3]+g.protein[4]+"\n")
	}
	matrix(t, func(_ string, kind database.Type) *corpus { return dbs[kind] }, true)
}

// matrix compares all cells of a corpus, which of returns for a program and a type of database. If
// all is set, it compares each cell with all divisions for several queries. Otherwise it compares
// each cell with one division in rotation, and without options that select few of many competing
// hits.
func matrix(t *testing.T, of func(program string, kind database.Type) *corpus, all bool) {
	every := 3
	if !all {
		every = 5
	}
	for at, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			var n counts
			c := of(p.name, p.db)
			kind := "dna"
			if p.proteins {
				kind = "protein"
			}
			defer func() { t.Logf("%d of %d equal", n.same, n.all) }()
			step, cell := nth(t), 0
			sets := append(append([]string{}, common...), p.options...)
			for i, f := range formatsOf(p.name) {
				for j, o := range sets {
					// See TestFragmentsKeepBetterHits.
					if n := strings.TrimPrefix(o, "-max_target_seqs "); !all && (n == "1" || n == "5" || n == "50") {
						continue
					}
					for k, q := range []string{"several-", "one-"} {
						// Without PREMIX_SOAK, test every format with some of the programs, and
						// some options.
						if !soak() && (k > 0 || (i+at)%every != 0 || j > 0 && (i > 3 || (7*i+j)%29 != 0)) {
							continue
						}
						if cell++; cell%step != 0 {
							continue
						}
						if late(t) {
							return
						}
						cuts := c.cuts
						if !all || k > 0 {
							cuts = c.turn(i + j + k)
						}
						c.compareCuts(t, &n, p.name, q+kind, append(strings.Fields(o), "-outfmt", f), cuts)
					}
				}
			}
			for j, o := range forPeople {
				if !all && strings.Contains(o, "-num_descriptions") {
					continue // it selects few hits too: 250 at most
				}
				if cell++; cell%step != 0 {
					continue
				}
				if late(t) {
					return
				}
				if soak() || (j+len(p.name))%8 == 0 {
					c.compare(t, &n, p.name, "several-"+kind, strings.Fields(o))
				}
			}
		})
	}
}

// Searches that fragments cannot answer use the whole database, print a note, and have equal output
// too.
func TestWholeDatabase(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(3, 4))
	g := newGenes(r, 2)
	nucl := newCorpus(t, "nucleotides", generated(r, g, false, 3), database.Nucl, []int{2}, database.AddOptions{})
	prot := newCorpus(t, "proteins", generated(r, g, true, 3), database.Prot, []int{2}, database.AddOptions{})
	var many strings.Builder
	for i := range 40 {
		fmt.Fprintf(&many, ">q%d\n%s\n", i, dna(r, 300))
	}
	nucl.query(t, "dna", ">a gene\n"+g.dna[0]+"\n")
	nucl.query(t, "many", many.String())
	nucl.query(t, "empty", "")
	nucl.query(t, "id", "seq1\n")
	prot.query(t, "protein", ">a protein\n"+g.protein[0]+"\n")
	prot.query(t, "unknown", ">unknown\nXXXXXXXXXXXXXX\n>known\n"+g.protein[1]+"\n")
	// Hits of two HSPs each, longer and shorter ones, with equal total scores.
	gene := dna(r, 700)
	var sums strings.Builder
	for i := range 60 {
		fmt.Fprintf(&sums, ">sum%d\n%s\n", i, gene[:60+i]+dna(r, 300)+gene[700-180+i:])
	}
	even := newCorpus(t, "sums", sums.String(), database.Nucl, []int{2}, database.AddOptions{})
	even.query(t, "gene", ">a gene\n"+gene+"\n")
	for _, c := range []struct {
		corpus         *corpus
		program, query string
		options        string
		note           string
	}{
		{nucl, "blastn", "dna", "-culling_limit 1", "-culling_limit concerns the whole database"},
		{nucl, "blastn", "dna", "-best_hit_overhang 0.1 -best_hit_score_edge 0.1", "-best_hit_overhang concerns"},
		{nucl, "blastn", "dna", "-lcase_masking", "-lcase_masking concerns"},
		{nucl, "blastn", "dna", "-query_loc 20-120", "-query_loc concerns"},
		{even, "blastn", "gene", "-sorthits 2", "-sorthits 2 sorts by sums"},
		{nucl, "blastn", "dna", "-outfmt 12", "-outfmt 12 is made by BLAST+ itself"},
		{nucl, "blastn", "dna", "-nonsense 3", "premix does not know the option -nonsense"},
		{nucl, "blastn", "many", "-outfmt 11", "blastn writes archives"},
		{nucl, "blastn", "empty", "-outfmt 6", "the queries are not FASTA sequences"},
		{nucl, "tblastx", "dna", "-max_hsps 1", "-max_hsps leaves out"},
		{prot, "blastp", "unknown", "-outfmt 5", "reports repeat what BLAST+ warns of"},
		{prot, "blastp", "unknown", "-outfmt 15", "reports repeat what BLAST+ warns of"},
		{prot, "blastp", "protein", "-culling_limit 2", "-culling_limit concerns"},
	} {
		args := append([]string{"-db", c.corpus.name, "-query", c.corpus.queries[c.query]}, strings.Fields(c.options)...)
		o, err := ParseOptions(args)
		if err != nil {
			t.Fatal(err)
		}
		d := c.corpus.cuts[2]
		var out, errs bytes.Buffer
		var notes []string
		err = Run(t.Context(), Request{Program: c.program, Database: d, Options: o, Settings: Settings{Mode: Fragments, Cores: 2}, Stdout: &out, Stderr: &errs,
			Note: func(s string) { notes = append(notes, s) }})
		want := plain(t, c.program, d, args)
		var exit *part.ExitError
		switch {
		case errors.As(err, &exit) && exit.Code != want.code, err == nil && want.code != 0:
			t.Errorf("%s %q: %v, want status %d", c.program, args, err, want.code)
		case err != nil && exit == nil:
			t.Errorf("%s %q: %v", c.program, args, err)
		case out.String() != want.stdout:
			t.Errorf("%s %q: %s", c.program, args, differ(want.stdout, out.String()))
		case errs.String() != want.stderr:
			t.Errorf("%s %q: on standard error %s", c.program, args, differ(want.stderr, errs.String()))
		}
		if len(notes) != 1 || !strings.Contains(notes[0], c.note) {
			t.Errorf("%s %q: noted %q, want %q", c.program, args, notes, c.note)
		}
	}
}

// BLAST+ takes these queries for proteins of Swiss-Prot. The database has another name for one of
// them.
func TestKnownQueries(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(111, 112))
	g := newGenes(r, 2)
	fasta := generated(r, g, true, 1) + ">P03928 as the database calls it\n" + g.protein[0] + "\n"
	c := newCorpus(t, "proteins", fasta, database.Prot, []int{2}, database.AddOptions{ParseIDs: true})
	jobs := [][]byte{
		[]byte(">P03928 as the query is called\n" + g.protein[0] + "\n"),
		[]byte(">P11608 without hits\nWWCCWWHHMM\n"),
		[]byte(">Q3L6Z3 together with others\n" + g.protein[1] + "\n>mine\n" + g.protein[0] + "\n>nothing\nWWCCWWHHMM\n"),
	}
	var n counts
	for _, f := range []string{"0", "5", "11", "6 qseqid sseqid stitle qseq evalue"} {
		args := []string{"-parse_deflines", "-outfmt", f}
		for i, text := range jobs {
			name := fmt.Sprint(i)
			c.query(t, name, string(text))
			c.compare(t, &n, "blastp", name, args)
		}
		c.batched(t, &n, "blastp", jobs, args, Settings{Cores: 2})
	}
	t.Logf("%d of %d equal", n.same, n.all)
}

// BLAST+ warns about one query, in some formats.
func TestConformanceWarned(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(121, 122))
	g := newGenes(r, 1)
	c := newCorpus(t, "nucleotides", generated(r, g, false, 4), database.Nucl, []int{2}, database.AddOptions{})
	c.query(t, "low", ">low\n"+strings.Repeat("A", 30)+"\n>gene\n"+g.dna[0]+"\n")
	var n counts
	for _, f := range formatsOf("blastn") {
		c.compare(t, &n, "blastn", "low", []string{"-soft_masking", "false", "-outfmt", f})
	}
	t.Logf("%d of %d equal", n.same, n.all)
}

// If BLAST+ fails, its message and its status are passed on.
func TestFailures(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(5, 6))
	c := newCorpus(t, "proteins", generated(r, newGenes(r, 2), true, 2), database.Prot, []int{2}, database.AddOptions{})
	c.query(t, "protein", ">a protein\n"+peptide(r, 60)+"\n")
	var n counts
	for _, o := range []string{"-evalue nothing", "-matrix NOSUCH", "-gapopen 1 -gapextend 1", "-word_size 99", "-outfmt 17", "-max_target_seqs 0"} {
		c.compare(t, &n, "blastp", "protein", strings.Fields(o))
	}
}
