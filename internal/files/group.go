package files

import (
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"
)

// Group is a row group of a scan, whose columns are read on demand. One goroutine may use
// it at a time; results of its methods are valid until the next Reset.
type Group struct {
	t     *Table
	rows  int
	file  parquet.RowGroup
	ints  [columns]integers
	texts [columns]Texts
}

type integers struct {
	values []int64
	read   bool
}

// Groups returns the number of row groups in the scan.
func (t *Table) Groups() int { return len(t.file.RowGroups()) }

// NewGroup returns a Group. Call Reset before its other methods.
func (t *Table) NewGroup() *Group { return &Group{t: t} }

// Reset switches to row group n, of which it reads nothing yet. It reuses the memory of the
// previous group.
func (g *Group) Reset(n int) {
	g.file = g.t.file.RowGroups()[n]
	g.rows = int(g.file.NumRows())
	for c := range g.ints {
		g.ints[c].read = false
		g.texts[c].read = false
	}
}

// Rows returns the number of rows.
func (g *Group) Rows() int { return g.rows }

// Bounds returns the least and the greatest value of a column of integers, if the file has
// them.
func (g *Group) Bounds(c Column) (least, greatest int64, ok bool) {
	chunk, is := g.file.ColumnChunks()[c].(*parquet.FileColumnChunk)
	if !is {
		return 0, 0, false
	}
	low, high, ok := chunk.Bounds()
	if !ok {
		return 0, 0, false
	}
	switch low.Kind() {
	case parquet.Int32:
		return int64(low.Int32()), int64(high.Int32()), true
	case parquet.Int64:
		return low.Int64(), high.Int64(), true
	}
	return 0, 0, false
}

// Ints returns the values of a column of integers.
func (g *Group) Ints(c Column) ([]int64, error) {
	col := &g.ints[c]
	if col.read {
		return col.values, nil
	}
	col.values = col.values[:0]
	err := g.pages(c, func(p parquet.Page) error {
		data := p.Data()
		if dict := p.Dictionary(); dict != nil {
			known := dict.Page().Data()
			if c == ColumnMode {
				return lookUp(&col.values, data.Int32(), known.Int32())
			}
			return lookUp(&col.values, data.Int32(), known.Int64())
		}
		if c == ColumnMode {
			for _, v := range data.Int32() {
				col.values = append(col.values, int64(v))
			}
			return nil
		}
		col.values = append(col.values, data.Int64()...)
		return nil
	})
	if err == nil && len(col.values) != g.rows {
		err = g.damaged(fmt.Errorf("a column has %d values and its row group %d rows", len(col.values), g.rows))
	}
	col.read = err == nil
	return col.values, err
}

// errIndex is returned for a page with an index that its dictionary does not have.
var errIndex = errors.New("a value is not in its dictionary")

func lookUp[T int32 | int64](to *[]int64, index []int32, known []T) error {
	for _, i := range index {
		if uint(i) >= uint(len(known)) {
			return errIndex
		}
		*to = append(*to, int64(known[i]))
	}
	return nil
}

// Texts are the values of a column of strings. Rows with equal values may share a value
// number.
type Texts struct {
	data    []byte
	offsets []uint32 // of each value, and the end of the last
	index   []int32  // by row: the number of its value
	plain   bool     // each value has the number of its row
	read    bool
}

// Values returns the number of values. Their numbers begin at 0.
func (t *Texts) Values() int { return len(t.offsets) - 1 }

// Value returns value n. The caller must not change it.
func (t *Texts) Value(n int) []byte { return t.data[t.offsets[n]:t.offsets[n+1]] }

// Number returns the number of the value in a row.
func (t *Texts) Number(row int32) int {
	if t.plain {
		return int(row)
	}
	return int(t.index[row])
}

// Row returns the value in a row.
func (t *Texts) Row(row int32) []byte { return t.Value(t.Number(row)) }

// Texts returns the values of a column of strings.
func (g *Group) Texts(c Column) (*Texts, error) {
	t := &g.texts[c]
	if t.read {
		return t, nil
	}
	t.data, t.offsets, t.index, t.plain = t.data[:0], append(t.offsets[:0], 0), t.index[:0], true
	known := false // the dictionary's values have been added, before all others
	err := g.pages(c, func(p parquet.Page) error {
		data := p.Data()
		dict := p.Dictionary()
		if dict == nil {
			from := t.Values()
			if err := t.append(data.ByteArray()); err != nil {
				return err
			}
			if !t.plain {
				t.number(from)
			}
			return nil
		}
		if t.plain {
			if t.Values() > 0 {
				return errors.New("a page with a dictionary follows one without")
			}
			t.plain = false
		}
		if !known {
			known = true
			values := dict.Page().Data()
			if err := t.append(values.ByteArray()); err != nil {
				return err
			}
		}
		for _, i := range data.Int32() {
			if uint(i) >= uint(dict.Len()) {
				return errIndex
			}
			t.index = append(t.index, i)
		}
		return nil
	})
	rows := len(t.index)
	if t.plain {
		rows = t.Values()
	}
	if err == nil && rows != g.rows {
		err = g.damaged(fmt.Errorf("a column has %d values and its row group %d rows", rows, g.rows))
	}
	t.read = err == nil
	return t, err
}

// append appends the values of a page: the bytes of all values, and where each begins.
func (t *Texts) append(data []byte, offsets []uint32) error {
	if len(offsets) == 0 {
		return nil
	}
	if int64(len(t.data))+int64(len(data)) > 1<<32-1 {
		return errors.New("a column of a row group has more than 4 GiB")
	}
	base := uint32(len(t.data)) - offsets[0]
	t.data = append(t.data, data[offsets[0]:offsets[len(offsets)-1]]...)
	for _, o := range offsets[1:] {
		t.offsets = append(t.offsets, base+o)
	}
	return nil
}

// number assigns numbers to the rows of the values from one on.
func (t *Texts) number(from int) {
	for n := from; n < t.Values(); n++ {
		t.index = append(t.index, int32(n))
	}
}

func (g *Group) pages(c Column, f func(parquet.Page) error) error {
	pages := g.file.ColumnChunks()[c].Pages()
	defer pages.Close()
	for {
		p, err := pages.ReadPage()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = f(p)
			parquet.Release(p)
		}
		if err != nil {
			return g.damaged(err)
		}
	}
}

func (g *Group) damaged(err error) error { return &TableError{g.t.Path, "is damaged", err} }

// Entry reads one row. It reads every column, and is meant for few rows of a group.
func (g *Group) Entry(row int32, e *Entry) error {
	for c, to := range map[Column]*string{ColumnDir: &e.Dir, ColumnName: &e.Name, ColumnType: &e.Type, ColumnError: &e.Error} {
		t, err := g.Texts(c)
		if err != nil {
			return err
		}
		*to = string(t.Row(row))
	}
	var mode int64
	to := [...]*int64{&e.Size, &e.Allocated, &e.Entries, &mode, &e.UID, &e.GID, &e.Links, &e.Inode, &e.Device, &e.Accessed, &e.Modified, &e.Changed, &e.Born}
	for k, c := range intColumns {
		v, err := g.Ints(c)
		if err != nil {
			return err
		}
		*to[k] = v[row]
	}
	e.Mode = int32(mode)
	return nil
}
