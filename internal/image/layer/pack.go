package layer

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// Packer writes an archive of a directory that [Apply] unpacked for overlayfs. For a
// layer that stands alone, unpacking it on top of a flat root has the same result as
// unpacking the original archive.
type Packer struct {
	w     *tar.Writer
	first map[uint64]string // names of files with several links
}

// NewPacker returns a packer that writes to w.
func NewPacker(w io.Writer) *Packer {
	return &Packer{tar.NewWriter(w), map[uint64]string{}}
}

// Entry describes a file or directory of a layer.
type Entry struct {
	Name     string // below the directory, "." for itself
	Ino      uint64
	Nlink    uint32
	Mode     uint32 // as in stat(2)
	UID, GID uint32
	Rdev     uint64
	Size     int64 // of a regular file
	Time     unix.Timespec
	Target   string // of a symbolic link
	Xattrs   map[string][]byte
	Content  io.Reader // of a regular file
}

// Add adds an entry. A directory must be added before its entries.
func (p *Packer) Add(e *Entry) error {
	h := &tar.Header{
		Name: "./" + e.Name, Mode: int64(e.Mode & 0o7777), Uid: int(e.UID), Gid: int(e.GID),
		ModTime: time.Unix(e.Time.Sec, e.Time.Nsec), Format: tar.FormatPAX, PAXRecords: map[string]string{},
	}
	opaqueDir := false
	for name, value := range e.Xattrs {
		if name == opaqueXattr {
			opaqueDir = true
			continue
		}
		h.PAXRecords[xattrPrefix+name] = string(value)
	}
	kind := e.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && e.Nlink > 1 {
		if first, ok := p.first[e.Ino]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return p.w.WriteHeader(h)
		}
		p.first[e.Ino] = h.Name
	}
	switch kind {
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, e.Size
	case unix.S_IFDIR:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
	case unix.S_IFLNK:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag = tar.TypeBlock
		if kind == unix.S_IFCHR {
			h.Typeflag = tar.TypeChar
		}
		h.Devmajor, h.Devminor = int64(unix.Major(e.Rdev)), int64(unix.Minor(e.Rdev))
		if kind == unix.S_IFCHR && e.Rdev == 0 {
			dir, base := path.Split(h.Name)
			h.Typeflag, h.Name, h.PAXRecords = tar.TypeReg, dir+whiteout+base, nil
		}
	default:
		return errors.New("a layer cannot contain sockets")
	}
	if err := p.w.WriteHeader(h); err != nil {
		return err
	}
	if opaqueDir {
		return p.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: h.Name + opaque, Format: tar.FormatPAX})
	}
	if h.Typeflag == tar.TypeReg && h.Size > 0 {
		_, err := io.Copy(p.w, e.Content)
		return err
	}
	return nil
}

// Close ends the archive.
func (p *Packer) Close() error { return p.w.Close() }
