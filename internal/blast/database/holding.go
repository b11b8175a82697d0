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

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
)

// Holding is the set of fragments of one database that are in memory, in a directory on a tmpfs.
// Its layout is in the documentation of the package.
//
// All state is in files, so that several processes use a holding, and the next one finds the
// fragments of one that was killed. A fragment is here while its alias exists: the alias is
// written after the files and removed before them. Searches hold a shared lock on it.
type Holding struct {
	Name string
	Desc *Description

	dir    string
	home   string       // the directory of databases that it belongs to; "": it is of a node
	files  [][]DataFile // of each fragment
	shared int          // number of files at the end of each list that all fragments need
}

func newHolding(parent, name string, desc *Description, home string) *Holding {
	x := &Holding{Name: name, Desc: desc, dir: filepath.Join(parent, name+"-"+desc.ID), home: home}
	x.files, x.shared = desc.divided()
	return x
}

func (x *Holding) data(file string) string { return filepath.Join(x.dir, "data", file) }

func (x *Holding) description() string { return filepath.Join(x.dir, DescriptionFile) }

func (x *Holding) aliases() string { return filepath.Join(x.dir, "alias") }

// alias returns the path of a fragment's alias.
func (x *Holding) alias(i int) string {
	return filepath.Join(x.aliases(), fragmentAlias(i)+x.Desc.aliasEnding())
}

// leaving returns the path of the mark of a fragment that no further search may open.
func (x *Holding) leaving(i int) string {
	return filepath.Join(x.aliases(), fragmentAlias(i)+".leaving")
}

// Has reports whether a fragment is complete, and searches may open it.
func (x *Holding) Has(i int) bool { return exists(x.alias(i)) && !exists(x.leaving(i)) }

// Fragments returns the numbers of the fragments that searches may open, in order.
func (x *Holding) Fragments() (list []int) {
	for i := range x.files {
		if x.Has(i) {
			list = append(list, i)
		}
	}
	return list
}

// Size returns the size of the files of a fragment.
func (x *Holding) Size(i int) int64 { return totalSize(x.files[i]) }

// divided returns the files of each fragment: the files of its volumes, and then the files that
// belong to no single volume, with their number.
func (d *Description) divided() (files [][]DataFile, shared int) {
	fragment := map[string]int{} // of a volume
	for i, r := range d.Fragments {
		for _, v := range r.Volumes {
			fragment[v] = i
		}
	}
	files = make([][]DataFile, len(d.Fragments))
	var others []DataFile
next:
	for _, f := range d.Files {
		for at := strings.LastIndexByte(f.Name, '.'); at > 0; at = strings.LastIndexByte(f.Name[:at], '.') {
			if i, ok := fragment[f.Name[:at]]; ok {
				files[i] = append(files[i], f)
				continue next
			}
		}
		others = append(others, f)
	}
	for i := range files {
		files[i] = append(files[i], others...)
	}
	return files, len(others)
}

// Sizes returns the size of the files of each fragment.
func (d *Description) Sizes() (list []int64) {
	files, _ := d.divided()
	for _, f := range files {
		list = append(list, totalSize(f))
	}
	return list
}

func totalSize(files []DataFile) (n int64) {
	for _, f := range files {
		n += f.Size
	}
	return n
}

// change takes the lock under which fragments are loaded and dropped, in a directory that it makes
// if it is missing. Unless wait is set, the error is [lock.ErrHeld] if another process has the lock.
func (x *Holding) change(wait bool) (held *os.File, err error) {
	for _, dir := range []string{x.dir, x.data(""), x.aliases()} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, accessError(dir, err)
		}
	}
	f, err := os.OpenFile(filepath.Join(x.dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, accessError(x.dir, err)
	}
	if err = take(f, wait); err == nil && !exists(x.description()) {
		_, err = f.WriteString(x.home)
		err = errors.Join(err, f.Truncate(int64(len(x.home))), writeJSON(x.description(), x.Desc))
	}
	if err != nil {
		return nil, errors.Join(accessError(x.dir, err), f.Close())
	}
	return f, nil
}

// take locks a file. Unless wait is set, the error is [lock.ErrHeld] if the lock is not free.
func take(f *os.File, wait bool) error {
	if wait {
		return lock.Await(context.Background(), f, lock.Exclusive)
	}
	return lock.Try(f, lock.Exclusive)
}

