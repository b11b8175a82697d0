package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/internal/kit/lines"
	"premix/internal/kit/owner"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// TagOptions describe the record of a tag to be written.
type TagOptions struct {
	Ref  tree.Ref
	Tree object.Digest
	Key  tree.PrivateKey
	Now  time.Time // zero: the present
}

// Tagged is the result of writing a tag.
type Tagged struct {
	Record    *tree.TagRecord
	Unchanged bool // it named the tree already, and no record was written
}

// tag writes the next record of a tag.
func (s *Store) tag(ctx context.Context, o TagOptions) (*Tagged, error) {
	if o.Ref.Tag == "" {
		return nil, &UsageError{Reason: fmt.Sprintf("%s names a tree by its digest, and cannot be changed", o.Ref), HintText: "name a tag: " + o.Ref.Name + ":" + tree.DefaultTag}
	}
	if err := s.checkTagPlace(o.Ref); err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx, tagLock(o.Ref))
	if err != nil {
		return nil, err
	}
	defer unlock()
	past, err := s.past(o.Ref)
	if err != nil {
		return nil, err
	}
	if past.current && past.last.Tree == o.Tree {
		return &Tagged{past.last, true}, accessError(s.dir, s.healBootstraps(o.Ref))
	}
	now := o.Now
	if now.IsZero() {
		now = time.Now()
	}
	r := &tree.TagRecord{Store: s.info.ID, Name: o.Ref.Name, Tag: o.Ref.Tag, Tree: o.Tree, Serial: 1, Time: now.UTC().Truncate(time.Second)}
	if past.last != nil {
		r.Serial, r.Previous = past.last.Serial+1, object.Sum(past.line)
	}
	signed, err := tree.SignTag(o.Key, r)
	if err != nil {
		return nil, err
	}
	if err := s.appendHistory(o.Ref, past, signed); err != nil {
		return nil, accessError(s.dir, err)
	}
	if err := s.dropBootstraps(o.Ref); err != nil {
		return nil, accessError(s.dir, err)
	}
	if err := s.replace(o.Ref.TagPath(), signed); err != nil {
		return nil, accessError(s.dir, err)
	}
	return &Tagged{Record: r}, accessError(s.dir, s.writeBootstraps(o.Ref))
}

// tagLock returns the name of a tag's lock.
func tagLock(ref tree.Ref) string { return "tag-" + object.Sum([]byte(ref.String())).String() }

// checkTagPlace refuses a tag whose file collides with the directory of another name:
// the tag b of a is the file a/b.json, and a/b.json is a valid name.
func (s *Store) checkTagPlace(ref tree.Ref) error {
	dir := s.path("tags")
	for part := range strings.SplitSeq(ref.Name, "/") {
		dir = filepath.Join(dir, part)
		if st, err := os.Lstat(dir); err == nil && !st.IsDir() {
			return &UsageError{Reason: fmt.Sprintf("the name %s is taken by a tag's file, %s", ref.Name, dir), HintText: "choose another name"}
		}
	}
	if st, err := os.Lstat(s.path(ref.TagPath())); err == nil && st.IsDir() {
		return &UsageError{Reason: fmt.Sprintf("the tag %s is taken by the name %s/%s.json", ref, ref.Name, ref.Tag), HintText: "choose another tag"}
	}
	return nil
}

// past is the state of a tag before its next record.
type past struct {
	last    *tree.TagRecord // nil for a new tag
	line    []byte          // its bytes
	current bool            // it is in TAG.json
	missing bool            // the history does not have it
	end     int64           // end of the history's whole lines, in bytes; bytes behind are torn
}

// past reads a tag's latest record. After a crash it may be in the history only. A
// store that was copied by hand may have lost some of its history, but the serial must
// still grow.
func (s *Store) past(ref tree.Ref) (past, error) {
	h, end, err := s.history(ref)
	if err != nil {
		return past{}, err
	}
	p := past{end: end}
	if len(h) > 0 {
		p.last, p.line = h[len(h)-1].Record, h[len(h)-1].Line
	}
	content, err := os.ReadFile(s.path(ref.TagPath()))
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return past{}, accessError(s.dir, err)
	}
	current, err := tree.OpenTag(content, s.info.ID, ref, s.info.Keys)
	switch {
	case err != nil:
		return past{}, damagedTag(ref, err)
	case p.last == nil || current.Serial > p.last.Serial:
		p.last, p.line, p.current, p.missing = current, content, true, true
	case current.Serial == p.last.Serial:
		p.current = true
	}
	return p, nil
}

