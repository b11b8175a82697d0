package access

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Proxies are the addresses of trusted reverse proxies, whose X-Forwarded-For header names
// the client (https://developer.mozilla.org/docs/Web/HTTP/Reference/Headers/X-Forwarded-For).
// The zero value trusts none.
type Proxies struct {
	nets []netip.Prefix
	unix bool
}

// ParseProxies parses addresses and networks, as in 10.0.0.7 or 10.0.0.0/8, and "unix" for
// the clients of a Unix socket.
func ParseProxies(list []string) (Proxies, error) {
	var p Proxies
	for _, text := range list {
		if text == "unix" {
			p.unix = true
			continue
		}
		net, err := netip.ParsePrefix(text)
		if err != nil {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				return Proxies{}, fmt.Errorf("%q is not an address, a network such as 10.0.0.0/8, or unix", text)
			}
			addr = addr.Unmap()
			net = netip.PrefixFrom(addr, addr.BitLen())
		}
		p.nets = append(p.nets, net.Masked())
	}
	return p, nil
}

// Client returns the address of the client that sent a request. A client can put any
// addresses into the header, and each proxy appends the address of its peer: so the last
// address counts that is not the address of a trusted proxy. For a client of a Unix socket
// that no proxy names, Client returns RemoteAddr.
func (p Proxies) Client(r *http.Request) string {
	peer := r.RemoteAddr
	if host, _, err := net.SplitHostPort(peer); err == nil {
		peer = host
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for len(hops) > 0 && p.trusts(peer) {
		last := strings.TrimSpace(hops[len(hops)-1])
		hops = hops[:len(hops)-1]
		addr, err := netip.ParseAddr(last)
		if err != nil {
			break // no proxy writes this: the hop before it is the last one that is known
		}
		peer = addr.Unmap().String()
	}
	return peer
}

func (p Proxies) trusts(peer string) bool {
	addr, err := netip.ParseAddr(peer)
	if err != nil {
		return p.unix
	}
	addr = addr.Unmap().WithZone("")
	for _, n := range p.nets {
		if n.Contains(addr) {
			return true
		}
	}
	return false
}
