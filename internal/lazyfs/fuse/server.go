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

// Image is an EROFS image to be served.
type Image interface {
	// ReadAt fills p from off. It returns early when ctx ends: the server cannot end a
	// request in another way. Fewer bytes than len(p) are an error, unless the image
	// ends there.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	// Size returns the image's length in bytes, which never changes.
	Size() int64
}

// Options of a mount. The zero value is usable.
type Options struct {
	// Name is the source in mountinfo; the default is "premix".
	Name string
	// Timeout bounds the time of a request, which is then answered with EIO. The
	// default is one minute; negative means no limit.
	Timeout time.Duration
	// InFlight is the number of concurrent requests; the default is 1024. Further
	// requests wait in the kernel, where their readers can be killed.
	InFlight int
	// Memory bounds the bytes of large replies in memory; the default is 64 MiB.
	Memory int64
	// ReadAhead is the kernel's readahead in KiB; the default is 256. Only root can set
	// it, otherwise it stays at the kernel's 128.
	ReadAhead int
	// Suid and Dev give effect to set-user-ID bits and device nodes of the tree. They
	// need root.
	Suid, Dev bool
	// Private excludes other users. Otherwise all users may use a mount of root; a
	// mount of an unprivileged user is always private.
	Private bool
	// Own shows all files of a tree as this user's.
	Own bool
	// Log is called with problems of the connection, if not nil.
	Log func(msg string)
}

const (
	defaultTimeout   = time.Minute
	defaultInFlight  = 1024
	defaultMemory    = 64 << 20
	defaultReadAhead = 256

	maxRead = 1 << 20 // bytes of one READ: 256 pages, the kernel's limit without a sysctl

	// Limits for the kernel's background requests, mostly readahead: the number of
	// concurrent ones, and the number from which it reads ahead less.
	maxBackground = 128
	congestion    = 96

	// The kernel refuses buffers below 8 KiB. No request is longer, since there are no
	// writes, except BATCH_FORGET, which adapts to the buffer.
	requestSize = 16 << 10

	// Readers that wait in the kernel for the next request. When the last of them has
	// received one, another is started; a reader that has finished its request ends if
	// this many wait.
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

	ready    chan struct{} // closed when INIT has been answered
	readyOn  sync.Once
	finished chan struct{} // closed when no more requests are answered
	err      error         // the cause, unless it is an unmount; set before ended is closed

	ctx    context.Context // ends with the server
	cancel context.CancelFunc

	readers atomic.Int64 // goroutines
	idle    atomic.Int64 // of them waiting in read(2)
	busy    atomic.Int64 // of them working
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
		ready:    make(chan struct{}),
		finished: make(chan struct{}),
		memory:   semaphore.NewWeighted(opts.Memory),
		running:  map[uint64]running{},
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

// File returns the open /dev/fuse. As long as a process holds it or a duplicate of it,
// a server that dies can be replaced: see Resume.
func (s *Server) File() *os.File { return s.dev }

// Wait waits until the mount is gone. The error is nil if it was unmounted.
func (s *Server) Wait() error {
	<-s.finished
	return s.err
}

// request is a request being answered, with its buffers, which are reused.
type request struct {
	in []byte // of requestSize bytes
	inHeader
	body []byte
	ctx  context.Context

	out    []byte  // the reply after its header; in large or small
	large  *[]byte // from a pool, or nil
	small  []byte
	weight int64 // taken from Server.memory
}

// smallReply is the size of each reader's buffer for replies, in bytes. After the
// header it has space for the replies of most operations, and for reads of 4 KiB.
const smallReply = 8 << 10

func newRequest() *request {
	r := &request{in: make([]byte, requestSize), small: make([]byte, smallReply)}
	// Touch every page before the kernel copies into it. If one were missing when this
	// process is killed during a read(2), the kernel could not allocate it, and would
	// fail the request instead of keeping it for the next server.
	for i := 0; i < len(r.in); i += 4096 {
		r.in[i] = 1
	}
	return r
}

// read receives requests from the kernel and answers them, one at a time. If no other
// reader waits when it receives one, it starts another: so a slow request does not
// block others.
func (s *Server) read() {
	r := newRequest()
	for {
		n, err := unix.Read(s.fd, r.in)
		if err != nil {
			if s.retry(err) {
				continue
			}
			s.idle.Add(-1)
			s.cancel() // the kernel has ended all requests
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

// wait reports whether a reader that has finished its request must wait for more, and
// if so, counts it as idle. The count must not be too high even for a moment: a reader
// that receives a request then would believe that another one waits.
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

// retry reports whether to continue after an error of read(2) on the device.
func (s *Server) retry(err error) bool {
	switch err {
	case unix.EINTR, unix.ENOENT: // ENOENT: the request was withdrawn
		return true
	case unix.EAGAIN: // another holder of the open file made it non-blocking
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

// end ends the server. The last goroutine that reads requests calls it.
func (s *Server) end() {
	s.cancel()
	if err := s.failure.Load(); err != nil {
		s.err = *err
	}
	// Every request was answered, or its reader got ENOTCONN.
	_ = s.dev.Close()
	close(s.finished)
}

// handle answers one message.
func (s *Server) handle(r *request, msg []byte) {
	began := time.Now()
	h, body, err := parseHeader(msg)
	if err != nil {
		// The kernel does not send this. There may be no number to answer to.
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
		return // there is no count of nodes, and no reply is expected
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
		// Whatever error the image returned, the request ended by its timeout.
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

// begin starts the timeout of a request and makes it interruptible.
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
	thread uint32 // that waits for it; 0 if unknown
}

// interrupt cancels the request whose reader is being killed. The kernel reports any
// signal, also one that the reader handles or that only stops it for a while. Those do
// not end a read from a disk, and few programs expect that.
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
		// It has ended, or another goroutine has received it but not yet begun. In the
		// second case EAGAIN makes the kernel ask again.
		s.reply(r, -int32(unix.EAGAIN), nil)
	case killed(w.thread):
		w.cancel()
	default:
		go w.watch()
	}
}

// killedEvery is the longest time that a killed reader still waits if it had received
// another signal before.
const killedEvery = 50 * time.Millisecond

// watch cancels a request when its reader is killed: the kernel does not report a
// second signal.
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

// killed reports whether a thread is being killed, is gone, or cannot be seen. When a
// process is being killed, by whatever signal, the kernel has SIGKILL pending for each
// of its threads.
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

// reply sends an error, or out, which lies in r's memory with space for a header before
// it.
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
	case nil, unix.ENOENT, unix.ENODEV, unix.ECONNABORTED: // no process waits for it any more
		return
	}
	s.log("reply of %d bytes to operation %d: %v", len(msg), r.op, err)
	if code == 0 {
		// Never leave a reader without a reply.
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

	// The reply's content begins at a page boundary, where its header ends.
	replyOffset = 4096
)

// room gives r.out capacity for n bytes, at most maxRead, and length zero.
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

// message returns the reply of n bytes in r's memory together with its header.
func (r *request) message(n int) []byte {
	if r.large != nil {
		return (*r.large)[replyOffset-outHeaderSize : replyOffset+n]
	}
	return r.small[:outHeaderSize+n]
}

// release returns the memory that room acquired.
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
