package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/kit/units"
	"premix/internal/store"
)

// publishedRow is the output of publish.
type publishedRow struct {
	Ref       string  `json:"ref"`
	Tree      string  `json:"tree"`
	Serial    int64   `json:"serial"`
	Unchanged bool    `json:"unchanged"` // the tag already named this tree
	Inodes    int64   `json:"inodes"`
	Bytes     int64   `json:"bytes"` // of all files
	Image     int64   `json:"image"` // bytes of the tree's image
	Chunks    int     `json:"chunks"`
	ReadFiles int64   `json:"read_files"` // files whose content was read
	ReadBytes int64   `json:"read_bytes"`
	Objects   int64   `json:"objects"` // new objects in the store
	Written   int64   `json:"written"` // bytes of the new objects
	Seconds   float64 `json:"seconds"`
}

func (a *app) storePublish(o *storeFlags) *cobra.Command {
	var reread, noSync bool
	cmd := &cobra.Command{
		Use:   "publish DIR NAME[:TAG]",
		Short: "Publish a directory as a tree",
		Long: `Publish DIR as a tree with the tag NAME:TAG (by default latest). All properties of the
files are kept: symlinks, hard links, owners, modes, times, extended attributes, ACLs,
holes, device nodes.

When it is published again, only changed files are read, and only missing objects are
written. The command may be interrupted at any moment; the same command starts again and
uses the objects that the store has by then. The tag changes last, at once.`,
		Args: arguments("DIR", "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := reference(args[1])
			if err != nil {
				return err
			}
			s, err := o.openWith(store.Options{Home: store.Home(), Unsynced: noSync})
			if err != nil {
				return err
			}
			key, err := s.Key(o.key)
			if err != nil {
				return err
			}
			opt := store.PublishOptions{Key: key, Reread: reread, Progress: &store.Progress{}}
			if opt.Cache, err = store.CacheDir(store.Home()); err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			stop := a.bar(func() string { return publishLine(opt.Progress) })
			p, err := s.Publish(ctx, args[0], ref, opt)
			stop()
			if err != nil {
				return err
			}
			row := publishedRow{
				Ref: p.Ref.String(), Tree: p.Tree.String(), Serial: p.Serial, Unchanged: p.Unchanged,
				Inodes: p.Manifest.Inodes, Bytes: p.Manifest.Bytes, Image: p.Manifest.Size, Chunks: p.Chunks,
				ReadFiles: p.ReadFiles, ReadBytes: p.ReadBytes, Objects: p.Objects, Written: p.Written, Seconds: p.Took.Seconds(),
			}
			if a.json {
				return a.printJSON(row)
			}
			what := fmt.Sprintf("serial %d", p.Serial)
			if p.Unchanged {
				what += ", as before"
			}
			_, err = fmt.Fprintf(a.stdout, "%s is tree %s (%s)\n%d entries, %s; read %d files, %s; %d new objects, %s; %.1f s\n",
				row.Ref, row.Tree, what, row.Inodes, units.Size(row.Bytes), row.ReadFiles, units.Size(row.ReadBytes), row.Objects, units.Size(row.Written), row.Seconds)
			return err
		},
	}
	cmd.Flags().BoolVar(&reread, "reread", false, "read every file, also files that look unchanged")
	cmd.Flags().BoolVar(&noSync, "no-sync", false, "do not wait for the disk: verify the store after a power failure")
	return cmd
}

// publishLine returns the progress of a publish.
func publishLine(p *store.Progress) string {
	files, bytes := p.Files.Load(), p.Bytes.Load()
	if files == 0 {
		return fmt.Sprintf("looking: %d entries", p.Entries.Load())
	}
	// DoneBytes counts a file when it is complete; ReadBytes grows sooner for a large one.
	done := min(bytes, max(p.DoneBytes.Load(), p.ReadBytes.Load()))
	return fmt.Sprintf("%s %d of %d files, %s of %s, %s new", share(done, bytes), p.DoneFiles.Load(), files, units.Size(done), units.Size(bytes), units.Size(p.Written.Load()))
}
