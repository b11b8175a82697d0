package database

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
)

// Kinds returns the types of the databases of BLAST+ in a home. It caches them, because the
// description of a database lists all of its files, of which there may be thousands.
type Kinds struct {
	home  string
	mu    sync.Mutex
	known map[string]kind
}

type kind struct {
	record os.FileInfo // state of the record when it was read; a record is replaced, never changed
	kind   Type
}

// NewKinds returns an empty cache.
func NewKinds(home string) *Kinds { return &Kinds{home: home, known: map[string]kind{}} }

// Of returns the type of a database. It fails as [Open] does.
func (k *Kinds) Of(name string) (Type, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	st, statErr := os.Stat(filepath.Join(k.home, name, recordFile))
	k.mu.Lock()
	was, ok := k.known[name]
	if ok && statErr == nil && os.SameFile(was.record, st) && was.record.ModTime().Equal(st.ModTime()) {
		k.mu.Unlock()
		return was.kind, nil
	}
	delete(k.known, name)
	k.mu.Unlock()
	d, err := Open(k.home, name)
	if err != nil {
		return "", err
	}
	if err := d.For(BLAST); err != nil {
		return "", errors.Join(err, d.Close())
	}
	if statErr == nil {
		k.mu.Lock()
		k.known[name] = kind{st, d.Type}
		k.mu.Unlock()
	}
	return d.Type, d.Close()
}
