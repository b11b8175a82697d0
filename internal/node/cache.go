package node

import (
	"context"
	"fmt"
	"strings"

	"premix/internal/store/cache"
	"premix/internal/store/object"
)

// CacheStatus describes the content of the cache, with the references under which trees
// are mounted.
type CacheStatus struct {
	cache.Status
	Refs map[string][]string `json:"refs"` // by digest
}

// CacheChange is the result of a cache command.
type CacheChange struct {
	Trees []object.Digest `json:"trees"`
}

func (d *daemon) cacheStatus() CacheStatus {
	s := CacheStatus{d.cache.Status(), map[string][]string{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.mounts {
		if m.entry.CVMFS != nil || m.entry.Layer != nil {
			continue
		}
		t := m.entry.Tree.String()
		s.Refs[t] = append(s.Refs[t], m.entry.Ref)
	}
	return s
}

// find returns the trees that match a request.
func (d *daemon) find(r TreeRequest) ([]object.Digest, error) {
	s := d.cacheStatus()
	var found []object.Digest
	for _, t := range s.Trees {
		name := t.Digest.String()
		named := r.All || len(r.Tree) >= 8 && strings.HasPrefix(name, r.Tree)
		for _, ref := range s.Refs[name] {
			named = named || ref == r.Tree
		}
		if named {
			found = append(found, t.Digest)
		}
	}
	const hint = "premix cache status lists trees; name one by 8 or more digits of its digest, or as it is mounted"
	switch {
	case len(found) == 0 && !r.All:
		return nil, usage(hint, "no tree %q is in the cache", r.Tree)
	case len(found) > 1 && !r.All:
		return nil, usage("give more digits", "%q stands for %d trees", r.Tree, len(found))
	}
	return found, nil
}

// each calls do for all trees that match a request. It returns the first error, but
// continues with the other trees.
func (d *daemon) each(r TreeRequest, do func(object.Digest) error) (*CacheChange, error) {
	list, err := d.find(r)
	if err != nil {
		return nil, err
	}
	done := &CacheChange{Trees: []object.Digest{}}
	var first error
	for _, t := range list {
		if err := do(t); err == nil {
			done.Trees = append(done.Trees, t)
		} else if first == nil {
			first = explain(err)
		}
	}
	return done, first
}

func (d *daemon) drop(_ context.Context, r TreeRequest) (*CacheChange, error) {
	done, err := d.each(r, d.cache.Drop)
	if r.All {
		d.cache.DropObjects()
	}
	return done, err
}

func (d *daemon) pin(ctx context.Context, r TreeRequest) (*CacheChange, error) {
	if r.RAM && d.config.RAM == "" {
		return nil, usage("set ram: in "+ConfigFile()+" to a directory on a tmpfs, and restart the node", "no directory in memory is configured for trees")
	}
	return d.each(r, func(t object.Digest) error { return d.cache.Pin(ctx, t, r.RAM) })
}

func (d *daemon) unpin(ctx context.Context, r TreeRequest) (*CacheChange, error) {
	return d.each(r, func(t object.Digest) error { return d.cache.Unpin(ctx, t) })
}

func (d *daemon) check(ctx context.Context) (*cache.CheckReport, error) {
	r, err := d.cache.Check(ctx)
	if err != nil {
		return nil, fmt.Errorf("check the cache: %w", err)
	}
	return &r, nil
}
