package database

import (
	"context"
	"path/filepath"

	"premix/internal/store"
	"premix/internal/store/tree"
)

// Publish publishes the local copy of a database as a tree and records that. Objects that
// the store has already, for example of an earlier version, are not written again.
func Publish(ctx context.Context, home, name string, s *store.Store, ref tree.Ref, o store.PublishOptions) (*store.Published, error) {
	r, unlock, err := lockChange(home, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p, err := s.Publish(ctx, r.Data, ref, o)
	if err != nil {
		return nil, err
	}
	r.Store, r.Ref, r.Tree = s.Dir(), ref.String(), p.Tree.String()
	return p, accessError(home, writeRecord(filepath.Join(home, name), r))
}
