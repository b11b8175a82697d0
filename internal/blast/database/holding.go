package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
)

// Holdings are the fragments that a node of a cluster has in memory. One process has them at
// a time. They are in a directory on a tmpfs:
//
//	lock                 flock(2), exclusive
//	drop                 the fragments are not to outlive the process
//	NAME-ID/database.json  the description
//	NAME-ID/data/        the files of the fragments that are here
//	NAME-ID/alias/NNN.nal  the alias of a fragment, written once its files are complete
//
// So a process finds the fragments of one that was killed before. It checks the sizes of their
// files, and removes what is not part of a complete fragment.
type Holdings struct {
	dir  string
	held *os.File

	mu   sync.Mutex // guards what follows
	list map[string]*Holding
}

// OpenHoldings opens the directory in memory of a node.
func OpenHoldings(dir string) (*Holdings, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, accessError(dir, err)
	}
	if err := ownDir(dir); err != nil {
		return nil, accessError(dir, err)
	}
	if in, err := isMemory(dir); err != nil {
		return nil, err
	} else if !in {
		return nil, &Error{Kind: Use, Message: dir + " is not on a tmpfs: files in it are not in memory", HintText: "set PREMIX_BLAST_RAM to a directory on a tmpfs"}
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
		at := filepath.Join(dir, e.Name())
		desc, err := ReadDescription(at)
		name, ok := strings.CutSuffix(e.Name(), "-"+descID(desc))
		if err != nil || !ok {
			// It was being made, or removed, when the process was killed.
			if err := os.RemoveAll(at); err != nil {
				return nil, errors.Join(accessError(at, err), f.Close())
			}
			continue
		}
		x := newHolding(at, name, desc)
		if err := x.adopt(); err != nil {
			return nil, errors.Join(accessError(at, err), f.Close())
		}
		h.list[e.Name()] = x
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
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return accessError(h.dir, err)
	}
	return nil
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
		f, err := os.OpenFile(filepath.Join(other, "lock"), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue // a node is beginning there, or another one has removed it
		}
		if lock.Try(f, lock.Exclusive) == nil {
			if err := os.RemoveAll(other); err != nil {
				return removed, errors.Join(accessError(other, err), f.Close())
			}
			removed = append(removed, other)
		}
		if err := f.Close(); err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// adopt prepares the holding of a process that has ended. A fragment whose files do not have
// their sizes does not count, and files that belong to no complete fragment are removed: the
// process was killed while it loaded or dropped them.
func (x *Holding) adopt() error {
	data := filepath.Join(x.dir, "data")
	needed := map[string]bool{}
	for _, i := range x.Fragments() {
		files := x.Desc.FilesOf(i)
		if slices.ContainsFunc(files, func(f DataFile) bool {
			st, err := os.Lstat(filepath.Join(data, f.Name))
			return err != nil || !st.Mode().IsRegular() || st.Size() != f.Size
		}) {
			if err := os.Remove(x.alias(i) + x.Desc.aliasEnding()); err != nil {
				return err
			}
			continue
		}
		for _, f := range files {
			needed[f.Name] = true
		}
	}
	entries, err := os.ReadDir(data)
	if errors.Is(err, fs.ErrNotExist) {
		return os.Mkdir(data, 0o755)
	}
	for _, e := range entries {
		if !needed[e.Name()] {
			err = errors.Join(err, os.RemoveAll(filepath.Join(data, e.Name())))
		}
	}
	return err
}

func descID(d *Description) string {
	if d == nil {
		return ""
	}
	return d.ID
}

// Close leaves the fragments in memory, for the next process.
func (h *Holdings) Close() error { return h.held.Close() }

