package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"premix/internal/store/object"
)

// HTTP is the origin of a store behind a web server; any server of files will do.
type HTTP struct {
	base  *url.URL
	web   *web
	plain atomic.Bool // files are not requested in pieces: that has failed
}

// NewHTTP returns the origin of the store whose root is at u.
func NewHTTP(u *url.URL, o Options) (*HTTP, error) {
	o = o.filled()
	base := *u
	base.Path = strings.TrimRight(base.Path, "/")
	base.RawPath = ""
	if base.Hostname() == "" {
		return nil, &OpenError{u.String(), errors.New("it names no host"), "write it as in https://example.org/store"}
	}
	routes, err := newRoutes(&base, o, false)
	if err != nil {
		return nil, err
	}
	return &HTTP{base: &base, web: &web{name: base.String(), routes: routes, o: o, slots: make(chan struct{}, o.Connections)}}, nil
}

func (h *HTTP) String() string { return h.web.name }

// Object implements [Origin].
func (h *HTTP) Object(ctx context.Context, d object.Digest) ([]byte, error) {
	b, err := h.web.get(ctx, request{name: d.Path(), url: h.url(d.Path()), limit: object.MaxStored})
	return b, err
}

func (h *HTTP) stream(ctx context.Context, d object.Digest, got func(soFar []byte)) ([]byte, error) {
	return h.web.get(ctx, request{name: d.Path(), url: h.url(d.Path()), limit: object.MaxStored, got: got})
}

// File implements [Origin]. It makes caches on the way revalidate the file.
func (h *HTTP) File(ctx context.Context, name string) ([]byte, error) {
	return h.web.get(ctx, request{name: name, url: h.url(name), limit: MaxFile, header: http.Header{"Cache-Control": {"max-age=0"}}})
}

// Bootstrap returns a file like File, and calls got with the bytes received so far
// whenever there are more. Usually many requests follow it: connections for them are opened
// at the same time, unless there are some, and fetch the file in pieces.
func (h *HTTP) Bootstrap(ctx context.Context, name string, got func(soFar []byte)) ([]byte, error) {
	req := request{name: "opening", url: h.url(name), limit: MaxFile, header: http.Header{"Cache-Control": {"max-age=0"}}, got: got}
	if h.Cold() {
		b, err := h.web.inPieces(ctx, h.web.routes[0], req)
		if !errors.Is(err, errPieces) {
			return b, err
		}
		h.plain.Store(true)
	}
	for _, r := range h.web.routes {
		r.spare.Want()
	}
	return h.web.get(ctx, req)
}

// Cold reports whether a file is to be requested in pieces over new connections. A proxy
// would not keep the pieces for other clients, and over TLS, where HTTP/2 is usual, all
// requests have one connection.
func (h *HTTP) Cold() bool {
	r := h.web.routes[0]
	return h.base.Scheme == "http" && len(h.web.routes) == 1 && !r.proxied(h.base) && r.spare.Since() > idleTime && !h.plain.Load()
}

func (h *HTTP) url(name string) string { return h.base.JoinPath(name).String() }

// refetch fetches a wrong object again: past the caches on the way, and then past the
// proxies if that is allowed.
func (h *HTTP) refetch(ctx context.Context, d object.Digest, valid func([]byte) error) ([]byte, error) {
	r := request{name: d.Path(), url: h.url(d.Path()), limit: object.MaxStored,
		header: http.Header{"Cache-Control": {"no-cache"}, "Pragma": {"no-cache"}}}
	b, err := h.web.get(ctx, r)
	if err == nil {
		if err = valid(b); err == nil {
			return b, nil
		}
	}
	direct := h.web.direct(h.base)
	if direct == nil {
		return nil, err
	}
	if b, err = h.web.once(ctx, direct, r); err != nil {
		return nil, err
	}
	return b, valid(b)
}

// web makes requests to one host, over its routes.
type web struct {
	name   string
	routes []*route
	o      Options
	slots  chan struct{} // bounds concurrent requests

	// prepare is called before the first request over a route. It may be nil.
	prepare func(context.Context, *route) error
}

