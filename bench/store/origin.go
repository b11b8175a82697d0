package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"premix/internal/netrelay"
)

// origin is the web server that all contenders fetch from. It serves the
// directory of the work directory that is named like the contender, and as much
// of the registry protocol (OCI distribution specification) as it takes to read
// blobs: /v2/NAME/blobs/DIGEST is the file NAME/blobs/DIGEST of that contender.
type origin struct {
	URL string

	server   *http.Server
	requests atomic.Int64
}

// serve listens on the host; nil: on loopback.
func (l *lab) serve(h *netrelay.Host) (*origin, error) {
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
	o := &origin{URL: "http://" + listener.Addr().String()}
	files := http.FileServerFS(os.DirFS(filepath.Join(l.dir, "served")))
	o.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.requests.Add(1)
		if rest, ok := strings.CutPrefix(r.URL.Path, "/v2/"); ok {
			if rest == "" {
				return // "the registry speaks version 2"
			}
			w.Header().Set("Content-Type", "application/octet-stream")
			r.URL.Path = "/" + rest
		}
		files.ServeHTTP(w, r)
	})}
	go o.server.Serve(listener)
	return o, nil
}

func (o *origin) close() { o.server.Close() }

// download fetches a file and writes it, which is the least that any contender
// does. On the host of the client, as a process of its own, as it is a peer.
func download(url string, w io.Writer) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(url + ": " + resp.Status)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}
