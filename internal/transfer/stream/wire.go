package stream

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"premix/internal/kit/exit"
	"premix/internal/store"
	"premix/internal/store/object"
)

// Version is the version of the frames. Both ends must have the same.
const Version = 4

// The kinds of frames, with their sender.
const (
	kindRequest = 'r' // near, first, unless the command contains it: a request, JSON
	kindHello   = 'h' // far, first: a hello, JSON
	kindStart   = 's' // far receiver: a start, JSON; the sender waits for it
	kindEntries = 'e' // sender: entries, zstd
	kindChunks  = 'c' // sender: a batch of chunks, zstd: offers and holes
	kindWants   = 'w' // receiver: number of a batch, and a bit for each of its chunks
	kindData    = 'd' // sender: a chunk and its bytes
	kindNone    = 'n' // near: no stream can be made
	kindGrow    = 'g' // far sender: as many streams more, 4 bytes
	kindLost    = 'u' // sender: an entry left out because it cannot be read, JSON
	kindEnd     = 'z' // sender: totals, JSON
	kindDone    = 'f' // receiver, last: totals, JSON
	kindError   = 'x' // either, last: a failure, JSON; see also kindAlive
)

// maxFrame is the highest length of a frame in bytes.
const maxFrame = 8 << 20

// request is the request of the near end.
type request struct {
	Version    int
	Send       bool   // the far end is the sender
	Path       []byte // at the far end
	Have       [][]byte
	Congestion string
	Streams    int // 0: chosen automatically
	// Silence is the time that an end may send nothing. 0 means the far end's own setting.
	Silence time.Duration `json:",omitempty"`
	Start   *start        // of the near receiver, which waits for nothing
	Whole   bool          `json:",omitempty"` // see Copy
	Keep    Keep
}

// hello describes how to reach the far end.
type hello struct {
	Version     int
	Address     string // empty: unknown
	Port        int    // 0: none
	Certificate []byte // SHA-256
	Secret      []byte
}

// start describes how the receiver wants the data.
type start struct {
	Offer   bool // send nothing without an offer
	Content bool // the content decides where chunks end
	Resumed bool `json:"-"` // there is a file or directory at the destination
}

// totals are the totals of a copy.
type totals struct {
	Entries int
	Files   int
	Bytes   int64 // of all files, including holes
	Sent    int64 // of these, sent
	Skipped int   // entries of other types
	Sum     sum   // of the complete files

	lost failures // as known at this end
}

// failure is an error in the form sent to the other end.
type failure struct {
	Kind    string // source, target, refused or other
	Message string
}

// SourceError is returned if the source does not exist, cannot be read, or changes during
// the copy.
type SourceError struct {
	Reason string

	path  string // of a file, if the reason begins with it
	cause error
}

func (e *SourceError) Error() string { return e.Reason }

// ExitCode implements exit.Coded.
func (*SourceError) ExitCode() exit.Code { return exit.Usage }

// short returns the reason without the path.
func (e *SourceError) short() string {
	if e.cause != nil {
		return reasonOf(e.cause)
	}
	return strings.TrimPrefix(e.Reason, e.path+" ")
}

// Hint describes a valid source.
func (e *SourceError) Hint() string {
	return "name a file or directory that you can read, and do not change it during the copy"
}

// TargetError is returned if the copy cannot be written to the destination.
type TargetError struct{ Reason string }

func (e *TargetError) Error() string { return e.Reason }

// ExitCode implements exit.Coded.
func (*TargetError) ExitCode() exit.Code { return exit.Directory }

// Hint returns the ways to resolve the error.
func (e *TargetError) Hint() string { return "free some space, or give another destination" }

// PeerError is returned if the far end did not start, or if the connection to it broke.
type PeerError struct {
	Met    bool   // the two ends had been connected before
	Server bool   // it is a standing server
	Stderr string // last line of the command that starts it
	Status int    // of that command; -1: it was killed
	Err    error
}

func (e *PeerError) Error() string {
	if e.Stderr != "" {
		return "the far end cannot be reached: " + e.Stderr
	}
	return fmt.Sprintf("the far end cannot be reached: %v", e.Err)
}

