package main

import (
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/image/snapshotter"
	"premix/internal/kit/owner"
	"premix/internal/node"
)

func (a *app) snapshotterCommand() *cobra.Command {
	var (
		t       treeFlags
		stores  []string
		address string
		o       snapshotter.Options
	)
	cmd := &cobra.Command{
		Use:   "snapshotter [--store DIR | --origin URL]",
		Short: "Serve the image layers of a store to containerd",
		Long: `Serve containerd as a snapshotter (a proxy plugin), in the foreground. Layers that
the store has are mounted, and containerd does not pull them; others it pulls and
unpacks as usual. It needs root.

  premix snapshotter --origin https://example.org/store

The config.toml of containerd names it:

  [proxy_plugins.premix]
    type = "snapshot"
    address = "/run/premix/snapshotter.sock"`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			t.origins = append(t.origins, stores...)
			c, err := node.ReadConfig()
			if err != nil {
				return err
			}
			// The running node may have been started with another configuration.
			if len(t.origins) == 0 {
				t.origins = c.Origins
			}
			if len(t.proxies) == 0 {
				t.proxies = c.Proxies
			}
			if len(t.origins) == 0 {
				return &usageError{errors.New("there is no origin for layers"), "give --origin URL or --store DIR, or set origins in " + node.ConfigFile()}
			}
			if o.Record != "" {
				if o.Record, err = filepath.Abs(o.Record); err != nil {
					return err
				}
				var foreign *owner.Error
				if err := owner.MkdirAll(o.Record, 0o755); errors.As(err, &foreign) {
					return err
				} else if err != nil {
					return &usageError{err, "give a directory with --record"}
				}
			}
			ctx, done := storeContext()
			defer done()
			o.Request = t.request
			o.Log = slog.New(slog.NewTextHandler(a.stderr, nil))
			return snapshotter.Run(ctx, o, address)
		},
	}
	t.register(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&stores, "store", nil, "a store's directory: the same as --origin DIR")
	f.StringVar(&address, "address", "/run/premix/snapshotter.sock", "socket at which containerd calls")
	f.DurationVar(&o.LookUp, "lookup-timeout", 10*time.Second, "let containerd pull a layer whose tree no origin provides in this time")
	f.StringVar(&o.Root, "root", "/var/lib/premix/snapshotter", "directory for snapshots, on a disk")
	f.BoolVar(&o.Registries, "registries", true, "get layers that no origin has from the registry of their image, over several connections, and unpack them in parallel")
	f.BoolVar(&o.Indexed, "lazy-registries", false, "mount layers with an index (eStargz) from their registry before they are fetched; for machines whose users all trust each other")
	f.StringVar(&o.Containerd, "containerd", "/run/containerd/containerd.sock", "take the manifest and the configuration of an image from containerd at this `SOCKET`, instead of the registry")
	f.StringVar(&o.ImageService, "image-service", "", "pass CRI's image service on to containerd at this `SOCKET`, and use the credentials in its calls")
	f.StringVar(&o.Record, "record", "", "record in this `DIR` the parts of each layer that containers touch, in order: profiles for premix store profile")
	return cmd
}
