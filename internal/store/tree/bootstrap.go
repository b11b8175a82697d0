package tree

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"premix/internal/store/object"
)

const (
	// DefaultProfile is the profile of a mount that does not name one.
	DefaultProfile = "start"
	// MaxBootstrap is the largest size of a bootstrap, in bytes.
	MaxBootstrap = 1 << 20

	bootstrapMagic = "premixO1"
)

// Bootstrap holds copies of the files and objects that a mount of a tag needs first, so
// that one request replaces a chain of requests. The store also has all of them at
// their usual paths, and a reader of a bootstrap verifies them as if they came from
// there.
//
// The file is binary, little-endian: the magic "premixO1", then items one after
// another:
//
//	0   kind, one byte: 'f' a file, 'o' an object, 'l' an object that comes later,
//	    'e' the end of the head; only objects announced by 'l' follow it
//	1   length of the name, uint16
//	3   length of the data after the name, uint32
//	7   name: the path of a file below the store's root, the digest of an object
//	    (32 bytes), empty for an end
//	    data: the file, the object's stored form, or empty
//
// The head contains everything that a reader needs to decide on its next requests. The
// reader uses it when the head has arrived, while the rest is still being received.
type Bootstrap struct {
	Files   map[string][]byte        // contents
	Objects map[object.Digest][]byte // stored forms
	Later   []object.Digest          // objects behind the head
}

// BootstrapPath returns the path, below a store's root, of the bootstrap of a tag for
// mounts with a profile of this name. The bootstrap for the usual profile exists even if
// the tree has no such profile.
func (r Ref) BootstrapPath(profile string) string { return r.BootstrapDir() + "/" + profile }

// BootstrapDir returns the directory of all bootstraps of the tag. Its name is a hash,
// since NAME/TAG could collide: one tag's NAME/TAG may be the NAME of another.
func (r Ref) BootstrapDir() string {
	return BootstrapsDir + "/" + object.Sum([]byte(r.String())).String()[:32]
}

// BootstrapsDir is the directory of bootstraps below a store's root.
const BootstrapsDir = "openings"

// NewBootstrap returns an empty bootstrap.
func NewBootstrap() *Bootstrap {
	return &Bootstrap{Files: map[string][]byte{}, Objects: map[object.Digest][]byte{}}
}

// BootstrapWriter encodes a bootstrap.
type BootstrapWriter struct {
	head, rest bytes.Buffer
}

// File adds a file to the head.
func (w *BootstrapWriter) File(path string, content []byte) { appendItem(&w.head, 'f', path, content) }

// Object adds the stored form of an object to the head.
func (w *BootstrapWriter) Object(d object.Digest, stored []byte) {
	appendItem(&w.head, 'o', string(d[:]), stored)
}

// Later adds the stored form of an object behind the head.
func (w *BootstrapWriter) Later(d object.Digest, stored []byte) {
	appendItem(&w.head, 'l', string(d[:]), nil)
	appendItem(&w.rest, 'o', string(d[:]), stored)
}

// Len returns the length of the items added, in bytes.
func (w *BootstrapWriter) Len() int { return w.head.Len() + w.rest.Len() }

// Bytes returns the encoded bootstrap. Nothing may be added afterwards.
func (w *BootstrapWriter) Bytes() []byte {
	appendItem(&w.head, 'e', "", nil)
	return append(append([]byte(bootstrapMagic), w.head.Bytes()...), w.rest.Bytes()...)
}

func appendItem(b *bytes.Buffer, kind byte, name string, data []byte) {
	var h [7]byte
	h[0] = kind
	binary.LittleEndian.PutUint16(h[1:], uint16(min(len(name), math.MaxUint16))) // paths of the store are short
	binary.LittleEndian.PutUint32(h[3:], uint32(len(data)))
	b.Write(h[:])
	b.WriteString(name)
	b.Write(data)
}

// BootstrapReader decodes a bootstrap while it arrives.
type BootstrapReader struct {
	Bootstrap
	Head bool // its head is whole

	at int // number of bytes decoded
}

