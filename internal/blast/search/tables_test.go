package search

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"premix/internal/blast/archive"
	"premix/internal/blast/database"
	"premix/internal/blast/part"
)

// Tables are merged without archives only where that gives the rows of BLAST+.
func TestTabular(t *testing.T) {
	for _, c := range []struct {
		program, args string
		unique, want  bool
	}{
		{"blastn", "-outfmt 6", true, true},
		{"blastn", "-outfmt 7", true, true},
		{"blastn", "-outfmt 10 -task blastn -max_hsps 1", true, true},
		{"megablast", "-outfmt 6", true, true},
		{"blastn", "-outfmt 6 -parse_deflines", true, false},
		{"blastn", "-outfmt 6", false, false}, // two sequences with one id look like one
		{"blastn", "-outfmt 6 -ungapped", true, false},
		{"blastn", "-outfmt 6 -sum_stats true", true, false},
		{"blastn", "-outfmt 6 -show_gis", true, false},
		{"blastn", "-outfmt 5", true, false},
		{"blastn", "-outfmt 0", true, false},
		{"blastp", "-outfmt 6", true, false},
		{"tblastx", "-outfmt 6", true, false},
	} {
		o, err := ParseOptions(strings.Fields(c.args))
		if err != nil {
			t.Fatal(err)
		}
		r := Request{Program: c.program, Database: &database.Database{UniqueIDs: c.unique}, Options: o}
		if got := r.tabular() != nil; got != c.want {
			t.Errorf("%s %s, unique ids %v: %v, want %v", c.program, c.args, c.unique, got, c.want)
		}
	}
	for columns, want := range map[string]bool{"std": true, "qseqid score staxids": true, "std stitle": false, "std salltitles": false, "std sscinames": false, "std sskingdom": false, "unheard": false} {
		o, err := ParseOptions([]string{"-outfmt", "6 " + columns})
		if err != nil {
			t.Fatal(err)
		}
		r := Request{Program: "blastn", Database: &database.Database{UniqueIDs: true}, Options: o}
		if got := r.tabular() != nil; got != want {
			t.Errorf("columns %s: %v, want %v", columns, got, want)
		}
	}
}

// Tables that are cut short, or whose rows are not as expected, are refused.
func TestTableReader(t *testing.T) {
	l := layoutWith(6, "qseqid", "sseqid", "score", "evalue")
	head := "# BLASTN\n# Query: q\n# Database: x\n# Fields: query id, subject id, score, evalue\n"
	whole := head + "# 2 hits found\nq\ta\t10\t1e-5\nq\tb\t9\t1e-4\n# BLAST processed 1 queries\n"
	read := func(text string) error {
		m := &tableMerger{s: &scan{opt: &Options{}}}
		r := newTableReader(l, strings.NewReader(text))
		for {
			b, err := r.next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				_, _, err = m.one([]*table{b})
			}
			if err != nil {
				return err
			}
		}
	}
	if err := read(whole); err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) {
		if read(whole[:n]) == nil {
			t.Fatalf("%d of %d bytes were taken for a whole table", n, len(whole))
		}
	}
	for old, replaced := range map[string]string{
		"processed 1": "processed 2",
		"\tb\t9":      "\tb\t11",             // not in the order of scores
		"1e-4":        "1e-6",                // a lower e-value for a lower score
		"\tb\t9\t1e":  "\tb\tc\t9\t1e",       // a tab within a column
		"\tb\t":       "\tgnl|BL_ORD_ID|3\t", // a number, which counts from the fragment
		"\t10\t":      "\tten\t",
	} {
		if text := strings.Replace(whole, old, replaced, 1); read(text) == nil {
			t.Errorf("accepted:\n%s", text)
		}
	}
}

