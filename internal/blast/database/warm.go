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

	"golang.org/x/sys/unix"

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

// local returns the holding of a database of this machine.
func local(home, name string, desc *Description) *Holding {
	return newHolding(RAM(home), name, desc, home)
}

// openResident opens a database in memory. The error is fs.ErrNotExist if it is not resident, or
// the directory belongs to another user.
func openResident(home, name string, desc *Description) (*Database, error) {
	x := local(home, name, desc)
	if owner.Private(RAM(home)) != nil || owner.Private(x.dir) != nil {
		return nil, fs.ErrNotExist
	}
	return x.Open(0, len(x.files))
}

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
	r, unlock, err := lockChange(home, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	desc, err := ReadDescription(r.Data)
	if err != nil {
		return nil, damagedError(name, err)
	}
	return r.load(ctx, home, desc, limit)
}

// load makes a database resident, unless it is so already. The caller has the lock of changes.
func (r *Record) load(ctx context.Context, home string, desc *Description, limit int64) (*Resident, error) {
	ram, x, was := RAM(home), local(home, r.Name, desc), r.Warm
	if err := errors.Join(sweepRAM(home), memoryDir(ram)); err != nil {
		return nil, err
	}
	b, err := budget(limit, ram)
	if err != nil {
		return nil, err
	}
	if need := desc.Bytes(); need-x.Bytes() > b.Bytes {
		hint := "evict another database, or give more with --memory"
		if limit > 0 && limit <= b.Room {
			hint = "give more with --memory"
		}
		return nil, &Error{Kind: NoRoom, Message: fmt.Sprintf("the database %s does not fit into memory: it takes %s, and %s may be used (%s)", r.Name, units.Size(need), units.Size(b.Bytes), b), HintText: hint}
	}
	// From here on, sweepRAM keeps the fragments.
	if err := r.setWarm(home, true); err != nil {
		return nil, err
	}
	held, err := x.change(true)
	if err == nil {
		err = errors.Join(x.tidy(), held.Close())
	}
	for i := 0; i < len(x.files) && err == nil; i++ {
		err = x.Load(ctx, i, func(_ context.Context, name string, to *os.File) error {
			from, err := os.Open(filepath.Join(r.Data, name))
			if err != nil {
				return err
			}
			defer from.Close()
			_, err = io.Copy(to, from)
			return err
		})
	}
	if err != nil {
		return nil, accessError(ram, errors.Join(err, x.clear(true), r.setWarm(home, was)))
	}
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

// setWarm records whether a database should be resident.
func (r *Record) setWarm(home string, warm bool) error {
	if r.Warm == warm {
		return nil
	}
	r.Warm = warm
	return accessError(home, writeRecord(filepath.Join(home, r.Name), r))
}

func measure(home string, r *Record, desc *Description) (*Resident, error) {
	s := &Resident{}
	d, err := openResident(home, r.Name, desc)
	switch {
	case err == nil:
		defer d.Close()
		s.Dir, s.Bytes = local(home, r.Name, desc).dir, desc.Bytes()
		if s.InMemory, err = inMemory(filepath.Join(s.Dir, "data"), desc.Files); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if s.DiskCached, err = inMemory(r.Data, desc.Files); err != nil {
		return nil, damagedError(r.Name, err)
	}
	if s.Dir != "" && s.DiskCached > 0 {
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
	if err := errors.Join(err, sweepRAM(home)); err != nil {
		return nil, err
	}
	var list []WarmResult
	for _, name := range names {
		w := WarmResult{Name: name}
		r, err := readRecord(home, name)
		switch {
		case err != nil:
			w.Err = err
		case !r.Warm:
			continue
		default:
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
	r, unlock, err := lockChange(home, name)
	if err != nil {
		return 0, err
	}
	defer unlock()
	if err := r.setWarm(home, false); err != nil {
		return 0, err
	}
	desc, err := ReadDescription(r.Data)
	if err != nil {
		return 0, damagedError(name, err)
	}
	x := local(home, name, desc)
	freed := x.Bytes()
	return freed, evict(home, x)
}

// evict removes a database from memory, with the databases that killed processes have left
// there, and the directory with the last one.
func evict(home string, x *Holding) error {
	if err := errors.Join(x.clear(true), sweepRAM(home)); err != nil {
		return err
	}
	err := remove(RAM(home))
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return accessError(RAM(home), err)
}

// sweepRAM removes databases from memory that are not to be resident: processes were killed while
// they loaded, updated or removed them. It skips databases in use, and those of another home.
//
// Databases without a description are those of a version of premix that had no holdings.
// [Record.load] takes them over if they are to be resident.
func sweepRAM(home string) error {
	ram := RAM(home)
	if owner.Private(ram) != nil {
		return nil // there is none, or it belongs to another user
	}
	if err := sweep(ram); err != nil {
		return err
	}
	entries, err := os.ReadDir(ram)
	if err != nil {
		return accessError(ram, err)
	}
	for _, e := range entries {
		name, id := cutID(e.Name())
		x := &Holding{Name: name, Desc: &Description{ID: id}, dir: filepath.Join(ram, e.Name())}
		of, err := os.ReadFile(filepath.Join(x.dir, "lock"))
		r, unknown := readRecord(home, name)
		switch {
		case err != nil, len(of) > 0 && string(of) != home, len(of) == 0 && unknown != nil && os.Getenv("PREMIX_BLAST_RAM") != "":
			continue
		case unknown == nil && r.Warm:
			if d, err := ReadDescription(r.Data); err != nil || d.ID == id {
				continue
			}
		}
		if d, err := ReadDescription(x.dir); err == nil && d.ID == id {
			x = local(home, name, d)
		}
		if err := x.clear(false); err != nil && !errors.Is(err, lock.ErrHeld) {
			return err
		}
	}
	return nil
}

// cutID splits the name of a directory NAME-ID.
func cutID(dir string) (name, id string) {
	at := strings.LastIndexByte(dir, '-')
	if at < 0 {
		return dir, ""
	}
	return dir[:at], dir[at+1:]
}
