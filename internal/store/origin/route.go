package origin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"premix/internal/kit/dial"
)

// Direct in place of a proxy means that no proxy is used.
const Direct = "DIRECT"

// idleTime is how long a connection stays open unused.
const idleTime = 90 * time.Second

// maxRedirects is the number of redirects that a request may follow.
const maxRedirects = 5

// route is one way to an origin.
type route struct {
	name   string // of the proxy, without credentials; Direct; "environment"
	proxy  func(*http.Request) (*url.URL, error)
	client *http.Client
	push   http.RoundTripper // for uploads, whose verification by a registry may take long
	spare  *dial.Dialer

	login sync.Mutex // held while web.prepare runs
	ready bool       // prepare has succeeded; guarded by login

	mu    sync.Mutex
	until time.Time // end of its rest
	fails int
}

func (r *route) resting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.until)
}

// note records the health of a proxy. Health decides only the order: if all routes
// rest, all are tried.
func (r *route) note(o *Options, bad bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !bad {
		r.fails, r.until = 0, time.Time{}
		return
	}
	if time.Now().Before(r.until) {
		return // another request that failed at the same time
	}
	r.fails++
	r.until = time.Now().Add(backOff(o.Rest, 6*o.RestMost, r.fails))
}

// proxied reports whether a request for this URL goes through a proxy.
func (r *route) proxied(u *url.URL) bool {
	p, err := r.proxy(&http.Request{URL: u})
	return err == nil && p != nil
}

var (
	errRedirects = fmt.Errorf("more than %d redirects", maxRedirects)
	errDowngrade = errors.New("a redirect leads from https to http")
	errScheme    = errors.New("a redirect leads to another scheme than http and https")
	errStalled   = errors.New("the answer stalled")
)

// guard sends credentials and the client's certificate to the origin's host only. If
// open is set it leaves headers alone: a registry's credentials also go to its token
// server, which is the responsibility of the library that adds them.
type guard struct {
	home          *url.URL
	authorization string
	agent         string
	open          bool
	own, others   http.RoundTripper
}

func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	home := req.URL.Host == g.home.Host && req.URL.Scheme == g.home.Scheme
	req = req.Clone(req.Context())
	req.Header.Set("User-Agent", g.agent)
	if !home {
		if !g.open {
			req.Header.Del("Authorization")
			req.Header.Del("Cookie")
		}
		return g.others.RoundTrip(req)
	}
	if g.authorization != "" && req.Header.Get("Authorization") == "" {
		req.Header.Set("Authorization", g.authorization)
	}
	return g.own.RoundTrip(req)
}

// CloseIdleConnections implements the interface of http.Client.
func (g *guard) CloseIdleConnections() {
	for _, t := range []http.RoundTripper{g.own, g.others} {
		if c, ok := t.(interface{ CloseIdleConnections() }); ok {
			c.CloseIdleConnections()
		}
	}
}

// newRoutes returns the routes to the host of home. For a registry, the library handles
// credentials.
func newRoutes(home *url.URL, o Options, registry bool) ([]*route, error) {
	name := home.Scheme + "://" + home.Host
	var authorization string
	if !registry {
		var err error
		if authorization, err = o.Credentials.header(home); err != nil {
			return nil, err
		}
	}
	own, others, err := tlsConfigs(o)
	if err != nil {
		return nil, &OpenError{name, err, hintPEM}
	}
	var routes []*route
	for _, p := range o.Proxies {
		r := &route{name: p}
		if strings.EqualFold(p, Direct) {
			r.name, r.proxy = Direct, func(*http.Request) (*url.URL, error) { return nil, nil }
		} else {
			u, err := proxyURL(p, o.Credentials)
			if err != nil {
				return nil, err
			}
			r.name, r.proxy = u.Scheme+"://"+u.Host, http.ProxyURL(u)
		}
		routes = append(routes, r)
	}
	if len(routes) == 0 {
		routes = append(routes, &route{name: "environment", proxy: http.ProxyFromEnvironment})
	}
	for _, r := range routes {
		r.spare = dial.New((&net.Dialer{Timeout: o.Connect, KeepAlive: 15 * time.Second}).DialContext)
		transport := func(t *tls.Config, header time.Duration) http.RoundTripper {
			return &http.Transport{
				Proxy:                  r.proxy,
				DialContext:            r.spare.DialContext,
				TLSClientConfig:        t,
				TLSHandshakeTimeout:    o.Connect,
				ResponseHeaderTimeout:  header,
				ExpectContinueTimeout:  time.Second,
				MaxConnsPerHost:        o.Connections,
				MaxIdleConnsPerHost:    o.Connections,
				MaxIdleConns:           2 * o.Connections,
				IdleConnTimeout:        idleTime,
				MaxResponseHeaderBytes: 64 << 10,
				DisableCompression:     true,
				ForceAttemptHTTP2:      true,
				HTTP2:                  &http.HTTP2Config{SendPingTimeout: o.Stall, PingTimeout: o.Connect},
			}
		}
		r.push = &guard{home, authorization, o.UserAgent, registry, transport(own, idlePush), transport(others, idlePush)}
		r.client = &http.Client{
			Transport: &guard{home, authorization, o.UserAgent, registry, transport(own, o.Header), transport(others, o.Header)},
			CheckRedirect: func(req *http.Request, via []*http.Request) error {
				last := via[len(via)-1].URL
				switch {
				case len(via) > maxRedirects:
					return errRedirects
				case req.URL.Scheme != "http" && req.URL.Scheme != "https":
					return errScheme
				case last.Scheme == "https" && req.URL.Scheme == "http":
					return errDowngrade
				}
				return nil
			},
		}
	}
	return routes, nil
}

