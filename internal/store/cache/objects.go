package cache

import (
	"container/list"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
)

// Objects keeps whole objects that are not chunks of trees, under names of the caller's
// choice, within the limits of the cache. The caller verifies an object before
// [Draft.Keep]. From then on each read compares the blocks that it returns with sums,
// and an object that is damaged, truncated or under another name counts as missing.
//
// The file of an object has its content, the sums of its blocks, and a footer: the size
// of the content (8 bytes), the CRC-32C of the name, the size and the sums (4 bytes), and
// objectMagic.
//
// An object that quota, floor or a full disk exclude is passed through in memory.
type Objects struct {
	c   *Cache
	dir string

	mu     sync.Mutex // a leaf
	files  map[string]*stored
	recent *list.List // of *stored that are on disk, the newest first
	idle   []*stored  // that are open and not in use, the oldest first
	passed int64      // bytes of objects in memory
	disk   int64      // bytes on disk
	wrong  int64      // objects that were damaged
}

// stored is an object of the cache. Its fields belong to Objects.mu.
type stored struct {
	name      string
	allocated int64
	used      uint64
	at        *list.Element // nil: in memory
	file      *os.File      // nil: it is not open
	size      int64
	sums      []byte
	refs      int
	gone      bool // it is not in the map any more
}

const (
	objectMagic  = "pmxo"
	objectFooter = 16
	idleMost     = 32        // objects that are kept open
	passedMost   = 512 << 20 // bytes of objects in memory
	passedIdle   = 64 << 20  // of those that are not in use
)

// Objects returns the objects of the cache.
func (c *Cache) Objects() *Objects { return c.objects }

// openObjects lists the objects on disk. Their generations follow from their times of
// last use.
func (c *Cache) openObjects() (*Objects, error) {
	o := &Objects{c: c, dir: filepath.Join(c.dir, "objects"), files: map[string]*stored{}, recent: list.New()}
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return nil, err
	}
	dirs, err := os.ReadDir(o.dir)
	if err != nil {
		return nil, err
	}
	type found struct {
		s    *stored
		when time.Time
	}
	var all []found
	for _, d := range dirs {
		entries, err := os.ReadDir(filepath.Join(o.dir, d.Name()))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				return nil, err
			}
			all = append(all, found{&stored{name: e.Name(), allocated: blocksOf(info)}, info.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b found) int { return a.when.Compare(b.when) })
	for i, f := range all {
		f.s.used = uint64(1 + i*254/len(all))
		f.s.at = o.recent.PushFront(f.s)
		o.files[f.s.name] = f.s
		o.disk += f.s.allocated
	}
	c.disk.add(o.disk)
	return o, nil
}

func (o *Objects) path(name string) string {
	return filepath.Join(o.dir, name[:min(2, len(name))], name)
}

// Object is an open object.
type Object struct {
	o *Objects
	s *stored
}

// Open returns an object, or nil if the cache does not have it. The caller closes it.
func (o *Objects) Open(name string) *Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.files[name]
	if s == nil {
		return nil
	}
	if s.file == nil {
		if err := o.openLocked(s); err != nil {
			o.dropLocked(s)
			o.wrong++
			return nil
		}
	}
	o.useLocked(s)
	return &Object{o, s}
}

func (o *Objects) useLocked(s *stored) {
	s.refs++
	if i := slices.Index(o.idle, s); i >= 0 {
		o.idle = slices.Delete(o.idle, i, i+1)
	}
	s.used = o.c.clock.Load()
	if o.c.touches.Add(1) >= o.c.stride.Load() {
		o.c.touches.Store(0)
		o.c.clock.Add(1)
	}
	if s.at != nil {
		o.recent.MoveToFront(s.at)
	}
}

// openLocked opens an object on disk, and reads its sums.
func (o *Objects) openLocked(s *stored) (err error) {
	f, err := os.Open(o.path(s.name))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	footer := make([]byte, objectFooter)
	if _, err := f.ReadAt(footer, max(0, info.Size()-objectFooter)); err != nil {
		return err
	}
	size := int64(binary.LittleEndian.Uint64(footer))
	if string(footer[12:]) != objectMagic || size < 0 || size > info.Size() || size+sumsSize(size)+objectFooter != info.Size() {
		return errors.New("its footer is wrong")
	}
	sums := make([]byte, sumsSize(size))
	if _, err := f.ReadAt(sums, size); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(footer[8:]) != footerSum(s.name, size, sums) {
		return errors.New("its sums are wrong")
	}
	now := time.Now()
	_ = os.Chtimes(f.Name(), now, now) // only the order of a later eviction depends on it
	s.file, s.size, s.sums = f, size, sums
	return nil
}

func sumsSize(size int64) int64 { return (size + block - 1) / block * 4 }

func footerSum(name string, size int64, sums []byte) uint32 {
	b := binary.LittleEndian.AppendUint64([]byte(name+"\x00"), uint64(size))
	return crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, sums)
}

