package store

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

	"golang.org/x/sys/unix"

	"premix/internal/kit/lock"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// GCOptions say which trees a gc keeps.
type GCOptions struct {
	DryRun bool
	// Keep is the number of records of each tag to keep, including the current one; at
	// least 1.
	Keep int
	// KeepFor also keeps trees that a tag named until less than this long ago: nodes
	// may still have them mounted.
	KeepFor time.Duration
	Now     time.Time // zero: the present
}

// GCResult is the result of a gc.
type GCResult struct {
	Trees    int   // kept
	Objects  int64 // kept because a tree or profile needs them
	Bytes    int64
	Young    int64 // unneeded objects that a running writer may rely on
	Removed  int64 // or, in a dry run, to be removed
	Freed    int64 // bytes of them
	Profiles int   // records of profiles removed, since their trees are gone
	Writers  int   // dead writers cleared away
}

// strayAge is the age from which a temporary file belongs to a dead process.
const strayAge = time.Hour

// sweepBatch is the number of objects handled while a shard's lock is held.
const sweepBatch = 64

// GC removes the objects that no kept tree needs. The package comment explains how it
// works beside writers. If a tag, manifest, page or profile is damaged, so that the
// needed objects are not known for certain, GC removes nothing, and the error names the
// damaged file.
func (s *Store) GC(ctx context.Context, o GCOptions) (*GCResult, error) {
	if err := s.prepare(); err != nil {
		return nil, accessError(s.dir, err)
	}
	unlock, err := s.lock(ctx, "gc")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	g := &collector{s: s, o: o, marks: map[object.Digest]struct{}{}, trees: map[object.Digest]bool{}, former: map[object.Digest]bool{}}
	if g.cutoff, err = s.present(); err != nil {
		return nil, accessError(s.dir, err)
	}
	for _, step := range []func(context.Context) error{g.writers, g.mark, g.markProfiles, g.manifests, g.sweep, g.strays} {
		if err := step(ctx); err != nil {
			return nil, accessError(s.dir, err)
		}
	}
	g.c.Trees = len(g.trees)
	return &g.c, nil
}

// present returns the present time of the store's filesystem. It reads it from the gc's
// lock file, which the caller holds.
func (s *Store) present() (unix.Timespec, error) {
	path := s.path(locksDir + "/gc")
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, nil, 0); err != nil {
		return unix.Timespec{}, &fs.PathError{Op: "refresh", Path: path, Err: err}
	}
	return changed(path)
}

// changed returns the modification time of a file.
func changed(path string) (unix.Timespec, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return unix.Timespec{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Mtim, nil
}

func before(a, b unix.Timespec) bool {
	return a.Sec < b.Sec || a.Sec == b.Sec && a.Nsec < b.Nsec
}

// collector is a running gc.
type collector struct {
	s      *Store
	o      GCOptions
	c      GCResult
	cutoff unix.Timespec // files changed since then stay
	marks  map[object.Digest]struct{}
	trees  map[object.Digest]bool // kept
	former map[object.Digest]bool // earlier trees of tags, not kept
}

// writers lowers the cutoff to the start of the oldest running writer, and removes the
// directories of dead ones.
func (g *collector) writers(context.Context) error {
	root := g.s.path(writersDir)
	list, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range list {
		dir := filepath.Join(root, e.Name())
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			// It died, or is about to create the file: then it starts again.
			if !g.o.DryRun {
				_ = os.Remove(dir)
			}
			continue
		}
		if err != nil {
			return err
		}
		switch err := lock.Try(f, lock.Exclusive); {
		case errors.Is(err, lock.ErrHeld):
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil {
				f.Close()
				return err
			}
			if before(st.Mtim, g.cutoff) {
				g.cutoff = st.Mtim
			}
		case err != nil:
			f.Close()
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		default:
			g.c.Writers++
			if !g.o.DryRun {
				if err := os.RemoveAll(dir); err != nil {
					f.Close()
					return err
				}
			}
		}
		f.Close()
	}
	return nil
}

// mark marks the objects of all trees that are kept.
func (g *collector) mark(ctx context.Context) error {
	refs, err := g.s.Tags()
	if err != nil {
		return err
	}
	histories, err := g.s.histories()
	if err != nil {
		return err
	}
	for _, ref := range histories {
		if !slices.Contains(refs, ref) {
			if err := g.markTag(ctx, ref, false); err != nil {
				return err
			}
		}
	}
	for _, ref := range refs {
		if err := g.markTag(ctx, ref, true); err != nil {
			return err
		}
	}
	for d := range g.trees {
		delete(g.former, d)
	}
	return nil
}

