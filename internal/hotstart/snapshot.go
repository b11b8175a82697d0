package hotstart

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"premix/internal/hotstart/frozen"
	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
)

// A snapshot's directory has mode 0700, and all files in it have mode 0600:
//
//	snapshot.json  the Snapshot; written last: a directory without it is incomplete
//	lock           flock(2): shared while in use, exclusive to remove
//	image          the frozen process (package frozen)
//	pages          its page file
//	stdout.prefix  its output before the stop, where that is a stream
//	unsynced       the boot id of the machine (random(4)) when pages was written; it exists
//	               as long as pages may be in memory only
//	work/          the state of the template's directory at the stop
//	noise          values that must not matter, until the outputs are proved (see memory.go)
//	upper/         the tool's files in the root of its container
//	uses           one Use per line: the runs that have used it, and their times
//
// A snapshot whose proof failed or that is in quarantine has no image, and keeps the reason.
const (
	metaName  = "snapshot.json"
	lockName  = "lock"
	workName  = "work"
	imageName = "image"
	pageName  = "pages"
	syncName  = "unsynced"
	noiseName = "noise"
	usesName  = "uses"

	metaVersion = 8
)

// Snapshot is a process frozen after its initialisation, on disk.
type Snapshot struct {
	Version     int               `json:"version"`
	ID          string            `json:"id"`  // name of the directory in the store
	Key         string            `json:"key"` // digest of the Spec that it is a snapshot of
	Name        string            `json:"name"`
	Argv        []string          `json:"argv"`
	Created     time.Time         `json:"created"`
	Seconds     float64           `json:"seconds"`          // that preparing it took, initialisation of the tool included
	Loaded      float64           `json:"loaded"`           // seconds that the tool took to come to its input
	Memory      int64             `json:"memory"`           // bytes of memory in the page file
	Stop        string            `json:"stop,omitempty"`   // where the tool was stopped: "open N", the number of the open of an input by its process, "read" or "line"
	Data        int64             `json:"data,omitempty"`   // bytes of the files of 1 MiB or more that the tool opens for the probe, inputs aside
	Opened      int64             `json:"opened,omitempty"` // as Data, of the files that it opens before the stop
	Early       []string          `json:"early,omitempty"`  // the tool's looks at its input before the stop: open, stat, link
	Kinds       map[string]string `json:"kinds,omitempty"`  // of the inputs that it has opened before the stop: see package placeholder
	Bounds      map[string]Bounds `json:"bounds,omitempty"` // of the inputs that it has only asked about before the stop
	Fingerprint Fingerprint       `json:"fingerprint"`
	Stamps      []Stamp           `json:"stamps"`          // of its own files; the page file's digest covers its pieces
	Pages       string            `json:"pages,omitempty"` // absolute path of a page file that is not in Dir but in a mounted tree
	Proof       *ProofState       `json:"proof,omitempty"` // of outputs; nil: none have been compared yet
	MemoryProof *MemoryProof      `json:"memory_proof,omitempty"`
	Behind      *program          `json:"behind,omitempty"`
	Late        *latePlan         `json:"late,omitempty"` // where the name of the sample stands

	Dir  string   `json:"-"`
	lock *os.File // held shared; nil when only listed

	files *fileWatch // of a snapshot that a run uses
}

// fileWatch has the state of the files of a snapshot whose content counts, at the beginning
// of a run.
type fileWatch struct {
	read, mapped []Stamp // without digests; mapped are those that the tool has mapped or open

	mu      sync.Mutex // guards checked
	checked time.Time
}

// ProofState is the outcome of a comparison of a hot start with a cold one.
type ProofState struct {
	Equal  bool      `json:"equal"`
	Reason string    `json:"reason,omitempty"` // the difference
	Sample string    `json:"sample,omitempty"` // of a run over which a task differed: the snapshot is in quarantine
	When   time.Time `json:"when"`
}

// Bytes returns the size of the snapshot on disk, without holes.
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

func (s *Snapshot) pagePath() string {
	if s.Pages != "" {
		return s.Pages
	}
	return filepath.Join(s.Dir, pageName)
}

// Whole reports whether the snapshot has an image, and tasks can start from it.
func (s *Snapshot) Whole() bool {
	_, err := os.Stat(filepath.Join(s.Dir, imageName))
	return err == nil
}

// Proved reports whether the outputs of a hot and of a cold start were equal.
func (s *Snapshot) Proved() bool { return s.Proof != nil && s.Proof.Equal }

