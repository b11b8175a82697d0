package web

import (
	"compress/gzip"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"premix/internal/kit/access"
	"premix/internal/kit/bounded"
	"premix/internal/watch/alert"
	"premix/internal/watch/relay"
	"premix/internal/watch/series"
)

//go:embed openapi.json
var openAPI []byte

// Config configures a server.
type Config struct {
	DB      *series.DB
	Node    string         // name of this machine
	Version string         // of premix
	Tokens  *access.Tokens // nil: requests need no token
	Owner   bool           // requests through loopback by this user and by root need no token
	// Status returns the states of the collectors. It may be nil.
	Status  func() []CollectorStatus
	Alerts  func() alert.Answer    // nil: there are no rules
	Receive *Receive               // nil: other machines may not send data
	Sending func() relay.SendState // nil: nothing is sent to another machine
	Limits  Limits
	Now     func() time.Time // time.Now
	Pages   Pages
}

// Limits bound requests. Zero values are replaced by the defaults given here.
type Limits struct {
	Window   time.Duration // longest requested time: 5 years
	Points   int           // of all series in an answer: 1,000,000
	Tasks    int           // in an answer: 100,000
	Duration time.Duration // longest duration of a request: 30 s
	AtOnce   int           // large requests at a time: 4
	Live     int           // live connections: 64
}

func (l Limits) withDefaults() Limits {
	if l.Window == 0 {
		l.Window = 5 * 366 * 24 * time.Hour
	}
	if l.Points == 0 {
		l.Points = 1_000_000
	}
	if l.Tasks == 0 {
		l.Tasks = 100_000
	}
	if l.Duration == 0 {
		l.Duration = 30 * time.Second
	}
	if l.AtOnce == 0 {
		l.AtOnce = 4
	}
	if l.Live == 0 {
		l.Live = 64
	}
	return l
}

// CollectorStatus is the state of a collector.
type CollectorStatus struct {
	Name    string    `json:"name"`
	Last    time.Time `json:"last"`    // end of its last turn
	Error   string    `json:"error"`   // "" if that turn succeeded
	Seconds float64   `json:"seconds"` // duration of that turn
	Skipped int64     `json:"skipped"` // turns skipped because one was still running
}

// Server is an http.Handler.
type Server struct {
	c       Config
	mux     *http.ServeMux
	metrics *metrics
	slots   chan struct{} // held by large requests
	live    chan struct{} // held by live connections
	routes  []route
}

// route is a path with its handler.
type route struct {
	path string // pattern for ServeMux
	open bool   // does not need a token
	// f answers the request, or returns an error before it has written anything.
	f func(w http.ResponseWriter, r *http.Request) error
}

// New returns a server.
func New(c Config) (*Server, error) {
	if c.DB == nil {
		return nil, errors.New("serve: nothing to serve")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Limits = c.Limits.withDefaults()
	s := &Server{c: c, mux: http.NewServeMux(),
		slots: make(chan struct{}, c.Limits.AtOnce), live: make(chan struct{}, c.Limits.Live)}
	s.metrics = newMetrics(s)
	s.routes = []route{
		{path: "/api/v1/series", f: s.getSeries},
		{path: "/api/v1/names", f: s.getNames},
		{path: "/api/v1/tasks", f: s.getTasks},
		{path: "/api/v1/job", f: s.getJob},
		{path: "/api/v1/events", f: s.getEvents},
		{path: "/api/v1/alerts", f: s.getAlerts},
		{path: "/api/v1/explain", f: s.getExplain},
		{path: "/api/v1/live", f: s.getLive},
		{path: "/api/v1/status", f: s.getStatus},
		{path: "/metrics", f: s.getMetrics},
		{path: "/openapi.json", open: true, f: getOpenAPI},
		{path: "/healthz", open: true, f: getHealth},
	}
	for _, r := range s.routes {
		guard := s.guard
		if r.open {
			guard = func(h http.Handler) http.Handler { return h }
		}
		s.mux.Handle("GET "+r.path, guard(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if err := r.f(w, req); err != nil {
				s.metrics.refused.Inc()
				refuse(w, req, err)
			}
		})))
	}
	if c.Receive != nil {
		s.receiving(c.Receive)
	}
	c.Pages.routes(s.mux, c.DB, s.guard)
	s.mux.Handle("GET /api/", s.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, &problem{http.StatusNotFound, "nothing found at " + r.URL.Path, "see /openapi.json"})
	})))
	return s, nil
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	if err := s.addressed(r); err != nil {
		s.metrics.refused.Inc()
		refuse(w, r, err)
		return
	}
	s.mux.ServeHTTP(w, r)
	_, pattern := s.mux.Handler(r)
	if strings.HasSuffix(pattern, "/live") {
		return // it ends when the client closes the connection
	}
	s.metrics.took.WithLabelValues(strings.TrimPrefix(strings.TrimPrefix(pattern, "GET "), "POST ")).Observe(time.Since(began).Seconds())
}

