package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"premix/internal/store/object"
	"premix/internal/store/tree"
	"premix/internal/store/trust"
)

// attachedDir returns the directory of trees that are mounted without a directory
// chosen by the user. The path of each contains its digest, and is the same on every
// node of root: so anything that depends on the path, such as a command line or a
// snapshot, depends only on the content.
func attachedDir(dir string) string { return filepath.Join(dir, "at") }

// AttachedPath returns the absolute path at which [Attach] mounts a tree for a request
// with the given Within. The name is short, since the options of an overlay mount are
// limited to 4 KiB of paths.
func AttachedPath(within string, d object.Digest) string {
	return filepath.Join(within, d.String()[:16])
}

// Attach mounts a tree, unless it is mounted already, at a directory that the node
// chooses by the tree's digest: AttachedPath below r.Within, or below the node's own
// directory. A repository is mounted in the same way, by a digest of its content now; it
// does not follow new revisions. The mount stays until it is unmounted like any other. Like
// Mount, Attach starts the node.
func Attach(ctx context.Context, r MountRequest) (*Mounted, error) {
	r.Dir = ""
	return ask(ctx, r)
}

// attach answers a request for a mount at a directory of the node's choice. It uses a
// premount if there is one.
func (d *daemon) attach(ctx context.Context, r MountRequest, ref tree.Ref) (*mount, error) {
	m, err := d.premounts.claim(ctx, r, ref)
	if err == nil && (m == nil || !d.stands(m)) {
		m, err = d.attachNow(ctx, r, ref)
	}
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	m.wanted = true
	d.mu.Unlock()
	return m, nil
}

func (d *daemon) attachNow(ctx context.Context, r MountRequest, ref tree.Ref) (*mount, error) {
	src, err := d.source(r)
	if err != nil {
		return nil, err
	}
	digest, note, err := d.resolve(ctx, src, ref, r)
	if err != nil {
		return nil, err
	}
	d.premountNext(r, ref, src.bootstrap)
	if err := src.kept(ctx); err != nil {
		return nil, err
	}
	// The tag was resolved to this tree: it may change before the mount.
	return d.attachAt(ctx, r, tree.Ref{Name: ref.Name, Digest: digest}, src.bootstrap, note)
}

// attachAt mounts a tree, a layer or a pinned repository by its digest.
func (d *daemon) attachAt(ctx context.Context, r MountRequest, ref tree.Ref, bootstrap *trust.Bootstrap, note string) (*mount, error) {
	digest := ref.Digest
	r.Dir = filepath.Join(attachedDir(d.config.Dir), digest.String())
	if r.Within != "" {
		r.Dir = AttachedPath(r.Within, digest)
	}
	if r.Own {
		r.Dir += "-own"
	}
	if r.Layer == nil && r.CVMFS == nil {
		r.Ref = ref.String()
	}
	for {
		if m := d.at(r.Dir); m != nil {
			select {
			case <-m.done:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			d.mu.Lock()
			state, err := m.state, m.err
			d.mu.Unlock()
			switch state {
			case stateMounted:
				if m.entry.Tree != digest {
					return nil, usage("premix umount "+r.Dir, "%s is a mount of %s", r.Dir, m.entry.Ref)
				}
				return m, nil
			case stateFailed:
				return nil, err
			}
			// It is being unmounted.
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			continue
		}
		if err := os.MkdirAll(r.Dir, 0o755); err != nil {
			return nil, dirError(d.config.Dir, err)
		}
		m, err := d.mountWith(ctx, r, bootstrap)
		var e *Error
		if errors.As(err, &e) && e.Kind == KindUsage && d.at(r.Dir) != nil {
			continue // another request attached it at the same time
		}
		if err == nil && note != "" {
			d.mu.Lock()
			m.note = note
			d.mu.Unlock()
		}
		return m, err
	}
}

// stands reports whether a mount still exists.
func (d *daemon) stands(m *mount) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return m.state == stateMounted && d.mounts[m.entry.ID] == m
}

// at returns the mount at a directory, or nil.
func (d *daemon) at(dir string) *mount {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.mounts {
		if m.entry.Dir == dir {
			return m
		}
	}
	return nil
}
