package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"premix/internal/cvmfs"
	"premix/internal/image"
	"premix/internal/kit/units"
	"premix/internal/store"
	"premix/internal/store/tree"
)

// addedRow is the output of image add.
type addedRow struct {
	Ref       string        `json:"ref"`
	Image     string        `json:"image"` // digest of the record, which identifies the whole image
	Root      string        `json:"root"`  // tree
	Config    string        `json:"config"`
	Platform  string        `json:"platform"`
	Layers    []image.Layer `json:"layers"`
	Serial    int64         `json:"serial"`
	Unchanged bool          `json:"unchanged"` // the tag already named this image
	Unpacked  int           `json:"unpacked"`  // layers that the store did not have
	Written   int64         `json:"written"`   // bytes of new objects
	Seconds   float64       `json:"seconds"`
}

func (a *app) imageAdd(o *storeFlags) *cobra.Command {
	var opt image.Options
	var maxBytes memoryFlag
	var noSync bool
	repository := &cvmfsFlags{}
	cmd := &cobra.Command{
		Use:   "add SOURCE [NAME:TAG]",
		Short: "Add an image, unmodified, from a registry, an archive, a layout or a directory",
		Long: `Add an image under the name NAME:TAG, or its own name. SOURCE is one of

  oci:DIR, oci:DIR:NAME, oci:DIR@DIGEST   an OCI layout, as skopeo and buildah write it
  docker-archive:FILE[:NAME:TAG]          an archive of docker save
  docker://REGISTRY/NAME:TAG              an image in a registry; docker:// is optional
  dir:DIR, ./DIR, /DIR                    an unpacked root
  cvmfs://REPOSITORY/PATH                 an unpacked root in a repository of CVMFS

Layers become trees of their own, unpacked as containerd unpacks them; those that the
store has are not unpacked again. All digests are verified before a tag changes.
Credentials for registries come from docker login or podman login. A root from a
repository is verified as by premix store import, whose flags it takes; like any root it
has no configuration.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return arguments("SOURCE")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			far := strings.HasPrefix(args[0], "cvmfs:")
			if !far {
				if err := repository.refuse(cmd, "allow-rollback"); err != nil {
					return err
				}
			}
			var ref *tree.Ref
			if len(args) == 2 {
				r, err := reference(args[1])
				if err != nil {
					return err
				}
				ref = &r
			}
			if far && ref == nil {
				return &usageError{errors.New("a root in a repository has no name of its own"), "give a name: premix image add " + args[0] + " NAME:TAG"}
			}
			s, err := o.openWith(store.Options{Home: store.Home(), Unsynced: noSync})
			if err != nil {
				return err
			}
			if opt.Key, err = s.Key(o.key); err != nil {
				return err
			}
			opt.MaxBytes, opt.Progress = int64(maxBytes), &image.Progress{}
			ctx, done := storeContext()
			defer done()
			mirror := &cvmfs.Progress{}
			stop := sync.OnceFunc(a.bar(func() string {
				if far && opt.Progress.Layers.Load() == 0 {
					return mirrorLine(mirror)
				}
				return addLine(opt.Progress)
			}))
			defer stop()
			source := args[0]
			if far {
				w, err := s.Begin()
				if err != nil {
					return err
				}
				defer w.Close()
				dir, _, err := repository.mirror(ctx, source, w, mirror)
				if err != nil {
					return err
				}
				source = "dir:" + dir
			}
			added, err := image.Add(ctx, s, source, ref, opt)
			stop()
			if err != nil {
				return err
			}
			r := added.Record
			row := addedRow{
				Ref: added.Ref.String(), Image: added.Digest.String(), Root: r.Root.String(), Config: r.Config, Platform: platformOf(&r),
				Layers: r.Layers, Serial: added.Serial, Unchanged: added.Unchanged, Unpacked: added.Unpacked, Written: added.Written, Seconds: added.Took.Seconds(),
			}
			if a.json {
				return a.printJSON(row)
			}
			what := fmt.Sprintf("serial %d", row.Serial)
			if row.Unchanged {
				what += ", as before"
			}
			_, err = fmt.Fprintf(a.stdout, "%s is image %s (%s)\n%s, %d layers, %d of them new; root %s; %s written; %.1f s\n",
				row.Ref, row.Image, what, row.Platform, len(row.Layers), row.Unpacked, row.Root[:12], units.Size(row.Written), row.Seconds)
			return err
		},
	}
	repository.mirrored(cmd)
	f := cmd.Flags()
	f.StringVar(&opt.Platform, "platform", "", "platform of the image, as in linux/arm64 (default: this machine's)")
	f.Var(&maxBytes, "max-bytes", "refuse an image that unpacks to more (default 256G)")
	f.Int64Var(&opt.MaxEntries, "max-entries", image.DefaultEntries, "refuse an image with more files, directories and links")
	f.BoolVar(&noSync, "no-sync", false, "do not wait for the disk: verify the store after a power failure")
	return cmd
}

func platformOf(r *image.Record) string {
	p := r.OS + "/" + r.Architecture
	if r.Variant != "" {
		p += "/" + r.Variant
	}
	return p
}

// addLine returns the progress of an add.
func addLine(p *image.Progress) string {
	done, all := p.DoneLayers.Load(), p.Layers.Load()
	if all == 0 {
		return "looking"
	}
	line := fmt.Sprintf("%s %d of %d layers", share(done, all), done, all)
	if n := p.Fetched.Load(); n > 0 {
		line += ", " + units.Size(n) + " fetched"
	}
	return line
}
