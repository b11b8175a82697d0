package node

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"premix/internal/lazyfs/libraries"
	"premix/internal/store/cache"
	"premix/internal/store/erofs"
	"premix/internal/store/object"
)

// image is the image that a base reads: a tree of the cache. After a restart the tree
// may have to be fetched again before it can be opened, for example if the cache was
// removed: then each read tries to open it.
type image struct {
	d      *daemon
	digest object.Digest
	size   int64
	src    *source // for opening it again; may be nil
	within string  // the directory of the layers it belongs to; "" for none

	ctx       context.Context // ends with the image
	end       context.CancelFunc
	libraries *libraries.Finder

	mu      sync.Mutex
	checker *erofs.Checker // nil until the first read
	shown   *os.File       // see keepShown; may be nil
	tree    *cache.Tree    // nil until it is open
	release func()         // releases a held tree
	closed  bool
	last    error // of the last failed read
	lastAt  time.Time
}

func (d *daemon) newImage(digest object.Digest, size int64, e entry) *image {
	i := &image{d: d, digest: digest, size: size}
	i.ctx, i.end = context.WithCancel(d.ctx)
	i.libraries = libraries.New(i.ctx, askable{i}, i.otherLayers)
	// When a profile is recorded, only requested reads may happen.
	if e.Record == "" && e.Within != "" {
		i.within = e.Within
		d.layers.add(i)
	}
	return i
}

// layers holds images that may be layers of one container, the newest last.
type layers struct {
	mu   sync.Mutex // a leaf
	list []*image
}

func (l *layers) add(i *image) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, i)
}

func (l *layers) remove(i *image) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(o *image) bool { return o == i })
}

// beside returns the other images in the same directory, the newest first.
func (l *layers) beside(i *image) []*image {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*image
	for _, o := range slices.Backward(l.list) {
		if o != i && o.within == i.within {
			list = append(list, o)
		}
	}
	return list
}

// otherLayers searches the other layers for a library. The layers mounted last most
// likely belong to the same container, so the search ends with the first that has it.
func (i *image) otherLayers(name string, dirs []string) bool {
	if i.within == "" {
		return false
	}
	return slices.ContainsFunc(i.d.layers.beside(i), func(o *image) bool { return o.libraries.Find(name, dirs) })
}

// openImage returns the image of an open tree.
func (d *daemon) openImage(ctx context.Context, t *cache.Tree, e entry) (*image, error) {
	t, err := d.cache.Tree(ctx, t.Digest(), nil) // closed on its own
	if err != nil {
		return nil, err
	}
	i := d.newImage(t.Digest(), t.Size(), e)
	i.tree = t
	return i, nil
}

// reopenImage returns the image of a mounted tree. The tree is opened at once, or when
// that becomes possible.
func (d *daemon) reopenImage(e entry, src *source) *image {
	digest := e.Tree
	i := d.newImage(digest, e.Size, e)
	i.src = src
	// Without an origin, so that the node does not wait for the network.
	t, err := d.cache.Tree(d.ctx, digest, nil)
	if err != nil {
		return i
	}
	i.tree = t
	if src != nil {
		// The tree is cached, so this only sets its fetcher.
		if again, err := d.cache.Tree(d.ctx, digest, src.fetcher()); err == nil {
			_ = again.Close() // only decrements a count, and cannot fail
		}
	}
	return i
}

// get returns the tree, and opens it if necessary.
func (i *image) get(ctx context.Context) (*cache.Tree, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil, cache.ErrClosed
	}
	if i.tree != nil {
		return i.tree, nil
	}
	t, err := i.d.cache.Tree(ctx, i.digest, i.src.fetcher())
	if err != nil {
		return nil, err
	}
	if t.Size() != i.size {
		return nil, errors.Join(errors.New("the tree has another size than the one that is mounted"), t.Close())
	}
	i.tree = t
	return t, nil
}

// opened returns the tree if it is open.
func (i *image) opened() *cache.Tree {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.tree
}

// ReadAt reads from the tree. It does not return metadata that were not checked: the
// kernel may be the reader.
func (i *image) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	t, err := i.get(ctx)
	if err != nil {
		return 0, err
	}
	n, err := t.ReadAt(ctx, p, off)
	if t.Speculates() {
		i.libraries.Read(p[:n], off)
	}
	if bad := i.check(ctx, t, p[:n], off); bad != nil {
		clear(p[:n])
		n, err = 0, bad
	}
	if err != nil && err != io.EOF && !errors.Is(ctx.Err(), context.Canceled) { // an error that wraps io.EOF is a problem, a reader that has gone is not
		i.mu.Lock()
		i.last, i.lastAt = err, time.Now()
		i.mu.Unlock()
	}
	return n, err
}

// askable is the image as package libraries sees it.
type askable struct{ i *image }

func (a askable) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	t, err := a.i.get(ctx)
	if err != nil {
		return 0, err
	}
	return t.ReadAt(ctx, p, off)
}

func (a askable) Ask(from, to int64) {
	if t := a.i.opened(); t != nil {
		t.Ask(from, to)
	}
}

func (a askable) Size() int64 { return a.i.size }

// verifyWithin is how long a mount waits for a complete image to be hashed. If that
// takes longer, the image is mounted through this process, which verifies reads.
const verifyWithin = 500 * time.Millisecond

// whole returns the path of the image file, and holds it, if the tree is complete,
// verified and sound; otherwise it returns the reason why it is not. An unsound tree is
// an error.
func (i *image) whole(ctx context.Context) (path, reason string, bad error) {
	t := i.opened()
	if !t.IsComplete() {
		return "", "the tree is not complete in the cache", nil
	}
	ctx, cancel := context.WithTimeout(ctx, verifyWithin)
	defer cancel()
	release := t.Hold()
	err, known := t.Verify(ctx), false
	if err == nil {
		if known, err = i.d.sound(ctx, i.digest); known && errors.Is(err, erofs.ErrUnsound) {
			release()
			return "", "", err
		}
	}
	switch {
	case ctx.Err() != nil:
		reason = "verifying the whole tree takes longer than a mount should"
	case err == nil && !known:
		reason = "checking its metadata takes longer than a mount should"
	case err != nil:
		reason = err.Error()
	case !t.IsComplete():
		reason = "a part of it was damaged"
	default:
		i.mu.Lock()
		i.release = release
		i.mu.Unlock()
		return t.ImagePath(), "", nil
	}
	release()
	return "", reason, nil
}

// holdAgain holds the image file of a tree that is mounted from it.
func (i *image) holdAgain() error {
	t := i.opened()
	if t == nil {
		return errors.New("the tree is not in the cache any more")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.release = t.Hold()
	return nil
}

// lastError returns the error of the last failed read, or nil.
func (i *image) lastError() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.last
}

// Size returns the size of the tree's image in bytes.
func (i *image) Size() int64 { return i.size }

// Close closes the tree.
func (i *image) Close() error {
	i.end()
	i.d.layers.remove(i)
	i.letGo()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	if i.shown != nil {
		_ = i.shown.Close() // nothing is buffered
	}
	if i.tree == nil {
		return nil
	}
	t := i.tree
	i.tree = nil
	return t.Close()
}

// letGo releases the hold on the image file.
func (i *image) letGo() {
	i.mu.Lock()
	release := i.release
	i.release = nil
	i.mu.Unlock()
	if release != nil {
		release()
	}
}
