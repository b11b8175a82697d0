package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
)

// rangeFile holds the range of ports for outgoing connections (ip(7)).
const rangeFile = "/proc/sys/net/ipv4/ip_local_port_range"

// Free returns n ports on which no process listens, at any address.
func Free(n int) (list []int, err error) {
	text, err := os.ReadFile(rangeFile)
	if err != nil {
		return nil, err
	}
	var first int
	if _, err := fmt.Sscan(string(text), &first); err != nil {
		return nil, fmt.Errorf("%s: %w", rangeFile, err)
	}
	// The lower half is for services.
	if first < 4096 {
		return nil, fmt.Errorf("%s: there is no room below port %d", rangeFile, first)
	}
	for len(list) < n {
		port := first/2 + rand.IntN(first/2)
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer l.Close() // only at the end, so that no port is found twice
		list = append(list, port)
	}
	return list, nil
}
