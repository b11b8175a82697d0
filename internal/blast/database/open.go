package database

import (
	"bytes"
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
)

// Database is a database that can be searched until it is closed.
type Database struct {
	Name      string
	Type      Type
	Title     string
	Version   int // of BLAST databases: 4 or 5
	ParsedIDs bool
	UniqueIDs bool // as in [Description]
	Masks     []string
	Sequences int64
	Letters   int64
	Whole     string // path of an alias of the whole, without extension, as -db needs it; "": there is none
	Fragments []Fragment
	Resident  bool // the paths are in memory
	ID        string
	Program   Program
	Block     int64 // as in [Description]

	// Members are the databases that are searched as one, in the order of their names in Name,
	// which are separated by blanks; nil: this is a single database. With members, Whole,
	// Fragments and ID are empty, and the numbers are sums.
	Members []*Database

	locks []*os.File
}

// Fragment is a part of a database that can be searched by itself, with the statistics of
// the whole.
type Fragment struct {
	Path      string // of its alias, without extension
	First     int64  // OID of its first sequence in the whole
	Sequences int64
	Letters   int64
}

// Open opens a database of the directory home, see [Home]. The database is not moved or
// removed until it is closed.
func Open(home, name string) (*Database, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	dir := filepath.Join(home, name)
	held, err := lockShared(dir)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = readRecord(home, name) // it has the better error
		if err == nil {
			err = damagedError(name, fs.ErrNotExist)
		}
	}
	if err != nil {
		return nil, err
	}
	d, err := open(home, name)
	if err != nil {
		held.Close()
		return nil, err
	}
	d.locks = append(d.locks, held)
	return d, nil
}

// OpenAll opens the databases of a -db of BLAST+, which may name several, separated by
// blanks: BLAST+ searches these as one database. They must have the same type.
//
// BLAST+ orders the volumes of several databases by their file names, whatever the order in
// the list.
func OpenAll(home, names string) (*Database, error) {
	list := strings.Fields(names)
	if len(list) < 2 {
		d, err := Open(home, names)
		if err != nil {
			return nil, err
		}
		if err := d.For(BLAST); err != nil {
			return nil, errors.Join(err, d.Close())
		}
		return d, nil
	}
	all := &Database{Name: names, Program: BLAST, Resident: true, ParsedIDs: true}
	var titles []string
	for i, name := range list {
		if slices.Contains(list[:i], name) {
			// BLAST+ counts some of the sequences of a repeated database twice.
			err := &Error{Kind: Use, Message: fmt.Sprintf("the database %s is named twice", name), HintText: "name each database once"}
			return nil, errors.Join(err, all.Close())
		}
		d, err := Open(home, name)
		if err != nil {
			return nil, errors.Join(err, all.Close())
		}
		all.Members = append(all.Members, d)
		if err := d.For(BLAST); err != nil {
			return nil, errors.Join(err, all.Close())
		}
		if first := all.Members[0]; d.Type != first.Type {
			err := &Error{Kind: Use, Message: fmt.Sprintf("%s is of type %s, and %s of type %s", first.Name, first.Type, d.Name, d.Type), HintText: "name databases of one type, as premix blast db ls lists them"}
			return nil, errors.Join(err, all.Close())
		}
		titles = append(titles, d.Title)
		all.Type, all.Version = d.Type, d.Version
		all.Sequences, all.Letters = all.Sequences+d.Sequences, all.Letters+d.Letters
		all.Resident, all.ParsedIDs = all.Resident && d.Resident, all.ParsedIDs && d.ParsedIDs
	}
	all.Title = strings.Join(titles, "; ")
	return all, nil
}

func open(home, name string) (*Database, error) {
	r, err := readRecord(home, name)
	if err != nil {
		return nil, err
	}
	desc, err := ReadDescription(r.Data)
	if err != nil {
		return nil, damagedError(name, err)
	}
	if d, err := openResident(home, name, desc); !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	aliases := aliasDir(home, name, r.Data)
	if err := os.MkdirAll(aliases, 0o755); err != nil {
		return nil, accessError(aliases, err)
	}
	for i := range desc.Fragments {
		if err := desc.putAlias(i, r.Data, aliases); err != nil {
			return nil, err
		}
	}
	if err := desc.putWhole(r.Data, aliases); err != nil {
		return nil, err
	}
	return desc.opened(name, aliases, 0, len(desc.Fragments)), nil
}

