package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"premix/internal/kit/access"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

const (
	// maxFile is the largest mutable file that is read into memory; a larger one, a
	// long history, is sent from the disk.
	maxFile = 1 << 20
	// slowest is the rate in bytes per second at which a client must receive an answer.
	slowest = 8 << 10
	// grace is added to the time that the slowest rate permits.
	grace = 30 * time.Second
	// busy is how long a request waits for its turn.
	busy = 10 * time.Second
)

// class is the kind of file that a path names.
type class string

const (
	objects    class = "object"
	tags       class = "tag"
	profiles   class = "profile"
	bootstraps class = "opening" // the name in metrics
	info       class = "store"
	nothing    class = "none"
)

// classify returns the class and the content type of a path below the root. It knows
// every path that a store has, and others are not served.
func classify(name string) (class, string) {
	const document = "application/json"
	switch {
	case name == tree.InfoPath:
		return info, document
	case strings.HasPrefix(name, "objects/"):
		// Exactly the form that Digest.Path returns.
		d, err := object.ParseDigest(name[strings.LastIndexByte(name, '/')+1:])
		if err == nil && d.Path() == name {
			return objects, "application/octet-stream"
		}
	case strings.HasPrefix(name, "tags/"):
		rest := name[len("tags/"):]
		i := strings.LastIndexByte(rest, '/')
		if i < 0 {
			break
		}
		kind := document
		tag, ok := strings.CutSuffix(rest[i+1:], ".history.jsonl")
		if ok {
			kind = "application/jsonl"
		} else if tag, ok = strings.CutSuffix(rest[i+1:], ".json"); !ok {
			break
		}
		if _, err := tree.ParseRef(rest[:i] + ":" + tag); err == nil {
			return tags, kind
		}
	case strings.HasPrefix(name, "profiles/"):
		digest, file, _ := strings.Cut(name[len("profiles/"):], "/")
		profile, ok := strings.CutSuffix(file, ".json")
		if _, err := object.ParseDigest(digest); ok && err == nil && tree.ParseProfileName(profile) == nil {
			return profiles, document
		}
	case strings.HasPrefix(name, tree.BootstrapsDir+"/"):
		tag, profile, _ := strings.Cut(name[len(tree.BootstrapsDir)+1:], "/")
		if len(tag) == 32 && strings.Trim(tag, "0123456789abcdef") == "" && tree.ParseProfileName(profile) == nil {
			return bootstraps, "application/octet-stream"
		}
	}
	return nothing, ""
}

// Options configure a handler. The zero value is usable.
type Options struct {
	// Tokens are required of requests; nil for none.
	Tokens *access.Tokens
	// Access gets a JSON object for each request; nil for no log.
	Access io.Writer
	// Requests is the number of concurrent requests; default 1024.
	Requests int
}

// Handler serves a store in a directory.
type Handler struct {
	root    *os.Root
	o       Options
	slots   chan struct{}
	metrics *Metrics

	logMu sync.Mutex
	log   *bufio.Writer
}

// NewHandler returns the handler of the store in dir. Close ends it.
func NewHandler(dir string, o Options) (*Handler, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if o.Requests <= 0 {
		o.Requests = 1024
	}
	h := &Handler{root: root, o: o, slots: make(chan struct{}, o.Requests), metrics: newMetrics()}
	if o.Access != nil {
		h.log = bufio.NewWriter(o.Access)
	}
	return h, nil
}

// Metrics returns the handler's metrics.
func (h *Handler) Metrics() *Metrics { return h.metrics }

// Close flushes the log and closes the directory. No request may be in progress.
func (h *Handler) Close() error { return errors.Join(h.FlushLog(), h.root.Close()) }

// FlushLog writes the buffered part of the access log.
func (h *Handler) FlushLog() error {
	if h.log == nil {
		return nil
	}
	h.logMu.Lock()
	defer h.logMu.Unlock()
	return h.log.Flush()
}

