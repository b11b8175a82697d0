package stream

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"premix/internal/store"
	"premix/internal/store/object"
)

// receiver writes the entries that a sender sends.
type receiver struct {
	ctl     *control
	at      place
	have    *index                 // nil: none
	resumed bool                   // there was a file or directory at the destination
	begin   func(size int64) error // see Copy
	keep    Keep

	received atomic.Int64
	writing  sync.RWMutex // held for reading while a file is written to; taken before mu

	mu       sync.Mutex // guards the fields below
	changed  sync.Cond  // signals changes of entries, pending and ended, or the end of the context
	root     *os.Root
	group    fs.FileMode // ModeSetgid if directories inherit it from their parent
	entries  []*target
	dirs     []*target // their modes are set at the end
	pending  int       // number of incomplete files
	sum      sum       // of the complete files
	finished *totals
	lost     failures
}

// target is an entry at the receiver.
type target struct {
	entry
	exists  bool  // there was a file at this path before
	missing int64 // bytes
	sum     sum   // of the chunks received
	lost    bool  // the sender cannot read it
}

func newReceiver(ctl *control, at place, have *index, resumed bool) *receiver {
	r := &receiver{ctl: ctl, at: at, have: have, resumed: resumed}
	r.changed.L = &r.mu
	return r
}

// wanted returns how the sender is to send data to a destination.
func wanted(at place, have []string) (*start, error) {
	_, err := at.lstat(at.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &TargetError{err.Error()}
	}
	resumed := err == nil
	return &start{Offer: resumed || len(have) > 0, Content: len(have) > 0, Resumed: resumed}, nil
}

func (r *receiver) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.root != nil {
		r.root.Close()
	}
}

// fault converts an error of the receiver's file system.
func fault(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &TargetError{"the disk of the destination is full: " + err.Error()}
	}
	return &TargetError{err.Error()}
}

// list adds entries in the order in which they arrive.
func (r *receiver) list(stored []byte) error {
	list, err := unpackEntries(stored)
	if err != nil {
		return err
	}
	for i := range list {
		t := &target{entry: list[i], missing: list[i].size}
		if err := r.keep.mayGive(&t.entry); err != nil {
			return &TargetError{fmt.Sprintf("%s: %v", t.shown(r), err)}
		}
		if len(r.entries) == 0 {
			err = r.top(t)
		} else if !filepath.IsLocal(t.path) || filepath.Clean(t.path) != t.path || t.path == "." {
			err = errForm
		}
		if err == nil {
			err = r.prepare(t)
		}
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.entries = append(r.entries, t)
		if t.kind == entryFile && t.size > 0 {
			r.pending++
		}
		r.changed.Broadcast()
		r.mu.Unlock()
	}
	return nil
}

// shown returns the path of an entry for messages.
func (t *target) shown(r *receiver) string {
	if t.path == "" || t.path == "." {
		return filepath.Base(r.at.path)
	}
	return t.path
}

