package diamond

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
	"premix/internal/kit/exit"
)

// Tools returns the names of the commands of DIAMOND that search.
func Tools() []string { return []string{"blastp", "blastx"} }

// Request is one search.
type Request struct {
	Tool      string // one of [Tools]
	Database  *database.Database
	Options   *Options
	Processes int // fragments at the same time on this machine; 0: one, with all threads

	Stdin          io.Reader // queries, if Options does not name a file
	Stdout, Stderr io.Writer
	Explain        func(string) // gets the number of fragments; may be nil
	Note           func(string) // gets a message if the version of DIAMOND was not compared; may be nil

	Remote part.Remote // searches the fragments; nil: this machine searches
}

// compared is the version of DIAMOND whose results for fragments were compared with those for the
// whole.
const compared = "2.1.3"

// errMissing is the error where DIAMOND is not installed.
var errMissing = exit.Errorf(exit.Usage, "install it: apt-get install diamond-aligner", "diamond is not on PATH")

// Run searches and prints the lines that DIAMOND would print. If DIAMOND ends with a status other
// than 0, the error is a [part.ExitError]; its messages have been written to Stderr.
func Run(ctx context.Context, r Request) error {
	o, err := r.order()
	if err != nil {
		return err
	}
	version, err := (Parts{}).Version(ctx)
	if err != nil {
		return err
	}
	if version != compared && r.Note != nil && len(r.Database.Fragments) > 1 {
		r.Note(fmt.Sprintf("results of fragments were compared with DIAMOND %s, and this is %s", compared, version))
	}
	dir, err := os.MkdirTemp("", "premix-blast-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	queries, err := r.queries(dir)
	if err != nil {
		return err
	}
	threads := r.Options.Threads
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	if r.Explain != nil {
		r.Explain(fmt.Sprintf("%d fragments, each a block of %s billion letters", len(r.Database.Fragments), database.BlockValue(r.Database.Block)))
	}
	s, err := newSearch(o, r.Database)
	if err != nil {
		return err
	}
	var results []part.Result
	if r.Remote != nil {
		for i := range r.Database.Fragments {
			o.Fragments = append(o.Fragments, part.Range{i, i + 1})
		}
		o.Threads = max(1, r.Options.Threads)
		results, err = r.Remote(ctx, *o, []string{queries}) // the numbers of sequences in it are those in the whole
	} else {
		s.tmp = r.Options.tmp
		processes := min(max(1, r.Processes), len(r.Database.Fragments))
		results, err = s.fragments(ctx, dir, queries, processes, max(1, threads/processes), r.Stderr)
	}
	if err != nil {
		if exited := (*part.ExitError)(nil); errors.As(err, &exited) && r.Remote != nil {
			_, err = r.Stderr.Write(exited.Stderr)
			return errors.Join(exited, err)
		}
		return err
	}
	offset := func(part.Result) int64 { return 0 }
	if r.Remote == nil {
		offset = s.offset
	}
	if r.Options.Out == "" || r.Options.Out == "-" {
		return s.merge(results, offset, true, r.Stdout)
	}
	f, err := os.Create(r.Options.Out)
	if err != nil {
		return exit.Errorf(exit.Usage, "name a file that can be written with --out", "%w", err)
	}
	return errors.Join(s.merge(results, offset, true, f), f.Close())
}

// order returns the order for the fragments, or the reason why their results cannot be merged.
func (r *Request) order() (*part.Order, error) {
	d, o := r.Database, r.Options
	if !slices.Contains(Tools(), r.Tool) {
		return nil, exit.Errorf(exit.Usage, "it is one of "+strings.Join(Tools(), ", "), "premix knows no search %q of DIAMOND", r.Tool)
	}
	if err := d.For(database.DIAMOND); err != nil {
		return nil, err
	}
	block, err := database.ParseBlock(o.blockValue())
	if err != nil {
		return nil, err
	}
	args := slices.Clone(o.find)
	if len(d.Fragments) > 1 {
		if own := database.BlockValue(d.Block); block != d.Block {
			return nil, exit.Errorf(exit.Usage, "give --block-size "+own+", or add the database again with --block-size "+o.blockValue(), "diamond would search blocks of %s billion letters, and the fragments of %s are blocks of %s: it may find other hits", o.blockValue(), d.Name, own)
		}
		if _, given := o.values["algo"]; !given {
			if d.Letters < queryIndexed {
				args = append(args, "--algo", "0")
			} else if slices.ContainsFunc(d.Fragments, func(f database.Fragment) bool { return f.Letters < queryIndexed }) {
				return nil, exit.Errorf(exit.Usage, "give --algo 0 or --algo 1", "a fragment of %s is so small that diamond could choose another algorithm for it than for the whole", d.Name)
			}
		}
	}
	if _, given := o.values["dbsize"]; !given {
		args = append(args, "--dbsize", strconv.FormatInt(d.Letters, 10))
	}
	if _, err := o.targets(); err != nil {
		return nil, err
	}
	args = append(append(append(args, "--outfmt", "6"), o.columns...), hidden...)
	return &part.Order{Format: part.OrderFormat, Program: database.DIAMOND, Tool: r.Tool, Database: d.Name, ID: d.ID, Args: args}, nil
}

// queryIndexed is the number of letters of a database below which DIAMOND never chooses the
// algorithm that indexes only the queries (MIN_QUERY_INDEXED_DB_SIZE).
const queryIndexed = 256 << 20

// queries returns the path of the queries. It copies standard input to a file, because each
// fragment needs it.
func (r *Request) queries(dir string) (string, error) {
	if path := r.Options.Query; path != "" && path != "-" {
		st, err := os.Stat(path)
		if err == nil && !st.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file, and it has to be read several times", path)
		}
		if err != nil {
			return "", exit.Errorf(exit.Usage, "name a file with --query, or give the queries to standard input", "%w", err)
		}
		return filepath.Abs(path)
	}
	path := filepath.Join(dir, "queries")
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	if r.Stdin != nil {
		_, err = io.Copy(f, r.Stdin)
	}
	return path, errors.Join(err, f.Close())
}

