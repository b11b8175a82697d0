package tree

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"premix/internal/store/object"
)

const (
	// StoreFormat is the value of store.json's format field.
	StoreFormat = "premix store 1"
	// InfoPath is the path of [Info] below a store's root.
	InfoPath = "store.json"
)

// Info describes a store and its keys.
type Info struct {
	Format string      `json:"format"`
	ID     string      `json:"id"`   // random, 32 hexadecimal digits; stays with the store when it moves
	Keys   []PublicKey `json:"keys"` // the keys that sign; the last one is current
}

// PublicKey verifies the signatures of a store: Ed25519 (RFC 8032), written as
// "premix-ed25519 " and 43 characters of unpadded URL-safe base64.
type PublicKey [ed25519.PublicKeySize]byte

// PrivateKey signs. It is written as "PREMIX-ED25519-SECRET " and its seed.
type PrivateKey struct{ seed [ed25519.SeedSize]byte }

const (
	publicPrefix  = "premix-ed25519 "
	privatePrefix = "PREMIX-ED25519-SECRET "
)

// NewPrivateKey returns the private key of a random seed.
func NewPrivateKey(seed [ed25519.SeedSize]byte) PrivateKey { return PrivateKey{seed} }

// Public returns the key that verifies signatures of k.
func (k PrivateKey) Public() PublicKey {
	return PublicKey(ed25519.NewKeyFromSeed(k.seed[:]).Public().(ed25519.PublicKey))
}

// Secret returns the text form of the key, which ParsePrivateKey reads. It is not a
// String method, so that a key is never printed by accident.
func (k PrivateKey) Secret() string { return privatePrefix + encode(k.seed[:]) }

// ParsePrivateKey reads a private key. Its errors never quote the text.
func ParsePrivateKey(s string) (PrivateKey, error) {
	var k PrivateKey
	if err := decodeKey(k.seed[:], s, privatePrefix); err != nil {
		return PrivateKey{}, fmt.Errorf("not a private key: %w", err)
	}
	return k, nil
}

