package snapshotter_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/core/snapshots/testsuite"

	"premix/internal/image/snapshotter"
	"premix/internal/node"
)

// needRoot skips tests that mount.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
}

// start runs a snapshotter in this process, and returns a client of it.
func start(t *testing.T, root string, request func(string) node.MountRequest) (snapshots.Snapshotter, func() error) {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	address := filepath.Join(root, "socket")
	finished := make(chan error, 1)
	go func() {
		finished <- snapshotter.Run(ctx, snapshotter.Options{Root: root, Request: request, LookUp: eventually, Log: slog.New(slog.DiscardHandler)}, address)
	}()
	conn, err := dial(address)
	if err != nil {
		t.Fatal(err)
	}
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "premix"), func() error {
		conn.Close()
		end()
		return <-finished
	}
}

// TestConformance runs containerd's own suite for snapshotters over the socket. The suite
// uses the name to find out which operations overlayfs does not support.
func TestConformance(t *testing.T) {
	needRoot(t)
	testsuite.SnapshotterSuite(t, "overlayfs", func(_ context.Context, root string) (snapshots.Snapshotter, func() error, error) {
		s, end := start(t, root, func(ref string) node.MountRequest {
			t.Errorf("%s is looked up", ref)
			return node.MountRequest{}
		})
		return s, end, nil
	})
}
