package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"google.golang.org/grpc"

	"premix/internal/kit/access"
	"premix/internal/kit/bounded"
	"premix/internal/kit/exit"
	"premix/internal/kit/lock"
	own "premix/internal/kit/owner"
	"premix/internal/kit/unixpeer"
)

const (
	// clientsMost limits the concurrent connections, and callsMost the concurrent calls
	// of one.
	clientsMost = 256
	callsMost   = 1024
	// handshakeTime limits the time in which a client must begin.
	handshakeTime = 10 * time.Second
)

// endWithin limits how long running calls may continue when the snapshotter ends.
const endWithin = 10 * time.Second

// Run serves the snapshots API at address, the path of a socket, until ctx ends. Mounts
// stay: containers and the next snapshotter continue to use them.
func Run(ctx context.Context, o Options, address string) (err error) {
	if os.Geteuid() != 0 {
		return exit.Errorf(exit.Unavailable, "sudo premix snapshotter ...", "only root can mount the layers of containers")
	}
	if o.Root, err = makeRoot(o.Root); err != nil {
		return err
	}
	lock, err := takeLock(o.Root)
	if err != nil {
		return err
	}
	defer lock.Close()
	s, err := New(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Cleanup(ctx); err != nil {
		o.Log.Error("clean up after a killed snapshotter", "error", err)
	}
	l, err := listen(address)
	if err != nil {
		return err
	}
	// Only root can connect to the socket. The limits protect against clients of root
	// that open connections and send nothing.
	most := min(clientsMost, bounded.Descriptors())
	l = bounded.New(l, bounded.Options{Total: most, Source: most, Kept: true})
	options := []grpc.ServerOption{grpc.ConnectionTimeout(handshakeTime), grpc.MaxConcurrentStreams(callsMost)}
	if o.ImageService != "" {
		handler, done, err := s.imageService(o.ImageService)
		if err != nil {
			return exit.Errorf(exit.Usage, "give the path of a socket with --image-service", "%s cannot be a socket of containerd: %w", o.ImageService, err)
		}
		defer func() { err = errors.Join(err, done()) }()
		options = append(options, grpc.UnknownServiceHandler(handler))
	}
	server := grpc.NewServer(options...)
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(s))

	ctx, end := context.WithCancel(ctx)
	defer end()
	restored := make(chan struct{})
	go func() {
		defer close(restored)
		s.restore(ctx)
	}()
	defer func() { <-restored }()
	defer end()
	finished := make(chan error, 1)
	go func() { finished <- server.Serve(unixpeer.Listener{Listener: l}) }()
	notifyReady()
	o.Log.Info("serving snapshots", "address", address, "root", o.Root)
	select {
	case err := <-finished:
		return fmt.Errorf("serve %s: %w", address, err)
	case <-ctx.Done():
	}
	stop := time.AfterFunc(endWithin, server.Stop)
	defer stop.Stop()
	server.GracefulStop()
	return nil
}

// restore mounts missing trees again, so that the first container does not wait for it.
// Failed mounts are tried again when they are needed.
func (s *Snapshotter) restore(ctx context.Context) {
	trees, err := s.wanted(ctx)
	if err == nil {
		err = s.layers.ensure(ctx, trees)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error("mount again", "error", err)
	}
}

// makeRoot makes the root, and returns its path as in the kernel's table of mounts.
func makeRoot(root string) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", rootError(root, err)
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return "", rootError(root, err)
	}
	if err := own.Private(root); err != nil {
		return "", rootError(root, err)
	}
	if strings.ContainsAny(root, ":,\\") {
		return "", rootError(root, errors.New(`overlayfs cannot have ":", "," or "\" in a path`))
	}
	if err := overlayutils.Supported(root); err != nil {
		return "", rootError(root, err)
	}
	return root, nil
}

// takeLock excludes other snapshotters from a root. The kernel releases the lock when
// the process ends.
func takeLock(root string) (*os.File, error) {
	f, err := own.OpenFile(filepath.Join(root, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, rootError(root, err)
	}
	if err := lock.Take(f, lock.Exclusive); err != nil {
		f.Close()
		return nil, exit.Errorf(exit.Directory, "end it, or give another directory with --root", "another snapshotter uses %s", root)
	}
	return f, nil
}

// listen makes the socket, or takes the one from systemd: calls then wait while a
// snapshotter is restarted (sd_listen_fds(3)).
func listen(address string) (net.Listener, error) {
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) && os.Getenv("LISTEN_FDS") == "1" {
		f := os.NewFile(3, "socket of systemd")
		defer f.Close()
		l, err := net.FileListener(f)
		if err != nil {
			return nil, addressError(address, err)
		}
		return l, nil
	}
	if err := os.MkdirAll(filepath.Dir(address), 0o711); err != nil {
		return nil, addressError(address, err)
	}
	// A client controls the files that containers see: the socket has mode 0600.
	l, err := access.Listen(context.Background(), access.Options{Address: access.UnixPrefix + address})
	switch {
	case errors.Is(err, access.ErrBusy):
		return nil, exit.Errorf(exit.Directory, "end it, or give another path with --address", "another process already serves %s", address)
	case err != nil:
		return nil, addressError(address, errors.Unwrap(err))
	}
	return l, nil
}

func addressError(address string, err error) error {
	return exit.Errorf(exit.Usage, "give the path of a socket with --address, of at most 107 bytes", "%s cannot be a socket: %w", address, err)
}

// notifyReady notifies systemd that containerd may start, if systemd requests that
// (sd_notify(3)). Errors are ignored.
func notifyReady() {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	c, err := net.Dial("unixgram", path)
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte("READY=1"))
}
