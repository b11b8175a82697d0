package ports

import (
	"fmt"
	"net"
	"testing"
)

func TestFree(t *testing.T) {
	list, err := Free(50)
	if err != nil || len(list) != 50 {
		t.Fatalf("%d ports, %v", len(list), err)
	}
	seen := map[int]bool{}
	for _, port := range list {
		if seen[port] {
			t.Errorf("port %d is found twice", port)
		}
		seen[port] = true
	}
	// The test can listen on a returned port. Outgoing connections use higher ports, so they
	// do not take one.
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", list[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if port := out.LocalAddr().(*net.TCPAddr).Port; port <= list[0] {
		t.Errorf("a connection goes out from port %d, which is not above %d", port, list[0])
	}
}
