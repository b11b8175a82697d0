package search

import (
	"context"
	"encoding/json"
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
	"premix/internal/kit/beneath"
)

// Remote lets other machines search the fragments of a database. It returns the results in
// the order of the fragments, all of which are in one of them.
type Remote func(ctx context.Context, o Order, queries string) ([]Result, error)

// Order describes a search to other machines.
type Order struct {
	Format    string   `json:"format"`
	Tool      string   `json:"tool"`
	Database  string   `json:"database"`
	ID        string   `json:"id"` // of the database's description
	Args      []string `json:"args"`
	Batch     int      `json:"batch,omitempty"`
	Threads   int      `json:"threads"`
	Fragments []Range  `json:"fragments"` // of each part, as far as the machines do not choose it
}

// Range is a range of fragments: the first one, and the one after the last.
type Range [2]int

// Result is a file with the archives of consecutive fragments.
type Result struct {
	First int // fragment
	Path  string
}

// OrderFormat is the format of an [Order].
const OrderFormat = "premix blast search 1"

// remote lets other machines search the parts, and opens the results.
func (s *scan) remote(ctx context.Context) (sources []archive.Source, done func(), err error) {
	o := Order{Format: OrderFormat, Tool: s.tool, Database: s.db.Name, ID: s.db.ID, Args: s.search(s.longer()), Batch: s.batch, Threads: 1}
	from := 0
	for _, p := range s.plan.parts {
		o.Fragments = append(o.Fragments, Range{from, from + len(p.fragments)})
		from += len(p.fragments)
		o.Threads = max(o.Threads, p.threads)
	}
	results, err := s.away(ctx, o, s.queries.path)
	if exited := (*ExitError)(nil); errors.As(err, &exited) {
		return nil, nil, exited // BLAST+ will fail in the same way on this machine, and print why
	}
	if err != nil {
		return nil, nil, &remoteError{err}
	}
	var files []*os.File
	done = func() {
		for _, f := range files {
			f.Close()
		}
	}
	for _, r := range results {
		f, err := os.Open(r.Path)
		if err != nil {
			done()
			return nil, nil, err
		}
		files = append(files, f)
		sources = append(sources, archive.Source{Archives: f, First: s.db.Fragments[r.First].First})
	}
	return sources, done, nil
}

// remoteError is the error of a search on other machines. This machine does not search in
// their place.
type remoteError struct{ err error }

func (e *remoteError) Error() string { return e.err.Error() }
func (e *remoteError) Unwrap() error { return e.err }

// Shards are the parts of a search in a directory that several machines see:
//
//	DIR/search.json   an [Order]
//	DIR/queries       the queries as given
//	DIR/N.asn         results of part N, from 0; renamed into place when complete
//
// Each machine opens its own database of the same name and content: from memory, if it is
// resident there.
type Shards struct {
	Dir     string // absolute
	Count   int
	Threads int // for each part
}

// InDirectory returns a Remote for machines that see a directory. run calls [Shard] for each
// of the parts on them, and returns when all have succeeded.
func InDirectory(dir string, run func(context.Context, Shards) error) Remote {
	return func(ctx context.Context, o Order, queries string) ([]Result, error) {
		text, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, "search.json"), append(text, '\n'), 0o644); err != nil {
			return nil, err
		}
		if err := copyFile(queries, filepath.Join(dir, "queries")); err != nil {
			return nil, err
		}
		if err := run(ctx, Shards{dir, len(o.Fragments), o.Threads}); err != nil {
			return nil, err
		}
		var results []Result
		for i, r := range o.Fragments {
			results = append(results, Result{r[0], filepath.Join(dir, strconv.Itoa(i)+".asn")})
		}
		return results, nil
	}
}

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

// Shard searches part i of the search in a directory, in this machine's database. Messages
// of BLAST+ go to stderr.
func Shard(ctx context.Context, home, dir string, i int, stderr io.Writer) error {
	text, err := os.ReadFile(filepath.Join(dir, "search.json"))
	if err != nil {
		return err
	}
	var o Order
	if err := json.Unmarshal(text, &o); err != nil || o.Format != OrderFormat {
		return fmt.Errorf("%s is not a search of this version of premix", dir)
	}
	if i < 0 || i >= len(o.Fragments) {
		return fmt.Errorf("%s has no part %d", dir, i)
	}
	d, err := database.Open(home, o.Database)
	if err != nil {
		return err
	}
	defer d.Close()
	first, end := o.Fragments[i][0], o.Fragments[i][1]
	if d.ID != o.ID || first >= end || end > len(d.Fragments) {
		return &database.Error{Kind: database.Damaged, Message: fmt.Sprintf("the database %s of this machine is another one than that of the search", o.Database), HintText: "add the same one on all machines: premix blast db add, with the same input and options"}
	}
	d.Fragments = d.Fragments[first:end]
	out, err := beneath.Create(filepath.Join(dir, strconv.Itoa(i)+".asn"), 0o600)
	if err != nil {
		return err
	}
	if err := Part(ctx, o, d, filepath.Join(dir, "queries"), false, out.File, stderr); err != nil {
		return errors.Join(err, out.Discard())
	}
	return out.Commit(beneath.Volatile)
}

// Part searches all fragments of a database, which has the statistics of the whole, and writes
// archives to out. apart is as in [Settings]. Messages of BLAST+ go to stderr, too.
func Part(ctx context.Context, o Order, d *database.Database, queries string, apart bool, out, stderr io.Writer) error {
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

// CheckOrder refuses an order from another machine unless its options only select results: an
// order must not name a file.
func CheckOrder(tool, db string, args []string) error {
	if !slices.Contains(divisible(), tool) || tool == "megablast" {
		return &OptionError{fmt.Sprintf("there is no program %q that searches fragments", tool), "use the same premix on all machines"}
	}
	o, err := ParseOptions(args)
	if err != nil {
		return err
	}
	if o.DB != db || o.values["outfmt"] != "11" || o.entire != "" || o.help {
		return &OptionError{fmt.Sprintf("the options %q are not those of a search of fragments", args), "use the same premix on all machines"}
	}
	table := options()
	for name := range o.values {
		switch name {
		case "db", "outfmt", "max_target_seqs", "num_descriptions", "line_length", "sorthits", "sorthsps":
			continue
		}
		if c := table[name].class; c != find && c != both {
			return &OptionError{fmt.Sprintf("an order may not have the option -%s", name), "use the same premix on all machines"}
		}
	}
	return nil
}

// Version returns the version of the programs of BLAST+ on PATH, such as "2.12.0+".
func Version(ctx context.Context) (string, error) {
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
