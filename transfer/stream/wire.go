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

	"premix/internal/exit"
	"premix/store/object"
)

// Version of the frames. Ends with different ones don't talk.
const Version = 3

// Kinds of frames.
const (
	kindRequest = 'r' // near, first, where no command has told it: a request, JSON
	kindHello   = 'h' // far, first: a hello, JSON
	kindStart   = 's' // far receiver: a start, JSON; nothing is sent before
	kindEntries = 'e' // sender: entries, zstd
	kindChunks  = 'c' // sender: a batch of chunks, zstd: offers and holes
	kindWants   = 'w' // receiver: number of a batch, and a bit for each of its chunks
	kindData    = 'd' // sender: a chunk and its bytes
	kindNone    = 'n' // near: no stream can be made
	kindGrow    = 'g' // far sender: as many streams more, 4 bytes
	kindLost    = 'u' // sender: what is left out since it cannot be read, JSON
	kindEnd     = 'z' // sender: totals, JSON
	kindDone    = 'f' // receiver, last: totals, JSON
	kindError   = 'x' // either, last: a failure, JSON; see also kindAlive
)

// maxFrame is the longest that a frame may be, bytes.
const maxFrame = 8 << 20

// request is what the near end asks for.
type request struct {
	Version    int
	Send       bool   // the far end is the sender
	Path       []byte // at the far end
	Have       [][]byte
	Congestion string
	Streams    int // 0: as many as are useful
	// Silence is how long an end may say nothing. 0 stands for the far end's own time.
	Silence time.Duration `json:",omitempty"`
	Start   *start        // of the near receiver, who waits for nothing
	Whole   bool          `json:",omitempty"` // see Job
	Keep    Keep
}

// hello is how the far end is reached.
type hello struct {
	Version     int
	Address     string // empty: unknown
	Port        int    // 0: none
	Certificate []byte // SHA-256
	Secret      []byte
}

// start is how the receiver wants it.
type start struct {
	Offer   bool // nothing unasked
	Content bool // chunks end where the content says
	Resumed bool `json:"-"` // there is something at the destination
}

// totals of a copy.
type totals struct {
	Entries int
	Files   int
	Bytes   int64 // of all files, holes counted
	Sent    int64 // of them, through the wire
	Skipped int   // of no kind of entry
	Sum     sum   // of the files that are whole

	lost failures // as this end knows them
}

// failure is an error on its way to the other end.
type failure struct {
	Kind    string // source, target, refused or other
	Message string
}

// SourceError tells that what is to be copied is not there, may not be read, or
// changes.
type SourceError struct {
	Reason string

	path  string // of a file, where the reason begins with it
	cause error
}

func (e *SourceError) Error() string { return e.Reason }

// ExitCode implements exit.Coded.
func (*SourceError) ExitCode() exit.Code { return exit.Usage }

// short is the reason without the path.
func (e *SourceError) short() string {
	if e.cause != nil {
		return reasonOf(e.cause)
	}
	return strings.TrimPrefix(e.Reason, e.path+" ")
}

// Hint names the way out.
func (e *SourceError) Hint() string {
	return "name what you may read, and let nobody change it while it is copied"
}

// TargetError tells that the destination can't take the copy.
type TargetError struct{ Reason string }

func (e *TargetError) Error() string { return e.Reason }

// ExitCode implements exit.Coded.
func (*TargetError) ExitCode() exit.Code { return exit.Directory }

// Hint names the way out.
func (e *TargetError) Hint() string { return "make room, or give another destination" }

// RefusedError tells that a standing server lets nobody in with this key, or that
// somebody else is at its address.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// ExitCode implements exit.Coded.
func (*RefusedError) ExitCode() exit.Code { return exit.Origin }

// Hint names the way out.
func (e *RefusedError) Hint() string {
	return "ask who runs the server for its key: the file whose name ends with " + ClientSuffix
}

