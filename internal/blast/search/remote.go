package search

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"premix/internal/blast/archive"
	"premix/internal/blast/database"
	"premix/internal/blast/part"
	"premix/internal/kit/exit"
)

// remote lets other machines search the parts, and opens the results.
func (s *scan) remote(ctx context.Context) (sources []archive.Source, done func(), err error) {
	results, done, err := s.order(ctx, []string{s.queries.path})
	for _, r := range results {
		sources = append(sources, archive.Source{Archives: r.file, First: s.db.Fragments[r.First].First})
	}
	return sources, done, err
}

// remoteTables lets other machines search the parts for tables, and opens those of each run of
// pieces.
func (s *scan) remoteTables(ctx context.Context) (runs [][]*tableReader, done func(), err error) {
	pieces, err := s.pieces()
	if err != nil {
		return nil, nil, err
	}
	results, done, err := s.order(ctx, pieces)
	for i, r := range results {
		if i == 0 || r.Piece != results[i-1].Piece {
			runs = append(runs, nil)
		}
		k := len(runs) - 1
		runs[k] = append(runs[k], newTableReader(s.table, r.file))
	}
	return runs, done, err
}

// mostPieces bounds the number of pieces of the queries.
const mostPieces = 64

// pieces cuts the queries where batches of BLAST+ end, so that a search of a piece finds and
// prints the same as a search of all queries.
func (s *scan) pieces() ([]string, error) {
	q := s.queries
	if s.batch == 0 || q.letters < 2*int64(s.batch) || q.odd || q.unnamed {
		return []string{q.path}, nil
	}
	files, err := cut(q.path, filepath.Join(s.dir, "piece-"), (q.count+mostPieces-1)/mostPieces, s.batch)
	var list []string
	for _, f := range files {
		list = append(list, f.path)
	}
	return list, err
}

// opened is an open result.
type opened struct {
	part.Result
	file *os.File
}

// order lets other machines search the parts, and opens the results until done is called.
func (s *scan) order(ctx context.Context, pieces []string) (list []opened, done func(), err error) {
	o := part.Order{Format: part.OrderFormat, Program: database.BLAST, Tool: s.tool, Database: s.db.Name, ID: s.db.ID, Args: s.search(s.longer()), Batch: s.batch, Threads: 1}
	from := 0
	for _, p := range s.plan.parts {
		o.Fragments = append(o.Fragments, part.Range{from, from + len(p.fragments)})
		from += len(p.fragments)
		o.Threads = max(o.Threads, p.threads)
	}
	results, err := s.away(ctx, o, pieces)
	if exited := (*part.ExitError)(nil); errors.As(err, &exited) {
		return nil, nil, exited // BLAST+ will fail in the same way on this machine, and print why
	}
	if err != nil {
		return nil, nil, &remoteError{err}
	}
	done = func() {
		for _, r := range list {
			r.file.Close()
		}
	}
	for _, r := range results {
		f, err := os.Open(r.Path)
		if err != nil {
			done()
			return nil, nil, err
		}
		list = append(list, opened{r, f})
	}
	return list, done, nil
}

// remoteError is the error of a search on other machines. This machine does not search in
// their place.
type remoteError struct{ err error }

func (e *remoteError) Error() string { return e.err.Error() }
func (e *remoteError) Unwrap() error { return e.err }

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// Parts is BLAST+ as a [part.Program]. Its results are archives.
type Parts struct{}

// Name implements part.Program.
func (Parts) Name() database.Program { return database.BLAST }

// Search implements part.Program. apart is as in [Settings].
func (Parts) Search(ctx context.Context, o *part.Order, d *database.Database, queries string, apart bool, out, stderr io.Writer) error {
	tmp, err := os.MkdirTemp("", "premix-blast-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	s := &scan{tool: o.Tool, db: d, dir: tmp, apart: apart}
	var paths []string
	for _, f := range d.Fragments {
		paths = append(paths, f.Path)
	}
	alias, err := s.alias("part", "", paths...)
	if err != nil {
		return err
	}
	args := append(slices.Clone(o.Args), "-query", queries)
	if o.Threads > 1 {
		args = append(args, "-num_threads", strconv.Itoa(o.Threads))
	}
	p, err := s.prepare(ctx, alias, o.Tool, o.Batch, args...)
	if err != nil {
		return err
	}
	p.cmd.Stdout, p.cmd.Stderr = out, io.MultiWriter(stderr, &p.stderr)
	return p.end(p.cmd.Run())
}

// Check implements part.Program.
func (Parts) Check(order *part.Order) error {
	if !slices.Contains(divisible(), order.Tool) || order.Tool == "megablast" {
		return exit.Errorf(exit.Usage, "use the same premix on all machines", "there is no program %q that searches fragments", order.Tool)
	}
	o, err := ParseOptions(order.Args)
	if err != nil {
		return err
	}
	table := o.format == 7 && layoutOf(7, o.columns, false) != nil
	if o.DB != order.Database || o.format != 11 && !table || o.entire != "" || o.help {
		return exit.Errorf(exit.Usage, "use the same premix on all machines", "the options %q are not those of a search of fragments", order.Args)
	}
	known := options()
	for name := range o.values {
		switch name {
		case "db", "outfmt", "max_target_seqs", "num_descriptions", "line_length", "sorthits", "sorthsps":
			continue
		}
		if c := known[name].class; c != find && c != both {
			return exit.Errorf(exit.Usage, "use the same premix on all machines", "an order may not have the option -%s", name)
		}
	}
	return nil
}

// Version implements part.Program. It returns a version such as "2.12.0+".
func (Parts) Version(ctx context.Context) (string, error) {
	path, err := exec.LookPath("blastn")
	if err != nil {
		return "", &MissingError{"blastn"}
	}
	out, err := exec.CommandContext(ctx, path, "-version").Output()
	if err != nil {
		return "", fmt.Errorf("blastn -version: %w", err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	_, version, ok := strings.Cut(first, ": ")
	if !ok {
		return "", fmt.Errorf("blastn -version prints %q", first)
	}
	return strings.TrimSpace(version), nil
}