// addressed refuses requests with a token in their address.
func (s *Server) addressed(r *http.Request) error {
	if r.URL.Query().Has("token") {
		return &problem{http.StatusBadRequest, "a token must not be in an address, because addresses end up in logs", "send it as a header: Authorization: Bearer TOKEN"}
	}
	return nil
}

// guard refuses requests without the token.
func (s *Server) guard(to http.Handler) http.Handler {
	if s.c.Tokens == nil {
		return to
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := s.c.Tokens.User(r); !ok && !(s.c.Owner && access.Own(r.Context())) {
			s.metrics.refused.Inc()
			refuse(w, r, &problem{http.StatusUnauthorized, "the token is missing or wrong", "send it as a header: Authorization: Bearer TOKEN"})
			return
		}
		to.ServeHTTP(w, r)
	})
}

// problem is an error with the status code of its answer.
type problem struct {
	status int
	text   string
	hint   string
}

func (e *problem) Error() string { return e.text }

// Hint returns the way to correct the request.
func (e *problem) Hint() string { return e.hint }

func bad(hint, format string, args ...any) error {
	return &problem{http.StatusBadRequest, fmt.Sprintf(format, args...), hint}
}

// refuse answers with an error. Nothing may have been written before.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the client has gone
	}
	body := struct {
		Error string `json:"error"`
		Hint  string `json:"hint"`
	}{Error: err.Error()}
	status := http.StatusInternalServerError
	var p *problem
	var many *series.TooManyError
	var hint interface{ Hint() string }
	if errors.As(err, &hint) {
		body.Hint = hint.Hint()
	}
	switch {
	case errors.As(err, &p):
		status = p.status
	case errors.As(err, &many):
		status = http.StatusBadRequest
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusServiceUnavailable
		body.Error, body.Hint = "the answer took too long", "ask for a longer step, a shorter time, or fewer series"
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="premix watch"`)
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) // an error means that the client has gone
}

// heavy waits for a slot for a large request, and limits its duration.
func (s *Server) heavy(r *http.Request) (ctx context.Context, done func(), err error) {
	ctx, cancel := context.WithTimeout(r.Context(), s.c.Limits.Duration)
	select {
	case s.slots <- struct{}{}:
		return ctx, func() { <-s.slots; cancel() }, nil
	case <-ctx.Done():
		cancel()
		return nil, nil, ctx.Err()
	}
}

var gzips = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant of the package
	}
	return z
}}

// writeJSON answers with a body, compressed if the client accepts it.
func writeJSON(w http.ResponseWriter, r *http.Request, body []byte) error {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept-Encoding")
	if len(body) < 1024 || !accepts(r, "gzip") {
		_, err := w.Write(body)
		return ignore(err)
	}
	h.Set("Content-Encoding", "gzip")
	z := gzips.Get().(*gzip.Writer)
	defer gzips.Put(z)
	z.Reset(w)
	_, err := z.Write(body)
	return ignore(errors.Join(err, z.Close()))
}

// ignore drops an error of writing to a client that has gone.
func ignore(error) error { return nil }

// accepts reports whether the client accepts an encoding: it names the encoding without
// q=0.
func accepts(r *http.Request, encoding string) bool {
	for _, part := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.TrimSpace(name) == encoding {
			q = strings.ReplaceAll(q, " ", "")
			return q != "q=0" && q != "q=0.0" && q != "q=0.00" && q != "q=0.000"
		}
	}
	return false
}

func marshalJSON(w http.ResponseWriter, r *http.Request, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeJSON(w, r, append(b, '\n'))
}

func getOpenAPI(w http.ResponseWriter, r *http.Request) error { return writeJSON(w, r, openAPI) }

func getHealth(w http.ResponseWriter, _ *http.Request) error {
	_, err := io.WriteString(w, "ok\n")
	return ignore(err)
}

const (
	// connections bounds the open connections. A quarter may come from one address.
	connections = 4096
	// stall is the time in which a client must take one MiB of an answer.
	stall = time.Minute
)

// Serve answers on a listener until the context ends; then it waits for a moment for
// running requests.
func (s *Server) Serve(ctx context.Context, l *access.Listener) error {
	requests, cut := context.WithCancel(context.Background())
	defer cut()
	h := &http.Server{
		Handler: l.Protect(s), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ConnState: bounded.TrackState(nil),
		BaseContext: func(net.Listener) context.Context { return requests }, ConnContext: access.ConnContext,
	}
	finished := make(chan error, 1)
	go func() {
		finished <- h.Serve(bounded.New(l, bounded.Options{Total: min(connections, bounded.Descriptors()), Stall: stall}))
	}()
	select {
	case err := <-finished:
		return err
	case <-ctx.Done():
	}
	cut() // end live connections, which would never finish
	closing, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if h.Shutdown(closing) != nil {
		h.Close()
	}
	<-finished
	return nil
}
