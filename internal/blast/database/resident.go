package database

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
	"premix/internal/kit/units"
)

// RAM returns the directory in memory for the databases of home: $PREMIX_BLAST_RAM, or a
// directory for this user and this home in /dev/shm.
func RAM(home string) string {
	if dir := os.Getenv("PREMIX_BLAST_RAM"); dir != "" {
		if abs, err := filepath.Abs(dir); err == nil {
			return abs
		}
		return dir
	}
	sum := sha256.Sum256([]byte(home))
	return filepath.Join("/dev/shm", "premix-blast-"+strconv.Itoa(os.Geteuid())+"-"+hex.EncodeToString(sum[:6]))
}

func ramDir(home, name, id string) string { return filepath.Join(RAM(home), name+"-"+id) }

// enter begins to use the copy of a database in memory. The lock is nil if there is no
// copy.
func enter(home, name, id string) (dir string, held *os.File, err error) {
	dir = ramDir(home, name, id)
	if owner.Private(RAM(home)) != nil || owner.Private(dir) != nil {
		return "", nil, nil // no database was ever resident, or the directory belongs to another user
	}
	held, err = lockShared(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	// Check under the lock: a process that removes the copy creates the mark first.
	if _, err := os.Lstat(filepath.Join(dir, leavingMark)); err == nil || !isDir(dir) {
		return "", nil, held.Close()
	}
	return dir, held, nil
}

const leavingMark = "leaving"

// Resident describes the copy of a database in memory.
type Resident struct {
	Dir        string // "" if it is not resident
	Bytes      int64  // of its files there
	InMemory   int64  // of these, not swapped out
	DiskCached int64  // bytes of the local copy in the page cache
	DiskMapped []int  // processes that have mapped the local copy, and keep it in the page cache
}

// Warm makes a database resident, within a limit of memory in bytes; 0 for the memory that
// is available. It records that the database should be resident, so that [WarmAll] loads it
// again after a reboot.
func Warm(ctx context.Context, home, name string, limit int64) (*Resident, error) {
	unlock, err := lockChange(home, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	r, err := readRecord(home, name)
	if err != nil {
		return nil, err
	}
	desc, err := ReadDescription(r.Data)
	if err != nil {
		return nil, damagedError(name, err)
	}
	if err := load(ctx, home, r, desc, limit); err != nil {
		return nil, err
	}
	if !r.Warm {
		r.Warm = true
		if err := writeRecord(filepath.Join(home, name), r); err != nil {
			return nil, accessError(home, err)
		}
	}
	return checkResident(home, r, desc)
}

// load copies a database into memory, unless it is there already.
func load(ctx context.Context, home string, r *Record, desc *Description, limit int64) error {
	ram := RAM(home)
	if err := os.MkdirAll(filepath.Dir(ram), 0o755); err != nil {
		return accessError(ram, err)
	}
	if err := ownDir(ram); err != nil {
		return accessError(ram, err)
	}
	switch in, err := isMemory(ram); {
	case err != nil:
		return err
	case !in:
		return &Error{Kind: Use, Message: ram + " is not on a tmpfs: files in it are not in memory", HintText: "set PREMIX_BLAST_RAM to a directory on a tmpfs"}
	}
	to := ramDir(home, r.Name, desc.ID)
	if isDir(to) {
		if _, err := os.Lstat(filepath.Join(to, leavingMark)); err == nil {
			// An evict was killed while it waited.
			if err := removeResident(to); err != nil {
				return err
			}
		} else {
			return nil
		}
	}
	if err := sweep(ram); err != nil {
		return err
	}
	b, err := budget(limit, ram)
	if err != nil {
		return err
	}
	need := desc.Bytes()
	if need > b.Bytes {
		way := "evict another database, or give more with --memory"
		if limit > 0 && limit <= b.Room {
			way = "give more with --memory"
		}
		return &Error{Kind: NoRoom, Message: fmt.Sprintf("the database %s does not fit into memory: it takes %s, and %s may be used (%s)", r.Name, units.Size(need), units.Size(b.Bytes), b), HintText: way}
	}
	tmp, release, err := newDir(ram, ".new-")
	if err != nil {
		return accessError(ram, err)
	}
	defer release()
	if err := errors.Join(os.Mkdir(filepath.Join(tmp, "data"), 0o755), os.Mkdir(filepath.Join(tmp, "alias"), 0o755)); err != nil {
		return accessError(ram, err)
	}
	for _, f := range desc.Files {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := copyFile(filepath.Join(r.Data, f.Name), filepath.Join(tmp, "data", f.Name))
		if err == nil && n != f.Size {
			err = damagedError(r.Name, fmt.Errorf("%s has %d bytes instead of %d", f.Name, n, f.Size))
		}
		if err != nil {
			return accessError(ram, err)
		}
		_ = useLargePages(filepath.Join(tmp, "data", f.Name)) // an error only makes searches slower
	}
	// The aliases contain the final path of the directory.
	if err := putAliases(desc, filepath.Join(to, "data"), filepath.Join(tmp, "alias")); err != nil {
		return err
	}
	return beneath.Move(tmp, to, beneath.Volatile)
}

// checkResident measures a resident database, after dropping the local copy from the page
// cache.
func checkResident(home string, r *Record, desc *Description) (*Resident, error) {
	// Try twice: pages that were just read are not dropped the first time.
	for range 2 {
		for _, f := range desc.Files {
			if err := dropCached(filepath.Join(r.Data, f.Name)); err != nil {
				return nil, err
			}
		}
	}
	return measure(home, r, desc)
}

func measure(home string, r *Record, desc *Description) (*Resident, error) {
	s := &Resident{}
	dir, held, err := enter(home, r.Name, desc.ID)
	if err != nil {
		return nil, err
	}
	if held != nil {
		defer held.Close()
		s.Dir = dir
	}
	for _, f := range desc.Files {
		if held != nil {
			n, err := cachedBytes(filepath.Join(dir, "data", f.Name))
			if err != nil {
				return nil, err
			}
			s.Bytes, s.InMemory = s.Bytes+f.Size, s.InMemory+n
		}
		n, err := cachedBytes(filepath.Join(r.Data, f.Name))
		if err != nil {
			return nil, damagedError(r.Name, err)
		}
		s.DiskCached += n
	}
	if held != nil && s.DiskCached > 0 {
		s.DiskMapped = mapping(r.Data)
	}
	return s, nil
}

// WarmResult is the result for one database.
type WarmResult struct {
	Name     string
	Resident *Resident
	Err      error
}

// WarmAll makes all databases resident that should be, for example after a reboot.
func WarmAll(ctx context.Context, home string, limit int64) ([]WarmResult, error) {
	names, err := List(home)
	if err != nil {
		return nil, err
	}
	var list []WarmResult
	for _, name := range names {
		r, err := readRecord(home, name)
		if err == nil && !r.Warm {
			continue
		}
		w := WarmResult{Name: name, Err: err}
		if err == nil {
			w.Resident, w.Err = Warm(ctx, home, name, limit)
		}
		list = append(list, w)
	}
	return list, nil
}

// Evict removes a database from memory. It waits for the searches that use it there;
// searches that begin during this time use the local copy. It returns the number of bytes
// freed.
func Evict(home, name string) (int64, error) {
	unlock, err := lockChange(home, name)
	if err != nil {
		return 0, err
	}
	defer unlock()
	r, err := readRecord(home, name)
	if err != nil {
		return 0, err
	}
	if r.Warm {
		r.Warm = false
		if err := writeRecord(filepath.Join(home, name), r); err != nil {
			return 0, accessError(home, err)
		}
	}
	desc, err := ReadDescription(r.Data)
	if err != nil {
		return 0, damagedError(name, err)
	}
	dir := ramDir(home, name, desc.ID)
	if !isDir(dir) {
		return 0, nil
	}
	if err := errors.Join(owner.Private(RAM(home)), owner.Private(dir)); err != nil {
		return 0, accessError(RAM(home), err)
	}
	return desc.Bytes(), removeResident(dir)
}

func removeResident(dir string) error {
	f, err := owner.OpenFile(filepath.Join(dir, leavingMark), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return accessError(dir, err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	held, err := lockFile(filepath.Join(dir, "lock"), lock.Exclusive)
	if err != nil {
		return err
	}
	defer held.Close()
	if err := os.RemoveAll(dir); err != nil {
		return accessError(dir, err)
	}
	// Remove the directory if this was its last database.
	if err := os.Remove(filepath.Dir(dir)); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) {
		return accessError(dir, err)
	}
	return nil
}

// newDir creates a directory with a lock that is held until release. release also removes
// the directory, if it still has this name.
func newDir(parent, prefix string) (dir string, release func(), err error) {
	if dir, err = os.MkdirTemp(parent, prefix); err != nil {
		return "", nil, err
	}
	release = func() { _ = os.RemoveAll(dir) } // sweep removes the remainder later
	if err := os.Chmod(dir, 0o755); err != nil {
		release()
		return "", nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err == nil {
		err = lock.Await(context.Background(), f, lock.Shared)
	}
	if err != nil {
		release()
		return "", nil, err
	}
	return dir, func() { _ = os.RemoveAll(dir); f.Close() }, nil
}

// sweep removes unfinished directories that killed processes have left in a directory.
func sweep(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".new-") {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		// There is a moment between creating a directory and locking it.
		if info, err := e.Info(); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue // it was just created, or just removed
		}
		if lock.Try(f, lock.Exclusive) == nil {
			err = os.RemoveAll(dir)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return accessError(dir, err)
		}
	}
	return nil
}

// copyFile copies a file, by sharing its blocks if the file system supports that.
func copyFile(from, to string) (int64, error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(out, in)
	return n, errors.Join(err, out.Close())
}
