package main

import (
	"github.com/spf13/cobra"
)

func (a *app) imageCommand() *cobra.Command {
	o := &storeFlags{}
	cmd := group(&cobra.Command{
		Use:   "image",
		Short: "Bring container images into a store",
		Long: `An image in a store is a few trees: one for each layer, which images share, and one for
the root that a container sees.

  premix image add --store /srv/store oci:./star-layout biodepot/star:2.7
  premix exec --store /srv/store biodepot/star:2.7 -- STAR --version`,
	})
	cmd.PersistentFlags().StringVar(&o.dir, "store", "", "the store's directory (default: $PREMIX_STORE)")
	cmd.PersistentFlags().StringVar(&o.key, "key", "", "file of the private key (default: $PREMIX_HOME/keys/ID.key)")
	cmd.AddCommand(a.imageAdd(o), a.imageLs(o), a.imageRm(o), a.imageSync(o))
	return cmd
}
