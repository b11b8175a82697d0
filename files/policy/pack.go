package policy

import (
	"context"
	"errors"
)

// Packer turns a directory into a tree of a store that is mounted in its place.
type Packer interface {
	// Pack packs a directory. It may be killed at any moment, and called again with the
	// same arguments. aside is a name in the same directory that nobody else uses.
	Pack(ctx context.Context, dir, aside, store, as string) (tree string, err error)
}

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
		tree, err := x.o.Packer.Pack(ctx, string(a.Path), a.own(x.h.runName(), "-old"), r.Store, r.As)
		if ctx.Err() != nil && err != nil {
			return context.Cause(ctx)
		}
		x.settle(a, err, Event{Tree: tree})
	}
	return x.j.write()
}
