package workbench

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"premix/internal/testkit/netrelay"
)

// Origin is the web server from which all measured programs fetch. It serves the lab's
// directory "served", and the part of the registry protocol (OCI distribution
// specification) that a pull needs: /v2/NAME/blobs/DIGEST and /v2/NAME/manifests/TAG are
// the files NAME/blobs/DIGEST and NAME/manifests/TAG there.
type Origin struct {
	URL string

	server   *http.Server
	Requests atomic.Int64 // number of requests so far
	watcher  atomic.Pointer[func(Request)]
}

// Request is a request to the origin that has ended.
type Request struct {
	Path       string
	Begin, End time.Time
	Bytes      int64 // of the response's body
}

// Watch calls f for each request that starts from now on, when it ends. With nil it stops
// the calls.
func (o *Origin) Watch(f func(Request)) {
	if f == nil {
		o.watcher.Store(nil)
		return
	}
	o.watcher.Store(&f)
}

// counted counts the bytes that are written.
type counted struct {
	http.ResponseWriter
	bytes int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.bytes += int64(n)
	return n, err
}

// Serve starts the origin on a host; nil means loopback on this machine.
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
			seen := Request{Path: r.URL.Path, Begin: time.Now()}
			c := &counted{ResponseWriter: w}
			w = c
			defer func() {
				seen.End, seen.Bytes = time.Now(), c.bytes
				(*watch)(seen)
			}()
		}
		if rest, ok := strings.CutPrefix(r.URL.Path, "/v2/"); ok {
			if rest == "" {
				return // "the registry speaks version 2"
			}
			w.Header().Set("Content-Type", "application/octet-stream")
			if strings.Contains(rest, "/manifests/") {
				w.Header().Set("Content-Type", l.manifestType(rest))
			}
			r.URL.Path = "/" + rest
		}
		files.ServeHTTP(w, r)
	})}
	go o.server.Serve(listener)
	return o, nil
}

// manifestType returns the media type of a served manifest: an image or an index of images.
func (l *Lab) manifestType(path string) string {
	content, err := os.ReadFile(filepath.Join(l.Dir, "served", filepath.Clean("/"+path)))
	var m struct{ Manifests []any }
	if err == nil && json.Unmarshal(content, &m) == nil && len(m.Manifests) > 0 {
		return "application/vnd.oci.image.index.v1+json"
	}
	return "application/vnd.oci.image.manifest.v1+json"
}

// Close ends the server.
func (o *Origin) Close() { o.server.Close() }
