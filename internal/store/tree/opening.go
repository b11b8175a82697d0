package tree

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"premix/internal/store/object"
)

const (
	// UsualProfile is the profile of a mount that does not name one.
	UsualProfile = "start"
	// MaxOpening is the largest size of an opening, in bytes.
	MaxOpening = 1 << 20

	openingMagic = "premixO1"
)

// Opening holds copies of the files and objects that a mount of a tag needs first, so
// that one request replaces a chain of requests. The store also has all of them at
// their usual paths, and a reader of an opening verifies them as if they came from
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
type Opening struct {
	Files   map[string][]byte        // contents
	Objects map[object.Digest][]byte // stored forms
	Later   []object.Digest          // objects behind the head
}

// OpeningPath returns the path, below a store's root, of the opening of a tag for
// mounts with a profile of this name. The opening for the usual profile exists even if
// the tree has no such profile.
func (r Ref) OpeningPath(profile string) string { return r.OpeningDir() + "/" + profile }

// OpeningDir returns the directory of all openings of the tag. Its name is a hash,
// since NAME/TAG could collide: one tag's NAME/TAG may be the NAME of another.
func (r Ref) OpeningDir() string {
	return OpeningsDir + "/" + object.Sum([]byte(r.String())).String()[:32]
}

// OpeningsDir is the directory of openings below a store's root.
const OpeningsDir = "openings"

// NewOpening returns an empty opening.
func NewOpening() *Opening {
	return &Opening{Files: map[string][]byte{}, Objects: map[object.Digest][]byte{}}
}

// OpeningWriter encodes an opening.
type OpeningWriter struct {
	head, rest bytes.Buffer
}

// File adds a file to the head.
func (w *OpeningWriter) File(path string, content []byte) { appendItem(&w.head, 'f', path, content) }

// Object adds the stored form of an object to the head.
func (w *OpeningWriter) Object(d object.Digest, stored []byte) {
	appendItem(&w.head, 'o', string(d[:]), stored)
}

// Later adds the stored form of an object behind the head.
func (w *OpeningWriter) Later(d object.Digest, stored []byte) {
	appendItem(&w.head, 'l', string(d[:]), nil)
	appendItem(&w.rest, 'o', string(d[:]), stored)
}

// Len returns the length of the items added, in bytes.
func (w *OpeningWriter) Len() int { return w.head.Len() + w.rest.Len() }

// Bytes returns the encoded opening. Nothing may be added afterwards.
func (w *OpeningWriter) Bytes() []byte {
	appendItem(&w.head, 'e', "", nil)
	return append(append([]byte(openingMagic), w.head.Bytes()...), w.rest.Bytes()...)
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

// OpeningReader decodes an opening while it arrives.
type OpeningReader struct {
	Opening
	Head bool // its head is whole

	at int // number of bytes decoded
}

// NewOpeningReader returns a reader that has received nothing yet.
func NewOpeningReader() *OpeningReader { return &OpeningReader{Opening: *NewOpening()} }

// Take decodes the bytes received since the last call: soFar is the whole file as far
// as it has arrived. The contents it finds are parts of soFar, which must not be
// written to. After an error nothing further can be decoded.
func (r *OpeningReader) Take(soFar []byte) error {
	const what = "opening"
	if r.at == 0 {
		if n := min(len(soFar), len(openingMagic)); string(soFar[:n]) != openingMagic[:n] {
			return invalid(what, "it does not begin with %q", openingMagic)
		} else if n < len(openingMagic) {
			return nil
		}
		r.at = len(openingMagic)
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
func (r *OpeningReader) next(soFar []byte) (kind byte, name, data []byte, size int, err error) {
	b := soFar[min(r.at, len(soFar)):]
	if len(b) < itemHead {
		return 0, nil, nil, 0, nil
	}
	n, long := int(binary.LittleEndian.Uint16(b[1:])), int64(binary.LittleEndian.Uint32(b[3:]))
	if long > MaxOpening {
		return 0, nil, nil, 0, invalid("opening", "an item of %d bytes", long)
	}
	if len(b) < itemHead+n {
		return 0, nil, nil, 0, nil
	}
	name, data = b[itemHead:itemHead+n], b[itemHead+n:]
	return b[0], name, data[:min(len(data), int(long))], int(long), nil
}

// Arriving returns the object behind the head of which a part has arrived, and that
// part.
func (r *OpeningReader) Arriving(soFar []byte) (d object.Digest, stored []byte, ok bool) {
	kind, name, data, _, err := r.next(soFar)
	if err != nil || !r.Head || kind != 'o' || len(name) != len(d) {
		return d, nil, false
	}
	copy(d[:], name)
	return d, data, true
}

// All reports whether soFar, which was passed to Take, is used up, and every object
// that the head announces is there.
func (r *OpeningReader) All(soFar []byte) bool {
	all := r.Head && len(soFar) == r.at
	for _, d := range r.Later {
		all = all && r.Objects[d] != nil
	}
	return all
}

// ParseOpening decodes as much of an opening as has arrived. head reports whether its
// head is complete, and all whether every object that the head announces is there.
func ParseOpening(b []byte) (o *Opening, head, all bool, err error) {
	r := NewOpeningReader()
	if err := r.Take(b); err != nil {
		return nil, false, false, err
	}
	return &r.Opening, r.Head, r.All(b), nil
}

func (o *Opening) item(kind byte, name, data []byte, head *bool) error {
	var d object.Digest
	if kind == 'o' || kind == 'l' {
		if len(name) != len(d) {
			return invalid("opening", "the name of an object has %d bytes", len(name))
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
		return invalid("opening", "an item %s out of place", fmt.Sprintf("%q", kind))
	}
	return nil
}