// Allowed reports whether a request carries a token if one is required. If not, it has
// answered the request.
func (h *Handler) Allowed(w http.ResponseWriter, r *http.Request) bool {
	if h.o.Tokens == nil {
		return true
	}
	if _, ok := h.o.Tokens.User(r); ok {
		return true
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="premix store"`)
	refuse(w, http.StatusUnauthorized)
	return false
}

// refuse answers with an error that is not to be cached.
func refuse(w http.ResponseWriter, status int) {
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, strings.ToLower(http.StatusText(status)), status)
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	answer := &recorder{ResponseWriter: w}
	what := nothing
	h.metrics.inFlight.Inc()
	defer func() {
		h.metrics.inFlight.Dec()
		h.done(answer, r, what, time.Since(began))
	}()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !h.Allowed(answer, r) {
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		refuse(answer, http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	var kind string
	if what, kind = classify(name); what == nothing {
		refuse(answer, http.StatusNotFound)
		return
	}
	wait := time.NewTimer(busy)
	select {
	case h.slots <- struct{}{}:
		wait.Stop()
		defer func() { <-h.slots }()
	case <-r.Context().Done():
		wait.Stop()
		return
	case <-wait.C:
		w.Header().Set("Retry-After", "2")
		refuse(answer, http.StatusServiceUnavailable)
		return
	}
	h.serve(answer, r, what, name, kind)
}

// serve sends a file.
func (h *Handler) serve(w *recorder, r *http.Request, what class, name, kind string) {
	f, err := h.root.Open(name)
	if err != nil {
		refuse(w, statusOf(err))
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || what == objects && (st.Size() == 0 || st.Size() > object.MaxStored) {
		refuse(w, http.StatusNotFound)
		return
	}
	header := w.Header()
	header.Set("Content-Type", kind)
	// A client that does not read must not occupy a descriptor and memory.
	limit := grace + time.Duration(st.Size()/slowest)*time.Second
	// Writers without deadlines, as in tests, have no limit.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit))
	if what == objects {
		// Two stores may have an object in two stored forms, usually of different
		// lengths: a range of one must not be completed by a range of the other.
		header.Set("ETag", fmt.Sprintf(`"%s-%x"`, name[strings.LastIndexByte(name, '/')+1:], st.Size()))
		visibility := "public"
		if h.o.Tokens != nil {
			visibility = "private"
		}
		header.Set("Cache-Control", visibility+", max-age=31536000, immutable")
		http.ServeContent(w, r, "", time.Time{}, f)
		return
	}
	header.Set("Cache-Control", "no-cache")
	if st.Size() > maxFile {
		header.Set("ETag", fmt.Sprintf(`"%x-%x"`, st.ModTime().UnixNano(), st.Size()))
		http.ServeContent(w, r, "", time.Time{}, f)
		return
	}
	// Files are replaced, never changed: the open file stays as it is.
	content := make([]byte, st.Size())
	if _, err := io.ReadFull(f, content); err != nil {
		refuse(w, http.StatusInternalServerError)
		return
	}
	header.Set("ETag", `"`+object.Sum(content).String()[:32]+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// statusOf returns the status for a file that could not be opened. It says that a file
// does not exist only if that is certain: clients would stop asking.
func statusOf(err error) int {
	var errno syscall.Errno
	switch {
	case !errors.As(err, &errno): // the path leads out of the root
		return http.StatusNotFound
	case errno == syscall.ENOENT, errno == syscall.ENOTDIR, errno == syscall.ELOOP:
		return http.StatusNotFound
	case errno == syscall.EMFILE, errno == syscall.ENFILE, errno == syscall.ENOMEM:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// record is a line of the access log.
type record struct {
	Time   time.Time `json:"time"`
	Client string    `json:"client"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	Range  string    `json:"range,omitempty"`
	Status int       `json:"status"`
	Bytes  int64     `json:"bytes"`
	Took   float64   `json:"took"` // seconds
	Agent  string    `json:"agent,omitempty"`
}

func (h *Handler) done(w *recorder, r *http.Request, what class, took time.Duration) {
	status := w.status
	if status == 0 {
		status = 499 // the client disconnected before the answer
	}
	h.metrics.count(what, status, w.sent, took)
	if h.log == nil {
		return
	}
	line, err := json.Marshal(record{time.Now().UTC(), r.RemoteAddr, r.Method, r.URL.Path, r.Header.Get("Range"), status, w.sent, took.Seconds(), r.UserAgent()})
	if err != nil {
		return // cannot happen: strings and numbers have a JSON form
	}
	h.logMu.Lock()
	defer h.logMu.Unlock()
	// A failing log must not stop the server; Close returns its error.
	_, _ = h.log.Write(append(line, '\n'))
}

// recorder records the status and size of an answer. It passes ReadFrom on, so that the
// kernel can send files.
type recorder struct {
	http.ResponseWriter
	status int
	sent   int64
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.sent += int64(n)
	return n, err
}

// ReadFrom implements io.ReaderFrom.
func (w *recorder) ReadFrom(r io.Reader) (int64, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := io.Copy(w.ResponseWriter, r)
	w.sent += n
	return n, err
}

// Unwrap implements the interface of http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
