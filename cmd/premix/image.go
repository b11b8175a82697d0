package main

import (
	"github.com/spf13/cobra"

	"premix/image"
	"premix/image/watch"
)

func (a *app) imageCommand() *cobra.Command {
	o := &storeFlags{}
	cmd := group("a command, as listed by premix image --help,", &cobra.Command{
		Use:   "image",
		Short: "Bring container images into a store",
		Long: `An image in a store is a handful of trees: one for each layer, which images share, and
one for the root that a container sees.

  premix image add --store /srv/store oci:./star-layout biodepot/star:2.7
  premix exec --store /srv/store biodepot/star:2.7 -- STAR --version`,
	})
	cmd.PersistentFlags().StringVar(&o.dir, "store", "", "the store's directory (default: $PREMIX_STORE)")
	cmd.PersistentFlags().StringVar(&o.key, "key", "", "file of the private key (default: $PREMIX_HOME/keys/ID.key)")
	cmd.AddCommand(a.imageAdd(o), a.imageLs(o), a.imageRm(o), a.imageSync(o))
	return cmd
}

// imageExit is the exit code of an error about an image.
func imageExit(k image.Kind) int {
	switch k {
	case image.Unavailable:
		return exitUnavailable
	case image.Damaged:
		return exitFailed
	case image.Unreachable:
		return exitOrigin
	case image.Disk:
		return exitDirectory
	}
	return exitUsage
}

// syncExit is the exit code of a round that did not get all that it should.
func syncExit(e *watch.FailedError) int {
	if e.Unreachable {
		return exitOrigin
	}
	return exitFailed
}
