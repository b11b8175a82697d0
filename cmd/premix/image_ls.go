package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/image"
	"premix/internal/kit/units"
)

// imageRow is an image in the output of ls.
type imageRow struct {
	Name     string    `json:"name"`
	Tag      string    `json:"tag"`
	Image    string    `json:"image,omitempty"` // digest of the record
	Root     string    `json:"root,omitempty"`
	Platform string    `json:"platform,omitempty"`
	Layers   int       `json:"layers"`
	Inodes   int64     `json:"inodes"` // of the root
	Bytes    int64     `json:"bytes"`  // of its files
	Serial   int64     `json:"serial"`
	Time     time.Time `json:"time"`
	Damage   string    `json:"damage,omitempty"`
}

func (a *app) imageLs(o *storeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the images of a store",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			s, err := o.open()
			if err != nil {
				return err
			}
			list, err := image.List(s)
			if err != nil {
				return err
			}
			rows := []imageRow{}
			for _, l := range list {
				r := imageRow{Name: l.Ref.Name, Tag: l.Ref.Tag, Inodes: l.Inodes, Bytes: l.Bytes}
				if l.Tag != nil {
					r.Image, r.Serial, r.Time = l.Tag.Tree.String(), l.Tag.Serial, l.Tag.Time
				}
				if l.Image != nil {
					r.Root, r.Platform, r.Layers = l.Image.Root.String(), platformOf(&l.Image.Record), len(l.Image.Layers)
				}
				if l.Err != nil {
					r.Damage = l.Err.Error()
				}
				rows = append(rows, r)
			}
			if a.json {
				return a.printJSON(rows)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tIMAGE\tPLATFORM\tLAYERS\tENTRIES\tBYTES\tSERIAL\tADDED")
			for _, r := range rows {
				if r.Damage != "" {
					fmt.Fprintf(w, "%s:%s\tdamaged: %s\n", r.Name, r.Tag, r.Damage)
					continue
				}
				fmt.Fprintf(w, "%s:%s\t%s\t%s\t%d\t%d\t%s\t%d\t%s\n", r.Name, r.Tag, r.Image[:12], r.Platform, r.Layers, r.Inodes, units.Size(r.Bytes), r.Serial, r.Time.Local().Format(time.DateTime))
			}
			return w.Flush()
		},
	}
}
