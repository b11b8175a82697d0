package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"premix/internal/lazyfs"
	"premix/internal/store/cache"
	"premix/internal/store/erofs"
	"premix/internal/store/object"
)

// UnsoundError reports that a tree's metadata are not the work of premix. It wraps an
// [erofs.CheckError].
type UnsoundError struct {
	Tree object.Digest
	Err  error
}

func (e *UnsoundError) Error() string {
	return fmt.Sprintf("tree %s is refused: %v", e.Tree.Short(), e.Err)
}

func (e *UnsoundError) Unwrap() error { return e.Err }

// unsound adds the tree to an error of a check.
func unsound(d object.Digest, err error) error {
	if errors.Is(err, erofs.ErrUnsound) {
		return &UnsoundError{d, err}
	}
	return err
}

// keepShown gives the image a file in the private directory of its mount that records
// which metadata the kernel has seen, so that the next worker knows it. It must be
// called before the first read. An image that only premix's own reader interprets does
// not need the file.
func (i *image) keepShown(dir string) error {
	f, err := os.OpenFile(lazyfs.ShownPath(dir), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.shown = f
	return nil
}

// checkerOf returns the checker of the image's metadata.
func (i *image) checkerOf(t *cache.Tree) (*erofs.Checker, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.checker != nil {
		return i.checker, nil
	}
	meta := t.Manifest().Meta
	shown := make([]uint64, erofs.ShownWords(meta))
	f := i.shown
	if f == nil {
		i.checker = erofs.NewChecker(meta, t.Size(), shown, nil)
		return i.checker, nil
	}
	b := make([]byte, 8*len(shown))
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return nil, err
	}
	for n := range shown {
		shown[n] = binary.LittleEndian.Uint64(b[8*n:])
	}
	i.checker = erofs.NewChecker(meta, t.Size(), shown, func(word int, value uint64) error {
		_, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, value), 8*int64(word))
		return err
	})
	return i.checker, nil
}

// treeReader reads a tree for one request.
type treeReader struct {
	ctx context.Context
	t   *cache.Tree
}

func (r treeReader) ReadAt(p []byte, off int64) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.t.ReadAt(r.ctx, p, off)
}

// check returns an error unless bytes of the image may be shown.
func (i *image) check(ctx context.Context, t *cache.Tree, p []byte, off int64) error {
	if off >= t.Manifest().Meta {
		return nil
	}
	c, err := i.checkerOf(t)
	if err != nil {
		return err
	}
	return unsound(i.digest, c.Check(treeReader{ctx, t}, p, off))
}

// soundness is the result of checking all metadata of a tree.
type soundness struct {
	done chan struct{}
	err  error
}

// sound checks all metadata of a complete tree, once while the node runs. If that does
// not end before ctx, it continues, and known is false.
func (d *daemon) sound(ctx context.Context, digest object.Digest) (known bool, err error) {
	d.mu.Lock()
	s := d.soundness[digest]
	if s == nil {
		s = &soundness{done: make(chan struct{})}
		d.soundness[digest] = s
		go d.checkTree(digest, s)
	}
	d.mu.Unlock()
	select {
	case <-s.done:
		return true, s.err
	case <-ctx.Done():
		return false, nil
	}
}

// checkTree checks the metadata of a tree in the cache.
func (d *daemon) checkTree(digest object.Digest, s *soundness) {
	defer close(s.done)
	t, err := d.cache.Tree(d.ctx, digest, nil)
	if err == nil {
		err = erofs.NewChecker(t.Manifest().Meta, t.Size(), nil, nil).All(treeReader{d.ctx, t})
		err = errors.Join(unsound(digest, err), t.Close())
	}
	s.err = err
	var bad *UnsoundError
	if err != nil && !errors.As(err, &bad) {
		// It could not be read, which may change.
		d.mu.Lock()
		delete(d.soundness, digest)
		d.mu.Unlock()
	}
}
