package frozen

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
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

// stepSize is how much memory of a piece is read before it is looked at, bytes. It stays
// in a processor's cache for that time.
const stepSize = 256 << 10

// releaseSize is how much memory of a process is copied before it is released, bytes. The
// page file then gets the same memory of the machine, which is already at hand.
const releaseSize = 32 << 20

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
	like  *Like                 // whose digests are taken over; nil: none
	free  func(at, size uint64) // releases memory of the process; nil: it keeps it
	calls chan func(*buffers)
	wait  sync.WaitGroup
	proc  int // GOMAXPROCS of before

	mu     sync.Mutex // guards what follows
	err    error
	kept   int64 // bytes
	pieces []Piece
}

// buffers are the memory of one copy.
type buffers struct {
	piece  []byte
	other  []byte // of Like
	hasher *blake3.Hasher
}

func newBuffers() *buffers {
	return &buffers{make([]byte, pieceSize), make([]byte, stepSize), blake3.New()}
}

// Like is a frozen process that another one is expected to equal for the most part.
type Like struct {
	Image *Image
	Pages io.ReaderAt
}

// piece returns the piece of the same memory, and whether there is one. at is the address,
// and inside is the offset from the start of v.
func (l *Like) piece(v VMA, inside, size int64) (Piece, bool) {
	i, ok := slices.BinarySearchFunc(l.Image.Maps, v.Start, func(o VMA, at uint64) int { return cmp.Compare(o.Start, at) })
	if !ok || l.Image.Maps[i].Range != v.Range || len(l.Image.Maps[i].Data) == 0 {
		return Piece{}, false
	}
	at := l.Image.Maps[i].Page + inside
	k, ok := slices.BinarySearchFunc(l.Image.Pieces, at, func(p Piece, at int64) int { return cmp.Compare(p.Offset, at) })
	if !ok || l.Image.Pieces[k].Size != size {
		return Piece{}, false
	}
	return l.Image.Pieces[k], true
}

// equal reports whether the bytes of a piece from an offset on are b.
func (l *Like) equal(p Piece, off int64, b, other []byte) bool {
	other = other[:len(b)]
	_, err := l.Pages.ReadAt(other, p.Offset+off)
	return err == nil && bytes.Equal(b, other)
}

func newPageWriter(pid int, out *os.File) *pageWriter {
	w := &pageWriter{pid: pid, out: out, calls: make(chan func(*buffers))}
	// A supervisor makes do with one processor otherwise.
	w.proc = runtime.GOMAXPROCS(runtime.NumCPU())
	for range min(runtime.NumCPU(), 4) {
		go func() {
			buf := newBuffers()
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
// be mapped it returns one extent, the whole slot, and releases the memory if the process
// does not need it any more.
func (w *pageWriter) write(v VMA, runs []Extent) ([]Extent, error) {
	if w.mem == nil {
		var err error
		if w.mem, err = os.Open(fmt.Sprintf("/proc/%d/mem", w.pid)); err != nil {
			return nil, err
		}
	}
	if v.Kind == KindPaged {
		for _, run := range runs {
			for at := run.Offset; at < run.Offset+run.Size; at += releaseSize {
				part := Extent{at, min(releaseSize, run.Offset+run.Size-at)}
				w.copyAll(v, part)
				if w.free != nil {
					w.wait.Wait()
					w.free(v.Start+uint64(part.Offset), uint64(part.Size))
				}
			}
		}
		return []Extent{{0, int64(v.Size())}}, nil
	}
	var all []Extent
	buf := newBuffers()
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

// copyAll has one part of a VMA copied, piece by piece.
func (w *pageWriter) copyAll(v VMA, part Extent) {
	for at := part.Offset; at < part.Offset+part.Size; at += pieceSize {
		n := min(pieceSize, part.Offset+part.Size-at)
		w.wait.Add(1)
		w.calls <- func(buf *buffers) {
			if _, err := w.copy(v, Extent{at, n}, buf); err != nil {
				w.fail(err)
			}
		}
	}
}

// zeros is one page of zeros.
var zeros [pageSize]byte

// copy copies one part of a VMA, and returns the pages of it that are not zeros.
func (w *pageWriter) copy(v VMA, part Extent, buf *buffers) ([]Extent, error) {
	b := buf.piece[:part.Size]
	var found []Extent
	var like Piece
	equal := false
	if w.like != nil {
		like, equal = w.like.piece(v, part.Offset, part.Size)
	}
	digested := int64(0)
	buf.hasher.Reset()
	for off := int64(0); off < part.Size; off += stepSize {
		step := b[off:min(off+stepSize, part.Size)]
		if err := w.read(v.Start+uint64(part.Offset+off), step); err != nil {
			return nil, err
		}
		found = addPages(found, v.Kind, part.Offset+off, step)
		if equal = equal && w.like.equal(like, off, step, buf.other); !equal {
			buf.hasher.Write(b[digested : off+int64(len(step))])
			digested = off + int64(len(step))
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
	piece := Piece{Extent: Extent{v.Page + part.Offset, part.Size}, Digest: like.Digest}
	if !equal {
		buf.hasher.Sum(piece.Digest[:0])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept += total
	w.pieces = append(w.pieces, piece)
	return found, nil
}

// addPages adds the pages of b, which is at an offset of a VMA of a kind, that are not zeros.
func addPages(found []Extent, kind Kind, at int64, b []byte) []Extent {
	for off := int64(0); off < int64(len(b)); off += pageSize {
		if bytes.Equal(b[off:off+pageSize], zeros[:]) && kind != KindFile {
			continue
		}
		if last := len(found) - 1; last >= 0 && found[last].Offset+found[last].Size == at+off {
			found[last].Size += pageSize
		} else {
			found = append(found, Extent{at + off, pageSize})
		}
	}
	return found
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
