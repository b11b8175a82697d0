package relay

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"premix/internal/kit/beneath"
	"premix/internal/watch"
)

// maxFile is the size from which the next frame begins a file.
const maxFile = 2 << 20

// Spool is a directory of frames that wait to be sent. It implements watch.Sink.
type Spool struct {
	dir  string
	most int64 // bytes

	mu     sync.Mutex
	id     string
	files  []spoolFile // oldest first; the last one is open for writing
	out    *os.File
	next   uint64 // number of the next frame
	opened uint64 // the next frame when the spool was opened; 0 once the receiver was asked
	// applied is the number of the last frame that the receiver is known to have.
	applied uint64
	closed  bool
	failed  error  // why the last frame could not be written
	lost    uint64 // frames since the last call of Lost
	frame   []byte
	more    chan struct{}
}

type spoolFile struct {
	first uint64
	size  int64
	count uint64 // frames
}

func (s *Spool) path(first uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%016x.frames", first))
}

// OpenSpool opens a spool, which it makes if necessary. It holds at most the given number
// of bytes. No other process may have it open.
func OpenSpool(dir string, most int64) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	s := &Spool{dir: dir, most: max(most, 2*maxFile), next: 1, more: make(chan struct{}, 1)}
	text, err := os.ReadFile(filepath.Join(dir, "id"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = s.newID()
	case err == nil:
		s.id = strings.TrimSpace(string(text))
	}
	if err == nil {
		err = s.load()
	}
	if err != nil {
		return nil, err
	}
	s.opened = s.next
	return s, nil
}

// check compares the number of the last frame that the receiver has with the frames that
// were here when the spool was opened. If the receiver has more, the spool lost its end, or
// is an older copy: it takes a new identity, under which only new frames are sent. Then
// check returns the number of the last old one.
func (s *Spool) check(applied uint64) (old uint64, renamed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.next
	if s.opened > 0 {
		first = s.opened
	}
	if applied < first {
		s.opened = 0
		return 0, false, nil
	}
	if err := s.newID(); err != nil {
		return 0, false, err
	}
	s.opened = 0
	return first - 1, true, nil
}

// newID gives the spool a new identity.
func (s *Spool) newID() error {
	var b [8]byte
	rand.Read(b[:])
	s.id = hex.EncodeToString(b[:])
	return beneath.Replace(filepath.Join(s.dir, "id"), 0o640, beneath.Durable, []byte(s.id+"\n"))
}

// load counts the frames of all files. A torn frame at the end of the last one is removed.
func (s *Spool) load() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".frames")
		if !ok {
			continue
		}
		first, err := strconv.ParseUint(name, 16, 64)
		if err != nil {
			continue
		}
		text, err := os.ReadFile(s.path(first))
		if err != nil {
			return err
		}
		f := spoolFile{first: first}
		for rest := text; ; {
			_, after, ok := cutFrame(rest)
			if !ok {
				f.size = int64(len(text) - len(rest))
				break
			}
			f.count++
			rest = after
		}
		s.files = append(s.files, f)
	}
	slices.SortFunc(s.files, func(a, b spoolFile) int { return int(int64(a.first - b.first)) })
	if n := len(s.files); n > 0 {
		last := s.files[n-1]
		s.next = last.first + last.count
		if s.out, err = os.OpenFile(s.path(last.first), os.O_WRONLY, 0); err == nil {
			_, err = s.out.Seek(last.size, io.SeekStart)
			err = errors.Join(err, s.out.Truncate(last.size))
		}
	}
	return err
}

// Samples writes samples to the spool.
func (s *Spool) Samples(samples []watch.Sample) {
	for part := range slices.Chunk(samples, maxInFrame) {
		s.write(kindSamples, appendSamples(nil, part))
	}
}

// Task writes a task to the spool.
func (s *Spool) Task(t watch.Task) { s.writeJSON(kindTask, t) }

// Event writes an event to the spool.
func (s *Spool) Event(e watch.Event) { s.writeJSON(kindEvent, e) }

func (s *Spool) writeJSON(kind byte, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		return // tasks and events can always be encoded
	}
	s.write(kind, body)
}

