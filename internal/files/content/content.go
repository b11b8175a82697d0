package content

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"
)

// Piece is the number of bytes copied at a time.
const Piece = 1 << 20

var buffers = sync.Pool{New: func() any { b := make([]byte, Piece); return &b }}

// segment is a part of a file that holds data.
type segment struct{ from, to int64 }

// segments returns the parts of a file that are not holes.
func segments(f *os.File, size int64) ([]segment, error) {
	var list []segment
	for at := int64(0); at < size; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // the rest is a hole
			break
		}
		if errors.Is(err, unix.EINVAL) { // the file system does not report holes
			return append(list, segment{at, size}), nil
		}
		if err != nil {
			return nil, err
		}
		to, err := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		if from >= size {
			break
		}
		list = append(list, segment{from, min(to, size)})
		at = to
	}
	return list, nil
}

// Copies is a directory at the top of a pool or tier, with copies of files of other ones.
// A mount of tiers does not show it.
const Copies = ".premix-copies"

var (
	// ErrDiffers is returned if the bytes read back differ from the source.
	ErrDiffers = errors.New("the copy differs from the source")
	// ErrShorter is returned if the source became shorter during the copy.
	ErrShorter = errors.New("it has become shorter")
)

// Copy copies a file of a known size into an empty one with its holes, syncs the copy,
// reads it back, and compares. It calls pace before each [Piece] with the number of bytes
// to copy, and with 0 when it reads back. If pace returns an error, Copy stops and returns
// it.
func Copy(dst, src *os.File, size int64, pace func(bytes int) error) error {
	list, err := segments(src, size)
	if err != nil {
		return err
	}
	if err := dst.Truncate(size); err != nil {
		return err
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	// pass reads the segments of a file and returns their digest. It writes them to the
	// other file, if there is one.
	pass := func(from, to *os.File) (sum [32]byte, err error) {
		h := blake3.New()
		for _, s := range list {
			var place [16]byte
			binary.LittleEndian.PutUint64(place[:], uint64(s.from))
			binary.LittleEndian.PutUint64(place[8:], uint64(s.to))
			h.Write(place[:]) // a digest returns no error
			for at := s.from; at < s.to; {
				piece := (*buf)[:min(int64(len(*buf)), s.to-at)]
				copied := 0
				if to != nil {
					copied = len(piece)
				}
				if err := pace(copied); err != nil {
					return sum, err
				}
				n, err := from.ReadAt(piece, at)
				if n == 0 {
					if errors.Is(err, io.EOF) {
						if err = ErrDiffers; to != nil {
							err = ErrShorter
						}
					}
					return sum, err
				}
				h.Write(piece[:n])
				if to != nil {
					if _, err := to.WriteAt(piece[:n], at); err != nil {
						return sum, err
					}
				}
				at += int64(n)
			}
		}
		h.Sum(sum[:0])
		return sum, nil
	}
	want, err := pass(src, dst)
	if err != nil {
		return err
	}
	if err := dst.Sync(); err != nil {
		return err
	}
	// Drop the clean pages from memory, so that the read comes from the disk.
	if err := unix.Fadvise(int(dst.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	got, err := pass(dst, nil)
	if err == nil && got != want {
		err = ErrDiffers
	}
	return err
}

// Equal reports whether two files of a known size have equal bytes. It reads only the parts
// where one of them has data, and those of the first one from the disk if it was synced. It
// calls pace with 0 before each [Piece], and stops when pace returns an error.
func Equal(a, b *os.File, size int64, pace func(bytes int) error) (bool, error) {
	if err := unix.Fadvise(int(a.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return false, err
	}
	list, err := segments(a, size)
	if err != nil {
		return false, err
	}
	more, err := segments(b, size)
	if err != nil {
		return false, err
	}
	list = append(list, more...)
	slices.SortFunc(list, func(x, y segment) int { return cmp.Compare(x.from, y.from) })
	first, second := buffers.Get().(*[]byte), buffers.Get().(*[]byte)
	defer buffers.Put(first)
	defer buffers.Put(second)
	at := int64(0)
	for _, s := range list {
		for at = max(at, s.from); at < s.to; {
			if err := pace(0); err != nil {
				return false, err
			}
			n := min(int64(Piece), s.to-at)
			for f, piece := range map[*os.File][]byte{a: (*first)[:n], b: (*second)[:n]} {
				if _, err := io.ReadFull(io.NewSectionReader(f, at, n), piece); err != nil {
					if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
						return false, nil // it has become shorter
					}
					return false, err
				}
			}
			if !bytes.Equal((*first)[:n], (*second)[:n]) {
				return false, nil
			}
			at += n
		}
	}
	return true, nil
}

// DropACLs removes the POSIX ACLs of a file or directory that are not in names. A new file
// has ACLs from the default ACL of its directory, and a copy must not grant more than its
// source, whose extended attributes are names.
func DropACLs(path string, names []string) error {
	for _, name := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
		if slices.Contains(names, name) {
			continue
		}
		if err := unix.Removexattr(path, name); err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return nil
}
