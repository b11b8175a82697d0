package node

import (
	"context"
	"crypto/rand"
	"os"
	"slices"
	"sync"
	"time"

	"premix/internal/store/tree"
	"premix/internal/store/trust"
)

// premounts are mounts that were not requested yet. The layers of an image are
// requested one after the other, each when the one below it is mounted. If the bootstrap
// of a layer names the next ones, they are mounted at the same time.
type premounts struct {
	mu sync.Mutex // a leaf
	m  map[string]*premount
}

// premount is a mount that was not requested yet.
type premount struct {
	request MountRequest
	done    chan struct{} // closed when m and err are known
	m       *mount        // nil if it failed
}

// premountFor is how long a premount waits for a request.
const premountFor = time.Minute

// key returns a key that differs between requests that need different mounts.
func (k *premounts) key(r MountRequest, ref tree.Ref) string { return r.Within + "\x00" + ref.String() }

// sameSource reports whether two requests would get a tree from the same origins, with
// the same trust and the same options.
func sameSource(a, b MountRequest) bool {
	return slices.Equal(a.Origins, b.Origins) && slices.Equal(a.Proxies, b.Proxies) && a.KeyFile == b.KeyFile && a.Credentials == b.Credentials &&
		a.CAFile == b.CAFile && a.Profile == b.Profile && a.Backend == b.Backend && a.AllowRollback == b.AllowRollback && a.Namespace == b.Namespace &&
		a.Record == b.Record && a.Eager == b.Eager && a.Background == b.Background && a.Own == b.Own
}

// premountNext begins to mount the tags that follow ref according to its bootstrap, for a
// client that mounts images layer by layer.
func (d *daemon) premountNext(r MountRequest, ref tree.Ref, o *trust.Bootstrap) {
	if r.Within == "" || r.Record != "" || o == nil {
		return
	}
	for _, next := range o.Next(ref) {
		r := r
		r.ID, r.Ref, r.Dir = rand.Text(), next.String(), ""
		f := &premount{request: r, done: make(chan struct{})}
		if !d.premounts.add(d.premounts.key(r, next), f) {
			continue
		}
		go func() {
			ctx, cancel := context.WithTimeout(d.ctx, d.config.Timeout)
			defer cancel()
			m, err := d.attachNow(ctx, r, next)
			if err != nil {
				d.log.Info("the next layer of an image cannot be mounted", "ref", next.String(), "error", err)
			}
			f.m = m
			close(f.done)
			if sleep(d.ctx, premountFor) {
				d.premounts.drop(d.premounts.key(r, next), f)
				if m != nil && m.entry.ID == r.ID {
					d.endUnwanted(m)
				}
			}
		}()
	}
}

// add registers a premount unless there is one.
func (k *premounts) add(key string, f *premount) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.m == nil {
		k.m = map[string]*premount{}
	}
	if k.m[key] != nil {
		return false
	}
	k.m[key] = f
	return true
}

// drop removes a premount.
func (k *premounts) drop(key string, f *premount) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.m[key] == f {
		delete(k.m, key)
	}
}

// endUnwanted unmounts a premount that was not requested. If it is requested at this
// very moment, it is mounted again when it is used, as after a reboot.
func (d *daemon) endUnwanted(m *mount) {
	d.mu.Lock()
	wanted := m.wanted
	d.mu.Unlock()
	if wanted {
		return
	}
	if _, err := d.umount(m.entry.Dir, false); err != nil {
		if !IsKind(err, KindNotMounted) {
			d.log.Info("a mount that was not requested cannot be removed", "dir", m.entry.Dir, "error", err)
		}
		return
	}
	_ = os.Remove(m.entry.Dir) // fails if another mount has been made there
}

// claim returns the premount for a request, if there is one. It waits if the premount
// is in progress.
func (k *premounts) claim(ctx context.Context, r MountRequest, ref tree.Ref) (*mount, error) {
	key := k.key(r, ref)
	k.mu.Lock()
	f := k.m[key]
	if f == nil || !sameSource(f.request, r) {
		k.mu.Unlock()
		return nil, nil
	}
	delete(k.m, key)
	k.mu.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return f.m, nil
}
