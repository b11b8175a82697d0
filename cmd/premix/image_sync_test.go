package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/rogpeppe/go-internal/testscript"
)

// registryCommand returns the command `registry` of scripts. It gives each script its own registry
// in memory. The address is in $REGISTRY after the first use:
//
//	registry push LAYOUT NAME:TAG
//	registry drop NAME:TAG
func registryCommand() func(*testscript.TestScript, bool, []string) {
	var mu sync.Mutex
	hosts := map[*testscript.TestScript]string{}
	return func(ts *testscript.TestScript, neg bool, args []string) {
		mu.Lock()
		host := hosts[ts]
		if host == "" {
			web := httptest.NewServer(http.Handler(registry.New(registry.Logger(log.New(io.Discard, "", 0)))))
			ts.Defer(func() {
				web.Close()
				mu.Lock()
				defer mu.Unlock()
				delete(hosts, ts)
			})
			host = strings.TrimPrefix(web.URL, "http://")
			hosts[ts] = host
			ts.Setenv("REGISTRY", host)
		}
		mu.Unlock()
		if neg || len(args) < 2 {
			ts.Fatalf("usage: registry push LAYOUT NAME:TAG | registry drop NAME:TAG")
		}
		ref, err := name.ParseReference(host + "/" + args[len(args)-1])
		ts.Check(err)
		if args[0] == "drop" {
			ts.Check(remote.Delete(ref))
			return
		}
		l, err := layout.ImageIndexFromPath(ts.MkAbs(args[1]))
		ts.Check(err)
		m, err := l.IndexManifest()
		ts.Check(err)
		im, err := l.Image(m.Manifests[0].Digest)
		ts.Check(err)
		ts.Check(remote.Write(ref, im))
	}
}