// proxyURL parses a proxy and adds its credentials.
func proxyURL(p string, c *Credentials) (*url.URL, error) {
	if !strings.Contains(p, "://") {
		p = "http://" + p
	}
	u, err := url.Parse(p)
	if err != nil || u.Host == "" {
		return nil, &OpenError{"proxy", errors.New("it is not a URL"), "write a proxy as in http://proxy.example.org:3128, or DIRECT"}
	}
	if u.User != nil {
		return nil, &OpenError{"proxy " + u.Scheme + "://" + u.Host, errors.New("user and password do not belong in a URL, where other users of this machine see them"),
			"put a line `machine " + u.Host + " login USER password PASSWORD` into the credentials file"}
	}
	switch u.Scheme {
	case "http", "https", "socks5", "socks5h":
	default:
		return nil, &OpenError{"proxy " + p, fmt.Errorf("%q is not a scheme of a proxy", u.Scheme), "write a proxy as in http://proxy.example.org:3128, or DIRECT"}
	}
	e, err := c.find(u)
	if err != nil {
		return nil, err
	}
	if e != nil && e.login != "" {
		u.User = url.UserPassword(e.login, e.secret)
	}
	return u, nil
}

const hintPEM = "give PEM files that this user may read"

// tlsConfigs returns the configuration for the origin's host and the one for targets of
// redirects.
func tlsConfigs(o Options) (own, others *tls.Config, err error) {
	own = &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, nil, err
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool() // the system has no pool
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("%s contains no certificate", o.CAFile)
		}
		own.RootCAs = pool
	}
	others = own.Clone()
	if o.CertFile != "" || o.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, nil, err
		}
		own.Certificates = []tls.Certificate{cert}
	}
	return own, others, nil
}

// kindOfTransport classifies the error of a round trip.
func kindOfTransport(err error) Kind {
	var (
		verify    *tls.CertificateVerificationError
		record    tls.RecordHeaderError
		alert     tls.AlertError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		network   net.Error
	)
	switch {
	case errors.Is(err, errRedirects), errors.Is(err, errDowngrade), errors.Is(err, errScheme):
		return Redirected
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &verify), errors.As(err, &record), errors.As(err, &alert), errors.As(err, &authority), errors.As(err, &hostname), errors.As(err, &invalid):
		return Certificate
	case errors.As(err, &network) && network.Timeout():
		return TimedOut
	}
	return Unreachable
}

// stallWatch cancels a request whose body brings less than least bytes in a window of
// time.
type stallWatch struct {
	timer  *time.Timer
	window time.Duration
	least  int64
	got    int64
}

func watch(cancel context.CancelCauseFunc, window time.Duration, least int64) *stallWatch {
	return &stallWatch{timer: time.AfterFunc(window, func() { cancel(errStalled) }), window: window, least: least}
}

func (s *stallWatch) progress(n int) {
	if s.got += int64(n); s.got >= s.least {
		s.got = 0
		s.timer.Reset(s.window)
	}
}

func (s *stallWatch) stop() { s.timer.Stop() }
