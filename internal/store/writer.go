package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/store/object"
)

const (
	// A writer makes staged objects visible after this many bytes or objects: this
	// bounds the loss by a crash, and the data of one syncfs.
	flushBytes   = 1 << 30
	flushObjects = 8192
	// A writer remembers about as many objects.
	knownMost = 1 << 17
)

// Writer puts objects into a store, concurrently with other writers and a gc: see the
// package comment. It is safe for concurrent use.
type Writer struct {
	s    *Store
	dir  string   // of staged objects
	lock *os.File // held until Close

	// mu guards the fields below. It is never held during a wait for a shard's lock.
	mu      sync.Mutex
	known   map[object.Digest]int64    // objects that stay: staged, renamed or refreshed; length of the stored form, or -1 while it is being written
	waiting map[object.Digest]struct{} // those of them that are not yet renamed
	staged  []object.Digest            // written, not yet given to settle
	bytes   int64                      // of staged

	shards [256]shard
}

// shard is the lock of the objects whose digests begin with the same byte. flock
// belongs to an open file; among goroutines mu excludes.
type shard struct {
	mu   sync.Mutex
	file *os.File // opened when first used
	made bool     // the directory is known to exist
}

// Begin returns a new writer, which must be closed.
func (s *Store) Begin() (*Writer, error) {
	if err := s.prepare(); err != nil {
		return nil, accessError(s.dir, err)
	}
	for {
		dir := s.path(writersDir + "/" + random())
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, accessError(s.dir, err)
		}
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a gc removed the directory as a dead writer's
		}
		if err != nil {
			return nil, accessError(s.dir, err)
		}
		if err := lock.Try(f, lock.Exclusive); err != nil {
			f.Close()
			if errors.Is(err, lock.ErrHeld) {
				continue // likewise
			}
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		// A gc may have held the lock in between. Then the file is gone. Its time is
		// set again, since the writer begins now.
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, f.Name(), nil, 0); err != nil {
			f.Close()
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			return nil, accessError(s.dir, err)
		}
		return &Writer{s: s, dir: dir, lock: f, known: map[object.Digest]int64{}, waiting: map[object.Digest]struct{}{}}, nil
	}
}

// Has reports whether the store has an object, and the length of its stored form. The
// object then stays at least until the writer is closed.
func (w *Writer) Has(d object.Digest) (stored int64, ok bool, err error) {
	w.mu.Lock()
	stored, ok = w.known[d]
	w.mu.Unlock()
	if ok {
		return stored, true, nil
	}
	path := w.s.path(d.Path())
	unlock, err := w.lockShard(d, false)
	if err != nil {
		return 0, false, err
	}
	err = unix.UtimesNanoAt(unix.AT_FDCWD, path, nil, unix.AT_SYMLINK_NOFOLLOW)
	var st unix.Stat_t
	if err == nil {
		err = unix.Lstat(path, &st)
	}
	unlock()
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, false, nil
	case err != nil:
		return 0, false, accessError(w.s.dir, &fs.PathError{Op: "refresh", Path: path, Err: err})
	case st.Size == 0:
		return 0, false, nil // no stored form is empty: the disk lost it
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.known[d]; !ok {
		w.forget()
		w.known[d] = st.Size
	}
	return st.Size, true, nil
}

// forget makes space in known: an object that is in its place is found there again. The
// caller holds mu.
func (w *Writer) forget() {
	if len(w.known) < knownMost {
		return
	}
	for d := range w.known {
		if _, ok := w.waiting[d]; !ok {
			delete(w.known, d)
		}
	}
}

// Put stores content. It returns its digest, and the number of bytes written: 0 if the
// store had the object.
func (w *Writer) Put(content []byte) (d object.Digest, written int64, err error) {
	d = object.Sum(content)
	if _, ok, err := w.Has(d); ok || err != nil {
		return d, 0, err
	}
	buf := stored.Get().(*[]byte)
	defer stored.Put(buf)
	*buf = object.Encode((*buf)[:0], content)
	written, err = w.PutStored(d, *buf)
	return d, written, err
}

// putDense is Put for content that is stored once and fetched often.
func (w *Writer) putDense(content []byte) (object.Digest, error) {
	d := object.Sum(content)
	if _, ok, err := w.Has(d); ok || err != nil {
		return d, err
	}
	_, err := w.PutStored(d, object.EncodeDense(nil, content))
	return d, err
}

