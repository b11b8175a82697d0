package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"premix/internal/kit/exit"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// A mirror holds trees and records that another store has signed: it has that store's
// id and keys, but not its private key. The caller has verified the objects and records
// that it writes; the mirror verifies them again, with its own keys.

// OpenMirror opens the mirror in dir of the store that info describes, with info's keys
// as the trusted ones. If dir is empty or does not exist, it becomes a mirror. A store
// with another id is refused with a [UsageError].
func OpenMirror(dir string, info tree.Info, o Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s, err := Open(dir, o)
	var use *UsageError
	if errors.As(err, &use) && errors.Is(err, fs.ErrNotExist) {
		return newMirror(dir, info, o)
	}
	if err != nil {
		return nil, err
	}
	if s.info.ID != info.ID {
		return nil, &UsageError{Reason: fmt.Sprintf("%s is store %s, not a mirror of store %s", dir, s.info.ID, info.ID),
			HintText: "name another directory: a mirror is a copy of one store"}
	}
	missing := slices.DeleteFunc(slices.Clone(info.Keys), func(k tree.PublicKey) bool { return slices.Contains(s.info.Keys, k) })
	if len(missing) == 0 {
		return s, nil
	}
	unlock, err := s.lock(context.Background(), "info")
	if err != nil {
		return nil, err
	}
	defer unlock()
	s.info.Keys = append(s.info.Keys, missing...)
	if err := s.dropAllBootstraps(); err != nil {
		return nil, accessError(dir, err)
	}
	return s, accessError(dir, s.writeInfo())
}

func newMirror(dir string, info tree.Info, o Options) (*Store, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, accessError(dir, err)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, accessError(dir, err)
	}
	for _, e := range list {
		// An interrupted newMirror leaves these, and no store.json.
		if !slices.Contains([]string{"objects", "tags", "profiles", tree.BootstrapsDir, tree.NextDir, workDir}, e.Name()) {
			return nil, &UsageError{Reason: fmt.Sprintf("%s is neither a store nor empty: it contains %s", dir, e.Name()), HintText: "give a new or empty directory"}
		}
	}
	s := &Store{dir: dir, info: &info, home: o.Home, sync: !o.Unsynced}
	info.Format = tree.StoreFormat
	if err := s.prepare(); err != nil {
		return nil, accessError(dir, err)
	}
	return s, accessError(dir, s.writeInfo())
}

// OlderError reports that a mirror has a newer record of a tag than the one to adopt,
// or another record with the same serial.
type OlderError struct {
	Ref    tree.Ref
	Serial int64
	Have   int64
}

func (e *OlderError) Error() string {
	if e.Serial == e.Have {
		return fmt.Sprintf("%s: the mirror has another record with serial %d", e.Ref, e.Have)
	}
	return fmt.Sprintf("%s: the record with serial %d is older than the mirror's, with serial %d", e.Ref, e.Serial, e.Have)
}

// ExitCode implements exit.Coded.
func (*OlderError) ExitCode() exit.Code { return exit.Trust }

// Hint returns the hint for the user.
func (e *OlderError) Hint() string { return "to replace the mirror's record, give --allow-rollback" }

// AdoptTag writes a record of a tag as its store signed it. This writer must have put
// or found all objects of its tree. AdoptTag flushes first. history is the tag's
// history in the store, one record a line; if it does not end with the record, the
// mirror's history begins with the record. AdoptTag reports whether it wrote anything.
//
// If the mirror has a newer record, or another record with the same serial, the error
// is an [OlderError] unless rollback is true.
func (w *Writer) AdoptTag(ctx context.Context, ref tree.Ref, signed, history []byte, rollback bool) (written bool, err error) {
	if err := w.Flush(); err != nil {
		return false, err
	}
	s := w.s
	signed = bytes.TrimSpace(signed)
	r, err := tree.OpenTag(signed, s.info.ID, ref, s.info.Keys)
	if err != nil {
		return false, err
	}
	if err := s.checkTagPlace(ref); err != nil {
		return false, err
	}
	unlock, err := s.lock(ctx, tagLock(ref))
	if err != nil {
		return false, err
	}
	defer unlock()
	current, err := s.Resolve(ref)
	switch {
	case err == nil && current.Serial == r.Serial && current.Tree == r.Tree:
		return false, accessError(s.dir, s.healBootstraps(ref))
	case err == nil && current.Serial >= r.Serial && !rollback:
		return false, &OlderError{ref, r.Serial, current.Serial}
	}
	// An invalid history is replaced.
	if err := s.replace(ref.HistoryPath(), s.leading(ref, history, signed)); err != nil {
		return false, accessError(s.dir, err)
	}
	if err := s.dropBootstraps(ref); err != nil {
		return false, accessError(s.dir, err)
	}
	if err := s.replace(ref.TagPath(), signed); err != nil {
		return false, accessError(s.dir, err)
	}
	return true, accessError(s.dir, s.writeBootstraps(ref))
}

// leading returns a history that ends with the record: the given one, else the existing
// one with the record added, else the record alone.
func (s *Store) leading(ref tree.Ref, given, signed []byte) []byte {
	var here []byte
	if old, _, err := s.history(ref); err == nil {
		for _, e := range old {
			here = append(append(here, e.Line...), '\n')
		}
		here = append(append(here, signed...), '\n')
	}
	for _, h := range [][]byte{given, here} {
		if s.leads(ref, h, signed) {
			return h
		}
	}
	return append(slices.Clone(signed), '\n')
}

// leads reports whether a history is complete and ends with a record.
func (s *Store) leads(ref tree.Ref, history, signed []byte) bool {
	var last []byte
	var serial int64
	for line := range bytes.Lines(history) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			return false
		}
		line = line[:len(line)-1]
		r, err := tree.OpenTag(line, s.info.ID, ref, s.info.Keys)
		if err != nil || r.Serial <= serial || last != nil && r.Previous != object.Sum(last) {
			return false
		}
		last, serial = line, r.Serial
	}
	return last != nil && bytes.Equal(last, signed)
}

// AdoptProfile writes a record of a profile as its store signed it. This writer must
// have put or found its objects. AdoptProfile flushes first.
func (w *Writer) AdoptProfile(ctx context.Context, d object.Digest, name string, signed []byte) error {
	if err := w.Flush(); err != nil {
		return err
	}
	if _, err := tree.OpenProfile(signed, w.s.info.ID, d, name, w.s.info.Keys); err != nil {
		return err
	}
	return w.s.reopen(ctx, d, func() error {
		return accessError(w.s.dir, w.s.replace(tree.ProfilePath(d, name), signed))
	})
}
