package faulty

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Fault is a way to spoil responses.
type Fault string

// The faults.
const (
	None      Fault = ""
	HangUp    Fault = "hangs up"        // the connection is closed without an answer
	Late      Fault = "is late"         // no header is sent
	Stall     Fault = "stalls"          // half of the body is sent, then nothing
	Trickle   Fault = "trickles"        // the body is sent a byte at a time
	Truncate  Fault = "truncates"       // half of the body, then the connection is closed
	Flip      Fault = "flips a bit"     // in the middle of the body
	Short     Fault = "is short"        // half of the body, with the length of that half
	Long      Fault = "is long"         // bytes are appended, with the new length
	Huge      Fault = "is huge"         // a body without end
	Other     Fault = "gives another"   // the body of another path
	Fail      Fault = "fails"           // 500
	Overload  Fault = "is overloaded"   // 503
	Refuse    Fault = "refuses"         // 401
	Loop      Fault = "redirects"       // to itself
	Portal    Fault = "shows a page"    // 200, HTML
	Compress  Fault = "compresses"      // claims a content encoding
	Strange   Fault = "answers 204"     // a success without a body
	NotThere  Fault = "has nothing"     // 404
	Forbidden Fault = "forbids objects" // 403
)

// All returns the faults with which no response is usable.
func All() []Fault {
	return []Fault{HangUp, Late, Stall, Trickle, Truncate, Flip, Short, Long, Huge, Other, Fail, Overload, Refuse, Loop, Portal, Compress, Strange, Forbidden}
}

// Handler spoils the responses of another handler.
type Handler struct {
	good http.Handler

	mu    sync.Mutex
	fault Fault
	only  string    // a part of the paths that are spoiled
	seen  [2]answer // good responses of two paths
	stop  chan struct{}

	requests atomic.Int64
	bytes    atomic.Int64
}

type answer struct {
	path string
	body []byte
}

// New returns a handler that wraps a good one, without a fault.
func New(good http.Handler) *Handler { return &Handler{good: good, stop: make(chan struct{})} }

// Set sets the fault, for paths that contain only.
func (h *Handler) Set(f Fault, only string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault, h.only = f, only
}

// Fault returns the fault that was set last.
func (h *Handler) Fault() Fault {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fault
}

// Requests returns the number of requests so far.
func (h *Handler) Requests() int64 { return h.requests.Load() }

// Bytes returns the number of body bytes that were sent without a fault.
func (h *Handler) Bytes() int64 { return h.bytes.Load() }

// Stop ends all requests that still wait. Call it at the end of a test.
func (h *Handler) Stop() { close(h.stop) }

// another keeps the response of a path and returns the response of another one.
func (h *Handler) another(path string, code int, body []byte) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.seen {
		if h.seen[i].body == nil && code == http.StatusOK && (i == 0 || h.seen[0].path != path) {
			h.seen[i] = answer{path, bytes.Clone(body)}
		}
	}
	for _, a := range h.seen {
		if a.body != nil && a.path != path {
			return a.body
		}
	}
	return []byte("another")
}

// wait waits until the client disconnects or the test ends.
func (h *Handler) wait(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-h.stop:
	}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.requests.Add(1)
	h.mu.Lock()
	fault := h.fault
	if !strings.Contains(r.URL.Path, h.only) {
		fault = None
	}
	h.mu.Unlock()

	rec := httptest.NewRecorder()
	h.good.ServeHTTP(rec, r)
	body := rec.Body.Bytes()
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	other := h.another(r.URL.Path, rec.Code, body)

	half := body[:len(body)/2]
	send := func(code int, b []byte, length int) {
		w.Header().Set("Content-Length", strconv.Itoa(length))
		w.WriteHeader(code)
		if r.Method != http.MethodHead {
			_, _ = w.Write(b) // fails if the client has disconnected
		}
	}
	flush := func() { _ = http.NewResponseController(w).Flush() }
	switch fault {
	case None:
		h.bytes.Add(int64(len(body)))
		if rec.Code == http.StatusNotModified {
			w.WriteHeader(rec.Code)
			return
		}
		send(rec.Code, body, len(body))
	case HangUp:
		panic(http.ErrAbortHandler)
	case Late:
		h.wait(r)
	case Stall:
		send(rec.Code, half, len(body))
		flush()
		h.wait(r)
	case Trickle:
		send(rec.Code, nil, len(body))
		for i := range body {
			if _, err := w.Write(body[i : i+1]); err != nil {
				return
			}
			flush()
			select {
			case <-time.After(20 * time.Millisecond):
			case <-r.Context().Done():
				return
			case <-h.stop:
				return
			}
		}
	case Truncate:
		send(rec.Code, half, len(body))
		flush()
		panic(http.ErrAbortHandler)
	case Flip:
		b := bytes.Clone(body)
		if len(b) > 0 {
			b[len(b)/2] ^= 0x10
		}
		send(rec.Code, b, len(b))
	case Short:
		send(rec.Code, half, len(half))
	case Long:
		b := append(bytes.Clone(body), body...)
		send(rec.Code, b, len(b))
	case Huge:
		w.Header().Del("Content-Length")
		w.WriteHeader(rec.Code)
		block := make([]byte, 64<<10)
		for {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	case Other:
		send(rec.Code, other, len(other))
	case Fail:
		http.Error(w, "internal server error", http.StatusInternalServerError)
	case Overload:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "come back later", http.StatusServiceUnavailable)
	case Refuse:
		http.Error(w, "who are you", http.StatusUnauthorized)
	case Forbidden:
		http.Error(w, "no", http.StatusForbidden)
	case NotThere:
		http.NotFound(w, r)
	case Loop:
		http.Redirect(w, r, r.URL.Path, http.StatusFound)
	case Portal:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		page := []byte("<html><body>Please log in</body></html>")
		send(http.StatusOK, page, len(page))
	case Compress:
		w.Header().Set("Content-Encoding", "gzip")
		send(rec.Code, body, len(body))
	case Strange:
		w.Header().Del("Content-Length")
		w.WriteHeader(http.StatusNoContent)
	}
}
