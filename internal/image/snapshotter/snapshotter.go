package snapshotter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	diskfs "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/node"
	"premix/internal/store/object"
)

const (
	refLabel  = "containerd.io/snapshot.ref" // the chain id of the layer to be pulled
	treeLabel = "premix.tree"                // the tree of a lazy snapshot

	orphanPrefix = "orphan-" // of directories being removed
)

// Options of a snapshotter.
type Options struct {
	Root string // absolute
	// Request returns a request to mount a tree, with its origins.
	Request func(ref string) node.MountRequest
	// LookUp limits the search for a layer's tree, for which the pull of an image
	// waits.
	LookUp time.Duration
	// Record is an existing directory, absolute, for recorded profiles: CHAIN.jsonl for
	// each mounted layer, by its chain id without "sha256:". "" means that none are
	// recorded.
	Record string
	// Registries makes the snapshotter fetch layers that no origin has.
	Registries bool
	// Indexed makes the snapshotter mount layers with an index from their registry before
	// they are fetched. The index is not compared with the layer's diff id.
	Indexed bool
	// Containerd is the socket of containerd, from which the manifest and the configuration
	// of an image are read. If containerd has not got them, the registry is asked.
	Containerd string
	// ImageService is the socket of containerd: calls of its CRI image service come
	// through the snapshotter, which uses the credentials in them. "" means that they do
	// not.
	ImageService string
	Log          *slog.Logger
}

// Snapshotter is a snapshots.Snapshotter of containerd, and a snapshots.Cleaner.
type Snapshotter struct {
	root   string
	store  *storage.MetaStore
	layers *layers
	log    *slog.Logger

	credentials credentials
	registries  *registries // nil: containerd pulls all layers that no store has
}

var (
	_ snapshots.Snapshotter = (*Snapshotter)(nil)
	_ snapshots.Cleaner     = (*Snapshotter)(nil)
)

// New opens a snapshotter, which must be the only one with its root.
func New(o Options) (*Snapshotter, error) {
	s := &Snapshotter{root: o.Root, log: o.Log}
	for _, dir := range []string{s.root, s.snapshotsDir(), s.treesDir(), s.describedDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, rootError(o.Root, err)
		}
	}
	var err error
	if s.store, err = storage.NewMetaStore(filepath.Join(s.root, "metadata.db")); err != nil {
		return nil, rootError(o.Root, err)
	}
	s.layers = &layers{dir: s.treesDir(), request: o.Request, lookUp: o.LookUp, record: o.Record, log: o.Log, described: s.describedDir(), wanted: s.wanted}
	if o.Registries {
		if err := os.RemoveAll(s.fetchedDir()); err != nil {
			return nil, rootError(o.Root, err)
		}
		s.registries = &registries{dir: s.fetchedDir(), keychain: &s.credentials, containerd: o.Containerd, log: o.Log, indexed: o.Indexed, pulls: map[string]*pull{}, silent: map[string]time.Time{}}
	}
	return s, nil
}

func rootError(root string, err error) error {
	return exit.Errorf(exit.Usage, "give a directory on a disk with --root", "%s cannot be used: %w", root, err)
}

func (s *Snapshotter) snapshotsDir() string       { return filepath.Join(s.root, "snapshots") }
func (s *Snapshotter) treesDir() string           { return filepath.Join(s.root, "trees") }
func (s *Snapshotter) describedDir() string       { return filepath.Join(s.root, "layers") }
func (s *Snapshotter) fetchedDir() string         { return filepath.Join(s.root, "fetched") }
func (s *Snapshotter) upperPath(id string) string { return filepath.Join(s.snapshotsDir(), id, "fs") }
func (s *Snapshotter) workPath(id string) string  { return filepath.Join(s.snapshotsDir(), id, "work") }

// Close closes the database. Mounts stay.
func (s *Snapshotter) Close() error {
	s.registries.close()
	s.layers.close()
	return s.store.Close()
}

