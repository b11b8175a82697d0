package database

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/kit/regex"
)

// Type is the type of the sequences in a database, as makeblastdb names it.
type Type string

const (
	Nucl Type = "nucl"
	Prot Type = "prot"
)

// letter returns the first letter of the extensions of its files.
func (t Type) letter() string { return string(t[:1]) }

// DescriptionFile is the name of a description in the local copy, and in its tree.
const DescriptionFile = "database.json"

const descriptionFormat = "premix blast database 1"

// Description describes a database independently of its place.
type Description struct {
	Format    string     `json:"format"`
	ID        string     `json:"id"` // digest of the fields below, its first 32 digits
	Type      Type       `json:"type"`
	Title     string     `json:"title"`
	Version   int        `json:"version"` // of BLAST databases: 4 or 5; of others 0
	ParsedIDs bool       `json:"parsed_ids"`
	Date      time.Time  `json:"date"`
	Masks     []string   `json:"masks,omitempty"`
	Profiles  Profiles   `json:"profiles,omitempty"`   // "": these are sequences only
	Program   Program    `json:"program,omitempty"`    // "": BLAST
	Block     int64      `json:"block,omitempty"`      // letters of a block of DIAMOND; each fragment is one
	Taxonomy  bool       `json:"taxonomy,omitempty"`   // taxonomy ids were given when it was made
	UniqueIDs bool       `json:"unique_ids,omitempty"` // each sequence has an id of its own, which BLAST+ prints unchanged
	Sequences int64      `json:"sequences"`
	Letters   int64      `json:"letters"`
	Fragments []Range    `json:"fragments"`
	Files     []DataFile `json:"files"`
}

// Range is a fragment in a description.
type Range struct {
	Volumes   []string `json:"volumes"`
	First     int64    `json:"first"` // OID of its first sequence in the whole
	Sequences int64    `json:"sequences"`
	Letters   int64    `json:"letters"`

	// Digests of the sequences and settings of which makeblastdb made the volumes, and of the
	// first sequence alone, for [Update]; "" for other volumes.
	Sum  string `json:"sum,omitempty"`
	Head string `json:"head,omitempty"`
}

// DataFile is a file of a database.
type DataFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	BLAKE3 string `json:"blake3"`
}

// By returns the program that searches the database.
func (d *Description) By() Program {
	if d.Program == "" {
		return BLAST
	}
	return d.Program
}

// Bytes returns the size of all files.
func (d *Description) Bytes() int64 { return totalSize(d.Files) }

// Record is the data that a machine stores about a database.
type Record struct {
	Format string    `json:"format"`
	Name   string    `json:"name"`
	Data   string    `json:"data"`            // directory of the local copy, absolute
	Warm   bool      `json:"warm"`            // it should be resident
	Store  string    `json:"store,omitempty"` // store to which it was published
	Ref    string    `json:"ref,omitempty"`
	Tree   string    `json:"tree,omitempty"`
	Added  time.Time `json:"added"`
	Bytes  int64     `json:"bytes"` // of all files
}

const (
	recordFile   = "record.json"
	recordFormat = "premix blast record 1"
)

// Home returns the directory of this user's databases: in $PREMIX_HOME, or in the user's
// data directory.
func Home() (string, error) {
	if home := os.Getenv("PREMIX_HOME"); home != "" {
		abs, err := filepath.Abs(home)
		return filepath.Join(abs, "blast"), err
	}
	if data := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "premix", "blast"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", &Error{Kind: Use, Message: fmt.Sprintf("find a place for BLAST databases: %v", err), HintText: "set PREMIX_HOME to a directory of your own"}
	}
	return filepath.Join(home, ".local", "share", "premix", "blast"), nil
}

var nameForm = regex.Lazy(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// isName compares the length in code: a counted repetition makes a regular expression
// expensive to compile, and that would happen at every start of premix.
func isName(s string) bool { return len(s) <= 100 && nameForm().MatchString(s) }

// CheckName refuses names of databases that cannot be file names, or that cannot be used in aliases.
func CheckName(name string) error {
	if !isName(name) {
		return &Error{Kind: Use, Message: fmt.Sprintf("%q cannot be the name of a database", name), HintText: "use letters, digits, points, underscores and hyphens"}
	}
	return nil
}

// readRecord reads the record of a database.
func readRecord(home, name string) (*Record, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(home, name, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Kind: NotThere, Message: fmt.Sprintf("there is no database %s", name), HintText: "premix blast db ls lists them, premix blast db add makes one"}
	}
	if err != nil {
		return nil, err
	}
	var r Record
	if err := json.Unmarshal(content, &r); err != nil {
		return nil, damagedError(name, fmt.Errorf("its record: %w", err))
	}
	if r.Format != recordFormat {
		return nil, damagedError(name, fmt.Errorf("its record has the format %q, and %q is known", r.Format, recordFormat))
	}
	return &r, nil
}

