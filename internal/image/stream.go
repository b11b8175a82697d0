package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// stream reads a layer's archive, decompressed.
type stream struct {
	b        *blob
	raw      io.ReadCloser
	buffered *bufio.Reader
	rawSum   hash.Hash
	rawSize  int64
	io.Reader
	sum   hash.Hash
	close func()
}

// zstdWindow limits the memory, in bytes, of decompressing a layer: by default zstd
// --long writes frames that need no more.
const zstdWindow = 128 << 20

// openStream opens a layer. Its content is only verified by verify, at the end.
func openStream(b *blob) (*stream, error) {
	raw, err := b.open()
	if err != nil {
		return nil, err
	}
	s := &stream{b: b, raw: raw, rawSum: sha256.New(), sum: sha256.New(), close: func() {}}
	s.buffered = bufio.NewReaderSize(io.TeeReader(raw, io.MultiWriter(s.rawSum, (*counter)(&s.rawSize))), 1<<20)
	var plain io.Reader = s.buffered
	magic, err := s.buffered.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		raw.Close()
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}): // RFC 1952
		z, err := gzip.NewReader(s.buffered)
		if err != nil {
			raw.Close()
			return nil, s.broken(err)
		}
		plain = z
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}): // RFC 8878
		z, err := zstd.NewReader(s.buffered, zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			raw.Close()
			return nil, s.broken(err)
		}
		plain, s.close = z, z.Close
	}
	s.Reader = io.TeeReader(&decoding{s, plain}, s.sum)
	return s, nil
}

// decoding distinguishes errors of compressed data from errors of reading it.
type decoding struct {
	s *stream
	r io.Reader
}

func (d *decoding) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		var path *os.PathError
		if !errors.As(err, &path) {
			err = d.s.broken(err)
		}
	}
	return n, err
}

func (s *stream) broken(err error) error {
	var known *Error
	if errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}
	return &Error{Damaged, fmt.Sprintf("%s cannot be decompressed: %v", s.b, err), "nothing was added; build or fetch the image again", err}
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// verifyRaw reads the source to its end, and compares its digest.
func (s *stream) verifyRaw() error {
	if _, err := io.Copy(io.Discard, s.buffered); err != nil { // behind the compressed data
		return err
	}
	if got := digestOf(s.rawSum); s.b.digest != "" && got != s.b.digest {
		return wrongDigest(s.b.String(), s.b.digest, got)
	}
	return nil
}

// verify reads to the end of the archive, and compares all digests.
func (s *stream) verify() error {
	if err := s.verifyRaw(); err != nil {
		return err
	}
	if s.b.size > 0 && s.rawSize != s.b.size {
		return &Error{Kind: Damaged, Reason: fmt.Sprintf("%s has %d bytes, not %d", s.b, s.rawSize, s.b.size), HintText: "nothing was added; build or fetch the image again"}
	}
	if got := digestOf(s.sum); got != s.b.diffID {
		return wrongDigest(s.b.String()+", uncompressed,", s.b.diffID, got)
	}
	return nil
}

// Close closes the stream, at any position.
func (s *stream) Close() error {
	s.close()
	return s.raw.Close()
}

func digestOf(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

// downloads is how many times a layer is fetched before giving up.
const downloads = 3

// spool fetches a layer into a file, from which it is then read.
func (b *blob) spool(ctx context.Context, file string, got func(int64)) error {
	var last error
	for range downloads {
		if last = b.download(ctx, file, got); last == nil {
			b.open = func() (io.ReadCloser, error) { return os.Open(file) }
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		var path *os.PathError
		if errors.As(last, &path) { // of the file
			return last
		}
	}
	var known *Error
	if errors.As(last, &known) {
		return last
	}
	return &Error{Unreachable, fmt.Sprintf("%s was not fetched completely: %v", b, last), "try again; nothing was added", last}
}

func (b *blob) download(ctx context.Context, file string, got func(int64)) error {
	r, err := b.open()
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	sum := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		n, rerr := r.Read(buf)
		sum.Write(buf[:n])
		got(int64(n))
		if _, err := f.Write(buf[:n]); err != nil {
			f.Close()
			return err
		}
		if errors.Is(rerr, io.EOF) {
			break
		}
		if rerr != nil {
			f.Close()
			return rerr
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	if d := digestOf(sum); d != b.digest {
		return wrongDigest(b.String(), b.digest, d)
	}
	return nil
}
