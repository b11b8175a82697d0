package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
)

// AddOptions are the source and the settings of a new database.
type AddOptions struct {
	Name   string
	Source string // a FASTA file, gzip or not; an existing BLAST database; or a local copy
	Type   Type   // of a FASTA file; "" for an existing database of one type

	Fragments    int   // their number; 0: by FragmentSize, or as many as cores
	FragmentSize int64 // approximate bytes of letters in each, as on disk

	Version    int // of BLAST databases; 0: 5
	ParseIDs   bool
	Title      string // "": the source, as in makeblastdb
	TaxID      int
	TaxIDMap   string   // a file in the format of makeblastdb
	Masks      []string // "dust" for nucleotides, "seg" for amino acids
	Duplicates bool     // ids may be repeated
	Recut      bool     // format an existing database again
	From       From     // kind of Source, where it may be a file or a database; "": as it can be seen
	Profiles   Profiles // Source lists files with profiles; "": see Source
	Program    Program  // that will search it; "": BLAST
	Block      string   // for DIAMOND, in place of Fragments: its option -b

	Progress *Progress // updated during the call; may be nil
}

// Progress counts the progress of making a database. Its fields only grow.
type Progress struct {
	Whole     atomic.Int64 // bytes of the source
	Checked   atomic.Int64 // of these, checked so far, uncompressed
	Fragments atomic.Int64 // total number of fragments
	Formatted atomic.Int64 // number of finished fragments
}

// Add creates a database in home. It appears whole or not at all.
func Add(ctx context.Context, home string, o AddOptions) (*Record, *Description, error) {
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	if err := owner.MkdirAll(home, 0o755); err != nil {
		return nil, nil, accessError(home, err)
	}
	if err := notThere(home, o.Name); err != nil {
		return nil, nil, err
	}
	if err := sweep(home); err != nil {
		return nil, nil, err
	}
	tmp, release, err := newDir(home, ".new-")
	if err != nil {
		return nil, nil, accessError(home, err)
	}
	defer release()
	r, desc, err := o.make(ctx, home, tmp)
	if err != nil {
		return nil, nil, accessError(home, err)
	}
	if err := errors.Join(writeRecord(tmp, r), os.WriteFile(filepath.Join(tmp, "change"), nil, 0o644)); err != nil {
		return nil, nil, accessError(home, err)
	}
	// rename(2) refuses a directory that is not empty: if two calls add at the same time,
	// the second one fails.
	if err := beneath.Move(tmp, filepath.Join(home, o.Name), beneath.Durable); err != nil {
		if there := notThere(home, o.Name); there != nil {
			return nil, nil, there
		}
		return nil, nil, accessError(home, err)
	}
	return r, desc, nil
}

func (o *AddOptions) check() error {
	if err := CheckName(o.Name); err != nil {
		return err
	}
	if o.Fragments > 0 && o.FragmentSize > 0 {
		return &Error{Kind: Use, Message: "fragments are given by number and by size", HintText: "give one of --fragments and --fragment-size"}
	}
	if o.From != "" && o.From != FromFASTA && o.From != FromDatabase {
		return &Error{Kind: Use, Message: fmt.Sprintf("a source is not %q", o.From), HintText: "give --from fasta or --from database"}
	}
	if o.Profiles != "" {
		switch {
		case o.Profiles != RPS && o.Profiles != Delta:
			return &Error{Kind: Use, Message: fmt.Sprintf("there are no profiles of the kind %q", o.Profiles), HintText: "give --profiles rps, or --profiles delta for deltablast"}
		case o.Type == Nucl || o.Fragments > 1 || o.FragmentSize > 0 || o.ParseIDs || o.TaxID != 0 || o.TaxIDMap != "" || len(o.Masks) > 0 || o.Duplicates || o.Recut || o.From != "":
			return &Error{Kind: Use, Message: "an option for sequences is given with --profiles", HintText: "give only --name, --title, --blastdb-version and where to publish"}
		}
	}
	if o.Program == "" {
		o.Program = BLAST
	}
	switch {
	case o.Program != BLAST && o.Program != DIAMOND:
		return &Error{Kind: Use, Message: fmt.Sprintf("there is no program %q", o.Program), HintText: "give --program blast or --program diamond"}
	case o.Program == BLAST && o.Block != "":
		return &Error{Kind: Use, Message: "blocks are for DIAMOND", HintText: "give --program diamond too, or --fragments in place of --block-size"}
	case o.Program == DIAMOND:
		if o.Block != "" && (o.Fragments > 0 || o.FragmentSize > 0) {
			return &Error{Kind: Use, Message: "the size of blocks and of fragments is given, which are the same", HintText: "give one of --block-size, --fragments and --fragment-size"}
		}
		if o.Type == Nucl || o.Version != 0 && o.Version != 5 || o.ParseIDs || o.TaxID != 0 || o.TaxIDMap != "" || len(o.Masks) > 0 || o.Recut || o.From == FromDatabase || o.Profiles != "" {
			return &Error{Kind: Use, Message: "an option for databases of BLAST+ is given with --program diamond", HintText: "give only --name, --title, --allow-duplicates, the size of fragments, and where to publish"}
		}
	}
	if o.Version == 0 {
		o.Version = 5
	}
	if o.Version != 4 && o.Version != 5 {
		return &Error{Kind: Use, Message: fmt.Sprintf("BLAST databases have no version %d", o.Version), HintText: "give 4 or 5"}
	}
	if o.ParseIDs && o.Duplicates {
		return &Error{Kind: Use, Message: "ids that are parsed cannot be there twice", HintText: "leave one of --parse-seqids and --allow-duplicates away"}
	}
	if (o.TaxIDMap != "" || o.TaxID != 0) && o.Version == 4 {
		return &Error{Kind: Use, Message: "databases of version 4 hold no taxonomy", HintText: "leave --blastdb-version away"}
	}
	if o.TaxIDMap != "" && !o.ParseIDs {
		return &Error{Kind: Use, Message: "a map of taxonomy ids needs parsed ids", HintText: "give --parse-seqids too"}
	}
	for _, m := range o.Masks {
		if want := map[Type]string{Nucl: "dust", Prot: "seg"}[o.Type]; o.Type != "" && m != want {
			return &Error{Kind: Use, Message: fmt.Sprintf("there is no mask %q for type %s", m, o.Type), HintText: "give --mask " + want}
		}
	}
	if o.Progress == nil {
		o.Progress = &Progress{}
	}
	return nil
}

