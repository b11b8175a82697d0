package diamond

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
)

// corpus is a set of proteins as a database of DIAMOND's own, and as premix makes it.
type corpus struct {
	home, whole      string
	proteins, genes  string // queries
	byFragments      map[int]*database.Database
	letters, targets int
}

const aminoAcids = "ARNDCQEGHILKMFPSTWYV"

// newCorpus makes databases of generated families, and of real proteins if PREMIX_TESTDATA is
// set: every third of archaea and of insertion sequences.
func newCorpus(t *testing.T, fragments ...int) *corpus {
	t.Helper()
	if _, err := exec.LookPath("diamond"); err != nil {
		t.Skip("diamond is not on PATH: scripts/setup.sh test")
	}
	dir := t.TempDir()
	t.Setenv("PREMIX_BLAST_RAM", filepath.Join(dir, "ram"))
	c := &corpus{home: filepath.Join(dir, "home"), whole: filepath.Join(dir, "whole"), proteins: filepath.Join(dir, "q.faa"), genes: filepath.Join(dir, "q.fna"), byFragments: map[int]*database.Database{}}
	r := rand.New(rand.NewPCG(1, 2))
	letters := func(n int, alphabet string) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = alphabet[r.IntN(len(alphabet))]
		}
		return b
	}
	var list []string
	for family := range 40 {
		first := letters(80+r.IntN(400), aminoAcids)
		for range 1 + r.IntN(60) {
			s := bytes.Clone(first)
			for i := range s {
				if r.IntN(100) < 5*(family%10) {
					s[i] = aminoAcids[r.IntN(len(aminoAcids))]
				}
			}
			list = append(list, string(s[r.IntN(20):len(s)-r.IntN(20)]))
		}
	}
	if data := os.Getenv("PREMIX_TESTDATA"); data != "" {
		for _, name := range []string{"prokka_Archaea_sprot.faa", "prokka_Bacteria_IS.faa"} {
			text, err := os.ReadFile(filepath.Join(data, "blast", name))
			if err != nil {
				t.Fatal(err)
			}
			for i, record := range strings.Split(string(text), ">") {
				if _, s, ok := strings.Cut(record, "\n"); ok && i%3 == 0 {
					list = append(list, strings.ReplaceAll(s, "\n", ""))
				}
			}
		}
	}
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	var db, proteins, genes strings.Builder
	codons := map[byte]string{'A': "GCT", 'R': "CGT", 'N': "AAT", 'D': "GAT", 'C': "TGT", 'Q': "CAA", 'E': "GAA", 'G': "GGT", 'H': "CAT", 'I': "ATT",
		'L': "CTT", 'K': "AAA", 'M': "ATG", 'F': "TTT", 'P': "CCT", 'S': "TCT", 'T': "ACT", 'W': "TGG", 'Y': "TAT", 'V': "GTT"}
	for i, s := range list {
		fmt.Fprintf(&db, ">p%d of\ttabs\n%s\n", i, s)
		c.letters += len(s)
		if i%60 == 0 {
			fmt.Fprintf(&proteins, ">q%d a query\n%s\n", i, s)
			fmt.Fprintf(&genes, ">g%d\n%s", i, letters(r.IntN(30), "ACGT"))
			for j := range len(s) {
				genes.WriteString(codons[s[j]])
			}
			fmt.Fprintf(&genes, "%s\n", letters(r.IntN(30), "ACGT"))
		}
	}
	c.targets = len(list)
	source := filepath.Join(dir, "all.faa")
	for path, text := range map[string]string{source: db.String(), c.proteins: proteins.String(), c.genes: genes.String()} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if said, err := exec.Command("diamond", "makedb", "--quiet", "--in", source, "-d", c.whole).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for _, n := range fragments {
		name := "k" + strconv.Itoa(n)
		if _, _, err := database.Add(t.Context(), c.home, database.AddOptions{Name: name, Source: source, Program: database.DIAMOND, Fragments: n}); err != nil {
			t.Fatal(err)
		}
		d, err := database.Open(c.home, name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		if len(d.Fragments) != n {
			t.Fatalf("%d fragments instead of %d", len(d.Fragments), n)
		}
		c.byFragments[n] = d
	}
	return c
}