// PeerError tells that the far end did not start, or that the connection to it broke.
type PeerError struct {
	Met    bool   // the two ends had met before
	Server bool   // it is a standing one
	Said   string // by the command that starts it
	Status int    // of that command; -1: it was killed
	Err    error
}

func (e *PeerError) Error() string {
	if e.Said != "" {
		return "the far end cannot be reached: " + e.Said
	}
	return fmt.Sprintf("the far end cannot be reached: %v", e.Err)
}

// ExitCode implements exit.Coded.
func (*PeerError) ExitCode() exit.Code { return exit.Origin }
func (e *PeerError) Unwrap() error     { return e.Err }

// Hint names the way out.
func (e *PeerError) Hint() string {
	if e.Server {
		return "see that premix transfer serve runs there, and that its port can be reached; the same command goes on with what has arrived"
	}
	return "see that the command after -- works without a question, and that premix is installed at the peer"
}

// toWire is the form in which an error goes to the other end.
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
		return &RefusedError{f.Message}
	}
	return fmt.Errorf("at the far end: %s", f.Message)
}

// entry of a tree. The first one of a copy is its top, whose path is empty.
type entry struct {
	kind  byte // entryFile and so on
	path  string
	mode  fs.FileMode // permissions, and setuid, setgid, sticky as in fs.FileMode
	mtime int64       // nanoseconds since 1970
	size  int64       // of a file
	link  string      // what a symbolic link says

	// As the copy keeps them.
	uid, gid   uint32
	attributes []attribute
}

const (
	entryFile = 'f'
	entryDir  = 'd'
	entryLink = 'l'
	entryHard = 'h' // another name of a file, whose entry's number is the size
)

// chunk of a file. A digest of zeros stands for a hole.
type chunk struct {
	entry  uint32
	size   uint32
	offset int64
	digest object.Digest
}

const (
	// minPiece is the size of the largest file that is one piece, and that of the
	// smallest pieces of a larger one.
	minPiece = 128 << 10
	// maxChunk is the size of the largest chunk.
	maxChunk = 1 << 20
	// chunkHeader is the length of a chunk's form.
	chunkHeader = 4 + 4 + 8 + object.DigestSize
	// maxHole is the longest hole that one chunk stands for.
	maxHole = 1 << 30
)

func (c *chunk) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, c.entry)
	b = binary.LittleEndian.AppendUint32(b, c.size)
	b = binary.LittleEndian.AppendUint64(b, uint64(c.offset))
	return append(b, c.digest[:]...)
}

// parseChunk reads what append wrote; b has chunkHeader bytes.
func parseChunk(b []byte) (c chunk, err error) {
	c.entry, c.size = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	c.offset = int64(binary.LittleEndian.Uint64(b[8:]))
	copy(c.digest[:], b[16:])
	most := uint32(maxChunk)
	if c.digest.IsZero() {
		most = maxHole
	}
	if c.offset < 0 || c.size == 0 || c.size > most {
		return c, errors.New("a chunk is of no possible size")
	}
	return c, nil
}

// sum is the same for the same chunks in any order: their digests, with their
// places, added as four numbers each.
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

// Both ends compress lists with these, made when first used.
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

var errForm = errors.New("the other end sent what is not of the right form")

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

// control is the control connection. Any goroutine may write.
type control struct {
	in  *bufio.Reader
	ear *ear // below in

	mu  sync.Mutex // one frame at a time
	out *bufio.Writer
}

func newControl(in io.Reader, out io.Writer) *control {
	e := &ear{r: in}
	return &control{in: bufio.NewReaderSize(e, 64<<10), ear: e, out: bufio.NewWriterSize(out, 64<<10)}
}

// send a frame. Its error is a [PeerError]: the other end may have told why it went.
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

// buffers hold frames of data on their way.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, chunkHeader+maxChunk); return &b }}

// readFrame reads one frame into *buf, which grows where it is too small.
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
