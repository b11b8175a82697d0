package main

import (
	"bytes"
	"encoding/json"
	"fmt"
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
)

// conformPrograms are the programs, each with the database and the queries that it takes, and
// options of its own. Few places in the list of hits make most queries crowded.
var conformPrograms = []struct {
	name, db, queries string
	options           []string
}{
	{"blastn", "nucl", "dna.fa", []string{"-task blastn -max_target_seqs 20", "-word_size 11 -strand plus", "-ungapped"}},
	{"megablast", "nucl", "dna.fa", []string{"", "-evalue 1e-20 -max_target_seqs 3"}},
	{"blastp", "prot", "protein.fa", []string{"", "-comp_based_stats 0 -max_target_seqs 30", "-task blastp-fast", "-max_hsps 1"}},
	{"blastx", "prot", "dna.fa", []string{"-max_target_seqs 40", "-query_gencode 11", "-seg no"}},
	{"tblastn", "nucl", "protein.fa", []string{"-max_target_seqs 60", "", "-db_gencode 11"}},
	{"tblastx", "nucl", "short.fa", []string{"-max_target_seqs 10", "-strand plus -evalue 1e-3"}},
}

var conformFormats = []string{"6", "0", "5", "7", "10", "15", "11", "4", "6 qseqid sseqid stitle qcovs qseq btop evalue", "2", "17"}

