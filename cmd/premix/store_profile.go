package main

import (
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/kit/units"
	"premix/internal/store"
	"premix/internal/store/tree"
)

// profileRow is a profile in the output of premix store profile.
type profileRow struct {
	Name    string    `json:"name"`
	Tree    string    `json:"tree"`
	Chunks  int       `json:"chunks"` // in order of first touch
	Bundles int       `json:"bundles"`
	Bytes   int64     `json:"bytes"` // of the bundles
	Time    time.Time `json:"time"`
}

func (a *app) storeProfile(o *storeFlags) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "profile NAME [FILE]",
		Short: "Publish a recorded profile of a tree, or list its profiles",
		Long: `Publish a profile of a tree, as premix mount --record FILE wrote it: the order in which
a start touched the tree. The chunks are also stored in bundles, so that a mount that
follows the profile needs few requests. Without FILE the tree's profiles are listed.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return arguments("NAME")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := o.open()
			if err != nil {
				return err
			}
			r, err := resolve(s, args[0])
			if err != nil {
				return err
			}
			if len(args) == 2 {
				if name == "" {
					return &usageError{errors.New("--name is missing"), "name the profile after the recorded start: --name start"}
				}
				if err := publishProfile(s, r, args[1], name, o.key); err != nil {
					return err
				}
			}
			names, err := s.Profiles(r.Tree)
			if err != nil {
				return err
			}
			rows := []profileRow{}
			for _, n := range names {
				if name != "" && n != name {
					continue
				}
				rec, p, err := s.Profile(r.Tree, n)
				if err != nil {
					return err
				}
				row := profileRow{Name: n, Tree: r.Tree.String(), Chunks: len(p.Parts), Bundles: len(p.Bundles), Time: rec.Time}
				for _, b := range p.Bundles {
					row.Bytes += b.Size
				}
				rows = append(rows, row)
			}
			if a.json {
				return a.printJSON(rows)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "PROFILE\tCHUNKS\tBUNDLES\tBYTES\tPUBLISHED")
			for _, r := range rows {
				fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", r.Name, r.Chunks, r.Bundles, units.Size(r.Bytes), r.Time.Local().Format(time.DateTime))
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the profile")
	return cmd
}

func publishProfile(s *store.Store, r *tree.TagRecord, file, name, keyFile string) error {
	key, err := s.Key(keyFile)
	if err != nil {
		return err
	}
	m, err := s.Manifest(r.Tree)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return &usageError{err, "name a file that premix mount --record wrote"}
	}
	p, err := tree.ParseProfile(content, r.Tree, m.Chunks())
	if err != nil {
		return &usageError{fmt.Errorf("%s: %w", file, err), "record it on a mount of this tree: premix mount --record FILE " + r.Name + "@" + r.Tree.String() + " DIR"}
	}
	ctx, done := storeContext()
	defer done()
	_, err = s.PublishProfile(ctx, p, name, key)
	return err
}
