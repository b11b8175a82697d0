// Peers provides the functions of containerd and stargz-snapshotter that
// bench/containers needs as libraries. It is a separate module, so that premix does not
// get their dependencies.
//
//	peers snapshotter REGISTRY SOCKET ROOT        stargz-snapshotter, with its default settings
//	peers pull ADDRESS SNAPSHOTTER IMAGE          pulls and unpacks, as ctr does
//	peers run ADDRESS SNAPSHOTTER IMAGE ARGS...   runs a container, as ctr run --rm does
//
// REGISTRY is a host and port of plain HTTP, and IMAGE begins with one.
// pull prints {"seconds"}; run prints {"first","end","output"}: seconds from its beginning to
// the first byte of output and to the end of the process, without the time for the start
// of this program and its connection to containerd, and a digest of the words of the output:
// samtools --version names plugins in the order of their directory, in which file systems differ. The same client serves all
// snapshotters, so that only they can cause a difference.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/containerd/v2/pkg/reference"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/stargz-snapshotter/fs/config"
	"github.com/containerd/stargz-snapshotter/fs/source"
	"github.com/containerd/stargz-snapshotter/service"
	"github.com/hashicorp/go-retryablehttp"
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
	case len(args) == 4 && args[0] == "snapshotter":
		return snapshotter(ctx, args[1], args[2], args[3])
	case len(args) == 4 && args[0] == "pull":
		return pull(ctx, args[1], args[2], args[3])
	case len(args) > 4 && args[0] == "run":
		return start(ctx, args[1], args[2], args[3], args[4:])
	}
	return errors.New("usage: peers snapshotter REGISTRY SOCKET ROOT | pull ADDRESS SNAPSHOTTER IMAGE | run ADDRESS SNAPSHOTTER IMAGE ARGS...")
}

// snapshotter serves stargz-snapshotter until a signal ends it.
func snapshotter(ctx context.Context, registry, socket, root string) error {
	// The daemon makes the same client.
	client := retryablehttp.NewClient()
	client.Logger = nil
	hosts := func(reference.Spec) ([]docker.RegistryHost, error) {
		return []docker.RegistryHost{{Client: client.StandardClient(), Host: registry, Scheme: "http", Path: "/v2",
			Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve}}, nil
	}
	// "direct" is true by default in the daemon's own configuration.
	own, err := service.NewStargzSnapshotterService(ctx, root, &service.Config{Config: config.Config{
		NoPrometheus:         true,
		DirectoryCacheConfig: config.DirectoryCacheConfig{Direct: true},
	}}, service.WithCustomRegistryHosts(hosts))
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

func pull(ctx context.Context, address, snapshotter, image string) error {
	c, err := containerd.New(address)
	if err != nil {
		return err
	}
	defer c.Close()
	began := time.Now()
	opts := []containerd.RemoteOpt{
		containerd.WithPullUnpack,
		containerd.WithPullSnapshotter(snapshotter),
		containerd.WithResolver(docker.NewResolver(docker.ResolverOptions{
			Hosts: docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchAllHosts)),
		})),
	}
	switch snapshotter {
	case "stargz":
		// ctr-remote adds this; the amount to prefetch is its default.
		opts = append(opts, containerd.WithImageHandlerWrapper(source.AppendDefaultLabelsHandlerWrapper(image, 10*1024*1024)))
	case "premix", "soci", "nydus":
		// CRI adds this.
		opts = append(opts, containerd.WithImageHandlerWrapper(snapshotters.AppendInfoHandlerWrapper(image)))
	}
	if _, err := c.Pull(ctx, image, opts...); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{"seconds": time.Since(began).Seconds()})
}

// output keeps an output, with the time of the first write.
type output struct {
	all  bytes.Buffer
	once sync.Once
	at   time.Time
}

func (o *output) Write(p []byte) (int, error) {
	o.once.Do(func() { o.at = time.Now() })
	return o.all.Write(p)
}

// digest returns the SHA-256 digest of the words, sorted.
func (o *output) digest() string {
	words := strings.FieldsFunc(o.all.String(), func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	slices.Sort(words)
	sum := sha256.Sum256([]byte(strings.Join(words, " ")))
	return hex.EncodeToString(sum[:])
}

func start(ctx context.Context, address, snapshotter, ref string, args []string) (err error) {
	c, err := containerd.New(address)
	if err != nil {
		return err
	}
	defer c.Close()
	began := time.Now()
	image, err := c.GetImage(ctx, ref)
	if err != nil {
		return err
	}
	id := fmt.Sprintf("bench-%d", began.UnixNano())
	container, err := c.NewContainer(ctx, id,
		containerd.WithSnapshotter(snapshotter),
		containerd.WithNewSnapshot(id, image),
		containerd.WithNewSpec(oci.WithImageConfig(image), oci.WithProcessArgs(args...)))
	if err != nil {
		return fmt.Errorf("make the container: %w", err)
	}
	defer func() {
		err = errors.Join(err, container.Delete(context.WithoutCancel(ctx), containerd.WithSnapshotCleanup))
	}()
	var out output
	task, err := container.NewTask(ctx, cio.NewCreator(cio.WithStreams(nil, &out, io.Writer(os.Stderr))))
	if err != nil {
		return fmt.Errorf("make the task: %w", err)
	}
	ended, err := task.Wait(ctx)
	if err == nil {
		err = task.Start(ctx)
	}
	if err != nil {
		_, killed := task.Delete(context.WithoutCancel(ctx), containerd.WithProcessKill)
		return errors.Join(fmt.Errorf("start: %w", err), killed)
	}
	status := <-ended
	end := time.Now()
	task.IO().Wait()
	if _, err := task.Delete(context.WithoutCancel(ctx), containerd.WithProcessKill); err != nil {
		return err
	}
	code, _, err := status.Result()
	switch {
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("%q ended with %d", args, code)
	case out.all.Len() == 0:
		return fmt.Errorf("%q has no output", args)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"first": out.at.Sub(began).Seconds(), "end": end.Sub(began).Seconds(), "output": out.digest()})
}