// search is an order, with its options.
type search struct {
	order *part.Order
	db    *database.Database
	s     *scoring
	most  int    // targets of a query; 0: all
	tmp   string // directory for DIAMOND's temporary files; "": beside the results
}

func newSearch(order *part.Order, d *database.Database) (*search, error) {
	// The hidden columns come after the chosen ones.
	o, err := parseOrder(order)
	if err != nil {
		return nil, err
	}
	s := &search{order: order, db: d}
	if s.s, err = o.scoring(order.Tool, d.Letters); err != nil {
		return nil, err
	}
	s.most, err = o.targets()
	return s, err
}

// parseOrder returns the options of an order.
func parseOrder(order *part.Order) (*Options, error) {
	n := len(order.Args) - len(hidden)
	if n < 0 || !slices.Equal(order.Args[n:], hidden) {
		return nil, exit.Errorf(exit.Usage, "use the same premix on all machines", "the options %q are not those of a search of fragments", order.Args)
	}
	return ParseOptions(order.Args[:n])
}

// fragments searches the fragments, some at a time, into files in a directory.
func (s *search) fragments(ctx context.Context, dir, queries string, processes, threads int, stderr io.Writer) ([]part.Result, error) {
	results := make([]part.Result, len(s.db.Fragments))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(processes)
	said := make([]bytes.Buffer, len(results))
	for i, f := range s.db.Fragments {
		results[i] = part.Result{First: i, Path: filepath.Join(dir, strconv.Itoa(i)+".part")}
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			tmp := s.tmp
			if tmp == "" {
				tmp = dir
			}
			args := append([]string{s.order.Tool, "--db", f.Path, "--query", queries, "--out", results[i].Path, "--threads", strconv.Itoa(threads), "--tmpdir", tmp, "--quiet"}, s.order.Args...)
			cmd := exec.CommandContext(ctx, "diamond", args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			cmd.WaitDelay = 5 * time.Minute // as for programs of BLAST+
			cmd.Stdout, cmd.Stderr = &said[i], &said[i]
			err := cmd.Run()
			var exited *exec.ExitError
			switch {
			case errors.Is(err, exec.ErrNotFound):
				return errMissing
			case errors.As(err, &exited):
				code := exited.ExitCode()
				if code < 0 {
					code = 255 // killed by a signal
				}
				return &part.ExitError{Program: "diamond", Code: code, Stderr: said[i].Bytes()}
			}
			return err
		})
	}
	err := group.Wait()
	var exited *part.ExitError
	switch {
	case errors.As(err, &exited):
		_, e := stderr.Write(exited.Stderr)
		return nil, errors.Join(err, e)
	case err != nil:
		return nil, err
	}
	// All fragments warn of the same queries.
	_, err = stderr.Write(said[0].Bytes())
	return results, err
}

// offset returns the number of the first sequence of a fragment in the whole.
func (s *search) offset(p part.Result) int64 { return s.db.Fragments[p.First].First }

// merge writes the merged results. offset returns the number that is to be added to those of the
// sequences of a result.
func (s *search) merge(results []part.Result, offset func(part.Result) int64, bare bool, w io.Writer) error {
	var sources []*source
	for _, p := range results {
		f, err := os.Open(p.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		r, err := newSource(f, s.s, offset(p))
		if err != nil {
			return err
		}
		sources = append(sources, r)
	}
	return merge(sources, s.most, bare, w)
}

// Parts is DIAMOND as a [part.Program]. Its results are lines with the hidden columns.
type Parts struct{}

// Name implements part.Program.
func (Parts) Name() database.Program { return database.DIAMOND }

// Version implements part.Program.
func (Parts) Version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "diamond", "version").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errMissing
	}
	if err != nil {
		return "", fmt.Errorf("diamond version: %w", err)
	}
	version, ok := strings.CutPrefix(string(out), "diamond version ")
	if !ok {
		return "", fmt.Errorf("diamond version prints %q", out)
	}
	return strings.TrimSpace(version), nil
}

// Check implements part.Program.
func (Parts) Check(order *part.Order) error {
	o, err := parseOrder(order)
	if err != nil {
		return err
	}
	if !slices.Contains(Tools(), order.Tool) {
		return exit.Errorf(exit.Usage, "use the same premix on all machines", "there is no search %q of fragments", order.Tool)
	}
	table, _ := options()
	for name := range o.values {
		if name != "outfmt" && table[name].class != find {
			return exit.Errorf(exit.Usage, "use the same premix on all machines", "an order may not have the option --%s", name)
		}
	}
	return nil
}

// Search implements part.Program. DIAMOND has no configuration of a user.
func (Parts) Search(ctx context.Context, order *part.Order, d *database.Database, queries string, _ bool, out, stderr io.Writer) error {
	s, err := newSearch(order, d)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "premix-blast-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	results, err := s.fragments(ctx, dir, queries, 1, max(1, order.Threads), stderr)
	if err != nil {
		return err
	}
	return s.merge(results, s.offset, false, out)
}
