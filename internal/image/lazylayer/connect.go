package lazylayer

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"premix/internal/kit/dial"
)

// connections is the transport of all repositories.
type connections struct {
	http.RoundTripper
	dialer *dial.Dialer
	tls    sync.Map // registries that have answered over TLS
}

var shared = sync.OnceValue(func() *connections {
	d := dial.New((&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext)
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = d.DialContext
	return &connections{RoundTripper: t, dialer: d}
})

// to returns the transport for a login to a registry and the requests after it, and a
// function that ends the login. A registry that may be reached without TLS gets several
// connections at once, for the parts of layers.
func (c *connections) to(ctx context.Context, registry name.Registry) (t http.RoundTripper, end func()) {
	host := registry.RegistryStr()
	if _, ok := c.tls.Load(host); ok || registry.Scheme() != "http" {
		return c, func() {}
	}
	c.dialer.Want()
	ctx, end = context.WithCancel(ctx)
	return &pings{connections: c, host: host, plain: sync.OnceValues(func() (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+pingPath, nil)
		if err != nil {
			return nil, err
		}
		return c.RoundTrip(req)
	})}, end
}

// pingPath is the path of the first request of a login.
const pingPath = "/v2/"

// pings is the transport for a registry that may be reached without TLS, such as one on a
// private network. The library sends the first request of a login over TLS, and without TLS
// when that has failed. pings sends both at the same time; neither has credentials. The
// library gets the answer to the second one when it sends that.
type pings struct {
	*connections
	host  string
	plain func() (*http.Response, error) // sends the request without TLS, once
}

// RoundTrip implements http.RoundTripper.
func (p *pings) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet || req.URL.Host != p.host || req.URL.Path != pingPath {
		return p.connections.RoundTrip(req)
	}
	if req.URL.Scheme == "http" {
		return p.plain()
	}
	go func() { _, _ = p.plain() }() // the end of the login closes an unused answer
	resp, err := p.connections.RoundTrip(req)
	if err == nil {
		p.tls.Store(p.host, true)
	}
	return resp, err
}
