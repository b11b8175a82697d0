package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/testkit/netrelay"
)

// contender is one way to have a tree on a node.
type contender interface {
	name() string
	// prepare makes the files that the origin serves, once. profile is empty, or the name
	// of a start whose profile is used, see lab.touched.
	prepare(ctx context.Context, t tree, profile string) error
	// open prepares a mount of the tree, with empty caches of the contender. It starts
	// the daemons, which run on a node before any mount, and returns when they are ready.
	open(ctx context.Context, p place) (shown, error)
}

// place is the tree of a mount and its place.
type place struct {
	tree    tree
	profile string
	client  *netrelay.Host // nil: this machine
	origin  string         // URL
	scratch string         // an empty directory
}

// shown is a tree that is ready to be mounted.
type shown interface {
	// mount mounts the tree and returns its directory when it is usable.
	mount(ctx context.Context) (string, error)
	// close ends the mount, and all processes.
	close() error
}

// contenders returns the selected contenders, by default all that are installed.
func (l *lab) contenders(ctx context.Context, o *options) ([]contender, error) {
	selected := strings.FieldsFunc(o.contenders, comma)
	wanted := func(name string) bool { return len(selected) == 0 || slices.Contains(selected, name) }
	var all []contender
	for _, c := range []struct {
		name string
		make func() (contender, error)
	}{
		{"native", func() (contender, error) { return native{}, nil }},
		{"overlayfs", func() (contender, error) { return overlayfs{}, nil }},
		{"erofs", func() (contender, error) { return newErofs(l) }},
		{"pull", func() (contender, error) { return &pull{lab: l}, nil }},
		{"premix", func() (contender, error) { return newPremix(l, o.premix, "premix") }},
		{"premix-other", func() (contender, error) { return newPremix(l, o.other, "premix-other") }},
		{"premix-fuse", func() (contender, error) { return newPremix(l, o.premix, "premix-fuse") }},
		{"stargz", func() (contender, error) { return newStargz(ctx, l) }},
		{"nydus", func() (contender, error) { return newNydus(l, o.nydus) }},
	} {
		if !wanted(c.name) || c.name == "premix-other" && o.other == "" {
			continue
		}
		made, err := c.make()
		if err != nil {
			l.Log("%s does not take part: %v", c.name, err)
			continue
		}
		all = append(all, made)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no contender takes part")
	}
	return all, nil
}

// unmount ends a mount; it detaches a busy one.
func unmount(dir string) error {
	if err := unix.Unmount(dir, 0); err == nil || err == unix.EINVAL {
		return nil // EINVAL: not a mount point, umount(2)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}
