package image

import (
	"context"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"premix/internal/image/layer"
	"premix/internal/store"
	"premix/internal/store/erofs"
	"premix/internal/store/object"
)

// applyTree unpacks a layer on top of the root from its tree in the store, so that its
// archive need not be fetched. The layer must stand alone.
func (a *adder) applyTree(ctx context.Context, d object.Digest, root string) error {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(packTree(a.s, d, w))
	}()
	_, err := layer.Apply(ctx, root, r, layer.Options{Limits: &a.limits})
	r.Close() // if the archive was not read to its end, this ends its writer
	<-done
	return err
}

// packTree writes an archive of a layer's tree.
func packTree(s *store.Store, d object.Digest, w io.Writer) error {
	t, err := s.Tree(d)
	if err != nil {
		return err
	}
	fs, err := t.Image()
	if err != nil {
		return err
	}
	p := layer.NewPacker(w)
	err = fs.Walk(func(path string, i *erofs.Inode) error {
		e := &layer.Entry{
			Name: path, Ino: i.Ino, Nlink: i.Nlink, Mode: i.Mode, UID: i.UID, GID: i.GID, Rdev: i.Rdev,
			Time: unix.Timespec{Sec: i.Sec, Nsec: int64(i.Nsec)},
		}
		var err error
		if e.Xattrs, err = fs.Xattrs(i.Ino); err != nil {
			return err
		}
		switch i.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			e.Size, e.Content = i.Size, io.NewSectionReader(&content{fs, i.Ino}, 0, i.Size)
		case unix.S_IFLNK:
			if e.Target, err = fs.Readlink(i.Ino); err != nil {
				return err
			}
		}
		if err := p.Add(e); err != nil {
			return fmt.Errorf("tree %s, %q: %w", d.Short(), path, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return p.Close()
}

// content reads the content of a file from the image of a tree.
type content struct {
	fs  *erofs.Image
	nid uint64
}

func (c *content) ReadAt(p []byte, off int64) (int, error) { return c.fs.ReadAt(c.nid, p, off) }
