package snapshotter

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"premix/internal/image"
	"premix/internal/image/lazylayer"
	"premix/internal/kit/beneath"
	"premix/internal/kit/mountinfo"
	"premix/internal/node"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

const (
	// quietFor is how long origins that did not answer are not asked again: an image
	// has many layers.
	quietFor = time.Minute
	// mountsAtOnce limits the trees that are mounted again concurrently.
	mountsAtOnce = 4
)

// layers holds the trees of lazy snapshots. Their mounts belong to the node.
type layers struct {
	dir     string // directory of the mounts
	request func(ref string) node.MountRequest
	lookUp  time.Duration
	record  string // directory for profiles; "" if none are recorded
	// described has the descriptions of layers that are mounted from registries: a file
	// with the name of the mount, and ".json".
	described string
	log       *slog.Logger
	wanted    func(context.Context) ([]object.Digest, error) // trees of all snapshots

	repair sync.Mutex // held while missing mounts are made again

	mu      sync.Mutex
	finding int       // running calls of find, and those whose snapshot is not committed yet: no sweep runs then
	owed    bool      // a sweep was postponed
	quiet   time.Time // no origin is asked before this time
	closed  bool
	sweeps  sync.WaitGroup // postponed sweeps that are running
}

// path returns the mount point of a tree.
func (l *layers) path(d object.Digest) string { return node.AttachedPath(l.dir, d) }

// errNoTree means that containerd has to pull a layer.
var errNoTree = errors.New("no tree for this layer")

// find mounts the tree of a layer with this chain id. The mount stays until release is
// called, and afterwards if a snapshot has it. All errors mean that the layer has to be
// pulled, and have been logged.
func (l *layers) find(ctx context.Context, chain string) (_ object.Digest, release func(), err error) {
	hex, ok := strings.CutPrefix(chain, "sha256:")
	if _, err := object.ParseDigest(hex); !ok || err != nil {
		return object.Digest{}, nil, errNoTree // an algorithm that stores do not use
	}
	l.mu.Lock()
	if time.Now().Before(l.quiet) {
		l.mu.Unlock()
		return object.Digest{}, nil, errNoTree
	}
	l.finding++
	l.mu.Unlock()
	defer func() {
		if err != nil {
			l.found()
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, l.lookUp, errSlow)
	defer cancel()
	m, err := l.attach(ctx, image.ChainRef(chain))
	if err == nil {
		if m.Note != "" {
			l.log.Warn(m.Note)
		}
		return m.Tree, l.found, nil
	}
	if node.IsKind(err, node.KindNoTree) {
		return object.Digest{}, nil, errNoTree
	}
	l.log.Warn("a layer is pulled, since its tree cannot be mounted", "chain", chain, "error", err)
	if node.IsKind(err, node.KindOrigin) || errors.Is(err, errSlow) {
		l.log.Warn("all layers are pulled for a while", "for", quietFor)
		l.mu.Lock()
		l.quiet = time.Now().Add(quietFor)
		l.mu.Unlock()
	}
	return object.Digest{}, nil, errNoTree
}

var errSlow = errors.New("no origin has answered in time")

// found ends a call of find.
func (l *layers) found() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finding--
	if l.finding > 0 || !l.owed || l.closed {
		return
	}
	l.owed = false
	l.sweeps.Go(func() {
		if err := l.sweep(context.Background()); err != nil {
			l.log.Error("unmount trees without a snapshot", "error", err)
		}
	})
}

// close waits for background work.
func (l *layers) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.sweeps.Wait()
}

// describedLayer is the content of a file with a description.
type describedLayer struct {
	Image string                `json:"image"` // as in the request to pull it
	Layer lazylayer.Description `json:"layer"`
}

func (l *layers) descriptionPath(d object.Digest) string {
	return filepath.Join(l.described, filepath.Base(l.path(d))+".json")
}

// findLayer is find for a layer that is mounted from a registry.
func (l *layers) findLayer(ctx context.Context, d *lazylayer.Description, img string, k authn.Keychain) (_ object.Digest, release func(), err error) {
	l.mu.Lock()
	l.finding++
	l.mu.Unlock()
	defer func() {
		if err != nil {
			l.found()
		}
	}()
	content, err := json.Marshal(describedLayer{img, *d})
	if err != nil {
		return object.Digest{}, nil, err
	}
	id := d.ID()
	if err := beneath.Replace(l.descriptionPath(id), 0o600, beneath.Durable, content); err != nil {
		return object.Digest{}, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, l.lookUp, errors.New("the registry has not answered in time"))
	defer cancel()
	if _, err := l.attachLayer(ctx, describedLayer{img, *d}, k); err != nil {
		return object.Digest{}, nil, err
	}
	return id, l.found, nil
}

