//go:build !amd64

package frozen

import (
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/tracer"
)

// Base is empty: no process can be held.
type Base struct{}

// ReadBase returns an error.
func ReadBase(int) (Base, error) { return Base{}, tracer.Supported() }

// Head is empty, too.
type Head struct{}

// Source is a process to freeze.
type Source struct {
	*tracer.Proc
	Base      Base
	Dir       string
	Private   bool
	Ends      bool
	Like      *Like
	Inherited []int
	Children  bool
}

// Freeze returns an error.
func Freeze(Source, *os.File) (*Image, error) { return nil, tracer.Supported() }

// Now returns an error.
func Now() (Moment, error) { return Moment{}, tracer.Supported() }

// BootID returns the empty string.
func BootID() string { return "" }

// Options are the options of Start.
type Options struct {
	Dir         string
	Random      bool
	Personality *uint64
	Device      uint64
	Filter      []unix.SockFilter
	Inherited   []int
	Pages       int
}

// Spawn returns an error.
func (im *Image) Spawn(string, *os.File, *syscall.SysProcAttr) (*tracer.Proc, uint64, error) {
	return nil, 0, tracer.Supported()
}

// Start returns an error.
func (im *Image) Start(*tracer.Proc, Options) error { return tracer.Supported() }

// Compare returns an error.
func Compare(*Image, *Image, io.ReaderAt, io.ReaderAt, Facts) (*Comparison, error) {
	return nil, tracer.Supported()
}

// Apply returns an error.
func Apply(int, []Patch) error { return tracer.Supported() }

// With returns an error.
func (im *Image) With(*Late) (*Image, error) { return nil, tracer.Supported() }

// Write returns an error.
func (l *Late) Write(*tracer.Proc) error { return tracer.Supported() }

// Held returns no offsets.
func ConfirmedOffsets(*Image, []Offset, []string) []Offset { return nil }
