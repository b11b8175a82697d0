package main

import (
	"context"
	"os"
	"strings"

	"premix/internal/blast/database"
	"premix/internal/store"
	"premix/internal/store/tree"
)

// blastPublisher returns the publisher of a database, or nil if no store is named. It
// checks before the work starts that the store can be used.
func (a *app) blastPublisher(o *storeFlags, name, as string) (func(ctx context.Context, home string) error, error) {
	if o.dir == "" && os.Getenv("PREMIX_STORE") == "" {
		return nil, nil
	}
	s, err := o.open()
	if err != nil {
		return nil, err
	}
	opt := store.PublishOptions{Progress: &store.Progress{}}
	if opt.Key, err = s.Key(o.key); err != nil {
		return nil, err
	}
	if opt.Cache, err = store.CacheDir(store.Home()); err != nil {
		return nil, err
	}
	// Names of trees are in lower case.
	ref := tree.Ref{Name: "blast/" + strings.ToLower(name), Tag: "latest"}
	if as != "" {
		if ref, err = reference(as); err != nil {
			return nil, err
		}
	}
	if _, err := reference(ref.String()); err != nil {
		return nil, err
	}
	return func(ctx context.Context, home string) error {
		stop := a.bar(func() string { return publishLine(opt.Progress) })
		_, err := database.Publish(ctx, home, name, s, ref, opt)
		stop()
		return err
	}, nil
}
