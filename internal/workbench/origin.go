package workbench

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"premix/internal/netrelay"
)

// Origin is the web server that everything measured fetches from. It serves the
// directory served of the lab, and as much of the registry protocol (OCI distribution
// specification) as it takes to pull: /v2/NAME/blobs/DIGEST and /v2/NAME/manifests/TAG
// are the files NAME/blobs/DIGEST and NAME/manifests/TAG there.
type Origin struct {
	URL string

	server   *http.Server
	Requests atomic.Int64 // that were answered
	watcher  atomic.Pointer[func(Request)]
}

// Request is one that was answered.
type Request struct {
	Path       string
	Begin, End time.Time
	Bytes      int64 // of the body that was sent
}

// Watch has all requests told that end from now on; nil: none.
func (o *Origin) Watch(f func(Request)) {
	if f == nil {
		o.watcher.Store(nil)
		return
	}
	o.watcher.Store(&f)
}

// counted counts what is written.
type counted struct {
	http.ResponseWriter
	bytes int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.bytes += int64(n)
	return n, err
}

// Serve listens on the host; nil: on loopback.
func (l *Lab) Serve(h *netrelay.Host) (*Origin, error) {
	var listener net.Listener
	var err error
	if h == nil {
		listener, err = net.Listen("tcp4", "127.0.0.1:0")
	} else {
		listener, err = h.Listen(0)
	}
	if err != nil {
		return nil, err
	}
	o := &Origin{URL: "http://" + listener.Addr().String()}
	files := http.FileServerFS(os.DirFS(filepath.Join(l.Dir, "served")))
	o.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.Requests.Add(1)
		if watch := o.watcher.Load(); watch != nil {
			told := Request{Path: r.URL.Path, Begin: time.Now()}
			c := &counted{ResponseWriter: w}
			w = c
			defer func() {
				told.End, told.Bytes = time.Now(), c.bytes
				(*watch)(told)
			}()
		}
		if rest, ok := strings.CutPrefix(r.URL.Path, "/v2/"); ok {
			if rest == "" {
				return // "the registry speaks version 2"
			}
			w.Header().Set("Content-Type", "application/octet-stream")
			if strings.Contains(rest, "/manifests/") {
				w.Header().Set("Content-Type", manifestType)
			}
			r.URL.Path = "/" + rest
		}
		files.ServeHTTP(w, r)
	})}
	go o.server.Serve(listener)
	return o, nil
}

// manifestType is the only one of manifests that is served.
const manifestType = "application/vnd.oci.image.manifest.v1+json"

// Close ends the server.
func (o *Origin) Close() { o.server.Close() }