// key returns the identity of the frozen part of a Spec: everything that reaches the
// tool before its input, and nothing else.
func key(spec Spec, namespaces bool) string {
	h := blake3.New()
	line := ""
	if spec.Ready.Line != nil {
		line = spec.Ready.Line.String()
	}
	what := []any{metaVersion, spec.Name, spec.Argv, spec.Env, spec.Inputs, spec.Plain,
		spec.Dirs, spec.Ready.Kind, line, spec.Stream, spec.Data, namespaces}
	if im := spec.Image; im != nil {
		// The key has the image's reference and not its content: the fingerprint compares
		// the content, and reports a difference.
		what[3] = slices.DeleteFunc(slices.Clone(spec.Env), func(e string) bool { return slices.Contains(im.Env, e) })
		what = append(what, im.Ref)
	}
	if spec.Trust {
		what = append(what, "trust")
	}
	if shape := spec.Shape(spec.Sample); shape != "" {
		what = append(what, "sample", shape)
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
		var old *oldFormat
		if errors.Is(err, fs.ErrNotExist) || errors.As(err, &old) {
			continue // not whole, or of an earlier premix: sweep removes it
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

// ErrForeign is the error for a snapshot that another user owns or could write to:
// restoring it would execute that user's memory.
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
		return nil, &oldFormat{filepath.Join(dir, metaName), s.Version}
	}
	return s, nil
}

// oldFormat is the error for a snapshot of another version of premix.
type oldFormat struct {
	path    string
	version int
}

func (e *oldFormat) Error() string {
	return fmt.Sprintf("%s: format %d, this premix reads %d", e.path, e.version, metaVersion)
}

// save writes the description, whole or not at all, and brings it to the disk.
func (s *Snapshot) save() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return beneath.Replace(filepath.Join(s.Dir, metaName), 0o600, beneath.Durable, append(b, '\n'))
}

// newSnapshot makes an empty directory of its own for a snapshot of spec.
func newSnapshot(store string, spec Spec, namespaces bool) (*Snapshot, error) {
	if err := owner.MkdirAll(store, 0o700); err != nil {
		return nil, err
	}
	sweep(store)
	k := key(spec, namespaces)
	dir, err := os.MkdirTemp(store, k+"-") // mode 0700
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Version: metaVersion, ID: filepath.Base(dir), Key: k, Name: spec.Name, Argv: Command(spec.Argv, "${sample}"),
		Created: time.Now().UTC(), Dir: dir}
	return s, s.lockShared()
}

// sweepAge is the least age of a directory without a description and without a lock
// that counts as left behind by a killed premix.
const sweepAge = time.Minute

// sweep removes from a store the remains of preparations that were killed, and
// snapshots of earlier versions of premix. It is best effort: a later one does the rest.
func sweep(store string) {
	all, err := Unfinished(store)
	if err != nil {
		return
	}
	for _, s := range all {
		if !s.Busy {
			_ = s.Remove()
		}
	}
}

// PartialSnapshot is the directory of a snapshot that is being prepared, whose preparation was
// killed, or that an earlier version of premix made. Its creation time is the time of the
// last change of the directory.
type PartialSnapshot struct {
	Snapshot
	Busy bool // a premix prepares or uses it, or may have just made it
}

// Unfinished returns the directories of a store that have no valid description.
func Unfinished(store string) ([]*PartialSnapshot, error) {
	entries, err := os.ReadDir(store)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []*PartialSnapshot
	for _, e := range entries {
		k, _, _ := strings.Cut(e.Name(), "-")
		dir := filepath.Join(store, e.Name())
		if !e.IsDir() || !keyForm().MatchString(k) {
			continue
		}
		_, err := readSnapshot(dir)
		var old *oldFormat
		isOld := errors.As(err, &old)
		if !isOld && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // it has just been removed
		}
		r := &PartialSnapshot{Snapshot: Snapshot{ID: e.Name(), Created: info.ModTime().UTC(), Dir: dir}}
		if r.Busy = !isOld && time.Since(r.Created) < sweepAge; !r.Busy { // else it may not be locked yet
			if f, err := os.Open(filepath.Join(dir, lockName)); err == nil {
				r.Busy = errors.Is(lock.Try(f, lock.Exclusive), lock.ErrHeld)
				f.Close()
			}
		}
		all = append(all, r)
	}
	return all, nil
}

// RemoveUnfinished removes the directory of that name which Unfinished lists. It reports
// whether there was one.
func RemoveUnfinished(store, id string) (bool, error) {
	all, err := Unfinished(store)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(all, func(r *PartialSnapshot) bool { return r.ID == id })
	if i < 0 {
		return false, nil
	}
	return true, all[i].Remove()
}

