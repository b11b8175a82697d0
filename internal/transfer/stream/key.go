package stream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"strings"
	"time"

	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
)

// Keys are the certificate and the secret of a standing server.
type Keys struct {
	cert   tls.Certificate
	secret []byte
}

// notKey is the error for a file that does not contain a key.
func notKey(file, reason string) error {
	return exit.Errorf(exit.Usage, "premix transfer serve DIR --listen ADDRESS --key FILE writes FILE for itself and FILE"+ClientSuffix+" for others",
		"%s is not a key: %s", file, reason)
}

// Key is the key of a server's client: the digest of the only certificate that it accepts,
// and the secret that gives access.
type Key struct{ certificate, secret []byte }

const (
	// ClientSuffix is appended to the server's file name for the file of its clients.
	ClientSuffix = ".client"
	// keyWord is the beginning of the only line in that file.
	keyWord   = "premix-transfer-key-1 "
	secretPEM = "PREMIX TRANSFER SECRET"
	// certificateLife is the validity of a certificate. Clients ignore it: they accept one
	// certificate at any time.
	certificateLife = 100 * 365 * 24 * time.Hour
)

// certify returns a private key with a self-signed certificate.
func certify(life time.Duration) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{cert}, PrivateKey: key}, err
}

// MakeKeys writes new keys to file, and the key for clients beside it. Only their owner can
// read them. It does not change existing files.
func MakeKeys(file string) error {
	cert, err := certify(certificateLife)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return err
	}
	k := &Keys{cert, make([]byte, secretSize)}
	rand.Read(k.secret)
	var text []byte
	for _, b := range []pem.Block{{Type: "PRIVATE KEY", Bytes: private}, {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, {Type: secretPEM, Bytes: k.secret}} {
		text = append(text, pem.EncodeToMemory(&b)...)
	}
	if err := writeNew(file, text); err != nil {
		return err
	}
	c := k.Key()
	return writeNew(file+ClientSuffix, []byte(keyWord+base64.RawURLEncoding.EncodeToString(append(c.certificate, c.secret...))+"\n"))
}

func writeNew(file string, text []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// LoadKeys reads the keys of a server.
func LoadKeys(file string) (*Keys, error) {
	text, err := owner.ReadSecret(file)
	if err != nil {
		return nil, err
	}
	k := &Keys{}
	if k.cert, err = tls.X509KeyPair(text, text); err != nil {
		return nil, notKey(file, err.Error())
	}
	for b, rest := pem.Decode(text); b != nil; b, rest = pem.Decode(rest) {
		if b.Type == secretPEM {
			k.secret = b.Bytes
		}
	}
	if len(k.secret) != secretSize {
		return nil, notKey(file, "there is no secret in it")
	}
	return k, nil
}

// Key returns the key for clients.
func (k *Keys) Key() *Key {
	digest := sha256.Sum256(k.cert.Certificate[0])
	return &Key{digest[:], k.secret}
}

// LoadKey reads the key of a client.
func LoadKey(file string) (*Key, error) {
	text, err := owner.ReadSecret(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notKey(file, "there is no such file")
	}
	if err != nil {
		return nil, err
	}
	word, ok := strings.CutPrefix(strings.TrimSpace(string(text)), keyWord)
	b, err := base64.RawURLEncoding.DecodeString(word)
	if !ok || err != nil || len(b) != sha256.Size+secretSize {
		return nil, notKey(file, "it is not one line that begins with "+strings.TrimSpace(keyWord))
	}
	return &Key{b[:sha256.Size], b[sha256.Size:]}, nil
}
