package cache

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// block is the unit in which file systems allocate, and the unit of the sums.
const block = 4096

// margin bounds the bytes that writing a chunk may allocate beyond the chunk: a block
// at each edge, a block of the file present, and one for the file system's list of
// extents.
const margin = 4 * block

// volume is a place for image files, with its limits: disk or memory.
type volume struct {
	dir   string
	quota int64 // 0: none
	floor int64
	// headroom is reserved from the quota for later allocations of the file system: its
	// lists of extents grow when it writes back, or when a punch splits an extent.
	headroom int64

	mu       sync.Mutex
	used     int64         // bytes allocated, when last counted
	reserved int64         // bytes reserved for writers
	released chan struct{} // closed when some of them are released; nil if there is no waiter
}

func (v *volume) add(n int64) {
	v.mu.Lock()
	v.used += n
	v.mu.Unlock()
}

// lacks returns how many bytes must be freed before n more can be written: 0 or less if
// there is enough space.
func (v *volume) lacks(n int64) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lacksLocked(n)
}

func (v *volume) lacksLocked(n int64) int64 {
	lack := -n
	if v.quota > 0 {
		lack = v.used + v.reserved + n - (v.quota - v.headroom)
	}
	if free, ok := v.free(); ok {
		lack = max(lack, v.floor+v.reserved+n-free)
	}
	return lack
}

// free returns the bytes that an unprivileged user may still write.
func (v *volume) free() (int64, bool) {
	var s unix.Statfs_t
	if unix.Statfs(v.dir, &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * s.Bsize, true
}

// usualFloor returns the default floor.
func (v *volume) usualFloor() int64 {
	var s unix.Statfs_t
	if unix.Statfs(v.dir, &s) != nil {
		return 0
	}
	return min(int64(s.Blocks)*s.Bsize/20, 1<<30)
}

// reserve reserves n bytes if there is space for them, and otherwise returns the number
// of bytes lacking.
func (v *volume) reserve(n int64) (lack int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if lack = v.lacksLocked(n); lack > 0 {
		return lack
	}
	v.reserved += n
	return 0
}

func (v *volume) release(n int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.reserved -= n
	if v.released != nil {
		close(v.released)
		v.released = nil
	}
}

// waitForWriters waits until a reservation is released, most of which is usually
// unused, and reports whether there was one.
func (v *volume) waitForWriters() bool {
	v.mu.Lock()
	if v.reserved == 0 {
		v.mu.Unlock()
		return false
	}
	if v.released == nil {
		v.released = make(chan struct{})
	}
	ch := v.released
	v.mu.Unlock()
	<-ch
	return true
}

func (v *volume) usage() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.used
}

// allocated returns the bytes that an open file takes on disk, or 0 if it was closed.
func allocated(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	return blocksOf(info)
}

// allocatedAt returns the bytes that the file or directory at a path takes on disk.
func allocatedAt(path string) int64 {
	info, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	return blocksOf(info)
}

// blocksOf returns the allocated bytes. stat(2) counts blocks of 512 bytes on every
// file system.
func blocksOf(info os.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Blocks * 512
	}
	return 0
}