// prepared calls prepare for a route unless it has already succeeded.
func (w *web) prepared(ctx context.Context, r *route) error {
	if w.prepare == nil {
		return nil
	}
	r.login.Lock()
	defer r.login.Unlock()
	if r.ready {
		return nil
	}
	err := w.prepare(ctx, r)
	r.ready = err == nil
	return err
}

// request is a GET.
type request struct {
	name   string // in errors
	url    string
	header http.Header
	limit  int64 // of the body, bytes
	offset int64 // of a range; meaningful where length is not 0
	length int64 // exact length of the range; 0 for the whole
	// version is not nil if the range may reach beyond the end, or begin there. It receives
	// the properties of the answer that differ if the file has changed.
	version *string

	got func(soFar []byte) // may be nil
}

// errWhole is returned when the server answers a range request with the whole.
var errWhole = errors.New("the server ignores ranges")

// direct returns a route without a proxy for a refetch, or nil if there is none or it
// was the first choice already.
func (w *web) direct(u *url.URL) *route {
	for i, r := range w.routes {
		if !r.proxied(u) && i > 0 {
			return r
		}
	}
	return nil
}

// get makes a request over one route after the other.
func (w *web) get(ctx context.Context, req request) ([]byte, error) {
	var first error
	for _, r := range w.inOrder() {
		b, err := w.once(ctx, r, req)
		if err == nil {
			r.note(&w.o, false)
			return b, nil
		}
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return nil, err // of the context, or errWhole
		}
		switch e.Kind {
		case NotFound, Refused, TooLarge:
			return nil, err
		case Unreachable, TimedOut, Stalled, Truncated:
			r.note(&w.o, true)
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// inOrder returns all routes, resting ones last.
func (w *web) inOrder() []*route {
	if len(w.routes) == 1 {
		return w.routes
	}
	var well, resting []*route
	for _, r := range w.routes {
		if r.resting() {
			resting = append(resting, r)
		} else {
			well = append(well, r)
		}
	}
	return append(well, resting...)
}

// once makes a request over one route.
func (w *web) once(ctx context.Context, r *route, req request) ([]byte, error) {
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-w.slots }()

	fail := func(k Kind, err error) ([]byte, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err() // the caller cancelled it
		}
		if len(w.routes) > 1 || r.name != "environment" && r.name != Direct {
			if err == nil {
				err = errors.New("over " + r.name)
			} else {
				err = fmt.Errorf("%w (over %s)", err, r.name)
			}
		}
		return nil, &Error{Origin: w.name, Name: req.name, Kind: k, Err: err}
	}

	if err := w.prepared(ctx, r); err != nil {
		return nil, err
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hr, err := http.NewRequestWithContext(inner, http.MethodGet, req.url, nil)
	if err != nil {
		return fail(Misnamed, nil)
	}
	for k, v := range req.header {
		hr.Header[k] = v
	}
	hr.Header.Set("Accept-Encoding", "identity")
	if req.length > 0 {
		hr.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", req.offset, req.offset+req.length-1))
	}
	resp, err := r.client.Do(hr)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // the message already has the URL
		}
		return fail(kindOfTransport(err), err)
	}
	// The body is closed without reading the rest: the connection of a wrong answer is
	// not worth keeping.
	defer resp.Body.Close()
	if req.version != nil {
		_, size, _ := strings.Cut(resp.Header.Get("Content-Range"), "/")
		*req.version = size
		if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
			// The answer is right, and the next request needs the connection: it can be
			// used again once the body has been read.
			w.readRefusal(cancel, resp.Body)
			return nil, nil // such an answer may have the size alone
		}
		*req.version += " " + resp.Header.Get("ETag") + " " + resp.Header.Get("Last-Modified")
	}
	if k, err := kindOfStatus(resp, req.length > 0); k != "" {
		if k == NotFound && resp.ContentLength >= 0 && resp.ContentLength <= smallAnswer {
			// A missing file is a usual answer, after which the connection is used again.
			w.readRefusal(cancel, resp.Body)
		}
		_, err = fail(k, err)
		if e, ok := errors.AsType[*Error](err); ok {
			e.After = retryAfter(resp)
		}
		return nil, err
	}
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return fail(Unexpected, fmt.Errorf("its content encoding is %q: the server, or a proxy, must pass the files of a store on unchanged", enc))
	}
	if t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); t == "text/html" {
		return fail(Unexpected, errors.New("the answer is a web page"))
	}
	if req.length > 0 && resp.StatusCode == http.StatusOK {
		return nil, errWhole
	}
	limit := req.limit
	if req.length > 0 {
		limit = req.length
	}
	if resp.ContentLength > limit {
		return fail(TooLarge, fmt.Errorf("%d bytes", resp.ContentLength))
	}
	stall := watch(cancel, w.o.Stall, w.o.StallBytes)
	defer stall.stop()
	b, err := readBody(resp.Body, resp.ContentLength, limit, stall, req.got)
	switch {
	case err == nil:
	case errors.Is(context.Cause(inner), errStalled):
		return fail(Stalled, fmt.Errorf("less than %d bytes in %s", w.o.StallBytes, w.o.Stall))
	case errors.Is(err, errLarge):
		return fail(TooLarge, fmt.Errorf("more than %d bytes", limit))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fail(Truncated, fmt.Errorf("%d of %d bytes", len(b), resp.ContentLength))
	default:
		return fail(Truncated, err)
	}
	if req.length > 0 && int64(len(b)) != req.length && req.version == nil {
		return fail(Truncated, fmt.Errorf("%d of %d bytes", len(b), req.length))
	}
	return b, nil
}

