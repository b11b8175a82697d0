package policy

import (
	"context"
	"errors"
)

// Packer turns a directory into a tree of a store that is mounted in its place.
type Packer interface {
	// Pack packs the directory at a path, if it is the one with the given device and
	// inode; otherwise the error is ErrChanged. It may be killed at any moment, and
	// called again with the same arguments.
	Pack(ctx context.Context, dir string, device, inode int64, store, as string) (tree string, err error)
}

// ErrChanged is the error of a Packer for a directory that is not what was scanned.
var ErrChanged error = skipChanged

// pack packs a directory.
func (x *executor) pack(ctx context.Context, a *Action) error {
	if x.o.Packer == nil {
		x.settle(a, errors.New("this premix cannot pack"), Event{})
		return x.j.write()
	}
	for _, r := range x.rules.Rules {
		if r.Name != a.Rule {
			continue
		}
		tree, err := x.o.Packer.Pack(ctx, string(a.Path), a.Device, a.Inode, r.Store, r.As)
		if ctx.Err() != nil && err != nil {
			return context.Cause(ctx)
		}
		x.settle(a, err, Event{Tree: tree})
	}
	return x.j.write()
}
