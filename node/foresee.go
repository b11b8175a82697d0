package node

import (
	"context"
	"crypto/rand"
	"os"
	"slices"
	"sync"
	"time"

	"premix/store/tree"
	"premix/store/trust"
)

// foreseen are mounts that nobody has asked for yet. The layers of an image are asked for
// one after the other, each when the one below it is there. Where the opening of one says
// which come next, they are mounted at the same time.
type foreseen struct {
	mu sync.Mutex // a leaf
	m  map[string]*foresight
}

// foresight is one of them.
type foresight struct {
	request MountRequest
	done    chan struct{} // closed when m and err are known
	m       *mount        // nil where it could not be had
}

// foreseenFor is how long a mount that was foreseen waits for somebody who wants it.
const foreseenFor = time.Minute

// key tells requests apart that could be answered by different mounts.
func (k *foreseen) key(r MountRequest, ref tree.Ref) string { return r.Within + "\x00" + ref.String() }

// sameSource tells whether two requests would get a tree from the same place, with the
// same trust, in the same way.
func sameSource(a, b MountRequest) bool {
	return slices.Equal(a.Origins, b.Origins) && slices.Equal(a.Proxies, b.Proxies) && a.KeyFile == b.KeyFile && a.Credentials == b.Credentials &&
		a.CAFile == b.CAFile && a.Profile == b.Profile && a.Backend == b.Backend && a.AllowRollback == b.AllowRollback && a.Namespace == b.Namespace &&
		a.Record == b.Record && a.Eager == b.Eager && a.Background == b.Background
}

// foresee begins to mount what comes after a tag, of which the opening is, for somebody
// who mounts images layer by layer.
func (d *daemon) foresee(r MountRequest, ref tree.Ref, o *trust.Opening) {
	if r.Within == "" || r.Record != "" || o == nil {
		return
	}
	for _, next := range o.Next(ref) {
		r := r
		r.ID, r.Ref, r.Dir = rand.Text(), next.String(), ""
		f := &foresight{request: r, done: make(chan struct{})}
		if !d.foreseen.add(d.foreseen.key(r, next), f) {
			continue
		}
		go func() {
			ctx, cancel := context.WithTimeout(d.ctx, d.config.Timeout)
			defer cancel()
			m, err := d.attachNow(ctx, r, next)
			if err != nil {
				d.log.Info("what an image might need next cannot be had", "ref", next.String(), "error", err)
			}
			f.m = m
			close(f.done)
			if sleep(d.ctx, foreseenFor) {
				d.foreseen.drop(d.foreseen.key(r, next), f)
				if m != nil && m.entry.ID == r.ID {
					d.endUnwanted(m)
				}
			}
		}()
	}
}

// add enters a foresight unless there is one.
func (k *foreseen) add(key string, f *foresight) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.m == nil {
		k.m = map[string]*foresight{}
	}
	if k.m[key] != nil {
		return false
	}
	k.m[key] = f
	return true
}

// drop forgets a foresight.
func (k *foreseen) drop(key string, f *foresight) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.m[key] == f {
		delete(k.m, key)
	}
}

// endUnwanted unmounts what nobody has asked for. Who asks at this very moment has it
// mounted again when he uses it, as after a reboot.
func (d *daemon) endUnwanted(m *mount) {
	d.mu.Lock()
	wanted := m.wanted
	d.mu.Unlock()
	if wanted {
		return
	}
	if _, err := d.umount(m.entry.Dir, false); err != nil {
		if !IsKind(err, KindNotMounted) {
			d.log.Info("a mount that nobody has asked for stays", "dir", m.entry.Dir, "error", err)
		}
		return
	}
	_ = os.Remove(m.entry.Dir) // somebody else may have mounted there again
}

// claim returns the mount that a request asks for if it was foreseen and is there. It
// waits for one that is about to be.
func (k *foreseen) claim(ctx context.Context, r MountRequest, ref tree.Ref) (*mount, error) {
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
