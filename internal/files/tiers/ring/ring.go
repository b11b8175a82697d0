package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Available reports whether the kernel offers its mounts FUSE over io_uring.
func Available() bool {
	b, err := os.ReadFile("/sys/module/fuse/parameters/enable_uring")
	return err == nil && strings.TrimSpace(string(b)) == "Y"
}

// Handler answers a request. in is the request, out has room for the answer. It returns the
// length of the answer, or 0 if there is none.
type Handler func(in, out [][]byte) int

// Server has the queues of a mount.
type Server struct {
	queues []*queue
	device int
	answer Handler
	slow   func(opcode uint32) bool
	ended  sync.WaitGroup
}

// depth is the number of entries of a queue. It bounds the requests of a processor that are
// answered in goroutines at a time.
const depth = 16

// New makes a queue for each possible processor. payload is the size of the largest data in
// a request or an answer.
func New(payload int) (*Server, error) {
	n, err := possible()
	if err != nil {
		return nil, err
	}
	s := &Server{device: -1}
	for id := range n {
		q, err := newQueue(s, id, payload)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.queues = append(s.queues, q)
	}
	return s, nil
}

// possible returns the number of processors that the machine can have; their numbers are
// below it.
func possible() (int, error) {
	const file = "/sys/devices/system/cpu/possible"
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(b))
	last, err := strconv.Atoi(text[strings.LastIndexAny(text, "-,")+1:])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return last + 1, nil
}

// Close frees the queues of a server that was not started.
func (s *Server) Close() {
	for _, q := range s.queues {
		q.close()
	}
	if s.device >= 0 {
		unix.Close(s.device) // it is a duplicate
	}
}

// Start registers the queues with the connection of an open /dev/fuse, after the kernel's
// first request was answered with the flag for io_uring. The queues are served until the
// directory is unmounted. Requests with operations for which slow returns true are answered in
// goroutines. After an error, the kernel may wait for the queues for ever: unmount the
// directory, and call [Server.Wait].
func (s *Server) Start(device int, slow func(opcode uint32) bool, answer Handler) (err error) {
	if s.device, err = unix.FcntlInt(uintptr(device), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return err
	}
	s.slow, s.answer = slow, answer
	registered := make(chan error)
	for _, q := range s.queues {
		s.ended.Go(func() { q.serve(registered) })
	}
	for range s.queues {
		err = errors.Join(err, <-registered)
	}
	return err
}

// Wait waits until the mount has ended, and frees the queues.
func (s *Server) Wait() {
	s.ended.Wait()
	s.Close()
}

// Layout of the head of an entry, struct fuse_uring_req_header: the header of a request or
// an answer, the fixed part of a request, and the sizes. The two vectors for the kernel come
// behind it.
const (
	headerAt  = 0
	fixedAt   = 128
	commitAt  = 256 + 8
	payloadAt = 256 + 16
	vectorsAt = 512
	headSize  = 4096

	requestHeader = 40 // bytes of struct fuse_in_header
	answerHeader  = 16 // bytes of struct fuse_out_header
	opWrite       = 16
)

// entry is memory for a request. The kernel has it, or it is being answered.
type entry struct {
	head, payload []byte
	copied        []byte // of the payload of a request
	committing    bool   // it has had a request
}

// queue serves the requests of a processor. Only its thread uses the rings.
type queue struct {
	s       *Server
	id      int
	fd      int // of io_uring
	event   int // an eventfd, written after an answer of a goroutine
	memory  [][]byte
	entries [depth]entry
	live    int // entries that the kernel knows

	tail, sent uint32 // submissions that were queued, and that the kernel has taken

	sqTail, cqHead, cqTail *uint32
	sqMask, cqMask         uint32
	sqes                   []byte
	cqes                   []byte

	mu       sync.Mutex
	answered []int // entries with answers of goroutines
}

// Of include/uapi/linux/io_uring.h.
const (
	setupSQE128    = 1 << 10
	setupNoSQArray = 1 << 16
	enterGetEvents = 1
	offSQEs        = 0x10000000
	opRead         = 22
	opCommand      = 46
	sqeSize        = 128
	cqeSize        = 16

	commandRegister = 1
	commandCommit   = 2
)

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wq uint32
	_                                                                [3]uint32
	sq, cq                                                           offsets
}

// offsets are struct io_sqring_offsets and struct io_cqring_offsets, whose first five fields
// have the same meaning; data is the place of the entries in the latter.
type offsets struct {
	head, tail, mask, entries, flagsOrOverflow, droppedOrData, _, _ uint32
	_                                                               uint64
}

