package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"premix/internal/blast/archive"
	"premix/internal/blast/database"
	"premix/internal/kit/beneath"
)

// A search on other machines uses a directory that all of them can access:
//
//	DIR/search.json   an [order]
//	DIR/queries       the queries as given
//	DIR/N.asn         results of part N, from 0; renamed into place when complete
//
// Each machine opens its own database of the same name and content: from memory, if it is
// resident there.

// Shards are the parts of a search in a directory.
type Shards struct {
	Dir     string // absolute
	Count   int
	Threads int // for each part
}

// order describes the search.
type order struct {
	Format    string   `json:"format"`
	Tool      string   `json:"tool"`
	Database  string   `json:"database"`
	ID        string   `json:"id"` // of the database's description
	Args      []string `json:"args"`
	Batch     int      `json:"batch,omitempty"`
	Threads   int      `json:"threads"`
	Fragments [][2]int `json:"fragments"` // of each part: its first one, and the one after its last
}

const orderFormat = "premix blast search 1"

// remote lets other machines search the parts, and opens the results.
func (s *scan) remote(ctx context.Context, run func(context.Context, Shards) error, dir string) (sources []archive.Source, done func(), err error) {
	o := order{Format: orderFormat, Tool: s.tool, Database: s.db.Name, ID: s.db.ID, Args: s.search(), Batch: s.batch, Threads: 1}
	from := 0
	for _, p := range s.plan.parts {
		o.Fragments = append(o.Fragments, [2]int{from, from + len(p.fragments)})
		from += len(p.fragments)
		o.Threads = max(o.Threads, p.threads)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "search.json"), append(text, '\n'), 0o644); err != nil {
		return nil, nil, err
	}
	if err := copyFile(s.queries.path, filepath.Join(dir, "queries")); err != nil {
		return nil, nil, err
	}
	if err := run(ctx, Shards{dir, len(o.Fragments), o.Threads}); err != nil {
		return nil, nil, &remoteError{err}
	}
	var files []*os.File
	done = func() {
		for _, f := range files {
			f.Close()
		}
	}
	for i, p := range s.plan.parts {
		f, err := os.Open(filepath.Join(dir, strconv.Itoa(i)+".asn"))
		if err != nil {
			done()
			return nil, nil, err
		}
		files = append(files, f)
		sources = append(sources, archive.Source{Archives: f, First: p.fragments[0].First})
	}
	return sources, done, nil
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

// Shard searches part i of the search in a directory, in this machine's database. Messages
// of BLAST+ go to stderr.
func Shard(ctx context.Context, home, dir string, i int, stderr io.Writer) error {
	text, err := os.ReadFile(filepath.Join(dir, "search.json"))
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(text, &o); err != nil || o.Format != orderFormat {
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
	tmp, err := os.MkdirTemp("", "premix-blast-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	s := &scan{tool: o.Tool, db: d, dir: tmp}
	var paths []string
	for _, f := range d.Fragments[first:end] {
		paths = append(paths, f.Path)
	}
	alias, err := s.alias("part", "", paths...)
	if err != nil {
		return err
	}
	args := append(slices.Clone(o.Args), "-query", filepath.Join(dir, "queries"))
	if o.Threads > 1 {
		args = append(args, "-num_threads", strconv.Itoa(o.Threads))
	}
	p, err := s.prepare(ctx, alias, o.Tool, o.Batch, args...)
	if err != nil {
		return err
	}
	out, err := beneath.Create(filepath.Join(dir, strconv.Itoa(i)+".asn"), 0o600)
	if err != nil {
		return err
	}
	p.cmd.Stdout, p.cmd.Stderr = out.File, io.MultiWriter(stderr, &p.stderr)
	if err := p.end(p.cmd.Run()); err != nil {
		return errors.Join(err, out.Discard())
	}
	return out.Commit(beneath.Volatile)
}
