package node

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/lazyfs"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// reader is the worker's side of a process that makes the kernel read ahead the files
// whose data bundles have brought. A program that starts reads its files in pieces of
// 16 KiB, and waits for a request of the kernel to the worker for each: half the time
// of a start with a full cache. Reading ahead in large pieces costs a tenth of that,
// and the program does not wait.
//
// It must be another process: it waits for the worker, and holds none of its
// descriptors, so that it cannot keep a dying worker alive. It starts when it is first
// needed, and ends with the worker.
type reader struct {
	log *slog.Logger

	mu     sync.Mutex // held during a write
	in     io.WriteCloser
	broken bool
}

// aheadRequest is a request to a reader, a line of JSON.
type aheadRequest struct {
	Tree  string      `json:"tree"`            // mount point of an EROFS
	Image string      `json:"image,omitempty"` // the file that it is mounted from
	Spans []tree.Span `json:"spans"`
}

// ahead makes the kernel read spans of a mount. It ignores errors: programs then read
// the data themselves.
func (r *reader) ahead(a aheadRequest) {
	line, err := json.Marshal(a)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken {
		return
	}
	if r.in == nil {
		if err = r.start(); err != nil {
			r.broken = true
			r.log.Warn("profiles are not read ahead", "error", err)
			return
		}
	}
	if _, err := r.in.Write(append(line, '\n')); err != nil {
		// It died. The next request starts another one.
		_ = r.in.Close()
		r.in = nil
	}
}

func (r *reader) start() error {
	cmd := exec.Command(self)
	cmd.Args = []string{"premix", ReaderArg}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as for the worker: Ctrl-C is for the supervisor only
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = cmd.Wait() // its exit status does not matter
	}()
	r.in = in
	return nil
}

const (
	// readersAtOnce limits a reader's concurrent requests.
	readersAtOnce = 8
	// aheadPiece is the size of one readahead of the kernel, in bytes.
	aheadPiece = 128 << 10
)

// Types of file handles, from include/linux/exportfs.h of Linux. Both contain the
// number of an inode and its generation, which is always 0 in EROFS.
const (
	ino32Handle = 0x01 // FILEID_INO32_GEN: number, generation
	ino64Handle = 0x81 // FILEID_INO64_GEN: upper half of the number, lower half, generation
)

// handleOf returns the handle of an inode, in the form that its file system uses.
func handleOf(form int32, inode uint64) (unix.FileHandle, error) {
	switch {
	case form == ino32Handle && inode <= math.MaxUint32:
		b := binary.NativeEndian.AppendUint32(nil, uint32(inode))
		return unix.NewFileHandle(form, binary.NativeEndian.AppendUint32(b, 0)), nil
	case form == ino64Handle:
		b := binary.NativeEndian.AppendUint32(nil, uint32(inode>>32))
		b = binary.NativeEndian.AppendUint32(b, uint32(inode))
		return unix.NewFileHandle(form, binary.NativeEndian.AppendUint32(b, 0)), nil
	}
	return unix.FileHandle{}, unix.EOPNOTSUPP
}

// readAheadUntil is the main function of a reader. It returns when in ends.
func readAheadUntil(in io.Reader) error {
	places := make(chan struct{}, readersAtOnce)
	lines := json.NewDecoder(in)
	for {
		var a aheadRequest
		if err := lines.Decode(&a); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil
			}
			return err
		}
		places <- struct{}{}
		go func() {
			defer func() { <-places }()
			a.read()
		}()
	}
}

// read stops at the first error: the mount may be gone, or the kernel may not permit
// it.
func (a *aheadRequest) read() {
	mount, err := os.Open(a.Tree)
	if err != nil {
		return
	}
	defer mount.Close()
	root, _, err := unix.NameToHandleAt(int(mount.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return
	}
	for _, s := range a.Spans {
		fd := -1
		if s.Inode == 0 {
			if a.Image != "" {
				fd, err = unix.Open(a.Image, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			}
		} else {
			var h unix.FileHandle
			if h, err = handleOf(root.Type(), s.Inode); err == nil {
				fd, err = unix.OpenByHandleAt(int(mount.Fd()), h, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW)
			}
		}
		if err != nil {
			return
		}
		if fd < 0 {
			continue
		}
		err = readRuns(fd, s.Runs)
		_ = unix.Close(fd)
		if err != nil {
			return
		}
	}
}

// readRuns makes the kernel read blocks of a file, and does not wait for them.
func readRuns(fd int, runs []object.Run) error {
	for _, r := range runs {
		for from, to := int64(r.From)<<12, int64(r.To)<<12; from < to; from += aheadPiece {
			if err := unix.Fadvise(fd, from, min(aheadPiece, to-from), unix.FADV_WILLNEED); err != nil {
				return err
			}
		}
	}
	return nil
}

// ahead holds the spans of a bundle that the kernel has yet to read.
type ahead struct {
	size   int64 // of the bundle
	blocks int64 // of all spans

	mu   sync.Mutex
	left []tree.Span // of one run each
	done int64       // blocks of the spans already taken from left
}

func newAhead(b tree.Bundle) *ahead {
	a := &ahead{size: b.Size}
	for _, s := range b.Spans {
		for _, r := range s.Runs {
			a.left = append(a.left, tree.Span{Inode: s.Inode, Runs: []object.Run{r}})
			a.blocks += int64(r.To - r.From)
		}
	}
	return a
}

// lead is how far the requested readahead is ahead of the received part of a bundle, in
// bytes. A program may need a page before its data has been received: if the kernel is
// already reading that page, the program waits for it; otherwise it reads in small
// pieces of its own. Spans are in the order of the bundle's content. A larger lead
// would take slots for requests of the kernel from data that arrives sooner.
const lead = 512 << 10

// upTo returns the spans to read next, when here bytes of the bundle have been
// received.
func (a *ahead) upTo(here int64) []tree.Span {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.blocks
	if here < a.size {
		n = a.blocks * min(a.size, here+lead) / a.size
	}
	var now []tree.Span
	for a.done < n {
		s := a.left[0]
		r := s.Runs[0]
		if cut := r.From + int(n-a.done); cut < r.To {
			a.left[0].Runs = []object.Run{{From: cut, To: r.To}}
			r.To = cut
		} else {
			a.left = a.left[1:]
		}
		a.done += int64(r.To - r.From)
		if k := len(now); k > 0 && now[k-1].Inode == s.Inode {
			now[k-1].Runs = append(now[k-1].Runs, r)
		} else {
			now = append(now, tree.Span{Inode: s.Inode, Runs: []object.Run{r}})
		}
	}
	return now
}

// readAhead makes the kernel read the spans that a bundle of a mount's profile has
// brought, once the mount exists.
func (d *daemon) readAhead(m *mount, spans []tree.Span) {
	if len(spans) == 0 || m.entry.Record != "" {
		return
	}
	go func() {
		select {
		case <-m.shown:
		case <-m.ctx.Done():
			return
		}
		d.mu.Lock()
		b := m.base
		d.mu.Unlock()
		if b == nil || b.m.Backend() != lazyfs.EROFS {
			return // unmounted, or the kernel reads the image itself
		}
		d.reader.ahead(aheadRequest{Tree: b.m.Path(), Image: b.m.ImagePath(), Spans: spans})
	}()
}
