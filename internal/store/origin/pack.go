package origin

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"premix/internal/store/object"
)

const (
	indexMagic = "premixI1"
	indexHead  = len(indexMagic) + 8
	packEntry  = sha256.Size + 8
	blobEntry  = object.DigestSize + 16

	// maxIndex is the size limit of an index, in bytes: 5 million objects.
	maxIndex = 256 << 20
	// maxPack is the size limit of a pack that is fetched whole, in bytes.
	maxPack = 160 << 20
)

// pack is a blob of stored forms.
type pack struct {
	sum  [sha256.Size]byte
	size int64
}

func (p pack) digest() string { return fmt.Sprintf("sha256:%x", p.sum) }

// place is the location of a stored form.
type place struct {
	pack   int
	offset int64
	length int64
}

// packIndex maps objects to packs: see the package comment for its form. The entries
// stay encoded, since there may be millions.
type packIndex struct {
	packs   []pack
	entries []byte
}

// parseIndex decodes an index. Its entries are trusted no more than the registry:
// objects are verified like all others.
func parseIndex(b []byte) (*packIndex, error) {
	if len(b) < indexHead || !bytes.HasPrefix(b, []byte(indexMagic)) {
		return nil, fmt.Errorf("an index of %d bytes", len(b))
	}
	packs, objects := int64(binary.LittleEndian.Uint32(b[len(indexMagic):])), int64(binary.LittleEndian.Uint32(b[len(indexMagic)+4:]))
	if int64(len(b)) != int64(indexHead)+packs*int64(packEntry)+objects*int64(blobEntry) {
		return nil, fmt.Errorf("an index of %d bytes for %d packs and %d objects", len(b), packs, objects)
	}
	x := &packIndex{}
	b = b[indexHead:]
	for range packs {
		x.packs = append(x.packs, pack{[sha256.Size]byte(b), int64(binary.LittleEndian.Uint64(b[sha256.Size:]))})
		b = b[packEntry:]
	}
	x.entries = b
	for i := range x.len() {
		d, p := x.entry(i)
		if p.pack >= len(x.packs) || p.length < 1 || p.length > object.MaxStored || p.offset < 0 || p.offset > x.packs[p.pack].size-p.length {
			return nil, fmt.Errorf("object %s lies outside of its pack", d.Short())
		}
		if i > 0 && bytes.Compare(x.key(i-1), x.key(i)) >= 0 {
			return nil, fmt.Errorf("object %s is out of order", d.Short())
		}
	}
	return x, nil
}

func (x *packIndex) len() int { return len(x.entries) / blobEntry }

func (x *packIndex) key(i int) []byte {
	return x.entries[i*blobEntry : i*blobEntry+object.DigestSize]
}

func (x *packIndex) entry(i int) (object.Digest, place) {
	e := x.entries[i*blobEntry : (i+1)*blobEntry]
	n := e[object.DigestSize:]
	return object.Digest(e), place{int(binary.LittleEndian.Uint32(n)), int64(binary.LittleEndian.Uint64(n[4:])), int64(binary.LittleEndian.Uint32(n[12:]))}
}

// find returns the location of an object.
func (x *packIndex) find(d object.Digest) (pack, place, bool) {
	lo, hi := 0, x.len()
	for lo < hi {
		mid := (lo + hi) / 2
		switch bytes.Compare(x.key(mid), d[:]) {
		case 0:
			_, p := x.entry(mid)
			return x.packs[p.pack], p, true
		case -1:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return pack{}, place{}, false
}

// located is an entry of a new index.
type located struct {
	digest object.Digest
	pack   pack
	offset int64
	length int64
}

// marshalIndex encodes an index, which lists the packs in order of first use.
func marshalIndex(all []located) []byte {
	numbers := map[pack]int{}
	var packs []pack
	for _, l := range all {
		if _, ok := numbers[l.pack]; !ok {
			numbers[l.pack] = len(packs)
			packs = append(packs, l.pack)
		}
	}
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b located) int {
		return bytes.Compare(a.digest[:], b.digest[:])
	})
	sorted = slices.CompactFunc(sorted, func(a, b located) bool { return a.digest == b.digest })
	b := make([]byte, 0, indexHead+len(packs)*packEntry+len(sorted)*blobEntry)
	b = append(b, indexMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(packs)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(sorted)))
	for _, p := range packs {
		b = append(b, p.sum[:]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(p.size))
	}
	for _, l := range sorted {
		b = append(b, l.digest[:]...)
		b = binary.LittleEndian.AppendUint32(b, uint32(numbers[l.pack]))
		b = binary.LittleEndian.AppendUint64(b, uint64(l.offset))
		b = binary.LittleEndian.AppendUint32(b, uint32(l.length))
	}
	return b
}
