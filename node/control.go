package node

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"
)

// peers is the control socket without the connections of other users.
type peers struct{ *net.UnixListener }

// Accept returns the next connection of this user, or root.
func (p peers) Accept() (net.Conn, error) {
	for {
		c, err := p.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if trusted(c) {
			return c, nil
		}
		c.Close()
	}
}

func trusted(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var who *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { who, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || asked != nil {
		return false
	}
	return who.Uid == 0 || int(who.Uid) == os.Geteuid()
}

// serve answers clients until the process ends.
func (d *daemon) serve() error {
	l, err := net.FileListener(d.tether.listener)
	if err != nil {
		return err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return errors.New("the control socket is none")
	}
	u.SetUnlinkOnClose(false) // it is the node's, not this worker's
	return (&http.Server{Handler: d.routes(), ReadHeaderTimeout: 10 * time.Second}).Serve(peers{u})
}

// serveMetrics answers Prometheus over TCP, if that was wished.
func (d *daemon) serveMetrics() error {
	if d.config.MetricsListen == "" {
		return nil
	}
	l, err := net.Listen("tcp", d.config.MetricsListen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", d.metrics())
	go func() {
		err := (&http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}).Serve(l)
		d.log.Error("metrics", "error", err)
	}()
	return nil
}

func (d *daemon) metrics() http.Handler {
	return promhttp.HandlerFor(d.registry(), promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

func (d *daemon) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ping", answered(func(context.Context, *struct{}) (any, error) { return struct{}{}, nil }))
	mux.HandleFunc("GET /v1/status", answered(func(context.Context, *struct{}) (any, error) { return d.status(), nil }))
	mux.Handle("GET /v1/metrics", d.metrics())
	mux.HandleFunc("POST /v1/mount", answered(func(ctx context.Context, r *MountRequest) (any, error) {
		m, err := d.mount(ctx, *r)
		if err != nil {
			return nil, err
		}
		return d.describe(m), nil
	}))
	mux.HandleFunc("POST /v1/umount", answered(func(_ context.Context, r *UmountRequest) (any, error) {
		if r.All {
			list, err := d.umountAll(r.Lazy)
			return d.describeAll(list), err
		}
		m, err := d.umount(r.Dir, r.Lazy)
		if err != nil {
			return nil, err
		}
		return d.describeAll([]*mount{m}), nil
	}))
	mux.HandleFunc("POST /v1/restart", answered(func(ctx context.Context, r *RestartRequest) (any, error) {
		if err := checkBinary(ctx, r.Exe); err != nil {
			return nil, err
		}
		d.after(func() { d.restart(r.Exe) })
		return struct{}{}, nil
	}))
	mux.HandleFunc("POST /v1/stop", answered(func(_ context.Context, r *StopRequest) (any, error) {
		if err := d.shut(r.Lazy); err != nil {
			return nil, err
		}
		d.after(d.exit)
		return struct{}{}, nil
	}))
	mux.HandleFunc("GET /v1/cache", answered(func(context.Context, *struct{}) (any, error) { return d.cacheStatus(), nil }))
	mux.HandleFunc("POST /v1/cache/drop", answered(func(ctx context.Context, r *TreeRequest) (any, error) { return d.drop(ctx, *r) }))
	mux.HandleFunc("POST /v1/cache/pin", answered(func(ctx context.Context, r *TreeRequest) (any, error) { return d.pin(ctx, *r) }))
	mux.HandleFunc("POST /v1/cache/unpin", answered(func(ctx context.Context, r *TreeRequest) (any, error) { return d.unpin(ctx, *r) }))
	mux.HandleFunc("POST /v1/cache/check", answered(func(ctx context.Context, _ *struct{}) (any, error) { return d.check(ctx) }))
	return mux
}

// answered makes a handler of what has a request and an answer.
func answered[R any](f func(context.Context, *R) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		var r R
		w.Header().Set("Content-Type", "application/json")
		err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 1<<20)).Decode(&r)
		if err != nil && req.Method == http.MethodPost {
			err = usage("", "the request cannot be read: %v", err)
		} else {
			var out any
			if out, err = f(req.Context(), &r); err == nil {
				_ = json.NewEncoder(w).Encode(out) // a client that has gone does not read it
				return
			}
		}
		var e *Error
		if !errors.As(err, &e) {
			errors.As(explain(err), &e)
		}
		w.WriteHeader(statusOf(e.Kind))
		_ = json.NewEncoder(w).Encode(e)
	}
}

// after does something once the answer to the request has left.
func (d *daemon) after(f func()) {
	go func() {
		time.Sleep(20 * time.Millisecond)
		f()
	}()
}

// checkBinary refuses a binary that is no premix before anything depends on it.
func checkBinary(ctx context.Context, exe string) error {
	if exe == "" {
		return nil
	}
	const way = "run `premix node restart` with the binary that shall take over"
	if !filepath.IsAbs(exe) {
		return usage(way, "the binary %s is not an absolute path", exe)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, exe, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "premix") {
		return usage(way, "%s is no premix that runs here: %v", exe, err)
	}
	return nil
}
