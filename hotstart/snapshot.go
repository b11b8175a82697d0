package hotstart

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"premix/hotstart/criu"
	"premix/internal/lock"
)

// A snapshot's directory, mode 0700, all files in it 0600:
//
//	snapshot.json  the Snapshot; written last, so that its presence means whole
//	lock           flock(2): shared while in use, exclusive to remove
//	work/          the template's directory as it was at the stop
//	hot/           images that map the page file
//	pages          the page file (see package criu)
//	copy/          CRIU's own images
//	upper/         what the tool had written in the root of its container
//
// hot/ and pages, or copy/, or both are missing where that kind of start was
// not asked for or is not valid. A snapshot without images only keeps proofs,
// as for Fork without privileges.
const (
	metaName = "snapshot.json"
	lockName = "lock"
	workName = "work"
	pageName = "pages"

	metaVersion = 1
)

// Snapshot is a process frozen after its initialisation, on disk.
type Snapshot struct {
	Version     int                 `json:"version"`
	ID          string              `json:"id"`  // name of the directory in the store
	Key         string              `json:"key"` // digest of the Spec: what it is a snapshot of
	Name        string              `json:"name"`
	Argv        []string            `json:"argv"`
	Created     time.Time           `json:"created"`
	Seconds     float64             `json:"seconds"` // that preparing it took, initialisation of the tool included
	Fingerprint Fingerprint         `json:"fingerprint"`
	Stamps      []Stamp             `json:"stamps"` // images; for the page file Digest covers its slots
	Slots       []criu.Slot         `json:"slots"`
	Pages       string              `json:"pages,omitempty"` // absolute path of a page file that is not in Dir but in a mounted tree
	Proofs      map[Kind]ProofState `json:"proofs"`
	Behind      *program            `json:"behind,omitempty"` // what to execute for a template that can be forked

	Dir  string   `json:"-"`
	lock *os.File // held shared; nil when only listed
}

// ProofState is what is known of one kind of start.
type ProofState struct {
	Equal  bool      `json:"equal"`
	Reason string    `json:"reason,omitempty"` // what differed
	When   time.Time `json:"when"`
}

// Bytes is the size of the snapshot on disk, holes not counted.
func (s *Snapshot) Bytes() int64 {
	var total int64
	seen := map[uint64]bool{}
	filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil && !seen[st.Ino] {
			seen[st.Ino] = true
			total += st.Blocks * 512
		}
		return nil
	})
	return total
}

// Kinds lists the kinds of start that the snapshot has images for.
func (s *Snapshot) Kinds() []Kind {
	var kinds []Kind
	for _, k := range []Kind{Hot, Copy} {
		if s.has(k) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

func (s *Snapshot) pagePath() string {
	if s.Pages != "" {
		return s.Pages
	}
	return filepath.Join(s.Dir, pageName)
}

func (s *Snapshot) has(k Kind) bool {
	if s.Dir == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(s.Dir, string(k)))
	return err == nil
}

// hotFirst tells whether to be content with a hot start that is proved: for one
// task, since a template would be restored hot for it alone, and where a fork would
// have to be proved first and the tool's data may have yet to arrive, all of which a
// cold start of the probe would wait for.
func (s *Snapshot) hotFirst(tasks int) bool {
	if s == nil || !s.has(Hot) || !s.Proofs[Hot].Equal {
		return false
	}
	_, known := s.Proofs[Fork]
	return tasks == 1 || !known && s.Pages != ""
}

// key identifies what a Spec freezes. Everything that reaches the tool before
// its input counts, and nothing else.
func key(spec Spec, namespaces bool) string {
	h := blake3.New()
	line := ""
	if spec.Ready.Line != nil {
		line = spec.Ready.Line.String()
	}
	what := []any{metaVersion, spec.Name, spec.Argv, spec.Env, spec.Inputs, spec.Plain,
		spec.Dirs, spec.Ready.Kind, line, spec.Stream, spec.Data, namespaces}
	if im := spec.Image; im != nil {
		// Not what the image is: that is compared, and a difference told.
		what[3] = slices.DeleteFunc(slices.Clone(spec.Env), func(e string) bool { return slices.Contains(im.Env, e) })
		what = append(what, im.Ref)
	}
	json.NewEncoder(h).Encode(what)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// List returns the snapshots of a store, newest first. A store that does not
// exist is empty.
func List(store string) ([]*Snapshot, error) {
	entries, err := os.ReadDir(store)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []*Snapshot
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || !e.IsDir() {
			continue
		}
		s, err := readSnapshot(filepath.Join(store, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // not whole
		}
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Created.After(all[j].Created) })
	return all, nil
}

// Find returns the snapshot with this id or unambiguous beginning of one.
func Find(store, id string) (*Snapshot, error) {
	all, err := List(store)
	if err != nil {
		return nil, err
	}
	var found *Snapshot
	for _, s := range all {
		if !strings.HasPrefix(s.ID, id) && s.Name != id {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("several snapshots are called %s: %s, %s", id, found.ID, s.ID)
		}
		found = s
	}
	if found == nil {
		return nil, fmt.Errorf("there is no snapshot %s in %s", id, store)
	}
	return found, nil
}

// ErrForeign is returned for a snapshot that somebody else owns or could write
// to: restoring it would execute their memory.
var ErrForeign = errors.New("it belongs to another user or others may write to it")

func readSnapshot(dir string) (*Snapshot, error) {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return nil, fmt.Errorf("snapshot %s: %w", dir, ErrForeign)
	}
	b, err := os.ReadFile(filepath.Join(dir, metaName))
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Dir: dir}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, metaName), err)
	}
	if s.Version != metaVersion {
		return nil, fmt.Errorf("%s: format %d, this premix reads %d", filepath.Join(dir, metaName), s.Version, metaVersion)
	}
	return s, nil
}