// Searches on nodes that have their own fragments, and nothing else, print what BLAST+ prints
// for a database of makeblastdb: for databases of large gene families, which are cut into
// 1 to 32 fragments, each of which has a node of its own.
func TestBlastClusterConformance(t *testing.T) {
	t.Parallel()
	// Short: each format, and each program on each number of fragments. Long: with each number of
	// fragments all formats of all programs, and the options in turns.
	cuts, every := []int{2, 8}, 9
	if os.Getenv("PREMIX_SOAK") == "blast" {
		cuts, every = nil, 1
		if n, err := strconv.Atoi(os.Getenv("PREMIX_SOAK_NTH")); err == nil && n > 0 {
			every = n
			t.Logf("one cell of %d only: PREMIX_SOAK_NTH", n)
		}
		first := 1
		if n, err := strconv.Atoi(os.Getenv("PREMIX_SOAK_FROM")); err == nil && n > 0 {
			first = n
			t.Logf("from %d fragments on: PREMIX_SOAK_FROM", n)
		}
		for k := first; k <= 32; k++ {
			cuts = append(cuts, k)
		}
	}
	s := newClusterHead(t)
	for name, text := range conformTexts() {
		s.write(t, name, text)
	}
	if err := os.Mkdir(filepath.Join(s.dir, "plain"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"nucl", "prot"} {
		s.plainRun(t, "makeblastdb", "-in", "../"+kind+".fa", "-dbtype", kind, "-title", kind, "-out", kind)
	}
	all, equal, crowded := 0, 0, 0
	for turn, k := range cuts {
		if end, ok := t.Deadline(); ok && len(cuts) > 2 && time.Until(end) < 5*time.Minute { // a round on a busy machine
			t.Errorf("the time is over before %d fragments: give more with -timeout", k)
			break
		}
		s.add(t, k-len(s.nodes), "64M")
		for _, kind := range []string{"nucl", "prot"} {
			s.ok(t, "blast", "db", "add", kind+".fa", "--name", kind, "--title", kind, "--type", kind, "--fragments", fmt.Sprint(k), "--store", "store")
			s.placed(t, kind, k)
		}
		for i, p := range conformPrograms {
			before, searches := s.answered(t), int64(0)
			for j, format := range conformFormats {
				if format == "17" && p.db+p.queries != "nucldna.fa" || (i+j+turn)%every != 0 {
					continue
				}
				searches++
				args := append([]string{"-db", p.db, "-query", p.queries, "-outfmt", format}, strings.Fields(p.options[(i+2*j+turn)%len(p.options)])...)
				want, wantCode := s.plainSearch(t, p.name, args)
				got, said, code := s.run(append([]string{"blast", p.name, "--nodes", s.list(), "--verbose"}, args...)...)
				all++
				if strings.Contains(said, "searched for in the whole database") {
					crowded++
				}
				if got = undated(got); format == "17" {
					got, want = uncommanded(got), uncommanded(want)
				}
				if got != want || code != wantCode || strings.Contains(said, "this machine searches") {
					t.Errorf("%s %q on %d nodes: status %d, want %d, %s\n%s", p.name, args, k, code, wantCode, said, firstDifference(got, want))
					continue
				}
				equal++
			}
			for n, count := range s.answered(t) {
				if count < before[n]+searches {
					t.Errorf("%s: node %d of %d has ended %d searches of %d", p.name, n, k, count-before[n], searches)
				}
			}
		}
		s.ok(t, "blast", "cluster", "evict", "nucl", "--nodes", s.list())
		s.ok(t, "blast", "cluster", "evict", "prot", "--nodes", s.list())
		s.await(t, "nothing is in memory", func(f [][]int) bool { return len(slices.Concat(f...)) == 0 })
		s.ok(t, "blast", "db", "rm", "nucl", "prot")
		t.Logf("up to %d fragments: %d of %d equal", k, equal, all)
	}
	t.Logf("%d of %d equal, %d of them with crowded queries", equal, all, crowded)
	if crowded == 0 || crowded == all {
		t.Errorf("%d of %d searches have crowded queries: some should", crowded, all)
	}
}

// placed places a database, and checks that each node has the files of its own fragments in
// memory, and no others anywhere.
func (s *clusterScene) placed(t *testing.T, name string, fragments int) {
	t.Helper()
	var plan struct {
		Nodes []struct {
			Node      string
			Fragments []int
		}
	}
	text := s.ok(t, "blast", "cluster", "warm", name, "--nodes", s.list(), "--replicas", "1", "--json")
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for i, n := range s.nodes {
		if plan.Nodes[i].Node != n.address {
			t.Fatalf("the plan of node %s is at the place of %s", plan.Nodes[i].Node, n.address)
		}
		seen += len(plan.Nodes[i].Fragments)
		if len(plan.Nodes[i].Fragments) != 1 {
			t.Errorf("node %d of %d has the fragments %v, want one", i, fragments, plan.Nodes[i].Fragments)
		}
		dirs, err := filepath.Glob(filepath.Join(n.ram+"-node", name+"-*"))
		if err != nil || len(dirs) != 1 {
			t.Fatalf("node %d has the directories %q (%v)", i, dirs, err)
		}
		desc, err := database.ReadDescription(dirs[0])
		if err != nil {
			t.Fatal(err)
		}
		var want, got []string
		for _, f := range plan.Nodes[i].Fragments {
			for _, file := range desc.Files {
				if slices.ContainsFunc(desc.Fragments[f].Volumes, func(v string) bool { return strings.HasPrefix(file.Name, v+".") }) {
					want = append(want, file.Name)
				}
			}
		}
		entries, err := os.ReadDir(filepath.Join(dirs[0], "data"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			got = append(got, e.Name())
		}
		slices.Sort(want)
		if want = slices.Compact(want); !slices.Equal(got, want) {
			t.Errorf("node %d has the files %q, want %q", i, got, want)
		}
		// Nothing of a database is on its disk.
		if files, err := filepath.Glob(filepath.Join(n.home, "*", "*.[np]??")); err != nil || len(files) > 0 {
			t.Errorf("node %d has %q on its disk (%v)", i, files, err)
		}
	}
	if seen != fragments {
		t.Errorf("the nodes have %d fragments, want %d", seen, fragments)
	}
}

// answered returns the number of searches that each node has ended.
func (s *clusterScene) answered(t *testing.T) (list []int64) {
	t.Helper()
	for _, row := range s.status(t) {
		if row.Status == nil {
			t.Fatalf("node %s does not answer", row.Address)
		}
		list = append(list, row.Status.Answered)
	}
	return list
}

func (s *clusterScene) plainRun(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = filepath.Join(s.dir, "plain")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// plainSearch returns the output and the status of BLAST+ on a database of makeblastdb.
func (s *clusterScene) plainSearch(t *testing.T, program string, args []string) (string, int) {
	t.Helper()
	if program == "megablast" {
		program = "blastn"
	}
	args = slices.Clone(args)
	for i := range args {
		if strings.HasSuffix(args[i], ".fa") {
			args[i] = "../" + args[i]
		}
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = filepath.Join(s.dir, "plain")
	var out bytes.Buffer
	cmd.Stdout = &out
	_ = cmd.Run() // the status is compared
	return undated(out.String()), cmd.ProcessState.ExitCode()
}

// uncommanded returns SAM without the command line, which names the files of queries.
func uncommanded(sam string) string {
	var b strings.Builder
	for line := range strings.Lines(sam) {
		if !strings.HasPrefix(line, "@PG\t") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func firstDifference(got, want string) string {
	g, w := strings.SplitAfter(got, "\n"), strings.SplitAfter(want, "\n")
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			return fmt.Sprintf("line %d of %d and %d:\n got %.300q\nwant %.300q", i+1, len(g), len(w), strings.Join(g[min(i, len(g)):min(i+1, len(g))], ""), strings.Join(w[min(i, len(w)):min(i+1, len(w))], ""))
		}
	}
	return ""
}

// conformTexts returns databases with a family of 560 members, more than a list of hits holds
// by default, one of 70, and one of 12, in mixed order among random sequences; and queries.
func conformTexts() map[string]string {
	r := rand.New(rand.NewPCG(241, 242))
	amino := "ARNDCQEGHILKMFPSTWYV"
	codon := map[byte]string{'A': "GCT", 'R': "CGT", 'N': "AAC", 'D': "GAC", 'C': "TGC", 'Q': "CAG", 'E': "GAA", 'G': "GGT", 'H': "CAC", 'I': "ATC",
		'L': "CTG", 'K': "AAA", 'M': "ATG", 'F': "TTC", 'P': "CCG", 'S': "TCT", 'T': "ACC", 'W': "TGG", 'Y': "TAC", 'V': "GTT"}
	random := func(n int, alphabet string) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = alphabet[r.IntN(len(alphabet))]
		}
		return string(b)
	}
	coding := func(p string) string {
		var b strings.Builder
		for i := range len(p) {
			b.WriteString(codon[p[i]])
		}
		return b.String()
	}
	mutated := func(p string, changes int) string {
		b := []byte(p)
		for range changes {
			b[r.IntN(len(b))] = amino[r.IntN(len(amino))]
		}
		return string(b)
	}
	var members []string
	var genes []string
	for f, size := range []int{560, 70, 12} {
		gene := random(90+40*f, amino)
		genes = append(genes, gene)
		for i := range size {
			// Every third is equal to another one, so that there are ties.
			m := mutated(gene, 2+i%40)
			members = append(members, m)
			if i%3 == 0 {
				members = append(members, m)
			}
		}
	}
	for range 200 {
		members = append(members, random(120, amino))
	}
	r.Shuffle(len(members), func(i, k int) { members[i], members[k] = members[k], members[i] })
	var nucl, prot strings.Builder
	for i, m := range members {
		fmt.Fprintf(&prot, ">p%d a protein of %d letters\n%s\n", i, len(m), random(r.IntN(20), amino)+m)
		fmt.Fprintf(&nucl, ">n%d [organism=Generated %s]\n%s\n", i, strconv.Itoa(i%7), random(r.IntN(60), "ACGT")+coding(m)+random(r.IntN(60), "ACGT"))
	}
	var dna, protein strings.Builder
	for i, g := range genes {
		fmt.Fprintf(&protein, ">family%d a protein\n%s\n", i, mutated(g, 4))
		fmt.Fprintf(&dna, ">family%d\n%s\n", i, random(20, "ACGT")+coding(mutated(g, 4)))
	}
	return map[string]string{
		"nucl.fa": nucl.String(), "prot.fa": prot.String(),
		"dna.fa":     dna.String() + ">nothing\nACGTACCTTAGGACC\n",
		"protein.fa": protein.String() + ">nothing\nWWCCWWHHMM\n",
		"short.fa":   ">two\n" + coding(genes[2])[:150] + "\n>one\n" + coding(genes[1])[:90] + "\n",
	}
}
