package service

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"premix/internal/blast/database"
	"premix/internal/kit/htmlpage"
)

//go:embed web openapi.json
var content embed.FS

// longest is the longest time that a request may wait for a result.
const longest = 30 * time.Second

// Handler returns the handler of all requests:
//
//	/                  pages, see pages.go
//	/openapi.json      description of the REST interface
//	/api/v1/...        the REST interface
//	/Blast.cgi         NCBI's BLAST URL API
//	/metrics           for Prometheus
//	/healthz           200 while the service can answer searches, else 503
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	route := func(pattern, name string, f func(w http.ResponseWriter, r *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			began := time.Now()
			r.Body = http.MaxBytesReader(w, r.Body, s.o.Limits.Body)
			if err := f(w, r); err != nil {
				s.refusal(w, r, err)
			}
			s.metrics.took.WithLabelValues(name).Observe(time.Since(began).Seconds())
		})
	}
	route("GET /api/v1/databases", "databases", s.getDatabases)
	route("POST /api/v1/searches", "submit", s.postSearch)
	route("GET /api/v1/searches", "searches", s.getSearches)
	route("GET /api/v1/searches/{id}", "search", s.getSearch)
	route("DELETE /api/v1/searches/{id}", "delete", s.deleteSearch)
	route("GET /api/v1/searches/{id}/result", "result", s.getResult)
	route("GET /Blast.cgi", "ncbi", s.blastCGI)
	route("POST /Blast.cgi", "ncbi", s.blastCGI)
	metrics := s.metrics.handler()
	route("GET /metrics", "metrics", func(w http.ResponseWriter, r *http.Request) error {
		if _, err := s.user(r); err != nil {
			return err
		}
		metrics.ServeHTTP(w, r)
		return nil
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if s.health() != nil {
			http.Error(w, "results cannot be written to disk", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		http.ServeFileFS(w, r, content, "openapi.json")
	})
	headers := func(h http.Header) {
		h.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'")
		h.Set("Cache-Control", "no-cache")
	}
	page := func(pattern, name string, f func(w http.ResponseWriter, r *http.Request) error) {
		route(pattern, name, func(w http.ResponseWriter, r *http.Request) error {
			headers(w.Header())
			err := f(w, r)
			if err == nil || r.Context().Err() != nil {
				return nil
			}
			why := s.reason(r, err)
			s.metrics.refused.WithLabelValues(why.Reason).Inc()
			why.headers(w.Header())
			return show(w, why.Status, "message.html", map[string]any{"Title": "BLAST", "Text": why.Message, "Error": true})
		})
	}
	page("GET /{$}", "form", s.getForm)
	page("POST /search", "submit", s.postForm)
	page("GET /search", "page", s.getPage)
	page("GET /searches", "searches", s.getList)
	page("GET /query", "query", s.getQuery)
	page("GET /result", "result", s.getFile)
	page("GET /fasta", "fasta", s.getFASTA)
	page("POST /share", "share", s.postShare)
	page("POST /delete", "delete", s.postDelete)
	// The pages link to the style of all pages before their own.
	mux.HandleFunc("GET /premix.css", func(w http.ResponseWriter, r *http.Request) {
		headers(w.Header())
		htmlpage.ServeStyle(w, r)
	})
	for _, name := range []string{"app.js", "icon.svg", "style.css"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			headers(w.Header())
			http.ServeFileFS(w, r, content, "web/"+name)
		})
	}
	return mux
}

// reason returns why a request is refused. It logs errors of the service itself.
func (s *Service) reason(r *http.Request, err error) *Refusal {
	var why *Refusal
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &Refusal{Status: http.StatusRequestEntityTooLarge, Reason: "size", Message: fmt.Sprintf("a request has at most %d bytes", large.Limit)}
	case errors.As(err, &why):
		return why
	}
	s.o.Log.Error("a request failed", "path", r.URL.Path, "error", err)
	return &Refusal{Status: http.StatusInternalServerError, Reason: "internal", Message: "the service failed: its log says more"}
}

