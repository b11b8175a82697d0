package spawn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/owner"
)

// A board is a file of words of eight bytes, in the byte order of the machine: it is
// never read on another one. Its head is
//
//	0 magic   1 slots   2 session (the spawner's process id)   3 start of the
//	spawner's process   4 digest of the boot id and the PID namespace   5-7 zero
//
// followed by five words a slot: task id (0: none), process id, start in nanoseconds
// since 1970, and the sizes of its two logs at that moment. A slot's words are written by its thread and read by anybody
// without a lock: who reads sees a task or the next one.
const (
	boardMagic = 0x0a64726f62786d70
	boardHead  = 8
	boardSlot  = 5
)

// Running is what a slot runs.
type Running struct {
	ID      uint64
	PID     int
	Slot    int
	Started time.Time
	Out     int64 // where its standard output begins in the log
	Err     int64 // where its standard error begins
}

// board is a mapped board.
type board struct {
	data  []byte
	words []uint64
}

// createBoard makes the board of this process.
func createBoard(path string, slots int) (*board, error) {
	f, err := owner.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := 8 * (boardHead + slots*boardSlot)
	// Allocated: on a full disk a store into a hole would be SIGBUS.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(size)); err != nil {
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, &os.PathError{Op: "allocate", Path: path, Err: err}
		}
		if _, err := f.Write(make([]byte, size)); err != nil {
			return nil, err
		}
	}
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "map", Path: path, Err: err}
	}
	b := &board{data: data, words: unsafe.Slice((*uint64)(unsafe.Pointer(&data[0])), size/8)}
	pid := os.Getpid()
	b.words[1], b.words[2], b.words[3], b.words[4] = uint64(slots), uint64(pid), startTime(pid), Place()
	atomic.StoreUint64(&b.words[0], boardMagic)
	return b, nil
}

func (b *board) slot(n int) []uint64 {
	at := boardHead + n*boardSlot
	return b.words[at : at+boardSlot]
}

// Board is what a board's file said at one moment.
type Board struct {
	Session int
	start   uint64
	place   uint64
	Running []Running
}

// ReadBoard reads the board at path. Without one there is nothing running.
func ReadBoard(path string) (*Board, error) {
	text, err := owner.ReadOthers(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Board{}, nil
	}
	if err != nil {
		return nil, err
	}
	word := func(i int) uint64 {
		if 8*i+8 > len(text) {
			return 0
		}
		return binary.NativeEndian.Uint64(text[8*i:])
	}
	b := &Board{}
	if word(0) != boardMagic {
		return b, nil // its writer got no further
	}
	b.Session, b.start, b.place = int(word(2)), word(3), word(4)
	for i := range min(int(word(1)), (len(text)/8-boardHead)/boardSlot) {
		at := boardHead + i*boardSlot
		if id := word(at); id != 0 {
			b.Running = append(b.Running, Running{ID: id, PID: int(word(at + 1)), Slot: i, Started: time.Unix(0, int64(word(at+2))).UTC(), Out: int64(word(at + 3)), Err: int64(word(at + 4))})
		}
	}
	return b, nil
}

// Alive tells whether the spawner whose board it is lives, on this machine.
func (b *Board) Alive() bool {
	return b.Session > 1 && b.place == Place() && startTime(b.Session) == b.start
}

// sweepWait is how long processes are given to be gone after SIGKILL.
const sweepWait = 5 * time.Second

// Sweep kills what is left of a spawner that died: the processes of its session.
// The number of a session is not given to another process as long as the session has
// members, and if it was given away since, the leader began at another time; so none
// but those are met.
func (b *Board) Sweep() error {
	if b.Session <= 1 || b.place != Place() {
		return nil // of another boot, or of another machine
	}
	for end := time.Now().Add(sweepWait); ; {
		if start := startTime(b.Session); start != 0 && start != b.start {
			return nil
		}
		left := members(b.Session)
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

// members are the processes of a session that are not zombies.
func members(session int) []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	want := strconv.Itoa(session)
	var list []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// state ppid pgrp session ...
		if f := stat(pid); len(f) > 3 && f[3] == want && f[0] != "Z" {
			list = append(list, pid)
		}
	}
	return list
}

// stat are the fields of /proc/PID/stat behind the name, which is in parentheses and
// may hold anything (proc_pid_stat(5)): field 3 is the first.
func stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}

// startTime is when a process began, in clock ticks since boot; 0 if there is none.
func startTime(pid int) uint64 {
	f := stat(pid)
	if len(f) < 20 {
		return 0
	}
	v, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// Place tells one boot of one machine, and one PID namespace, from others: where a process
// id means the same.
func Place() uint64 {
	boot, _ := os.ReadFile(bootID) // without one, the namespace has to do
	space, _ := os.Readlink("/proc/self/ns/pid")
	return digest(string(boot) + space)
}

// Boot tells one boot of one machine from others: where a mapped file is the same memory,
// also for processes in containers, whatever the names of their hosts.
func Boot() uint64 {
	boot, err := os.ReadFile(bootID)
	if err != nil {
		host, _ := os.Hostname() // in a sandbox that has no such file, it has to do
		return digest(host) ^ Place()
	}
	return digest(string(boot))
}

const bootID = "/proc/sys/kernel/random/boot_id"

func digest(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}
