package object

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
)

// Unpacker decodes a stored form while it arrives. Its user passes the bytes received
// so far to More, and always calls End.
type Unpacker struct {
	d    Digest
	size int64
	got  func(soFar []byte)
	done chan struct{} // closed when the decoder has ended

	mu       sync.Mutex
	change   *sync.Cond
	stored   []byte
	at       int // number of bytes of stored that are decoded
	finished bool

	// Valid once done is closed.
	content []byte
	err     error
}

// Unpack begins to decode an object whose content has size bytes. Whenever there is
// more, one goroutine calls got with the content so far, and not after End has
// returned. This content is not yet verified, and must not be written to.
func Unpack(d Digest, size int64, got func(soFar []byte)) *Unpacker {
	u := &Unpacker{d: d, size: size, got: got, done: make(chan struct{})}
	u.change = sync.NewCond(&u.mu)
	go u.run()
	return u
}

// step is the number of further bytes that must have arrived before the decoder
// continues. The decoder produces 128 KiB of content at a time, and waking it costs a
// context switch.
const step = 24 << 10

// More passes the stored form as received so far: it begins with the bytes of the call
// before. It must not be written to.
func (u *Unpacker) More(stored []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(stored) > u.at { // a shorter one comes from a transfer that began again
		if u.stored = stored; len(stored) >= u.at+step {
			u.change.Signal()
		}
	}
}

// End says that no more bytes come, and returns the verified content. The error is a
// [CorruptError] where the bytes received are not the whole object.
func (u *Unpacker) End() ([]byte, error) {
	u.mu.Lock()
	u.finished = true
	u.change.Signal()
	u.mu.Unlock()
	<-u.done
	return u.content, u.err
}

// Read implements io.Reader for the decoder.
func (u *Unpacker) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.at == len(u.stored) && !u.finished {
		u.change.Wait()
	}
	if u.at == len(u.stored) {
		return 0, io.EOF
	}
	n := copy(p, u.stored[u.at:])
	u.at += n
	return n, nil
}

// streams holds decoders for Unpacker. Each decodes one stored form at a time.
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
		_ = z.Reset(nil) // drops the reference to u
		streams.Put(z)
	}()
	if err := z.Reset(u); err != nil {
		return nil, err
	}
	hash := blake3.New()
	content := make([]byte, 0, u.size+1) // the last byte shows that the content is too long
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
