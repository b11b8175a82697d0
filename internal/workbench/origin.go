package workbench

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

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
