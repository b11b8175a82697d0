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
	GeoAPI  bool       `json:"geo_api,omitempty"` // order the servers by distance
	// Keys are files and directories of master keys, which are read again whenever the
	// repository is mounted again.
	Keys []string `json:"keys,omitempty"`
	// Variables are values for targets of symbolic links.
	Variables map[string]string `json:"variables,omitempty"`
	// Profiles are files with profiles to be fetched ahead, which are read again as Keys are.
	Profiles []string `json:"profiles,omitempty"`
}

// absolute makes the paths absolute.
func (r *Repository) absolute() (_ *Repository, err error) {
	to := *r
	to.Keys, to.Profiles = slices.Clone(r.Keys), slices.Clone(r.Profiles)
	for _, list := range [][]string{to.Keys, to.Profiles} {
		for i := range list {
			if list[i], err = filepath.Abs(list[i]); err != nil {
				return nil, err
			}
		}
	}
	return &to, nil
}

// checkRepository refuses a request for a repository with options that only trees have.
func (r *MountRequest) checkRepository() error {
	refused := map[string]bool{
		"--origin or --store": len(r.Origins) > 0, "--proxy": len(r.Proxies) > 0, "--key-file": r.KeyFile != "", "--token-file": r.Credentials != "", "--ca": r.CAFile != "",
		"a profile of a tree": r.Profile != "", "--eager": r.Eager, "--background": r.Background != 0, "--backend erofs": r.Backend == lazyfs.EROFS,
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
	b, err := d.acquire(m, 0, func(b *base) error { return d.makeRepositoryBase(ctx, b, m, again) })
	if err != nil {
		return err
	}
	return d.finish(m, b)
}

func (d *daemon) makeRepositoryBase(ctx context.Context, b *base, m *mount, again bool) error {
	e := m.entry
	o := d.options(b, e)
	o.Backend = lazyfs.FUSE
	if err := os.MkdirAll(o.Dir, 0o711); err != nil {
		return err
	}
	live, err := d.openLive(ctx, o.Dir, e, again)
	if err != nil {
		return errors.Join(explain(err), d.sweep(b.name))
	}
	fail := func(err error) error {
		d.supervisorConn.drop(b.name)
		return errors.Join(explain(err), live.Close(), d.sweep(b.name))
	}
	if e.Record != "" {
		r, err := recordRepository(e.Record, live, e.Step == stepAgain)
		if err != nil {
			return fail(err)
		}
		d.mu.Lock()
		m.recorded = r
		d.mu.Unlock()
	}
	if b.m, err = lazyfs.NewFiles(live, o); err != nil {
		return fail(err)
	}
	b.live = live
	return nil
}

// openLive opens the repository of an entry; dir is the private directory of its mount.
func (d *daemon) openLive(ctx context.Context, dir string, e entry, again bool) (*cvmfs.Live, error) {
	r := e.CVMFS
	profiles, err := d.readProfiles(e, again)
	if err != nil {
		return nil, err
	}
	return cvmfs.OpenLive(ctx, cvmfs.LiveOptions{
		Options: cvmfs.Options{
			Name: r.Name, Servers: r.Servers, Proxies: r.Proxies, Keys: r.Keys, GeoAPI: r.GeoAPI, Seen: filepath.Join(d.config.Trust, "cvmfs"),
			AllowRollback: e.AllowRollback && !again, // it was for once
		},
		Path: r.Path, Objects: d.cache.Objects(), Numbers: lazyfs.CatalogsPath(dir), Kept: again, Variables: r.Variables, Profiles: profiles,
		Log: func(event, reason string) {
			if event == cvmfs.EventRevision {
				d.log.Info(event, "ref", e.Ref, "reason", reason)
				return
			}
			d.log.Warn(event, "ref", e.Ref, "dir", e.Dir, "reason", reason)
		},
	})
}

// readProfiles reads the profiles of an entry. Only the first mount fails without them.
func (d *daemon) readProfiles(e entry, again bool) ([]*cvmfs.Profile, error) {
	var list []*cvmfs.Profile
	for _, file := range e.CVMFS.Profiles {
		p, err := cvmfs.ReadProfile(file, e.CVMFS.Name)
		switch {
		case err == nil:
			list = append(list, p)
		case !again:
			return nil, err
		default:
			d.log.Warn("a profile is not used", "ref", e.Ref, "dir", e.Dir, "error", err)
		}
	}
	return list, nil
}

// reviveWithin bounds the time in which a mounted repository is taken over, while other
// mounts wait.
const reviveWithin = 10 * time.Second

// reviveRepository takes over the base of a repository.
func (d *daemon) reviveRepository(b *base, e entry, k kept) (r *recording, err error) {
	ctx, cancel := context.WithTimeout(d.ctx, min(d.config.Timeout, reviveWithin))
	defer cancel()
	o := d.options(b, e)
	if b.live, err = d.openLive(ctx, o.Dir, e, true); err != nil {
		return nil, err
	}
	if e.Record != "" {
		if r, err = recordRepository(e.Record, b.live, true); err != nil {
			d.log.Error("continue a recording", "file", e.Record, "error", err)
		}
	}
	if b.m, err = lazyfs.ResumeFiles(b.live, k.fd, k.state, o); err != nil {
		return nil, errors.Join(err, b.live.Close())
	}
	return r, nil
}

// describeLive adds the state of a mounted repository to a status.
func (m *Mounted) describeLive(l *cvmfs.Live) (last error) {
	m.Revision, m.Profile = l.Manifest().Revision, l.Prefetched()
	if note := l.Note(); note != "" {
		m.Note = note
	}
	return l.LastError()
}
