package hotstart

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"premix/internal/hotstart/tracer"
)

// What package inplace shares with this one.

// Access is one look of a tool at a file.
type Access = access

// FindMoment finds the look into an input at which a tool has loaded its data, by its looks
// at files: the index of the look, or -1. before is the number of opens of data until then,
// repeated ones included. late says that the tool opens much of its data after it.
func FindMoment(looks []Access) (at, before int, late bool) {
	m := findMoment(looks, fileSize)
	for _, l := range looks[:max(m.At, 0)] {
		if OpensData(l) {
			before++
		}
	}
	return m.At, before, float64(m.Late) > (1-loadedShare)*float64(m.Total)
}

// OpensData reports whether a look is the open of a file that counts as data.
func OpensData(l Access) bool {
	return l.Op == tracer.AccessOpen && !l.Input && fileSize(l.Path) >= dataSize
}

// StampAccess describes the part of a file that a tool has looked at.
func StampAccess(l Access) (Stamp, error) { return lookStamp(l) }

// StampFile describes a file and its content.
func StampFile(path string) (Stamp, error) { return stampFile(path) }

// Check compares a file with its stamp. A difference is a *Mismatch.
func (s Stamp) Check() error { return s.check() }

// HostFingerprint describes this machine.
func HostFingerprint() (Fingerprint, error) { return hostFingerprint(Spec{}) }

// CheckHost compares a fingerprint with this machine. A difference is a *Mismatch.
func (fp Fingerprint) CheckHost() error {
	now, err := HostFingerprint()
	if err != nil {
		return err
	}
	return fp.compareHost(now)
}

// CanTrace returns an error and a hint if this user cannot trace a child process. Hot
// starts are then impossible.
func CanTrace() (hint string, err error) {
	h := probeHost()
	if h.noHot != "" {
		return h.hint, &Unavailable{Kind: Hot, Reason: h.noHot, HintText: h.hint}
	}
	return "", nil
}

// OfOthers reports whether a look is at something that belongs to neither the task nor the
// process, and so to a fingerprint. It returns the look as StampAccess needs it.
func OfOthers(l Access) (Access, bool) {
	if isFact(l) {
		return asFact(l), true
	}
	return l, !l.Input && !isUnwatched(filepath.Clean(l.Path))
}

// Unchanged returns an error if a file changed after a tool began to load. The tool may then
// have read other content than the fingerprint describes.
func (fp Fingerprint) Unchanged(since time.Time) error { return fp.unchanged(since) }

// WithoutMoving removes the facts that have changed since the fingerprint was taken.
func (fp *Fingerprint) WithoutMoving() { fp.Files = withoutMoving(fp.Files) }

// Below reports whether a path is a directory or lies in it.
func Below(path, dir string) bool { return below(path, dir) }

// ReadAhead returns a function that reads a page file while a started tool runs, and then
// closes the file. The function is nil if most of the file is in memory. single reports
// whether the tool must read single pages of the file.
func ReadAhead(pages *os.File) (single bool, read func(), err error) {
	p, cold, err := newPager(pages)
	if err != nil || !cold {
		return false, nil, err
	}
	return p.single(), p.run, nil
}

// LastLine returns the last line of a text of messages, shortened if it is long.
func LastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return clip(lines[len(lines)-1], 300)
}

// Processes returns a process and all its descendants, parents first.
func Processes(pid int) ([]int, error) { return tree(pid) }

// NewSnapshotIn makes a new directory for a snapshot in a store, locked against removal,
// and sweeps the store.
func NewSnapshotIn(store, key string) (*Snapshot, error) {
	if err := CheckStore(store); err != nil {
		return nil, err
	}
	sweep(store)
	dir, err := os.MkdirTemp(store, key+"-") // mode 0700
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Version: metaVersion, ID: filepath.Base(dir), Key: key, Created: time.Now().UTC(), Dir: dir}
	return s, s.lockShared()
}

// SnapshotForm is the version of the description of a Snapshot.
const SnapshotForm = metaVersion

// SnapshotName is the name of the description in the directory of a Snapshot.
const SnapshotName = metaName

// Lock guards the snapshot against removal until Unlock.
func (s *Snapshot) Lock() error { return s.lockShared() }

// Unlock undoes Lock.
func (s *Snapshot) Unlock() { s.unlock() }

// Intact compares the snapshot's files with their recorded stamps. A difference is a
// *Damaged.
func (s *Snapshot) Intact() error { return s.verify(false) }

// Seal notes the state of the snapshot's files.
func (s *Snapshot) Seal() error { return s.seal() }

// ImagePath returns the path of the frozen process.
func (s *Snapshot) ImagePath() string { return filepath.Join(s.Dir, imageName) }

// PagePath returns the path of the page file.
func (s *Snapshot) PagePath() string { return s.pagePath() }
