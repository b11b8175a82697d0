package service_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"premix/internal/blast/database"
	"premix/internal/blast/service"
)

// counted counts scans, which wait until held is closed.
type counted struct {
	service.Searcher
	held        chan struct{}
	scans, jobs atomic.Int64
}

func (c *counted) Search(ctx context.Context, s service.Scan, out []io.Writer) error {
	c.scans.Add(1)
	c.jobs.Add(int64(len(out)))
	select {
	case <-c.held:
	case <-ctx.Done():
		return ctx.Err()
	}
	return c.Searcher.Search(ctx, s, out)
}

// The output for each job of a common scan is equal to the output of BLAST+ for this job alone,
// byte by byte.
func TestSplitExactly(t *testing.T) {
	w := newWorld(t, &service.Programs{}, nil)
	q := func(name string, i, from, to int) string {
		return fmt.Sprintf(">%s\n%s\n", name, w.genes[i][from:to])
	}
	jobs := map[string][]string{"dna": {
		q("a <&> \"one\"", 1, 0, 300) + q("same", 2, 50, 250),
		">nothing\nACGTTTGACCCATGCATGCAAAATGCCGGGTTTAAACCCTTGAGTACA\n",
		q("same", 3, 0, 600),
		">short\n" + w.genes[5][3:24] + "\n",
		q("same", 3, 0, 600) + ">none\nTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTT\n" + q("#7 hits found", 4, 100, 400),
		">\n" + w.genes[9][:200] + "\n",
	}, "aa": {
		">p\nMKVLAAGIVGLLLAQWERTYHHKLPNMSTVAGHIKDEFLRN\n",
		">p\nACDEFGHIKLMNPQRSTVWYACDEFGHIKLMNPQRSTVWY\n>q\nGGGGGGGGGGGGGGGGGGGGG\n",
	}}
	for _, c := range []struct {
		program, db, outfmt string
		args                []string
	}{
		{"blastn", "dna", "5", nil},
		{"blastn", "dna", "6", []string{"-task", "blastn"}},
		{"blastn", "dna", "7 qseqid sseqid evalue qseq", nil},
		{"blastn", "dna", "10", nil},
		{"blastn", "dna", "15", []string{"-evalue", "1000", "-word_size", "7"}},
		{"blastn", "dna", "0", nil},
		{"blastn", "dna", "11", nil},
		{"blastn", "dna", "17", nil},
		{"tblastx", "dna", "5", nil},
		{"blastp", "aa", "15", []string{"-evalue", "1000"}},
		{"blastp", "aa", "5", []string{"-evalue", "1000"}},
	} {
		t.Run(c.program+" "+c.outfmt, func(t *testing.T) {
			d, err := database.Open(w.options.Home, c.db)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			scan := service.Scan{Program: c.program, Database: d, Args: c.args, Outfmt: c.outfmt}
			var out []io.Writer
			var got []*bytes.Buffer
			for _, text := range jobs[c.db] {
				scan.Queries = append(scan.Queries, []byte(text))
				got = append(got, &bytes.Buffer{})
				out = append(out, got[len(got)-1])
			}
			if err := (&service.Programs{}).Search(t.Context(), scan, out); err != nil {
				t.Fatal(err)
			}
			for i, text := range jobs[c.db] {
				if want := w.want(c.program, c.db, text, append([]string{"-outfmt", c.outfmt}, c.args...)...); got[i].String() != want {
					t.Errorf("job %d: got\n%.3000s\nwant\n%.3000s", i, got[i], want)
				}
			}
		})
	}
}

// One scan makes all results of the jobs that waited during the scan before.
func TestManyInOneScan(t *testing.T) {
	c := &counted{Searcher: &service.Programs{}, held: make(chan struct{})}
	w := newWorld(t, c, func(o *service.Options) { o.Scans = 1 })
	var ids []string
	for i := range 30 {
		ids = append(ids, w.submit(map[string]any{"program": "blastn", "database": "dna", "query": ">x\n" + w.genes[i] + "\n", "format": "xml"}))
	}
	close(c.held)
	for i, id := range ids {
		if got, want := w.result(id, ""), w.want("blastn", "dna", ">x\n"+w.genes[i]+"\n", "-outfmt", "5"); got != want {
			t.Errorf("job %d: got\n%.500s\nwant\n%.500s", i, got, want)
		}
	}
	// The first scan has the jobs that had arrived by its start, the second one all later ones.
	if c.jobs.Load() != 30 || c.scans.Load() > 2 {
		t.Errorf("%d jobs in %d scans", c.jobs.Load(), c.scans.Load())
	}
}
