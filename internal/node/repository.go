package node

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"premix/internal/cvmfs"
	"premix/internal/lazyfs"
)

// Repository is the part of a request that names a repository of CVMFS to be mounted
// instead of a tree.
type Repository struct {
	Name    string     `json:"name"`
	Path    string     `json:"path,omitempty"` // of the mounted directory: "" or "/a/b"
	Servers []string   `json:"servers"`
	Proxies [][]string `json:"proxies,omitempty"` // groups
	// Keys are files and directories of master keys, which are read again whenever the
	// repository is mounted again.
	Keys []string `json:"keys,omitempty"`
	// Variables are values for targets of symbolic links.
	Variables map[string]string `json:"variables,omitempty"`
}

// absolute makes the paths absolute.
func (r *Repository) absolute() (_ *Repository, err error) {
	to := *r
	to.Keys = slices.Clone(r.Keys)
	for i := range to.Keys {
		if to.Keys[i], err = filepath.Abs(to.Keys[i]); err != nil {
			return nil, err
		}
	}
	return &to, nil
}

// checkRepository refuses a request for a repository with options that only trees have.
func (r *MountRequest) checkRepository() error {
	refused := map[string]bool{
		"--origin or --store": len(r.Origins) > 0, "--proxy": len(r.Proxies) > 0, "--key-file": r.KeyFile != "", "--token-file": r.Credentials != "", "--ca": r.CAFile != "",
		"--profile": r.Profile != "", "--record": r.Record != "", "--eager": r.Eager, "--background": r.Background != 0, "--backend erofs": r.Backend == lazyfs.EROFS,
	}
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		if refused[name] {
			return usage("leave it out, or import the directory with premix store import, and mount the tree", "a repository of CVMFS is mounted without %s", name)
		}
	}
	if r.Dir == "" {
		return usage("premix mount "+r.Ref+" DIR", "a repository of CVMFS is mounted only at a directory that is given")
	}
	return nil
}

// makeRepository mounts the repository of a registered mount. With again set it begins
// with the newest revision that was seen.
func (d *daemon) makeRepository(ctx context.Context, m *mount, again bool) error {
	m.work.Lock()
	defer m.work.Unlock()
	b, err := d.acquire(m, 0, func(b *base) error { return d.makeRepositoryBase(ctx, b, m.entry, again) })
	if err != nil {
		return err
	}
	return d.finish(m, b)
}

func (d *daemon) makeRepositoryBase(ctx context.Context, b *base, e entry, again bool) error {
	o := d.options(b, e)
	o.Backend = lazyfs.FUSE
	if err := os.MkdirAll(o.Dir, 0o711); err != nil {
		return err
	}
	live, err := d.openLive(ctx, o.Dir, e, again)
	if err != nil {
		return errors.Join(explain(err), d.sweep(b.name))
	}
	if b.m, err = lazyfs.NewFiles(live, o); err != nil {
		d.supervisorConn.drop(b.name)
		return errors.Join(explain(err), live.Close(), d.sweep(b.name))
	}
	b.live = live
	return nil
}

// openLive opens the repository of an entry; dir is the private directory of its mount.
func (d *daemon) openLive(ctx context.Context, dir string, e entry, again bool) (*cvmfs.Live, error) {
	r := e.CVMFS
	return cvmfs.OpenLive(ctx, cvmfs.LiveOptions{
		Options: cvmfs.Options{
			Name: r.Name, Servers: r.Servers, Proxies: r.Proxies, Keys: r.Keys, Seen: filepath.Join(d.config.Trust, "cvmfs"),
			AllowRollback: e.AllowRollback && !again, // it was for once
		},
		Path: r.Path, Objects: d.cache.Objects(), Numbers: lazyfs.CatalogsPath(dir), Kept: again, Variables: r.Variables,
		Log: func(event, reason string) {
			if event == cvmfs.EventRevision {
				d.log.Info(event, "ref", e.Ref, "reason", reason)
				return
			}
			d.log.Warn(event, "ref", e.Ref, "dir", e.Dir, "reason", reason)
		},
	})
}

// reviveWithin bounds the time in which a mounted repository is taken over, while other
// mounts wait.
const reviveWithin = 10 * time.Second

// reviveRepository takes over the base of a repository.
func (d *daemon) reviveRepository(b *base, e entry, k kept) (err error) {
	ctx, cancel := context.WithTimeout(d.ctx, min(d.config.Timeout, reviveWithin))
	defer cancel()
	o := d.options(b, e)
	if b.live, err = d.openLive(ctx, o.Dir, e, true); err != nil {
		return err
	}
	if b.m, err = lazyfs.ResumeFiles(b.live, k.fd, k.state, o); err != nil {
		return errors.Join(err, b.live.Close())
	}
	return nil
}

// describeLive adds the state of a mounted repository to a status.
func (m *Mounted) describeLive(l *cvmfs.Live) (last error) {
	m.Revision = l.Manifest().Revision
	if note := l.Note(); note != "" {
		m.Note = note
	}
	return l.LastError()
}