// headers sets the headers of an answer with the refusal.
func (why *Refusal) headers(h http.Header) {
	if why.After > 0 {
		h.Set("Retry-After", strconv.Itoa(why.After))
	}
	if why.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Basic realm="premix blast"`)
	}
}

// refusal answers a request with an error.
func (s *Service) refusal(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the client has gone
	}
	why := s.reason(r, err)
	s.metrics.refused.WithLabelValues(why.Reason).Inc()
	why.headers(w.Header())
	if strings.HasSuffix(r.URL.Path, "/Blast.cgi") {
		s.ncbiRefusal(w, why)
		return
	}
	answer(w, why.Status, map[string]any{"error": why.Message, "reason": why.Reason})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // an error means that the client has gone
}

// databaseAnswer describes a database to users.
type databaseAnswer struct {
	Name      string        `json:"name"`
	Type      database.Type `json:"type"`
	Title     string        `json:"title"`
	Sequences int64         `json:"sequences"`
	Letters   int64         `json:"letters"`
	Resident  bool          `json:"resident"`
}

// databases lists the databases.
func (s *Service) databases() ([]databaseAnswer, error) {
	names, err := database.List(s.o.Home)
	if err != nil {
		return nil, err
	}
	list := []databaseAnswer{}
	for _, name := range names {
		d, err := database.Open(s.o.Home, name)
		if err != nil {
			continue // damaged, or just removed
		}
		if d.For(database.BLAST) == nil {
			list = append(list, databaseAnswer{d.Name, d.Type, titleOf(d.Title), d.Sequences, d.Letters, d.Resident})
		}
		if err := d.Close(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (s *Service) getDatabases(w http.ResponseWriter, r *http.Request) error {
	if _, err := s.user(r); err != nil {
		return err
	}
	list, err := s.databases()
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, list)
	return nil
}

// searchRequest is the body of a request for a search.
type searchRequest struct {
	Program  string            `json:"program"`
	Database string            `json:"database"`
	Query    string            `json:"query"`
	Format   string            `json:"format"`
	Columns  string            `json:"columns"`
	Options  map[string]string `json:"options"`
}

// searchAnswer is the state of a search.
type searchAnswer struct {
	ID       string     `json:"id"`
	State    state      `json:"state"`
	Program  string     `json:"program"`
	Database string     `json:"database"`
	Options  []string   `json:"options"`
	Format   string     `json:"format"`
	Queries  int64      `json:"queries"`
	Letters  int64      `json:"letters"`
	Created  time.Time  `json:"created"`
	Finished *time.Time `json:"ended,omitempty"`
	Expires  *time.Time `json:"expires,omitempty"`
	Before   *int       `json:"before,omitempty"` // waiting jobs, up to and including this one
	Error    string     `json:"error,omitempty"`
}

// describe returns the state of a job. The caller holds mu.
func (s *Service) describe(j *job) searchAnswer {
	r := j.first()
	a := searchAnswer{ID: j.ID, State: r.state, Program: j.Program, Database: j.Database, Options: append([]string{}, j.Args...), Format: j.Format, Queries: j.Queries, Letters: j.Letters, Created: j.Created, Error: r.err}
	if !j.finished.IsZero() {
		expires := j.finished.Add(s.o.Keep)
		a.Finished, a.Expires = &j.finished, &expires
	}
	if r.state == waiting {
		n := s.queue.jobs
		a.Before = &n
	}
	return a
}

func (s *Service) postSearch(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		return refused(http.StatusUnsupportedMediaType, "body", "the body is to be application/json")
	}
	var q searchRequest
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&q); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return err
		}
		return refused(400, "body", "the body cannot be read: %v", err)
	}
	if q.Format == "" {
		q.Format = "json"
	}
	form, _, err := formatOf(q.Format, q.Columns)
	if err != nil {
		return err
	}
	j, err := s.Submit(user, q.Program, q.Database, q.Query, q.Options, form)
	if err != nil {
		return err
	}
	s.mu.Lock()
	a := s.describe(j)
	s.mu.Unlock()
	w.Header().Set("Location", "/api/v1/searches/"+j.ID)
	answer(w, http.StatusAccepted, a)
	return nil
}

func (s *Service) getSearches(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	// Without tokens several users may share an address, so ids must stay secret.
	list := []searchAnswer{}
	if s.o.Tokens != nil {
		s.mu.Lock()
		for _, j := range s.jobs {
			if j.User == user {
				list = append(list, s.describe(j))
			}
		}
		s.mu.Unlock()
	}
	answer(w, http.StatusOK, list)
	return nil
}

func (s *Service) getSearch(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	j, res, err := s.result(user, r.PathValue("id"), "")
	if err != nil {
		return err
	}
	if err := s.await(r, res, r.FormValue("wait")); err != nil {
		return err
	}
	s.mu.Lock()
	a := s.describe(j)
	s.mu.Unlock()
	answer(w, http.StatusOK, a)
	return nil
}

func (s *Service) deleteSearch(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	if err := s.delete(user, r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// await waits for a result for the number of seconds in a request.
func (s *Service) await(r *http.Request, res *result, seconds string) error {
	if seconds == "" {
		return nil
	}
	n, err := strconv.ParseFloat(seconds, 64)
	if err != nil || n < 0 {
		return refused(400, "wait", "%q is not a number of seconds", seconds)
	}
	return wait(r.Context(), res, min(longest, time.Duration(n*float64(time.Second))))
}

// wait waits for a result, at most for d.
func wait(ctx context.Context, res *result, d time.Duration) error {
	select {
	case <-res.done:
	case <-time.After(d):
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (s *Service) getResult(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	form := ""
	if name := r.FormValue("format"); name != "" {
		if form, _, err = formatOf(name, r.FormValue("columns")); err != nil {
			return err
		}
	}
	b, f, err := s.fetch(r, user, r.PathValue("id"), form, r.FormValue("wait"))
	if err != nil {
		return err
	}
	if b == nil {
		w.Header().Set("Retry-After", "1")
		answer(w, http.StatusAccepted, map[string]any{"state": "waiting"})
		return nil
	}
	send(w, f, b)
	return nil
}

// send sends a result. Text from a database must not run as a script.
func send(w http.ResponseWriter, f format, b []byte) {
	h := w.Header()
	h.Set("Content-Type", f.content)
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'; style-src 'unsafe-inline'")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b) // an error means that the client has gone
}

// fetch returns a result after waiting for the time in the request, or nil if there is none
// yet.
func (s *Service) fetch(r *http.Request, user, id, form, seconds string) ([]byte, format, error) {
	deadline := time.Now().Add(longest)
	for {
		j, res, err := s.result(user, id, form)
		if err != nil {
			return nil, format{}, err
		}
		if form == "" {
			form = j.Format
		}
		if err := s.await(r, res, seconds); err != nil {
			return nil, format{}, err
		}
		s.mu.Lock()
		st, place, stderr, other := res.state, res.place, res.err, j.results[form] != res
		s.mu.Unlock()
		switch {
		case st == failed:
			return nil, format{}, &Refusal{Status: http.StatusUnprocessableEntity, Reason: "failed", Message: stderr}
		case st != ready:
			return nil, format{}, nil
		case other && time.Now().Before(deadline):
			continue // wait for the result in the requested format after the first one
		case other:
			return nil, format{}, nil
		}
		f, err := formatNamed(form)
		if err != nil {
			return nil, f, err
		}
		b, err := s.read(place)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, f, refused(404, "unknown", "the search %q has expired", id)
		}
		if err == nil {
			s.mu.Lock()
			j.read = true
			s.mu.Unlock()
		}
		if b == nil && err == nil {
			b = []byte{}
		}
		return b, f, err
	}
}