// smallAnswer is the size up to which the text of an error is read, in bytes.
const smallAnswer = 4 << 10

// readRefusal reads the text of an error, after which the connection can be used again.
func (w *web) readRefusal(cancel context.CancelCauseFunc, body io.Reader) {
	stall := watch(cancel, w.o.Stall, w.o.StallBytes)
	defer stall.stop()
	_, _ = io.CopyN(io.Discard, body, smallAnswer)
}

var errLarge = errors.New("larger than the limit")

// readBody reads at most limit bytes; length is -1 if it is unknown.
func readBody(r io.Reader, length, limit int64, s *stallWatch, got func([]byte)) ([]byte, error) {
	room := length
	if room < 0 {
		room = min(limit, 64<<10)
	}
	b := make([]byte, 0, room+1) // one byte more, so that the read that finds the end has space
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		s.progress(n)
		if int64(len(b)) > limit {
			return b, errLarge
		}
		if got != nil && n > 0 {
			got(b)
		}
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

// kindOfStatus returns "" if the body of the answer is to be read.
func kindOfStatus(resp *http.Response, ranged bool) (Kind, error) {
	err := errors.New(resp.Status)
	switch s := resp.StatusCode; {
	case s == http.StatusOK, s == http.StatusPartialContent && ranged:
		return "", nil
	case s == http.StatusNotFound, s == http.StatusGone:
		return NotFound, nil
	case s == http.StatusUnauthorized, s == http.StatusForbidden:
		return Refused, err
	case s == http.StatusProxyAuthRequired:
		return Unreachable, err
	case s == http.StatusRequestTimeout:
		return TimedOut, err
	case s == http.StatusTooManyRequests, s >= 500:
		return Broken, err
	}
	return Unexpected, err
}

// retryAfter parses the Retry-After header (RFC 9110, 10.2.3), within bounds.
func retryAfter(resp *http.Response) time.Duration {
	s := resp.Header.Get("Retry-After")
	if s == "" {
		return 0
	}
	wait := time.Minute
	if n, err := strconv.Atoi(s); err == nil {
		wait = time.Duration(max(0, min(n, 60))) * time.Second
	} else if t, err := http.ParseTime(s); err == nil {
		wait = max(0, min(time.Until(t), time.Minute))
	}
	return wait
}
