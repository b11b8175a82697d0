// Stargz is a peer of bench/store: the lazy mounts of containerd's stargz-snapshotter,
// without containerd. It makes the same calls for a layer as the daemon, with the
// daemon's default settings, so that only the file system is measured, without the
// daemon's interfaces. It is a separate module, so that premix does not get its
// dependencies.
//
//	stargz convert LAYER.tar OUT [FILES]     an eStargz layer, and OUT.json about it
//	stargz mount URL OUT.json CACHE DIR      says "ready", and mounts at DIR for a line of input
//
// FILES lists paths, one a line, that come first in the layer, before the
// landmark up to which the snapshotter prefetches. OUT.json is {"digest","size","toc"}.
// URL is the URL of a registry; the layer is in its repository "bench".
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/reference"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/fs"
	"github.com/containerd/stargz-snapshotter/fs/config"
	"github.com/containerd/stargz-snapshotter/fs/source"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "convert":
		return convert(args[1], args[2], "")
	case len(args) == 4 && args[0] == "convert":
		return convert(args[1], args[2], args[3])
	case len(args) == 5 && args[0] == "mount":
		return mount(args[1], args[2], args[3], args[4])
	}
	return errors.New("usage: stargz convert LAYER.tar OUT [FILES] | mount URL OUT.json CACHE DIR")
}

// about is the information about a layer that a client has before it mounts the layer.
type about struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
	TOC    digest.Digest `json:"toc"`
}

func convert(layer, out, list string) error {
	in, err := os.Open(layer)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	var opts []estargz.Option
	if list != "" {
		text, err := os.ReadFile(list)
		if err != nil {
			return err
		}
		var missing []string
		opts = append(opts, estargz.WithPrioritizedFiles(strings.Split(strings.TrimSpace(string(text)), "\n")), estargz.WithAllowPrioritizeNotFound(&missing))
	}
	blob, err := estargz.Build(io.NewSectionReader(in, 0, info.Size()), opts...)
	if err != nil {
		return err
	}
	defer blob.Close()
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer f.Close()
	hash := digest.Canonical.Digester()
	n, err := io.Copy(io.MultiWriter(f, hash.Hash()), blob)
	if err != nil {
		return err
	}
	b, err := json.Marshal(about{Digest: hash.Digest(), Size: n, TOC: blob.TOCDigest()})
	if err != nil {
		return err
	}
	return os.WriteFile(out+".json", b, 0o666)
}

func mount(registry, description, cache, dir string) error {
	u, err := url.Parse(registry)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(description)
	if err != nil {
		return err
	}
	var a about
	if err := json.Unmarshal(b, &a); err != nil {
		return err
	}
	ref, err := reference.Parse(u.Host + "/bench:latest")
	if err != nil {
		return err
	}
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: a.Digest, Size: a.Size}
	// The daemon makes the same client.
	client := retryablehttp.NewClient()
	client.Logger = nil
	host := docker.RegistryHost{Client: client.StandardClient(), Host: u.Host, Scheme: u.Scheme, Path: "/v2",
		Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve}
	sources := func(map[string]string) ([]source.Source, error) {
		return []source.Source{{
			Hosts:    func(reference.Spec) ([]docker.RegistryHost, error) { return []docker.RegistryHost{host}, nil },
			Name:     ref,
			Target:   layer,
			Manifest: ocispec.Manifest{Layers: []ocispec.Descriptor{layer}},
		}}, nil
	}
	// "direct" is true by default in the daemon's own configuration.
	layers, err := fs.NewFilesystem(cache, config.Config{
		NoPrometheus:         true,
		DirectoryCacheConfig: config.DirectoryCacheConfig{Direct: true},
	}, fs.WithGetSources(sources))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	if err := layers.Mount(ctx, dir, map[string]string{estargz.TOCJSONDigestAnnotation: a.TOC.String()}); err != nil {
		return err
	}
	fmt.Println("mounted")
	<-ctx.Done()
	return layers.Unmount(context.Background(), dir)
}
