package node

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"premix/internal/kit/access"
	"premix/internal/kit/bounded"
	"premix/internal/kit/unixpeer"
)

// serve answers clients until the process ends.
func (d *daemon) serve() error {
	l, err := net.FileListener(d.supervisorConn.listener)
	if err != nil {
		return err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return errors.New("the control socket is not a Unix socket")
	}
	u.SetUnlinkOnClose(false) // it belongs to the node, not to this worker
	most := min(clientsMost, bounded.Descriptors())
	return server(d.routes()).Serve(bounded.New(unixpeer.Listener{Listener: u}, bounded.Options{Total: most, Source: most}))
}

const (
	// clientsMost limits the concurrent connections to the control socket, and
	// scrapersMost those to the address for metrics.
	clientsMost  = 1024
	scrapersMost = 64
	// headerTime limits the time to receive the header of a request, and bodyTime its
	// body.
	headerTime = 10 * time.Second
	bodyTime   = 10 * time.Second
	idleTime   = 2 * time.Minute
)

// server returns a server with limits on its connections. The time of an answer has no
// limit: a mount may wait for an origin.
func server(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: 16 << 10, ConnState: bounded.TrackState(nil)}
}

// serveMetrics answers Prometheus at a separate address, if the configuration has one.
func (d *daemon) serveMetrics() error {
	if d.config.MetricsListen == "" {
		return nil
	}
	tokens, err := d.config.metricsTokens()
	if err != nil {
		return metricsError(err)
	}
	l, err := access.Listen(context.Background(), d.config.metrics())
	if err != nil {
		return metricsError(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", tokens.Guard("premix node", d.metrics()))
	go func() {
		err := server(l.Protect(mux)).Serve(bounded.New(l, bounded.Options{Total: scrapersMost, Stall: bodyTime}))
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

// answered makes a handler from a function of a request.
func answered[R any](f func(context.Context, *R) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		var r R
		w.Header().Set("Content-Type", "application/json")
		// Writers in tests have no deadlines.
		deadline := http.NewResponseController(w)
		_ = deadline.SetReadDeadline(time.Now().Add(bodyTime))
		err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 1<<20)).Decode(&r)
		_ = deadline.SetReadDeadline(time.Time{})
		if err != nil && req.Method == http.MethodPost {
			err = usage("", "the request cannot be read: %v", err)
		} else {
			var out any
			if out, err = f(req.Context(), &r); err == nil {
				_ = json.NewEncoder(w).Encode(out) // a client that is gone does not read it
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

// after calls f once the answer to the request has been sent.
func (d *daemon) after(f func()) {
	go func() {
		time.Sleep(20 * time.Millisecond)
		f()
	}()
}

// checkBinary refuses a binary that is not a working premix before anything depends on
// it.
func checkBinary(ctx context.Context, exe string) error {
	if exe == "" {
		return nil
	}
	const hint = "run `premix node restart` with the new binary"
	if !filepath.IsAbs(exe) {
		return usage(hint, "the binary %s is not an absolute path", exe)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, exe, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "premix") {
		return usage(hint, "%s is not a premix that runs on this machine: %v", exe, err)
	}
	return nil
}