// writeRecord replaces the record of a database.
func writeRecord(dir string, r *Record) error { return writeJSON(filepath.Join(dir, recordFile), r) }

// ReadDescription reads the description of a local copy.
func ReadDescription(data string) (*Description, error) {
	content, err := os.ReadFile(filepath.Join(data, DescriptionFile))
	if err != nil {
		return nil, err
	}
	d, err := ParseDescription(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(data, DescriptionFile), err)
	}
	return d, nil
}

// ParseDescription parses and checks the content of a description's file.
func ParseDescription(content []byte) (*Description, error) {
	var d Description
	if err := json.Unmarshal(content, &d); err != nil {
		return nil, err
	}
	return &d, d.check()
}

// Place returns the description of a database, and the tree that it was published as, or "".
func Place(home, name string) (d *Description, tree string, err error) {
	r, err := readRecord(home, name)
	if err != nil {
		return nil, "", err
	}
	if d, err = ReadDescription(r.Data); err != nil {
		return nil, "", damagedError(name, err)
	}
	return d, r.Tree, nil
}

// check refuses an inconsistent description: it may come from an untrusted source, and its
// names are used as paths.
func (d *Description) check() error {
	if d.Format != descriptionFormat {
		return fmt.Errorf("its description has the format %q, and %q is known", d.Format, descriptionFormat)
	}
	if d.Type != Nucl && d.Type != Prot {
		return fmt.Errorf("its type is %q", d.Type)
	}
	if d.Profiles != "" && (d.Profiles != RPS && d.Profiles != Delta || d.Type != Prot) {
		return fmt.Errorf("its profiles are of the kind %q", d.Profiles)
	}
	switch by := d.By(); {
	case by != BLAST && by != DIAMOND:
		return fmt.Errorf("it is for the program %q", by)
	case by == DIAMOND && (d.Type != Prot || d.Profiles != "" || d.Block <= 0):
		return fmt.Errorf("it is for DIAMOND, and has other sequences than proteins, or no blocks")
	}
	if !isName(d.ID) {
		return fmt.Errorf("its id is %q", d.ID)
	}
	if strings.ContainsAny(d.Title, "\r\n") {
		return fmt.Errorf("its title has more than one line")
	}
	var sequences, letters int64
	for i, p := range d.Fragments {
		if p.First != sequences || p.Sequences <= 0 || p.Letters <= 0 || len(p.Volumes) == 0 {
			return fmt.Errorf("fragment %d does not follow the one before", i)
		}
		for _, v := range p.Volumes {
			if !isName(v) {
				return fmt.Errorf("a volume has the name %q", v)
			}
		}
		sequences, letters = sequences+p.Sequences, letters+p.Letters
	}
	if sequences != d.Sequences || letters != d.Letters || sequences == 0 {
		return fmt.Errorf("its fragments do not add up to the whole")
	}
	for _, f := range d.Files {
		if !isName(f.Name) || f.Name == DescriptionFile || f.Size < 0 {
			return fmt.Errorf("a file has the name %q", f.Name)
		}
	}
	return nil
}

// List returns the names of all databases, sorted.
func List(home string) ([]string, error) {
	entries, err := os.ReadDir(home)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names := []string{}
	for _, e := range entries {
		if !isName(e.Name()) {
			continue
		}
		if _, err := os.Stat(filepath.Join(home, e.Name(), recordFile)); err == nil {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// writeJSON replaces a file by v as JSON, and syncs it.
func writeJSON(path string, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	return replaceFile(path, b.Bytes(), beneath.Durable)
}

// replaceLink replaces a symlink atomically.
func replaceLink(dir, name, to string) error {
	tmp := filepath.Join(dir, beneath.Temporary("."+name+"-"))
	if err := os.Symlink(to, tmp); err != nil {
		return err
	}
	if err := beneath.Move(tmp, filepath.Join(dir, name), beneath.Volatile); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}

// replaceFile replaces a file atomically. Other users may read it, whatever the umask.
func replaceFile(path string, content []byte, how beneath.Durability) error {
	dir, err := beneath.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := dir.Create(0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		return errors.Join(err, f.Discard())
	}
	if err := f.Chmod(0o644); err != nil {
		return errors.Join(err, f.Discard())
	}
	return f.Replace(filepath.Base(path), how)
}
