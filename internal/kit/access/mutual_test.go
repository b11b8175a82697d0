package access

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
)

// exchange sends a byte through TLS with a server configuration and a client configuration.
func exchange(t *testing.T, server, client *tls.Config) (served, asked error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan error, 1)
	go func() {
		c := tls.Server(a, server)
		_, err := c.Write([]byte{7})
		a.Close()
		done <- err
	}()
	c := tls.Client(b, client)
	got, err := io.ReadAll(io.LimitReader(c, 1))
	b.Close()
	if err == nil && (len(got) != 1 || got[0] != 7) {
		err = io.ErrUnexpectedEOF
	}
	return <-done, err
}

func TestMutual(t *testing.T) {
	config := func(token string) *tls.Config {
		c, err := Mutual(token)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if served, asked := exchange(t, config("one and the same"), config("one and the same")); served != nil || asked != nil {
		t.Errorf("equal tokens: %v, %v", served, asked)
	}
	if _, asked := exchange(t, config("the token of a server"), config("the token of a client")); !errors.Is(asked, ErrOtherToken) {
		t.Errorf("a client with another token: %v, want ErrOtherToken", asked)
	}
	// A client that does not check the server.
	for name, certificates := range map[string][]tls.Certificate{"with another token": config("the token of a client").Certificates, "without a certificate": nil} {
		if served, _ := exchange(t, config("the token of a server"), &tls.Config{InsecureSkipVerify: true, Certificates: certificates}); served == nil {
			t.Errorf("the server answered a client %s", name)
		}
	}
	// The certificate is public. A client that has it still needs the key.
	stolen := config("the token of a server").Certificates[0]
	stolen.PrivateKey = config("the token of a client").Certificates[0].PrivateKey
	if served, _ := exchange(t, config("the token of a server"), &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{stolen}}); served == nil {
		t.Error("the server answered a client that has the certificate and not its key")
	}
}
