package series

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/parquet-go/parquet-go"
)

// groupReader reads columns of one row group, each as a whole and only when it is
// requested. The slices that it returns are valid until reset; texts are strings that share
// memory with others of their page.
type groupReader struct {
	group  parquet.RowGroup
	ints   map[int][]int64
	floats map[int][]float64
	bools  map[int][]bool
	texts  map[int][]string
	have   map[int]bool
	values []parquet.Value
}

func newGroupReader() *groupReader {
	return &groupReader{ints: make(map[int][]int64), floats: make(map[int][]float64), bools: make(map[int][]bool), texts: make(map[int][]string),
		have: make(map[int]bool), values: make([]parquet.Value, 512)}
}

// reset switches to another row group.
func (r *groupReader) reset(g parquet.RowGroup) {
	r.group = g
	clear(r.have)
}

// load calls f for each page of a column, the first time that the column is requested. It
// checks that f consumed one value for each row; f returns their number.
func (r *groupReader) load(column int, f func(p parquet.Page) (n int, err error)) error {
	if r.have[column] {
		return nil
	}
	pages := r.group.ColumnChunks()[column].Pages()
	defer pages.Close()
	total := 0
	for {
		p, err := pages.ReadPage()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		n, err := f(p)
		parquet.Release(p)
		if err != nil {
			return err
		}
		total += n
	}
	if int64(total) != r.group.NumRows() {
		return fmt.Errorf("%w: column %d has %d values, and there are %d rows", errDamaged, column, total, r.group.NumRows())
	}
	r.have[column] = true
	return nil
}

// int64s returns a column of integers.
func (r *groupReader) int64s(column int) ([]int64, error) {
	to := r.ints[column][:0]
	if r.have[column] {
		return r.ints[column], nil
	}
	err := r.load(column, func(p parquet.Page) (int, error) {
		d := p.Data()
		dict := p.Dictionary()
		if dict == nil {
			v := d.Int64()
			to = append(to, v...)
			return len(v), nil
		}
		v := d.Int32()
		for _, i := range v {
			to = append(to, dict.Index(i).Int64())
		}
		return len(v), nil
	})
	r.ints[column] = to
	return to, err
}

func (r *groupReader) doubles(column int) ([]float64, error) {
	to := r.floats[column][:0]
	if r.have[column] {
		return r.floats[column], nil
	}
	err := r.load(column, func(p parquet.Page) (int, error) {
		d := p.Data()
		v := d.Double()
		to = append(to, v...)
		return len(v), nil
	})
	r.floats[column] = to
	return to, err
}

func (r *groupReader) booleans(column int) ([]bool, error) {
	to := r.bools[column][:0]
	if r.have[column] {
		return r.bools[column], nil
	}
	err := r.load(column, func(p parquet.Page) (int, error) {
		before := len(to)
		for v := p.Values(); ; {
			n, err := v.ReadValues(r.values)
			for i := range r.values[:n] {
				to = append(to, r.values[i].Boolean())
			}
			if errors.Is(err, io.EOF) {
				return len(to) - before, nil
			}
			if err != nil {
				return 0, err
			}
		}
	})
	r.bools[column] = to
	return to, err
}

func (r *groupReader) strings(column int) ([]string, error) {
	to := r.texts[column][:0]
	if r.have[column] {
		return r.texts[column], nil
	}
	var words []string // of the dictionary, which all pages of a column share
	err := r.load(column, func(p parquet.Page) (int, error) {
		d := p.Data()
		dict := p.Dictionary()
		if dict == nil {
			b, ends := d.ByteArray()
			text := string(b)
			for i := 1; i < len(ends); i++ {
				to = append(to, text[ends[i-1]:ends[i]])
			}
			return max(len(ends)-1, 0), nil
		}
		for i := len(words); i < dict.Len(); i++ {
			words = append(words, string(dict.Index(int32(i)).ByteArray()))
		}
		v := d.Int32()
		for _, i := range v {
			to = append(to, words[i])
		}
		return len(v), nil
	})
	r.texts[column] = to
	return to, err
}

// field sets one field of values from a column, for some rows of a row group.
type field[T any] func(r *groupReader, column int, rows []int, to []T) error

func fieldOf[T, V any](read func(r *groupReader, column int) ([]V, error), set func(*T, V)) field[T] {
	return func(r *groupReader, column int, rows []int, to []T) error {
		from, err := read(r, column)
		if err != nil {
			return err
		}
		for _, i := range rows {
			set(&to[i], from[i])
		}
		return nil
	}
}

func textField[T any](set func(*T, string)) field[T] {
	return fieldOf((*groupReader).strings, set)
}
func intField[T any](set func(*T, int64)) field[T] { return fieldOf((*groupReader).int64s, set) }
func timeField[T any](set func(*T, time.Time)) field[T] {
	return intField(func(t *T, ms int64) { set(t, fromMillis(ms)) })
}
func floatField[T any](set func(*T, float64)) field[T] {
	return fieldOf((*groupReader).doubles, set)
}
func boolField[T any](set func(*T, bool)) field[T] { return fieldOf((*groupReader).booleans, set) }

// columns is a set of columns, as bits.
type columns uint32

const allColumns = ^columns(0)

// fill sets the fields that belong to columns.
func fill[T any](r *groupReader, fields []field[T], which columns, rows []int, to []T) error {
	for c, f := range fields {
		if which&(1<<c) == 0 || len(rows) == 0 {
			continue
		}
		if err := f(r, c, rows, to); err != nil {
			return err
		}
	}
	return nil
}