// lose records an entry that the sender cannot read and leaves out.
func (r *receiver) lose(payload []byte) error {
	var l lost
	if json.Unmarshal(payload, &l) != nil {
		return errForm
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost.add(string(l.Path), l.Reason)
	if l.Entry < 0 {
		return nil
	}
	if l.Entry == 0 || l.Entry >= len(r.entries) || r.entries[l.Entry].kind != entryFile {
		return errForm
	}
	t := r.entries[l.Entry]
	if t.lost {
		return errForm
	}
	t.lost = true
	if t.missing > 0 {
		r.pending--
	} else {
		r.sum.minus(&t.sum)
	}
	r.changed.Broadcast()
	return nil
}

// top opens the directory that will contain the copy.
func (r *receiver) top(t *target) (err error) {
	if t.path != "" {
		return errForm
	}
	if r.begin != nil {
		if err := r.begin(t.size); err != nil {
			return err
		}
	}
	var root *os.Root
	switch t.kind {
	case entryDir:
		t.path = "."
		if err := r.at.mkdirAll(r.at.path, 0o700); err != nil {
			return fault(err)
		}
		root, err = r.at.openRoot(r.at.path)
	case entryFile:
		t.path = filepath.Base(r.at.path)
		if err := r.at.mkdirAll(filepath.Dir(r.at.path), 0o777); err != nil {
			return fault(err)
		}
		root, err = r.at.openRoot(filepath.Dir(r.at.path))
	default:
		return errForm
	}
	if err != nil {
		return fault(err)
	}
	r.mu.Lock()
	r.root = root
	r.mu.Unlock()
	info, err := root.Stat(".")
	if err == nil {
		r.group = info.Mode() & fs.ModeSetgid
	}
	return fault(err)
}

// prepare creates entries before their content arrives.
func (r *receiver) prepare(t *target) error {
	switch t.kind {
	case entryDir:
		r.dirs = append(r.dirs, t)
		if t.path != "." {
			if err := r.root.Mkdir(t.path, 0o700); err == nil || !errors.Is(err, fs.ErrExist) {
				return fault(err)
			}
		}
		// The directory is left from an earlier call, or is the top: make sure that files
		// can be created in it.
		return fault(r.root.Chmod(t.path, 0o700|r.group))
	case entryLink:
		if r.resumed {
			if text, err := r.root.Readlink(t.path); err == nil && text == t.link {
				return r.stampLink(t)
			}
			if err := r.root.Remove(t.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fault(err)
			}
		}
		if err := r.root.Symlink(t.link, t.path); err != nil {
			return fault(err)
		}
		return r.stampLink(t)
	case entryFile:
	case entryHard:
		// Another name is created when the file is complete.
		if first := t.size; !r.keep.HardLinks || first >= int64(len(r.entries)) || r.entries[first].kind != entryFile {
			return errForm
		}
		return nil
	default:
		return errForm
	}
	if r.resumed {
		info, err := r.root.Lstat(t.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return fault(err)
		case !info.Mode().IsRegular():
			return &TargetError{filepath.Join(r.at.path, t.path) + " is in the way: it is not a file"}
		case manyNames(info):
			// Writing to a file with other names would change those, too.
			if err := r.root.Remove(t.path); err != nil {
				return fault(err)
			}
		default:
			t.exists = true
			if err := r.root.Chmod(t.path, 0o600); err != nil {
				return fault(err)
			}
			if info.Size() == t.size {
				break
			}
			f, err := r.root.OpenFile(t.path, os.O_WRONLY, 0)
			if err == nil {
				err = errors.Join(f.Truncate(t.size), f.Close())
			}
			if err != nil {
				return fault(err)
			}
		}
	}
	if t.exists && t.size > 0 || t.size > 0 && t.size < store.LargeMin {
		return nil // it is created with its content
	}
	f, err := r.root.OpenFile(t.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		err = errors.Join(f.Truncate(t.size), f.Close())
	}
	if err == nil && t.size == 0 {
		err = r.finishFile(t)
	}
	return fault(err)
}

// stampLink sets the time of a symbolic link itself.
func (r *receiver) stampLink(t *target) error {
	dir, err := r.root.Open(filepath.Dir(t.path))
	if err != nil {
		return fault(err)
	}
	defer dir.Close()
	if r.keep.Owners {
		if err := unix.Fchownat(int(dir.Fd()), filepath.Base(t.path), int(t.uid), int(t.gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fault(err)
		}
	}
	when := unix.NsecToTimespec(t.mtime)
	return fault(unix.UtimesNanoAt(int(dir.Fd()), filepath.Base(t.path), []unix.Timespec{when, when}, unix.AT_SYMLINK_NOFOLLOW))
}

// finishFile sets mode and time of a file, and its other kept properties. Set-user-ID,
// set-group-ID and sticky bits are not set if the owner is not kept: they would give away
// the rights of the receiver. A directory keeps the set-group-ID bit that it inherited from
// its parent.
func (r *receiver) finishFile(t *target) error {
	f, err := r.root.OpenFile(t.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err = r.keep.dress(int(f.Fd()), &t.entry, r.group); err != nil {
		err = fmt.Errorf("%s: %w", t.path, err)
	}
	return errors.Join(err, f.Close())
}

func manyNames(info fs.FileInfo) bool {
	_, _, names, _ := ownerOf(info)
	return names > 1
}

// complete removes files that the sender could not read, and creates the additional names
// of the others.
func (r *receiver) complete() error {
	// Data that arrives later for a file that is left out is not written.
	r.writing.Lock()
	defer r.writing.Unlock()
	for _, t := range r.entries {
		switch {
		case t.kind == entryFile && t.lost:
			if err := r.root.Remove(t.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fault(err)
			}
		case t.kind == entryHard:
			if err := r.name(t, r.entries[t.size]); err != nil {
				return fault(err)
			}
		}
	}
	return nil
}

// name makes an entry another name of a file.
func (r *receiver) name(t, first *target) error {
	if r.resumed {
		if err := r.root.Remove(t.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if first.lost {
		r.lost.add(t.path, "it is another name of "+first.path)
		return nil
	}
	return r.root.Link(first.path, t.path)
}

// known returns the target of a chunk from the control connection. Its entry came through
// the same connection before, so known must not wait for it: the waiting goroutine is the
// one that reads.
func (r *receiver) known(_ context.Context, c *chunk) (*target, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.place(c)
}

// place returns the target of a chunk. Callers hold mu.
func (r *receiver) place(c *chunk) (*target, error) {
	if int64(c.entry) >= int64(len(r.entries)) {
		return nil, errForm
	}
	t := r.entries[c.entry]
	if t.kind != entryFile || c.offset > t.size-int64(c.size) {
		return nil, errForm
	}
	return t, nil
}

// target returns the target of a chunk from a stream. It waits until its entry has been
// listed.
func (r *receiver) target(ctx context.Context, c *chunk) (*target, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for int(c.entry) >= len(r.entries) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		r.changed.Wait()
	}
	return r.place(c)
}

// settle records that a chunk is in place.
func (r *receiver) settle(t *target, c *chunk) error {
	r.mu.Lock()
	if t.lost {
		r.mu.Unlock()
		return nil
	}
	t.sum.add(c)
	t.missing -= int64(c.size)
	missing := t.missing
	if missing == 0 {
		r.sum.plus(&t.sum)
	}
	r.mu.Unlock()
	if missing > 0 {
		return nil
	}
	if missing < 0 {
		return errForm
	}
	if err := r.finishFile(t); err != nil {
		return fault(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending--
	r.changed.Broadcast()
	return nil
}

// data handles the frame of a chunk. find is [receiver.known] or [receiver.target].
func (r *receiver) data(ctx context.Context, payload []byte, find func(context.Context, *chunk) (*target, error)) error {
	if len(payload) < chunkHeader {
		return errForm
	}
	c, err := parseChunk(payload[:chunkHeader])
	data := payload[chunkHeader:]
	if err != nil || len(data) != int(c.size) {
		return errors.Join(errForm, err)
	}
	if object.Sum(data) != c.digest {
		return fmt.Errorf("%w: a chunk does not match its digest", errForm)
	}
	t, err := find(ctx, &c)
	if err != nil {
		return err
	}
	r.received.Add(int64(c.size))
	if err := r.write(t, &c, data); err != nil {
		return err
	}
	return r.settle(t, &c)
}

// gone reports whether a file is left out. Callers hold writing.
func (r *receiver) gone(t *target) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return t.lost
}

func (r *receiver) write(t *target, c *chunk, data []byte) error {
	r.writing.RLock()
	defer r.writing.RUnlock()
	if r.gone(t) {
		return nil
	}
	f, err := r.root.OpenFile(t.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fault(err)
	}
	_, err = f.WriteAt(data, c.offset)
	if err == nil && t.size > store.LargeMin {
		// Start writing to the disk now, so that the sync at the end is short.
		_ = unix.SyncFileRange(int(f.Fd()), c.offset, int64(c.size), unix.SYNC_FILE_RANGE_WRITE)
	}
	return fault(errors.Join(err, f.Close()))
}

// offered handles a batch of offers: it creates holes, and answers with the chunks that are
// neither in place nor in other paths.
func (r *receiver) offered(ctx context.Context, payload []byte) error {
	if len(payload) < 4 {
		return errForm
	}
	number := payload[:4]
	list, err := unpackChunks(payload[4:])
	if err != nil {
		return err
	}
	bits := make([]byte, (len(list)+7)/8)
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for i := range list {
		c := &list[i]
		t, err := r.known(ctx, c)
		if err != nil {
			return err
		}
		has := true
		if c.digest.IsZero() {
			err = r.hole(t, c)
		} else {
			has, err = r.has(t, c, (*buf)[:c.size])
		}
		switch {
		case err != nil:
			return err
		case !has:
			bits[i/8] |= 1 << (i % 8)
		default:
			if err := r.settle(t, c); err != nil {
				return err
			}
		}
	}
	if binary.LittleEndian.Uint32(number) == 0 {
		return nil
	}
	return r.ctl.send(kindWants, number, bits)
}

// has puts a chunk in its place, if the receiver has it.
func (r *receiver) has(t *target, c *chunk, buf []byte) (bool, error) {
	if t.exists {
		f, err := r.root.OpenFile(t.path, os.O_RDONLY, 0)
		if err != nil {
			return false, fault(err)
		}
		_, err = f.ReadAt(buf, c.offset)
		f.Close()
		if err == nil && object.Sum(buf) == c.digest {
			return true, nil
		}
	}
	if r.have == nil || !r.have.find(c.digest, buf) {
		return false, nil
	}
	return true, r.write(t, c, buf)
}

// hole creates a hole in a file that existed before; new files begin as holes.
func (r *receiver) hole(t *target, c *chunk) error {
	r.writing.RLock()
	defer r.writing.RUnlock()
	if !t.exists || r.gone(t) {
		return nil
	}
	f, err := r.root.OpenFile(t.path, os.O_WRONLY, 0)
	if err != nil {
		return fault(err)
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, c.offset, int64(c.size))
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return fault(err)
	}
	_, err = io.Copy(io.NewOffsetWriter(f, c.offset), io.LimitReader(zeros{}, int64(c.size)))
	return fault(err)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// take reads the data frames of a stream until its end.
func (r *receiver) take(ctx context.Context, s *stream) error {
	in := bufio.NewReaderSize(s.tls, 16<<10)
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		kind, payload, err := readFrame(in, buf)
		switch {
		case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return nil // the sender reports missing data
		case err != nil:
			return &PeerError{Err: err}
		case kind != kindData:
			return errForm
		}
		if err := r.data(ctx, payload, r.target); err != nil {
			return err
		}
	}
}

// end stores the totals from the sender.
func (r *receiver) end(t *totals) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished = t
	r.changed.Broadcast()
}

// finish waits until all data has arrived, and syncs it.
func (r *receiver) finish(ctx context.Context) (*totals, error) {
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.changed.Broadcast()
	})
	defer stop()
	r.mu.Lock()
	for r.finished == nil || r.pending > 0 {
		if ctx.Err() != nil {
			break
		}
		r.changed.Wait()
	}
	t := r.finished
	whole := t != nil && len(r.entries) == t.Entries && r.sum == t.Sum
	r.mu.Unlock()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if !whole {
		return nil, errors.New("the copy differs from the source")
	}
	if err := r.complete(); err != nil {
		return nil, err
	}
	if err := r.checkOthers(); err != nil {
		return nil, err
	}
	// Finish children before their directories, because they change the directories' times.
	for i := len(r.dirs) - 1; i >= 0; i-- {
		if err := r.finishFile(r.dirs[i]); err != nil {
			return nil, fault(err)
		}
	}
	t.Sent, t.lost = r.received.Load(), r.lost
	return t, fault(r.sync())
}

// checkOthers returns an error if the destination of a resumed copy has a file that the source lacks.
func (r *receiver) checkOthers() error {
	if !r.resumed || r.entries[0].kind != entryDir {
		return nil
	}
	known := make(map[string]bool, len(r.entries))
	for _, t := range r.entries {
		known[t.path] = true
	}
	return fs.WalkDir(r.root.FS(), ".", func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return fault(err)
		}
		if !known[p] {
			return &TargetError{filepath.Join(r.at.path, p) + " is in the way: it is not at the source"}
		}
		return nil
	})
}

// syncMost is the number of entries up to which each is synced by itself, which does not
// wait for other programs' writes. For more entries, one journal commit for each would take
// longer.
const syncMost = 256

// syncAtOnce is the number of them that are synced at a time.
const syncAtOnce = 8

// sync waits until all data is on disk.
func (r *receiver) sync() error {
	if len(r.entries) <= syncMost {
		var work errgroup.Group
		work.SetLimit(syncAtOnce)
		for _, t := range r.entries {
			if t.kind != entryLink && t.kind != entryHard && !t.lost { // the sync of its directory, or of its file, includes it
				work.Go(func() error { return r.syncOne(t.path) })
			}
		}
		err := work.Wait()
		if err == nil && r.entries[0].kind == entryFile {
			err = r.syncOne(".")
		}
		if !errors.Is(err, fs.ErrPermission) {
			return err
		}
		// By now the modes may prevent even the owner from reading.
	}
	f, err := r.root.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

func (r *receiver) syncOne(path string) error {
	f, err := r.root.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
