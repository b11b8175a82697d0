package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// Image is what is served: the bytes of an EROFS image.
type Image interface {
	// ReadAt fills p from off. It gives up when ctx ends: the server has no other
	// means to end a request. Fewer bytes than len(p) are an error, unless the
	// image ends there.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	// Size is the image's length in bytes, always the same.
	Size() int64
}

// Options of a mount. The zero value is good.
type Options struct {
	// Name is what mountinfo shows as the source; "premix" where empty.
	Name string
	// Timeout bounds one request; it is then answered EIO. One minute where zero,
	// none where negative.
	Timeout time.Duration
	// InFlight is how many requests are worked on at a time; 1024 where zero. More
	// wait in the kernel, where their readers can be killed.
	InFlight int
	// Memory bounds the bytes of large replies being made; 64 MiB where zero.
	Memory int64
	// ReadAhead is how far the kernel reads ahead, in KiB; 256 where zero. Only
	// root can set it, elsewhere it stays at the kernel's 128.
	ReadAhead int
	// Suid and Dev let set-user-ID bits and device nodes of the tree have effect.
	// They need root.
	Suid, Dev bool
	// Private keeps other users out. A mount by root is for everybody otherwise; one
	// by an ordinary user is always private.
	Private bool
	// Log is told of what is wrong with the connection itself, if not nil.
	Log func(msg string)
}

const (
	defaultTimeout   = time.Minute
	defaultInFlight  = 1024
	defaultMemory    = 64 << 20
	defaultReadAhead = 256

	maxRead = 1 << 20 // bytes of one READ: 256 pages, the kernel's limit without a sysctl

	// Requests that nobody waits for, readahead above all, which the kernel lets be
	// under way at a time; and from how many on it reads ahead less.
	maxBackground = 128
	congestion    = 96

	// The kernel refuses to be read with a smaller buffer than 8 KiB. Nothing that
	// comes is longer, since nothing is ever written, but for BATCH_FORGET, which
	// takes what room there is.
	requestSize = 16 << 10

	// Readers that wait in the kernel for the next request. When the last of them
	// has got one, another is started; when there are this many, one that has done
	// its work ends.
	idleReaders = 3
)

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = "premix"
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.InFlight <= 0 {
		o.InFlight = defaultInFlight
	}
	if o.Memory <= 0 {
		o.Memory = defaultMemory
	}
	o.Memory = max(o.Memory, 2*maxRead)
	if o.ReadAhead <= 0 {
		o.ReadAhead = defaultReadAhead
	}
	return o
}

// Server answers the requests of one mount.
type Server struct {
	fs    fileSystem
	opts  Options
	state state
	dev   *os.File
	fd    int // of dev

	ready   chan struct{} // closed when INIT has been answered
	readyOn sync.Once
	ended   chan struct{} // closed when no request will be answered any more
	err     error         // why, if that was not wished; set before ended is closed

	ctx    context.Context // ends with the server
	cancel context.CancelFunc

	readers atomic.Int64 // goroutines
	idle    atomic.Int64 // of them in read(2)
	busy    atomic.Int64 // of them at work
	failure atomic.Pointer[error]

	memory *semaphore.Weighted
	pools  [poolClasses]sync.Pool // of *[]byte

	mu      sync.Mutex         // a leaf: nothing is locked below it
	running map[uint64]running // by the number of the request

	counters                    [opCount]counter
	timeouts, cancelled, resent atomic.Uint64
}

