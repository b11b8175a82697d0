package access

import (
	"net/http"
	"testing"
)

// The client is the last address that does not belong to a trusted proxy: addresses that the client
// itself writes into the header do not count.
func TestClient(t *testing.T) {
	for _, c := range []struct {
		name    string
		proxies []string
		peer    string
		header  []string
		want    string
	}{
		{"no proxy is trusted", nil, "192.0.2.1:7", []string{"198.51.100.1"}, "192.0.2.1"},
		{"the peer is not trusted", []string{"10.0.0.0/8"}, "192.0.2.1:7", []string{"198.51.100.1"}, "192.0.2.1"},
		{"one proxy", []string{"10.0.0.0/8"}, "10.1.2.3:7", []string{"198.51.100.1"}, "198.51.100.1"},
		{"one address", []string{"10.1.2.3"}, "10.1.2.3:7", []string{"198.51.100.1"}, "198.51.100.1"},
		{"another address", []string{"10.1.2.4"}, "10.1.2.3:7", []string{"198.51.100.1"}, "10.1.2.3"},
		{"two proxies", []string{"10.0.0.0/8"}, "10.1.2.3:7", []string{"198.51.100.1, 10.9.9.9"}, "198.51.100.1"},
		{"two headers", []string{"10.0.0.0/8"}, "10.1.2.3:7", []string{"203.0.113.5", "198.51.100.1 ,10.9.9.9"}, "198.51.100.1"},
		{"a client that pretends", []string{"10.0.0.0/8"}, "10.1.2.3:7", []string{"203.0.113.5, 198.51.100.1"}, "198.51.100.1"},
		{"a client that pretends to be a proxy", []string{"10.0.0.0/8"}, "10.1.2.3:7", []string{"203.0.113.5, 10.0.0.1, 198.51.100.1"}, "198.51.100.1"},
		{"no header", []string{"10.0.0.0/8"}, "10.1.2.3:7", nil, "10.1.2.3"},
		{"all are proxies", []string{"10.0.0.0/8"}, "10.1.2.3:7", []string{"10.0.0.5"}, "10.0.0.5"},
		{"not an address", []string{"10.0.0.0/8"}, "10.1.2.3:7", []string{"198.51.100.1, unknown"}, "10.1.2.3"},
		{"IPv6", []string{"2001:db8::/32"}, "[2001:db8::1]:7", []string{"2001:DB9::2"}, "2001:db9::2"},
		{"IPv4 in IPv6", []string{"10.0.0.0/8"}, "[::ffff:10.1.2.3]:7", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"a socket that is not trusted", nil, "@", []string{"198.51.100.1"}, "@"},
		{"a trusted socket", []string{"unix"}, "@", []string{"198.51.100.1"}, "198.51.100.1"},
	} {
		p, err := ParseProxies(c.proxies)
		if err != nil {
			t.Fatal(err)
		}
		r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.header}}
		if got := p.Client(r); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	for _, wrong := range []string{"", "proxy.example", "10.0.0.0/33", "10.0.0.1:80"} {
		if _, err := ParseProxies([]string{wrong}); err == nil {
			t.Errorf("%q was accepted", wrong)
		}
	}
}
