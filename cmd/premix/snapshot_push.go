package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"premix/internal/kit/units"
	"premix/internal/store"
)

func (a *app) snapshotPush(snapshots *string) *cobra.Command {
	var to storeFlags
	cmd := &cobra.Command{
		Use:   "push ID NAME[:TAG] --to STORE",
		Short: "Publish a snapshot as a tree",
		Long: `Publish a snapshot as a tree of a store, from which other nodes can pull it. It holds
the tool's memory, and so all data that the tool has read: every reader of the store can
read them.`,
		Args: arguments("ID", "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			if to.dir == "" {
				return &usageError{errors.New("--to is missing"), "name the directory of the store: --to DIR"}
			}
			ref, err := reference(args[1])
			if err != nil {
				return err
			}
			snap, err := find(*snapshots, args[0])
			if err != nil {
				return err
			}
			s, err := to.openWith(store.Options{Home: store.Home()})
			if err != nil {
				return err
			}
			key, err := s.Key(to.key)
			if err != nil {
				return err
			}
			// The directory is beside the snapshots, so that large files can be hard
			// links. A name that begins with a dot is not a snapshot.
			dir, err := os.MkdirTemp(filepath.Dir(snap.Dir), ".push-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			if err := snap.Export(dir); err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			opt := store.PublishOptions{Key: key, Progress: &store.Progress{}}
			stop := a.bar(func() string { return publishLine(opt.Progress) })
			p, err := s.Publish(ctx, dir, ref, opt)
			stop()
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"snapshot": snap.ID, "ref": p.Ref.String(), "tree": p.Tree, "serial": p.Serial, "bytes": p.Manifest.Bytes, "written": p.Written, "seconds": p.Took.Seconds()})
			}
			_, err = fmt.Fprintf(a.stdout, "snapshot %s is %s, tree %s: %s, %s new, %.1f s\n", snap.ID, p.Ref, p.Tree, units.Size(p.Manifest.Bytes), units.Size(p.Written), p.Took.Seconds())
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&to.dir, "to", "", "directory of the store to publish in")
	f.StringVar(&to.key, "key", "", "file with the store's private key (default: $PREMIX_HOME/keys)")
	return cmd
}
