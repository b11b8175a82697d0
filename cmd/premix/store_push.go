package main

import (
	"github.com/spf13/cobra"

	"premix/internal/store/mirror"
)

func (a *app) storePush(s *storeFlags) *cobra.Command {
	var (
		reach reachFlags
		o     mirror.PushOptions
	)
	cmd := &cobra.Command{
		Use:   "push REF DEST",
		Short: "Copy a tree to a mirror: a directory or an OCI registry",
		Long: `Copy a tree, its profiles and its tag from the store --store to DEST, a directory or
oci://HOST/REPOSITORY, which becomes a mirror of the store: it has the same id, keys
and signatures. Objects that DEST has are not copied again. The tag changes last.

Credentials for a registry come from docker login or podman login, or from --token-file.

  premix store push --store /srv/store refs/bacteria:2026 oci://registry.example.org/lab/store`,
		Args: arguments("REF", "DEST"),
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := reference(args[0])
			if err != nil {
				return err
			}
			if o.From, err = s.open(); err != nil {
				return err
			}
			if o.Reach, err = reach.options(); err != nil {
				return err
			}
			o.Ref, o.Dest, o.Progress = ref, args[1], &mirror.Progress{}
			ctx, done := storeContext()
			defer done()
			stop := a.bar(func() string { return copiedLine(o.Progress) })
			c, err := mirror.Push(ctx, o)
			stop()
			if err != nil {
				return err
			}
			return a.printCopied(c)
		},
	}
	reach.register(cmd)
	cmd.Flags().BoolVar(&o.Rollback, "allow-rollback", false, "allow the tag to return to an older record")
	return cmd
}
