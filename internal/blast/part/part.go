package part

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"premix/internal/blast/database"
)

// Program searches the fragments of its databases.
type Program interface {
	// Name returns the kind of databases that it searches.
	Name() database.Program

	// Version returns the version that is on PATH. Only results of equal versions are merged.
	Version(ctx context.Context) (string, error)

	// Check refuses an order from another machine unless its options only select results: an
	// order must not name a file.
	Check(o *Order) error

	// Search searches all fragments of d, which has the statistics of the whole, and writes
	// results to out. If apart is true, it ignores the configuration of the user. Messages of
	// the program go to stderr. If the program fails, the error is an [ExitError].
	Search(ctx context.Context, o *Order, d *database.Database, queries string, apart bool, out, stderr io.Writer) error
}

// Programs are the programs that a machine runs.
type Programs []Program

// Of returns the program that an order needs, or nil.
func (p Programs) Of(o *Order) Program {
	i := slices.IndexFunc(p, func(p Program) bool { return p.Name() == o.Program })
	if i < 0 {
		return nil
	}
	return p[i]
}

// Remote lets other machines search the fragments of a database. queries are files: one, or pieces
// in their order, if neighbouring pieces give the same results together and apart. It returns the
// results in the order of the pieces, and those of a piece in the order of the fragments, all of
// which are in one of them.
type Remote func(ctx context.Context, o Order, queries []string) ([]Result, error)

// Order describes a search to other machines.
type Order struct {
	Format    string           `json:"format"`
	Program   database.Program `json:"program,omitempty"`
	Tool      string           `json:"tool"` // of the program: blastn, blastp, ...
	Database  string           `json:"database"`
	ID        string           `json:"id"` // of the database's description
	Args      []string         `json:"args"`
	Batch     int              `json:"batch,omitempty"`
	Threads   int              `json:"threads"`
	Fragments []Range          `json:"fragments,omitempty"` // of each part, as far as the machines do not choose it
}

// Range is a range of fragments: the first one, and the one after the last.
type Range [2]int

// Result is a file with the results of consecutive fragments for consecutive pieces of the queries.
type Result struct {
	Piece int // the first one
	First int // fragment
	Path  string
}

// OpenQueries opens pieces of the queries as one stream.
func OpenQueries(pieces []string) (io.ReadCloser, error) {
	var files openFiles
	var all []io.Reader
	for _, path := range pieces {
		f, err := os.Open(path)
		if err != nil {
			return nil, errors.Join(err, files.Close())
		}
		files, all = append(files, f), append(all, f)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(all...), files}, nil
}

type openFiles []*os.File

func (l openFiles) Close() error {
	var err error
	for _, f := range l {
		err = errors.Join(err, f.Close())
	}
	return err
}

// OrderFormat is the format of an [Order].
const OrderFormat = "premix blast search 1"

// ExitError is returned if a program ends with a status other than 0. The program has printed
// the reason.
type ExitError struct {
	Program string
	Code    int
	Stderr  []byte
}

func (e *ExitError) Error() string {
	if stderr := bytes.TrimSpace(e.Stderr); len(stderr) > 0 {
		return fmt.Sprintf("%s ended with status %d: %s", e.Program, e.Code, stderr)
	}
	return fmt.Sprintf("%s ended with status %d", e.Program, e.Code)
}
