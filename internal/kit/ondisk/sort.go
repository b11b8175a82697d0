package ondisk

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"errors"
	"iter"
	"slices"
)

// SortMemory is the number of bytes of records that a Sorter keeps in memory.
const SortMemory = 16 << 20

const (
	// mergeWays is how many runs are merged at once.
	mergeWays  = 64
	mergeBytes = 64 << 10 // the buffer of each
)

// Sorter sorts records byte by byte. Equal records remain.
type Sorter struct {
	dir    string
	memory int
	buf    []byte
	recs   []span
	file   *File
	runs   []sorted
}

// span locates a record in the buffer of a Sorter.
type span struct{ from, to uint32 }

// sorted is the place of a run in the file of a Sorter.
type sorted struct{ from, to int64 }

// NewSorter returns a sorter that keeps its runs in the directory dir, and memory bytes of
// records in memory.
func NewSorter(dir string, memory int) *Sorter { return &Sorter{dir: dir, memory: memory} }

// Add adds a record, which is copied.
func (s *Sorter) Add(rec []byte) error {
	if len(s.recs) > 0 && len(s.buf)+len(rec)+8*len(s.recs) > s.memory {
		if err := s.spill(); err != nil {
			return err
		}
	}
	from := len(s.buf)
	s.buf = append(s.buf, rec...)
	s.recs = append(s.recs, span{uint32(from), uint32(len(s.buf))})
	return nil
}

func (s *Sorter) sort() {
	slices.SortFunc(s.recs, func(a, b span) int { return bytes.Compare(s.buf[a.from:a.to], s.buf[b.from:b.to]) })
}

// spill writes the records in memory as a run.
func (s *Sorter) spill() error {
	if s.file == nil {
		var err error
		if s.file, err = NewFile(s.dir); err != nil {
			return err
		}
	}
	s.sort()
	from := s.file.Size()
	for _, r := range s.recs {
		if err := s.write(s.buf[r.from:r.to]); err != nil {
			return err
		}
	}
	s.runs = append(s.runs, sorted{from, s.file.Size()})
	s.buf, s.recs = s.buf[:0], s.recs[:0]
	return nil
}

func (s *Sorter) write(rec []byte) error {
	var length [binary.MaxVarintLen64]byte
	if _, err := s.file.Write(length[:binary.PutUvarint(length[:], uint64(len(rec)))]); err != nil {
		return err
	}
	_, err := s.file.Write(rec)
	return err
}

// Sorted returns the records in order, each valid until the next. It may be called once,
// after the last Add.
func (s *Sorter) Sorted() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if len(s.runs) == 0 {
			s.sort()
			for _, r := range s.recs {
				if !yield(s.buf[r.from:r.to], nil) {
					return
				}
			}
			return
		}
		if len(s.recs) > 0 {
			if err := s.spill(); err != nil {
				yield(nil, err)
				return
			}
		}
		s.buf, s.recs = nil, nil
		for len(s.runs) > mergeWays {
			some := s.runs[:mergeWays]
			from := s.file.Size()
			for rec, err := range s.merge(some) {
				if err == nil {
					err = s.write(rec)
				}
				if err != nil {
					yield(nil, err)
					return
				}
			}
			s.runs = append(s.runs[mergeWays:], sorted{from, s.file.Size()})
		}
		s.merge(s.runs)(yield)
	}
}

// merge returns the records of runs in order.
func (s *Sorter) merge(runs []sorted) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		var h runHeap
		for _, e := range runs {
			if r := (&runReader{r: s.file.Reader(e.from, mergeBytes), end: e.to}); r.next() {
				h = append(h, r)
			} else if r.r.Err() != nil {
				yield(nil, r.r.Err())
				return
			}
		}
		heap.Init(&h)
		for len(h) > 0 {
			if !yield(h[0].rec, nil) {
				return
			}
			if h[0].next() {
				heap.Fix(&h, 0)
			} else if err := h[0].r.Err(); err != nil {
				yield(nil, err)
				return
			} else {
				heap.Pop(&h)
			}
		}
	}
}

// Close removes the runs.
func (s *Sorter) Close() error { return errors.Join(s.file.Close()) }

// runReader reads the records of a run.
type runReader struct {
	r   *Reader
	end int64
	rec []byte
}

func (r *runReader) next() bool {
	if r.r.Offset() >= r.end {
		return false
	}
	r.rec = r.r.Bytes()
	return r.r.Err() == nil
}

type runHeap []*runReader

func (h runHeap) Len() int           { return len(h) }
func (h runHeap) Less(i, j int) bool { return bytes.Compare(h[i].rec, h[j].rec) < 0 }
func (h runHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(x any)        { *h = append(*h, x.(*runReader)) }
func (h *runHeap) Pop() any {
	x := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return x
}