// stored holds buffers for stored forms.
var stored = sync.Pool{New: func() any { return new([]byte) }}

// PutStored stores the stored form of an object, which the caller has verified. It
// returns the number of bytes written: 0 if the store had the object.
func (w *Writer) PutStored(d object.Digest, frame []byte) (written int64, err error) {
	if _, ok, err := w.Has(d); ok || err != nil {
		return 0, err
	}
	w.mu.Lock()
	if _, ok := w.known[d]; ok { // another goroutine is writing it
		w.mu.Unlock()
		return 0, nil
	}
	w.forget()
	w.known[d] = -1
	w.waiting[d] = struct{}{}
	w.mu.Unlock()
	if err := writeFile(filepath.Join(w.dir, d.String()), frame); err != nil {
		return 0, accessError(w.s.dir, err)
	}
	w.mu.Lock()
	w.known[d] = int64(len(frame))
	w.staged = append(w.staged, d)
	w.bytes += int64(len(frame))
	var due []object.Digest
	if w.bytes >= flushBytes || len(w.staged) >= flushObjects {
		due, w.staged, w.bytes = w.staged, nil, 0
	}
	w.mu.Unlock()
	return int64(len(frame)), w.settle(due)
}

func writeFile(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// Flush makes all staged objects visible, and waits until they are on the disk. It must
// not run concurrently with Put.
func (w *Writer) Flush() error {
	w.mu.Lock()
	due := w.staged
	w.staged, w.bytes = nil, 0
	w.mu.Unlock()
	if len(due) == 0 {
		return nil
	}
	if err := w.settle(due); err != nil {
		return err
	}
	return w.syncfs() // the new directory entries too
}

// settle syncs staged objects and renames them into place.
func (w *Writer) settle(due []object.Digest) error {
	if len(due) == 0 {
		return nil
	}
	if err := w.syncfs(); err != nil {
		return err
	}
	for _, d := range due {
		if err := w.rename(d); err != nil {
			return accessError(w.s.dir, err)
		}
	}
	return nil
}

func (w *Writer) rename(d object.Digest) error {
	unlock, err := w.lockShard(d, true)
	if err != nil {
		return err
	}
	defer unlock()
	if err := beneath.Move(filepath.Join(w.dir, d.String()), w.s.path(d.Path()), beneath.Volatile); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, d)
	return nil
}

func (w *Writer) syncfs() error {
	if !w.s.sync {
		return nil
	}
	if err := unix.Syncfs(int(w.lock.Fd())); err != nil {
		return accessError(w.s.dir, fmt.Errorf("write objects to the disk: %w", err))
	}
	return nil
}

// lockShard locks out a gc from the objects of a shard, for the moment of a system call
// or two. If create is true, it makes the shard's directory.
func (w *Writer) lockShard(d object.Digest, create bool) (unlock func(), err error) {
	h := &w.shards[d[0]]
	h.mu.Lock()
	defer func() {
		if err != nil {
			h.mu.Unlock()
		}
	}()
	if h.file == nil {
		if h.file, err = os.OpenFile(w.s.path(shardLock(d[0])), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return nil, accessError(w.s.dir, err)
		}
	}
	if create && !h.made {
		if err := os.MkdirAll(filepath.Dir(w.s.path(d.Path())), 0o777); err != nil {
			return nil, err
		}
		h.made = true
	}
	if err := lock.Await(context.Background(), h.file, lock.Shared); err != nil {
		return nil, fmt.Errorf("lock %s: %w", h.file.Name(), err)
	}
	return func() {
		// The file stays open; releasing a lock cannot fail.
		_ = lock.Release(h.file)
		h.mu.Unlock()
	}, nil
}

func shardLock(b byte) string { return fmt.Sprintf("%s/shard-%02x", locksDir, b) }

// Close ends the writer. Staged objects that were not flushed are lost.
func (w *Writer) Close() error {
	err := os.RemoveAll(w.dir)
	for i := range w.shards {
		if f := w.shards[i].file; f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return errors.Join(err, w.lock.Close())
}

// Tag sets a tag to a tree, all of whose objects this writer has put or found. It
// flushes first.
func (w *Writer) Tag(ctx context.Context, o TagOptions) (*Tagged, error) {
	if err := w.Flush(); err != nil {
		return nil, err
	}
	return w.s.tag(ctx, o)
}
