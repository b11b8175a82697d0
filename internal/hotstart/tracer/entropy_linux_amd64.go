package tracer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"golang.org/x/sys/unix"
)

// Entropy replaces the random bytes that the kernel gives to a process by bytes
// that depend on a seed alone, so that two preparations of one program can be
// compared. A seed belongs to one snapshot: its bytes become stack canaries and
// seeds of hash tables.
//
// The instructions RDRAND and RDSEED are not replaced.
type Entropy struct{ stream *rand.ChaCha8 }

// NewEntropy returns the source of one preparation. Preparations with the same
// seed, and the same order of system calls, get the same bytes.
func NewEntropy(seed [32]byte) *Entropy { return &Entropy{rand.NewChaCha8(seed)} }

// Plant overwrites the bytes at AT_RANDOM (getauxval(3)) of a process that is held
// at its first instruction.
func (e *Entropy) Plant(p *Proc) error {
	auxv, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", p.Pid))
	if err != nil {
		return err
	}
	const atRandom = 25
	for ; len(auxv) >= 16; auxv = auxv[16:] {
		if binary.NativeEndian.Uint64(auxv) == atRandom {
			var b [16]byte
			e.stream.Read(b[:])
			return p.Write(binary.NativeEndian.Uint64(auxv[8:]), b[:])
		}
	}
	return fmt.Errorf("process %d has no AT_RANDOM", p.Pid)
}

// Answer answers getrandom(2) in place of the kernel, for a thread that is
// stopped at the entry of a system call: by PTRACE_SYSCALL, or by a seccomp
// filter with SECCOMP_RET_TRACE. It does not answer other calls, or a call that the
// kernel would refuse.
func (e *Entropy) Answer(tid int) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return gone(err)
	}
	const known = unix.GRND_NONBLOCK | unix.GRND_RANDOM | unix.GRND_INSECURE
	if r.Orig_rax != unix.SYS_GETRANDOM || r.Rdx&^known != 0 || r.Rsi == 0 {
		return nil
	}
	// The kernel may return fewer bytes too.
	b := make([]byte, min(r.Rsi, 1<<20))
	e.stream.Read(b)
	if err := (&Proc{Pid: tid}).Write(r.Rdi, b); err != nil {
		return nil // the kernel answers EFAULT
	}
	r.Orig_rax, r.Rax = ^uint64(0), uint64(len(b))
	return gone(unix.PtraceSetRegs(tid, &r))
}

// randomDevices are the files that give random bytes (random(4)).
var randomDevices = []string{"/dev/random", "/dev/urandom"}

// RandomFile returns the path of the device that a file of open replaces, or "". target is
// the target of the file's link in /proc/PID/fd.
func RandomFile(target string) string {
	for _, path := range randomDevices {
		if target == "/memfd:"+path+" (deleted)" {
			return path
		}
	}
	return ""
}

// randomBytes is the size of a file that replaces a device, bytes.
const randomBytes = 4 << 20

// open lets a thread, which is stopped by seccomp at the entry of the open of a device
// for random bytes, make the call, and replaces the device by a file in memory. path is
// the address of the file's name in the process.
func (e *Entropy) open(tid int, path uint64) error {
	p := &Proc{Pid: tid}
	if _, err := p.toSyscallStop(tid); err != nil {
		return err
	}
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return gone(err)
	}
	fd := r.Rax
	if int64(fd) < 0 {
		return nil
	}
	call := func(nr uint64, args ...uint64) (v uint64, err error) {
		v, _, err = p.execute(tid, r.Rip-2, r, nr, args...)
		return v, err
	}
	flags, err := call(unix.SYS_FCNTL, fd, unix.F_GETFD)
	if err != nil {
		return err
	}
	var file uint64
	if file, err = call(unix.SYS_MEMFD_CREATE, path, 0); err != nil {
		return fmt.Errorf("make a file for random bytes: %w", err)
	}
	err = e.fill(fmt.Sprintf("/proc/%d/fd/%d", tid, file))
	for _, c := range [][]uint64{{unix.SYS_DUP3, file, fd, flags & unix.FD_CLOEXEC * unix.O_CLOEXEC}, {unix.SYS_CLOSE, file}} {
		if _, cerr := call(c[0], c[1:]...); err == nil {
			err = cerr
		}
	}
	r.Orig_rax = ^uint64(0)
	if serr := unix.PtraceSetRegs(tid, &r); err == nil {
		err = gone(serr)
	}
	for _, sig := range p.later {
		if serr := unix.Tgkill(tgid(tid), tid, sig); err == nil {
			err = gone(serr)
		}
	}
	return err
}

// fill writes random bytes to a file.
func (e *Entropy) fill(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	b := make([]byte, randomBytes)
	e.stream.Read(b)
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}