func newQueue(s *Server, id, payload int) (q *queue, err error) {
	q = &queue{s: s, id: id, fd: -1, event: -1}
	defer func() {
		if err != nil {
			q.close()
		}
	}()
	p := params{flags: setupSQE128 | setupNoSQArray}
	fd, _, number := unix.Syscall(unix.SYS_IO_URING_SETUP, depth+1, uintptr(unsafe.Pointer(&p)), 0)
	if number != 0 {
		return nil, os.NewSyscallError("io_uring_setup", number)
	}
	q.fd = int(fd)
	if q.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	size := max(int(p.sq.tail)+4, int(p.cq.droppedOrData+p.cqEntries*cqeSize))
	rings, err := q.mmap(q.fd, 0, size)
	if err != nil {
		return nil, err
	}
	if q.sqes, err = q.mmap(q.fd, offSQEs, int(p.sqEntries)*sqeSize); err != nil {
		return nil, err
	}
	at := func(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&rings[offset])) }
	q.sqTail, q.cqHead, q.cqTail = at(p.sq.tail), at(p.cq.head), at(p.cq.tail)
	q.sqMask, q.cqMask = *at(p.sq.mask), *at(p.cq.mask)
	q.cqes = rings[p.cq.droppedOrData:][:p.cqEntries*cqeSize]
	payload += headSize
	for i := range q.entries {
		m, err := q.mmap(-1, 0, headSize+payload)
		if err != nil {
			return nil, err
		}
		q.entries[i] = entry{head: m[:headSize], payload: m[headSize:]}
	}
	return q, nil
}

