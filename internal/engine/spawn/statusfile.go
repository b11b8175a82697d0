package spawn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/kit/owner"
	"premix/internal/kit/proc"
)

// A status file consists of words of eight bytes, in the byte order of the machine: it is
// never read on another one. Its head is
//
//	0 magic   1 slots   2 session (the spawner's process id)   3 start of the
//	spawner's process   4 digest of the boot id and the PID namespace   5 digest of
//	the boot id   6 number of the first slot   7 zero
//
// followed by five words a slot: task id (0: none), process id, start in nanoseconds
// since 1970, and the sizes of its two logs at that moment. A slot's words are written
// by its thread, and readers take no lock: a reader sees a task or the next one.
//
// Behind the slots are the results of the tasks that have ended, in the order in which
// they arrived: a length and a [Result] as in a frame. A slot appends the result before it
// removes the task from its words. The file is not synced: it outlives the spawner and
// the client, but is invalid after a crash of the machine. On a full disk results are
// omitted.
const (
	statusMagic = 0x0a64726f62786d70
	statusHead  = 8
	statusSlot  = 5
)

// Running is the running task of a slot.
type Running struct {
	ID      uint64
	PID     int
	Slot    int
	Started time.Time
	Out     int64 // where its standard output begins in the log
	Err     int64 // where its standard error begins
}

// statusFile is a mapped status file.
type statusFile struct {
	file  *os.File // held for fd
	fd    int
	words []uint64    // of a mapping that lasts as long as the process
	short atomic.Bool // a result could not be written whole, and none may follow it
}

// createStatusFile makes the status file of this process. Results stay that are on it from a spawner
// before: its client may not have made them durable.
func createStatusFile(path string, slots, first int) (*statusFile, error) {
	f, err := owner.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	size := 8 * (statusHead + slots*statusSlot)
	old, err := ReadStatusFile(path)
	if err != nil {
		return nil, err
	}
	kept := int64(0)
	if old.end == int64(size) {
		if _, kept, err = old.results(); err != nil {
			return nil, err
		}
	}
	if err := f.Truncate(kept); err != nil {
		return nil, err
	}
	// Allocated: on a full disk a store into a hole would be SIGBUS.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(size)); err != nil {
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, &os.PathError{Op: "allocate", Path: path, Err: err}
		}
		if kept == 0 {
			if _, err := f.Write(make([]byte, size)); err != nil {
				return nil, err
			}
		}
	}
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "map", Path: path, Err: err}
	}
	b := &statusFile{file: f, fd: int(f.Fd()), words: unsafe.Slice((*uint64)(unsafe.Pointer(&data[0])), size/8)}
	clear(b.words[statusHead:])
	pid := os.Getpid()
	b.words[1], b.words[2], b.words[3], b.words[4], b.words[5], b.words[6] = uint64(slots), uint64(pid), proc.StartTime(pid), PIDScope(), BootID(), uint64(first)
	atomic.StoreUint64(&b.words[0], statusMagic)
	return b, nil
}

func (b *statusFile) slot(n int) []uint64 {
	at := statusHead + n*statusSlot
	return b.words[at : at+statusSlot]
}

// note appends a result. buf is room for it, which is returned.
func (b *statusFile) note(r *Result, buf []byte) []byte {
	if r.Full || b.short.Load() {
		return buf
	}
	// A length of two bytes is enough for any result.
	body := r.put(append(buf[:0], 0, 0))
	binary.LittleEndian.PutUint16(body, uint16(len(body)-2))
	for {
		n, err := unix.Write(b.fd, body)
		if err == unix.EINTR {
			continue
		}
		if n != len(body) {
			b.short.Store(true) // the task runs again unless its result arrives another way
		}
		return body
	}
}

// full reports whether the output of a task may be cut short, because the disk is full.
// The check costs a round trip on some file systems, so a task that has ended well without
// output is left to the client, which checks once for many tasks.
func (b *statusFile) full(r *Result) bool {
	var st unix.Statfs_t
	return (r.Status != 0 || r.Out.Length+r.Err.Length > 0) && unix.Fstatfs(b.fd, &st) == nil && IsFull(&st)
}

// IsFull reports whether a file system has no room for this user.
func IsFull(st *unix.Statfs_t) bool {
	if os.Geteuid() == 0 {
		return st.Bfree == 0
	}
	return st.Bavail == 0
}

// StatusFile is the content of a status file at one moment.
type StatusFile struct {
	Session int
	Running []Running
	path    string
	start   uint64
	place   uint64
	boot    uint64
	end     int64 // of the slots
}