// notThere fails if a database of that name exists. It removes one that a killed rm left
// behind.
func notThere(home, name string) error {
	dir := filepath.Join(home, name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(dir, recordFile)); err == nil {
		return &Error{Kind: Use, Message: fmt.Sprintf("there is a database %s already", name), HintText: "remove it first: premix blast db rm " + name}
	}
	held, err := lockFile(filepath.Join(dir, "lock"), lock.Exclusive)
	if err == nil {
		defer held.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return accessError(dir, os.RemoveAll(dir))
}

// make creates a database in the directory tmp.
func (o *AddOptions) make(ctx context.Context, home, tmp string) (*Record, *Description, error) {
	r := &Record{Format: recordFormat, Name: o.Name, Data: filepath.Join(home, o.Name, "data"), Added: time.Now().UTC().Truncate(time.Second)}
	if isDir(o.Source) {
		desc, err := o.adopt(r)
		return r, desc, err
	}
	data := filepath.Join(tmp, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		return nil, nil, err
	}
	b := &builder{o: o, data: data, scratch: filepath.Join(tmp, "scratch")}
	if err := os.Mkdir(b.scratch, 0o700); err != nil {
		return nil, nil, err
	}
	st, err := os.Stat(o.Source)
	switch {
	case err == nil && st.Mode().IsRegular() && o.Profiles != "":
		err = b.profiles(ctx, o.Source)
	case err == nil && st.Mode().IsRegular() && o.Program == DIAMOND:
		err = b.diamond(ctx, o.Source)
	case err == nil && st.Mode().IsRegular():
		var from From
		switch from, err = o.from(); {
		case err == nil && from == FromDatabase:
			err = b.existing(ctx)
		case err == nil:
			err = b.fasta(ctx, o.Source, o.Source)
		}
	case err == nil:
		err = &Error{Kind: Use, Message: o.Source + " is not a regular file, and it has to be read twice", HintText: "write it to a file first"}
	case errors.Is(err, fs.ErrNotExist) && o.Profiles != "":
		err = &Error{Kind: Use, Message: o.Source + " does not exist", HintText: "name a file that lists the files of profiles", Err: err}
	case errors.Is(err, fs.ErrNotExist) && (o.From == FromFASTA || o.Program == DIAMOND):
		err = &Error{Kind: Use, Message: o.Source + " does not exist", HintText: "name a FASTA file", Err: err}
	case errors.Is(err, fs.ErrNotExist):
		err = b.existing(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	if err := os.RemoveAll(b.scratch); err != nil {
		return nil, nil, err
	}
	desc, err := b.describe(ctx)
	if err != nil {
		return nil, nil, err
	}
	r.Bytes = desc.Bytes()
	return r, desc, nil
}

// From chooses between a FASTA file and an existing database at the same path.
type From string

const (
	FromFASTA    From = "fasta"
	FromDatabase From = "database"
)

// from returns the kind of a source that is a file. makeblastdb names a database after its
// input, so that both may be there: then the caller has to choose.
func (o *AddOptions) from() (From, error) {
	switch {
	case o.From != "":
		return o.From, nil
	case o.Recut:
		return FromDatabase, nil
	}
	for _, k := range []Type{Nucl, Prot} {
		if (o.Type == "" || o.Type == k) && isDatabase(o.Source, k) {
			return "", &Error{Kind: Use, Message: fmt.Sprintf("%s is a file, and there is also a BLAST database %[1]s of type %s", o.Source, k), HintText: "give --from fasta to format the file, or --from database to take the database"}
		}
	}
	return FromFASTA, nil
}

// adopt uses a local copy in its present place, for example in a mounted tree.
func (o *AddOptions) adopt(r *Record) (*Description, error) {
	data, err := filepath.Abs(o.Source)
	if err != nil {
		return nil, err
	}
	desc, err := ReadDescription(data)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Kind: Use, Message: fmt.Sprintf("%s is a directory without a %s", o.Source, DescriptionFile), HintText: "name a FASTA file, a BLAST database (its path without an ending), or a directory that premix blast db add has published", Err: err}
	}
	if err != nil {
		return nil, &Error{Kind: Use, Message: err.Error(), HintText: "fetch it again", Err: err}
	}
	if o.Fragments > 0 && o.Fragments != len(desc.Fragments) || o.FragmentSize > 0 {
		return nil, &Error{Kind: Use, Message: fmt.Sprintf("%s is cut into %d fragments already", o.Source, len(desc.Fragments)), HintText: "leave --fragments and --fragment-size away"}
	}
	for _, f := range desc.Files {
		st, err := os.Stat(filepath.Join(data, f.Name))
		if err != nil {
			return nil, err
		}
		if st.Size() != f.Size {
			return nil, &Error{Kind: Damaged, Message: fmt.Sprintf("%s has %d bytes instead of %d", filepath.Join(data, f.Name), st.Size(), f.Size), HintText: "fetch the directory again"}
		}
	}
	r.Data, r.Bytes = data, desc.Bytes()
	return desc, nil
}

// fragments returns the number of fragments for a number of letters.
func (o *AddOptions) fragments(kind Type, letters int64) int {
	switch {
	case o.Fragments > 0:
		return o.Fragments
	case o.FragmentSize > 0:
		bytes := letters
		if kind == Nucl {
			bytes = (letters + 3) / 4 // two bits a letter
		}
		return int(max(1, (bytes+o.FragmentSize-1)/o.FragmentSize))
	}
	return runtime.GOMAXPROCS(0)
}

// Remove removes a database from memory and from the disk. A tree published from it stays
// in its store. Remove waits for all users of the database.
func Remove(home, name string) error {
	r, unlock, err := lockChange(home, name)
	if err != nil {
		return err
	}
	defer unlock()
	dir := filepath.Join(home, name)
	// From here on, the database cannot be opened any more.
	if err := os.Remove(filepath.Join(dir, recordFile)); err != nil {
		return accessError(dir, err)
	}
	held, err := lockFile(filepath.Join(dir, "lock"), lock.Exclusive)
	if err != nil {
		return err
	}
	defer held.Close()
	if desc, err := ReadDescription(r.Data); err == nil {
		if err := evict(home, local(home, name, desc)); err != nil {
			return err
		}
	}
	return accessError(dir, os.RemoveAll(dir))
}

// lockChange takes the lock under which a database is changed, and reads its record.
func lockChange(home, name string) (r *Record, unlock func(), err error) {
	if _, err = readRecord(home, name); err != nil {
		return nil, nil, err
	}
	f, err := lockFile(filepath.Join(home, name, "change"), lock.Exclusive)
	if errors.Is(err, fs.ErrNotExist) {
		err = damagedError(name, err)
	}
	if err != nil {
		return nil, nil, accessError(home, err)
	}
	if r, err = readRecord(home, name); err != nil { // another process has changed it in the meantime
		return nil, nil, errors.Join(err, f.Close())
	}
	return r, func() { f.Close() }, nil
}

// sortedFiles returns the names of the files in a directory, sorted.
func sortedFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && e.Name() != DescriptionFile {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
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
		switch {
		case errors.Is(err, fs.ErrNotExist): // a process was killed while it removed the directory
			err = os.RemoveAll(dir)
		case err != nil:
			continue
		case lock.Try(f, lock.Exclusive) == nil:
			err = errors.Join(os.RemoveAll(dir), f.Close())
		default:
			err = f.Close()
		}
		if err != nil {
			return accessError(dir, err)
		}
	}
	return nil
}