// appendHistory appends a record to a tag's history, replacing a torn line.
func (s *Store) appendHistory(ref tree.Ref, p past, signed []byte) error {
	path := s.path(ref.HistoryPath())
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := owner.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return err
	}
	defer f.Close()
	var text []byte
	if p.missing {
		text = append(append(text, p.line...), '\n')
	}
	text = append(append(text, signed...), '\n')
	// The directory entry is synced when TAG.json is replaced.
	_, err = lines.Append(f, p.end, text, s.sync)
	return err
}

// Entry is a line of a tag's history.
type Entry struct {
	Record *tree.TagRecord
	Line   []byte // without the newline; its digest is the next record's Previous
}

// History returns all records of a tag, oldest first. It is empty for a tag that does
// not exist.
func (s *Store) History(ref tree.Ref) ([]Entry, error) {
	h, _, err := s.history(ref)
	return h, err
}

// history also returns the end of the last whole line.
func (s *Store) history(ref tree.Ref) (h []Entry, end int64, err error) {
	content, err := os.ReadFile(s.path(ref.HistoryPath()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	for n := 1; len(content) > 0; n++ {
		line, rest, whole := bytes.Cut(content, []byte("\n"))
		if !whole {
			break // torn: see the package comment
		}
		r, err := tree.OpenTag(line, s.info.ID, ref, s.info.Keys)
		if err != nil {
			return nil, 0, damagedHistory(ref, n, err)
		}
		if len(h) > 0 && r.Serial <= h[len(h)-1].Record.Serial {
			return nil, 0, damagedHistory(ref, n, fmt.Errorf("serial %d follows serial %d", r.Serial, h[len(h)-1].Record.Serial))
		}
		h, content = append(h, Entry{r, line}), rest
		end += int64(len(line)) + 1
	}
	return h, end, nil
}

func damagedHistory(ref tree.Ref, line int, err error) error {
	return &DamageError{
		What: fmt.Sprintf("%s, line %d", ref.HistoryPath(), line), Reason: err.Error(),
		HintText: "restore it from a copy of the store, or move it away: a new history then begins with the current record", Err: err,
	}
}

// Resolve returns the current record of a tag. For a reference with a digest, it
// returns a record with only name and digest if the store has the tree.
func (s *Store) Resolve(ref tree.Ref) (*tree.TagRecord, error) {
	if !ref.Digest.IsZero() {
		if _, err := os.Lstat(s.path(ref.Digest.Path())); err != nil {
			return nil, &UsageError{Reason: fmt.Sprintf("the store %s has no tree %s", s.dir, ref.Digest), HintText: "premix store ls --store " + s.dir + " lists its trees", Err: err}
		}
		return &tree.TagRecord{Store: s.info.ID, Name: ref.Name, Tree: ref.Digest}, nil
	}
	content, err := os.ReadFile(s.path(ref.TagPath()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &UsageError{Reason: fmt.Sprintf("the store %s has no %s", s.dir, ref), HintText: "premix store ls --store " + s.dir + " lists its trees", Err: err}
	}
	if err != nil {
		return nil, accessError(s.dir, err)
	}
	r, err := tree.OpenTag(content, s.info.ID, ref, s.info.Keys)
	if err != nil {
		return nil, damagedTag(ref, err)
	}
	return r, nil
}

func damagedTag(ref tree.Ref, err error) error {
	return &DamageError{What: ref.TagPath(), Reason: err.Error(), HintText: "remove it and publish again: its history keeps the serial", Err: err}
}

// Tags returns the references that have a current record, in order.
func (s *Store) Tags() ([]tree.Ref, error) {
	return s.refs(".json", func(name string) bool { return !strings.HasSuffix(name, ".history.json") })
}

// histories returns the references that have a history, which includes removed tags.
func (s *Store) histories() ([]tree.Ref, error) {
	return s.refs(".history.jsonl", func(string) bool { return true })
}

func (s *Store) refs(suffix string, wanted func(name string) bool) ([]tree.Ref, error) {
	root := s.path("tags")
	var refs []tree.Ref
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base, ok := strings.CutSuffix(e.Name(), suffix)
		if e.IsDir() || !ok || !wanted(e.Name()) {
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		ref, err := tree.ParseRef(filepath.ToSlash(rel) + ":" + base)
		if err != nil {
			return damage("tags/"+filepath.ToSlash(rel)+"/"+e.Name(), err)
		}
		refs = append(refs, ref)
		return nil
	})
	slices.SortFunc(refs, func(a, b tree.Ref) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Tag, b.Tag))
	})
	return refs, accessError(s.dir, err)
}
