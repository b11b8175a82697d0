package fasta

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
)

// Open opens a file for reading its uncompressed content.
func Open(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := NewReader(f, path)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &file{r, f}, nil
}

type file struct {
	io.Reader
	f *os.File
}

func (f *file) Close() error { return f.f.Close() }

// NewReader returns a reader of the uncompressed content of r, which may be gzip. Errors
// contain the name of the file.
func NewReader(r io.Reader, name string) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 256<<10)
	head, err := b.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(head) < 2 || head[0] != 0x1f || head[1] != 0x8b {
		return b, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, damaged(name, err)
	}
	return &unzipper{z, name}, nil
}

// unzipper adds the file's name to the errors of a gzip stream.
type unzipper struct {
	z    *gzip.Reader
	name string
}

func (u *unzipper) Read(p []byte) (int, error) {
	n, err := u.z.Read(p)
	if err != nil && err != io.EOF {
		err = damaged(u.name, err)
	}
	return n, err
}

func damaged(name string, err error) error {
	if !errors.Is(err, gzip.ErrHeader) && !errors.Is(err, gzip.ErrChecksum) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: %w", name, err)
	}
	return Problems{{File: name, Message: "the gzip file is damaged or cut short: " + err.Error(), Hint: "fetch it again; gzip -t tells whether it is whole"}}
}