// ExitCode implements exit.Coded.
func (*PeerError) ExitCode() exit.Code { return exit.Origin }
func (e *PeerError) Unwrap() error     { return e.Err }

// Hint returns the checks to make.
func (e *PeerError) Hint() string {
	if e.Server {
		return "check that premix transfer serve runs there, and that its port can be reached; the same command continues with the part that has arrived"
	}
	return "check that the command after -- works without a question, and that premix is installed at the peer"
}

// toWire returns an error in the form sent to the other end.
func toWire(err error) failure {
	var source *SourceError
	var target *TargetError
	switch {
	case errors.As(err, &source):
		return failure{"source", source.Reason}
	case errors.As(err, &target):
		return failure{"target", target.Reason}
	}
	return failure{"other", err.Error()}
}

func (f failure) err() error {
	switch f.Kind {
	case "source":
		return &SourceError{Reason: f.Message}
	case "target":
		return &TargetError{f.Message}
	case "refused":
		return exit.Errorf(exit.Origin, "ask the owner of the server for its key: the file whose name ends with "+ClientSuffix, "%s", f.Message)
	}
	return fmt.Errorf("at the far end: %s", f.Message)
}

// entry is an entry of a tree. The first entry of a copy is its top, with an empty path.
type entry struct {
	kind  byte // entryFile and so on
	path  string
	mode  fs.FileMode // permissions, and setuid, setgid, sticky as in fs.FileMode
	mtime int64       // nanoseconds since 1970
	size  int64       // of a file
	link  string      // target of a symbolic link

	// Set only as far as the copy keeps them.
	uid, gid   uint32
	attributes []attribute
}

const (
	entryFile = 'f'
	entryDir  = 'd'
	entryLink = 'l'
	entryHard = 'h' // another name of a file; its size is the number of the file's entry
)

// chunk is a chunk of a file. If its digest is all zeros, it is a hole.
type chunk struct {
	entry  uint32
	size   uint32
	offset int64
	digest object.Digest
}

const (
	// minPiece is the size of the largest file that is one piece, and of the smallest
	// pieces of a larger file.
	minPiece = 128 << 10
	// maxPiece is the size of the largest piece of a file that is cut by place.
	maxPiece = 1 << 20
	// maxChunk is the size of the largest chunk.
	maxChunk = store.MaxCut
	// chunkHeader is the length of an encoded chunk.
	chunkHeader = 4 + 4 + 8 + object.DigestSize
	// maxHole is the longest hole that one chunk can describe.
	maxHole = 1 << 30
)

func (c *chunk) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, c.entry)
	b = binary.LittleEndian.AppendUint32(b, c.size)
	b = binary.LittleEndian.AppendUint64(b, uint64(c.offset))
	return append(b, c.digest[:]...)
}

// parseChunk decodes a chunk encoded by append; b has chunkHeader bytes.
func parseChunk(b []byte) (c chunk, err error) {
	c.entry, c.size = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	c.offset = int64(binary.LittleEndian.Uint64(b[8:]))
	copy(c.digest[:], b[16:])
	most := uint32(maxChunk)
	if c.digest.IsZero() {
		most = maxHole
	}
	if c.offset < 0 || c.size == 0 || c.size > most {
		return c, errors.New("a chunk has an impossible size")
	}
	return c, nil
}

// sum is a checksum of a set of chunks, independent of their order: the sum of their
// digests with their places, as four numbers each.
type sum [4]uint64

func (s *sum) plus(other *sum) {
	for i := range s {
		s[i] += other[i]
	}
}

func (s *sum) minus(other *sum) {
	for i := range s {
		s[i] -= other[i]
	}
}

func (s *sum) add(c *chunk) {
	d := object.Sum(c.append(make([]byte, 0, chunkHeader)))
	for i := range s {
		s[i] += binary.LittleEndian.Uint64(d[8*i:])
	}
}

// Both ends compress lists with these; they are created on first use.
var (
	packer = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err != nil {
			panic(err) // the options are constant
		}
		return e
	})
	unpacker = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxFrame))
		if err != nil {
			panic(err) // the options are constant
		}
		return d
	})
)

