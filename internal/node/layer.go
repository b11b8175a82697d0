package node

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"

	"premix/internal/image/lazylayer"
	"premix/internal/kit/login"
	"premix/internal/lazyfs"
	"premix/internal/store/tree"
)

// Layer is the part of a request that names a layer of an image in a registry, to be
// mounted instead of a tree.
type Layer struct {
	lazylayer.Description
	// Credentials are for the repository. nil means the files of this user. They replace
	// the ones of earlier requests for the repository.
	Credentials *authn.AuthConfig `json:"credentials,omitempty"`
}

// logins holds the newest credentials for each repository of which layers are mounted.
type logins struct {
	mu   sync.Mutex // a leaf
	list map[string]authn.AuthConfig
}

func (l *logins) set(layer *Layer) {
	if layer.Credentials == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list == nil {
		l.list = map[string]authn.AuthConfig{}
	}
	l.list[layer.Repository] = *layer.Credentials
}

// keychain has the credentials for one repository.
type keychain struct {
	logins     *logins
	repository string
}

// Resolve implements authn.Keychain.
func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	k.logins.mu.Lock()
	c, ok := k.logins.list[k.repository]
	k.logins.mu.Unlock()
	if ok {
		return login.New(c, "containerd"), nil
	}
	return login.Keychain{}.Resolve(r)
}

// checkLayer refuses a request for a layer with options that only trees have.
func (r *MountRequest) checkLayer() error {
	if err := r.Layer.Check(); err != nil {
		return usage("describe the layer", "%v", err)
	}
	refused := map[string]bool{
		"an origin": len(r.Origins) > 0, "a proxy": len(r.Proxies) > 0, "a key": r.KeyFile != "", "a token": r.Credentials != "", "a CA": r.CAFile != "",
		"a profile": r.Profile != "" || r.Record != "", "fetching all": r.Eager || r.Background != 0, "a repository": r.CVMFS != nil,
	}
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		if refused[name] {
			return usage("leave it out", "a layer of a registry is mounted without %s", name)
		}
	}
	return nil
}

// attachLayer mounts a layer at a directory of the node's choice.
func (d *daemon) attachLayer(ctx context.Context, r MountRequest) (*mount, error) {
	d.logins.set(r.Layer)
	m, err := d.attachAt(ctx, r, tree.Ref{Name: r.Ref, Digest: r.Layer.ID()}, nil, "")
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	m.wanted = true
	d.mu.Unlock()
	return m, nil
}

// makeLayer mounts the layer of a registered mount.
func (d *daemon) makeLayer(ctx context.Context, m *mount) error {
	m.work.Lock()
	defer m.work.Unlock()
	d.mu.Lock()
	m.entry.Tree = m.entry.Layer.ID()
	d.mu.Unlock()
	b, err := d.acquire(m, 0, func(b *base) error { return d.makeLayerBase(ctx, b, m.entry) })
	if err != nil {
		return err
	}
	d.mu.Lock()
	m.entry.Size = b.layer.Size()
	d.mu.Unlock()
	return d.finish(m, b)
}

func (d *daemon) makeLayerBase(ctx context.Context, b *base, e entry) error {
	l, err := d.openLayer(ctx, e)
	if err != nil {
		return explain(err)
	}
	o := d.options(b, e)
	o.NoFile = "it is a layer of a registry"
	fail := func(err error) error {
		d.supervisorConn.drop(b.name)
		return errors.Join(explain(err), l.Close(), d.sweep(b.name))
	}
	if err := os.MkdirAll(o.Dir, 0o711); err != nil {
		return fail(err)
	}
	if b.m, err = lazyfs.New(ctx, l, o); err != nil {
		return fail(err)
	}
	b.layer = l
	return nil
}

func (d *daemon) openLayer(ctx context.Context, e entry) (*lazylayer.Layer, error) {
	return lazylayer.Open(ctx, lazylayer.Options{
		Description: e.Layer.Description, Objects: d.cache.Objects(), Keychain: keychain{&d.logins, e.Layer.Repository},
		Log: func(err error) { d.log.Warn("a layer of a registry", "ref", e.Ref, "error", err) },
	})
}

// reviveLayer takes over the base of a layer.
func (d *daemon) reviveLayer(b *base, e entry, k kept) (err error) {
	ctx, cancel := context.WithTimeout(d.ctx, min(d.config.Timeout, reviveWithin))
	defer cancel()
	d.logins.set(e.Layer)
	if b.layer, err = d.openLayer(ctx, e); err != nil {
		return err
	}
	if b.layer.Size() != e.Size {
		return errors.Join(errors.New("the layer has another size than the one that is mounted"), b.layer.Close())
	}
	o := d.options(b, e)
	o.BDI = e.BDI
	if b.m, err = lazyfs.Resume(b.layer, e.InUse, e.Reason, k.fd, k.state, o); err != nil {
		return errors.Join(err, b.layer.Close())
	}
	return nil
}

// describeLayer adds the state of a mounted layer to a status.
func (m *Mounted) describeLayer(l *lazylayer.Layer) (last error) {
	m.Total, m.Present, m.Misses, m.Fetched = l.Size(), l.Present(), l.Lacked(), l.Fetched()
	return l.LastError()
}
