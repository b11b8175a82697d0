package queue

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/engine/spawn"
	"premix/internal/kit/owner"
)

// entry is the state of a task in the index. Its offsets are offsets in files of the task
// directory.
type entry struct {
	spec     int64  // in tasks.jsonl
	record   int64  // of the last try, in its journal
	specLen  uint32 // with the newline
	recLen   uint32
	journal  uint32 // of the last record; 0: none
	order    uint32 // number of the batch's order, from 0
	group    uint32 // number of the group, from 0
	priority int32
	try      uint16 // of the last record
	base     uint16 // the last try before the last retry
	fails    uint16 // failures of tries after base
	retries  uint16 // failures after base that do not end the task
	ooms     uint8  // failures for want of memory, of all tries
	flags    uint8

	// Of the first element of an array: see rest.
	others uint8 // flags of the elements without an entry
	_      uint8
	own    uint32 // elements with an entry, from the first on
}

// Flags of an entry.
const (
	flagDone      = 1 // a try succeeded
	flagCancelled = 2
	flagPruned    = 4 // its intermediates are removed
	flagHeld      = 8 // it is not run before it is released
)

const entrySize = int64(unsafe.Sizeof(entry{}))

// State is the state of a task. Whether a task runs is not part of it: see the status files.
type State uint8

// States of a task.
const (
	Waiting State = iota
	Succeeded
	Failed
	Cancelled
)

func (s State) String() string { return [...]string{"waiting", "succeeded", "failed", "cancelled"}[s] }

// begin counts failures from the tries behind one.
func (e *entry) begin(try int) {
	if int(e.base) < try {
		e.base = uint16(try)
		if int(e.try) <= try {
			e.fails = 0
		}
	}
}

// runnable reports whether a task waits, and is not held.
func (e *entry) runnable() bool { return e.state() == Waiting && e.flags&flagHeld == 0 }

func (e *entry) state() State {
	switch {
	case e.flags&flagDone != 0:
		return Succeeded
	case e.flags&flagCancelled != 0:
		return Cancelled
	case e.fails > e.retries:
		return Failed
	}
	return Waiting
}

// rest returns the entry of the elements of an array that have none of their own. e is the
// entry of its first element.
func (e *entry) rest() entry {
	return entry{spec: e.spec, specLen: e.specLen, order: e.order, group: e.group, priority: e.priority, retries: e.retries, flags: e.others}
}

// The head of an index is a page. It is followed by the table of how much of each
// journal was applied, and that by the entries.
type indexHead struct {
	magic   uint64
	format  uint64
	place   uint64 // as in its name; see here
	orders  int64  // bytes of orders.jsonl that were applied
	tasks   int64  // entries
	changes uint64 // grows with each change
	host    uint64 // digest of the name of the host that made it
}

const (
	indexMagic  = 0x78646e69786d7270
	indexFormat = 2
	headSize    = 4096
	maxJournals = 1 << 16 // the index counts the bytes of so many
	tableSize   = maxJournals * 8
	growStep    = 1 << 20

	// blockSize is the unit in which blocks are allocated for entries.
	blockSize = 64 << 10
)

// index is a mapped index. Its memory may move when it grows: pointers into it are
// not kept.
type index struct {
	file *os.File // nil: memory of this process
	data []byte
	dead [][]byte // earlier mappings, which a reader may still look at
	from int64    // this process last allocated blocks for the file from here
	to   int64    // to here
}

func (x *index) head() *indexHead { return (*indexHead)(unsafe.Pointer(&x.data[0])) }

// applied returns how much of journal n was applied.
func (x *index) applied(n int) *int64 {
	return (*int64)(unsafe.Pointer(&x.data[headSize+8*n]))
}

// all returns the entries. Those that an array's elements do not have are holes in the file, and
// are not to be read: see [Queue.entries].
func (x *index) all() []entry {
	n := x.head().tasks
	if n == 0 {
		return nil
	}
	// If another process has grown the file, this mapping has only the first entries.
	n = min(n, (int64(len(x.data))-headSize-tableSize)/entrySize)
	return unsafe.Slice((*entry)(unsafe.Pointer(&x.data[headSize+tableSize])), n)
}

// batch returns the entries of the tasks of a batch, for which there is room.
func (x *index) batch(first, last int) []entry {
	return unsafe.Slice((*entry)(unsafe.Pointer(&x.data[headSize+tableSize+int64(first-1)*entrySize])), last-first+1)
}

// openIndex maps the index at path, or memory if path is empty. The index may be damaged,
// or belong to another machine: see fits.
func openIndex(path string) (*index, error) {
	x := &index{}
	if path != "" {
		f, err := owner.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		x.file = f
	}
	if err := x.remap(0); err != nil {
		x.close()
		return nil, err
	}
	return x, nil
}

