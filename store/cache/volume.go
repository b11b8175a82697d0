package cache

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// block is the unit in which file systems allocate, and that of the sums.
const block = 4096

// margin is what writing a chunk may allocate beyond the chunk: a block at
// either edge, a block of present, and one of the file system's own for the
// list of extents.
const margin = 4 * block

// volume is a place for image files, with its limits: the disk, or the memory.
type volume struct {
	dir   string
	quota int64 // 0: none
	floor int64
	// headroom is what is left of the quota for what the file system allocates later
	// on: when it writes back, or when a punch splits an extent, its lists of extents
	// grow.
	headroom int64

	mu       sync.Mutex
	used     int64         // bytes allocated, as last seen
	reserved int64         // bytes that writers were promised
	released chan struct{} // closed when some of them are given back; nil if nobody waits
}

func (v *volume) add(n int64) {
	v.mu.Lock()
	v.used += n
	v.mu.Unlock()
}

// lacks returns how many bytes must be freed before n more can be written: 0 or
// less where there is room.
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

// free returns the bytes that an ordinary user may still write.
func (v *volume) free() (int64, bool) {
	var s unix.Statfs_t
	if unix.Statfs(v.dir, &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * s.Bsize, true
}

// usualFloor is the floor where none was named.
func (v *volume) usualFloor() int64 {
	var s unix.Statfs_t
	if unix.Statfs(v.dir, &s) != nil {
		return 0
	}
	return min(int64(s.Blocks)*s.Bsize/20, 1<<30)
}

// reserve promises n bytes if there is room for them, and returns what lacks
// otherwise.
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

// waitForWriters waits until one of those that were promised room has taken what
// he needs, which is mostly less, and tells whether there was one.
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

// allocated returns the bytes that an open file takes on disk, 0 if it was closed.
func allocated(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	return blocksOf(info)
}

// allocatedAt returns the bytes that something at a path takes on disk.
func allocatedAt(path string) int64 {
	info, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	return blocksOf(info)
}

// blocksOf counts in units of 512 bytes, whatever the file system's are: stat(2).
func blocksOf(info os.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Blocks * 512
	}
	return 0
}
