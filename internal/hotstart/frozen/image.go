package frozen

import (
	"encoding/gob"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Refused is the error for a state of a process that cannot be restored exactly.
type Refused struct{ What string }

func (e *Refused) Error() string { return "it cannot be frozen: " + e.What }

func refuse(format string, args ...any) error {
	return &Refused{fmt.Sprintf(format, args...)}
}

// Image is a frozen process without the content of its memory.
type Image struct {
	Exe  string   // path of its program, as the process sees it
	Argv []string // as the kernel shows it, for the program that is executed and replaced
	Env  []string
	Dir  string // its working directory: paths below it are opened below the started process's directory

	Memory     Memory
	Maps       []VMA
	Threads    []Thread // the leader first
	Actions    []Action
	Files      []File // in the order of their numbers
	Umask      int
	Timers     []IntervalTimer
	Limits     []Limit // only the limits that the process has changed
	NoNewPrivs bool
	Dumpable   bool
	Subreaper  bool
	LockFuture bool // mlockall(2) with MCL_FUTURE
	Clock      bool // a thread waits until a time of the monotonic clock
	Boot       string
	PageBytes  int64 // bytes of memory in the page file
	Pieces     []Piece
	Ids        []IdPlace // from Comparison: Start writes the ids of the new threads there
	Devices    []uint64  // from Comparison: Start writes the device of the program's file there
	// RegisterIds are from Comparison too. Start sets these registers to the id of a
	// thread.
	RegisterIds []RegisterId
	// Clocks and Dates are from Comparison. Stopped is the time at which the process was stopped.
	Clocks  []ClockPlace
	Dates   []DatePlace
	Stopped Moment
	// Statuses, Generator and WorkDirs are from Comparison too.
	Statuses  []StatusPlace
	Generator *Generator
	WorkDirs  []DirPlace
	// Head is nil if a start does not execute the program.
	Head *Head
}

// RegisterId is a register that holds the id of a thread, as where one waits for the end
// of another.
type RegisterId struct {
	Thread   int // index into Image.Threads
	Register int // index of the field of unix.PtraceRegs
	Id       int // index of the thread whose id it is; see IdPlace
}

// IdPlace is a place in memory with the id of a thread, or of a child that each start makes.
type IdPlace struct {
	Address uint64 // of 4 bytes
	Thread  int    // index into Image.Threads; 0 is the leader, whose id is the process id; the children follow
}

// Memory is the kernel's record of the layout of an address space: the arguments of
// prctl(2), PR_SET_MM_MAP, and the addresses of vdso and vvar.
type Memory struct {
	StartCode, EndCode, StartData, EndData uint64
	StartBrk, Brk, StartStack              uint64
	ArgStart, ArgEnd, EnvStart, EnvEnd     uint64
	Auxv                                   []byte
	VDSO                                   Range
	VVAR                                   []Range
}

// Range is a part of an address space: [Start, End).
type Range struct{ Start, End uint64 }

// Size returns the number of bytes in the range.
func (r Range) Size() uint64 { return r.End - r.Start }

// Kind is the way in which a VMA is restored.
type Kind uint8

// The kinds of VMA.
const (
	KindFile   Kind = iota // mapped from its own file; changed pages are copied over it
	KindCopied             // anonymous; its pages are copied from the page file
	KindPaged              // a private mapping of the page file
	KindShared             // anonymous memory that children share; its pages are copied
)

// VMA is one mapping.
type VMA struct {
	Range
	Kind     Kind
	Prot     int // PROT_ bits
	Shared   bool
	Grows    bool // MAP_GROWSDOWN
	Reserves bool // false: MAP_NORESERVE
	Locked   bool // mlock(2)
	Advice   []int
	Path     string // of KindFile
	Offset   int64  // in the file at Path, bytes
	Page     int64  // offset of the slot in the page file, bytes
	Data     []Extent
	Guards   []Extent // guard pages (MADV_GUARD_INSTALL)
	Inode    uint64   // of KindShared: VMAs of one object have the same
}

// Extent is a run of pages with content, in bytes from the start of its VMA.
type Extent struct{ Offset, Size int64 }

// Thread is the state of one thread.
type Thread struct {
	Tid                  int // at the freeze
	Regs                 unix.PtraceRegs
	Xstate               []byte
	Mask                 uint64
	TidAddress           uint64
	RobustHead, RobustSz uint64
	RseqAddress          uint64
	RseqSize, RseqSig    uint32
	AltStack             [24]byte // stack_t of sigaltstack(2)
	HasAltStack          bool
	Name                 string
	Affinity             []byte // CPU mask; nil: unchanged
	Nice                 *int   // nil: unchanged
	TimerSlack           uint64 // ns; 0: unchanged
}

// Action is the action of a process on a signal (rt_sigaction(2)).
type Action struct {
	Signal int
	Raw    [32]byte // struct kernel_sigaction
}

// IntervalTimer is a timer of setitimer(2).
type IntervalTimer struct {
	Which int
	Raw   [32]byte // struct itimerval
}

// Limit is a resource limit (prlimit(2)).
type Limit struct {
	Resource int
	Cur, Max uint64
	Raised   bool // above the inherited limit, and needed for the restored state
}

// FileKind is the kind of an open file.
type FileKind uint8

// The kinds of open file that are restored.
const (
	FilePath      FileKind = iota // opened again by its path
	FileDup                       // the open file of another descriptor
	FilePipe                      // one end of a pipe that the process keeps to itself
	FileEvent                     // eventfd(2)
	FileEpoll                     // epoll(7)
	FileTimer                     // timerfd_create(2)
	FileSignal                    // signalfd(2)
	FileGone                      // a regular file without a name: its content is copied
	FileShut                      // one end of a socketpair(2) whose other end has been closed
	FileInherited                 // from the process that starts it: Source.Inherited
)

// File is one descriptor.
type File struct {
	FD      int
	Kind    FileKind
	Flags   int    // of open(2), O_CLOEXEC included
	Path    string // as the process saw it; below Dir: relative to it
	Inside  bool   // Path is relative to Dir
	Regular bool
	Offset  int64
	Of      int      // FileDup: the other descriptor. FilePipe: the descriptor of the read end
	Content []byte   // FilePipe, of the read end: the bytes in it. FileGone: its content
	Size    int      // FilePipe: capacity
	Count   uint64   // FileEvent
	Watches []Watch  // FileEpoll
	Clock   int      // FileTimer
	Value   [32]byte // FileTimer: struct itimerspec
	Mask    uint64   // FileSignal
	Mode    uint32   // FileGone: permissions
}

// Watch is one entry of an epoll(7) set.
type Watch struct {
	FD     int
	Events uint32
	Data   uint64
}

// Paths returns the files outside of the working directory that the process has
// executed, mapped or open.
func (im *Image) Paths() []string {
	all := []string{im.Exe}
	for _, v := range im.Maps {
		if v.Path != "" && v.Path[0] == '/' && v.Kind != KindShared {
			all = append(all, v.Path)
		}
	}
	for _, f := range im.Files {
		if f.Kind == FilePath && f.Regular && !f.Inside {
			all = append(all, f.Path)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// PerfData reports whether a file holds counters of a Java virtual machine, which
// others may look at and no one else changes. A started process gets a copy that
// only it sees.
func PerfData(path string) bool {
	return strings.HasPrefix(filepath.Base(filepath.Dir(path)), "hsperfdata_")
}

// WriteFile writes an image to a new file with mode 0600.
func (im *Image) WriteFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := gob.NewEncoder(f).Encode(im); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Close()
}

// ReadFile reads an image that WriteFile wrote.
func ReadFile(path string) (*Image, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	im := &Image{}
	if err := gob.NewDecoder(f).Decode(im); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return im, nil
}
