package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/image"
)

// removedRow is the output of image rm for each image.
type removedRow struct {
	Ref    string `json:"ref"`
	Layers int    `json:"layers"` // tags of layers that no image needs any more
}

func (a *app) imageRm(o *storeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME[:TAG]...",
		Short: "Remove images, and the layers that no other image needs",
		Long: `Remove the tags of images, and the tags of layers that no image needs any more. The next
premix store gc frees their space.`,
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
			rows := []removedRow{}
			for _, arg := range args {
				ref, err := reference(arg)
				if err != nil {
					return err
				}
				r, err := image.Remove(ctx, s, ref)
				if err != nil {
					return err
				}
				rows = append(rows, removedRow{r.Ref.String(), r.Layers})
				if !a.json {
					fmt.Fprintf(a.stdout, "removed %s\n", r.Ref)
				}
			}
			if a.json {
				return a.printJSON(rows)
			}
			return nil
		},
	}
}
