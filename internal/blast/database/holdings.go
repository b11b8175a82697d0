package database

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
)

// Holdings are the holdings of a node of a cluster. One process has them at a time. They are in
// a directory on a tmpfs:
//
//	lock      flock(2), exclusive
//	drop      the fragments are not to outlive the process
//	NAME-ID/  a [Holding]
type Holdings struct {
	dir  string
	held *os.File

	mu   sync.Mutex // guards what follows
	list map[string]*Holding
}

// OpenHoldings opens the directory in memory of a node, with the fragments that a former process
// has left there.
func OpenHoldings(dir string) (*Holdings, error) {
	if err := memoryDir(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, accessError(dir, err)
	}
	if err := lock.Try(f, lock.Exclusive); err != nil {
		f.Close()
		return nil, &Error{Kind: Access, Message: dir + " belongs to another node that runs", HintText: "stop it, or set PREMIX_HOME or PREMIX_BLAST_RAM to another directory", Err: err}
	}
	h := &Holdings{dir: dir, held: f, list: map[string]*Holding{}}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		name, id := cutID(e.Name())
		if desc, err := ReadDescription(filepath.Join(dir, e.Name())); err == nil && desc.ID == id {
			x := newHolding(dir, name, desc, "")
			h.list[e.Name()] = x
			err = x.tidy()
			if err != nil {
				return nil, errors.Join(accessError(x.dir, err), f.Close())
			}
		} else if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil { // it was being made, or removed
			return nil, errors.Join(accessError(dir, err), f.Close())
		}
	}
	return h, err
}

// dropMark is the name of the mark of holdings that are not to outlive their process.
const dropMark = "drop"

// SetDrop sets whether other nodes of the user may remove the fragments once the process has
// ended, see [SweepHoldings].
func (h *Holdings) SetDrop(drop bool) error {
	path := filepath.Join(h.dir, dropMark)
	if drop {
		return accessError(h.dir, os.WriteFile(path, nil, 0o600))
	}
	return accessError(h.dir, remove(path))
}

// SweepHoldings removes the fragments that killed nodes of this user were to drop, and returns
// the directories that it removed. They are those beside dir, in /dev/shm. It skips a directory
// that it cannot lock: its node runs.
func SweepHoldings(dir string) (removed []string, err error) {
	beside, err := filepath.Glob(filepath.Join(filepath.Dir(dir), fmt.Sprintf("premix-blast-%d-*-node", os.Geteuid())))
	if err != nil {
		return nil, err
	}
	for _, other := range beside {
		if other == dir || owner.Private(other) != nil || !exists(filepath.Join(other, dropMark)) {
			continue
		}
		h, err := OpenHoldings(other)
		if err != nil {
			continue // its node runs
		}
		if err := errors.Join(os.RemoveAll(other), h.Close()); err != nil {
			return removed, accessError(other, err)
		}
		removed = append(removed, other)
	}
	return removed, nil
}

// Close leaves the fragments in memory, for the next process.
func (h *Holdings) Close() error { return h.held.Close() }

// All returns the databases of which there are fragments.
func (h *Holdings) All() []*Holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.list))
}

// Get returns the fragments of a database, or nil.
func (h *Holdings) Get(name, id string) *Holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.list[name+"-"+id]
}

// Add returns the holding of a database, which is empty if it is new.
func (h *Holdings) Add(name string, desc *Description) (*Holding, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := desc.check(); err != nil {
		return nil, damagedError(name, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	key := name + "-" + desc.ID
	if h.list[key] == nil {
		h.list[key] = newHolding(h.dir, name, desc, "")
	}
	return h.list[key], nil
}

// Remove removes all fragments of a database, after the searches that use them.
func (h *Holdings) Remove(x *Holding) error {
	h.mu.Lock()
	delete(h.list, x.Name+"-"+x.Desc.ID)
	h.mu.Unlock()
	return x.clear(true)
}

// Bytes returns the memory that the fragments take.
func (h *Holdings) Bytes() (n int64) {
	for _, x := range h.All() {
		n += x.Bytes()
	}
	return n
}

// Budget returns the memory that the fragments may take together: limit, or the memory that is
// available now with the fragments that are here, as for [Warm].
func (h *Holdings) Budget(limit int64) (Budget, error) {
	b, err := budget(limit, h.dir)
	if err != nil {
		return b, err
	}
	used := h.Bytes()
	b.Room += used
	if limit == 0 {
		b.Bytes += used
	} else {
		b.Bytes = min(limit, b.Room)
	}
	return b, nil
}