// view reads the database, and change changes it atomically.
func (s *Snapshotter) view(ctx context.Context, do func(ctx context.Context) error) error {
	return s.store.WithTransaction(ctx, false, do)
}

func (s *Snapshotter) change(ctx context.Context, do func(ctx context.Context) error) error {
	return s.store.WithTransaction(ctx, true, do)
}

// Stat returns the description of a snapshot.
func (s *Snapshotter) Stat(ctx context.Context, key string) (info snapshots.Info, err error) {
	err = s.view(ctx, func(ctx context.Context) error {
		_, info, _, err = storage.GetInfo(ctx, key)
		return err
	})
	return info, err
}

// Update changes labels. Other fields cannot be changed.
func (s *Snapshotter) Update(ctx context.Context, info snapshots.Info, fields ...string) (updated snapshots.Info, err error) {
	err = s.change(ctx, func(ctx context.Context) error {
		_, was, _, err := storage.GetInfo(ctx, info.Name)
		if err != nil {
			return err
		}
		info.Labels = withTree(info.Labels, was.Labels[treeLabel])
		updated, err = storage.UpdateInfo(ctx, info, fields...)
		return err
	})
	return updated, err
}

// withTree returns labels with the label of the tree set; "" removes it.
func withTree(labels map[string]string, tree string) map[string]string {
	all := make(map[string]string, len(labels)+1)
	for name, value := range labels {
		if name != treeLabel {
			all[name] = value
		}
	}
	if tree != "" {
		all[treeLabel] = tree
	}
	return all
}

// labelsOf returns the labels in the options of a call.
func labelsOf(opts []snapshots.Opt) (map[string]string, error) {
	var info snapshots.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return nil, err
		}
	}
	return withTree(info.Labels, ""), nil
}

// Usage returns the disk space of a snapshot without its parents; for a lazy snapshot,
// of its fetched content.
func (s *Snapshotter) Usage(ctx context.Context, key string) (usage snapshots.Usage, err error) {
	var id string
	var info snapshots.Info
	err = s.view(ctx, func(ctx context.Context) error {
		id, info, usage, err = storage.GetInfo(ctx, key)
		return err
	})
	switch {
	case err != nil:
		return usage, err
	case info.Kind == snapshots.KindActive:
		return s.measure(ctx, id)
	case info.Labels[treeLabel] != "":
		return s.layers.usage(ctx, info.Labels[treeLabel]), nil
	}
	return usage, nil
}

func (s *Snapshotter) measure(ctx context.Context, id string) (snapshots.Usage, error) {
	u, err := diskfs.DiskUsage(ctx, s.upperPath(id))
	return snapshots.Usage(u), err
}

// Walk calls fn for all snapshots that match the filters.
func (s *Snapshotter) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	return s.view(ctx, func(ctx context.Context) error { return storage.WalkInfo(ctx, fn, filters...) })
}

// Prepare makes an active snapshot or a lazy one. For a lazy one the error is
// errdefs.ErrAlreadyExists, as containerd expects.
func (s *Snapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	labels, err := labelsOf(opts)
	if err != nil {
		return nil, err
	}
	if chain := labels[refLabel]; chain != "" {
		lazy, err := s.lazy(ctx, key, parent, chain, labels)
		if err != nil {
			return nil, err
		}
		if lazy {
			return nil, fmt.Errorf("layer %s: %w", chain, errdefs.ErrAlreadyExists)
		}
	}
	return s.create(ctx, snapshots.KindActive, key, parent, labels)
}

// View makes a read-only snapshot.
func (s *Snapshotter) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	labels, err := labelsOf(opts)
	if err != nil {
		return nil, err
	}
	return s.create(ctx, snapshots.KindView, key, parent, labels)
}

