package node

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"premix/lazyfs/libraries"
	"premix/store/cache"
	"premix/store/object"
)

// image is what a base reads: a tree of the cache. After a restart the tree may
// have to be fetched again before it can be opened, as when the cache was removed
// meanwhile: then each read tries.
type image struct {
	d      *daemon
	digest object.Digest
	size   int64
	src    *source // for opening again; may be nil
	within string  // where the layers lie that it belongs to; "" for none

	ctx       context.Context // ends with the image
	end       context.CancelFunc
	libraries *libraries.Finder

	mu      sync.Mutex
	tree    *cache.Tree // nil until it could be opened
	release func()      // of a tree that is held
	closed  bool
	last    error // of a read
	lastAt  time.Time
}

func (d *daemon) newImage(digest object.Digest, size int64, e entry) *image {
	i := &image{d: d, digest: digest, size: size}
	i.ctx, i.end = context.WithCancel(d.ctx)
	i.libraries = libraries.New(i.ctx, askable{i}, i.elsewhere)
	// Of what is recorded nothing is read but what was asked for.
	if e.Record == "" && e.Within != "" {
		i.within = e.Within
		d.layers.add(i)
	}
	return i
}

// layers are the images that may be layers of one container, the newest last.
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

// beside are the others where an image lies, the newest first.
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

// elsewhere looks for a library in the other layers. Those that were mounted last most
// likely belong to the same container; where an older one has it too, that is not
// looked for.
func (i *image) elsewhere(name string, dirs []string) bool {
	if i.within == "" {
		return false
	}
	return slices.ContainsFunc(i.d.layers.beside(i), func(o *image) bool { return o.libraries.Find(name, dirs) })
}

// openImage makes the image of a tree that is open.
func (d *daemon) openImage(ctx context.Context, t *cache.Tree, e entry) (*image, error) {
	t, err := d.cache.Tree(ctx, t.Digest(), nil) // closed on its own
	if err != nil {
		return nil, err
	}
	i := d.newImage(t.Digest(), t.Size(), e)
	i.tree = t
	return i, nil
}

// reopenImage opens a tree that is mounted, at once or when it can be.
func (d *daemon) reopenImage(e entry, src *source) *image {
	digest := e.Tree
	i := d.newImage(digest, e.Size, e)
	i.src = src
	// Without an origin: the node does not wait for the network here.
	t, err := d.cache.Tree(d.ctx, digest, nil)
	if err != nil {
		return i
	}
	i.tree = t
	if src != nil {
		// It is here, so that this opens nothing: it says from where to fetch.
		if again, err := d.cache.Tree(d.ctx, digest, src.fetcher()); err == nil {
			_ = again.Close() // counts down, and cannot fail
		}
	}
	return i
}

// get returns the tree, which is opened if it was not.
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

// ReadAt is that of the tree.
func (i *image) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	t, err := i.get(ctx)
	if err != nil {
		return 0, err
	}
	n, err := t.ReadAt(ctx, p, off)
	if t.Foresees() {
		i.libraries.Read(p[:n], off)
	}
	if err != nil && err != io.EOF && !errors.Is(ctx.Err(), context.Canceled) { // one that wraps io.EOF is trouble, a reader that has gone is none
		i.mu.Lock()
		i.last, i.lastAt = err, time.Now()
		i.mu.Unlock()
	}
	return n, err
}

// askable is the image for whoever foresees what will be read of it.
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

// verifyWithin is how long a mount waits for a complete image to be hashed. What
// takes longer is mounted through this process, which verifies what is read.
const verifyWithin = 500 * time.Millisecond

// whole returns the path of the image file if the tree is complete and verified,
// and holds it; otherwise it says why not.
func (i *image) whole(ctx context.Context) (path, reason string) {
	t := i.opened()
	if !t.IsComplete() {
		return "", "the tree is not complete in the cache"
	}
	ctx, cancel := context.WithTimeout(ctx, verifyWithin)
	defer cancel()
	release := t.Hold()
	err := t.Verify(ctx)
	switch {
	case ctx.Err() != nil:
		reason = "verifying the whole tree takes longer than a mount should"
	case err != nil:
		reason = err.Error()
	case !t.IsComplete():
		reason = "a part of it was damaged"
	default:
		i.mu.Lock()
		i.release = release
		i.mu.Unlock()
		return t.ImagePath(), ""
	}
	release()
	return "", reason
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

// lastError is that of the last read that failed, nil if none has.
func (i *image) lastError() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.last
}

// Size is that of the tree.
func (i *image) Size() int64 { return i.size }

// Close closes the tree.
func (i *image) Close() error {
	i.end()
	i.d.layers.remove(i)
	i.letGo()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	if i.tree == nil {
		return nil
	}
	t := i.tree
	i.tree = nil
	return t.Close()
}

// letGo gives up the hold on the image file.
func (i *image) letGo() {
	i.mu.Lock()
	release := i.release
	i.release = nil
	i.mu.Unlock()
	if release != nil {
		release()
	}
}