func packEntries(list []entry) []byte {
	var b []byte
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	for i := range list {
		e := &list[i]
		b = append(b, e.kind)
		text(e.path)
		b = binary.AppendUvarint(b, uint64(e.mode))
		b = binary.AppendVarint(b, e.mtime)
		b = binary.AppendUvarint(b, uint64(e.size))
		text(e.link)
		b = binary.AppendUvarint(b, uint64(e.uid))
		b = binary.AppendUvarint(b, uint64(e.gid))
		b = binary.AppendUvarint(b, uint64(len(e.attributes)))
		for _, a := range e.attributes {
			text(a.name)
			text(string(a.value))
		}
	}
	return packer().EncodeAll(b, nil)
}

var errForm = errors.New("the other end sent a malformed frame")

func unpackEntries(stored []byte) ([]entry, error) {
	b, err := unpacker().DecodeAll(stored, nil)
	if err != nil {
		return nil, errors.Join(errForm, err)
	}
	bad := false
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			bad = true
			return 0
		}
		b = b[n:]
		return v
	}
	text := func() string {
		n := number()
		if bad || n > uint64(len(b)) {
			bad = true
			return ""
		}
		s := string(b[:n])
		b = b[n:]
		return s
	}
	var list []entry
	for len(b) > 0 {
		e := entry{kind: b[0]}
		b = b[1:]
		e.path = text()
		e.mode = fs.FileMode(number())
		v, n := binary.Varint(b)
		if bad || n <= 0 {
			return nil, errForm
		}
		b = b[n:]
		e.mtime, e.size, e.link = v, int64(number()), text()
		e.uid, e.gid = uint32(number()), uint32(number())
		for range number() {
			if bad {
				break
			}
			e.attributes = append(e.attributes, attribute{text(), []byte(text())})
		}
		if bad || e.size < 0 {
			return nil, errForm
		}
		list = append(list, e)
	}
	return list, nil
}

func packChunks(list []chunk) []byte {
	b := make([]byte, 0, len(list)*chunkHeader)
	for i := range list {
		b = list[i].append(b)
	}
	return packer().EncodeAll(b, nil)
}

func unpackChunks(stored []byte) ([]chunk, error) {
	b, err := unpacker().DecodeAll(stored, nil)
	if err != nil || len(b)%chunkHeader != 0 {
		return nil, errors.Join(errForm, err)
	}
	list := make([]chunk, len(b)/chunkHeader)
	for i := range list {
		if list[i], err = parseChunk(b[i*chunkHeader:]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// control is the control connection. Any goroutine may write to it.
type control struct {
	in  *bufio.Reader
	ear *ear // below in

	mu  sync.Mutex // held while a frame is written
	out *bufio.Writer
}

func newControl(in io.Reader, out io.Writer) *control {
	e := &ear{r: in}
	return &control{in: bufio.NewReaderSize(e, 64<<10), ear: e, out: bufio.NewWriterSize(out, 64<<10)}
}

// send sends a frame. Its error is a [PeerError]: the other end may have reported why the
// connection broke.
func (c *control) send(kind byte, parts ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := writeFrame(c.out, kind, parts...)
	if err == nil {
		err = c.out.Flush()
	}
	if err != nil {
		return &PeerError{Err: err}
	}
	return nil
}

func (c *control) sendJSON(kind byte, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.send(kind, text)
}

func writeFrame(w io.Writer, kind byte, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	head := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(n))
	if _, err := w.Write(head); err != nil {
		return err
	}
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// buffers hold data frames in transit.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, chunkHeader+maxChunk); return &b }}

// readFrame reads one frame into *buf, which it enlarges if necessary.
func readFrame(r io.Reader, buf *[]byte) (kind byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, errForm
	}
	if cap(*buf) < int(n) {
		*buf = make([]byte, 0, n)
	}
	payload = (*buf)[:n]
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, fmt.Errorf("in the middle of a frame: %w", err)
	}
	return head[0], payload, nil
}
