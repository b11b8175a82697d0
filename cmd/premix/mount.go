package main

import (
	"crypto/rand"
	"fmt"

	"github.com/spf13/cobra"

	"premix/lazyfs"
	"premix/node"
)

func (a *app) mountCommand() *cobra.Command {
	var (
		r          node.MountRequest
		stores     []string
		backend    = lazyfs.Auto
		background memoryFlag
	)
	cmd := &cobra.Command{
		Use:   "mount [--origin URL]... REF DIR",
		Short: "Mount a tree of a store",
		Long: `Mount a tree, and return when it is usable; what is read is fetched then, and
verified. REF is NAME[:TAG] or NAME@DIGEST, DIR an empty directory. The node, which
serves the mount, is started if it does not run.

  premix mount --origin https://example.org/store refs/bacteria:2026 /mnt/refs`,
		Args: arguments("REF", "DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, done := storeContext()
			defer done()
			r.ID, r.Ref, r.Background, r.Backend = rand.Text(), args[0], int64(background), backend
			r.Origins = append(r.Origins, stores...)
			m, err := node.Mount(ctx, r, args[1])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(m)
			}
			if m.Note != "" {
				fmt.Fprintf(a.stderr, "note: %s\n", m.Note)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&r.Origins, "origin", nil, "where to fetch from: http(s)://, oci://HOST/REPOSITORY or a directory; several are tried in order")
	f.StringArrayVar(&stores, "store", nil, "a store's directory: the same as --origin DIR")
	f.StringArrayVar(&r.Proxies, "proxy", nil, "reach origins through this proxy; several are tried in order, DIRECT is none")
	f.StringVar(&r.KeyFile, "key-file", "", "file with the store's public keys: nobody else is believed")
	f.StringVar(&r.Credentials, "token-file", "", "file with lines `machine HOST token TOKEN`, for origins and proxies that want credentials")
	f.StringVar(&r.CAFile, "ca", "", "file with certificates that are trusted besides the system's")
	f.StringVar(&r.Profile, "profile", "", "profile to fetch ahead, or none (default: start, if the store has it)")
	f.StringVar(&r.Record, "record", "", "write the order in which chunks are touched to this file")
	f.BoolVar(&r.Eager, "eager", false, "fetch all of the tree at once")
	f.Var(&background, "background", "fetch all of the tree at this rate, as in 20M, bytes a second")
	f.Var(&backend, "backend", "how the kernel reads: auto, erofs or fuse")
	f.BoolVar(&r.AllowRollback, "allow-rollback", false, "take a tag that is older than one that was seen")
	return cmd
}
