// Nydus provides the functions of nydus-snapshotter that bench/containers needs. It is a
// separate module, so that premix does not get their dependencies. Both need programs of the
// Rust crate nydus-rs, which scripts/setup.sh nydus builds.
//
//	nydus convert NYDUS-IMAGE LAYOUT MANIFEST  adds the image in nydus' format to an OCI layout
//	nydus snapshotter NYDUSD SOCKET ROOT       nydus-snapshotter
//
// MANIFEST is the digest of the image's manifest. convert writes the digest of the new one to
// the file latest of the layout. The snapshotter has the settings of nydus-snapshotter's
// examples, except that nydusd fetches nothing before it is read, as the other contenders do,
// and that the registry has plain HTTP. The module has the versions that nydus-snapshotter asks
// for, some with known vulnerabilities: it is for the benchmark alone.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/images/converter"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/nydus-snapshotter/config"
	nydus "github.com/containerd/nydus-snapshotter/pkg/converter"
	"github.com/containerd/nydus-snapshotter/snapshot"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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
	case len(args) == 4 && args[0] == "convert":
		return convert(ctx, args[1], args[2], digest.Digest(args[3]))
	case len(args) == 4 && args[0] == "snapshotter":
		return snapshotter(ctx, args[1], args[2], args[3])
	}
	return errors.New("usage: nydus convert NYDUS-IMAGE LAYOUT MANIFEST | snapshotter NYDUSD SOCKET ROOT")
}

// labels are the labels of blobs in a layout, of which the converter keeps its notes.
type labels struct {
	mu  sync.Mutex
	all map[digest.Digest]map[string]string
}

func (l *labels) Get(d digest.Digest) (map[string]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.all[d]), nil
}

func (l *labels) Set(d digest.Digest, set map[string]string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[d] = maps.Clone(set)
	return nil
}

func (l *labels) Update(d digest.Digest, update map[string]string) (map[string]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	set := map[string]string{}
	maps.Copy(set, l.all[d])
	for name, value := range update {
		if set[name] = value; value == "" {
			delete(set, name)
		}
	}
	l.all[d] = set
	return maps.Clone(set), nil
}

// convert converts an image as the converter of containerd's client does.
func convert(ctx context.Context, builder, layout string, manifest digest.Digest) error {
	content, err := local.NewLabeledStore(layout, &labels{all: map[digest.Digest]map[string]string{}})
	if err != nil {
		return err
	}
	about, err := content.Info(ctx, manifest)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "nydus")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	all := converter.IndexConvertFuncWithHook(
		nydus.LayerConvertFunc(nydus.PackOption{WorkDir: scratch, BuilderPath: builder, FsVersion: "6"}), true, platforms.All,
		converter.ConvertHooks{PostConvertHook: nydus.ConvertHookFunc(nydus.MergeOption{WorkDir: scratch, BuilderPath: builder, FsVersion: "6"})})
	made, err := all(ctx, content, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: manifest, Size: about.Size})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(layout, "latest"), []byte(made.Digest), 0o644)
}

// snapshotter serves nydus-snapshotter until a signal ends it.
func snapshotter(ctx context.Context, nydusd, socket, root string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	type object = map[string]any
	daemon, err := json.Marshal(object{
		"device": object{
			"backend": object{"type": "registry", "config": object{"scheme": "http", "timeout": 60, "connect_timeout": 5, "retry_limit": 2}},
			"cache":   object{"type": "blobcache"},
		},
		"mode": "direct", "digest_validate": false, "iostats_files": false, "enable_xattr": true,
		"fs_prefetch": object{"enable": false},
	})
	if err != nil {
		return err
	}
	file := filepath.Join(root, "nydusd.json")
	if err := os.WriteFile(file, daemon, 0o600); err != nil {
		return err
	}
	c := config.SnapshotterConfig{Version: 1, Root: root, Address: socket, DaemonMode: "dedicated", CleanupOnClose: true}
	c.DaemonConfig.NydusdConfigPath = file
	c.LoggingConfig.LogToStdout = true
	var usual config.SnapshotterConfig
	if err := usual.FillUpWithDefaults(); err != nil {
		return err
	}
	if err := config.MergeConfig(&c, &usual); err != nil {
		return err
	}
	// nydusd raises its limit of open files, which not every root may.
	script := filepath.Join(root, "nydusd")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec '"+nydusd+"' \"$@\" --rlimit-nofile 0\n"), 0o700); err != nil {
		return err
	}
	c.DaemonConfig.NydusdPath = script
	if err := config.ValidateConfig(&c); err != nil {
		return err
	}
	config.PrepareLogDir(&c)
	if err := config.ProcessConfigurations(&c); err != nil {
		return err
	}
	if err := config.SetUpEnvironment(&c); err != nil {
		return err
	}
	own, err := snapshot.NewSnapshotter(ctx, &c)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(own))
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	err = server.Serve(l)
	return errors.Join(err, own.Close())
}