// Load brings a fragment into memory, unless it is there. get writes the content of a file
// of the database.
func (x *Holding) Load(ctx context.Context, i int, get func(ctx context.Context, name string, to *os.File) error) error {
	held, err := x.change(true)
	if err != nil {
		return err
	}
	defer held.Close()
	if x.Has(i) {
		return nil
	}
	for _, f := range x.files[i] {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if st, err := os.Lstat(x.data(f.Name)); err == nil && st.Size() == f.Size {
			continue // another fragment has it, too
		}
		if err := x.file(ctx, x.data(f.Name), f, get); err != nil {
			return err
		}
	}
	if err := remove(x.leaving(i)); err != nil { // of a Drop that failed
		return accessError(x.dir, err)
	}
	if err := x.Desc.putAlias(i, x.data(""), x.aliases()); err != nil || len(x.Fragments()) < len(x.files) {
		return err
	}
	return x.Desc.putWhole(x.data(""), x.aliases())
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
	held, err := x.change(true)
	if err != nil {
		return err
	}
	defer held.Close()
	return accessError(x.dir, x.drop(i, true))
}

// drop does the work of Drop under the lock of change. Unless wait is set, the error is
// [lock.ErrHeld] if a search uses the fragment, which no further search can open then.
func (x *Holding) drop(i int, wait bool) error {
	if err := os.WriteFile(x.leaving(i), nil, 0o600); err != nil {
		return err
	}
	f, err := os.Open(x.alias(i))
	if err == nil {
		defer f.Close()
		err = take(f, wait)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := errors.Join(remove(filepath.Join(x.aliases(), wholeAlias+x.Desc.aliasEnding())), remove(x.alias(i))); err != nil {
		return err
	}
	files := x.files[i]
	for k := range x.files {
		if exists(x.alias(k)) {
			files = files[:len(files)-x.shared]
			break
		}
	}
	for _, f := range files {
		if err := remove(x.data(f.Name)); err != nil {
			return err
		}
	}
	return remove(x.leaving(i))
}

// remove removes a file, unless it is missing.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// clear removes all fragments, after the searches that use them, and then the directory. Unless
// wait is set, the error is [lock.ErrHeld] if a fragment is in use, or being loaded.
func (x *Holding) clear(wait bool) error {
	if !isDir(x.dir) {
		return nil
	}
	if err := errors.Join(owner.Private(filepath.Dir(x.dir)), owner.Private(x.dir)); err != nil {
		return accessError(x.dir, err)
	}
	held, err := x.change(wait)
	if err != nil {
		return err
	}
	defer held.Close()
	for i := range x.files {
		if err := x.drop(i, wait); err != nil {
			return accessError(x.dir, err)
		}
	}
	// The lock is removed last: the directory is found as long as it takes memory.
	return accessError(x.dir, errors.Join(remove(x.description()), os.RemoveAll(x.data("")), os.RemoveAll(x.dir)))
}

// tidy removes what killed processes have left: fragments that they were dropping, fragments with
// a file of another size, and files of no fragment. The caller holds the lock of change, or is the
// only process.
func (x *Holding) tidy() error {
	needed := map[string]bool{}
	for i := range x.files {
		if !exists(x.alias(i)) && !exists(x.leaving(i)) {
			continue
		}
		if exists(x.leaving(i)) || slices.ContainsFunc(x.files[i], func(f DataFile) bool {
			st, err := os.Lstat(x.data(f.Name))
			return err != nil || !st.Mode().IsRegular() || st.Size() != f.Size
		}) {
			if err := x.drop(i, true); err != nil {
				return err
			}
			continue
		}
		for _, f := range x.files[i] {
			needed[f.Name] = true
		}
	}
	entries, err := os.ReadDir(x.data(""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if !needed[e.Name()] {
			err = errors.Join(err, os.RemoveAll(x.data(e.Name())))
		}
	}
	return err
}

// Open opens the fragments from first on, before end, for a search. They stay in memory until
// the database is closed. The error is fs.ErrNotExist if one of them is not here.
func (x *Holding) Open(first, end int) (*Database, error) {
	if first < 0 || first >= end || end > len(x.files) || !exists(x.description()) {
		return nil, fs.ErrNotExist
	}
	d := x.Desc.opened(x.Name, x.aliases(), first, end)
	d.Resident = true
	for i := first; i < end; i++ {
		f, err := lockFile(x.alias(i), lock.Shared)
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		d.locks = append(d.locks, f)
		// Check under the lock: a process that drops the fragment creates the mark first.
		locked, err := f.Stat()
		now, gone := os.Stat(x.alias(i))
		if err != nil || gone != nil || !os.SameFile(locked, now) || exists(x.leaving(i)) {
			return nil, errors.Join(fs.ErrNotExist, d.Close())
		}
	}
	return d, nil
}

// Bytes returns the size of all files that are here.
func (x *Holding) Bytes() (n int64) {
	entries, err := os.ReadDir(x.data(""))
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
func (x *Holding) InMemory(i int) (int64, error) { return inMemory(x.data(""), x.files[i]) }

// inMemory returns how many bytes of files are in memory, by mincore(2).
func inMemory(dir string, files []DataFile) (n int64, err error) {
	for _, f := range files {
		k, err := cachedBytes(filepath.Join(dir, f.Name))
		if err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}
