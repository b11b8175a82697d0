package hotstart

import (
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// How a restored tool's memory is read from storage.
//
// If the page file is in the page cache, the kernel maps the cached pages, and the rest
// of this does not matter. If it is not, each first access to a page is a read, and the
// size of that read decides the speed. The kernel's read-around of 128 KiB reads the
// whole file for a short sample that uses a few thousand pages. Reads of single pages
// are very slow for a long sample that needs the whole file. The length of the sample is
// not known beforehand. So the tool first reads single pages (MADV_RANDOM), for as long
// as a sequential read of the whole file would take. If the tool still runs after that,
// the pager reads the rest sequentially. A short sample then reads only the pages that
// it uses, and a long sample loses at most the time of one sequential read, on any
// storage.
const (
	warmFraction = 0.5      // of the page file cached, from which on it counts as warm
	pieceSize    = 4 << 20  // bytes read at once, in order
	smallSize    = 64 << 20 // bytes up to which a file is read in order at once: to measure storage would take as long
	sampleSize   = 16 << 20 // bytes by which storage is measured: beyond what throttling lets through in a burst

	looks      = 64        // places at which the page cache is looked at
	lookSize   = 256 << 10 // bytes looked at in one place
	maxExtents = 1024      // beyond which a file's beginning speaks for the rest
)

// cachedBytes returns how many bytes of a part of a file are in the page cache
// (cachestat(2), Linux 6.5). A length of 0 means up to the end of the file. ok is
// false if the kernel does not have the call.
func cachedBytes(f *os.File, offset, length int64) (bytes int64, ok bool) {
	const sysCachestat = 451
	span := struct{ offset, length uint64 }{uint64(offset), uint64(length)}
	var counts struct{ cached, dirty, writeback, evicted, recentlyEvicted uint64 }
	_, _, e := unix.Syscall6(sysCachestat, f.Fd(), uintptr(unsafe.Pointer(&span)), uintptr(unsafe.Pointer(&counts)), 0, 0, 0)
	return int64(counts.cached) * 4096, e == 0
}

// newPager returns a pager for an open page file. cold is false where most of it
// is in the page cache, and there is nothing to do.
func newPager(f *os.File) (p *pager, cold bool, err error) {
	p = &pager{f: f, started: time.Now(), finished: make(chan struct{})}
	cold, err = p.cold()
	return p, cold, err
}

// pager reads the page file of a cold restore in order when its time has come.
type pager struct {
	f        *os.File
	size     int64 // allocated bytes
	started  time.Time
	finished chan struct{} // closed when the tool has ended
}

// single reports whether the tool must read single pages at first.
func (p *pager) single() bool { return p.size > smallSize }

// stop ends run.
func (p *pager) stop() { close(p.finished) }

// stopped reports whether the tool has ended.
func (p *pager) stopped() bool {
	select {
	case <-p.finished:
		return true
	default:
		return false
	}
}

func (p *pager) cold() (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(p.f.Fd()), &st); err != nil {
		return false, &os.PathError{Op: "stat", Path: p.f.Name(), Err: err}
	}
	p.size = st.Blocks * 512
	share, ok := cachedShare(p.f)
	return ok && share < warmFraction, nil
}

// cachedShare estimates the share of a file's data that is in the page cache. It
// checks a fixed number of places, since the time to check every page grows with the
// file: it is 5 ms per GB if the cache has small pages.
func cachedShare(f *os.File) (share float64, ok bool) {
	extents := dataExtents(f)
	var total int64
	for _, e := range extents {
		total += e.length
	}
	step := max(total/looks, lookSize)
	var looked, cached int64
	at := int64(0) // the next place, as an offset into the data of this extent
	for _, e := range extents {
		for ; at < e.length; at += step {
			n := min(lookSize, e.length-at)
			c, ok := cachedBytes(f, e.offset+at, n)
			if !ok {
				return 0, false
			}
			looked, cached = looked+n, cached+min(c, n)
		}
		at -= e.length
	}
	return float64(cached) / float64(looked), looked > 0
}

// extent is a part of a file that is not a hole, in bytes.
type extent struct{ offset, length int64 }

// dataExtents lists the first maxExtents parts of a file that hold data.
func dataExtents(f *os.File) []extent {
	var all []extent
	for at := int64(0); len(all) < maxExtents; {
		data, err := f.Seek(at, unix.SEEK_DATA)
		if err != nil {
			break // no data behind
		}
		if at, err = f.Seek(data, unix.SEEK_HOLE); err != nil {
			break
		}
		all = append(all, extent{data, at - data})
	}
	return all
}

// run ends with the file read, or with the tool.
func (p *pager) run() {
	defer p.f.Close()
	if !p.single() {
		p.read(0, 1<<62)
		return
	}
	whole, ok := p.measure()
	if !ok {
		return
	}
	select {
	case <-time.After(time.Until(p.started.Add(whole))):
		p.read(0, 1<<62)
	case <-p.finished:
	}
}

// measure reads a part that is not cached and says how long all would take.
func (p *pager) measure() (time.Duration, bool) {
	end, err := p.f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, false
	}
	for try := int64(1); try < 16; try++ {
		at := end * try / 16 &^ (pieceSize - 1)
		if cached, ok := cachedBytes(p.f, at, sampleSize); !ok || cached > 0 {
			continue
		}
		started := time.Now()
		if n := p.read(at, sampleSize); n > 0 {
			return time.Duration(float64(time.Since(started)) * float64(p.size) / float64(n)), true
		}
	}
	return 0, false // it is nearly all there
}

// read reads up to length bytes of data from an offset on, holes left out, and
// returns how many it read.
func (p *pager) read(offset, length int64) (n int64) {
	buf := make([]byte, pieceSize)
	for n < length && !p.stopped() {
		data, err := p.f.Seek(offset, unix.SEEK_DATA)
		if err != nil {
			return n // no data behind
		}
		offset = data &^ (pieceSize - 1)
		k, err := p.f.ReadAt(buf, offset)
		n += int64(k)
		if err != nil {
			return n // the end, or an error that the tool will see for itself
		}
		offset += int64(k)
	}
	return n
}