// ParsePublicKey parses the text that [PublicKey.String] returns.
func ParsePublicKey(s string) (PublicKey, error) {
	var k PublicKey
	if err := decodeKey(k[:], s, publicPrefix); err != nil {
		return PublicKey{}, fmt.Errorf("not a public key: %w", err)
	}
	return k, nil
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func decodeKey(dst []byte, s, prefix string) error {
	rest, ok := strings.CutPrefix(strings.TrimSpace(s), prefix)
	if !ok {
		return fmt.Errorf("it does not begin with %q", prefix)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(rest)
	if err != nil {
		return err
	}
	if len(b) != len(dst) {
		return fmt.Errorf("it has %d bytes instead of %d", len(b), len(dst))
	}
	copy(dst, b)
	return nil
}

func (k PublicKey) String() string { return publicPrefix + encode(k[:]) }

// MarshalText returns the text that String returns.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText parses the text that MarshalText returns.
func (k *PublicKey) UnmarshalText(text []byte) error {
	parsed, err := ParsePublicKey(string(text))
	if err != nil {
		return err
	}
	*k = parsed
	return nil
}

// Marshal returns store.json.
func (i *Info) Marshal() ([]byte, error) { return marshal(i) }

// ParseInfo reads and checks store.json.
func ParseInfo(content []byte) (*Info, error) {
	var i Info
	if err := unmarshal("store.json", content, &i); err != nil {
		return nil, err
	}
	if i.Format != StoreFormat {
		return nil, invalid("store.json", "its format is %q, this premix reads %q", i.Format, StoreFormat)
	}
	if len(i.ID) != 32 || strings.Trim(i.ID, "0123456789abcdef") != "" {
		return nil, invalid("store.json", "its id %q is not 32 hexadecimal digits", i.ID)
	}
	if len(i.Keys) == 0 {
		return nil, invalid("store.json", "it names no key")
	}
	return &i, nil
}

// Envelope is a signed document as stored. The signature covers the exact bytes of
// Signed, prefixed by the document's kind, so that a document of one kind cannot pass
// for another.
type Envelope struct {
	Signed    json.RawMessage `json:"signed"`
	Key       PublicKey       `json:"key"`
	Signature string          `json:"signature"` // of 64 bytes, unpadded URL-safe base64
}

// TagRecord names the tree of a tag.
type TagRecord struct {
	Store    string        `json:"store"` // [Info.ID]: a record can't be moved to another store
	Name     string        `json:"name"`
	Tag      string        `json:"tag"`
	Tree     object.Digest `json:"tree"`
	Serial   int64         `json:"serial"`            // 1 for the tag's first record, and one more for each later record
	Time     time.Time     `json:"time"`              // UTC, whole seconds
	Previous object.Digest `json:"previous,omitzero"` // of the bytes of the record before this one
}

// ProfileRecord names the object of a profile of a tree.
type ProfileRecord struct {
	Store   string        `json:"store"`
	Tree    object.Digest `json:"tree"`
	Name    string        `json:"name"`
	Profile object.Digest `json:"profile"` // the object whose content is a [Profile]
	Time    time.Time     `json:"time"`
}

const (
	tagKind     = "premix tag record 1\n"
	profileKind = "premix profile record 1\n"
)

// SignTag returns the signed form of a tag record, on one line.
func SignTag(k PrivateKey, r *TagRecord) ([]byte, error) { return sign(k, tagKind, r) }

// SignProfile returns the signed form of a profile record, on one line.
func SignProfile(k PrivateKey, r *ProfileRecord) ([]byte, error) { return sign(k, profileKind, r) }

func sign(k PrivateKey, kind string, v any) ([]byte, error) {
	doc, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	sig := ed25519.Sign(ed25519.NewKeyFromSeed(k.seed[:]), append([]byte(kind), doc...))
	return json.Marshal(Envelope{doc, k.Public(), encode(sig)})
}

// SignatureError reports why a signed document is not trusted.
type SignatureError struct {
	What   string
	Key    PublicKey // the key that the document names; zero if it names none
	Reason string
}

func (e *SignatureError) Error() string { return "the signature of the " + e.What + ": " + e.Reason }

// OpenTag verifies a signed tag record with one of the keys, and that it belongs to the
// given tag of the given store.
func OpenTag(content []byte, store string, ref Ref, keys []PublicKey) (*TagRecord, error) {
	const what = "tag record"
	var r TagRecord
	if err := openSigned(what, tagKind, content, keys, &r); err != nil {
		return nil, err
	}
	switch {
	case r.Store != store:
		return nil, invalid(what, "it belongs to store %s, not to %s", r.Store, store)
	case r.Name != ref.Name || r.Tag != ref.Tag:
		return nil, invalid(what, "it is of %s:%s, not of %s", r.Name, r.Tag, ref)
	case r.Serial < 1 || r.Tree.IsZero():
		return nil, invalid(what, "serial %d, tree %s", r.Serial, r.Tree.Short())
	}
	return &r, nil
}

// OpenProfile verifies a signed profile record with one of the keys, and that it
// belongs to the given profile of the given tree in the given store.
func OpenProfile(content []byte, store string, d object.Digest, name string, keys []PublicKey) (*ProfileRecord, error) {
	const what = "profile record"
	var r ProfileRecord
	if err := openSigned(what, profileKind, content, keys, &r); err != nil {
		return nil, err
	}
	if r.Store != store || r.Tree != d || r.Name != name || r.Profile.IsZero() {
		return nil, invalid(what, "it is of profile %s of tree %s in store %s", r.Name, r.Tree.Short(), r.Store)
	}
	return &r, nil
}

func openSigned(what, kind string, content []byte, keys []PublicKey, v any) error {
	var e Envelope
	if err := unmarshal(what, content, &e); err != nil {
		return err
	}
	sig, err := base64.RawURLEncoding.DecodeString(e.Signature)
	if err != nil || len(sig) != ed25519.SignatureSize {
		return &SignatureError{what, e.Key, "it is malformed"}
	}
	trusted := false
	for _, k := range keys {
		trusted = trusted || k == e.Key
	}
	if !trusted {
		return &SignatureError{what, e.Key, "its key is not trusted here: " + e.Key.String()}
	}
	if !ed25519.Verify(e.Key[:], append([]byte(kind), e.Signed...), sig) {
		return &SignatureError{what, e.Key, "it does not fit the contents"}
	}
	return unmarshal(what, e.Signed, v)
}
