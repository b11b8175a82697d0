package policy

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/parquet-go/parquet-go"

	"premix/internal/files"
	"premix/internal/kit/exit"
)

// Candidates are the entries to which rules are restricted, from a Parquet file that any
// program may have written.
type Candidates struct {
	Path   string
	Digest string // of the file

	index map[string]int32 // by path
	facts []candidateFact
	found []atomic.Bool
	other []atomic.Bool // found, with another fact
}

// candidateFact is an optional column of the file, which must be equal in the scan.
type candidateFact struct {
	column files.Column
	values []int64 // by candidate
}

// factColumns are the optional columns, with their names in a scan.
var factColumns = []struct {
	name   string
	column files.Column
}{{"size", files.ColumnSize}, {"inode", files.ColumnInode}, {"device", files.ColumnDevice}, {"modified", files.ColumnModified}, {"changed", files.ColumnChanged}}

// ReadCandidates reads a Parquet file of candidates.
func ReadCandidates(path string) (*Candidates, error) {
	c := &Candidates{Path: path, index: make(map[string]int32)}
	if err := c.read(); err != nil {
		return nil, exit.Errorf(exit.Usage, "write a Parquet file with a column path, or dir and name, of a scan: see premix help files-policy", "candidates %s: %w", path, err)
	}
	c.found, c.other = make([]atomic.Bool, len(c.index)), make([]atomic.Bool, len(c.index))
	return c, nil
}

func (c *Candidates) read() (err error) {
	defer func() { // the Parquet package panics on some damaged files
		if v := recover(); v != nil {
			err = fmt.Errorf("it is damaged: %v", v)
		}
	}()
	f, err := os.Open(c.Path)
	if err != nil {
		if p := (*os.PathError)(nil); errors.As(err, &p) {
			err = p.Err
		}
		return err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return err
	}
	c.Digest = fmt.Sprintf("%x", sum.Sum(nil))
	file, err := parquet.OpenFile(f, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return fmt.Errorf("it is not a Parquet file: %w", err)
	}
	column := func(name string, kind parquet.Kind) (int, error) {
		leaf, ok := file.Schema().Lookup(name)
		if !ok {
			return -1, nil
		}
		if leaf.Node.Type().Kind() != kind || leaf.MaxRepetitionLevel > 0 {
			return -1, fmt.Errorf("the column %s is %s, and a scan has %s there", name, leaf.Node.Type(), kind)
		}
		return leaf.ColumnIndex, nil
	}
	text := make(map[string]int)
	for _, name := range []string{"path", "dir", "name"} {
		if text[name], err = column(name, parquet.ByteArray); err != nil {
			return err
		}
	}
	if text["path"] < 0 && (text["dir"] < 0 || text["name"] < 0) {
		return errors.New("it has no column path, and not both dir and name")
	}
	var at []int
	for _, fact := range factColumns {
		i, err := column(fact.name, parquet.Int64)
		if err != nil {
			return err
		}
		if i >= 0 {
			at = append(at, i)
			c.facts = append(c.facts, candidateFact{column: fact.column})
		}
	}
	n := 0
	rows := make([]parquet.Row, 1024)
	for _, g := range file.RowGroups() {
		r := g.Rows()
		for {
			k, err := r.ReadRows(rows)
			for _, row := range rows[:k] {
				n++
				if err := c.add(row, text, at); err != nil {
					return errors.Join(fmt.Errorf("row %d: %w", n, err), r.Close())
				}
			}
			if err == io.EOF {
				break
			}
			if err == nil && k == 0 {
				err = io.ErrNoProgress
			}
			if err != nil {
				return errors.Join(fmt.Errorf("it is damaged: %w", err), r.Close())
			}
		}
		if err := r.Close(); err != nil {
			return err
		}
	}
	return nil
}

// add adds a row. The columns with texts are at the indexes in text, and facts at those in
// at; -1 is a column that the file does not have.
func (c *Candidates) add(row parquet.Row, text map[string]int, at []int) error {
	value := func(i int) (v parquet.Value, ok bool) {
		at := slices.IndexFunc(row, func(v parquet.Value) bool { return v.Column() == i })
		if at < 0 || row[at].IsNull() {
			return v, false
		}
		return row[at], true
	}
	path := ""
	if v, ok := value(text["path"]); ok {
		path = string(v.ByteArray())
	} else if text["path"] < 0 {
		dir, ok := value(text["dir"])
		name, named := value(text["name"])
		if !ok || !named || strings.Contains(string(name.ByteArray()), "/") {
			return errors.New("dir or name is missing")
		}
		path = (&files.Entry{Dir: string(dir.ByteArray()), Name: string(name.ByteArray())}).Path()
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("%q is not an absolute path as a scan has them", path)
	}
	facts := make([]int64, len(c.facts))
	for k, i := range at {
		v, ok := value(i)
		if !ok {
			return fmt.Errorf("%s has no value", factName(c.facts[k].column))
		}
		facts[k] = v.Int64()
	}
	if i, ok := c.index[path]; ok {
		for k := range c.facts {
			if c.facts[k].values[i] != facts[k] {
				return fmt.Errorf("%q stands there twice, with different values of %s", path, factName(c.facts[k].column))
			}
		}
		return nil
	}
	c.index[path] = int32(len(c.index))
	for k := range c.facts {
		c.facts[k].values = append(c.facts[k].values, facts[k])
	}
	return nil
}

func factName(c files.Column) string {
	for _, f := range factColumns {
		if f.column == c {
			return f.name
		}
	}
	return ""
}

// Len returns the number of candidates.
func (c *Candidates) Len() int { return len(c.index) }

// filter appends to out the rows that are candidates, and equal in the columns that the
// candidates have.
func (c *Candidates) filter(b *batch, rows, out []int32) ([]int32, error) {
	path, err := paths(b)
	if err != nil {
		return out, err
	}
	facts := make([][]int64, len(c.facts))
	for _, row := range rows {
		i, ok := c.index[string(path.row(row))]
		if !ok {
			continue
		}
		c.found[i].Store(true)
		same := true
		for k := range c.facts {
			if facts[k] == nil {
				if facts[k], err = b.g.Ints(c.facts[k].column); err != nil {
					return out, err
				}
			}
			same = same && facts[k][row] == c.facts[k].values[i]
		}
		if !same {
			c.other[i].Store(true)
			continue
		}
		out = append(out, row)
	}
	return out, nil
}

// CandidatesPlan is the use of the candidates in a plan.
type CandidatesPlan struct {
	File  string `json:"file"`
	Count int64  `json:"count"`
	Gone  int64  `json:"not_in_the_scan"`
	Other int64  `json:"differ_from_the_scan"`
}

func (c *Candidates) plan() *CandidatesPlan {
	p := &CandidatesPlan{File: c.Path, Count: int64(len(c.index))}
	for i := range c.found {
		switch {
		case !c.found[i].Load():
			p.Gone++
		case c.other[i].Load():
			p.Other++
		}
	}
	return p
}

// split returns the rows of a list that are candidates, and the others.
func (c *Candidates) split(b *batch, rows []int32) (kept, others []int32, err error) {
	if kept, err = c.filter(b, rows, b.list()); err != nil {
		return kept, nil, err
	}
	return kept, without(rows, kept, nil), nil
}
