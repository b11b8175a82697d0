package tree

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"premix/internal/store/object"
)

const (
	// ProfileFormat is the value of a profile's format field if its bundles have no
	// spans, or if it was recorded and has no bundles. Version 1 named whole chunks
	// only.
	ProfileFormat = "premix profile 2"
	// SpansFormat is the value of the field if bundles have spans.
	SpansFormat = "premix profile 3"
	// MaxBundle is the largest content of a bundle, in bytes.
	MaxBundle = 8 << 20
	// maxProfile bounds the parts of a profile: 1 TiB of mean chunks.
	maxProfile = 1 << 22
)

// Profile lists the parts of a tree that a program touched while it started, in order of
// first touch. If it has bundles, this is the order within each of them.
type Profile struct {
	Format  string        `json:"format"`
	Tree    object.Digest `json:"tree"`
	Parts   []Part        `json:"parts"`             // each chunk once
	Bundles []Bundle      `json:"bundles,omitempty"` // of the first of these parts; none in a profile before its bundles are made
}

// Part is the touched part of a chunk. Its text is the number of the chunk in the tree
// and, unless the part is the whole chunk, the leaves (object.LeafSize) as in
// 17:0-4,9,12-63: each run with its first and its last leaf.
type Part struct {
	Chunk int
	Runs  []object.Run // none: the whole chunk
}

// Whole reports whether the part is the whole chunk.
func (p Part) Whole() bool { return len(p.Runs) == 0 }

// Size returns the length of the slice (see object.AppendSlice) that the part is of a
// chunk of this length in bytes. The runs must fit the chunk.
func (p Part) Size(chunk int64) int64 {
	if p.Whole() {
		return chunk
	}
	return object.SliceSize(chunk, p.Runs)
}

// Slice returns the runs of the part in a chunk of this length in bytes.
func (p Part) Slice(chunk int64) []object.Run {
	if p.Whole() {
		return []object.Run{{From: 0, To: object.Leaves(chunk)}}
	}
	return p.Runs
}

// MarshalText encodes the part as its type describes.
func (p Part) MarshalText() ([]byte, error) { return appendRuns(int64(p.Chunk), p.Runs), nil }

// UnmarshalText decodes the text that MarshalText returns, and refuses any other.
func (p *Part) UnmarshalText(text []byte) error {
	n, runs, err := parseRuns(text, 32)
	if err != nil {
		return fmt.Errorf("%.40q is not a part of a chunk: %w", text, err)
	}
	*p = Part{int(n), runs}
	return nil
}

// Span names blocks of a file that a bundle contains, for the kernel to read ahead. Its
// text is that of a [Part], with the number of the file's inode in place of the chunk's
// number and blocks of 4 KiB of the file in place of leaves. Inode 0 means the image
// itself, whose metadata is read.
type Span struct {
	Inode uint64
	Runs  []object.Run
}

// MarshalText encodes the span as its type describes.
func (s Span) MarshalText() ([]byte, error) { return appendRuns(int64(s.Inode), s.Runs), nil }

// UnmarshalText decodes the text that MarshalText returns, and refuses any other.
func (s *Span) UnmarshalText(text []byte) error {
	n, runs, err := parseRuns(text, 64)
	if err != nil || len(runs) == 0 || n < 0 {
		return fmt.Errorf("%.40q is not a span of a file", text)
	}
	*s = Span{uint64(n), runs}
	return nil
}

// appendRuns encodes a number and its runs.
func appendRuns(n int64, runs []object.Run) []byte {
	b := strconv.AppendInt(nil, n, 10)
	for i, r := range runs {
		b = append(b, ":,"[min(i, 1)])
		b = strconv.AppendInt(b, int64(r.From), 10)
		if r.To > r.From+1 {
			b = strconv.AppendInt(append(b, '-'), int64(r.To-1), 10)
		}
	}
	return b
}

// parseRuns decodes the text that appendRuns returns, and refuses any other.
func parseRuns(text []byte, bits int) (n int64, runs []object.Run, err error) {
	number, rest, some := strings.Cut(string(text), ":")
	n, err = strconv.ParseInt(number, 10, bits)
	for some && err == nil {
		var run, first, last string
		run, rest, some = strings.Cut(rest, ",")
		first, last, _ = strings.Cut(run, "-")
		if last == "" {
			last = first
		}
		var from, to int64
		if from, err = strconv.ParseInt(first, 10, 32); err == nil {
			to, err = strconv.ParseInt(last, 10, 32)
		}
		runs = append(runs, object.Run{From: int(from), To: int(to) + 1})
	}
	if err != nil {
		return 0, nil, err
	}
	if again := appendRuns(n, runs); string(again) != string(text) {
		return 0, nil, fmt.Errorf("it would be written %.40q", again)
	}
	return n, runs, nil
}

// Bundle names an object whose content is a sequence of slices of chunks (see
// object.AppendSlice): the next parts of the profile. Together they compress better,
// and each is verified by the digest of its chunk.
type Bundle struct {
	Digest object.Digest `json:"digest"`
	Size   int64         `json:"size"`            // of the content, bytes
	Parts  int           `json:"parts"`           // their number
	Spans  []Span        `json:"spans,omitempty"` // of files, in order of first touch
}