// lazy commits a lazy snapshot if there is a tree for it, and reports whether it did.
func (s *Snapshotter) lazy(ctx context.Context, key, parent, chain string, labels map[string]string) (bool, error) {
	name, there := chain, false
	err := s.view(ctx, func(ctx context.Context) error {
		if parent != "" {
			id, _, _, err := storage.GetInfo(ctx, parent)
			if err != nil {
				return fmt.Errorf("parent %q: %w", parent, err)
			}
			name += "@" + id
		}
		_, _, _, err := storage.GetInfo(ctx, name)
		there = err == nil
		return nil
	})
	// Before the first snapshot there is no database.
	if err != nil && (parent != "" || !errdefs.IsNotFound(err)) {
		return false, err
	}
	if there {
		return true, nil
	}
	defer s.registries.ahead(ctx, labels)()
	tree, release, err := s.layers.find(ctx, chain)
	if ctx.Err() != nil {
		if err == nil {
			release()
		}
		return false, ctx.Err() // the caller has given up
	}
	if err == nil {
		defer release()
		return s.commitLazy(ctx, key, parent, name, labels, tree)
	}
	// find has logged the reason.
	made, err := s.fromRegistry(ctx, key, parent, name, chain, labels)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil {
		s.log.Warn("containerd pulls a layer, which could not be fetched", "chain", chain, "error", err)
		return false, nil
	}
	return made, nil
}

// commitLazy commits a snapshot of a mounted tree. It reports true, since the snapshot
// exists afterwards.
func (s *Snapshotter) commitLazy(ctx context.Context, key, parent, name string, labels map[string]string, tree object.Digest) (bool, error) {
	err := s.change(ctx, func(ctx context.Context) error {
		made, err := storage.CreateSnapshot(ctx, snapshots.KindActive, key, parent)
		if err != nil {
			return err
		}
		// A transaction that failed at its end may have used the same id.
		if err := os.RemoveAll(filepath.Join(s.snapshotsDir(), made.ID)); err != nil {
			return err
		}
		_, err = storage.CommitActive(ctx, key, name, snapshots.Usage{}, snapshots.WithLabels(withTree(labels, tree.String())))
		return err
	})
	if errdefs.IsAlreadyExists(err) {
		return true, nil // it was just made for another namespace
	}
	if err != nil {
		return false, err
	}
	s.log.Info("mounted instead of pulled", "chain", labels[refLabel], "tree", tree.Short())
	return true, nil
}

// fromRegistry commits a snapshot of a layer that no store has, and reports whether it
// did: of a mount of the layer, if it has an index, or of the unpacked layer.
func (s *Snapshotter) fromRegistry(ctx context.Context, key, parent, name, chain string, labels map[string]string) (bool, error) {
	l, leave, err := s.registries.layer(ctx, labels, chain)
	if l == nil {
		return false, err
	}
	defer leave()
	if d := l.description(); d != nil && s.registries.indexed && s.layers.record == "" {
		tree, release, err := s.layers.findLayer(ctx, d, labels[imageLabel], s.registries.keychain)
		if err == nil {
			defer release()
			return s.commitLazy(ctx, key, parent, name, labels, tree)
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		s.log.Warn("a layer is fetched as a whole, since it cannot be mounted", "chain", chain, "error", err)
	}
	if err := l.fetch(ctx); err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leans {
		if err := s.unpackOn(ctx, l, parent); err != nil {
			return false, err
		}
	}
	usage, err := diskfs.DiskUsage(ctx, l.path())
	if errors.Is(err, fs.ErrNotExist) {
		// It is a snapshot already; if that was removed since, containerd pulls it.
		exists := s.view(ctx, func(ctx context.Context) error {
			_, _, _, err := storage.GetInfo(ctx, name)
			return err
		}) == nil
		return exists, nil
	}
	if err != nil {
		return false, err
	}
	err = s.change(ctx, func(ctx context.Context) error {
		made, err := storage.CreateSnapshot(ctx, snapshots.KindActive, key, parent)
		if err != nil {
			return err
		}
		dir := filepath.Join(s.snapshotsDir(), made.ID)
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
			return err
		}
		if err := beneath.Move(l.path(), s.upperPath(made.ID), beneath.Volatile); err != nil {
			return err
		}
		_, err = storage.CommitActive(ctx, key, name, snapshots.Usage(usage), snapshots.WithLabels(withTree(labels, "")))
		return err
	})
	if errdefs.IsAlreadyExists(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	s.log.Info("fetched and unpacked", "chain", chain)
	return true, nil
}

// unpackOn unpacks a layer whose archive does not describe all of its directories, or
// has hard links to files below it, on top of its parent.
func (s *Snapshotter) unpackOn(ctx context.Context, l *pulledLayer, parent string) (err error) {
	var list []lower
	if err := s.view(ctx, func(ctx context.Context) error {
		list, err = s.lowers(ctx, parent)
		return err
	}); err != nil {
		return err
	}
	if err := s.ready(ctx, list); err != nil {
		return err
	}
	below := l.path() + ".below"
	if err := os.Mkdir(below, 0o700); err != nil {
		return err
	}
	if err := mount.All(s.mounts(snapshots.KindView, "", list), below); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mount.UnmountAll(below, 0), os.Remove(below)) }()
	if err := l.unpack(ctx, below); err != nil {
		return err
	}
	l.leans = false
	return nil
}