// All returns the databases of which there are fragments.
func (h *Holdings) All() []*Holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*Holding
	for _, x := range h.list {
		all = append(all, x)
	}
	return all
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
	if x := h.list[key]; x != nil {
		return x, nil
	}
	dir := filepath.Join(h.dir, key)
	for _, d := range []string{dir, filepath.Join(dir, "data"), filepath.Join(dir, "alias")} {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, accessError(d, err)
		}
	}
	if err := writeJSON(filepath.Join(dir, DescriptionFile), desc); err != nil {
		return nil, accessError(dir, err)
	}
	x := newHolding(dir, name, desc)
	h.list[key] = x
	return x, nil
}

// Remove removes all fragments of a database, after the searches that use them.
func (h *Holdings) Remove(x *Holding) error {
	h.mu.Lock()
	delete(h.list, x.Name+"-"+x.Desc.ID)
	h.mu.Unlock()
	for _, i := range x.Fragments() {
		if err := x.Drop(i); err != nil {
			return err
		}
	}
	// Without its description the directory counts as unfinished.
	if err := os.Remove(filepath.Join(x.dir, DescriptionFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return accessError(x.dir, err)
	}
	return accessError(x.dir, os.RemoveAll(x.dir))
}

// Budget returns the memory that the fragments may take together: limit, or what is
// available now with those that are here, as for [Warm].
func (h *Holdings) Budget(limit int64) (Budget, error) {
	b, err := budget(limit, h.dir)
	if err != nil {
		return b, err
	}
	var used int64
	for _, x := range h.All() {
		used += x.Bytes()
	}
	b.Room += used
	if limit == 0 {
		b.Bytes += used
	} else {
		b.Bytes = min(limit, b.Room)
	}
	return b, nil
}

// Holding are the fragments of one database on a node.
type Holding struct {
	Name string
	Desc *Description
	dir  string

	change sync.Mutex // serializes changes; locked before mu

	mu    sync.Mutex // guards what follows
	users []int      // searches of each fragment
	ended *sync.Cond // a search has ended
}

func newHolding(dir, name string, desc *Description) *Holding {
	x := &Holding{Name: name, Desc: desc, dir: dir, users: make([]int, len(desc.Fragments))}
	x.ended = sync.NewCond(&x.mu)
	return x
}

// Has reports whether a fragment is complete.
func (x *Holding) Has(i int) bool {
	_, err := os.Lstat(x.alias(i) + x.Desc.aliasEnding())
	return err == nil
}

// Fragments returns the numbers of the complete fragments, in order.
func (x *Holding) Fragments() (list []int) {
	for i := range x.Desc.Fragments {
		if x.Has(i) {
			list = append(list, i)
		}
	}
	return list
}

func (x *Holding) alias(i int) string { return filepath.Join(x.dir, "alias", fragmentAlias(i)) }

// FilesOf returns the files of a fragment: of its volumes, and those that do not belong to
// one volume.
func (d *Description) FilesOf(i int) (list []DataFile) {
	owner := func(name string) int {
		for k, r := range d.Fragments {
			for _, v := range r.Volumes {
				if strings.HasPrefix(name, v+".") {
					return k
				}
			}
		}
		return -1
	}
	for _, f := range d.Files {
		if at := owner(f.Name); at == i || at < 0 {
			list = append(list, f)
		}
	}
	return list
}

// BytesOf returns the size of the files of a fragment.
func (d *Description) BytesOf(i int) (n int64) {
	for _, f := range d.FilesOf(i) {
		n += f.Size
	}
	return n
}

// Load brings a fragment into memory, unless it is there. get writes the content of a file
// of the database.
func (x *Holding) Load(ctx context.Context, i int, get func(ctx context.Context, name string, to *os.File) error) error {
	x.change.Lock()
	defer x.change.Unlock()
	if x.Has(i) {
		return nil
	}
	data := filepath.Join(x.dir, "data")
	for _, f := range x.Desc.FilesOf(i) {
		path := filepath.Join(data, f.Name)
		if st, err := os.Lstat(path); err == nil && st.Size() == f.Size {
			continue // another fragment has it, too
		}
		if err := x.file(ctx, path, f, get); err != nil {
			return err
		}
	}
	return x.Desc.putAlias(i, data, filepath.Join(x.dir, "alias"))
}

// file brings one file into memory. It has its name once it is complete.
func (x *Holding) file(ctx context.Context, path string, f DataFile, get func(ctx context.Context, name string, to *os.File) error) error {
	out, err := beneath.Create(path, 0o644)
	if err != nil {
		return accessError(x.dir, err)
	}
	err = get(ctx, f.Name, out.File)
	if err == nil {
		var st os.FileInfo
		if st, err = out.Stat(); err == nil && st.Size() != f.Size {
			err = damagedError(x.Name, fmt.Errorf("%s has %d bytes instead of %d", f.Name, st.Size(), f.Size))
		}
	}
	if err != nil {
		return accessError(x.dir, errors.Join(err, out.Discard()))
	}
	if err := out.Commit(beneath.Volatile); err != nil {
		return accessError(x.dir, err)
	}
	_ = useLargePages(path) // an error only makes searches slower
	return nil
}

// Drop removes a fragment from memory, after the searches that use it. No further search can
// open it meanwhile.
func (x *Holding) Drop(i int) error {
	x.change.Lock()
	defer x.change.Unlock()
	x.mu.Lock()
	err := os.Remove(x.alias(i) + x.Desc.aliasEnding())
	for x.users[i] > 0 {
		x.ended.Wait()
	}
	x.mu.Unlock()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return accessError(x.dir, err)
	}
	needed := map[string]bool{}
	for _, k := range x.Fragments() {
		for _, f := range x.Desc.FilesOf(k) {
			needed[f.Name] = true
		}
	}
	var errs []error
	for _, f := range x.Desc.FilesOf(i) {
		if !needed[f.Name] {
			if err := os.Remove(filepath.Join(x.dir, "data", f.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return accessError(x.dir, errors.Join(errs...))
}

// Open opens the fragments from first on, before end, for a search. They stay in memory until
// the database is closed. The error is fs.ErrNotExist if one of them is not here.
func (x *Holding) Open(first, end int) (*Database, error) {
	if first < 0 || first >= end || end > len(x.Desc.Fragments) {
		return nil, fs.ErrNotExist
	}
	d := &Database{
		Name: x.Name, Type: x.Desc.Type, Title: x.Desc.Title, Version: x.Desc.Version, ParsedIDs: x.Desc.ParsedIDs, UniqueIDs: x.Desc.UniqueIDs, Masks: x.Desc.Masks,
		Sequences: x.Desc.Sequences, Letters: x.Desc.Letters, ID: x.Desc.ID, Program: x.Desc.By(), Block: x.Desc.Block, Resident: true,
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := first; i < end; i++ {
		if !x.Has(i) {
			return nil, fs.ErrNotExist
		}
		r := x.Desc.Fragments[i]
		d.Fragments = append(d.Fragments, Fragment{Path: x.alias(i), First: r.First, Sequences: r.Sequences, Letters: r.Letters})
	}
	count := func(n int) {
		for i := first; i < end; i++ {
			x.users[i] += n
		}
	}
	count(1)
	d.release = func() {
		x.mu.Lock()
		count(-1)
		x.mu.Unlock()
		x.ended.Broadcast()
	}
	return d, nil
}

// Bytes returns the size of all files that are here.
func (x *Holding) Bytes() (n int64) {
	entries, err := os.ReadDir(filepath.Join(x.dir, "data"))
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			n += info.Size()
		}
	}
	return n
}

// InMemory returns how many bytes of the files of a fragment are in memory, and not swapped
// out, by mincore(2).
func (x *Holding) InMemory(i int) (n int64, err error) {
	for _, f := range x.Desc.FilesOf(i) {
		k, err := cachedBytes(filepath.Join(x.dir, "data", f.Name))
		if err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}