// attachLayer mounts a layer from a registry.
func (l *layers) attachLayer(ctx context.Context, d describedLayer, k authn.Keychain) (*node.Mounted, error) {
	r := node.MountRequest{ID: rand.Text(), Ref: d.Image, Within: l.dir, Layer: &node.Layer{Description: d.Layer}}
	if repo, err := name.NewRepository(d.Layer.Repository); err == nil && k != nil {
		if found, ok := k.(*credentials).find(repo); ok {
			r.Layer.Credentials = &found
		}
	}
	return node.Attach(ctx, r)
}

func (l *layers) attach(ctx context.Context, ref tree.Ref) (*node.Mounted, error) {
	if !ref.Digest.IsZero() {
		content, err := os.ReadFile(l.descriptionPath(ref.Digest))
		var d describedLayer
		if err == nil {
			err = json.Unmarshal(content, &d)
		}
		if err == nil && d.Layer.ID() == ref.Digest {
			return l.attachLayer(ctx, d, nil)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	r := l.request(ref.String())
	r.Within = l.dir
	if l.record != "" && ref.Digest.IsZero() {
		r.Record = filepath.Join(l.record, path.Base(ref.Name)+".jsonl")
	}
	return node.Attach(ctx, r)
}

// ensure mounts missing trees again: after a reboot, after both processes of the node
// died, or after they were unmounted by another program.
func (l *layers) ensure(ctx context.Context, trees []object.Digest) error {
	missing, err := l.missing(ctx, trees)
	if err != nil || len(missing) == 0 {
		return err
	}
	l.repair.Lock()
	defer l.repair.Unlock()
	if missing, err = l.missing(ctx, missing); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(mountsAtOnce)
	for _, d := range missing {
		g.Go(func() error {
			err := l.unmount(ctx, l.path(d))
			if err == nil {
				_, err = l.attach(ctx, tree.Ref{Name: "layer", Digest: d})
			}
			if err != nil {
				return unavailable(fmt.Errorf("layer in tree %s: %w", d.Short(), err))
			}
			l.log.Info("mounted again", "tree", d.Short())
			return nil
		})
	}
	return g.Wait()
}

// unavailable makes err an error that containerd considers temporary.
func unavailable(err error) error { return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable) }

// missing returns the trees that are not mounted by a live node.
func (l *layers) missing(ctx context.Context, trees []object.Digest) ([]object.Digest, error) {
	if len(trees) == 0 {
		return nil, nil
	}
	c, err := node.ReadConfig()
	if err != nil {
		return nil, unavailable(err)
	}
	// A starting node mounts again the mounts of a dead one.
	client, _, err := node.Start(ctx, c)
	if err != nil {
		return nil, unavailable(err)
	}
	status, err := client.Status(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	table, err := mountinfo.Read()
	if err != nil {
		return nil, err
	}
	serves := map[string]object.Digest{}
	for _, m := range status.Mounts {
		if m.Error == "" {
			serves[m.Dir] = m.Tree
		}
	}
	var missing []object.Digest
	for _, d := range trees {
		path := l.path(d)
		if serves[path] != d || mountinfo.Top(table, path) == nil {
			missing = append(missing, d)
		}
	}
	return missing, nil
}

// unmount unmounts a directory below l.dir, whichever process has mounted it. Programs
// that use the mount continue to read.
func (l *layers) unmount(ctx context.Context, path string) error {
	if _, err := node.Umount(ctx, path, true); err != nil && !node.IsKind(err, node.KindNotMounted) {
		return err
	}
	for {
		table, err := mountinfo.Read()
		if err != nil {
			return err
		}
		if mountinfo.Top(table, path) == nil {
			return nil
		}
		// Nothing is left of the node, not even its journal.
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// sweep unmounts trees without a snapshot. It is postponed while find is running.
func (l *layers) sweep(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.finding > 0 {
		l.owed = true
		return nil
	}
	trees, err := l.wanted(ctx)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, d := range trees {
		keep[l.path(d)] = true
	}
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(l.dir, e.Name())
		if keep[path] {
			continue
		}
		err := l.unmount(ctx, path)
		if err == nil {
			err = os.Remove(path) // fails if it is not empty
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	files, err := os.ReadDir(l.described)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, e := range files {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); !ok || !keep[filepath.Join(l.dir, name)] {
			errs = append(errs, os.Remove(filepath.Join(l.described, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// usage returns the space of a tree in the node's cache.
func (l *layers) usage(ctx context.Context, text string) snapshots.Usage {
	d, err := object.ParseDigest(text)
	if err != nil {
		return snapshots.Usage{}
	}
	status, err := node.NewClient(node.Dir()).Status(ctx)
	if err != nil {
		return snapshots.Usage{} // without a node it is unknown, which is not an error
	}
	for _, m := range status.Mounts {
		if m.Dir == l.path(d) {
			return snapshots.Usage{Size: m.Present}
		}
	}
	return snapshots.Usage{}
}