// NewBootstrapReader returns a reader that has received nothing yet.
func NewBootstrapReader() *BootstrapReader { return &BootstrapReader{Bootstrap: *NewBootstrap()} }

// Take decodes the bytes received since the last call: soFar is the whole file as far
// as it has arrived. The contents it finds are parts of soFar, which must not be
// written to. After an error nothing further can be decoded.
func (r *BootstrapReader) Take(soFar []byte) error {
	const what = "bootstrap"
	if r.at == 0 {
		if n := min(len(soFar), len(bootstrapMagic)); string(soFar[:n]) != bootstrapMagic[:n] {
			return invalid(what, "it does not begin with %q", bootstrapMagic)
		} else if n < len(bootstrapMagic) {
			return nil
		}
		r.at = len(bootstrapMagic)
	}
	for {
		kind, name, data, size, err := r.next(soFar)
		if err != nil {
			return err
		}
		if len(data) < size || kind == 0 {
			return nil
		}
		r.at += itemHead + len(name) + size
		if err := r.item(kind, name, data, &r.Head); err != nil {
			return err
		}
	}
}

// itemHead is the length of an item's fields before its name.
const itemHead = 7

// next returns the following item, with as much of its data as has arrived. kind is 0
// if its name has not yet arrived.
func (r *BootstrapReader) next(soFar []byte) (kind byte, name, data []byte, size int, err error) {
	b := soFar[min(r.at, len(soFar)):]
	if len(b) < itemHead {
		return 0, nil, nil, 0, nil
	}
	n, long := int(binary.LittleEndian.Uint16(b[1:])), int64(binary.LittleEndian.Uint32(b[3:]))
	if long > MaxBootstrap {
		return 0, nil, nil, 0, invalid("bootstrap", "an item of %d bytes", long)
	}
	if len(b) < itemHead+n {
		return 0, nil, nil, 0, nil
	}
	name, data = b[itemHead:itemHead+n], b[itemHead+n:]
	return b[0], name, data[:min(len(data), int(long))], int(long), nil
}

// Arriving returns the object behind the head of which a part has arrived, and that
// part.
func (r *BootstrapReader) Arriving(soFar []byte) (d object.Digest, stored []byte, ok bool) {
	kind, name, data, _, err := r.next(soFar)
	if err != nil || !r.Head || kind != 'o' || len(name) != len(d) {
		return d, nil, false
	}
	copy(d[:], name)
	return d, data, true
}

// All reports whether soFar, which was passed to Take, is used up, and every object
// that the head announces is there.
func (r *BootstrapReader) All(soFar []byte) bool {
	all := r.Head && len(soFar) == r.at
	for _, d := range r.Later {
		all = all && r.Objects[d] != nil
	}
	return all
}

// ParseBootstrap decodes as much of a bootstrap as has arrived. head reports whether its
// head is complete, and all whether every object that the head announces is there. It is for
// tests: a node reads a bootstrap with a [BootstrapReader].
func ParseBootstrap(b []byte) (o *Bootstrap, head, all bool, err error) {
	r := NewBootstrapReader()
	if err := r.Take(b); err != nil {
		return nil, false, false, err
	}
	return &r.Bootstrap, r.Head, r.All(b), nil
}

func (o *Bootstrap) item(kind byte, name, data []byte, head *bool) error {
	var d object.Digest
	if kind == 'o' || kind == 'l' {
		if len(name) != len(d) {
			return invalid("bootstrap", "the name of an object has %d bytes", len(name))
		}
		copy(d[:], name)
	}
	switch {
	case kind == 'f' && !*head:
		o.Files[string(name)] = data
	case kind == 'o':
		o.Objects[d] = data
	case kind == 'l' && !*head:
		o.Later = append(o.Later, d)
	case kind == 'e' && !*head && len(name)+len(data) == 0:
		*head = true
	default:
		return invalid("bootstrap", "an item %s out of place", fmt.Sprintf("%q", kind))
	}
	return nil
}
