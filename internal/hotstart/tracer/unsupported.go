//go:build !amd64

package tracer

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Supported returns an error where this package cannot trace on the processor that it
// was built for. Every function of the package returns that error then.
func Supported() error { return errUnsupported }

var errUnsupported = errors.New("hot starts need an x86-64 processor")

// ErrGone is returned when the process ended while it was worked on.
var ErrGone = errors.New("the process has ended")

// The types of this package have no content here: no function returns one.
type (
	// Proc is a held process.
	Proc struct {
		Pid     int
		Threads []int
	}
	// Watch sees the files that a process looks at.
	Watch struct {
		Random   *Entropy
		Clock    *Clock
		FakeHost *FakeHost
		Facts    bool
		Threads  bool
	}
	// FakeHost replaces the surroundings of a process.
	FakeHost struct {
		Number int
		Files  map[[2]uint64]bool
	}
	// Entropy replaces random bytes.
	Entropy struct{}
	// Guard makes a private mapping of a file behave like anonymous memory.
	Guard struct{}
)

// StubName is the name that a file with Stub must have.
const StubName = "premix-stub"

// Stub is empty.
var Stub []byte

// Spawn returns an error.
func Spawn(string, []string, *os.ProcAttr) (*Proc, uint64, error) { return nil, 0, errUnsupported }

// SpawnPlain returns an error.
func SpawnPlain(string, []string, *os.ProcAttr) (*Proc, error) { return nil, errUnsupported }

// Enter returns an error.
func Enter(int) (*Proc, error) { return nil, errUnsupported }

// OwnCPUs returns nil.
func OwnCPUs() []byte { return nil }

// NewWatch returns a Watch that watches no process.
func NewWatch() *Watch { return &Watch{} }

// NewGuard returns an error.
func NewGuard(*os.File) (*Guard, error) { return nil, errUnsupported }

// GuardFilter returns no filter.
func GuardFilter() []unix.SockFilter { return nil }

// Install returns an error.
func (*Watch) Install(*Proc) error { return errUnsupported }

// Start returns an error.
func (*Watch) Start(*Proc) error { return errUnsupported }

// Continue returns an error.
func (*Watch) Continue(int) error { return errUnsupported }

// Handle returns an error.
func (*Watch) Handle(int, unix.WaitStatus) (*Access, error) { return nil, errUnsupported }

// Wait returns an error.
func (*Watch) Wait(int) (int, unix.WaitStatus, error) { return 0, 0, errUnsupported }

// Settled returns true.
func (*Watch) Settled() bool { return true }

// Hold returns an error.
func (*Watch) Hold(int, int) (*Proc, error) { return nil, errUnsupported }

// Release returns an error.
func (*Guard) Release(*Proc) error { return errUnsupported }

// Handle returns an error.
func (*Guard) Handle(int, unix.WaitStatus) error { return errUnsupported }

// Process returns 0.
func Process(int) int { return 0 }

// Call returns false.
func (*Proc) Call(int) (uint64, [6]uint64, bool) { return 0, [6]uint64{}, false }

// Syscall returns an error.
func (*Proc) Syscall(uint64, ...uint64) (uint64, error) { return 0, errUnsupported }

// Alloc returns an error.
func (*Proc) Alloc(int) (uint64, error) { return 0, errUnsupported }

// Free returns an error.
func (*Proc) Free(uint64, int) error { return errUnsupported }

// Write returns an error.
func (*Proc) Write(uint64, []byte) error { return errUnsupported }

// Kill ends the process at once.
func (p *Proc) Kill() { syscall.Kill(p.Pid, syscall.SIGKILL) }

// NewEntropy returns an Entropy that replaces nothing.
func NewEntropy([32]byte) *Entropy { return &Entropy{} }

// Unrandomise changes nothing.
func Unrandomise() (uint64, bool) { return 0, false }
