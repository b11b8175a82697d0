package tree

import (
	"premix/store/object"
)

const (
	// ProfileFormat is what a profile's format field says.
	ProfileFormat = "premix profile 1"
	// MaxBundle is the largest content of a bundle, in bytes.
	MaxBundle = 8 << 20
	// maxProfile bounds the entries of a profile: 1 TiB of mean chunks.
	maxProfile = 1 << 22
)

// Profile is the order in which a start touched a tree.
type Profile struct {
	Format  string        `json:"format"`
	Tree    object.Digest `json:"tree"`
	Chunks  []int         `json:"chunks"`            // indexes among the tree's chunks, in order of first touch, each once
	Bundles []Bundle      `json:"bundles,omitempty"` // of the first of these chunks; none in a profile that was only recorded
}

// Bundle names an object whose content is a row of chunks' stored forms, those
// of the next chunks of the profile. A chunk that lies in the tree twice is
// bundled once.
type Bundle struct {
	Digest object.Digest `json:"digest"`
	Stored []int         `json:"stored"` // length of each stored form in the row, bytes
	Chunks []int         `json:"chunks"` // the index of each one's chunk
}

// Size returns the length of the bundle's content, in bytes.
func (b Bundle) Size() int64 {
	var n int64
	for _, s := range b.Stored {
		n += int64(s)
	}
	return n
}

// Marshal returns the content of the profile's object.
func (p *Profile) Marshal() ([]byte, error) {
	p.Format = ProfileFormat
	return marshal(p)
}

// ParseProfile reads a profile of the tree d, which has the given number of
// chunks.
func ParseProfile(content []byte, d object.Digest, chunks int) (*Profile, error) {
	const what = "profile"
	var p Profile
	if err := unmarshal(what, content, &p); err != nil {
		return nil, err
	}
	if p.Format != ProfileFormat {
		return nil, invalid(what, "its format is %q, this premix reads %q", p.Format, ProfileFormat)
	}
	if p.Tree != d {
		return nil, invalid(what, "it was recorded on tree %s, not on %s", p.Tree.Short(), d.Short())
	}
	if len(p.Chunks) > maxProfile || len(p.Chunks) > chunks {
		return nil, invalid(what, "%d chunks of a tree of %d", len(p.Chunks), chunks)
	}
	for _, c := range p.Chunks {
		if c < 0 || c >= chunks {
			return nil, invalid(what, "chunk %d of a tree of %d", c, chunks)
		}
	}
	for i, b := range p.Bundles {
		if len(b.Stored) != len(b.Chunks) || len(b.Stored) == 0 || b.Digest.IsZero() {
			return nil, invalid(what, "bundle %d: %d lengths for %d chunks", i, len(b.Stored), len(b.Chunks))
		}
		for j, n := range b.Stored {
			if n < 1 || n > object.MaxStored || b.Chunks[j] < 0 || b.Chunks[j] >= chunks {
				return nil, invalid(what, "bundle %d: chunk %d of %d bytes", i, b.Chunks[j], n)
			}
		}
		if b.Size() > MaxBundle {
			return nil, invalid(what, "bundle %d: %d bytes, over the limit of %d", i, b.Size(), MaxBundle)
		}
	}
	return &p, nil
}