// plain returns the output of DIAMOND for the whole database.
func (c *corpus) plain(t *testing.T, tool string, args []string) string {
	t.Helper()
	cmd := exec.Command("diamond", append([]string{tool, "-d", c.whole, "--quiet"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("diamond %s: %v: %s", args, err, errs.Bytes())
	}
	return out.String()
}

// searched returns the output of a search of the fragments, on other machines if remote is not
// nil.
func searched(t *testing.T, d *database.Database, tool string, args []string, remote part.Remote) string {
	t.Helper()
	o, err := ParseOptions(append([]string{"-d", d.Name}, args...))
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if err := Run(t.Context(), Request{Tool: tool, Database: d, Options: o, Stdout: &out, Stderr: &errs, Remote: remote}); err != nil {
		t.Fatalf("%s %s, %d fragments: %v: %s", tool, args, len(d.Fragments), err, errs.Bytes())
	}
	return out.String()
}

// The lines are those that plain DIAMOND prints for the whole database, with the same options. Each
// list of options is compared for two numbers of fragments, and with PREMIX_SOAK=blast for 1 to 8.
func TestConformance(t *testing.T) {
	cuts := []int{1, 2, 3, 5, 8}
	soak := os.Getenv("PREMIX_SOAK") == "blast"
	if soak {
		cuts = []int{1, 2, 3, 4, 5, 6, 7, 8}
	}
	c := newCorpus(t, cuts...)
	most := "-f 6 " + columns
	lines, equal, all := 0, 0, 0
	for i, x := range []struct{ tool, args string }{
		{"blastp", ""},
		{"blastp", "-k 1"},
		{"blastp", "-k 100 --sensitive"},
		{"blastp", "-k 0 -e 10"},
		{"blastp", "--very-sensitive -k 100"},
		{"blastp", strings.ReplaceAll(most, " qseq_translated", "")},
		{"blastp", "--comp-based-stats 0"},
		{"blastp", "--comp-based-stats 2 -k 100"},
		{"blastp", "--comp-based-stats 4"},
		{"blastp", "--gapopen 9 --gapextend 2 --masking 0"},
		{"blastp", "--freq-masking"},
		{"blastp", "--no-self-hits --id 50 --query-cover 50"},
		{"blastp", "--min-score 60 --dbsize 1000000000"},
		{"blastp", "--swipe -k 10"},
		{"blastp", "--ext-chunk-size 4 -k 3"}, // the order in which targets are extended matters
		{"blastp", "--algo 1"},
		{"blastx", ""},
		{"blastx", "-k 1 --very-sensitive"},
		{"blastx", most + " -k 100 --sensitive"},
		{"blastx", "--strand minus -e 10"},
	} {
		query := c.proteins
		if x.tool == "blastx" {
			query = c.genes
		}
		for k, n := range cuts {
			if !soak && k != i%len(cuts) && k != (i+2)%len(cuts) {
				continue
			}
			d := c.byFragments[n]
			args := append(strings.Fields(x.args), "-q", query, "-b", database.BlockValue(d.Block))
			want := c.plain(t, x.tool, args)
			if got := searched(t, d, x.tool, args, nil); got != want {
				t.Errorf("%s %s, %d fragments: %s", x.tool, x.args, n, differ(want, got))
			} else {
				equal++
			}
			all++
			lines += strings.Count(want, "\n")
		}
	}
	t.Logf("%d of %d equal: %d lines compared, of %d proteins with %d letters", equal, all, lines, c.targets, c.letters)
}

func differ(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d of %d is %q, want %q", i+1, len(a), b[i], a[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(b), len(a))
}

// Other machines merge their fragments, and this one the rest.
func TestRemote(t *testing.T) {
	c := newCorpus(t, 5)
	d := c.byFragments[5]
	args := []string{"-q", c.proteins, "-k", "10", "-b", database.BlockValue(d.Block)}
	dir := t.TempDir()
	remote := func(ctx context.Context, o part.Order, queries []string) ([]part.Result, error) {
		o.Fragments = []part.Range{{0, 3}, {3, 5}}
		return part.InDirectory(dir, func(ctx context.Context, s part.Directory) error {
			for i := range s.Count {
				if err := part.SearchIn(ctx, part.Programs{Parts{}}, c.home, s.Path, i, os.Stderr); err != nil {
					return err
				}
			}
			return nil
		})(ctx, o, queries)
	}
	if want, got := c.plain(t, "blastp", args), searched(t, d, "blastp", args, remote); got != want {
		t.Error(differ(want, got))
	}
}

func TestFailure(t *testing.T) {
	c := newCorpus(t, 2)
	d := c.byFragments[2]
	o, err := ParseOptions([]string{"-d", "k2", "-q", c.proteins, "--query-gencode", "no", "-b", database.BlockValue(d.Block)})
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	err = Run(t.Context(), Request{Tool: "blastp", Database: d, Options: o, Stdout: &out, Stderr: &errs})
	if err == nil || out.Len() > 0 || errs.Len() == 0 {
		t.Errorf("%v, %q on standard output, %q on standard error", err, out.Bytes(), errs.Bytes())
	}
}
