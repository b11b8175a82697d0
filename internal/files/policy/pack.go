package policy

import (
	"context"
	"errors"
)

// Packer replaces a directory by a mount of a tree in a store.
type Packer interface {
	// Pack packs the directory at a path. If the directory does not have the given device
	// and inode, the error is ErrChanged. Pack may be killed at any moment and called again
	// with the same arguments.
	Pack(ctx context.Context, dir string, device, inode int64, store, as string) (tree string, err error)
}

// ErrChanged is the error of a Packer for a directory that changed since the scan.
var ErrChanged error = skipChanged

// pack packs a directory.
func (x *runner) pack(ctx context.Context, a *Action) error {
	if x.o.Packer == nil {
		x.settle(a, errors.New("packing is not available"), Event{})
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
