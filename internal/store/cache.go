package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"premix/internal/kit/beneath"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// cache remembers the contents of a directory's files when it was published, so that a
// file with the same stamp need not be read. It belongs to one directory, and may be
// used with any store: if the store lacks a chunk, its file is read again.
//
// A file that might have changed within the clock tick in which it was read is left
// out, as git does with racy entries.
//
// On disk it is one zstd stream: cacheMagic, then a record for each file, and at the
// end one for each chunk of gathered files. Numbers are varints, except in digests and
// stamps. A cache that cannot be read counts as empty.
type cache struct {
	files    map[string]cached
	gathered map[object.Digest]object.Digest // gatheredKey -> the chunk's digest
}

type cached struct {
	stamp   stamp
	content *content
}

const cacheMagic = "premix publish cache 1\n"

func newCache() *cache {
	return &cache{files: map[string]cached{}, gathered: map[object.Digest]object.Digest{}}
}

// CacheDir returns the directory of the caches of publishing: in home, or in the user's
// cache directory for premix if home is "".
func CacheDir(home string) (string, error) {
	if home != "" {
		return filepath.Join(home, "cache", "publish"), nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for the cache of publishing (set PREMIX_HOME): %w", err)
	}
	return filepath.Join(dir, "premix", "publish"), nil
}

// cacheName returns the file name of a directory's cache.
func cacheName(dir string) string { return object.Sum([]byte(dir)).String()[:32] }

// add records a file.
func (c *cache) add(e *entry, content *content) {
	if e.node.Size > 0 && !content.racy {
		c.files[e.path()] = cached{e.stamp, content}
	}
}

// find returns a copy of the recorded content of an entry, or nil if there is none.
func (c *cache) find(e *entry) *content {
	if len(c.files) == 0 {
		return nil
	}
	f, ok := c.files[e.path()]
	if !ok || f.stamp != e.stamp {
		return nil
	}
	// Attributes affect what is inline; a change of them changes the stamp.
	known := *f.content
	return &known
}

const (
	recordEnd = iota
	recordInline
	recordSmall
	recordLarge
)

// write writes the cache to a file, replacing an earlier one.
func (c *cache) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return beneath.Write(path, 0o600, beneath.Volatile, c.encode)
}

func (c *cache) encode(w io.Writer) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(z, 1<<20)
	b.WriteString(cacheMagic) // a bufio.Writer keeps its first error for Flush
	var rec []byte
	for path, f := range c.files {
		rec = appendRecord(rec[:0], path, f)
		b.Write(rec)
	}
	rec = binary.AppendUvarint(append(rec[:0], recordEnd), uint64(len(c.gathered)))
	b.Write(rec)
	for key, d := range c.gathered {
		b.Write(key[:])
		b.Write(d[:])
	}
	return errors.Join(b.Flush(), z.Close())
}

func appendRecord(rec []byte, path string, f cached) []byte {
	kind, c := byte(recordSmall), f.content
	switch {
	case c.inline != nil:
		kind = recordInline
	case c.pieces != nil:
		kind = recordLarge
	}
	rec = append(rec, kind)
	rec = binary.AppendUvarint(rec, uint64(len(path)))
	rec = append(rec, path...)
	s := f.stamp
	for _, v := range []uint64{s.dev, s.ino, uint64(s.size), uint64(s.mtimeSec), uint64(s.mtimeNsec), uint64(s.changeSec), uint64(s.changeNsec)} {
		rec = binary.LittleEndian.AppendUint64(rec, v)
	}
	switch kind {
	case recordInline:
		rec = binary.AppendUvarint(rec, uint64(len(c.inline)))
		rec = append(rec, c.inline...)
	case recordSmall:
		rec = append(rec, c.digest[:]...)
	case recordLarge:
		rec = binary.AppendUvarint(rec, uint64(len(c.pieces)))
		for _, p := range c.pieces {
			rec = append(rec, p.Digest[:]...)
			rec = binary.AppendUvarint(rec, uint64(p.Size))
		}
	}
	return rec
}

// readCache reads a cache. If it cannot, the cache is empty.
func readCache(path string) *cache {
	f, err := os.Open(path)
	if err != nil {
		return &cache{}
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return &cache{}
	}
	defer z.Close()
	d := &decoder{r: bufio.NewReaderSize(z, 1<<20)}
	c := newCache()
	if string(d.bytes(uint64(len(cacheMagic)))) != cacheMagic {
		return &cache{}
	}
	for d.err == nil {
		kind := d.bytes(1)
		if d.err != nil || kind[0] == recordEnd {
			break
		}
		path, f := d.record(kind[0])
		c.files[path] = f
	}
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		key := d.digest()
		c.gathered[key] = d.digest()
	}
	// The stream's checksum is verified at its end.
	if _, err := d.r.ReadByte(); d.err != nil || !errors.Is(err, io.EOF) {
		return &cache{}
	}
	return c
}

// decoder decodes the parts of a cache. After the first error all are empty.
type decoder struct {
	r   *bufio.Reader
	err error
}

func (d *decoder) bytes(n uint64) []byte {
	if d.err != nil {
		return nil
	}
	// Never allocate the length of a damaged record at once.
	var b bytes.Buffer
	if _, d.err = io.CopyN(&b, d.r, int64(min(n, 1<<40))); d.err != nil {
		return nil
	}
	return b.Bytes()
}

func (d *decoder) uvarint() uint64 {
	if d.err != nil {
		return 0
	}
	var n uint64
	n, d.err = binary.ReadUvarint(d.r)
	return n
}

func (d *decoder) uint64() uint64 {
	var b [8]byte
	if d.err == nil {
		_, d.err = io.ReadFull(d.r, b[:])
	}
	return binary.LittleEndian.Uint64(b[:])
}

func (d *decoder) digest() (out object.Digest) {
	if d.err == nil {
		_, d.err = io.ReadFull(d.r, out[:])
	}
	return out
}

func (d *decoder) record(kind byte) (string, cached) {
	path := string(d.bytes(d.uvarint()))
	var s stamp
	s.dev, s.ino, s.size = d.uint64(), d.uint64(), int64(d.uint64())
	s.mtimeSec, s.mtimeNsec = int64(d.uint64()), int64(d.uint64())
	s.changeSec, s.changeNsec = int64(d.uint64()), int64(d.uint64())
	c := &content{}
	switch kind {
	case recordInline:
		c.inline = d.bytes(d.uvarint())
	case recordSmall:
		c.digest = d.digest()
	case recordLarge:
		for n := d.uvarint(); n > 0 && d.err == nil; n-- {
			c.pieces = append(c.pieces, tree.Chunk{Digest: d.digest(), Size: int64(d.uvarint())})
		}
	default:
		d.err = fmt.Errorf("a record of kind %d", kind)
	}
	return path, cached{s, c}
}
