package cvmfs

import (
	"crypto/sha1"
	"crypto/sha3"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"

	"golang.org/x/crypto/ripemd160" //lint:ignore SA1019 repositories of CVMFS name objects by it
)

// algorithm is a hash algorithm, with the number that catalogs have for it.
type algorithm uint8

const (
	sha1Hash     algorithm = 1
	rmd160Hash   algorithm = 2
	shake128Hash algorithm = 3
)

// digestSize is the size of all digests, in bytes.
const digestSize = 20

func (a algorithm) suffix() string {
	switch a {
	case rmd160Hash:
		return "-rmd160"
	case shake128Hash:
		return "-shake128"
	}
	return ""
}

// new returns the hash function.
func (a algorithm) new() hash.Hash {
	switch a {
	case rmd160Hash:
		return ripemd160.New()
	case shake128Hash:
		return &shake{*sha3.NewSHAKE128()}
	}
	return sha1.New()
}

// shake is SHAKE-128 with 160 bits.
type shake struct{ s sha3.SHAKE }

func (h *shake) Write(p []byte) (int, error) { return h.s.Write(p) }
func (h *shake) Reset()                      { h.s.Reset() }
func (h *shake) Size() int                   { return digestSize }
func (h *shake) BlockSize() int              { return h.s.BlockSize() }

// Sum ends the hash: nothing is written after it.
func (h *shake) Sum(b []byte) []byte {
	sum := make([]byte, digestSize)
	_, _ = h.s.Read(sum) // never fails
	return append(b, sum...)
}

// Hash names an object.
type Hash struct {
	algorithm algorithm
	digest    [digestSize]byte
}

// IsZero reports whether h names nothing.
func (h Hash) IsZero() bool { return h.algorithm == 0 }

func (h Hash) String() string { return hex.EncodeToString(h.digest[:]) + h.algorithm.suffix() }

// path returns the path of the object below the URL of the repository. kind is the
// letter of a kind of objects, or "" for a file.
func (h Hash) path(kind string) string {
	s := h.String()
	return "data/" + s[:2] + "/" + s[2:] + kind
}

// parseHash parses the form that String returns.
func parseHash(s string) (Hash, error) {
	h := Hash{algorithm: sha1Hash}
	for _, a := range []algorithm{rmd160Hash, shake128Hash} {
		if rest, ok := strings.CutSuffix(s, a.suffix()); ok {
			h.algorithm, s = a, rest
		}
	}
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != digestSize {
		return Hash{}, fmt.Errorf("%q is not a hash of 160 bits", s)
	}
	copy(h.digest[:], b)
	return h, nil
}

// hashOf returns the hash of a digest in a catalog.
func hashOf(a algorithm, digest []byte) (Hash, error) {
	h := Hash{algorithm: a}
	if len(digest) != digestSize || a < sha1Hash || a > shake128Hash {
		return Hash{}, fmt.Errorf("a hash of %d bytes, algorithm %d", len(digest), a)
	}
	copy(h.digest[:], digest)
	return h, nil
}

// sum returns the hash of content.
func (a algorithm) sum(content []byte) Hash {
	n := a.new()
	n.Write(content)
	h := Hash{algorithm: a}
	n.Sum(h.digest[:0])
	return h
}
