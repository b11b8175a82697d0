package record

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"premix/internal/kit/beneath"
)

// rowGroup is how many records are held in memory while a Parquet file is
// written.
const rowGroup = 32 << 10

// ToParquet writes records as the Parquet file at path, zstd compressed. The
// file appears whole or not at all, and replaces an existing one.
// Memory does not grow with the number of records.
func ToParquet[T any](path string, records iter.Seq2[*T, error]) (err error) {
	f, err := beneath.Create(path, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), f.Discard())
		}
	}()
	w := parquet.NewGenericWriter[T](f, parquet.Compression(&zstd.Codec{}), parquet.MaxRowsPerRowGroup(rowGroup), parquet.KeyValueMetadata("premix.records", "1"))
	row := make([]T, 1)
	for r, err := range records {
		if err != nil {
			return err
		}
		row[0] = *r
		if _, err := w.Write(row); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Commit(beneath.Durable)
}

// FromParquet calls f with each record of the Parquet file at path, in order. f
// does not keep its argument. An error of f ends the reading and is
// returned.
func FromParquet[T any](path string, f func(*T) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	pf, err := parquet.OpenFile(file, info.Size())
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	r := parquet.NewGenericReader[T](pf)
	defer r.Close()
	rows := make([]T, 1024)
	for {
		n, err := r.Read(rows)
		for i := range rows[:n] {
			if err := f(&rows[i]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		clear(rows)
	}
}