// write appends a frame. If the disk cannot be written the frame is lost, and counted.
func (s *Spool) write(kind byte, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.frame = appendFrame(s.frame[:0], kind, body)
	if len(s.frame)-frameHead > MaxFrame {
		s.lost++
		return
	}
	if s.failed = s.append(s.frame); s.failed != nil {
		s.lost++
		return
	}
	s.next++
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *Spool) append(b []byte) error {
	if n := len(s.files); s.out == nil || s.files[n-1].size+int64(len(b)) > maxFile {
		if err := s.begin(); err != nil {
			return err
		}
	}
	f := &s.files[len(s.files)-1]
	if _, err := s.out.WriteAt(b, f.size); err != nil {
		return errors.Join(err, s.out.Truncate(f.size))
	}
	f.size += int64(len(b))
	f.count++
	total := int64(0)
	for _, f := range s.files {
		total += f.size
	}
	for total > s.most && len(s.files) > 1 {
		f := s.files[0]
		total -= f.size
		if end := f.first + f.count; end-1 > s.applied { // the receiver does not have all of it
			s.lost += end - max(f.first, s.applied+1)
		}
		s.removeFirst()
	}
	return nil
}

// begin begins a file.
func (s *Spool) begin() error {
	out, err := os.OpenFile(s.path(s.next), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	if s.out != nil {
		s.out.Close() // it was written without an error
	}
	s.out = out
	s.files = append(s.files, spoolFile{first: s.next})
	return nil
}

func (s *Spool) removeFirst() {
	os.Remove(s.path(s.files[0].first)) // what stays is sent again, and skipped
	s.files = slices.Delete(s.files, 0, 1)
}

// read returns frames from a number on, as they are in the spool, until they have a number of
// bytes; at least one, if there is one. first is the number of the first of them, which is
// larger than from if these frames were lost.
func (s *Spool) read(from uint64, bytesMost int, framesMost uint64) (first, count uint64, frames []byte, err error) {
	s.mu.Lock()
	files := slices.Clone(s.files)
	s.mu.Unlock()
	i := slices.IndexFunc(files, func(f spoolFile) bool { return f.first+f.count > from })
	if i < 0 {
		return from, 0, nil, nil
	}
	f := files[i]
	text, err := os.ReadFile(s.path(f.first))
	if errors.Is(err, fs.ErrNotExist) {
		return from, 0, nil, nil // it was just dropped; the next call returns a later one
	}
	if err != nil {
		return 0, 0, nil, err
	}
	rest := text[:min(int64(len(text)), f.size)]
	first = f.first
	for ; first < from; first++ {
		if _, rest, _ = cutFrame(rest); rest == nil {
			break
		}
	}
	begin := rest
	for count < framesMost {
		payload, after, ok := cutFrame(rest)
		if !ok || count > 0 && len(begin)-len(after) > bytesMost {
			break
		}
		_ = payload
		rest = after
		count++
	}
	if count == 0 && first < f.first+f.count {
		// A damaged frame: the frames after it in this file cannot be found.
		return f.first + f.count, 0, nil, nil
	}
	return first, count, bytes.Clone(begin[:len(begin)-len(rest)]), nil
}

// forget removes files all of whose frames have been applied.
func (s *Spool) forget(applied uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied = applied
	for len(s.files) > 1 && s.files[0].first+s.files[0].count-1 <= applied {
		s.removeFirst()
	}
	// The last file is replaced by an empty one, so that little is read at the next start.
	if n := len(s.files); n == 1 && s.files[0].count > 0 && s.next-1 <= applied && s.files[0].size > maxFile/8 {
		if s.begin() == nil {
			s.removeFirst()
		}
	}
}

// takeLost returns the number of frames that were lost since the last call.
func (s *Spool) takeLost() (n uint64, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, s.lost = s.lost, 0
	return n, s.failed
}

// state returns the identity and the number of the next frame.
func (s *Spool) state() (id string, next uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id, s.next
}

// Close closes the spool.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.out == nil {
		return nil
	}
	return s.out.Close()
}
