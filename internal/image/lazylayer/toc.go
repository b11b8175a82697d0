package lazylayer

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"
)

// Names of an eStargz layer.
const (
	tocName  = "stargz.index.json"
	landmark = ".prefetch.landmark"
)

const (
	footerSize = 51        // of an eStargz blob
	tocMost    = 256 << 20 // the largest TOC, uncompressed
	entryMost  = 64 << 20  // the largest stretch, uncompressed: 4 MiB is usual
	tailSize   = 64 << 10  // the first request for the end of a blob
	pieceSize  = 512 << 10 // at which a piece ends, compressed
	pieceMost  = 8 << 20   // and at which it ends, uncompressed
)

// tocEntry is an entry of a TOC.
type tocEntry struct {
	Name        string            `json:"name"`
	Type        string            `json:"type"`
	Size        int64             `json:"size"`
	ModTime     string            `json:"modtime"`
	LinkName    string            `json:"linkName"`
	Mode        int64             `json:"mode"`
	UID         int               `json:"uid"`
	GID         int               `json:"gid"`
	Offset      int64             `json:"offset"`      // of a gzip member in the blob
	InnerOffset int64             `json:"innerOffset"` // of the content in the member, uncompressed
	DevMajor    int64             `json:"devMajor"`
	DevMinor    int64             `json:"devMinor"`
	Xattrs      map[string][]byte `json:"xattrs"`
	Digest      string            `json:"digest"`
	ChunkOffset int64             `json:"chunkOffset"` // in the file
	ChunkSize   int64             `json:"chunkSize"`   // 0: to the end of the file
	ChunkDigest string            `json:"chunkDigest"`
}

// footerOffset returns the offset of the TOC from the last bytes of a blob.
func footerOffset(tail []byte, size int64) (int64, error) {
	if len(tail) < footerSize {
		return 0, unsuitable("the blob has no footer of eStargz")
	}
	b := tail[len(tail)-footerSize:]
	// A gzip member without content, with an extra field: "SG", its length, and 16 digits
	// and "STARGZ".
	if !bytes.Equal(b[:4], []byte{0x1f, 0x8b, 8, 4}) || !bytes.Equal(b[12:14], []byte("SG")) || binary.LittleEndian.Uint16(b[14:]) != 22 || string(b[32:38]) != "STARGZ" {
		return 0, unsuitable("the blob has no footer of eStargz")
	}
	off, err := strconv.ParseInt(string(b[16:32]), 16, 64)
	if err != nil || off <= 0 || off >= size-footerSize {
		return 0, unsuitable("the footer of the blob is wrong")
	}
	return off, nil
}

// fetchTOC fetches the TOC of an eStargz blob, and verifies it. It is returned after its
// offset (8 bytes), as the archive that contains it.
func fetchTOC(ctx context.Context, r *Repository, d *Description) ([]byte, error) {
	at := max(0, d.Size-tailSize)
	var tail bytes.Buffer
	if err := r.Range(ctx, d.Digest, d.Size, at, d.Size, &tail); err != nil {
		return nil, err
	}
	off, err := footerOffset(tail.Bytes(), d.Size)
	if err != nil {
		return nil, err
	}
	packed := tail.Bytes()
	if off < at {
		if at-off > tocMost {
			return nil, unsuitable("the TOC has %d bytes", d.Size-off)
		}
		var head bytes.Buffer
		if err := r.Range(ctx, d.Digest, d.Size, off, at, &head); err != nil {
			return nil, err
		}
		packed = append(head.Bytes(), packed...)
	} else {
		packed = packed[off-at:]
	}
	archive, err := inflate(packed[:len(packed)-footerSize], tocMost)
	if err != nil {
		return nil, wrong("the TOC cannot be decompressed: %v", err)
	}
	kept := append(binary.BigEndian.AppendUint64(nil, uint64(off)), archive...)
	_, err = openTOC(kept, d)
	return kept, err
}

// inflate decompresses one member of gzip, or several.
func inflate(packed []byte, most int64) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if _, err := io.Copy(&out, io.LimitReader(z, most+1)); err != nil {
		return nil, err
	}
	if int64(out.Len()) > most {
		return nil, fmt.Errorf("it has more than %d bytes", most)
	}
	return out.Bytes(), nil
}

