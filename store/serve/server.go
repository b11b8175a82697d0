package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Same is where metrics are served: where the store is.
const Same = "same"

// ServerOptions say how a handler is put on the network.
type ServerOptions struct {
	Listen      string // HOST:PORT
	CertFile    string // with KeyFile: TLS
	KeyFile     string
	Metrics     string        // HOST:PORT for /metrics, [Same], or "" for none
	Connections int           // at once; 0 for what descriptors allow, at most 16384
	Linger      time.Duration // how long requests may go on after the end was asked for; default 30 s
	Errors      *log.Logger   // of connections; nil for none
}

// Server is a handler on the network.
type Server struct {
	h        *Handler
	o        ServerOptions
	listener net.Listener
	metrics  net.Listener // nil for none of its own
	server   *http.Server
	limit    int
}

// Listen opens the server's ports. Serve must be called then.
func Listen(h *Handler, o ServerOptions) (*Server, error) {
	s := &Server{h: h, o: o, limit: o.Connections}
	if s.limit <= 0 {
		var err error
		if s.limit, err = connections(); err != nil {
			return nil, err
		}
	}
	var config *tls.Config
	if o.CertFile != "" || o.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certificate and key: %w", err)
		}
		config = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, err
	}
	l, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is no TCP address", o.Listen), listener.Close())
	}
	s.listener = newLimited(l, s.limit)
	var handler http.Handler = h
	switch o.Metrics {
	case "":
	case Same:
		handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/metrics" {
				h.ServeHTTP(w, r)
			} else if h.Allowed(w, r) {
				h.metrics.ServeHTTP(w, r)
			}
		})
	default:
		if s.metrics, err = net.Listen("tcp", o.Metrics); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	errorLog := o.Errors
	if errorLog == nil {
		errorLog = log.New(nowhere{}, "", 0)
	}
	s.server = &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second, // nobody sends a body
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          errorLog,
		ConnState:         counter(h.metrics),
		// Each stream may hold a file open.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 64},
	}
	return s, nil
}

// nowhere takes a log that nobody wants.
type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

// counter keeps the number of connections.
func counter(m *Metrics) func(net.Conn, http.ConnState) {
	return func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			m.connections.Inc()
		case http.StateClosed, http.StateHijacked:
			m.connections.Dec()
		}
	}
}

// connections is how many the process's descriptors allow, with a file for each
// and some to spare. Go has raised the soft limit to the hard one.
func connections() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("the limit of open files: %w", err)
	}
	return int(max(1, min(16384, (int64(min(limit.Cur, 1<<30))-64)/2))), nil
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// MetricsAddr is where /metrics is served, nil for nowhere or the same place.
func (s *Server) MetricsAddr() net.Addr {
	if s.metrics == nil {
		return nil
	}
	return s.metrics.Addr()
}

// Limit is how many connections there may be at once.
func (s *Server) Limit() int { return s.limit }

// Serve answers until ctx ends. Requests that are being answered then may go on
// for a while.
func (s *Server) Serve(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.h.metrics)
	side := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
		MaxHeaderBytes: 16 << 10, ErrorLog: s.server.ErrorLog}
	ended := make(chan error, 2)
	running := 1
	go func() {
		if s.server.TLSConfig != nil {
			ended <- s.server.ServeTLS(s.listener, "", "")
		} else {
			ended <- s.server.Serve(s.listener)
		}
	}()
	if s.metrics != nil {
		running++
		go func() { ended <- side.Serve(s.metrics) }()
	}
	flush := time.NewTicker(time.Second)
	defer flush.Stop()
	var errs []error
	for stopping := false; !stopping; {
		select {
		case err := <-ended:
			errs = append(errs, err)
			running--
			stopping = true
		case <-flush.C:
			if err := s.h.FlushLog(); err != nil {
				errs = append(errs, fmt.Errorf("access log: %w", err))
				stopping = true
			}
		case <-ctx.Done():
			stopping = true
		}
	}
	linger := s.o.Linger
	if linger <= 0 {
		linger = 30 * time.Second
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), linger)
	defer cancel()
	var both sync.WaitGroup
	for _, one := range []*http.Server{s.server, side} {
		both.Go(func() {
			if one.Shutdown(end) != nil {
				_ = one.Close() // its clients have had their time
			}
		})
	}
	both.Wait()
	for range running {
		errs = append(errs, <-ended)
	}
	for i, err := range errs {
		if errors.Is(err, http.ErrServerClosed) {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}
