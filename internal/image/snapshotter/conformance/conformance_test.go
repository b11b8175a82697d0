// Package conformance runs the suites of older containerds for snapshotters against `premix
// snapshotter`. It is a module of its own, because all 1.x versions of containerd are
// versions of one module, and a build contains only one of them. go.mod has 1.7, and
// go-1.6.mod is for `go test -modfile=go-1.6.mod`. `make conformance` runs both.
package conformance

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/snapshots"
	"github.com/containerd/containerd/snapshots/proxy"
	"github.com/containerd/containerd/snapshots/testsuite"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestConformance(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	premix := filepath.Join(t.TempDir(), "premix")
	build := exec.Command("go", "build", "-o", premix, "./cmd/premix")
	build.Dir = filepath.Join("..", "..", "..", "..")
	// This test may run with its own -modfile.
	build.Env = append(os.Environ(), "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build premix: %v\n%s", err, out)
	}
	// The suite uses the name to find out which operations overlayfs does not support.
	testsuite.SnapshotterSuite(t, "overlayfs", func(_ context.Context, root string) (snapshots.Snapshotter, func() error, error) {
		socket := filepath.Join(root, "socket")
		cmd := exec.Command(premix, "snapshotter", "--store", filepath.Join(root, "no-store"), "--root", root, "--address", socket)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			return nil, nil, err
		}
		for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			c, err := net.Dial("unix", socket)
			if err == nil {
				c.Close()
				break
			}
			if time.Since(begun) > time.Minute {
				return nil, nil, err
			}
		}
		conn, err := grpc.Dial("unix://"+socket, //nolint:staticcheck // the oldest of these versions has nothing else
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, nil, err
		}
		return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "premix"), func() error {
			conn.Close()
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				return err
			}
			if err := cmd.Wait(); err != nil {
				return fmt.Errorf("premix snapshotter: %w", err)
			}
			return nil
		}, nil
	})
}
