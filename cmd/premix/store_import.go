package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"premix/internal/cvmfs"
	"premix/internal/kit/units"
	"premix/internal/store"
)

// importedRow is the output of import.
type importedRow struct {
	Ref        string  `json:"ref"`
	Tree       string  `json:"tree"`
	Serial     int64   `json:"serial"`
	Unchanged  bool    `json:"unchanged"` // the tag already named this tree
	Repository string  `json:"repository"`
	Revision   uint64  `json:"revision"`
	Root       string  `json:"root"` // hash of the root catalog
	Inodes     int64   `json:"inodes"`
	Bytes      int64   `json:"bytes"`
	Objects    int64   `json:"objects"` // new objects in the store
	Written    int64   `json:"written"`
	Seconds    float64 `json:"seconds"`
}

func (a *app) storeImport(o *storeFlags) *cobra.Command {
	f := &cvmfsFlags{}
	cmd := &cobra.Command{
		Use:   "import cvmfs://REPOSITORY/PATH NAME[:TAG]",
		Short: "Publish a directory of a CVMFS repository as a tree",
		Long: `Copy a directory of a repository of CVMFS, in its newest revision, into the store as a
tree with the tag NAME:TAG (by default latest). The servers are not trusted: a master key
verifies the whitelist, and from there on everything is verified. An older revision than
one that was seen before is refused.

Servers, proxies and master keys are those of the client's configuration (--config), or
of the flags. Variables in symlinks get their values from the environment.`,
		Args: arguments("cvmfs://REPOSITORY/PATH", "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := reference(args[1])
			if err != nil {
				return err
			}
			s, err := o.openWith(store.Options{Home: store.Home()})
			if err != nil {
				return err
			}
			key, err := s.Key(o.key)
			if err != nil {
				return err
			}
			w, err := s.Begin()
			if err != nil {
				return err
			}
			defer w.Close()
			ctx, done := storeContext()
			defer done()
			mirror, publish := &cvmfs.Progress{}, store.PublishOptions{Key: key, Progress: &store.Progress{}}
			stop := sync.OnceFunc(a.bar(func() string {
				if publish.Progress.Entries.Load() > 0 {
					return publishLine(publish.Progress)
				}
				return mirrorLine(mirror)
			}))
			defer stop()
			dir, m, err := f.mirror(ctx, args[0], w, mirror)
			if err != nil {
				return err
			}
			p, err := s.Publish(ctx, dir, ref, publish)
			stop()
			if err != nil {
				return err
			}
			row := importedRow{
				Ref: p.Ref.String(), Tree: p.Tree.String(), Serial: p.Serial, Unchanged: p.Unchanged, Repository: m.Name, Revision: m.Revision, Root: m.Root.String(),
				Inodes: p.Manifest.Inodes, Bytes: p.Manifest.Bytes, Objects: p.Objects, Written: p.Written, Seconds: p.Took.Seconds(),
			}
			if a.json {
				return a.printJSON(row)
			}
			_, err = fmt.Fprintf(a.stdout, "%s is tree %s (serial %d)\nrevision %d of %s: %d entries, %s; %d new objects, %s\n",
				row.Ref, row.Tree, row.Serial, row.Revision, m.Name, row.Inodes, units.Size(row.Bytes), row.Objects, units.Size(row.Written))
			return err
		},
	}
	f.mirrored(cmd)
	return cmd
}

// mirrored adds the flags of verbs that copy a directory of a repository.
func (f *cvmfsFlags) mirrored(cmd *cobra.Command) {
	f.register(cmd)
	cmd.Flags().BoolVar(&f.rollback, "allow-rollback", false, "accept an older revision of a repository than one seen before")
}

// mirror copies the directory of a repository with a URL into a scratch directory of a writer.
func (f *cvmfsFlags) mirror(ctx context.Context, url string, w *store.Writer, progress *cvmfs.Progress) (dir string, m cvmfs.Manifest, err error) {
	name, path, err := cvmfs.ParseURL(url)
	if err != nil {
		return "", m, err
	}
	opt, _, err := f.options(name)
	if err != nil {
		return "", m, err
	}
	if opt.Temp, err = w.Scratch(); err != nil {
		return "", m, err
	}
	if dir, err = w.Scratch(); err != nil {
		return "", m, err
	}
	m, err = cvmfs.MirrorTo(ctx, opt, path, dir, cvmfs.MirrorOptions{Variable: os.LookupEnv, Progress: progress})
	return dir, m, err
}

// mirrorLine returns the progress of a mirror.
func mirrorLine(p *cvmfs.Progress) string {
	return fmt.Sprintf("%d entries, %d of %d files, %s", p.Entries.Load(), p.Done.Load(), p.Files.Load(), units.Size(p.Bytes.Load()))
}
