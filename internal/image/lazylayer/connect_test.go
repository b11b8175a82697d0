package lazylayer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"premix/internal/kit/dial"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func answer(req *http.Request) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("")), Request: req}
}

// A login to a registry that may be reached without TLS sends its first request in both ways
// at once. The answer over TLS is preferred, and afterwards only TLS is used.
func TestPings(t *testing.T) {
	t.Parallel()
	refused := errors.New("no TLS here")
	for name, overTLS := range map[string]error{"TLS": nil, "no TLS": refused} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var plain atomic.Int64
			sent := make(chan struct{})
			ended := make(chan struct{})
			c := &connections{dialer: dial.New((&net.Dialer{}).DialContext), RoundTripper: roundTripper(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path != pingPath {
					return answer(req), nil
				}
				if req.URL.Scheme == "https" {
					<-sent // it is answered when the other request has been sent
					if overTLS == nil {
						return answer(req), nil
					}
					return nil, overTLS
				}
				if plain.Add(1) == 1 {
					close(sent)
				}
				if overTLS != nil {
					return answer(req), nil
				}
				<-req.Context().Done()
				close(ended)
				return nil, req.Context().Err()
			})}
			r := registryAt(t, "10.0.0.1:5000")
			base, end := c.to(t.Context(), r)
			_, err := transport.NewWithContext(t.Context(), r, authn.Anonymous, base, nil)
			end()
			if err != nil || plain.Load() != 1 {
				t.Fatalf("%d requests without TLS, %v", plain.Load(), err)
			}
			if resp, err := base.RoundTrip(httptest.NewRequest(http.MethodGet, "http://10.0.0.1:5000/v2/x/blobs/y", nil)); err != nil {
				t.Errorf("a request after the login: %v, %v", resp, err)
			}
			base, end = c.to(t.Context(), r)
			defer end()
			if overTLS == nil {
				<-ended
			}
			if _, again := base.(*pings); again != (overTLS != nil) {
				t.Errorf("both ways are tried again: %t", again)
			}
		})
	}
}

// The first request is only sent without TLS to registries on private networks.
func TestPingsPublic(t *testing.T) {
	t.Parallel()
	c := &connections{}
	if base, _ := c.to(t.Context(), registryAt(t, "registry.example.org")); base != http.RoundTripper(c) {
		t.Errorf("it is %T", base)
	}
}

// A login and the end of its context.
func TestLogin(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	hold, held := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 2 {
			close(held)
			<-hold
		}
	}))
	defer server.Close()
	defer close(hold)
	login := func(ctx context.Context) error {
		r, err := NewRepository(strings.TrimPrefix(server.URL, "http://")+"/x", authn.DefaultKeychain)
		if err != nil {
			t.Fatal(err)
		}
		return r.Login(ctx)
	}
	if err := login(t.Context()); err != nil || requests.Load() != 1 {
		t.Errorf("%d requests, %v", requests.Load(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() { failed <- login(ctx) }()
	<-held
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("a login that was given up: %v", err)
	}
}

func registryAt(t *testing.T, host string) name.Registry {
	t.Helper()
	r, err := name.NewRegistry(host)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