// lower is a directory below an overlay.
type lower struct {
	path string
	tree *object.Digest // nil for an ordinary snapshot
}

// lowers returns the lower directories of a snapshot with the given parent, highest
// first.
func (s *Snapshotter) lowers(ctx context.Context, parent string) ([]lower, error) {
	var list []lower
	for parent != "" {
		id, info, _, err := storage.GetInfo(ctx, parent)
		if err != nil {
			return nil, fmt.Errorf("parent %q: %w", parent, err)
		}
		l := lower{path: s.upperPath(id)}
		if text := info.Labels[treeLabel]; text != "" {
			d, err := object.ParseDigest(text)
			if err != nil {
				return nil, fmt.Errorf("parent %q: %w", parent, err)
			}
			l = lower{s.layers.path(d), &d}
		}
		// An image may contain a layer twice, which overlayfs refuses. The lower of the
		// two can be dropped: the higher one hides all of it.
		if !slices.ContainsFunc(list, func(other lower) bool { return other.path == l.path }) {
			list = append(list, l)
		}
		parent = info.Parent
	}
	return list, nil
}

// ready mounts all trees among lowers.
func (s *Snapshotter) ready(ctx context.Context, list []lower) error {
	var trees []object.Digest
	for _, l := range list {
		if l.tree != nil {
			trees = append(trees, *l.tree)
		}
	}
	return s.layers.ensure(ctx, trees)
}

// create makes an active snapshot or a view.
func (s *Snapshotter) create(ctx context.Context, kind snapshots.Kind, key, parent string, labels map[string]string) (_ []mount.Mount, err error) {
	var list []lower
	if parent != "" {
		if err := s.view(ctx, func(ctx context.Context) error {
			list, err = s.lowers(ctx, parent)
			return err
		}); err != nil {
			return nil, err
		}
	}
	if err := s.ready(ctx, list); err != nil {
		return nil, err
	}
	var owner *owner
	if len(list) > 0 {
		if owner, err = ownerOf(list[0].path); err != nil {
			return nil, err
		}
	}
	var made storage.Snapshot
	// Cleanup runs in transactions too, so it does not consider this an orphan.
	err = s.change(ctx, func(ctx context.Context) error {
		if made, err = storage.CreateSnapshot(ctx, kind, key, parent, snapshots.WithLabels(labels)); err != nil {
			return err
		}
		return s.makeDirectory(made, owner)
	})
	if err != nil {
		return nil, err
	}
	return s.mounts(kind, made.ID, list), nil
}

