package cvmfs

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	connectTime = 10 * time.Second
	answerTime  = 20 * time.Second
	stallTime   = 30 * time.Second // without a byte
	restTime    = 60 * time.Second // of a server or proxy that failed
)

// route is one way to a repository.
type route struct{ server, proxy string }

// fetcher requests files of a repository. Servers and proxies that failed are asked
// last for a while.
type fetcher struct {
	servers []string
	groups  [][]string
	clients map[string]*http.Client // by proxy

	mu  sync.Mutex
	bad map[string]time.Time // servers and proxies, until when
}

func newFetcher(servers []string, groups [][]string) (*fetcher, error) {
	f := &fetcher{servers: servers, groups: groups, clients: map[string]*http.Client{}, bad: map[string]time.Time{}}
	for _, s := range servers {
		if u, err := url.Parse(s); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, &Error{Kind: Usage, Reason: fmt.Sprintf("%q is not the URL of a server", s), HintText: "write it as in http://s1.example.org/cvmfs/@fqrn@"}
		}
	}
	for _, p := range slices.Concat(groups...) {
		t := &http.Transport{MaxIdleConnsPerHost: 2 * aheadObjects, ResponseHeaderTimeout: answerTime, TLSHandshakeTimeout: connectTime, DisableCompression: true}
		if p != "DIRECT" {
			u, err := url.Parse(p)
			if err != nil {
				return nil, &Error{Kind: Usage, Reason: fmt.Sprintf("%q is not a proxy", p), Err: err}
			}
			t.Proxy = http.ProxyURL(u)
		}
		f.clients[p] = &http.Client{Transport: t}
	}
	return f, nil
}

// close ends idle connections.
func (f *fetcher) close() {
	for _, c := range f.clients {
		c.CloseIdleConnections()
	}
}

// routes returns all ways, the best first. Proxies of a group take turns.
func (f *fetcher) routes() []route {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	var good, rest []route
	for _, g := range f.groups {
		g = slices.Clone(g)
		rand.Shuffle(len(g), func(i, j int) { g[i], g[j] = g[j], g[i] })
		for _, p := range g {
			for _, s := range f.servers {
				if f.bad[s].After(now) || f.bad[p].After(now) {
					rest = append(rest, route{s, p})
				} else {
					good = append(good, route{s, p})
				}
			}
		}
	}
	return append(good, rest...)
}

// orderTime bounds the requests for an order of the servers.
const orderTime = 5 * time.Second

// order sorts the servers by their distance, which one of them knows (GeoAPI): it answers with
// the places of the given hosts, the nearest first, from 1 on. The distance is measured from the
// proxy, if there is one. An order needs no trust, since it is only a preference.
func (f *fetcher) order(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	f.mu.Lock()
	servers := slices.Clone(f.servers)
	f.mu.Unlock()
	var hosts []string
	for _, s := range servers {
		u, err := url.Parse(s)
		if err != nil {
			return err
		}
		hosts = append(hosts, u.Hostname())
	}
	var errs []error
	for _, r := range f.routes() {
		from := "direct"
		if u, err := url.Parse(r.proxy); err == nil && u.Host != "" {
			from = u.Hostname()
		}
		var places []int
		err := f.get(ctx, r, "api/v1.0/geo/"+from+"/"+strings.Join(hosts, ","), false, func(body io.Reader) error {
			b, err := io.ReadAll(io.LimitReader(body, 4<<10))
			if err == nil {
				places, err = parseOrder(string(b), len(servers))
			}
			return err
		})
		if err == nil {
			sorted := make([]string, len(servers))
			for i, k := range places {
				sorted[i] = servers[k]
			}
			f.mu.Lock()
			f.servers = sorted
			f.mu.Unlock()
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", r.server, err))
	}
	return errors.Join(errs...)
}

// parseOrder parses an order of n places, which are returned from 0 on.
func parseOrder(s string, n int) ([]int, error) {
	var places []int
	for word := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		k, err := strconv.Atoi(word)
		if err != nil || k < 1 || k > n || slices.Contains(places, k-1) {
			return nil, fmt.Errorf("%.40q is not an order of %d servers", s, n)
		}
		places = append(places, k-1)
	}
	if len(places) != n {
		return nil, fmt.Errorf("%.40q is not an order of %d servers", s, n)
	}
	return places, nil
}

// failed notes a failure. A proxy that answers is not to blame for its server.
func (f *fetcher) failed(r route, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	until := time.Now().Add(restTime)
	var status *statusError
	if errors.As(err, &status) && status.code == http.StatusNotFound {
		return
	}
	var op *url.Error
	if r.proxy != "DIRECT" && errors.As(err, &op) {
		f.bad[r.proxy] = until
		return
	}
	f.bad[r.server] = until
}

