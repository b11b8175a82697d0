package search

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"premix/internal/blast/archive"
	"premix/internal/blast/part"
	"premix/internal/kit/exit"
	"premix/internal/kit/regex"
)

// Job is one of the jobs of a common scan.
type Job struct {
	Queries []byte    // FASTA; begins with a header
	Out     io.Writer // gets the output that BLAST+ would print for these queries alone
}

// Batched searches for the queries of several jobs in one scan of the database. Each job
// gets the output that [Run] would print for it alone. The options of r must not name
// queries or an output; Stdin and Stdout are not used. If a common scan is not possible,
// each job is searched for by itself.
//
// Together fails as a whole: if one of the queries makes BLAST+ fail, jobs may have got no
// output. Warnings go to Stderr only for jobs that are searched for by themselves.
func Batched(ctx context.Context, r Request, jobs []Job) error {
	o := r.Options
	if o.Query != "" || o.Out != "" || o.help {
		return exit.Errorf(exit.Usage, "leave -query and -out out", "a group of searches has its queries and outputs elsewhere")
	}
	if err := known(r.Program); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "premix-blast-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	g := &group{Request: r, jobs: jobs}
	var single []int
	for i, j := range jobs {
		if len(jobs) > 1 && !nameless().Match(j.Queries) && bytes.HasPrefix(j.Queries, []byte(">")) && (!r.links() || headers(j.Queries) == 1) {
			g.which = append(g.which, i)
		} else {
			single = append(single, i)
		}
	}
	for k, which := range g.batches() {
		if len(which) == 1 {
			// The job may be longer than a batch, which would end in its middle.
			single = append(single, which...)
			continue
		}
		g.which, g.dir = which, filepath.Join(dir, "batch-"+strconv.Itoa(k))
		if err := os.Mkdir(g.dir, 0o700); err != nil {
			return err
		}
		again, err := g.search(ctx)
		var exit *part.ExitError
		switch {
		case errors.As(err, &exit) || ctx.Err() != nil:
			return err
		case err != nil:
			if r.Note != nil {
				r.Note(fmt.Sprintf("a common search cannot be taken apart (%v): each is searched for on its own", err))
			}
			again = g.which
		}
		single = append(single, again...)
	}
	for _, i := range single {
		if err := g.single(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// nameless matches queries without an id: BLAST+ prints their number in place of it, in the
// middle of rows.
var nameless = regex.Lazy(`(?m)^>\s`)

// group is one call of [Batched].
type group struct {
	Request
	jobs  []Job
	which []int  // indexes of the jobs in the common scan
	dir   string // for its files
}

// batches returns the jobs of each common scan. For blastn, each is one batch of BLAST+.
func (g *group) batches() (list [][]int) {
	if len(g.which) == 0 {
		return nil
	}
	if !g.unlinked() {
		return [][]int{g.which}
	}
	letters := 0
	for _, i := range g.which {
		n := len(g.jobs[i].Queries)
		if letters += n; len(list) == 0 || letters > maxBatch {
			letters = n
			list = append(list, nil)
		}
		list[len(list)-1] = append(list[len(list)-1], i)
	}
	return list
}

// single searches for one job.
func (g *group) single(ctx context.Context, i int) error {
	r := g.Request
	r.Stdin, r.Stdout = bytes.NewReader(g.jobs[i].Queries), g.jobs[i].Out
	return Run(ctx, r)
}

// search makes the common scan. It returns the jobs that must be searched for alone after
// all. These have got no output yet; after an error no job has.
func (g *group) search(ctx context.Context) ([]int, error) {
	o := g.Options
	// With -parse_deflines a query may have the name of a sequence of the database. BLAST+
	// then takes this sequence for the query, for all queries of the scan.
	for _, name := range []string{"import_search_strategy", "export_search_strategy", "parse_deflines"} {
		if _, ok := o.values[name]; ok {
			return g.which, nil
		}
	}
	// Other machines give archives, from which the results of each job are printed.
	if l := layoutOf(o.format, o.columns, g.edges().matter); l != nil && !o.unformed && g.Remote == nil {
		return g.texts(ctx, l)
	}
	if o.entire != "" {
		return g.which, nil
	}
	return g.archives(ctx)
}

// links reports whether HSPs are linked. The links depend on the average length of the
// queries of a batch (CalculateLinkHSPCutoffs of the toolkit), so that each query must be
// in the same batch as if searched for alone.
func (r *Request) links() bool {
	switch sums := r.Options.values["sum_stats"]; {
	case sums != "":
		return sums != "false"
	case tool(r.Program) == "blastn" || r.Program == "blastp":
		_, ungapped := r.Options.values["ungapped"]
		return ungapped
	}
	return true
}

// unlinked reports whether this is a search of blastn for gapped alignments.
func (r *Request) unlinked() bool { return tool(r.Program) == "blastn" && !r.links() }

// texts prints the results of all jobs once, in a format that can be split.
func (g *group) texts(ctx context.Context, l *layout) ([]int, error) {
	o, err := g.Options.with("outfmt", l.outfmt)
	if err != nil {
		return nil, err
	}
	var joined, out bytes.Buffer
	var counts []int
	for _, i := range g.which {
		text := g.jobs[i].Queries
		joined.Write(text)
		if !bytes.HasSuffix(text, []byte("\n")) {
			joined.WriteByte('\n')
		}
		counts = append(counts, headers(text))
	}
	r := g.Request
	r.Options, r.Stdin, r.Stdout, r.Stderr, r.Note = o, &joined, &out, nil, nil
	switch {
	case g.links():
		r.Mode, r.batch = Whole, 1
	case g.unlinked():
		r.batch = maxBatch
	}
	if err := Run(ctx, r); err != nil {
		return nil, err
	}
	p, err := l.apart(l, out.Bytes())
	if err != nil {
		return nil, err
	}
	shares, err := p.share(counts)
	if err != nil {
		return nil, err
	}
	// All outputs are complete before any of them is written.
	parts := make([][]byte, len(shares))
	var again []int
	edges := g.edges()
	for k, blocks := range shares {
		if edges.matter && slices.ContainsFunc(blocks, func(b []byte) bool {
			list, err := l.hsps(l, b)
			return err != nil || edges.more(list)
		}) {
			again = append(again, g.which[k])
			continue
		}
		if parts[k], err = l.put(p, blocks, wholeOutput()); err != nil {
			return nil, err
		}
	}
	for k, text := range parts {
		if _, err := g.jobs[g.which[k]].Out.Write(text); err != nil {
			return nil, err
		}
	}
	return again, nil
}

// maxBatch is the number of letters of queries for which blastn searches at once in a
// common scan. By default it begins with few, and reads the database once for each batch; a
// query in the middle of a job at which a batch begins or ends would get fewer HSPs than
// alone. Beyond 1,000,000 it would split the queries into chunks (SplitQuery_GetChunkSize
// of the toolkit).
const maxBatch = 900_000

// headers returns the number of queries.
func headers(text []byte) int {
	n := bytes.Count(text, []byte("\n>"))
	if bytes.HasPrefix(text, []byte(">")) {
		n++
	}
	return n
}

// archives searches for all jobs once, and formats the hits of each job's queries.
func (g *group) archives(ctx context.Context) ([]int, error) {
	var files []string // by job
	var joined bytes.Buffer
	var again []int
	var which []int
	looked := make([]*queries, len(g.jobs))
	for _, i := range g.which {
		path := filepath.Join(g.dir, "job-"+strconv.Itoa(i))
		if err := os.WriteFile(path, g.jobs[i].Queries, 0o600); err != nil {
			return nil, err
		}
		q, err := examine(path)
		if err != nil {
			return nil, err
		}
		if looked[i] = q; g.must(q) != "" {
			again = append(again, i)
			continue
		}
		which, files = append(which, i), append(files, path)
		joined.Write(g.jobs[i].Queries)
		if !bytes.HasSuffix(g.jobs[i].Queries, []byte("\n")) {
			joined.WriteByte('\n')
		}
	}
	if len(which) == 0 {
		return again, nil
	}
	path := filepath.Join(g.dir, "all-queries")
	if err := os.WriteFile(path, joined.Bytes(), 0o600); err != nil {
		return nil, err
	}
	q, err := examine(path)
	if err != nil {
		return nil, err
	}
	all := filepath.Join(g.dir, "all")
	if err := os.Mkdir(all, 0o700); err != nil {
		return nil, err
	}
	s := g.scan(all, q)
	if g.Mode != Fragments {
		s.plan = spread(g.Database.Fragments, 1, g.cores())
	}
	s.single = false
	switch {
	case g.links():
		s.batch = 1
	case g.unlinked():
		s.batch = maxBatch
	}
	hits := &collector{}
	var suspects []bool // by query
	if g.edges().matter {
		suspects, err = g.suspects(ctx, s, hits)
	} else {
		err = s.run(ctx, hits)
	}
	if err != nil {
		return nil, err
	}
	if len(hits.found) != q.count {
		return nil, fmt.Errorf("results of %d queries instead of %d", len(hits.found), q.count)
	}
	// Each job needs some programs: run as many jobs at once as there are cores.
	gate := make(chan struct{}, g.cores())
	var mu sync.Mutex
	var wait sync.WaitGroup
	from := 0
	for k, i := range which {
		first := from
		from += looked[i].count
		if suspects != nil && slices.Contains(suspects[first:from], true) {
			again = append(again, i)
			continue
		}
		gate <- struct{}{}
		wait.Go(func() {
			defer func() { <-gate }()
			err := g.give(ctx, i, files[k], hits, first)
			if err != nil {
				mu.Lock()
				again = append(again, i) // if it fails again, that search reports it
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return again, nil
}

// give prints the results of one job.
func (g *group) give(ctx context.Context, i int, path string, hits *collector, first int) error {
	dir := filepath.Join(g.dir, "print-"+strconv.Itoa(i))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	q, err := examine(path)
	if err != nil {
		return err
	}
	s := g.scan(dir, q)
	if s.batch == blastnBatch {
		s.batch = 0 // the statistics must come from the batches that BLAST+ makes
	}
	s.given, s.ids = hits.found[first:first+q.count], hits.ids[first:first+q.count]
	var out bytes.Buffer
	held := &held{w: &out}
	if err := g.print(ctx, s, held); err != nil {
		return err
	}
	if err := held.release(); err != nil {
		return err
	}
	_, err = g.jobs[i].Out.Write(out.Bytes())
	return err
}

// suspects runs a scan, and returns the queries for which it may have found more than it
// would at the edge of a batch.
func (g *group) suspects(ctx context.Context, s *scan, hits *collector) ([]bool, error) {
	l := layoutOf(7, "qstart btop", true)
	r := g.Request
	plain := *s.opt
	plain.show = nil
	s.opt = &plain
	var out bytes.Buffer
	err := r.formatted(ctx, s, l.outfmt, func(w io.Writer) consumer { return pair{hits, archiveWriter(w)} }, func(in io.Reader) error {
		return processed(&out, in)
	})
	if err != nil {
		return nil, err
	}
	p, err := l.apart(l, out.Bytes())
	if err != nil {
		return nil, err
	}
	if len(p.blocks) != s.queries.count {
		return nil, fmt.Errorf("tables of %d queries instead of %d", len(p.blocks), s.queries.count)
	}
	edges := g.edges()
	var list []bool
	for _, block := range p.blocks {
		found, err := l.hsps(l, block)
		list = append(list, err != nil || edges.more(found))
	}
	return list, nil
}

// collector stores the alignments of each query.
type collector struct {
	ids   []string
	found [][][]byte
}

func (c *collector) Begin(h *archive.Head) { c.ids = append(c.ids, h.Queries...) }

func (c *collector) Add(alignments ...[]byte) { c.found = append(c.found, alignments) }

func (c *collector) End(*archive.Tail) error { return nil }

// pair passes archives to two consumers.
type pair struct{ a, b consumer }

func (t pair) Begin(h *archive.Head)        { t.a.Begin(h); t.b.Begin(h) }
func (t pair) Add(alignments ...[]byte)     { t.a.Add(alignments...); t.b.Add(alignments...) }
func (t pair) End(tail *archive.Tail) error { return errors.Join(t.a.End(tail), t.b.End(tail)) }
