package frozen

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"
)

// pageSize is the size of a page on x86-64, bytes. Only x86-64 processes are frozen.
const pageSize = 4096

// pieceSize is how much memory is read and digested at a time, bytes.
const pieceSize = 4 << 20

// Piece is a part of the page file and the BLAKE3-256 digest of its content. All
// content of a page file is in pieces.
type Piece struct {
	Extent
	Digest [32]byte
}

// pageWriter copies memory of a process to a page file, on all processors.
type pageWriter struct {
	pid   int
	out   *os.File // nil: contents are digested only
	mem   *os.File
	calls chan func([]byte)
	wait  sync.WaitGroup
	proc  int // GOMAXPROCS of before

	mu     sync.Mutex // guards what follows
	err    error
	kept   int64 // bytes
	pieces []Piece
}

func newPageWriter(pid int, out *os.File) *pageWriter {
	w := &pageWriter{pid: pid, out: out, calls: make(chan func([]byte))}
	// A supervisor makes do with one processor otherwise.
	w.proc = runtime.GOMAXPROCS(runtime.NumCPU())
	for range min(runtime.NumCPU(), 4) {
		go func() {
			buf := make([]byte, pieceSize)
			for call := range w.calls {
				call(buf)
				w.wait.Done()
			}
		}()
	}
	return w
}

func (w *pageWriter) close() {
	w.wait.Wait()
	close(w.calls)
	runtime.GOMAXPROCS(w.proc)
	if w.mem != nil {
		w.mem.Close()
	}
}

// finish waits until everything has been written.
func (w *pageWriter) finish() error {
	w.wait.Wait()
	slices.SortFunc(w.pieces, func(a, b Piece) int { return int(a.Offset - b.Offset) })
	return w.err
}

func (w *pageWriter) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

// write copies runs of pages of a VMA to its slot, and returns the extents with content.
// For memory that will be copied it leaves out the pages of zeros. For memory that will
// be mapped it returns one extent, the whole slot.
func (w *pageWriter) write(v VMA, runs []Extent) ([]Extent, error) {
	if w.mem == nil {
		var err error
		if w.mem, err = os.Open(fmt.Sprintf("/proc/%d/mem", w.pid)); err != nil {
			return nil, err
		}
	}
	if v.Kind == KindPaged {
		for _, run := range runs {
			for at := run.Offset; at < run.Offset+run.Size; at += pieceSize {
				n := min(pieceSize, run.Offset+run.Size-at)
				w.wait.Add(1)
				w.calls <- func(buf []byte) {
					if _, err := w.copy(v, Extent{at, n}, buf); err != nil {
						w.fail(err)
					}
				}
			}
		}
		return []Extent{{0, int64(v.Size())}}, nil
	}
	var all []Extent
	buf := make([]byte, pieceSize)
	for _, run := range runs {
		for at := run.Offset; at < run.Offset+run.Size; at += pieceSize {
			found, err := w.copy(v, Extent{at, min(pieceSize, run.Offset+run.Size-at)}, buf)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	return all, nil
}

// zeros is one page of zeros.
var zeros [pageSize]byte

// copy copies one part of a VMA, and returns the pages of it that are not zeros.
func (w *pageWriter) copy(v VMA, part Extent, buf []byte) ([]Extent, error) {
	b := buf[:part.Size]
	if err := w.read(v.Start+uint64(part.Offset), b); err != nil {
		return nil, err
	}
	var found []Extent
	for off := int64(0); off < part.Size; off += pageSize {
		if bytes.Equal(b[off:off+pageSize], zeros[:]) && v.Kind != KindFile {
			continue
		}
		if last := len(found) - 1; last >= 0 && found[last].Offset+found[last].Size == part.Offset+off {
			found[last].Size += pageSize
		} else {
			found = append(found, Extent{part.Offset + off, pageSize})
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	var total int64
	for _, e := range found {
		total += e.Size
		if w.out == nil {
			continue
		}
		data := b[e.Offset-part.Offset:][:e.Size]
		if _, err := w.out.WriteAt(data, v.Page+e.Offset); err != nil {
			return nil, err
		}
	}
	piece := Piece{Extent: Extent{v.Page + part.Offset, part.Size}, Digest: blake3.Sum256(b)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept += total
	w.pieces = append(w.pieces, piece)
	return found, nil
}

// read reads memory of the process, that which it may not read itself too.
func (w *pageWriter) read(addr uint64, b []byte) error {
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMReadv(w.pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err == nil && n == len(b) {
		return nil
	}
	if _, err := w.mem.ReadAt(b, int64(addr)); err != nil {
		return fmt.Errorf("read memory of process %d at %#x: %w", w.pid, addr, err)
	}
	return nil
}

// ProcessMemory shows the memory of a live process as the page file that its Image speaks of.
type ProcessMemory struct {
	*os.File // /proc/PID/mem
	im       *Image
}

// OpenMemory opens the memory of a process that Freeze has described.
func OpenMemory(pid int, im *Image) (*ProcessMemory, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil, err
	}
	return &ProcessMemory{f, im}, nil
}

// ReadAt reads from one slot of the page file.
func (m *ProcessMemory) ReadAt(b []byte, at int64) (int, error) {
	for i := range m.im.Maps {
		v := &m.im.Maps[i]
		if len(v.Data) > 0 && at >= v.Page && at+int64(len(b)) <= v.Page+int64(v.Size()) {
			return m.File.ReadAt(b, int64(v.Start)+at-v.Page)
		}
	}
	return 0, fmt.Errorf("no memory of the process belongs at offset %d of its page file", at)
}

// ErrPages is returned by Verify for a page file that has other bytes than when
// it was written.
var ErrPages = errors.New("the page file has other bytes")

// Verify reads a page file and compares it with the digests of its pieces.
func Verify(pages *os.File, pieces []Piece) error {
	buf := make([]byte, pieceSize)
	for _, p := range pieces {
		if p.Size > pieceSize || p.Size < 0 {
			return ErrPages
		}
		b := buf[:p.Size]
		if _, err := pages.ReadAt(b, p.Offset); err != nil {
			return fmt.Errorf("%w: %w", ErrPages, err)
		}
		if blake3.Sum256(b) != p.Digest {
			return fmt.Errorf("%w at %d", ErrPages, p.Offset)
		}
	}
	return nil
}