// ReadStatusFile reads the status file at path, without its results. If the file does not exist, no
// task is running.
func ReadStatusFile(path string) (*StatusFile, error) {
	b := &StatusFile{path: path}
	f, err := owner.OpenOthers(path)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text := make([]byte, 8*statusHead)
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(text[8*i:]) }
	if _, err := io.ReadFull(f, text); err != nil || word(0) != statusMagic {
		return b, nil // its writer got no further
	}
	b.Session, b.start, b.place, b.boot = int(word(2)), word(3), word(4), word(5)
	slots := int(min(word(1), maxFrame/(8*statusSlot)))
	b.end = int64(8 * (statusHead + slots*statusSlot))
	rest, err := io.ReadAll(io.LimitReader(f, int64(8*slots*statusSlot)))
	if err != nil {
		return nil, err
	}
	text = append(text, rest...)
	for i := range len(rest) / (8 * statusSlot) {
		at := statusHead + i*statusSlot
		if id := word(at); id != 0 {
			b.Running = append(b.Running, Running{ID: id, PID: int(word(at + 1)), Slot: int(word(6)) + i, Started: time.Unix(0, int64(word(at+2))).UTC(), Out: int64(word(at + 3)), Err: int64(word(at + 4))})
		}
	}
	return b, nil
}

// Finished reads the results in the status file. It ignores a status file of another boot, since
// the output of its tasks may be lost.
func (b *StatusFile) Finished() ([]Result, error) {
	list, _, err := b.results()
	return list, err
}

// results reads the results, and returns where the last whole one ends; 0 if the status file is of
// another boot.
func (b *StatusFile) results() (list []Result, end int64, err error) {
	if b.Session == 0 || b.boot != BootID() {
		return nil, 0, nil
	}
	text, err := owner.ReadOthers(b.path)
	if err != nil {
		return nil, 0, err
	}
	for end = b.end; end+2 <= int64(len(text)); {
		n := 2 + int64(binary.LittleEndian.Uint16(text[end:]))
		var r Result
		if end+n > int64(len(text)) || r.get(&reader{b: text[end+2 : end+n]}) != nil {
			break // its writer was killed in the middle
		}
		list, end = append(list, r), end+n
	}
	return list, end, nil
}

// Alive reports whether the spawner of the status file is alive, on this machine.
func (b *StatusFile) Alive() bool {
	return b.Session > 1 && b.place == PIDScope() && proc.StartTime(b.Session) == b.start
}

// sweepWait is the longest wait for the end of processes after SIGKILL.
const sweepWait = 5 * time.Second

// endWait is how long a spawner without a client is given to note how its tasks ended. It
// takes a second at most.
const endWait = 3 * time.Second

// await waits for the end of a spawner that has lost its client.
func (b *StatusFile) await() {
	fd, err := unix.PidfdOpen(b.Session, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if !b.Alive() {
		return // another process has the number by now
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0) // a task may have stopped it
	for end := time.Now().Add(endWait); ; {
		left := time.Until(end)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(0, int(left.Milliseconds())))
		if n > 0 || left <= 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}

// Sweep kills the remaining processes of a spawner whose client has ended: it gives the
// spawner time to end by itself, and then kills the processes of its session.
// The kernel does not give the number of a session to another process as long as the session
// has members. If it gave the number away since, the leader has another start time. So Sweep
// kills no other process.
func (b *StatusFile) Sweep() error {
	if b.Session <= 1 || b.place != PIDScope() {
		return nil // of another boot, or of another machine
	}
	b.await()
	for end := time.Now().Add(sweepWait); ; {
		if start := proc.StartTime(b.Session); start != 0 && start != b.start {
			return nil
		}
		left := sessionMembers(b.Session)
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL) // it may be gone already
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v of an earlier premix cannot be killed", left)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// sessionMembers returns the processes of a session that are not zombies.
func sessionMembers(session int) (list []int) {
	want := strconv.Itoa(session)
	for _, pid := range proc.All() {
		if f, err := proc.Stat(pid); err == nil && len(f) > proc.Session && f[proc.Session] == want && f[0] != "Z" {
			list = append(list, pid)
		}
	}
	return list
}

// PIDScope identifies a boot of a machine and a PID namespace: the range in which a process
// id is unique.
func PIDScope() uint64 {
	boot, _ := os.ReadFile(bootID) // without a boot id, the namespace must be enough
	space, _ := os.Readlink("/proc/self/ns/pid")
	return digest(string(boot) + space)
}

// BootID identifies a boot of a machine: the range in which a mapped file is the same memory,
// also for processes in containers, regardless of their host names.
func BootID() uint64 {
	boot, err := os.ReadFile(bootID)
	if err != nil {
		host, _ := os.Hostname() // the fallback in a sandbox without the file
		return digest(host) ^ PIDScope()
	}
	return digest(string(boot))
}

const bootID = "/proc/sys/kernel/random/boot_id"

func digest(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}
