package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"premix/internal/store"
	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/store/tree"
	"premix/internal/store/trust"
)

// DefaultParallel is the default number of concurrent fetches.
const DefaultParallel = 24

// DefaultProfile is the profile that mounts follow by default.
const DefaultProfile = "start"

// Progress may be read at any time.
type Progress struct {
	Whole   atomic.Int64 // bytes of the image, or objects for a push to a registry; 0 until known
	Done    atomic.Int64 // the part of Whole that is done
	Fetched atomic.Int64 // bytes of stored forms transferred
}

// Copied is the result of a copy.
type Copied struct {
	Ref      tree.Ref
	Tree     object.Digest
	Record   *tree.TagRecord // nil for a reference with a digest
	Manifest *tree.Manifest
	From     string // origin that gave the tag's record; "" for a push
	First    bool   // its keys were trusted on first use
	Objects  int64  // transferred
	Bytes    int64  // of their stored forms
	Found    int64  // objects that existed at the destination
	Profiles []string
	Tagged   bool // the tag was written; false if it existed
	Took     time.Duration
}

// PullOptions say what to pull.
type PullOptions struct {
	Ref      tree.Ref
	From     *origin.Group
	Trust    *trust.Resolver
	Dest     string // directory
	Store    store.Options
	Profiles []string // names; missing profiles are skipped
	Parallel int      // 0: DefaultParallel
	Rollback bool     // permit an older record of the tag
	Progress *Progress
}

