package part

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"premix/internal/blast/database"
	"premix/internal/kit/beneath"
)

// Directory is a directory with the parts of a search, which several machines see:
//
//	DIR/search.json   an [Order]
//	DIR/queries       the queries as given
//	DIR/N.part        results of part N, from 0; renamed into place when complete
//
// Each machine opens its own database of the same name and content: from memory, if it is
// resident there.
type Directory struct {
	Path    string // absolute
	Count   int    // of parts
	Threads int    // for each part
}

// InDirectory returns a Remote for machines that see a directory. run calls [SearchIn] for each
// of the parts on them, and returns when all have succeeded.
func InDirectory(dir string, run func(context.Context, Directory) error) Remote {
	return func(ctx context.Context, o Order, queries []string) ([]Result, error) {
		text, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, "search.json"), append(text, '\n'), 0o644); err != nil {
			return nil, err
		}
		in, err := OpenQueries(queries)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		if err := beneath.Write(filepath.Join(dir, "queries"), 0o666, beneath.Volatile, func(w io.Writer) error {
			_, err := io.Copy(w, in)
			return err
		}); err != nil {
			return nil, err
		}
		if err := run(ctx, Directory{dir, len(o.Fragments), o.Threads}); err != nil {
			return nil, err
		}
		var results []Result
		for i, r := range o.Fragments {
			results = append(results, Result{0, r[0], filepath.Join(dir, strconv.Itoa(i)+".part")})
		}
		return results, nil
	}
}

// SearchIn searches part i of the search in a directory, in this machine's database. Messages of
// the program go to stderr.
func SearchIn(ctx context.Context, programs Programs, home, dir string, i int, stderr io.Writer) error {
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
	program := programs.Of(&o)
	if program == nil {
		return fmt.Errorf("%s is a search by %s, which this premix does not know", dir, o.Program)
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
	out, err := beneath.Create(filepath.Join(dir, strconv.Itoa(i)+".part"), 0o600)
	if err != nil {
		return err
	}
	if err := program.Search(ctx, &o, d, filepath.Join(dir, "queries"), false, out.File, stderr); err != nil {
		return errors.Join(err, out.Discard())
	}
	return out.Commit(beneath.Volatile)
}
