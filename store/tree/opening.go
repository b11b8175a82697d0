package tree

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"premix/store/object"
)

const (
	// UsualProfile is the profile of a mount that names none.
	UsualProfile = "start"
	// MaxOpening is the longest opening, in bytes.
	MaxOpening = 1 << 20

	openingMagic = "premixO1"
)

// Opening is what a mount of a tag needs first, in one file: so it needs one request
// and not one after the other. All of it lies elsewhere in the store, too, and
// whoever uses an opening verifies it as if it had come from there.
//
// The file is binary, little-endian: the magic "premixO1", then items one after
// another:
//
//	0   kind, one byte: 'f' a file, 'o' an object, 'l' an object that comes later,
//	    'e' the end of the head, behind which only objects follow that came as 'l'
//	1   length of the name, uint16
//	3   length of what follows the name, uint32
//	7   name: of a file its path below the store's root, of an object its digest
//	    (32 bytes), of an end nothing
//	    the file, the object's stored form, or nothing
//
// The head is what tells a reader what to ask for next. It is used when it has
// arrived, while the rest is on its way.
type Opening struct {
	Files   map[string][]byte        // contents
	Objects map[object.Digest][]byte // stored forms
	Later   []object.Digest          // objects behind the head
}

// OpeningPath returns where the opening of a tag lies below a store's root, for
// mounts with a profile of this name. That of the usual profile is there whether or
// not the tree has such a profile.
func (r Ref) OpeningPath(profile string) string { return r.OpeningDir() + "/" + profile }

// OpeningDir returns where all openings of the tag lie. Tags and names can't be
// directories there: a name may be what another name and its tag are together.
func (r Ref) OpeningDir() string {
	return OpeningsDir + "/" + object.Sum([]byte(r.String())).String()[:32]
}

// OpeningsDir is where openings lie below a store's root.
const OpeningsDir = "openings"

// NewOpening returns an opening with nothing in it.
func NewOpening() *Opening {
	return &Opening{Files: map[string][]byte{}, Objects: map[object.Digest][]byte{}}
}

// OpeningWriter makes an opening.
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

// Len returns the length of what was added.
func (w *OpeningWriter) Len() int { return w.head.Len() + w.rest.Len() }

// Bytes returns the file. Nothing may be added afterwards.
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

// OpeningReader reads an opening while it arrives.
type OpeningReader struct {
	Opening
	Head bool // its head is whole

	at int // bytes that were read
}

// NewOpeningReader returns a reader of which nothing has come.
func NewOpeningReader() *OpeningReader { return &OpeningReader{Opening: *NewOpening()} }

// Take reads what of the file has come since: soFar is all of it, from its beginning.
// What it finds lies in soFar, which must not be written to. Behind an error nothing
// can be read.
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

// itemHead is the length of what stands before an item's name.
const itemHead = 7

// next returns the item that follows, and of what it holds as much as has come. kind is
// 0 where not even its name has.
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

// Arriving returns the object of which a part has come, behind the head, and that part.
func (r *OpeningReader) Arriving(soFar []byte) (d object.Digest, stored []byte, ok bool) {
	kind, name, data, _, err := r.next(soFar)
	if err != nil || !r.Head || kind != 'o' || len(name) != len(d) {
		return d, nil, false
	}
	copy(d[:], name)
	return d, data, true
}

// All tells whether nothing of soFar, which was taken, is left over, and nothing is
// missing as far as the opening tells.
func (r *OpeningReader) All(soFar []byte) bool {
	all := r.Head && len(soFar) == r.at
	for _, d := range r.Later {
		all = all && r.Objects[d] != nil
	}
	return all
}

// ParseOpening reads as much of an opening as has come. head tells whether its head
// is whole, and all whether nothing is missing, as far as the opening tells.
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