func (s *Snapshot) lockShared() error {
	f, err := os.OpenFile(filepath.Join(s.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := lock.Try(f, lock.Shared); err != nil {
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
	f, err := os.OpenFile(filepath.Join(s.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := lock.Take(f, lock.Exclusive); err != nil {
		return fmt.Errorf("snapshot %s: %w", s.ID, ErrInUse)
	}
	// A directory without its description is not a snapshot, even if the rest fails.
	if err := os.Remove(filepath.Join(s.Dir, metaName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(s.Dir)
}

// sync brings the snapshot's files to the disk, the page file later: tasks need not
// wait for that. A mark says so, by which a snapshot that a crash of the machine may
// have cut is verified before it is used.
func (s *Snapshot) sync() error {
	for _, name := range []string{imageName, prefixName, workName, upperName} {
		if err := beneath.SyncTree(filepath.Join(s.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if s.Pages != "" {
		return nil
	}
	mark := filepath.Join(s.Dir, syncName)
	if err := beneath.Replace(mark, 0o600, beneath.Durable, []byte(frozen.BootID())); err != nil {
		return err
	}
	pages := s.pagePath()
	go func() {
		if beneath.SyncTree(pages) == nil {
			os.Remove(mark)
		}
	}()
	return nil
}

// synced reports whether the page file is on the disk, or was written since the machine
// booted.
func (s *Snapshot) synced() (bool, error) {
	boot, err := os.ReadFile(filepath.Join(s.Dir, syncName))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return string(boot) == frozen.BootID(), err
}

// seal records the state of the snapshot's own files, and brings them to the disk.
func (s *Snapshot) seal() error {
	if err := s.sync(); err != nil {
		return err
	}
	s.Stamps = nil
	for _, path := range []string{filepath.Join(s.Dir, imageName), filepath.Join(s.Dir, prefixName), s.pagePath()} {
		stamp, err := statStamp(path)
		if errors.Is(err, fs.ErrNotExist) && filepath.Base(path) == prefixName {
			continue
		}
		if err == nil && path != s.pagePath() {
			// The page file has digests of its pieces, which are in the image.
			stamp.Digest, err = digestFile(path)
		}
		if err != nil {
			return err
		}
		s.Stamps = append(s.Stamps, stamp)
	}
	return nil
}

// Damaged is the error for a snapshot with a file that has changed.
type Damaged struct {
	ID   string
	What string
}

func (e *Damaged) Error() string { return fmt.Sprintf("snapshot %s is damaged: %s", e.ID, e.What) }

// ExitCode implements exit.Coded.
func (*Damaged) ExitCode() exit.Code { return exit.Failed }

// Hint returns the hint for the user.
func (e *Damaged) Hint() string {
	return "remove it with premix snapshot rm " + e.ID + ": the next run prepares a new one"
}

// Verify reads every file of the snapshot and compares digests. A difference
// is a *Damaged.
func (s *Snapshot) Verify() error { return s.verify(true) }

// verify compares files with their stamps. With whole it also reads the files whose
// stamps are unchanged. After a crash of the machine that may have truncated the files,
// it reads all of them once.
func (s *Snapshot) verify(whole bool) error {
	synced, err := s.synced()
	if err != nil {
		return err
	}
	if err := s.compare(whole || !synced); err != nil || synced {
		return err
	}
	if err := os.Remove(filepath.Join(s.Dir, syncName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (s *Snapshot) compare(whole bool) error {
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
			return &Damaged{s.ID, stamp.Path + " is no longer the file of the tree"}
		}
		if stamp.Path == s.pagePath() {
			err = s.verifyPages()
		} else {
			var digest string
			if digest, err = digestFile(stamp.Path); err == nil && digest != stamp.Digest {
				err = errors.New(stamp.Path + " has other bytes")
			}
		}
		if err != nil {
			return &Damaged{s.ID, err.Error()}
		}
	}
	return nil
}

// discard removes the image of a snapshot whose proof failed, and keeps the reason.
func (s *Snapshot) discard() error {
	s.Stamps, s.Memory = nil, 0
	for _, name := range []string{imageName, pageName, prefixName, noiseName, workName, upperName} {
		if err := os.RemoveAll(filepath.Join(s.Dir, name)); err != nil {
			return err
		}
	}
	return s.save()
}

// verifyPages compares the page file with the digests in the image.
func (s *Snapshot) verifyPages() error {
	im, err := frozen.ReadFile(filepath.Join(s.Dir, imageName))
	if err != nil {
		return err
	}
	f, err := os.Open(s.pagePath())
	if err != nil {
		return err
	}
	defer f.Close()
	if err := frozen.Verify(f, im.Pieces); err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	return nil
}

// watch notes the state of the files whose content counts, and of which the fingerprint was
// compared just now.
func (s *Snapshot) watch() {
	paths := map[string]bool{}
	if im, err := frozen.ReadFile(filepath.Join(s.Dir, imageName)); err == nil {
		for _, path := range im.Paths() {
			paths[path] = true
		}
	}
	s.files = &fileWatch{}
	for _, then := range s.Fingerprint.Files {
		if then.Aspect != "" {
			continue
		}
		now, err := statStamp(then.Path)
		if err != nil || !then.sameState(now) && then.check() != nil {
			now = then // which differs, so that no task starts
		}
		now.Digest = ""
		s.files.read = append(s.files.read, now)
		if paths[now.Path] {
			s.files.mapped = append(s.files.mapped, now)
		}
	}
}

// checkEvery is the time between two checks of the files of a snapshot during a run.
const checkEvery = time.Second

// current returns an error if a file that the tool has read has changed since the run began.
func (w *fileWatch) current() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.checked) < checkEvery {
		return nil
	}
	if err := stillSame(w.read); err != nil {
		return err
	}
	w.checked = time.Now()
	return nil
}

// stillSame returns a *Mismatch if a file has another state than in its stamp, whatever its
// content is.
func stillSame(all []Stamp) error {
	for _, s := range all {
		if now, err := statStamp(s.Path); err != nil || !s.sameState(now) {
			return &Mismatch{s.Path + " has changed since the run began"}
		}
	}
	return nil
}

// outfit prepares a task's directory for a hot start and completes the supervisor's
// configuration.
func (s *Snapshot) outfit(cfg *supervisorConfig, spec Spec, t Task) error {
	if err := s.verify(false); err != nil {
		return err
	}
	if err := s.files.current(); err != nil {
		return err
	}
	cfg.Mapped = s.files.mapped
	cfg.Image, cfg.PageFile = filepath.Join(s.Dir, imageName), s.pagePath()
	if t.prove {
		cfg.Noise = filepath.Join(s.Dir, noiseName)
	}
	if cfg.Container != nil {
		cfg.Container.Upper = filepath.Join(s.Dir, upperName)
	}
	if err := copyDir(filepath.Join(s.Dir, workName), t.Dir, cfg.Inputs); err != nil {
		return fmt.Errorf("copy the snapshot's directory: %w", err)
	}
	if err := s.Late.outfit(cfg, spec, t); err != nil {
		return err
	}
	if cfg.Stream {
		prefix, err := os.ReadFile(filepath.Join(s.Dir, prefixName))
		if err != nil {
			return err
		}
		if prefix = s.Late.prefix(prefix, t.Sample); len(prefix) > 0 {
			if err := writePrefix(filepath.Join(t.Dir, StdoutName), prefix); err != nil {
				return err
			}
		}
	}
	return nil
}

// findSnapshot returns the newest snapshot of spec whose fingerprint holds, locked, or
// nil. It reports to log and removes a snapshot whose fingerprint does not hold. It
// reports and keeps a snapshot that cannot be used.
func findSnapshot(store string, spec Spec, namespaces bool, log func(string, ...any)) *Snapshot {
	sweep(store)
	dirs, err := filepath.Glob(filepath.Join(store, key(spec, namespaces)+"-*"))
	if err != nil || len(dirs) == 0 {
		return nil // an error is only for a malformed pattern
	}
	// A snapshot is a process that is going to run as this user.
	if err := owner.Private(store); err != nil {
		log("snapshots are not used: %v", err)
		return nil
	}
	var all []*Snapshot
	for _, dir := range dirs {
		var s *Snapshot
		err := owner.Private(dir)
		if err == nil {
			s, err = readSnapshot(dir)
		}
		switch {
		case err == nil:
			all = append(all, s)
		case !errors.Is(err, fs.ErrNotExist): // else it is not whole
			log("a snapshot is not used: %v", err)
		}
	}
	sort.Slice(all, func(i, j int) bool {
		// What a run has found of one holds for all of its key.
		if a, b := all[i].Quarantined(), all[j].Quarantined(); a != b {
			return a
		}
		if a, b := all[i].Whole(), all[j].Whole(); a != b {
			return a
		}
		return all[i].Created.After(all[j].Created)
	})
	for _, s := range all {
		if err := s.lockShared(); err != nil {
			continue
		}
		err := s.Fingerprint.check(spec)
		if err == nil && (s.Proof == nil || s.Proof.Equal) {
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
		if s.Proof == nil || s.Proof.Equal {
			log("snapshot %s is no longer valid and is prepared again: %v", s.ID, err)
		}
		if err := s.Remove(); err != nil && !errors.Is(err, ErrInUse) {
			log("snapshot %s cannot be removed: %v", s.ID, err)
		}
	}
	return nil
}