// openTOC opens what fetchTOC has returned.
func openTOC(kept []byte, d *Description) (*opened, error) {
	if len(kept) < 8 {
		return nil, wrong("the TOC is too short")
	}
	off := int64(binary.BigEndian.Uint64(kept))
	tr := tar.NewReader(bytes.NewReader(kept[8:]))
	h, err := tr.Next()
	if err != nil || h.Name != tocName || h.Typeflag != tar.TypeReg {
		return nil, wrong("there is no TOC where the footer of the blob points: %v", err)
	}
	content, err := io.ReadAll(io.LimitReader(tr, tocMost))
	if err != nil {
		return nil, wrong("the TOC is not complete: %v", err)
	}
	if sum := sha256.Sum256(content); "sha256:"+hex.EncodeToString(sum[:]) != d.TOC {
		return nil, wrong("the TOC does not match its digest %.19s", d.TOC)
	}
	return readTOCJSON(content, off, &entry{name: tocName, kind: unix.S_IFREG, mode: h.Mode, uid: h.Uid, gid: h.Gid, sec: h.ModTime.Unix()})
}

// readTOCJSON makes the tree of a TOC. end is the offset of the TOC in the blob; self is
// the entry of the file with the TOC itself, which comes last.
func readTOCJSON(content []byte, end int64, self *entry) (*opened, error) {
	var toc struct {
		Version int         `json:"version"`
		Entries []*tocEntry `json:"entries"`
	}
	if err := json.Unmarshal(content, &toc); err != nil {
		return nil, unsuitable("the TOC is malformed: %v", err)
	}
	if toc.Version != 1 {
		return nil, unsuitable("the TOC has version %d", toc.Version)
	}
	self.size, self.stretches = int64(len(content)), []stretch{{size: int64(len(content)), piece: -1}}
	o, err := readTOC(toc.Entries, end, self)
	if err == nil {
		o.inline = content
	}
	return o, err
}

// part is an stretch in a blob of eStargz.
type part struct {
	offset, inner, size int64
	digest              [sha256.Size]byte
	to                  *stretch
}

// readTOC is readTOCJSON after decoding.
func readTOC(entries []*tocEntry, end int64, self *entry) (*opened, error) {
	b := newBuilder()
	o := &opened{}
	var parts []part
	var all []*entry
	var file *entry // the last regular file
	var have int64  // of its content
	complete := func() error {
		if file != nil && have != file.size {
			return unsuitable("the TOC has %d of %d bytes of %q", have, file.size, file.name)
		}
		file = nil
		return nil
	}
	for _, t := range entries {
		if t == nil {
			return nil, unsuitable("the TOC has an empty entry")
		}
		if t.Type != "chunk" {
			if err := complete(); err != nil {
				return nil, err
			}
			e, err := t.entry()
			if err != nil {
				return nil, err
			}
			all = append(all, e)
			if t.Name == landmark && t.Type == "reg" {
				o.ahead = t.Offset
			}
			if t.Type != "reg" || t.Size == 0 {
				continue
			}
			file, have = e, 0
		} else if file == nil {
			return nil, unsuitable("the TOC has a chunk of no file")
		}
		size := t.ChunkSize
		if size == 0 {
			size = file.size - have
		}
		text := t.ChunkDigest
		if text == "" && t.Type == "reg" && size == file.size {
			text = t.Digest
		}
		p := part{offset: t.Offset, inner: t.InnerOffset, size: size}
		raw, err := hex.DecodeString(strings.TrimPrefix(text, "sha256:"))
		if err != nil || len(raw) != sha256.Size || !strings.HasPrefix(text, "sha256:") {
			return nil, unsuitable("the TOC has no digest for a part of %q", file.name)
		}
		p.digest = [sha256.Size]byte(raw)
		if t.ChunkOffset != have || size <= 0 || size > entryMost || size > file.size-have || p.offset < 0 || p.offset >= end || p.inner < 0 || p.inner > entryMost {
			return nil, unsuitable("the TOC is wrong about %q", file.name)
		}
		file.stretches = append(file.stretches, stretch{off: have, size: size})
		have += size
		parts = append(parts, p)
	}
	if err := complete(); err != nil {
		return nil, err
	}
	i := 0
	for _, e := range all {
		for k := range e.stretches {
			parts[i].to = &e.stretches[k]
			i++
		}
	}
	o.pieces = group(parts, end)
	for _, e := range append(all, self) {
		if err := b.add(e); err != nil {
			return nil, err
		}
	}
	o.b = b
	return o, nil
}

