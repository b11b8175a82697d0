// Soci provides the functions of soci-snapshotter that bench/containers needs. It is a
// separate module, so that premix does not get its dependencies; it needs a C compiler and
// zlib.
//
//	soci convert LAYOUT MANIFEST                           adds an index of SOCI (v2) to an image in an OCI layout
//	soci snapshotter MODE REGISTRY CONTAINERD SOCKET ROOT  soci-snapshotter
//
// MANIFEST is the digest of the image's manifest. convert writes the digest of the new image to
// the file latest of the layout, or the same digest if all layers are smaller than 10 MiB: these
// get no index by default. MODE is lazy, for the default settings, or parallel: layers are
// fetched and unpacked in parallel, with the settings that docs/parallel-mode.md of
// soci-snapshotter recommends. REGISTRY is a host and port of plain HTTP,
// and CONTAINERD the socket of containerd.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/awslabs/soci-snapshotter/config"
	"github.com/awslabs/soci-snapshotter/fs"
	"github.com/awslabs/soci-snapshotter/metadata"
	"github.com/awslabs/soci-snapshotter/service"
	"github.com/awslabs/soci-snapshotter/soci"
	"github.com/awslabs/soci-snapshotter/soci/store"
	"github.com/awslabs/soci-snapshotter/ztoc"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/grpc"
)

func main() {
	ctx, stop := signal.NotifyContext(namespaces.WithNamespace(context.Background(), "bench"), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 3 && args[0] == "convert":
		return convert(ctx, args[1], digest.Digest(args[2]))
	case len(args) == 6 && args[0] == "snapshotter":
		return snapshotter(ctx, args[1], args[2], args[3], args[4], args[5])
	}
	return errors.New("usage: soci convert LAYOUT MANIFEST | snapshotter MODE REGISTRY CONTAINERD SOCKET ROOT")
}

// convert does the same as the command soci convert.
func convert(ctx context.Context, layout string, manifest digest.Digest) error {
	// Both stores keep blobs in the same place.
	content, err := local.NewStore(layout)
	if err != nil {
		return err
	}
	blobs, err := store.NewSociStore(layout)
	if err != nil {
		return err
	}
	about, err := content.Info(ctx, manifest)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "soci")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	db, err := soci.NewDB(filepath.Join(scratch, "artifacts.db"))
	if err != nil {
		return err
	}
	builder, err := soci.NewIndexBuilder(content, blobs, soci.WithArtifactsDb(db))
	if err != nil {
		return err
	}
	made, err := builder.Convert(ctx, images.Image{Name: "image", Target: ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, Digest: manifest, Size: about.Size}})
	switch {
	case err == nil:
		manifest = made.Digest
	case !errors.Is(err, soci.ErrEmptyIndex):
		return err
	}
	return os.WriteFile(filepath.Join(layout, "latest"), []byte(manifest), 0o644)
}

// snapshotter serves soci-snapshotter until a signal ends it.
func snapshotter(ctx context.Context, mode, registry, containerd, socket, root string) error {
	c := config.NewConfig()
	if c == nil {
		return errors.New("soci-snapshotter has no default settings")
	}
	c.NoPrometheus, c.FSConfig.NoPrometheus = true, true
	c.ContentStoreConfig.ContainerdAddress = containerd
	switch mode {
	case "lazy":
	case "parallel":
		c.PullModes.SOCIv2.Enable = false
		p := &c.PullModes.Parallel
		p.Enable, p.DiscardUnpackedLayers = true, true
		p.MaxConcurrentDownloadsPerImage, p.MaxConcurrentUnpacksPerImage = 10, 10
		p.ConcurrentDownloadChunkSize = 16 << 20
	default:
		return fmt.Errorf("the mode %q is unknown: lazy or parallel", mode)
	}
	c.ResolverConfig.Host = map[string]config.HostConfig{registry: {Mirrors: []config.MirrorConfig{{Host: "http://" + registry, Insecure: true}}}}
	// The daemon's default is one database for all layers too.
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	db, err := bolt.Open(filepath.Join(root, "metadata.db"), 0o600, &bolt.Options{NoFreelistSync: true, InitialMmapSize: 64 << 20, FreelistType: bolt.FreelistMapType, NoSync: c.MetadataDBNoSync})
	if err != nil {
		return err
	}
	defer db.Close()
	own, err := service.NewSociSnapshotterService(ctx, root, &c.ServiceConfig, service.WithFilesystemOptions(fs.WithMetadataStore(
		func(sr *io.SectionReader, toc ztoc.TOC, opts ...metadata.Option) (metadata.Reader, error) {
			return metadata.NewReader(db, sr, toc, opts...)
		})))
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	// Its calls to containerd need the namespace of the call that causes them.
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
		if space, ok := namespaces.Namespace(ctx); ok {
			ctx = namespaces.WithNamespace(ctx, space)
		}
		return do(ctx, in)
	}))
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(own))
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	err = server.Serve(l)
	return errors.Join(err, own.Close())
}
