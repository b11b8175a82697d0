package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"premix/internal/cvmfs"
	"premix/internal/lazyfs"
	"premix/internal/store/object"
	"premix/internal/store/tree"
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
	// Pin is the content that is shown, and never changes. nil means the newest revision,
	// which the mount follows or, at a directory of the node's choice, from which the node
	// takes a Pin.
	Pin *cvmfs.Pin `json:"pin,omitempty"`
}

// content returns a digest of everything that decides on the content of a pinned mount.
func (r *Repository) content() object.Digest {
	var b []byte
	b = fmt.Appendf(b, "premix repository 1\n%q %q %q %q\n", r.Name, r.Path, r.Pin.Catalog, r.Pin.Prefix)
	for _, name := range slices.Sorted(maps.Keys(r.Variables)) {
		b = fmt.Appendf(b, "%q %q\n", name, r.Variables[name])
	}
	return object.Sum(b)
}

// attachRepository mounts a repository at a directory of the node's choice, pinned to the
// content of its newest revision: the path of the directory contains a digest of it. Without a
// server that is the newest revision seen.
func (d *daemon) attachRepository(ctx context.Context, r MountRequest) (*mount, error) {
	note := ""
	if r.CVMFS.Pin == nil {
		live, err := d.openLive(ctx, "", entry{MountRequest: r}, false)
		if err != nil {
			return nil, explain(err)
		}
		pinned := *r.CVMFS
		pinned.Pin, err = live.Pin()
		note = live.Note()
		if err = errors.Join(err, live.Close()); err != nil {
			return nil, explain(err)
		}
		r.CVMFS = &pinned
	}
	m, err := d.attachAt(ctx, r, tree.Ref{Name: r.Ref, Digest: r.CVMFS.content()}, nil, note)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	m.wanted = true
	d.mu.Unlock()
	return m, nil
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
	return nil
}

// makeRepository mounts the repository of a registered mount. With again set it begins
// with the newest revision that was seen.
func (d *daemon) makeRepository(ctx context.Context, m *mount, again bool) error {
	m.work.Lock()
	defer m.work.Unlock()
	if m.entry.CVMFS.Pin != nil {
		d.mu.Lock()
		m.entry.Tree = m.entry.CVMFS.content()
		d.mu.Unlock()
	}
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

// openLive opens the repository of an entry; dir is the private directory of its mount, or ""
// if it is not to be mounted.
func (d *daemon) openLive(ctx context.Context, dir string, e entry, again bool) (*cvmfs.Live, error) {
	r := e.CVMFS
	var profiles []*cvmfs.Profile
	numbers := ""
	if dir != "" {
		var err error
		if profiles, err = d.readProfiles(e, again); err != nil {
			return nil, err
		}
		numbers = lazyfs.CatalogsPath(dir)
	}
	return cvmfs.OpenLive(ctx, cvmfs.LiveOptions{
		Options: cvmfs.Options{
			Name: r.Name, Servers: r.Servers, Proxies: r.Proxies, Keys: r.Keys, GeoAPI: r.GeoAPI, Seen: filepath.Join(d.config.Trust, "cvmfs"),
			AllowRollback: e.AllowRollback && !again, // it was for once
		},
		Path: r.Path, Objects: d.cache.Objects(), Numbers: numbers, Pin: r.Pin, Kept: again, Variables: r.Variables, Profiles: profiles,
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
