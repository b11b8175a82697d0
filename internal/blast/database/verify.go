package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// Status is the state of a database, as far as it is known without reading its files.
type Status struct {
	Record      *Record
	Description *Description // nil if it cannot be read
	Resident    *Resident    // nil if it is not known
	Err         error
}

// StatusOf returns the state of a database.
func StatusOf(home, name string) (*Status, error) {
	r, err := readRecord(home, name)
	if err != nil {
		return nil, err
	}
	s := &Status{Record: r}
	if s.Description, err = ReadDescription(r.Data); err != nil {
		s.Description, s.Err = nil, damagedError(name, err)
		return s, nil
	}
	if s.Resident, err = measure(home, r, s.Description); err != nil {
		s.Resident, s.Err = nil, err
	}
	return s, nil
}

// Verified is the result of a verification.
type Verified struct {
	Name   string
	Bytes  int64    // bytes read
	Damage []string // one line for each damaged file
}

// Verify reads all files of a database, on disk and in memory, and compares them with their
// digests.
func Verify(ctx context.Context, home, name string) (*Verified, error) {
	d, err := Open(home, name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	r, err := readRecord(home, name)
	if err != nil {
		return nil, err
	}
	desc, err := ReadDescription(r.Data)
	if err != nil {
		return nil, damagedError(name, err)
	}
	v := &Verified{Name: name}
	places := []string{r.Data}
	if d.Resident {
		places = append(places, filepath.Join(filepath.Dir(filepath.Dir(d.Fragments[0].Path)), "data"))
	}
	for _, dir := range places {
		for _, f := range desc.Files {
			path := filepath.Join(dir, f.Name)
			sum, size, err := sumFile(ctx, path)
			switch {
			case err != nil && context.Cause(ctx) != nil:
				return nil, context.Cause(ctx)
			case errors.Is(err, fs.ErrNotExist):
				v.Damage = append(v.Damage, path+" is missing")
			case err != nil:
				v.Damage = append(v.Damage, err.Error())
			case size != f.Size:
				v.Damage = append(v.Damage, fmt.Sprintf("%s has %d bytes instead of %d", path, size, f.Size))
			case sum != f.BLAKE3:
				v.Damage = append(v.Damage, path+" has other contents")
			}
			v.Bytes += size
			if d.Resident && dir == r.Data && err == nil {
				// The read brought the file into the page cache, although a copy is in
				// memory.
				if err := dropCached(path); err != nil {
					return nil, err
				}
			}
		}
	}
	return v, nil
}
