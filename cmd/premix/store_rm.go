package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"premix/internal/image"
	"premix/internal/store/tree"
)

// untaggedRow is the output of store rm for each tag.
type untaggedRow struct {
	Ref string `json:"ref"`
}

func (a *app) storeRm(o *storeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME[:TAG]...",
		Short: "Remove tags of trees",
		Long: `Remove tags. The next premix store gc removes objects that no other tag needs. Their
histories stay, so that a tag that is made again continues its serial.

Nothing is removed if one of the tags does not exist, or belongs to an image: premix
image rm removes images.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return arguments("NAME")(cmd, args)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := o.open()
			if err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			var refs []tree.Ref
			for _, arg := range args {
				ref, err := reference(arg)
				if err != nil {
					return err
				}
				if slices.Contains(refs, ref) {
					return &usageError{fmt.Errorf("%s is named twice", ref), "name each tag once"}
				}
				if err := image.CheckLoose(s, ref); err != nil {
					return err
				}
				refs = append(refs, ref)
			}
			rows := []untaggedRow{}
			for _, ref := range refs {
				if _, err := s.Untag(ctx, ref); err != nil {
					return err
				}
				rows = append(rows, untaggedRow{ref.String()})
				if !a.json {
					fmt.Fprintf(a.stdout, "removed %s\n", ref)
				}
			}
			if a.json {
				return a.printJSON(rows)
			}
			return nil
		},
	}
}