// makeDirectory makes the directory of an active snapshot or a view.
func (s *Snapshotter) makeDirectory(made storage.Snapshot, o *owner) (err error) {
	// A transaction that failed at its end may have used the same id.
	dir := filepath.Join(s.snapshotsDir(), made.ID)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	upper := s.upperPath(made.ID)
	if err := os.Mkdir(upper, 0o755); err != nil {
		return err
	}
	if made.Kind == snapshots.KindActive {
		if err := os.Mkdir(s.workPath(made.ID), 0o711); err != nil {
			return err
		}
	}
	if o != nil {
		return os.Lchown(upper, o.uid, o.gid)
	}
	return nil
}

// Mounts returns the mounts of an active snapshot or a view.
func (s *Snapshotter) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	var snap storage.Snapshot
	var list []lower
	if err := s.view(ctx, func(ctx context.Context) (err error) {
		if snap, err = storage.GetSnapshot(ctx, key); err != nil {
			return err
		}
		_, info, _, err := storage.GetInfo(ctx, key)
		if err != nil {
			return err
		}
		list, err = s.lowers(ctx, info.Parent)
		return err
	}); err != nil {
		return nil, err
	}
	if err := s.ready(ctx, list); err != nil {
		return nil, err
	}
	return s.mounts(snap.Kind, snap.ID, list), nil
}

// Commit turns an active snapshot into a committed one.
func (s *Snapshotter) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	labels, err := labelsOf(opts)
	if err != nil {
		return err
	}
	var id string
	if err := s.view(ctx, func(ctx context.Context) (err error) {
		id, _, _, err = storage.GetInfo(ctx, key)
		return err
	}); err != nil {
		return err
	}
	usage, err := s.measure(ctx, id)
	if err != nil {
		return err
	}
	return s.change(ctx, func(ctx context.Context) error {
		_, err := storage.CommitActive(ctx, key, name, usage, snapshots.WithLabels(labels))
		return err
	})
}

// Remove removes a snapshot without children. The next Cleanup removes its directory or
// mount.
func (s *Snapshotter) Remove(ctx context.Context, key string) error {
	return s.change(ctx, func(ctx context.Context) error {
		if _, _, err := storage.Remove(ctx, key); err != nil {
			return fmt.Errorf("remove snapshot: %w", err)
		}
		return nil
	})
}

// Cleanup removes directories and mounts without a snapshot.
func (s *Snapshotter) Cleanup(ctx context.Context) error {
	var orphans []string
	// No snapshot can be made during this transaction.
	if err := s.change(ctx, func(ctx context.Context) error {
		ids, err := storage.IDMap(ctx)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		entries, err := os.ReadDir(s.snapshotsDir())
		if err != nil {
			return err
		}
		for _, e := range entries {
			if _, ok := ids[e.Name()]; ok {
				continue
			}
			// Another snapshot may get the id while this directory is being removed.
			orphan := filepath.Join(s.snapshotsDir(), orphanPrefix+rand.Text())
			if err := beneath.Move(filepath.Join(s.snapshotsDir(), e.Name()), orphan, beneath.Volatile); err != nil {
				return err
			}
			orphans = append(orphans, orphan)
		}
		return nil
	}); err != nil {
		return err
	}
	var errs []error
	for _, dir := range orphans {
		errs = append(errs, os.RemoveAll(dir))
	}
	errs = append(errs, s.layers.sweep(ctx))
	return errors.Join(errs...)
}

// wanted returns the trees of all lazy snapshots.
func (s *Snapshotter) wanted(ctx context.Context) ([]object.Digest, error) {
	var trees []object.Digest
	err := s.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if text := info.Labels[treeLabel]; text != "" {
			d, err := object.ParseDigest(text)
			if err != nil {
				return fmt.Errorf("snapshot %q: %w", info.Name, err)
			}
			if !slices.Contains(trees, d) {
				trees = append(trees, d)
			}
		}
		return nil
	})
	if errdefs.IsNotFound(err) {
		err = nil // there has been no snapshot yet
	}
	return trees, err
}

// owner is the owner of a directory. The root of a container has the owner of the layer
// below.
type owner struct{ uid, gid int }

func ownerOf(dir string) (*owner, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return &owner{int(st.Uid), int(st.Gid)}, nil
}