// markTag marks the trees of a tag's kept records. Of a tag without a current record no
// tree is kept.
func (g *collector) markTag(ctx context.Context, ref tree.Ref, current bool) error {
	h, err := g.s.History(ref)
	if err != nil {
		return err
	}
	for i, e := range h {
		g.former[e.Record.Tree] = true
		replaced := g.o.Now
		if i+1 < len(h) {
			replaced = h[i+1].Record.Time
		}
		if !current || len(h)-i > max(1, g.o.Keep) && g.o.Now.Sub(replaced) >= g.o.KeepFor {
			continue
		}
		// If an earlier gc removed the tree, its manifest is gone.
		if _, err := os.Lstat(g.s.path(e.Record.Tree.Path())); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := g.markTree(ctx, ref, e.Record.Tree); err != nil {
			return err
		}
	}
	if !current {
		return nil
	}
	r, err := g.s.Resolve(ref)
	if err != nil {
		return err
	}
	return g.markTree(ctx, ref, r.Tree)
}

func (g *collector) markTree(ctx context.Context, ref tree.Ref, d object.Digest) error {
	if g.trees[d] {
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	refuse := func(err error) error {
		return &DamageError{What: fmt.Sprintf("tree %s of %s", d.Short(), ref), Reason: err.Error() + "; nothing was removed", Err: err}
	}
	m, err := g.s.Manifest(d)
	if err != nil {
		return refuse(err)
	}
	for i, p := range m.Pages {
		chunks, err := g.s.page(p)
		if err != nil {
			return refuse(fmt.Errorf("page %d of %d: %w", i+1, len(m.Pages), err))
		}
		g.marks[p.Digest] = struct{}{}
		for _, c := range chunks {
			if !c.Hole() {
				g.marks[c.Digest] = struct{}{}
			}
		}
	}
	g.marks[d] = struct{}{}
	g.trees[d] = true
	return nil
}

// markProfiles marks the profiles of kept trees, and removes the records of the
// others.
func (g *collector) markProfiles(ctx context.Context) error {
	list, err := os.ReadDir(g.s.path("profiles"))
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		d, err := object.ParseDigest(e.Name())
		if err != nil {
			continue // not created by premix
		}
		names, err := g.s.Profiles(d)
		if err != nil {
			return err
		}
		for _, name := range names {
			if !g.trees[d] {
				if err := g.removeOld(tree.ProfilePath(d, name), &g.c.Profiles); err != nil {
					return err
				}
				continue
			}
			r, p, err := g.s.Profile(d, name)
			if err != nil {
				return &DamageError{What: tree.ProfilePath(d, name), Reason: err.Error() + "; nothing was removed", Err: err}
			}
			g.marks[r.Profile] = struct{}{}
			for _, b := range p.Bundles {
				g.marks[b.Digest] = struct{}{}
			}
		}
		if !g.trees[d] && !g.o.DryRun {
			_ = os.Remove(g.s.path("profiles/" + d.String())) // if it is empty now
		}
	}
	return nil
}

// removeOld removes a mutable file of the store unless it has changed since the cutoff.
func (g *collector) removeOld(name string, count *int) error {
	t, err := changed(g.s.path(name))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !before(t, g.cutoff) {
		return nil
	}
	if err != nil {
		return err
	}
	*count++
	if g.o.DryRun {
		return nil
	}
	return os.Remove(g.s.path(name))
}

// manifests removes the manifests of former trees before their other objects: so a tree
// whose manifest exists is whole, even if the gc is killed.
func (g *collector) manifests(ctx context.Context) error {
	if g.o.DryRun {
		return nil
	}
	for d := range g.former {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := g.remove([]object.Digest{d}); err != nil {
			return err
		}
	}
	g.c.Young = 0 // sweep counts these again
	return nil
}

// sweep goes through all objects.
func (g *collector) sweep(ctx context.Context) error {
	for b := range 256 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		list, err := os.ReadDir(g.s.path(fmt.Sprintf("objects/%02x", b)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var candidates []object.Digest
		for _, e := range list {
			d, err := object.ParseDigest(e.Name())
			if err != nil || int(d[0]) != b {
				continue // not created by premix: verify reports it
			}
			if _, ok := g.marks[d]; !ok {
				candidates = append(candidates, d)
				continue
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			g.c.Objects++
			g.c.Bytes += info.Size()
		}
		for batch := range slices.Chunk(candidates, sweepBatch) {
			if err := g.remove(batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes the unmarked objects of one shard that are old enough.
func (g *collector) remove(batch []object.Digest) error {
	f, err := os.OpenFile(g.s.path(shardLock(batch[0][0])), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // releases the lock
	if err := lock.Await(context.Background(), f, lock.Exclusive); err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	for _, d := range batch {
		path := g.s.path(d.Path())
		var st unix.Stat_t
		err := unix.Lstat(path, &st)
		switch {
		case errors.Is(err, unix.ENOENT):
			continue
		case err != nil:
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		case !before(st.Mtim, g.cutoff):
			g.c.Young++
			continue
		}
		if !g.o.DryRun {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
		g.c.Removed++
		g.c.Freed += st.Size
	}
	return nil
}

// strays removes temporary files of dead processes.
func (g *collector) strays(context.Context) error {
	list, err := os.ReadDir(g.s.path(workDir))
	if err != nil {
		return err
	}
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), tempPrefix) || g.o.DryRun {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > strayAge {
			_ = os.Remove(g.s.path(workDir + "/" + e.Name())) // another process may have removed it
		}
	}
	return nil
}