// Size returns the size of the content.
func (x *Object) Size() int64 { return x.s.size }

// NoMemoryError reports that an object fits neither on the disk nor in memory.
type NoMemoryError struct{ Need int64 }

func (e *NoMemoryError) Error() string {
	return fmt.Sprintf("an object of %d bytes fits neither into the cache nor into memory", e.Need)
}

// Dup opens the object once more.
func (x *Object) Dup() *Object {
	x.o.mu.Lock()
	defer x.o.mu.Unlock()
	x.s.refs++
	return &Object{x.o, x.s}
}

// Has reports whether the cache has an object.
func (o *Objects) Has(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.files[name] != nil
}

// WrongError reports that the content of an object in the cache is not the content that
// was kept. The object has been removed.
type WrongError struct{ Name string }

func (e *WrongError) Error() string { return "object " + e.Name + " is damaged in the cache" }

// ReadAt reads verified content. It returns io.EOF at the end, and a [WrongError] if the
// content is damaged.
func (x *Object) ReadAt(p []byte, off int64) (int, error) {
	size := x.s.size
	if off < 0 || off >= size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), size-off))
	from, to := off/block*block, min(size, (off+int64(n)+block-1)/block*block)
	b := p[:n]
	if from != off || to != off+int64(n) {
		b = make([]byte, to-from)
	}
	if _, err := x.s.file.ReadAt(b, from); err != nil {
		return 0, x.refuse()
	}
	for at := from; at < to; at += block {
		part := b[at-from : min(at+block, to)-from]
		if crc32.Checksum(part, castagnoli) != binary.LittleEndian.Uint32(x.s.sums[at/block*4:]) {
			clear(p[:n])
			return 0, x.refuse()
		}
	}
	if len(b) != n || from != off {
		copy(p[:n], b[off-from:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// refuse removes a damaged object.
func (x *Object) refuse() error {
	x.o.mu.Lock()
	defer x.o.mu.Unlock()
	if !x.s.gone {
		x.o.wrong++
		x.o.dropLocked(x.s)
	}
	return &WrongError{x.s.name}
}

// Close ends the use of the object.
func (x *Object) Close() {
	x.o.mu.Lock()
	defer x.o.mu.Unlock()
	s := x.s
	if s.refs--; s.refs > 0 {
		return
	}
	if s.gone {
		x.o.closeLocked(s)
		return
	}
	x.o.idle = append(x.o.idle, s)
	memory := int64(0)
	for _, s := range x.o.idle {
		if s.at == nil {
			memory += s.allocated
		}
	}
	for len(x.o.idle) > idleMost || memory > passedIdle {
		oldest := x.o.idle[0]
		x.o.idle = x.o.idle[1:]
		if oldest.at == nil {
			memory -= oldest.allocated
			x.o.dropLocked(oldest)
		} else {
			x.o.closeLocked(oldest)
		}
	}
}

// closeLocked closes the file of an object that is not in use.
func (o *Objects) closeLocked(s *stored) {
	if s.file == nil {
		return
	}
	_ = s.file.Close() // it was only read
	s.file, s.sums = nil, nil
	if s.at == nil {
		o.passed -= s.allocated
	}
}

// dropLocked removes an object. A user of it keeps its file open.
func (o *Objects) dropLocked(s *stored) (freed int64) {
	s.gone = true
	if o.files[s.name] == s {
		delete(o.files, s.name)
	}
	if i := slices.Index(o.idle, s); i >= 0 {
		o.idle = slices.Delete(o.idle, i, i+1)
	}
	if s.at != nil {
		o.recent.Remove(s.at)
		o.disk -= s.allocated
		o.c.disk.add(-s.allocated)
		_ = os.Remove(o.path(s.name)) // the next Open of the cache counts it again
		freed = s.allocated
	}
	if s.refs == 0 {
		o.closeLocked(s)
	}
	return freed
}

// oldest returns the generation of the least recently used object that may be evicted.
func (o *Objects) oldest() (uint64, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.victimLocked(); s != nil {
		return s.used, true
	}
	return 0, false
}

func (o *Objects) victimLocked() *stored {
	for e := o.recent.Back(); e != nil; e = e.Prev() {
		if s, ok := e.Value.(*stored); ok && s.refs == 0 {
			return s
		}
	}
	return nil
}

// evict removes the least recently used object.
func (o *Objects) evict() (freed int64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.victimLocked()
	if s == nil {
		return 0, false
	}
	o.c.evicted.Add(1)
	return o.dropLocked(s), true
}

// DropObjects removes all objects that are not in use.
func (c *Cache) DropObjects() {
	for {
		if _, ok := c.objects.evict(); !ok {
			return
		}
	}
}

// close closes all files.
func (o *Objects) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.files {
		if s.refs == 0 {
			o.closeLocked(s)
		}
	}
	o.idle = nil
}

// Draft is an object that is being fetched.
type Draft struct {
	o        *Objects
	File     *os.File
	reserved int64
	memory   int64 // bytes of passed that it may use; 0: it is on disk
}

// Draft begins an object of a size; 0 means that it is unknown. With memory set, or if
// the disk has no room, the object is only passed through.
func (o *Objects) Draft(size int64, memory bool) (*Draft, error) {
	if !memory {
		need := size + sumsSize(size) + margin
		if o.c.makeRoom(o.c.disk, need, maxGeneration) {
			f, err := os.OpenFile(o.c.trashName("object"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
			if err == nil {
				return &Draft{o: o, File: f, reserved: need}, nil
			}
			o.c.disk.release(need)
		}
	}
	if size == 0 {
		size = passedIdle
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.passed+size > passedMost {
		return nil, &NoMemoryError{size}
	}
	fd, err := unix.MemfdCreate("premix-object", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	o.passed += size
	return &Draft{o: o, File: os.NewFile(uintptr(fd), "object in memory"), memory: size}, nil
}

// Most returns the largest size that the object may have.
func (d *Draft) Most() int64 {
	if d.memory > 0 {
		return d.memory
	}
	return 1<<63 - 1
}

// Drop ends a draft that is not kept.
func (d *Draft) Drop() {
	if d.File == nil {
		return
	}
	if d.memory == 0 {
		_ = os.Remove(d.File.Name()) // otherwise the next Open of the cache does
		d.o.c.disk.release(d.reserved)
	} else {
		d.o.mu.Lock()
		d.o.passed -= d.memory
		d.o.mu.Unlock()
	}
	_ = d.File.Close()
	d.File = nil
}

// Keep makes the draft, whose content of size bytes has been verified, an object of the
// cache, and opens it.
func (d *Draft) Keep(name string, size int64) (*Object, error) {
	// A wrong answer, before the right one, may have been longer.
	if err := d.File.Truncate(size); err != nil {
		return nil, err
	}
	sums := make([]byte, 0, sumsSize(size))
	b := make([]byte, 64*block)
	for off := int64(0); off < size; off += int64(len(b)) {
		part := b[:min(int64(len(b)), size-off)]
		if _, err := d.File.ReadAt(part, off); err != nil {
			return nil, fmt.Errorf("read a fetched object: %w", err)
		}
		for at := 0; at < len(part); at += block {
			sums = binary.LittleEndian.AppendUint32(sums, crc32.Checksum(part[at:min(at+block, len(part))], castagnoli))
		}
	}
	s := &stored{name: name, size: size, sums: sums, file: d.File}
	if d.memory == 0 {
		if err := d.toDisk(s); err != nil {
			return nil, err
		}
	}
	o := d.o
	o.mu.Lock()
	defer o.mu.Unlock()
	if old := o.files[name]; old != nil {
		// Another fetch has kept it; the file has its name now.
		if old.at != nil && d.memory == 0 {
			o.recent.Remove(old.at)
			o.disk -= old.allocated
			o.c.disk.add(-old.allocated)
			old.at, old.gone, old.allocated = nil, true, 0
			delete(o.files, name)
			if i := slices.Index(o.idle, old); i >= 0 {
				o.idle = slices.Delete(o.idle, i, i+1)
			}
			if old.refs == 0 {
				o.closeLocked(old)
			}
		} else {
			o.dropLocked(old)
		}
	}
	if d.memory == 0 {
		s.at = o.recent.PushFront(s)
		o.disk += s.allocated
		o.c.disk.add(s.allocated)
		o.c.disk.release(d.reserved)
	} else {
		s.allocated = d.memory
	}
	o.files[name] = s
	d.File = nil
	o.useLocked(s)
	return &Object{o, s}, nil
}

// toDisk completes the file of a draft, and gives it its name.
func (d *Draft) toDisk(s *stored) error {
	end := binary.LittleEndian.AppendUint64(slices.Clone(s.sums), uint64(s.size))
	end = binary.LittleEndian.AppendUint32(end, footerSum(s.name, s.size, s.sums))
	if _, err := d.File.WriteAt(append(end, objectMagic...), s.size); err != nil {
		return err
	}
	s.allocated = allocated(d.File)
	path := d.o.path(s.name)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return beneath.Move(d.File.Name(), path, beneath.Volatile)
}

// ObjectsStatus describes the objects of a cache.
type ObjectsStatus struct {
	Count int   `json:"count"`
	Used  int64 `json:"used"`  // bytes allocated on disk
	Wrong int64 `json:"wrong"` // that were damaged on disk, since the cache was opened
}

func (o *Objects) status() ObjectsStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	return ObjectsStatus{o.recent.Len(), o.disk, o.wrong}
}

// Full reports whether an error means that there is no room on a disk.
func Full(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