// statusError is an answer other than 200.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return "status " + e.text }

// try asks every way for a path until use accepts the answer. An answer that use refuses
// is asked for again past caches.
func (f *fetcher) try(ctx context.Context, path string, use func(r io.Reader) error) error {
	var reasons []string
	lied := false
	var last error
	for _, r := range f.routes() {
		for _, fresh := range []bool{false, true} {
			err := f.get(ctx, r, path, fresh, use)
			if err == nil {
				return nil
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			var local *localError
			if errors.As(err, &local) {
				return local.err
			}
			var bad *Error
			wrong := errors.As(err, &bad) && bad.Kind == Trust
			lied = lied || wrong
			if wrong && !fresh && r.proxy != "DIRECT" {
				continue
			}
			last = err
			f.failed(r, err)
			way := r.server
			if r.proxy != "DIRECT" {
				way += " through " + r.proxy
			}
			reasons = append(reasons, way+": "+err.Error())
			break
		}
	}
	e := &Error{Kind: Origin, Reason: path + ": " + strings.Join(reasons, "; "), HintText: "check that the servers can be reached (--server, --http-proxy)", Err: last}
	if lied {
		e.Kind, e.HintText = Trust, "the servers or a proxy give wrong data: name other ones"
	}
	return e
}

// localError is an error of this machine, for which no server is to blame.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }

func (f *fetcher) get(ctx context.Context, r route, path string, fresh bool, use func(io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(r.server, "/")+"/"+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "premix")
	if fresh {
		req.Header.Set("Cache-Control", "no-cache")
	}
	a, err := f.clients[r.proxy].Do(req)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return &statusError{a.StatusCode, a.Status}
	}
	stall := time.AfterFunc(stallTime, func() { cancel(errors.New("the answer stalled")) })
	defer stall.Stop()
	err = use(&progressing{a.Body, func() { stall.Reset(stallTime) }})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// progressing calls moved when bytes arrive.
type progressing struct {
	r     io.Reader
	moved func()
}

func (p *progressing) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if n > 0 {
		p.moved()
	}
	return n, err
}

// small returns a whole file of at most most bytes that check accepts.
func (f *fetcher) small(ctx context.Context, path string, most int64, check func([]byte) error) ([]byte, error) {
	var content []byte
	err := f.try(ctx, path, func(r io.Reader) error {
		b, err := io.ReadAll(io.LimitReader(r, most+1))
		if err != nil {
			return err
		}
		if int64(len(b)) > most {
			return distrust("", "more than %d bytes", most)
		}
		content = b
		return check(b)
	})
	return content, err
}

// object writes the content of an object to file from off on, and returns its size. More
// than most bytes are an error. Until object returns nil, the bytes there are not verified,
// and must not be used.
func (f *fetcher) object(ctx context.Context, h Hash, kind string, plain bool, most int64, file *os.File, off int64) (n int64, err error) {
	err = f.try(ctx, h.path(kind), func(r io.Reader) error {
		body := &tracked{r: r}
		sum := h.algorithm.new()
		hashed := io.TeeReader(body, sum)
		written, err := unpack(&offsetWriter{file, off, most}, hashed, plain)
		var local *localError
		if errors.As(err, &local) {
			return err
		}
		// An interrupted answer is not a lie.
		if _, copyErr := io.Copy(io.Discard, io.LimitReader(hashed, restMost)); body.err != nil {
			return body.err
		} else if copyErr != nil {
			return copyErr
		}
		if got := sum.Sum(nil); !bytes.Equal(got, h.digest[:]) {
			return distrust("", "object %s has another hash", h)
		}
		if err != nil {
			return distrust("", "object %s: %v", h, err)
		}
		n = written
		return nil
	})
	return n, err
}

// restMost limits how much is read of an answer whose content is wrong, to find out
// whether its hash is too.
const restMost = 64 << 20

// unpack writes the content of an object.
func unpack(w *offsetWriter, r io.Reader, plain bool) (int64, error) {
	if !plain {
		z, err := zlib.NewReader(r)
		if err != nil {
			return 0, err
		}
		defer z.Close()
		r = z
	}
	return io.Copy(w, r)
}

// tracked keeps the error of a reader.
type tracked struct {
	r   io.Reader
	err error // except io.EOF
}

func (t *tracked) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && err != io.EOF {
		t.err = err
	}
	return n, err
}

// offsetWriter writes into a file, at most left bytes.
type offsetWriter struct {
	file *os.File
	off  int64
	left int64
}

func (w *offsetWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > w.left {
		return 0, errors.New("it is larger than announced")
	}
	n, err := w.file.WriteAt(p, w.off)
	w.off += int64(n)
	w.left -= int64(n)
	if err != nil {
		return n, &localError{err}
	}
	return n, nil
}
