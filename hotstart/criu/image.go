package criu

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
)

// An image file is a header of two 32-bit magic numbers followed by entries,
// each a 32-bit length and a protocol buffer of that length, all little-endian
// (https://criu.org/Images).
const headerSize = 8

// maxEntry bounds the length of one entry, so that a damaged file is an error
// and not an allocation of gigabytes. The largest real one is mm-*.img, some
// 60 bytes a VMA.
const maxEntry = 256 << 20

// image is one image file in memory, its entries still encoded.
type image struct {
	name    string // file name within the images
	header  [headerSize]byte
	entries [][]byte
}

func readImage(dir, name string) (*image, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	img := &image{name: name}
	if _, err := io.ReadFull(r, img.header[:]); err != nil {
		return nil, fmt.Errorf("%s: header: %w", name, err)
	}
	for {
		var length [4]byte
		if _, err := io.ReadFull(r, length[:]); errors.Is(err, io.EOF) {
			return img, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: entry %d: %w", name, len(img.entries), err)
		}
		n := binary.LittleEndian.Uint32(length[:])
		if n > maxEntry {
			return nil, fmt.Errorf("%s: entry %d claims %d bytes", name, len(img.entries), n)
		}
		entry := make([]byte, n)
		if _, err := io.ReadFull(r, entry); err != nil {
			return nil, fmt.Errorf("%s: entry %d: %w", name, len(img.entries), err)
		}
		img.entries = append(img.entries, entry)
	}
}

func (img *image) write(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, img.name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	w.Write(img.header[:])
	for _, entry := range img.entries {
		var length [4]byte
		binary.LittleEndian.PutUint32(length[:], uint32(len(entry)))
		w.Write(length[:])
		w.Write(entry)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("%s: %w", img.name, err)
	}
	return f.Close()
}

// decode parses entry i into m.
func (img *image) decode(i int, m proto.Message) error {
	if i >= len(img.entries) {
		return fmt.Errorf("%s: no entry %d", img.name, i)
	}
	if err := proto.Unmarshal(img.entries[i], m); err != nil {
		return fmt.Errorf("%s: entry %d: %w", img.name, i, err)
	}
	return nil
}

// set replaces entry i, or appends where i is the number of entries.
func (img *image) set(i int, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("%s: entry %d: %w", img.name, i, err)
	}
	if i == len(img.entries) {
		img.entries = append(img.entries, nil)
	}
	img.entries[i] = b
	return nil
}
