package procstate

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestDenied uses a seccomp filter that permits personality(2) only for reading, as in a container.
func TestDenied(t *testing.T) {
	if os.Getenv("PREMIX_TEST_DENIED") == "" {
		if err := CanFixAddresses(); err != nil {
			t.Skipf("denied already: %v", err)
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestDenied$")
		cmd.Env = append(os.Environ(), "PREMIX_TEST_DENIED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PERSONALITY, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16}, // the low half of its first argument
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0xffffffff, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, 1, 0, uintptr(unsafe.Pointer(&program))); e != 0 {
		t.Fatal(e)
	}
	var denied *AddressError
	if err := CanFixAddresses(); !errors.As(err, &denied) || !errors.Is(err, unix.EPERM) {
		t.Errorf("CanFixAddresses: %v", err)
	}
}

func TestFixAddresses(t *testing.T) {
	if err := CanFixAddresses(); err != nil {
		t.Skip(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := func() uintptr {
		v, _, e := unix.Syscall(unix.SYS_PERSONALITY, 0xffffffff, 0, 0)
		if e != 0 {
			t.Fatal(e)
		}
		return v
	}
	before := now()
	own, restore, err := FixAddresses()
	if err != nil || uintptr(own) != before || now() == before {
		t.Errorf("FixAddresses: %#x, %v; the personality is %#x, before %#x", own, err, now(), before)
	}
	restore()
	if now() != before {
		t.Errorf("restored to %#x, before %#x", now(), before)
	}
}
