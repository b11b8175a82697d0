package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sync"

	"github.com/klauspost/compress/zstd"

	"premix/internal/kit/beneath"
	"premix/internal/kit/ondisk"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// A cache remembers the contents of a directory's files when it was published, so that a
// file with the same stamp need not be read. It belongs to one directory, and may be
// used with any store: if the store lacks a chunk, its file is read again.
//
// A file that might have changed within the clock tick in which it was read is left
// out, as git does with racy entries.
//
// On disk it is one zstd stream: cacheMagic, then a record for each file, in the order of a
// walk, and at the end one for each chunk of gathered files. Numbers are varints, except in
// digests and stamps. A cache that cannot be read counts as empty.

// oldCache is the cache of an earlier publish, read in order. A nil oldCache is empty.
type oldCache struct {
	file   *os.File
	z      *zstd.Decoder
	d      *decoder
	at     string // path of next, if there is one
	next   cached
	more   bool
	mu     sync.Mutex
	chunks *ondisk.Map // from gatheredKey to positions in digests
	digest *ondisk.File
}

// freshCache collects the cache of a running publish.
type freshCache struct {
	files *ondisk.File
	rec   []byte
	mu    sync.Mutex
	count int
	done  *ondisk.File // gatheredKeys and the chunks' digests
}

type cached struct {
	stamp   stamp
	content *content
}

const cacheMagic = "premix publish cache 3\n"

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

func newFreshCache(dir string) (*freshCache, error) {
	c := &freshCache{}
	var err error
	if c.files, err = ondisk.NewFile(dir); err != nil {
		return nil, err
	}
	if c.done, err = ondisk.NewFile(dir); err != nil {
		return nil, errors.Join(err, c.files.Close())
	}
	return c, nil
}

// Close removes the files of a cache that was not written. A nil cache may be closed.
func (c *freshCache) Close() error {
	if c == nil {
		return nil
	}
	return errors.Join(c.files.Close(), c.done.Close())
}

// add records a file.
func (c *freshCache) add(e *entry, content *content) error {
	if e.node.Size == 0 || content.racy {
		return nil
	}
	c.rec = appendRecord(c.rec[:0], e.path(), cached{e.stamp, content})
	_, err := c.files.Write(c.rec)
	return err
}

// gathered records a chunk of small files. Any goroutine may call it.
func (c *freshCache) gathered(key, d object.Digest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	_, err := c.done.Write(append(key[:], d[:]...))
	return err
}

const (
	recordEnd = iota
	recordInline
	recordSmall
	recordLarge
)

// write writes the cache to a file, replacing an earlier one.
func (c *freshCache) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return beneath.Write(path, 0o600, beneath.Volatile, c.encode)
}

func (c *freshCache) encode(w io.Writer) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(z, 1<<20)
	b.WriteString(cacheMagic) // a bufio.Writer keeps its first error for Flush
	_, err = io.Copy(b, io.NewSectionReader(c.files, 0, c.files.Size()))
	b.Write(binary.AppendUvarint([]byte{recordEnd}, uint64(c.count)))
	_, doneErr := io.Copy(b, io.NewSectionReader(c.done, 0, c.done.Size()))
	return errors.Join(err, doneErr, b.Flush(), z.Close())
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

// openCache opens a cache, and keeps a part of it in files in the directory scratch. If it
// cannot, it returns nil.
//
// It reads the cache twice: nothing of it is used before the checksum at the end of its stream
// was verified.
func openCache(path, scratch string) *oldCache {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	c := &oldCache{file: f, chunks: ondisk.NewMap(scratch, limits.keys)}
	if c.digest, err = ondisk.NewFile(scratch); err != nil || c.load() != nil || c.rewind() != nil {
		c.Close()
		return nil
	}
	c.advance()
	return c
}

// rewind begins to read the cache.
func (c *oldCache) rewind() error {
	if _, err := c.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if c.z != nil {
		c.z.Close()
	}
	var err error
	if c.z, err = zstd.NewReader(c.file, zstd.WithDecoderConcurrency(1)); err != nil {
		return err
	}
	c.d = &decoder{r: bufio.NewReaderSize(c.z, 1<<20)}
	if string(c.d.bytes(uint64(len(cacheMagic)))) != cacheMagic {
		return errors.New("not a cache of this version")
	}
	return c.d.err
}

// load verifies the cache, and reads its chunks of gathered files.
func (c *oldCache) load() error {
	if err := c.rewind(); err != nil {
		return err
	}
	for c.advance(); c.more; c.advance() {
	}
	for n := c.d.uvarint(); n > 0 && c.d.err == nil; n-- {
		key, d := c.d.digest(), c.d.digest()
		if c.d.err != nil {
			break
		}
		if _, ok, err := c.chunks.Get(ondisk.Key(key)); ok || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		if err := c.chunks.Put(ondisk.Key(key), uint64(c.digest.Size())); err != nil {
			return err
		}
		if _, err := c.digest.Write(d[:]); err != nil {
			return err
		}
	}
	if c.d.err != nil {
		return c.d.err
	}
	// The stream's checksum is verified at its end.
	if _, err := c.d.r.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.Join(errors.New("more bytes than expected"), err)
	}
	return nil
}

// advance reads the next file.
func (c *oldCache) advance() {
	kind := c.d.bytes(1)
	if c.more = c.d.err == nil && kind[0] != recordEnd; c.more {
		c.at, c.next = c.d.record(kind[0])
		c.more = c.d.err == nil
	}
}

// find returns the recorded content of an entry, or nil if there is none. Entries must be in
// the order of a walk.
func (c *oldCache) find(e *entry) *content {
	if c == nil {
		return nil
	}
	path := e.path()
	for c.more && walkedBefore(c.at, path) {
		c.advance()
	}
	if !c.more || c.at != path || c.next.stamp != e.stamp {
		return nil
	}
	// Attributes affect what is inline; a change of them changes the stamp.
	return c.next.content
}

// walkedBefore reports whether a file comes before another in a walk: one directory's by
// their names, before those of its subdirectories.
func walkedBefore(a, b string) bool {
	dirA, nameA := path.Split(a)
	dirB, nameB := path.Split(b)
	for i := range min(len(dirA), len(dirB)) {
		if x, y := dirA[i], dirB[i]; x != y {
			return x == '/' || y != '/' && x < y
		}
	}
	if len(dirA) != len(dirB) {
		return len(dirA) < len(dirB)
	}
	return nameA < nameB
}

// chunk returns the chunk of gathered files with a key. Any goroutine may call it.
func (c *oldCache) chunk(key object.Digest) (d object.Digest, ok bool, err error) {
	if c == nil {
		return d, false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok, err := c.chunks.Get(ondisk.Key(key))
	if ok && err == nil {
		_, err = c.digest.ReadAt(d[:], int64(at))
	}
	return d, ok, err
}

// Close closes the cache. A nil cache may be closed.
func (c *oldCache) Close() error {
	if c == nil {
		return nil
	}
	if c.z != nil {
		c.z.Close()
	}
	return errors.Join(c.file.Close(), c.digest.Close(), c.chunks.Close())
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
	if n <= 64<<10 {
		b := make([]byte, n)
		if _, d.err = io.ReadFull(d.r, b); d.err != nil {
			return nil
		}
		return b
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
