package mirror

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/internal/store"
	"premix/internal/store/origin"
	"premix/internal/store/tree"
)

// PushOptions say what to push.
type PushOptions struct {
	From     *store.Store
	Ref      tree.Ref
	Dest     string // directory, file:// or oci://HOST/REPOSITORY
	Reach    origin.Options
	Store    store.Options // of a directory
	Parallel int           // as for pull; registries accept one pack at a time
	Rollback bool
	Progress *Progress
}

// Push copies a tree with its profiles and its tag from a local store.
func Push(ctx context.Context, o PushOptions) (*Copied, error) {
	s, err := local(o.From, o.Ref)
	if err != nil {
		return nil, err
	}
	dest, err := origin.Open(o.Dest, o.Reach)
	if err != nil {
		return nil, err
	}
	switch dest := dest.(type) {
	case *origin.Dir:
		if dest.String() == o.From.Dir() {
			return nil, &store.UsageError{Reason: fmt.Sprintf("%s is the store that is pushed from", dest), HintText: "name another directory"}
		}
		m, err := store.OpenMirror(dest.String(), o.From.Info(), o.Store)
		if err != nil {
			return nil, err
		}
		return fill(ctx, m, s, o.Parallel, o.Rollback, o.Progress)
	case *origin.OCI:
		return toRegistry(ctx, o.From, s, dest, o.Rollback, o.Progress)
	}
	return nil, &store.UsageError{Reason: fmt.Sprintf("cannot push to %s", dest),
		HintText: "push to a directory or to oci://HOST/REPOSITORY, or run premix store pull on the server"}
}

// local returns the source for a reference in a local store.
func local(from *store.Store, ref tree.Ref) (source, error) {
	record, err := from.Resolve(ref)
	if err != nil {
		return source{}, err
	}
	dir, err := origin.NewDir(from.Dir())
	if err != nil {
		return source{}, err
	}
	s := source{group: origin.NewGroup([]origin.Origin{dir}, origin.Options{Patience: -1}), ref: ref, tree: record.Tree}
	if ref.Digest.IsZero() {
		s.record = record
		if s.signed, err = read(from, ref.TagPath()); err != nil {
			return source{}, err
		}
		s.history, err = read(from, ref.HistoryPath())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return source{}, err
		}
	}
	names, err := from.Profiles(record.Tree)
	if err != nil {
		return source{}, err
	}
	for _, name := range names {
		r, _, err := from.Profile(record.Tree, name)
		if err != nil {
			return source{}, err
		}
		signed, err := read(from, tree.ProfilePath(record.Tree, name))
		if err != nil {
			return source{}, err
		}
		s.profiles = append(s.profiles, profile{r, signed})
	}
	return s, nil
}

func read(s *store.Store, name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.Dir(), filepath.FromSlash(name)))
}

// toRegistry pushes to a repository.
func toRegistry(ctx context.Context, from *store.Store, s source, dest *origin.OCI, rollback bool, p *Progress) (*Copied, error) {
	began := time.Now()
	if p == nil {
		p = &Progress{}
	}
	// Check before anything is uploaded.
	info, isNew, err := checkRegistry(ctx, from, s, dest, rollback)
	if err != nil {
		return nil, err
	}
	t, err := from.Tree(s.tree)
	if err != nil {
		return nil, err
	}
	c := &Copied{Ref: s.ref, Tree: s.tree, Record: s.record, Manifest: t.Manifest()}
	objects := slices.Collect(t.Objects())
	// Progress is counted in objects, since a pack has many.
	p.Whole.Store(int64(len(objects)))
	set := origin.ObjectSet{Objects: objects, Size: c.Manifest.Size, Get: s.group.Object,
		Progress: func(n int, bytes int64, reused bool) {
			p.Done.Add(int64(n))
			if reused {
				c.Found += int64(n)
				return
			}
			c.Objects += int64(n)
			c.Bytes += bytes
			p.Fetched.Add(bytes)
		}}
	if err := dest.PutTree(ctx, s.tree, set); err != nil {
		return nil, err
	}
	if len(s.profiles) > 0 {
		set.Objects = nil
		var files []origin.File
		for _, one := range s.profiles {
			_, profile, err := from.Profile(s.tree, one.record.Name)
			if err != nil {
				return nil, err
			}
			set.Objects = append(set.Objects, one.record.Profile)
			for _, b := range profile.Bundles {
				set.Objects = append(set.Objects, b.Digest)
			}
			files = append(files, origin.File{Name: tree.ProfilePath(s.tree, one.record.Name), Content: one.signed})
			c.Profiles = append(c.Profiles, one.record.Name)
		}
		p.Whole.Add(int64(len(set.Objects)))
		if err := dest.PutProfiles(ctx, s.tree, files, set); err != nil {
			return nil, err
		}
	}
	if info != nil {
		if err := dest.PutStore(ctx, info); err != nil {
			return nil, err
		}
	}
	if s.record != nil && isNew {
		files := []origin.File{{Name: s.ref.TagPath(), Content: s.signed}}
		if len(s.history) > 0 && len(s.history) <= origin.MaxFile {
			files = append(files, origin.File{Name: s.ref.HistoryPath(), Content: s.history})
		}
		if err := dest.PutTag(ctx, s.ref, files); err != nil {
			return nil, err
		}
		c.Tagged = true
	}
	c.Took = time.Since(began)
	return c, nil
}

// checkRegistry returns an error if the tree must not be pushed to the repository. It
// returns the store.json to push, or nil if it exists, and whether the tag must be
// pushed.
func checkRegistry(ctx context.Context, from *store.Store, s source, dest *origin.OCI, rollback bool) (info []byte, isNew bool, err error) {
	mine := from.Info()
	if info, err = mine.Marshal(); err != nil {
		return nil, false, err
	}
	there, err := dest.File(ctx, tree.InfoPath)
	switch {
	case errors.Is(err, origin.ErrNotFound):
	case err != nil:
		return nil, false, err
	default:
		other, err := tree.ParseInfo(there)
		if err != nil {
			return nil, false, err
		}
		if other.ID != mine.ID {
			return nil, false, &store.UsageError{Reason: fmt.Sprintf("%s holds store %s, not store %s", dest, other.ID, mine.ID), HintText: "name another repository: each holds one store"}
		}
		if strings.TrimSpace(string(there)) == strings.TrimSpace(string(info)) {
			info = nil
		}
	}
	if s.record == nil {
		return info, false, nil
	}
	signed, err := dest.File(ctx, s.ref.TagPath())
	if errors.Is(err, origin.ErrNotFound) {
		return info, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	old, err := tree.OpenTag(signed, mine.ID, s.ref, mine.Keys)
	switch {
	case err != nil: // an untrusted record is replaced
	case old.Serial == s.record.Serial && old.Tree == s.record.Tree:
		return info, false, nil
	case old.Serial >= s.record.Serial && !rollback:
		return nil, false, &store.OlderError{Ref: s.ref, Serial: s.record.Serial, Have: old.Serial}
	}
	return info, true, nil
}
