package server

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

	"premix/internal/kit/access"
	"premix/internal/kit/bounded"
)

// Same as the address of metrics means the address of the store.
const Same = "same"

// ServerOptions configure a server.
type ServerOptions struct {
	Listen      string   // HOST:PORT or unix:PATH
	Open        bool     // answer all clients of Listen or Metrics, even without tokens
	Hosts       []string // names of the server besides localhost
	CertFile    string   // with KeyFile: TLS
	KeyFile     string
	Metrics     string        // HOST:PORT or unix:PATH for /metrics, [Same], or "" for none
	Connections int           // concurrent; 0: as descriptors permit, at most 16384
	PerAddress  int           // of one address; 0: half of Connections, or all if these are few
	Linger      time.Duration // how long requests may continue after the end of ctx; default 30 s
	Errors      *log.Logger   // of connections; nil for none
}

// Server serves a handler on the network.
type Server struct {
	h        *Handler
	o        ServerOptions
	listener *access.Listener
	metrics  *access.Listener // nil without a separate address
	server   *http.Server
	limit    int
}

// Listen opens the server's ports. The caller must then call Serve.
func Listen(h *Handler, o ServerOptions) (*Server, error) {
	s := &Server{h: h, o: o, limit: o.Connections}
	if s.limit <= 0 {
		s.limit = bounded.Descriptors() // each may have a file open
	}
	var config *tls.Config
	if o.CertFile != "" || o.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certificate and key: %w", err)
		}
		config = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	reach := access.Options{Address: o.Listen, Secret: h.o.Tokens != nil, Open: o.Open, Hosts: o.Hosts}
	l, err := access.Listen(context.Background(), reach)
	if err != nil {
		return nil, err
	}
	s.listener = l
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
		reach.Address = o.Metrics
		if s.metrics, err = access.Listen(context.Background(), reach); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	errorLog := o.Errors
	if errorLog == nil {
		errorLog = log.New(nowhere{}, "", 0)
	}
	s.server = &http.Server{
		Handler:           l.Protect(handler),
		TLSConfig:         config,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second, // requests have no body
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          errorLog,
		ConnState:         bounded.TrackState(counter(h.metrics)),
		// Each stream may hold a file open.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 64},
	}
	return s, nil
}

// metricsMost limits the connections to a separate address for metrics.
const metricsMost = 64

// few is the number of connections up to which one address may have all.
const few = 64

// nowhere discards a log.
type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

// counter returns a hook that counts connections.
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

// Addr returns the server's address: HOST:PORT or unix:PATH.
func (s *Server) Addr() string { return s.listener.Name() }

// MetricsAddr returns the separate address of /metrics, or "" if there is none.
func (s *Server) MetricsAddr() string {
	if s.metrics == nil {
		return ""
	}
	return s.metrics.Name()
}

// Limit returns the limit of concurrent connections.
func (s *Server) Limit() int { return s.limit }

// Serve answers requests until ctx ends. Running requests may then continue for
// o.Linger.
func (s *Server) Serve(ctx context.Context) error {
	side := &http.Server{ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: s.server.ErrorLog, ConnState: bounded.TrackState(nil)}
	finished := make(chan error, 2)
	perAddress := s.o.PerAddress
	if perAddress <= 0 {
		perAddress = max(s.limit/2, min(s.limit, few))
	}
	limited := bounded.New(s.listener, bounded.Options{Total: s.limit, Source: perAddress})
	running := 1
	go func() {
		if s.server.TLSConfig != nil {
			finished <- s.server.ServeTLS(limited, "", "")
		} else {
			finished <- s.server.Serve(limited)
		}
	}()
	if s.metrics != nil {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", s.h.o.Tokens.Guard("premix store", s.h.metrics))
		side.Handler = s.metrics.Protect(mux)
		running++
		go func() { finished <- side.Serve(bounded.New(s.metrics, bounded.Options{Total: metricsMost})) }()
	}
	flush := time.NewTicker(time.Second)
	defer flush.Stop()
	var errs []error
	for stopping := false; !stopping; {
		select {
		case err := <-finished:
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
				_ = one.Close() // its clients have had time to finish
			}
		})
	}
	both.Wait()
	for range running {
		errs = append(errs, <-finished)
	}
	for i, err := range errs {
		if errors.Is(err, http.ErrServerClosed) {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}
