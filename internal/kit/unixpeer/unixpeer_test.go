package unixpeer

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"premix/internal/testkit/shortdir"
)

func TestCheck(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(shortdir.New(t), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := (Listener{l}).Accept()
		if err == nil {
			c.Close()
		}
	}()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := Check(c); err != nil {
		t.Error(err)
	}
	if user, err := UID(c); err != nil || int(user) != os.Geteuid() {
		t.Errorf("user %d, %v", user, err)
	}
}
