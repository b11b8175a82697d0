package object

import (
	"encoding/hex"
	"errors"
	"fmt"
	"premix/internal/kit/exit"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
)

// DigestSize is the length of a [Digest] in bytes.
const DigestSize = 32

// MaxContent is the largest size of an object's content, in bytes. It is small enough
// to hold a fetched object in memory whole.
const MaxContent = 16 << 20

// MaxStored is the largest stored form of an object, in bytes: a frame of
// incompressible content is a little longer than the content (3 bytes for each
// block of 128 KiB, and the frame's header).
const MaxStored = MaxContent + MaxContent/1024 + 64

// Digest names an object: BLAKE3-256 of its content. The zero Digest names no object.
type Digest [DigestSize]byte

// Sum returns the digest of content.
func Sum(content []byte) Digest { return blake3.Sum256(content) }

// ParseDigest parses the 64 lower-case hexadecimal digits that [Digest.String] returns.
// It refuses upper case, since a digest is also a file name.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if len(s) != 2*DigestSize {
		return d, fmt.Errorf("digest %q: want %d hexadecimal digits, got %d characters", s, 2*DigestSize, len(s))
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return d, fmt.Errorf("digest %q: character %q is not a lower-case hexadecimal digit", s, c)
		}
	}
	_, err := hex.Decode(d[:], []byte(s))
	return d, err
}

// String returns 64 lower-case hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Short returns the first 12 digits, for messages that people read.
func (d Digest) Short() string { return d.String()[:12] }

// IsZero reports whether d names no object.
func (d Digest) IsZero() bool { return d == Digest{} }

// MarshalText returns the text that String returns.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses the text that MarshalText returns.
func (d *Digest) UnmarshalText(text []byte) error {
	parsed, err := ParseDigest(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

// Path returns the object's path below the root of a store, with slashes.
func (d Digest) Path() string {
	s := d.String()
	return "objects/" + s[:2] + "/" + s
}

// CorruptError reports that a stored form does not hold the content that its name
// stands for.
type CorruptError struct {
	Digest Digest
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("object %s is corrupt: %s", e.Digest.Short(), e.Reason)
}

// ExitCode implements exit.Coded.
func (*CorruptError) ExitCode() exit.Code { return exit.Origin }

// IsCorrupt reports whether err is or wraps a [CorruptError].
func IsCorrupt(err error) bool {
	var c *CorruptError
	return errors.As(err, &c)
}

// The compressor and the decompressor keep tables of their own. Both are made when
// first used, so that a premix that touches no store pays nothing, and both serve any
// number of goroutines.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil,
			zstd.WithEncoderLevel(zstd.SpeedDefault),
			zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
			zstd.WithEncoderCRC(false)) // the digest is the stronger check
		if err != nil {
			panic(err) // the options are constant
		}
		return e
	})
	denseEncoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil,
			zstd.WithEncoderLevel(zstd.SpeedBestCompression),
			zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
			zstd.WithWindowSize(MaxContent/2),
			zstd.WithEncoderCRC(false))
		if err != nil {
			panic(err) // the options are constant
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil,
			zstd.WithDecoderConcurrency(0),
			zstd.WithDecodeAllCapLimit(true), // bounds the output: see Decode
			zstd.WithDecoderMaxMemory(MaxContent+1),
			zstd.WithDecoderMaxWindow(MaxContent))
		if err != nil {
			panic(err) // the options are constant
		}
		return d
	})
)

// Encode appends the stored form of content to dst.
func Encode(dst, content []byte) []byte { return encoder().EncodeAll(content, dst) }

// EncodeDense is Encode for content that is encoded once and transferred often: it
// takes some ten times as long, and the stored form is shorter.
func EncodeDense(dst, content []byte) []byte { return denseEncoder().EncodeAll(content, dst) }

// Decode appends the content of a stored form to dst, which may be nil, after checking
// that it has size bytes and the digest d. A negative size means that the size is
// unknown: then [MaxContent] bounds it. Where dst has capacity for size more bytes,
// nothing is allocated. The error is a [CorruptError].
func Decode(dst []byte, d Digest, size int64, stored []byte) ([]byte, error) {
	limit := size
	if size < 0 || size > MaxContent {
		if size > MaxContent {
			return dst, &CorruptError{d, fmt.Sprintf("a size of %d bytes is over the limit of %d", size, MaxContent)}
		}
		limit = contentSize(stored)
	}
	start := len(dst)
	if int64(cap(dst)-start) < limit {
		dst = append(make([]byte, 0, int64(start)+limit), dst...)
	}
	// The decoder may write up to the capacity of its buffer: cut the capacity to the
	// limit.
	out, err := decoder().DecodeAll(stored, dst[:start:int64(start)+limit])
	if err != nil {
		return dst[:start], &CorruptError{d, err.Error()}
	}
	content := out[start:]
	if size >= 0 && int64(len(content)) != size {
		return dst[:start], &CorruptError{d, fmt.Sprintf("%d bytes instead of %d", len(content), size)}
	}
	if got := Sum(content); got != d {
		return dst[:start], &CorruptError{d, "the content's digest is " + got.Short()}
	}
	return out, nil
}

// contentSize returns the number of bytes to allocate for a frame whose content has an
// unknown size: the size in its header, within MaxContent.
func contentSize(stored []byte) int64 {
	var h zstd.Header
	if err := h.Decode(stored); err != nil || !h.HasFCS || h.FrameContentSize > MaxContent {
		return MaxContent
	}
	return int64(h.FrameContentSize)
}
