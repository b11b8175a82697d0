package hotstart

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/hotstart/tracer"
)

// How a restored tool's memory comes in from storage.
//
// Where the page file is in the page cache, the kernel maps what is there and
// nothing else matters. Where it is not, every touch is a read, and how much
// is read at a time decides: the kernel's read-around of 128 KiB brings in the
// whole file for a short sample that looks up a few thousand places, while
// single pages never end for a long sample that needs all of it. How long the
// sample is nobody knows beforehand, so the pager rents before it buys: the
// tool reads single pages (MADV_RANDOM) for as long as reading the whole file
// in order would have taken, and if it still runs then, the rest is read in
// order. A short sample so reads only what it touches, and a long one loses at
// most the time of one reading of the file, whatever the storage.
const (
	warmFraction = 0.5      // of the page file cached, from which on it counts as warm
	pieceSize    = 4 << 20  // bytes read at once, in order
	sampleSize   = 16 << 20 // bytes by which storage is measured: beyond what throttling lets through in a burst
)

// cachedBytes tells how many bytes of a part of a file are in the page cache
// (cachestat(2), Linux 6.5). A length of 0 reaches to the end of the file. ok is
// false where the kernel cannot tell.
func cachedBytes(f *os.File, offset, length int64) (bytes int64, ok bool) {
	const sysCachestat = 451
	span := struct{ offset, length uint64 }{uint64(offset), uint64(length)}
	var counts struct{ cached, dirty, writeback, evicted, recentlyEvicted uint64 }
	_, _, e := unix.Syscall6(sysCachestat, f.Fd(), uintptr(unsafe.Pointer(&span)), uintptr(unsafe.Pointer(&counts)), 0, 0, 0)
	return int64(counts.cached) * 4096, e == 0
}

// readRandomly makes held processes read single pages of their page file, and
// sees to the rest of it, if it is cold.
func readRandomly(pageFile string, held []*tracer.Proc) error {
	f, err := os.Open(pageFile)
	if err != nil {
		return err
	}
	p := &pager{f: f, begun: time.Now()}
	cold, err := p.cold()
	if err != nil || !cold {
		return errors.Join(err, f.Close())
	}
	for _, h := range held {
		maps, err := readMaps(h.Pid)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		for _, m := range maps {
			if m.path != pageFile {
				continue
			}
			if _, err := h.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_RANDOM); err != nil {
				return errors.Join(fmt.Errorf("advise the kernel of random access: %w", err), f.Close())
			}
		}
	}
	go p.run()
	return nil
}

// pager reads the page file of a cold restore in order when its time has come.
type pager struct {
	f     *os.File
	size  int64 // allocated bytes
	begun time.Time
}

func (p *pager) cold() (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(p.f.Fd()), &st); err != nil {
		return false, &os.PathError{Op: "stat", Path: p.f.Name(), Err: err}
	}
	p.size = st.Blocks * 512
	cached, ok := cachedBytes(p.f, 0, 0)
	return ok && float64(cached) < warmFraction*float64(p.size), nil
}

// run ends with the file read, or with the stage.
func (p *pager) run() {
	defer p.f.Close()
	whole, ok := p.measure()
	if !ok {
		return
	}
	time.Sleep(time.Until(p.begun.Add(whole)))
	p.read(0, 1<<62)
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
		begun := time.Now()
		if n := p.read(at, sampleSize); n > 0 {
			return time.Duration(float64(time.Since(begun)) * float64(p.size) / float64(n)), true
		}
	}
	return 0, false // it is nearly all there
}

// read reads up to length bytes of data from an offset on, holes left out, and
// returns how many it read.
func (p *pager) read(offset, length int64) (n int64) {
	buf := make([]byte, pieceSize)
	for n < length {
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