// opened returns the fragments from first on, before end, whose aliases are in a directory.
func (d *Description) opened(name, aliases string, first, end int) *Database {
	o := &Database{
		Name: name, Type: d.Type, Title: d.Title, Version: d.Version, ParsedIDs: d.ParsedIDs, UniqueIDs: d.UniqueIDs, Masks: d.Masks,
		Sequences: d.Sequences, Letters: d.Letters, ID: d.ID, Program: d.By(), Block: d.Block,
	}
	if end-first == len(d.Fragments) && o.Program == BLAST {
		o.Whole = filepath.Join(aliases, wholeAlias)
	}
	for i, p := range d.Fragments[first:end] {
		o.Fragments = append(o.Fragments, Fragment{Path: filepath.Join(aliases, fragmentAlias(first+i)), First: p.First, Sequences: p.Sequences, Letters: p.Letters})
	}
	return o
}

// For refuses a database that another program searches.
func (d *Database) For(p Program) error {
	if d.Program == p {
		return nil
	}
	hint := "search it with premix blast " + string(d.Program) + " blastp"
	if d.Program == BLAST {
		hint = "search it with premix blast blastp, or add it again with --program " + string(p)
	}
	return &Error{Kind: Use, Message: fmt.Sprintf("%s is a database for %s, and not for %s", d.Name, d.Program, p), HintText: hint}
}

// aliasDir returns the directory of the aliases of a local copy. A copy that [Update] made has
// its own, as searches may still use the former ones.
func aliasDir(home, name, data string) string {
	version := ""
	if filepath.Dir(data) == filepath.Join(home, name) {
		version = strings.TrimPrefix(filepath.Base(data), "data")
	}
	return filepath.Join(home, name, "alias"+version)
}

// Close releases the database.
func (d *Database) Close() error {
	var err error
	for _, m := range d.Members {
		err = errors.Join(err, m.Close())
	}
	for _, l := range d.locks {
		err = errors.Join(err, l.Close())
	}
	return err
}

const wholeAlias = "whole"

func fragmentAlias(i int) string { return fmt.Sprintf("%03d", i) }

// putWhole writes the alias of the whole into the directory dir, if it is missing, for the files
// in the directory data. The paths of aliases are absolute, because BLAST+ would search relative
// ones in its working directory first.
func (d *Description) putWhole(data, dir string) error {
	if d.By() != BLAST {
		return nil
	}
	var all []string
	for _, p := range d.Fragments {
		all = append(all, p.Volumes...)
	}
	text := aliasText(d.Title, data, all)
	if d.Profiles != "" && len(all) > 1 {
		// makeprofiledb states the size in its alias, and BLAST+ then repeats it in archives.
		text += fmt.Sprintf("NSEQ %d\nLENGTH %d\n", d.Sequences, d.Letters)
	}
	return putText(dir, wholeAlias+d.aliasEnding(), text)
}

// aliasEnding returns the ending of the names of aliases.
func (d *Description) aliasEnding() string {
	if d.By() == DIAMOND {
		return dmndEnding
	}
	return "." + d.Type.letter() + "al"
}

// putAlias writes the alias of fragment i into the directory dir, if it is missing.
func (d *Description) putAlias(i int, data, dir string) error {
	p, name := d.Fragments[i], fragmentAlias(i)+d.aliasEnding()
	if d.By() == DIAMOND {
		to := filepath.Join(data, p.Volumes[0]+dmndEnding)
		if was, err := os.Readlink(filepath.Join(dir, name)); err == nil && was == to {
			return nil
		}
		return accessError(dir, replaceLink(dir, name, to))
	}
	return putText(dir, name, aliasText(d.Title, data, p.Volumes)+fmt.Sprintf("STATS_NSEQ %d\nSTATS_TOTLEN %d\n", d.Sequences, d.Letters))
}

// putText writes an alias into the directory dir, if it is missing.
func putText(dir, name, text string) error {
	path := filepath.Join(dir, name)
	if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, []byte(text)) {
		return nil
	}
	return accessError(dir, replaceFile(path, []byte(text), beneath.Volatile))
}

func aliasText(title, data string, volumes []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "TITLE %s\nDBLIST", title)
	for _, v := range volumes {
		fmt.Fprintf(&b, " \"%s\"", filepath.Join(data, v))
	}
	b.WriteString("\n")
	return b.String()
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// lockShared takes the shared lock of a database.
func lockShared(dir string) (*os.File, error) {
	return lockFile(filepath.Join(dir, "lock"), lock.Shared)
}

// lockFile locks an existing file, and waits for the lock if necessary.
func lockFile(path string, kind lock.Kind) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		f, err = os.Open(path) // flock(2) does not need write permission
	}
	if err != nil {
		return nil, err
	}
	if err := lock.Await(context.Background(), f, kind); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}