// Pull copies a tree into a mirror in a directory.
func Pull(ctx context.Context, o PullOptions) (*Copied, error) {
	res, err := o.Trust.Resolve(ctx, o.From, o.Ref)
	if err != nil {
		return nil, err
	}
	if res.Offline != nil {
		return nil, res.Offline
	}
	info := tree.Info{ID: res.Store, Keys: res.Keys}
	if res.Record == nil { // a digest: the mirror still needs the store's id and keys
		err := o.From.Each(ctx, func(ctx context.Context, one origin.Origin) error {
			i, _, err := o.Trust.Store(ctx, one)
			if err == nil {
				info = *i
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	dest, err := store.OpenMirror(o.Dest, info, o.Store)
	if err != nil {
		return nil, err
	}
	s := source{group: o.From, signed: res.Signed, record: res.Record, tree: res.Tree, ref: o.Ref}
	if res.Record != nil {
		// Without a history the mirror's begins with this record. A long one exceeds
		// the size that an origin returns.
		s.history, _ = o.From.File(ctx, o.Ref.HistoryPath())
	}
	for _, name := range o.Profiles {
		r, signed, err := o.Trust.ProfileRecord(ctx, o.From, res.Tree, name)
		if errors.Is(err, origin.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s.profiles = append(s.profiles, profile{r, signed})
	}
	c, err := fill(ctx, dest, s, o.Parallel, o.Rollback, o.Progress)
	if err != nil {
		return nil, err
	}
	c.From, c.First = res.Origin, res.First
	return c, nil
}

// source is the tree to be copied, with its verified records.
type source struct {
	group    *origin.Group
	ref      tree.Ref
	tree     object.Digest
	record   *tree.TagRecord // nil for a reference with a digest
	signed   []byte
	history  []byte
	profiles []profile
}

type profile struct {
	record *tree.ProfileRecord
	signed []byte
}

// filler fills a mirror.
type filler struct {
	dest     *store.Store
	w        *store.Writer
	from     *origin.Group
	parallel int
	progress *Progress
	objects  atomic.Int64
	bytes    atomic.Int64
	found    atomic.Int64
}

func fill(ctx context.Context, dest *store.Store, s source, parallel int, rollback bool, p *Progress) (c *Copied, err error) {
	began := time.Now()
	if p == nil {
		p = &Progress{}
	}
	if parallel <= 0 {
		parallel = DefaultParallel
	}
	w, err := dest.Begin()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	f := &filler{dest: dest, w: w, from: s.group, parallel: parallel, progress: p}
	c = &Copied{Ref: s.ref, Tree: s.tree, Record: s.record}
	content, keep, err := f.content(ctx, s.tree, -1)
	if err != nil {
		return nil, err
	}
	if c.Manifest, err = tree.ParseManifest(content); err != nil {
		return nil, err
	}
	p.Whole.Store(c.Manifest.Size)
	for i, page := range c.Manifest.Pages {
		if err := f.page(ctx, page); err != nil {
			return nil, fmt.Errorf("page %d of %d: %w", i+1, len(c.Manifest.Pages), err)
		}
	}
	// Make the staged objects visible before the manifest, even if the process dies in
	// between.
	if err := w.Flush(); err != nil {
		return nil, err
	}
	if err := keep(); err != nil {
		return nil, err
	}
	if err := w.Flush(); err != nil {
		return nil, err
	}
	if err := sound(dest, s.tree); err != nil {
		return nil, err
	}
	for _, one := range s.profiles {
		if err := f.profile(ctx, c.Manifest, one); err != nil {
			return nil, fmt.Errorf("profile %s: %w", one.record.Name, err)
		}
		c.Profiles = append(c.Profiles, one.record.Name)
	}
	if s.record != nil {
		if c.Tagged, err = w.AdoptTag(ctx, s.ref, s.signed, s.history, rollback); err != nil {
			return nil, err
		}
	} else if err := w.Flush(); err != nil {
		return nil, err
	}
	c.Objects, c.Bytes, c.Found, c.Took = f.objects.Load(), f.bytes.Load(), f.found.Load(), time.Since(began)
	return c, nil
}

// sound returns an error if premix has not written the metadata of a tree: a mirror does
// not pass on what a node would refuse.
func sound(dest *store.Store, d object.Digest) error {
	t, err := dest.Tree(d)
	if err == nil {
		err = t.Check()
	}
	if err != nil {
		return fmt.Errorf("tree %s: %w", d.Short(), err)
	}
	return nil
}

// content returns the content of an object, from the mirror if it has an intact copy,
// and a function that writes it to the mirror otherwise.
func (f *filler) content(ctx context.Context, d object.Digest, size int64) (content []byte, keep func() error, err error) {
	if _, ok, err := f.w.Has(d); err != nil {
		return nil, nil, err
	} else if ok {
		if content, err := f.dest.Content(d, size); err == nil {
			f.found.Add(1)
			return content, func() error { return nil }, nil
		}
	}
	stored, content, err := f.fetch(ctx, d, size)
	return content, func() error {
		_, err := f.w.PutStored(d, stored)
		return err
	}, err
}

func (f *filler) fetch(ctx context.Context, d object.Digest, size int64) (stored, content []byte, err error) {
	stored, content, err = f.from.Fetch(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	if size >= 0 && int64(len(content)) != size {
		return nil, nil, &object.CorruptError{Digest: d, Reason: fmt.Sprintf("%d bytes instead of %d", len(content), size)}
	}
	f.objects.Add(1)
	f.bytes.Add(int64(len(stored)))
	f.progress.Fetched.Add(int64(len(stored)))
	return stored, content, nil
}

// put makes sure that the mirror has an object.
func (f *filler) put(ctx context.Context, d object.Digest, size int64) error {
	if _, ok, err := f.w.Has(d); ok || err != nil {
		f.found.Add(1)
		return err
	}
	stored, _, err := f.fetch(ctx, d, size)
	if err != nil {
		return err
	}
	_, err = f.w.PutStored(d, stored)
	return err
}

// page copies the chunks of a page, and the page.
func (f *filler) page(ctx context.Context, p tree.Page) error {
	content, keep, err := f.content(ctx, p.Digest, p.PageSize())
	if err != nil {
		return err
	}
	chunks, err := tree.ParsePage(p, content)
	if err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(f.parallel)
	for _, c := range chunks {
		if ctx.Err() != nil {
			break // another chunk has failed
		}
		all.Go(func() error {
			if !c.Hole() {
				if err := f.put(ctx, c.Digest, c.Size); err != nil {
					return err
				}
			}
			f.progress.Done.Add(c.Size)
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	return keep()
}

// profile copies a profile and its bundles, and its record.
func (f *filler) profile(ctx context.Context, m *tree.Manifest, one profile) error {
	content, keep, err := f.content(ctx, one.record.Profile, -1)
	if err != nil {
		return err
	}
	p, err := tree.ParseProfile(content, one.record.Tree, m.Chunks())
	if err != nil {
		return err
	}
	for _, b := range p.Bundles {
		if err := f.put(ctx, b.Digest, b.Size); err != nil {
			return err
		}
	}
	if err := keep(); err != nil {
		return err
	}
	return f.w.AdoptProfile(ctx, one.record.Tree, one.record.Name, one.signed)
}