func newServer(fs fileSystem, dev *os.File, st state, opts Options) *Server {
	s := &Server{
		fs: fs, opts: opts, state: st, dev: dev, fd: int(dev.Fd()),
		ready:   make(chan struct{}),
		ended:   make(chan struct{}),
		memory:  semaphore.NewWeighted(opts.Memory),
		running: map[uint64]running{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// start begins to serve.
func (s *Server) start() {
	s.readers.Store(idleReaders)
	s.idle.Store(idleReaders)
	for range idleReaders {
		go s.read()
	}
}

// File is the open /dev/fuse. As long as somebody holds it, or a duplicate in
// another process, a server that dies can be followed by another: see Resume.
func (s *Server) File() *os.File { return s.dev }

// Wait returns when the mount has gone. The error is nil if it was unmounted.
func (s *Server) Wait() error {
	<-s.ended
	return s.err
}

// request is one request being answered, and the memory for it, which is used
// again for the next.
type request struct {
	in []byte // of requestSize bytes
	inHeader
	body []byte
	ctx  context.Context

	out    []byte  // the reply behind its header; in large or small
	large  *[]byte // from a pool, or nil
	small  []byte
	weight int64 // taken from Server.memory
}

// smallReply is the room that each reader has for replies, in bytes. Behind the
// room for a header follow those of most operations, and reads of 4 KiB.
const smallReply = 8 << 10

func newRequest() *request {
	r := &request{in: make([]byte, requestSize), small: make([]byte, smallReply)}
	// Every page is touched before the kernel copies into it. Were one missing when
	// this process is killed in the middle of a read(2), the kernel could not fetch
	// it, and would end the request with an error instead of keeping it for the
	// next server.
	for i := 0; i < len(r.in); i += 4096 {
		r.in[i] = 1
	}
	return r
}

// read takes requests from the kernel and answers them, one at a time. Whoever
// takes one when nobody else is waiting has somebody wait in his place: so a
// request that takes long holds up no other.
func (s *Server) read() {
	r := newRequest()
	for {
		n, err := unix.Read(s.fd, r.in)
		if err != nil {
			if s.retry(err) {
				continue
			}
			s.idle.Add(-1)
			s.cancel() // the kernel has let go of everybody who waited
			break
		}
		s.busy.Add(1)
		if s.idle.Add(-1) == 0 && s.readers.Load() < int64(s.opts.InFlight) {
			s.readers.Add(1)
			s.idle.Add(1)
			go s.read()
		}
		s.handle(r, r.in[:n])
		s.busy.Add(-1)
		if !s.wait() {
			break
		}
	}
	if s.readers.Add(-1) == 0 {
		s.end()
	}
}

// wait tells whether a reader that has done its work is to wait for more, and counts
// it. The count is never too high, not even for a moment: whoever takes a request
// then would believe that somebody is still waiting.
func (s *Server) wait() bool {
	for {
		n := s.idle.Load()
		if n >= idleReaders {
			return false
		}
		if s.idle.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// retry tells whether to read on after an error of read(2) on the device.
func (s *Server) retry(err error) bool {
	switch err {
	case unix.EINTR, unix.ENOENT: // ENOENT: the request was withdrawn meanwhile
		return true
	case unix.EAGAIN: // whoever shares the open file made it non-blocking
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, -1)
		return err == nil || err == unix.EINTR
	case unix.ENODEV: // unmounted
	case unix.ECONNABORTED:
		s.fail(fmt.Errorf("%w: it was aborted", ErrGone))
	default:
		s.fail(os.NewSyscallError("read /dev/fuse", err))
	}
	return false
}

func (s *Server) fail(err error) {
	s.failure.CompareAndSwap(nil, &err)
}

func (s *Server) log(format string, args ...any) {
	if s.opts.Log != nil {
		s.opts.Log(fmt.Sprintf(format, args...))
	}
}

// end is called by the last reader.
func (s *Server) end() {
	s.cancel()
	if err := s.failure.Load(); err != nil {
		s.err = *err
	}
	// Everything has been answered, or its reader has had ENOTCONN.
	_ = s.dev.Close()
	close(s.ended)
}

// handle answers one message.
func (s *Server) handle(r *request, msg []byte) {
	began := time.Now()
	h, body, err := parseHeader(msg)
	if err != nil {
		// The kernel does not do that. There may be no number to answer to.
		s.log("a message of %d bytes is not a request", len(msg))
		return
	}
	r.inHeader, r.body = h, body
	if h.unique&uniqueResend != 0 {
		s.resent.Add(1)
	}
	switch h.op {
	case opForget, opBatchForget:
		s.count(h.op, began, 0, nil)
		return // nodes are not counted, and no reply is expected
	case opInterrupt:
		s.interrupt(r)
		s.count(h.op, began, 0, nil)
		return
	}
	stop := s.begin(r)
	bytes, err := s.answer(r)
	cause := r.ctx.Err()
	stop()
	no := errnoOf(err)
	if no != 0 && cause != nil {
		// Whatever was made of it below, the request ended because its time did.
		if errors.Is(cause, context.DeadlineExceeded) {
			s.timeouts.Add(1)
			no = unix.EIO
		} else {
			s.cancelled.Add(1)
			no = unix.EINTR
		}
	}
	if no != 0 {
		bytes = 0
		s.reply(r, -int32(no), nil)
	} else {
		s.reply(r, 0, r.out)
	}
	s.release(r)
	s.count(h.op, began, bytes, no)
}

func (s *Server) count(op uint32, began time.Time, bytes int, err error) {
	if op >= opCount || opNames[op] == "" {
		op = 0
	}
	var failed bool
	switch err {
	case nil, unix.Errno(0), unix.ENOENT, unix.ENODATA, unix.ENOSYS:
	default:
		failed = true
	}
	s.counters[op].add(time.Since(began), bytes, failed)
}

// begin gives the request its time and lets it be interrupted.
func (s *Server) begin(r *request) (stop func()) {
	var cancel context.CancelFunc
	if s.opts.Timeout > 0 {
		r.ctx, cancel = context.WithTimeout(s.ctx, s.opts.Timeout)
	} else {
		r.ctx, cancel = context.WithCancel(s.ctx)
	}
	unique := r.unique
	s.mu.Lock()
	s.running[unique] = running{r.ctx, cancel, r.pid}
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		delete(s.running, unique)
		s.mu.Unlock()
		cancel()
	}
}

// running is a request being answered.
type running struct {
	ctx    context.Context
	cancel context.CancelFunc
	thread uint32 // that waits for it; 0 where that is not known
}

// interrupt ends the request whose reader is being killed. The kernel tells of any
// signal, also of one that its reader handles or that only stops him for a while:
// no read of a file on a disk ends by those, and few programs expect one that does.
func (s *Server) interrupt(r *request) {
	if len(r.body) < 8 {
		return
	}
	unique := order.Uint64(r.body)
	s.mu.Lock()
	w, ok := s.running[unique]
	s.mu.Unlock()
	switch {
	case !ok:
		// It has ended, or another reader holds it and has not come to begin. EAGAIN has
		// the kernel ask again in the second case.
		s.reply(r, -int32(unix.EAGAIN), nil)
	case killed(w.thread):
		w.cancel()
	default:
		go w.watch()
	}
}

// killedEvery is how long a reader that has been killed may wait, if he had another
// signal before.
const killedEvery = 50 * time.Millisecond

// watch ends a request when its reader is killed: of a second signal the kernel
// does not tell.
func (w running) watch() {
	tick := time.NewTicker(killedEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-tick.C:
			if killed(w.thread) {
				w.cancel()
				return
			}
		}
	}
}

// killed tells whether a thread is being killed, or has gone, or cannot be seen.
// Whatever signal it is that kills a process, the kernel has SIGKILL pending for
// each of its threads then.
func killed(thread uint32) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(status)) {
		name, mask, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err != nil || bits&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

// reply sends an error, or out, which begins in r's memory behind room for
// a header.
func (s *Server) reply(r *request, code int32, out []byte) {
	var msg []byte
	if code != 0 || len(out) == 0 {
		msg = r.small[:outHeaderSize]
	} else {
		msg = r.message(len(out))
	}
	putOutHeader(msg, len(msg), code, r.unique)
	err := s.write(msg)
	switch err {
	case nil, unix.ENOENT, unix.ENODEV, unix.ECONNABORTED: // nobody waits any longer
		return
	}
	s.log("reply of %d bytes to operation %d: %v", len(msg), r.op, err)
	if code == 0 {
		// Nobody is to wait for ever.
		s.reply(r, -int32(unix.EIO), nil)
	}
}

// write sends a message to the kernel.
func (s *Server) write(msg []byte) error {
	for {
		_, err := unix.Write(s.fd, msg)
		if err != unix.EINTR {
			return err
		}
	}
}

// Large replies are made in pooled memory, in classes by powers of two.
const (
	poolMinBits = 14 // 16 KiB
	poolMaxBits = 20
	poolClasses = poolMaxBits - poolMinBits + 1

	// The reply's content begins at a page, its header ends there.
	replyOffset = 4096
)

// room gives r.out room for n bytes, at most maxRead, and length zero.
func (s *Server) room(r *request, n int) error {
	if n <= smallReply-outHeaderSize {
		r.out = r.small[outHeaderSize:outHeaderSize]
		return nil
	}
	class := 0
	for n > 1<<(poolMinBits+class) {
		class++
	}
	size := int64(1) << (poolMinBits + class)
	if err := s.memory.Acquire(r.ctx, size); err != nil {
		return err
	}
	r.weight = size
	r.large, _ = s.pools[class].Get().(*[]byte)
	if r.large == nil {
		mem := make([]byte, replyOffset+size)
		r.large = &mem
	}
	r.out = (*r.large)[replyOffset:replyOffset]
	return nil
}

// message is the reply of n bytes in r's memory together with its header.
func (r *request) message(n int) []byte {
	if r.large != nil {
		return (*r.large)[replyOffset-outHeaderSize : replyOffset+n]
	}
	return r.small[:outHeaderSize+n]
}

// release gives back the memory that room took.
func (s *Server) release(r *request) {
	r.out, r.body, r.ctx = nil, nil, nil
	if r.large == nil {
		return
	}
	class := 0
	for r.weight > 1<<(poolMinBits+class) {
		class++
	}
	s.pools[class].Put(r.large)
	s.memory.Release(r.weight)
	r.large, r.weight = nil, 0
}
