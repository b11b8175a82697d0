package ondisk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
)

// MapRecent is the number of keys that a Map keeps in memory.
const MapRecent = 1 << 18

const (
	mapRecord = KeySize + 8
	fenceStep = 256 // records of a run between two fences
	levelRuns = 8   // runs of one level that are merged to one of the next
)

// KeySize is the size of a key in bytes.
const KeySize = 32

// Key is a key of a Map: a digest.
type Key = [KeySize]byte

// Map is a map to which keys are added, each once. Its newest keys are in memory; the others
// are in sorted runs on the disk. A lookup reads 10 KiB of each run at most, unless many
// keys have the same first eight bytes.
type Map struct {
	dir    string
	most   int // keys in memory
	recent map[Key]uint64
	levels [][]*mapRun
}

// mapRun is a run: records of a key and a value, in order of the keys.
type mapRun struct {
	file   *File
	count  int64
	fences []uint64 // the first eight bytes of every fenceStep-th key
}

// NewMap returns a map that keeps its runs in the directory dir, and recent keys in memory.
func NewMap(dir string, recent int) *Map {
	return &Map{dir: dir, most: recent, recent: map[Key]uint64{}}
}

// Empty reports whether the map has no keys.
func (m *Map) Empty() bool { return len(m.recent) == 0 && len(m.levels) == 0 }

// Get returns the value of a key, and whether the map has the key.
func (m *Map) Get(k Key) (uint64, bool, error) {
	if v, ok := m.recent[k]; ok {
		return v, true, nil
	}
	for _, runs := range m.levels {
		for _, r := range runs {
			if v, ok, err := r.get(k); ok || err != nil {
				return v, ok, err
			}
		}
	}
	return 0, false, nil
}

// Put adds a key that the map does not have.
func (m *Map) Put(k Key, v uint64) error {
	if len(m.recent) >= m.most {
		if err := m.spill(); err != nil {
			return err
		}
	}
	m.recent[k] = v
	return nil
}

func prefix(k []byte) uint64 { return binary.BigEndian.Uint64(k) }

func (r *mapRun) get(k Key) (uint64, bool, error) {
	// The key is behind the last fence that is smaller, and perhaps behind equal ones.
	first, _ := slices.BinarySearch(r.fences, prefix(k[:]))
	var buf [fenceStep * mapRecord]byte
	for i := max(0, first-1); i < len(r.fences) && r.fences[i] <= prefix(k[:]); i++ {
		from := int64(i) * fenceStep
		b := buf[:min(fenceStep, r.count-from)*mapRecord]
		if _, err := r.file.ReadAt(b, from*mapRecord); err != nil {
			return 0, false, err
		}
		low, high := 0, len(b)/mapRecord
		for low < high {
			middle := (low + high) / 2
			rec := b[middle*mapRecord:]
			switch c := bytes.Compare(rec[:KeySize], k[:]); {
			case c == 0:
				return binary.LittleEndian.Uint64(rec[KeySize:]), true, nil
			case c < 0:
				low = middle + 1
			default:
				high = middle
			}
		}
	}
	return 0, false, nil
}

func (r *mapRun) add(rec []byte) error {
	if r.count%fenceStep == 0 {
		r.fences = append(r.fences, prefix(rec))
	}
	r.count++
	_, err := r.file.Write(rec)
	return err
}

// spill writes the keys in memory as a run, and merges runs.
func (m *Map) spill() error {
	keys := make([]Key, 0, len(m.recent))
	for k := range m.recent {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Key) int { return bytes.Compare(a[:], b[:]) })
	run, err := m.newRun(0)
	if err != nil {
		return err
	}
	var rec [mapRecord]byte
	for _, k := range keys {
		copy(rec[:], k[:])
		binary.LittleEndian.PutUint64(rec[KeySize:], m.recent[k])
		if err := run.add(rec[:]); err != nil {
			return err
		}
	}
	clear(m.recent)
	for level := 0; len(m.levels[level]) >= levelRuns; level++ {
		if err := m.merge(level); err != nil {
			return err
		}
	}
	return nil
}

func (m *Map) newRun(level int) (*mapRun, error) {
	f, err := NewFile(m.dir)
	if err != nil {
		return nil, err
	}
	r := &mapRun{file: f}
	if level == len(m.levels) {
		m.levels = append(m.levels, nil)
	}
	m.levels[level] = append(m.levels[level], r)
	return r, nil
}

// merge replaces the runs of a level by one of the next.
func (m *Map) merge(level int) error {
	runs := m.levels[level]
	m.levels[level] = nil
	to, err := m.newRun(level + 1)
	if err != nil {
		return errors.Join(err, closeRuns(runs))
	}
	type source struct {
		r    *Reader
		left int64
		rec  []byte
	}
	var from []*source
	for _, r := range runs {
		s := &source{r: r.file.Reader(0, mergeBytes), left: r.count - 1}
		s.rec = s.r.Next(mapRecord)
		err = errors.Join(err, s.r.Err())
		from = append(from, s)
	}
	for err == nil && len(from) > 0 {
		least := 0
		for i, s := range from {
			if bytes.Compare(s.rec[:KeySize], from[least].rec[:KeySize]) < 0 {
				least = i
			}
		}
		s := from[least]
		if err = to.add(s.rec); err != nil {
			break
		}
		if s.left == 0 {
			from = slices.Delete(from, least, least+1)
			continue
		}
		s.left--
		s.rec = s.r.Next(mapRecord)
		err = s.r.Err()
	}
	return errors.Join(err, closeRuns(runs))
}

func closeRuns(runs []*mapRun) error {
	var err error
	for _, r := range runs {
		err = errors.Join(err, r.file.Close())
	}
	return err
}

// Close removes the runs.
func (m *Map) Close() error {
	var err error
	for _, runs := range m.levels {
		err = errors.Join(err, closeRuns(runs))
	}
	return err
}
