package access

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"time"
)

// Mutual returns the TLS configuration of machines that share a token, for servers and for
// clients alike. Both ends of a connection prove that they have the token, and neither sends
// it: the token gives a key pair, and each end shows the same certificate for it. So a file
// with one line protects a cluster, and there is no authority for certificates.
func Mutual(token string) (*tls.Config, error) {
	seed, err := hkdf.Key(sha256.New, []byte(token), nil, "premix mutual TLS 1", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	public := key.Public().(ed25519.PublicKey)
	// The fields are constants, so that equal tokens give equal certificates.
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "premix"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(nil, template, template, public, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:   tls.RequireAnyClientCert,
		// The certificate has no name to check. VerifyConnection compares all of it, and the
		// handshake proves that the other end has the key.
		InsecureSkipVerify:     true,
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) != 1 || !bytes.Equal(s.PeerCertificates[0].Raw, der) {
				return ErrOtherToken
			}
			return nil
		},
	}, nil
}

// ErrOtherToken is the error of a connection to a machine that has another token, or none.
var ErrOtherToken = errors.New("the other end of the connection has another token")