// Chunks returns the numbers of the touched chunks, in order.
func (p *Profile) Chunks() []int {
	list := make([]int, len(p.Parts))
	for i, part := range p.Parts {
		list[i] = part.Chunk
	}
	return list
}

// InBundles calls visit with each bundle and its parts, in order, until visit returns
// false.
func (p *Profile) InBundles(visit func(i int, b Bundle, parts []Part) bool) {
	rest := p.Parts
	for i, b := range p.Bundles {
		if !visit(i, b, rest[:b.Parts]) {
			return
		}
		rest = rest[b.Parts:]
	}
}

// Marshal returns the content of the profile's object.
func (p *Profile) Marshal() ([]byte, error) {
	p.Format = ProfileFormat
	if slices.ContainsFunc(p.Bundles, func(b Bundle) bool { return len(b.Spans) > 0 }) {
		p.Format = SpansFormat
	}
	if p.Parts == nil {
		p.Parts = []Part{} // so that JSON has a list and not null
	}
	return marshal(p)
}

// ParseProfile decodes a profile of the tree d, which has the given number of chunks.
// It does not know the lengths of the chunks: see [Profile.Check].
func ParseProfile(content []byte, d object.Digest, chunks int) (*Profile, error) {
	const what = "profile"
	var p Profile
	if err := unmarshal(what, content, &p); err != nil {
		return nil, err
	}
	if p.Format != ProfileFormat && p.Format != SpansFormat {
		return nil, invalid(what, "its format is %q, this premix reads %q and %q: record it again", p.Format, ProfileFormat, SpansFormat)
	}
	if p.Tree != d {
		return nil, invalid(what, "it was recorded on tree %s, not on %s", p.Tree.Short(), d.Short())
	}
	return &p, p.CheckChunks(chunks)
}

// CheckChunks returns an error if the profile cannot belong to a tree of this many
// chunks. [Profile.Check] checks more.
func (p *Profile) CheckChunks(chunks int) error {
	const what = "profile"
	if len(p.Parts) > maxProfile || len(p.Parts) > chunks {
		return invalid(what, "%d chunks of a tree of %d", len(p.Parts), chunks)
	}
	for _, part := range p.Parts {
		if part.Chunk < 0 || part.Chunk >= chunks {
			return invalid(what, "chunk %d of a tree of %d", part.Chunk, chunks)
		}
		if part.Whole() {
			continue
		}
		if err := object.CheckRuns(MaxChunk, part.Runs); err != nil {
			return invalid(what, "chunk %d: %v", part.Chunk, err)
		}
	}
	left := len(p.Parts)
	for i, b := range p.Bundles {
		if b.Parts < 1 || b.Parts > left || b.Digest.IsZero() {
			return invalid(what, "bundle %d: %d parts", i, b.Parts)
		}
		if b.Size < 1 || b.Size > MaxBundle {
			return invalid(what, "bundle %d: %d bytes, the limit is %d", i, b.Size, MaxBundle)
		}
		for _, s := range b.Spans {
			if err := object.CheckRuns(math.MaxInt32*object.LeafSize, s.Runs); err != nil {
				return invalid(what, "bundle %d: inode %d: %v", i, s.Inode, err)
			}
		}
		left -= b.Parts
	}
	return nil
}

// Check returns an error if the profile does not fit its tree. size returns the length
// of a chunk in bytes, and whether it is a hole.
func (p *Profile) Check(chunks int, size func(chunk int) (n int64, hole bool, err error)) error {
	const what = "profile"
	if err := p.CheckChunks(chunks); err != nil {
		return err
	}
	slice := func(part Part) (int64, error) {
		n, hole, err := size(part.Chunk)
		if err != nil || hole {
			return 0, err // no part of a hole is in a bundle
		}
		if !part.Whole() {
			if err := object.CheckRuns(n, part.Runs); err != nil {
				return 0, invalid(what, "chunk %d: %v", part.Chunk, err)
			}
		}
		return part.Size(n), nil
	}
	left := p.Parts
	for i, b := range p.Bundles {
		var sum int64
		for _, part := range left[:b.Parts] {
			n, err := slice(part)
			if err != nil {
				return err
			}
			sum += n
		}
		if sum != b.Size {
			return invalid(what, "bundle %d: its parts have %d bytes, and it %d", i, sum, b.Size)
		}
		left = left[b.Parts:]
	}
	for _, part := range left {
		if _, err := slice(part); err != nil {
			return err
		}
	}
	return nil
}

// JoinRuns returns runs, which may overlap and be in any order, as ascending separate runs.
// It merges runs with at most gap leaves between them.
func JoinRuns(runs []object.Run, gap int) []object.Run {
	runs = slices.Clone(runs)
	slices.SortFunc(runs, func(a, b object.Run) int { return a.From - b.From })
	var out []object.Run
	for _, r := range runs {
		if n := len(out); n > 0 && r.From <= out[n-1].To+gap {
			out[n-1].To = max(out[n-1].To, r.To)
			continue
		}
		out = append(out, r)
	}
	return out
}
