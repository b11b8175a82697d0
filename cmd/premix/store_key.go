package main

import (
	"github.com/spf13/cobra"
)

func (a *app) storeKey(o *storeFlags) *cobra.Command {
	var fresh bool
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Show a store's keys, or make a new one",
		Long: `Show a store's id, its public keys, and the place of the private key that signs.

With --new another private key is made, which signs from now on. Signatures of earlier
keys stay valid. To publish from another machine too, copy the private key's file
there.`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			s, err := o.open()
			if err != nil {
				return err
			}
			if fresh {
				if _, err := s.NewKey(o.key); err != nil {
					return err
				}
			}
			return a.showKeys(s, o.key)
		},
	}
	cmd.Flags().BoolVar(&fresh, "new", false, "make another key, which signs from now on")
	return cmd
}