// entry converts an entry that is not a chunk.
func (t *tocEntry) entry() (*entry, error) {
	kinds := map[string]uint32{"dir": unix.S_IFDIR, "reg": unix.S_IFREG, "symlink": unix.S_IFLNK, "hardlink": 0, "char": unix.S_IFCHR, "block": unix.S_IFBLK, "fifo": unix.S_IFIFO}
	kind, ok := kinds[t.Type]
	if !ok {
		return nil, unsuitable("%q has the unknown type %q", t.Name, t.Type)
	}
	if t.Size < 0 {
		return nil, unsuitable("%q has %d bytes", t.Name, t.Size)
	}
	e := &entry{name: t.Name, kind: kind, mode: t.Mode, uid: t.UID, gid: t.GID, link: t.LinkName, major: t.DevMajor, minor: t.DevMinor, xattrs: t.Xattrs, size: t.Size}
	if t.ModTime != "" {
		when, err := time.Parse(time.RFC3339, t.ModTime)
		if err != nil {
			return nil, unsuitable("%q has the time %q", t.Name, t.ModTime)
		}
		e.sec, e.nsec = when.Unix(), uint32(when.Nanosecond())
	}
	return e, nil
}

// stargzPiece is a piece of an eStargz blob: several members of gzip.
type stargzPiece struct {
	start, end, bytes int64
	members           []member
}

// member is a member of gzip with the contents that are used from it.
type member struct {
	from, to int64 // in the blob
	parts    []part
}

// group makes pieces, and sets the places of the stretches in them. end is the end of the
// last member.
func group(parts []part, end int64) []piece {
	list := slices.Clone(parts)
	slices.SortStableFunc(list, func(a, b part) int {
		if a.offset != b.offset {
			return int(min(1, max(-1, a.offset-b.offset)))
		}
		return int(min(1, max(-1, a.inner-b.inner)))
	})
	var pieces []piece
	var now *stargzPiece
	for i := 0; i < len(list); {
		m := member{from: list[i].offset, to: end}
		bytes := int64(0)
		for ; i < len(list) && list[i].offset == m.from; i++ {
			m.parts = append(m.parts, list[i])
			bytes += list[i].size
		}
		if i < len(list) {
			m.to = list[i].offset
		}
		if now == nil || m.to-now.start > pieceSize || now.bytes+bytes > pieceMost {
			now = &stargzPiece{start: m.from}
			pieces = append(pieces, now)
		}
		for _, p := range m.parts {
			p.to.piece, p.to.at = len(pieces)-1, now.bytes
			now.bytes += p.size
		}
		now.end = m.to
		now.members = append(now.members, m)
	}
	return pieces
}

func (p *stargzPiece) blob() (from, to int64) { return p.start, p.end }
func (p *stargzPiece) size() int64            { return p.bytes }

// unpack verifies each content that it writes.
func (p *stargzPiece) unpack(packed []byte, w io.Writer) error {
	for _, m := range p.members {
		z, err := gzip.NewReader(bytes.NewReader(packed[m.from-p.start : m.to-p.start]))
		if err != nil {
			return wrong("bytes %d to %d cannot be decompressed: %v", m.from, m.to, err)
		}
		z.Multistream(false)
		at := int64(0)
		for _, k := range m.parts {
			if k.inner < at {
				return wrong("contents overlap in the member at %d", m.from)
			}
			if _, err := io.CopyN(io.Discard, z, k.inner-at); err != nil {
				return wrong("bytes %d to %d cannot be decompressed: %v", m.from, m.to, err)
			}
			buf := make([]byte, k.size)
			if _, err := io.ReadFull(z, buf); err != nil {
				return wrong("bytes %d to %d cannot be decompressed: %v", m.from, m.to, err)
			}
			if sha256.Sum256(buf) != k.digest {
				return wrong("bytes %d to %d do not match the digest of their content", m.from, m.to)
			}
			if _, err := w.Write(buf); err != nil {
				return err
			}
			at = k.inner + k.size
		}
	}
	return nil
}