// remap maps the whole file again, after growing it to at least size bytes.
func (x *index) remap(size int64) error {
	size = max(size, headSize+tableSize)
	if x.file == nil {
		var data []byte
		var err error
		if x.data == nil {
			data, err = unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		} else { // a copy would take memory for entries that elements do not have
			data, err = unix.Mremap(x.data, int(size), unix.MREMAP_MAYMOVE)
		}
		if err != nil {
			return os.NewSyscallError("mmap", err)
		}
		x.data = data
		return nil
	}
	info, err := x.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() < size {
		if err := x.grow(info.Size(), size); err != nil {
			return err
		}
	} else {
		size = info.Size()
	}
	data, err := unix.Mmap(int(x.file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if errors.Is(err, unix.EACCES) {
		data, err = unix.Mmap(int(x.file.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		return &os.PathError{Op: "map", Path: x.file.Name(), Err: err}
	}
	x.replace(data)
	return nil
}

func (x *index) replace(data []byte) {
	if x.data != nil {
		x.dead = append(x.dead, x.data)
	}
	x.data = data
}

// grow grows the file to a size. The table of journals stays a hole, except for its first page,
// and so do entries until they are allocated.
func (x *index) grow(from, to int64) error {
	if from < headSize+tableSize {
		if err := x.fallocate(0, headSize+4096); err != nil {
			return err
		}
	}
	return x.fallocate(to-1, 1) // unlike truncate, it never cuts what another process has added
}

// fallocate allocates blocks for a part of the file: on a full disk, a store into a hole would
// raise SIGBUS.
func (x *index) fallocate(at, length int64) error {
	if err := unix.Fallocate(int(x.file.Fd()), 0, at, length); err != nil {
		return &os.PathError{Op: "allocate", Path: x.file.Name(), Err: err}
	}
	return nil
}

// allocate allocates blocks for the entries of tasks, for which there is room.
func (x *index) allocate(first, last int) error {
	from := (headSize + tableSize + int64(first-1)*entrySize) / blockSize * blockSize
	to := (headSize + tableSize + int64(last)*entrySize + blockSize - 1) / blockSize * blockSize
	if x.file == nil || from >= x.from && to <= x.to {
		return nil
	}
	if err := x.fallocate(from, to-from); err != nil {
		return err
	}
	x.from, x.to = from, to
	return nil
}

// lastOfBlock returns the last task with an entry that begins in the block of a task's entry.
func lastOfBlock(task int) int {
	at := headSize + tableSize + int64(task-1)*entrySize
	end := (at/blockSize + 1) * blockSize
	return task + int((end-at-1)/entrySize)
}

// journal makes room for the count of journal n.
func (x *index) journal(n int) error {
	if n >= maxJournals {
		return fmt.Errorf("journal %d: there are at most %d", n, maxJournals)
	}
	if x.file == nil || 8*n < 4096 {
		return nil
	}
	return unix.Fallocate(int(x.file.Fd()), 0, int64(headSize+8*n)&^4095, 4096)
}

// room makes room for n entries.
func (x *index) room(n int64) error {
	need := headSize + tableSize + n*entrySize
	if need <= int64(len(x.data)) {
		return nil
	}
	return x.remap((max(need, min(2*int64(len(x.data)), need+64<<20)) + growStep - 1) / growStep * growStep)
}

// follow maps the entries that another process has added.
func (x *index) follow() error {
	if headSize+tableSize+x.head().tasks*entrySize <= int64(len(x.data)) {
		return nil
	}
	return x.remap(0)
}

// here identifies a boot of a machine and a format of the index. Processes with the same
// value share an index; the others have their own.
var here = sync.OnceValue(func() uint64 { return spawn.BootID() + indexFormat })

// hostDigest returns a digest of the name of this host, for the head of an index.
func hostDigest() uint64 {
	host, _ := os.Hostname() // one without a name is still one
	h := fnv.New64a()
	h.Write([]byte(host))
	return h.Sum64()
}

// outlived reports whether the index at path belongs to an earlier boot of this host, or has
// another format.
func outlived(path string) bool {
	f, err := owner.OpenOthers(path)
	if err != nil {
		return false
	}
	defer f.Close()
	page := make([]byte, unsafe.Sizeof(indexHead{}))
	if _, err := io.ReadFull(f, page); err != nil {
		return false
	}
	h := (*indexHead)(unsafe.Pointer(&page[0]))
	return h.magic == indexMagic && h.host == hostDigest() && h.place != here()
}

// fits reports whether the index can be trusted here.
func (x *index) fits(place uint64) bool {
	h := x.head()
	return h.magic == indexMagic && h.format == indexFormat && h.place == place
}

// reset makes the index empty.
func (x *index) reset(place uint64) {
	h := x.head()
	h.magic = 0
	h.tasks, h.orders = 0, 0
	clear(x.data[headSize:min(headSize+4096, len(x.data))])
	for n := 4096 / 8; n < maxJournals; n++ {
		if p := x.applied(n); *p != 0 {
			*p = 0
		}
	}
	h.format, h.place, h.host = indexFormat, place, hostDigest()
	h.changes++
	h.magic = indexMagic
}

func (x *index) close() {
	for _, d := range append(x.dead, x.data) {
		if d != nil {
			_ = unix.Munmap(d)
		}
	}
	x.dead, x.data = nil, nil
	if x.file != nil {
		x.file.Close()
	}
}