// mmap maps memory that close unmaps: of a file, or with -1 of no file. The kernel keeps
// addresses in it, so it is not Go's.
func (q *queue) mmap(fd int, offset int64, size int) ([]byte, error) {
	flags := unix.MAP_SHARED | unix.MAP_POPULATE
	if fd < 0 {
		flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	}
	b, err := unix.Mmap(fd, offset, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	q.memory = append(q.memory, b)
	return b, nil
}

func (q *queue) close() {
	for _, fd := range []int{q.fd, q.event} {
		if fd >= 0 {
			unix.Close(fd) // nothing was written that could be lost
		}
	}
	q.fd, q.event = -1, -1
	for _, b := range q.memory {
		_ = unix.Munmap(b) // it was mapped by mmap
	}
	q.memory = nil
}

// next returns a place for a submission, which the next call of enter submits.
func (q *queue) next(code byte, fd int, data uint64) []byte {
	sqe := q.sqes[q.tail&q.sqMask*sqeSize:][:sqeSize]
	clear(sqe)
	q.tail++
	sqe[0] = code
	binary.NativeEndian.PutUint32(sqe[4:], uint32(fd))
	binary.NativeEndian.PutUint64(sqe[32:], data)
	return sqe
}

// command queues a command of FUSE for an entry.
func (q *queue) command(command uint32, i int, commit uint64) []byte {
	sqe := q.next(opCommand, q.s.device, uint64(i))
	binary.NativeEndian.PutUint32(sqe[8:], command)
	binary.NativeEndian.PutUint64(sqe[56:], commit)
	binary.NativeEndian.PutUint16(sqe[64:], uint16(q.id))
	return sqe
}

// listen queues a read of the eventfd, into the head of the first entry behind its vectors.
func (q *queue) listen() {
	sqe := q.next(opRead, q.event, depth)
	binary.NativeEndian.PutUint64(sqe[16:], address(q.entries[0].head[vectorsAt+64:]))
	binary.NativeEndian.PutUint32(sqe[24:], 8)
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

func (q *queue) register(i int) {
	e := &q.entries[i]
	v := e.head[vectorsAt:]
	binary.NativeEndian.PutUint64(v, address(e.head))
	binary.NativeEndian.PutUint64(v[8:], headSize)
	binary.NativeEndian.PutUint64(v[16:], address(e.payload))
	binary.NativeEndian.PutUint64(v[24:], uint64(len(e.payload)))
	sqe := q.command(commandRegister, i, 0)
	binary.NativeEndian.PutUint64(sqe[16:], address(v))
	binary.NativeEndian.PutUint32(sqe[24:], 2)
}

// serve registers the queue, and answers its requests until the mount ends.
func (q *queue) serve(registered chan<- error) {
	// The thread is never unlocked: it ends with the goroutine, since it stays on its
	// processor. A processor that is not there has no requests.
	runtime.LockOSThread()
	var cpu unix.CPUSet
	cpu.Set(q.id)
	_ = unix.SchedSetaffinity(0, &cpu)
	for i := range q.entries {
		q.register(i)
	}
	q.live = depth
	// The kernel completes what it refuses at once. Only then is there something to read.
	err := q.enter(0)
	if head := *q.cqHead; err == nil && head != atomic.LoadUint32(q.cqTail) {
		if number := q.result(head); number != 0 {
			err = os.NewSyscallError("FUSE_IO_URING_CMD_REGISTER", number)
		}
	}
	registered <- err
	q.listen()
	for q.live > 0 {
		if err := q.enter(1); err != nil {
			fmt.Fprintln(os.Stderr, "error: io_uring of a mount:", err)
			return
		}
		for head := *q.cqHead; head != atomic.LoadUint32(q.cqTail); head++ {
			i, number := binary.NativeEndian.Uint64(q.cqes[head&q.cqMask*cqeSize:]), q.result(head)
			atomic.StoreUint32(q.cqHead, head+1)
			q.completed(int(i), number)
		}
	}
}

// result returns the error of a completion.
func (q *queue) result(head uint32) unix.Errno {
	return unix.Errno(-min(0, int32(binary.NativeEndian.Uint32(q.cqes[head&q.cqMask*cqeSize+8:]))))
}

// enter submits the queued submissions and waits for a number of completions.
func (q *queue) enter(wait int) error {
	atomic.StoreUint32(q.sqTail, q.tail)
	for {
		n, _, number := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(q.fd), uintptr(q.tail-q.sent), uintptr(wait), enterGetEvents, 0, 0)
		switch number {
		case 0:
			q.sent += uint32(n)
			return nil
		case unix.EINTR, unix.EAGAIN, unix.EBUSY:
		default:
			return os.NewSyscallError("io_uring_enter", number)
		}
	}
}

// completed handles the completion of a submission.
func (q *queue) completed(i int, number unix.Errno) {
	switch {
	case i == depth:
		q.mu.Lock()
		list := q.answered
		q.answered = nil
		q.mu.Unlock()
		for _, i := range list {
			q.commit(i)
		}
		q.listen()
	case number == unix.EINTR || number == unix.EAGAIN:
		if q.entries[i].committing {
			q.commit(i)
		} else {
			q.register(i)
		}
	case number != 0: // the mount has ended, or the kernel refuses the entry
		q.live--
	case q.s.slow(binary.NativeEndian.Uint32(q.entries[i].head[headerAt+4:])):
		go func() {
			q.respond(i)
			q.mu.Lock()
			q.answered = append(q.answered, i)
			q.mu.Unlock()
			var one [8]byte
			binary.NativeEndian.PutUint64(one[:], 1)
			_, _ = unix.Write(q.event, one[:]) // it fails only if the queue has ended
		}()
	default:
		q.respond(i)
		q.commit(i)
	}
}

func (q *queue) commit(i int) {
	q.entries[i].committing = true
	q.command(commandCommit, i, binary.NativeEndian.Uint64(q.entries[i].head[commitAt:]))
}

// respond answers the request in an entry.
func (q *queue) respond(i int) {
	e := &q.entries[i]
	payload := e.payload[:binary.NativeEndian.Uint32(e.head[payloadAt:])]
	fixed := int(binary.NativeEndian.Uint32(e.head[headerAt:])) - requestHeader - len(payload)
	opcode, unique := binary.NativeEndian.Uint32(e.head[headerAt+4:]), binary.NativeEndian.Uint64(e.head[headerAt+8:])
	if opcode != opWrite { // the answer comes into the same place
		e.copied = append(e.copied[:0], payload...)
		payload = e.copied
	}
	in := [][]byte{e.head[headerAt:][:requestHeader], e.head[fixedAt:][:max(0, fixed)], payload}
	n := q.s.answer(in, [][]byte{e.head[headerAt:][:answerHeader], e.payload})
	if n == 0 {
		head := e.head[headerAt:]
		binary.NativeEndian.PutUint32(head, answerHeader)
		number := int32(unix.EIO)
		binary.NativeEndian.PutUint32(head[4:], uint32(-number))
		binary.NativeEndian.PutUint64(head[8:], unique)
		n = answerHeader
	}
	binary.NativeEndian.PutUint32(e.head[payloadAt:], uint32(n-answerHeader))
}
