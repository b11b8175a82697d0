package tree

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"premix/internal/kit/exit"
	"premix/internal/store/object"
)

const (
	// ManifestFormat is the value of a manifest's format field.
	ManifestFormat = "premix tree 1"
	// PageChunks is the largest number of chunks in a page.
	PageChunks = 4096
	// MaxChunk is the largest chunk, in bytes. A hole may be of any length.
	MaxChunk = 4 << 20
	// MaxImage is the largest image, in bytes: EROFS addresses it with 32-bit numbers
	// of 4 KiB blocks.
	MaxImage = 1 << 44

	pageMagic = "premixP1"
	pageEntry = object.DigestSize + 8
)

// Manifest describes a tree. Equal directories have equal manifests: nothing in it
// depends on the time, the place or the user of the publication.
type Manifest struct {
	Format string `json:"format"`
	Size   int64  `json:"size"`            // of the image, bytes
	Meta   int64  `json:"meta"`            // of the metadata at the image's beginning, bytes
	Bytes  int64  `json:"bytes"`           // of all files' contents, holes included, hard links counted once
	Inodes int64  `json:"inodes"`          // files, directories and all others
	Pages  []Page `json:"pages,omitempty"` // in order of the image, covering all of it
}

// Page locates an index page.
type Page struct {
	Digest object.Digest `json:"digest"`
	Chunks int           `json:"chunks"` // 1 to PageChunks
	Size   int64         `json:"size"`   // bytes of the image that its chunks cover
}

// Chunk is a piece of the image.
type Chunk struct {
	Digest object.Digest // zero for a hole
	Size   int64         // bytes of the image
}

// Hole reports whether the chunk reads as zeros and is stored nowhere.
func (c Chunk) Hole() bool { return c.Digest.IsZero() }

// InvalidError reports an invalid document of the store. Such a document is damaged,
// hostile, or of a later version of premix.
type InvalidError struct {
	What   string // "manifest", "page", ...
	Reason string
}

func (e *InvalidError) Error() string { return "invalid " + e.What + ": " + e.Reason }

// ExitCode implements exit.Coded.
func (*InvalidError) ExitCode() exit.Code { return exit.Origin }

// IsInvalid reports whether err is or wraps an [InvalidError].
func IsInvalid(err error) bool {
	var i *InvalidError
	return errors.As(err, &i)
}

func invalid(what, format string, args ...any) error {
	return &InvalidError{what, fmt.Sprintf(format, args...)}
}

// Marshal returns the manifest's canonical form, the content of its object.
func (m *Manifest) Marshal() ([]byte, error) {
	m.Format = ManifestFormat
	if err := m.check(); err != nil {
		return nil, err
	}
	return marshal(m)
}

// ParseManifest decodes and checks a manifest. All its sizes and counts are then
// consistent.
func ParseManifest(content []byte) (*Manifest, error) {
	var m Manifest
	if err := unmarshal("manifest", content, &m); err != nil {
		return nil, err
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	return &m, nil
}

func (m *Manifest) check() error {
	const what = "manifest"
	if m.Format != ManifestFormat {
		return invalid(what, "its format is %q, this premix reads %q", m.Format, ManifestFormat)
	}
	if m.Size < 0 || m.Size > MaxImage || m.Meta < 0 || m.Meta > m.Size || m.Bytes < 0 || m.Inodes < 0 {
		return invalid(what, "a size is out of range (image %d, metadata %d, contents %d, inodes %d)", m.Size, m.Meta, m.Bytes, m.Inodes)
	}
	var sum int64
	for i, p := range m.Pages {
		if p.Chunks < 1 || p.Chunks > PageChunks || p.Size < 1 || p.Size > m.Size-sum || p.Digest.IsZero() {
			return invalid(what, "page %d of %d is out of range (%d chunks, %d bytes)", i, len(m.Pages), p.Chunks, p.Size)
		}
		sum += p.Size
	}
	if sum != m.Size {
		return invalid(what, "its pages cover %d bytes of an image of %d", sum, m.Size)
	}
	return nil
}

// Chunks returns the number of chunks, holes included.
func (m *Manifest) Chunks() int {
	n := 0
	for _, p := range m.Pages {
		n += p.Chunks
	}
	return n
}

// PageSize returns the length of a page's content, in bytes.
func (p Page) PageSize() int64 { return int64(len(pageMagic) + p.Chunks*pageEntry) }

// MarshalPage returns the content of the object of a page of 1 to PageChunks chunks,
// and the Page that locates it.
func MarshalPage(chunks []Chunk) ([]byte, Page, error) {
	if len(chunks) < 1 || len(chunks) > PageChunks {
		return nil, Page{}, fmt.Errorf("a page of %d chunks", len(chunks))
	}
	b := make([]byte, 0, len(pageMagic)+len(chunks)*pageEntry)
	b = append(b, pageMagic...)
	var size int64
	for i, c := range chunks {
		if err := c.check(); err != nil {
			return nil, Page{}, fmt.Errorf("chunk %d: %w", i, err)
		}
		b = append(b, c.Digest[:]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(c.Size))
		size += c.Size
	}
	return b, Page{object.Sum(b), len(chunks), size}, nil
}

// ParsePage decodes the content of the object that p locates and checks that it agrees
// with p.
func ParsePage(p Page, content []byte) ([]Chunk, error) {
	const what = "page"
	if int64(len(content)) != p.PageSize() || !bytes.HasPrefix(content, []byte(pageMagic)) {
		return nil, invalid(what, "%d bytes for %d chunks", len(content), p.Chunks)
	}
	chunks := make([]Chunk, p.Chunks)
	var sum int64
	for i := range chunks {
		c, e := &chunks[i], content[len(pageMagic)+i*pageEntry:]
		copy(c.Digest[:], e)
		c.Size = int64(min(binary.LittleEndian.Uint64(e[object.DigestSize:pageEntry]), math.MaxInt64))
		if err := c.check(); err != nil {
			return nil, invalid(what, "chunk %d: %v", i, err)
		}
		if c.Size > p.Size-sum {
			return nil, invalid(what, "its chunks cover more than %d bytes", p.Size)
		}
		sum += c.Size
	}
	if sum != p.Size {
		return nil, invalid(what, "its chunks cover %d bytes instead of %d", sum, p.Size)
	}
	return chunks, nil
}

func (c Chunk) check() error {
	limit := int64(MaxChunk)
	if c.Hole() {
		limit = MaxImage
	}
	if c.Size < 1 || c.Size > limit {
		return fmt.Errorf("%d bytes", c.Size)
	}
	return nil
}

// marshal encodes v as canonical JSON: fields in the order of the type, indented for
// readers, one newline at the end, nothing escaped for HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(v)
	return b.Bytes(), err
}

// unmarshal is strict: an unknown field belongs to a later version, and acting on half
// of a document would be wrong.
func unmarshal(what string, content []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return invalid(what, "%v", err)
	}
	if rest := bytes.TrimSpace(content[d.InputOffset():]); len(rest) > 0 {
		return invalid(what, "%d bytes follow its end", len(rest))
	}
	return nil
}

// Offsets returns the offset of each chunk if the first begins at start, and then the
// offset at which the last ends.
func Offsets(start int64, chunks []Chunk) []int64 {
	o := make([]int64, 0, len(chunks)+1)
	for _, c := range chunks {
		o = append(o, start)
		start += c.Size
	}
	return slices.Clip(append(o, start))
}