// save writes the description, atomically. One that has no directory lasts as
// long as premix.
func (s *Snapshot) save() error {
	if s.Dir == "" {
		return nil
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(s.Dir, metaName+".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(append(b, '\n')); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", tmp, err)
	}
	return os.Rename(tmp, filepath.Join(s.Dir, metaName))
}

// newSnapshot makes an empty directory of its own for a snapshot of spec.
func newSnapshot(store string, spec Spec, namespaces bool) (*Snapshot, error) {
	if err := os.MkdirAll(store, 0o700); err != nil {
		return nil, err
	}
	k := key(spec, namespaces)
	dir, err := os.MkdirTemp(store, k+"-") // mode 0700
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Version: metaVersion, ID: filepath.Base(dir), Key: k, Name: spec.Name, Argv: spec.Argv,
		Created: time.Now().UTC(), Proofs: map[Kind]ProofState{}, Dir: dir}
	return s, s.lockShared()
}

func (s *Snapshot) lockShared() error {
	f, err := os.OpenFile(filepath.Join(s.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		f.Close()
		return fmt.Errorf("snapshot %s is being removed: %w", s.ID, err)
	}
	s.lock = f
	return nil
}

func (s *Snapshot) unlock() {
	if s.lock != nil {
		s.lock.Close()
		s.lock = nil
	}
}

// ErrInUse is returned by Remove while a run uses the snapshot.
var ErrInUse = errors.New("a run uses it")

// Remove deletes the snapshot unless a run uses it.
func (s *Snapshot) Remove() error {
	s.unlock()
	if s.Dir == "" {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(s.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := lock.Exclusive(f); err != nil {
		return fmt.Errorf("snapshot %s: %w", s.ID, ErrInUse)
	}
	// Without its description it is no snapshot any more, whatever happens next.
	if err := os.Remove(filepath.Join(s.Dir, metaName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(s.Dir)
}

// seal records what the images are like. A file that was sealed before, and of
// which at most the number of links has changed since, is not read again.
func (s *Snapshot) seal() error {
	before := map[string]Stamp{}
	for _, stamp := range s.Stamps {
		before[stamp.Path] = stamp
	}
	s.Stamps = nil
	for _, sub := range []string{string(Hot), string(Copy)} {
		entries, err := os.ReadDir(filepath.Join(s.Dir, sub))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			path := filepath.Join(s.Dir, sub, e.Name())
			if err := os.Chmod(path, 0o600); err != nil {
				return err
			}
			stamp, err := before[path].again(path, digestFile)
			if err != nil {
				return err
			}
			s.Stamps = append(s.Stamps, stamp)
		}
	}
	if len(s.Slots) > 0 {
		path := s.pagePath()
		stamp, err := before[path].again(path, func(string) (string, error) { return s.digestPages() })
		if err != nil {
			return err
		}
		s.Stamps = append(s.Stamps, stamp)
	}
	return nil
}

// digestPages is the digest of all slots of the page file, one after the
// other. The holes between them, terabytes of nothing, do not count.
func (s *Snapshot) digestPages() (string, error) {
	f, err := os.Open(s.pagePath())
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := blake3.New()
	buf := make([]byte, 2<<20)
	for _, slot := range s.Slots {
		r := io.NewSectionReader(f, slot.Offset, slot.Size)
		if n, err := io.CopyBuffer(h, struct{ io.Reader }{r}, buf); err != nil {
			return "", fmt.Errorf("read %s: %w", f.Name(), err)
		} else if n != slot.Size {
			return "", &Mismatch{f.Name() + " is shorter than its slots"}
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Damaged says which file of a snapshot is not what it was.
type Damaged struct {
	ID   string
	What string
}

func (e *Damaged) Error() string { return fmt.Sprintf("snapshot %s is damaged: %s", e.ID, e.What) }

// Verify reads every file of the snapshot and compares digests. A difference
// is a *Damaged.
func (s *Snapshot) Verify() error { return s.verify(true) }

// verify compares files with their stamps; whole reads those that look
// unchanged too.
func (s *Snapshot) verify(whole bool) error {
	for _, stamp := range s.Stamps {
		now, err := statStamp(stamp.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return &Damaged{s.ID, stamp.Path + " is missing"}
		}
		if err != nil {
			return err
		}
		if now.Size != stamp.Size {
			return &Damaged{s.ID, fmt.Sprintf("%s has %d bytes instead of %d", stamp.Path, now.Size, stamp.Size)}
		}
		now.Digest = stamp.Digest
		if now == stamp && (!whole || stamp.Served) {
			continue
		}
		if stamp.Served {
			return &Damaged{s.ID, stamp.Path + " is not the file of the tree any more"}
		}
		digest := ""
		if stamp.Path == s.pagePath() {
			digest, err = s.digestPages()
		} else {
			digest, err = digestFile(stamp.Path)
		}
		var short *Mismatch
		switch {
		case errors.As(err, &short):
			return &Damaged{s.ID, short.What}
		case err != nil:
			return &Damaged{s.ID, err.Error()}
		case digest != stamp.Digest:
			return &Damaged{s.ID, stamp.Path + " has other bytes"}
		}
	}
	return nil
}

// outfit prepares a task's directory for a restore and completes the stage's
// configuration.
func (s *Snapshot) outfit(kind Kind, cfg *stageConfig, t Task) error {
	if !s.has(kind) {
		return fmt.Errorf("snapshot %s has no images for a %s start", s.ID, kind)
	}
	if err := s.verify(false); err != nil {
		return err
	}
	cfg.Images = filepath.Join(s.Dir, string(kind))
	if cfg.Container != nil {
		cfg.Container.Upper = filepath.Join(s.Dir, upperName)
	}
	if kind == Hot {
		cfg.PageFile = s.pagePath()
	}
	if err := copyDir(filepath.Join(s.Dir, workName), t.Dir, cfg.Inputs); err != nil {
		return fmt.Errorf("copy the snapshot's directory: %w", err)
	}
	if cfg.Stream && cfg.Role == roleRestore {
		prefix, err := os.ReadFile(filepath.Join(cfg.Images, prefixName))
		if err != nil {
			return err
		}
		if len(prefix) > 0 {
			if err := writePrefix(filepath.Join(t.Dir, StdoutName), prefix); err != nil {
				return err
			}
		}
	}
	return nil
}

// findSnapshot returns the newest snapshot of spec whose fingerprint holds,
// locked, one with images for want before others; nil if there is none. What
// does not hold any more is told to log and removed; what cannot be used is
// told and left.
func findSnapshot(store string, spec Spec, namespaces bool, want Kind, log func(string, ...any)) *Snapshot {
	dirs, err := filepath.Glob(filepath.Join(store, key(spec, namespaces)+"-*"))
	if err != nil {
		return nil // only for a malformed pattern
	}
	var all []*Snapshot
	for _, dir := range dirs {
		s, err := readSnapshot(dir)
		switch {
		case err == nil:
			all = append(all, s)
		case !errors.Is(err, fs.ErrNotExist): // else it is not whole
			log("a snapshot is not used: %v", err)
		}
	}
	sort.Slice(all, func(i, j int) bool {
		if a, b := all[i].has(want), all[j].has(want); a != b {
			return a
		}
		return all[i].Created.After(all[j].Created)
	})
	for _, s := range all {
		if err := s.lockShared(); err != nil {
			continue
		}
		err := s.Fingerprint.check(spec)
		if err == nil {
			err = s.verify(false)
		}
		if err == nil {
			return s
		}
		var changed *Mismatch
		var damaged *Damaged
		if !errors.As(err, &changed) && !errors.As(err, &damaged) {
			s.unlock()
			log("snapshot %s is not used: %v", s.ID, err)
			continue
		}
		if len(s.Kinds()) > 0 {
			log("snapshot %s is not valid any more, preparing afresh: %v", s.ID, err)
		}
		if err := s.Remove(); err != nil && !errors.Is(err, ErrInUse) {
			log("snapshot %s cannot be removed: %v", s.ID, err)
		}
	}
	return nil
}
