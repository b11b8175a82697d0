package object

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
)

// Unpacker decodes a stored form while it arrives. Its user says what has come with
// More, and ends it with End, always.
type Unpacker struct {
	d    Digest
	size int64
	got  func(soFar []byte)
	done chan struct{} // closed when the decoder has ended

	mu     sync.Mutex
	change *sync.Cond
	stored []byte
	at     int // of stored, decoded
	ended  bool

	// Valid once done is closed.
	content []byte
	err     error
}

// Unpack begins to decode an object whose content has so many bytes. got is called with
// the content so far whenever there is more, by one goroutine, not after End has
// returned. Nobody has verified it then, and it must not be written to.
func Unpack(d Digest, size int64, got func(soFar []byte)) *Unpacker {
	u := &Unpacker{d: d, size: size, got: got, done: make(chan struct{})}
	u.change = sync.NewCond(&u.mu)
	go u.run()
	return u
}

// step is how much more has come when the decoder goes on, in bytes. What it decodes at
// a time is 128 KiB of content, and each time it is woken costs a switch.
const step = 24 << 10

// More tells the stored form as far as it has come: it begins with what it was before.
// It must not be written to.
func (u *Unpacker) More(stored []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(stored) > u.at { // else it has begun anew
		if u.stored = stored; len(stored) >= u.at+step {
			u.change.Signal()
		}
	}
}

// End says that nothing more comes, and returns the verified content. The error is a
// [CorruptError] where what has come isn't the object, or not all of it.
func (u *Unpacker) End() ([]byte, error) {
	u.mu.Lock()
	u.ended = true
	u.change.Signal()
	u.mu.Unlock()
	<-u.done
	return u.content, u.err
}

// Read serves the decoder.
func (u *Unpacker) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.at == len(u.stored) && !u.ended {
		u.change.Wait()
	}
	if u.at == len(u.stored) {
		return 0, io.EOF
	}
	n := copy(p, u.stored[u.at:])
	u.at += n
	return n, nil
}

// streams are decoders of one stored form at a time, for Unpacker.
var streams = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1), // it decodes when it is read from, and has no goroutines
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxContent+1),
		zstd.WithDecoderMaxWindow(MaxContent))
	if err != nil {
		panic(err) // the options are constant
	}
	return d
}}

func (u *Unpacker) run() {
	defer close(u.done)
	content, err := u.decode()
	if err != nil {
		u.err = &CorruptError{u.d, err.Error()}
		return
	}
	u.content = content
}

func (u *Unpacker) decode() ([]byte, error) {
	if u.size < 0 || u.size > MaxContent {
		return nil, fmt.Errorf("a size of %d bytes, the limit is %d", u.size, MaxContent)
	}
	z := streams.Get().(*zstd.Decoder)
	defer func() {
		_ = z.Reset(nil) // it lets go of u
		streams.Put(z)
	}()
	if err := z.Reset(u); err != nil {
		return nil, err
	}
	hash := blake3.New()
	content := make([]byte, 0, u.size+1) // the last byte is where too long a content shows
	for {
		n, err := z.Read(content[len(content):cap(content)])
		if _, err := hash.Write(content[len(content) : len(content)+n]); err != nil {
			return nil, err
		}
		content = content[:len(content)+n]
		if int64(len(content)) > u.size {
			return nil, fmt.Errorf("more than %d bytes", u.size)
		}
		if n > 0 {
			u.got(content[:len(content):len(content)])
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if int64(len(content)) != u.size {
		return nil, fmt.Errorf("%d bytes instead of %d", len(content), u.size)
	}
	var d Digest
	if hash.Sum(d[:0]); d != u.d {
		return nil, errors.New("the content's digest is " + d.Short())
	}
	return content, nil
}
