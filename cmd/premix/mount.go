package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/kit/outputs"
	"premix/internal/lazyfs"
	"premix/internal/node"
)

func (a *app) mountCommand() *cobra.Command {
	var (
		wish       node.MountRequest
		from       treeFlags
		repository cvmfsFlags
		stores     []string
		backend    = lazyfs.Auto
		background memoryFlag
	)
	cmd := &cobra.Command{
		Use:   "mount [--origin URL]... REF DIR",
		Short: "Mount a tree of a store, or a repository of CVMFS",
		Long: `Mount a tree, and return when it is usable; reads fetch its content, and verify it.
REF is NAME[:TAG], NAME@DIGEST or cvmfs://REPOSITORY[/PATH]. DIR is an empty directory, whose
last part is made if it is missing. The node, which serves the mount, is started if it is
not running.

A repository of CVMFS, or a directory of one, is mounted by its URL. Its servers are not
trusted: a master key verifies everything, as in premix store import. The mount follows
new revisions. Servers, proxies, master keys and values of variables in symlinks are those
of the client's configuration (--config), or of the flags.

  premix mount --origin https://example.org/store refs/bacteria:2026 /mnt/refs
  premix mount cvmfs://data.galaxyproject.org/byhand /mnt/byhand`,
		Args: arguments("REF", "DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, done := storeContext()
			defer done()
			r := from.request(args[0])
			r.Record, r.Eager, r.AllowRollback = wish.Record, wish.Eager, wish.AllowRollback
			if strings.HasPrefix(args[0], "cvmfs:") {
				if err := repository.of(args[0], wish.Profile, &r); err != nil {
					return err
				}
			} else if err := repository.refuse(cmd); err != nil {
				return err
			} else {
				r.Profile = wish.Profile
			}
			r.Origins = append(r.Origins, stores...)
			r.Background, r.Backend = int64(background), backend
			m, err := node.Mount(ctx, r, args[1])
			if err != nil {
				return err
			}
			if r.CVMFS != nil {
				a.detail("revision %d, mounted by %s", m.Revision, m.Backend)
			} else {
				a.detail("tree %s, mounted by %s", m.Tree, m.Backend)
			}
			if m.Reason != "" {
				a.detail("not by a faster file system: %s", m.Reason)
			}
			if a.json {
				return a.printJSON(m)
			}
			if m.Note != "" {
				fmt.Fprintf(a.notes(), "note: %s\n", m.Note)
			}
			return nil
		},
	}
	f := cmd.Flags()
	from.register(cmd)
	repository.mounted(cmd)
	f.StringArrayVar(&stores, "store", nil, "a store's directory: the same as --origin DIR")
	f.StringVar(&wish.Profile, "profile", "", "profile to fetch ahead, or none: of a tree its `NAME` (default: start, if the store has it), of a repository a file (default: files of --config)")
	outputFlag(cmd, &wish.Record, "record", "", outputs.Profile, "write the order in which chunks, or files of a repository, are touched to this file")
	f.BoolVar(&wish.Eager, "eager", false, "fetch all of the tree at once")
	f.Var(&background, "background", "fetch all of the tree at this rate in bytes a second, as in 20M")
	f.Var(&backend, "backend", "file system that the kernel uses: auto, erofs or fuse")
	f.BoolVar(&wish.AllowRollback, "allow-rollback", false, "accept a tag, or a revision of a repository, that is older than a known one")
	return cmd
}