// Equal hits are in the order of falling numbers of their sequences, and lists are cut as BLAST+
// cuts them.
func TestTableMerger(t *testing.T) {
	hit := func(id string, score int) tableHit { return tableHit{score, 1 / float64(score), []byte(id + "\n")} }
	m := &tableMerger{s: &scan{tool: "blastn", opt: &Options{hits: 3}}}
	b, lists, err := m.one([]*table{{head: []byte("none\n")}, {hits: []tableHit{hit("a", 9), hit("b", 7), hit("c", 7)}}, {hits: []tableHit{hit("d", 9), hit("e", 7)}}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(b.text()), "# 3 hits found\nd\na\ne\n"; got != want || lists != (archive.Lists{Limit: 3, Hits: 5}) {
		t.Errorf("got %q, %+v, want %q", got, lists, want)
	}
}

// Queries are cut where BLAST+ ends its batches, and what other machines find for the pieces is
// equal to a search of all queries.
func TestPieces(t *testing.T) {
	needBLAST(t)
	r := rand.New(rand.NewPCG(201, 202))
	g := newGenes(r, 6)
	c := newCorpus(t, "nucleotides", generated(r, g, false, 4), database.Nucl, []int{3}, database.AddOptions{})
	var fasta strings.Builder
	for i := range 60 {
		// Genes among random letters, at the edges of queries too, in lines of different lengths.
		text := g.dna[i%len(g.dna)] + dna(r, 100+r.IntN(2000))
		if i%2 == 0 {
			text = dna(r, 50+r.IntN(500)) + g.dna[(i+1)%len(g.dna)]
		}
		fmt.Fprintf(&fasta, ">q%d a query\n", i)
		for len(text) > 70 && i%3 > 0 {
			fmt.Fprintln(&fasta, text[:70])
			text = text[70:]
		}
		fmt.Fprintln(&fasta, text)
	}
	c.query(t, "q", fasta.String())
	q, err := examine(c.queries["q"])
	if err != nil {
		t.Fatal(err)
	}
	const batch = 7000
	s := &scan{queries: q, dir: t.TempDir(), batch: batch}
	pieces, err := s.pieces()
	if err != nil || len(pieces) < 8 {
		t.Fatalf("%d pieces, %v", len(pieces), err)
	}
	// BLAST+ writes an archive for each batch.
	d := c.cuts[3]
	t.Setenv("BATCH_SIZE", strconv.Itoa(batch))
	batches := archive.NewReader(strings.NewReader(plain(t, "blastn", d, []string{"-db", c.name, "-query", q.path, "-outfmt", "11"}).stdout))
	joined := 0
	for i, path := range pieces {
		piece, err := examine(path)
		if err != nil {
			t.Fatal(err)
		}
		joined += piece.count
		h, err := batches.Next()
		if err != nil || len(h.Queries) != piece.count {
			t.Fatalf("piece %d has %d queries, and the batch of BLAST+ %d: %v", i, piece.count, len(h.Queries), err)
		}
	}
	if _, err := batches.Next(); !errors.Is(err, io.EOF) || joined != q.count {
		t.Errorf("%d of %d queries are in pieces: %v", joined, q.count, err)
	}
	for _, args := range [][]string{{"-outfmt", "6"}, {"-outfmt", "7", "-task", "blastn"}, {"-outfmt", "10", "-max_target_seqs", "2"}, {"-outfmt", "6 qseqid sacc btop", "-strand", "minus"}} {
		args = append([]string{"-db", c.name, "-query", q.path}, args...)
		want := plain(t, "blastn", d, args)
		for runs := 1; runs <= 3; runs++ {
			o, err := ParseOptions(args)
			if err != nil {
				t.Fatal(err)
			}
			out, request := &held{w: &bytes.Buffer{}}, Request{Program: "blastn", Database: d, Options: o}
			s := request.scan(t.TempDir(), q)
			s.batch, s.table, s.away = batch, request.tabular(), machines(t, d, runs)
			if err := request.tables(t.Context(), s, out); err != nil {
				t.Fatal(err)
			}
			if got := string(out.kept); got != want.stdout || string(s.stderr) != want.stderr {
				t.Errorf("%q in %d runs: %s", args, runs, differ(want.stdout+want.stderr, got+string(s.stderr)))
			}
		}
	}
}

// machines returns a Remote that searches each run of the pieces by itself, and in each run the
// first fragment apart from the others.
func machines(t *testing.T, d *database.Database, runs int) part.Remote {
	return func(ctx context.Context, o part.Order, pieces []string) ([]part.Result, error) {
		if err := (Parts{}).Check(&o); err != nil {
			return nil, err
		}
		dir := t.TempDir()
		var list []part.Result
		for k := range runs {
			first, end := k*len(pieces)/runs, (k+1)*len(pieces)/runs
			in, err := part.OpenQueries(pieces[first:end])
			if err != nil {
				return nil, err
			}
			defer in.Close()
			queries := filepath.Join(dir, fmt.Sprint("queries-", k))
			text, err := io.ReadAll(in)
			if err == nil {
				err = os.WriteFile(queries, text, 0o600)
			}
			if err != nil {
				return nil, err
			}
			for _, fragments := range [][2]int{{0, 1}, {1, len(d.Fragments)}} {
				own := *d
				own.Fragments = d.Fragments[fragments[0]:fragments[1]]
				var out bytes.Buffer
				if err := (Parts{}).Search(ctx, &o, &own, queries, false, &out, io.Discard); err != nil {
					return nil, err
				}
				path := filepath.Join(dir, fmt.Sprint(first, "-", fragments[0]))
				if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
					return nil, err
				}
				list = append(list, part.Result{Piece: first, First: fragments[0], Path: path})
			}
		}
		return list, nil
	}
}
