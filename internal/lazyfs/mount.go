package lazyfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"premix/internal/lazyfs/fuse"
)

// Image is a tree's image; reading fetches missing parts.
type Image = fuse.Image

// Backend is the way in which the kernel reads an image.
type Backend string

// The backends, in the order in which Auto prefers them.
const (
	File  Backend = "file"  // EROFS on the complete image in the cache
	EROFS Backend = "erofs" // EROFS on an image that internal/lazyfs/fuse shows
	FUSE  Backend = "fuse"  // internal/lazyfs/fuse shows the tree
	// Auto is only requested, never in use. A request for EROFS permits File too.
	Auto Backend = "auto"
)

// Set parses the value of a flag.
func (b *Backend) Set(s string) error {
	switch Backend(s) {
	case Auto, EROFS, FUSE:
		*b = Backend(s)
		return nil
	}
	return errors.New("want auto, erofs or fuse")
}

// Type returns the name of the type in the help of a flag.
func (b *Backend) Type() string { return "backend" }

func (b *Backend) String() string { return string(*b) }

// The kernel's readahead in KiB, which is also the size that it reads around a missing
// page of a program. It is the mean size of a chunk: reading farther ahead is left to
// the image, which knows files and recognises sequential readers. With 1024, starts of
// programs fetched a sixth more and were not faster.
const (
	readAhead         = 256
	readAheadProfiled = 16 // the recorded parts, and no others, are being fetched
	readAheadRecord   = 16 // so that only the parts that were asked for are recorded

	// On an EROFS whose recorded files are read into the page cache while they arrive.
	// A reader finds some neighbouring pages there, so that its readahead window begins
	// elsewhere than during the recording, and would reach beyond the recorded parts.
	readAheadGuided = 4
)

// Options of a mount.
type Options struct {
	// Dir is the private directory, absolute and existing.
	Dir string
	// Name is the source in the kernel's table of mounts, unless the backend determines
	// it.
	Name string
	// Backend is the requested backend; "" means Auto.
	Backend Backend
	// File is the path of the complete and verified image, which must not move while it
	// is mounted; "" if there is none.
	File string
	// NoFile is the reason why there is none, for Mount.Reason.
	NoFile string
	// Record is for a mount whose reads are recorded: readahead is small, and all reads
	// go to the Image.
	Record bool
	// Profiled is for a mount with a profile whose chunks are being fetched: readahead
	// is small until [Mount.ReadFar].
	Profiled bool
	// At is a directory at which the FUSE file system of the tree is mounted instead of
	// below Dir, for users who may not make bind mounts. Only FUSE supports it.
	At string
	// Own shows all files as this user's. Only FUSE supports it.
	Own bool
	// Kernel makes the calls that may wait for this process.
	Kernel Kernel
	// BDI is the value of [Mount.BDI] of the mount that is resumed.
	BDI string
	// Keep is called with a /dev/fuse descriptor before anything waits for answers
	// through it, and with the state that Resume needs. The mount owns the descriptor.
	Keep func(f *os.File, state []byte)
	// Log is called with problems of the connection to the kernel, if not nil.
	Log func(msg string)
}

// Mount is one image, mounted at one directory.
type Mount struct {
	o       Options
	backend Backend
	reason  string
	server  *fuse.Server // nil for File
	bdi     string       // directory of the kernel's settings of an EROFS; "" if unknown
}

// UnavailableError reports that no backend works on this machine.
type UnavailableError struct {
	Reasons []error // one for each backend that was tried, best first
}

func (e *UnavailableError) Error() string {
	return "this machine cannot mount trees: " + join(e.Reasons)
}

// ImageError reports that the beginning of an image, which mounting reads, is invalid or
// could not be read.
type ImageError struct{ Err error }

func (e *ImageError) Error() string { return "the tree cannot be read: " + e.Err.Error() }

func (e *ImageError) Unwrap() error { return e.Err }

// Unwrap returns the reasons.
func (e *UnavailableError) Unwrap() []error { return e.Reasons }

// Hint returns the hint for the user.
func (e *UnavailableError) Hint() string {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return "/dev/fuse is missing: modprobe fuse; in a container, hand the device in (--device /dev/fuse)"
	}
	if unix.Access("/dev/fuse", unix.R_OK|unix.W_OK) != nil {
		return "this user may not open /dev/fuse: chmod 666 /dev/fuse, the mode that distributions use"
	}
	if os.Geteuid() != 0 {
		return "without root this needs fusermount3: install the package fuse3"
	}
	return "mounting needs the capability CAP_SYS_ADMIN; in a container, --cap-add SYS_ADMIN --device /dev/fuse"
}

func join(errs []error) string {
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// New mounts an image with the best backend that works and that the options permit. The
// error is an [UnavailableError], or an [ImageError].
func New(ctx context.Context, img Image, o Options) (*Mount, error) {
	type candidate struct {
		backend Backend
		mount   func(context.Context, Image) error
	}
	m := &Mount{o: o}
	var list []candidate
	var reasons []error
	if o.Backend != FUSE {
		switch {
		case os.Geteuid() != 0:
			reasons = append(reasons, errors.New("erofs: only root may mount it"))
		case o.At != "":
			reasons = append(reasons, errors.New("erofs: it is not mounted in place"))
		default:
			switch {
			case o.Record:
				reasons = append(reasons, errors.New("file: what is touched is recorded"))
			case o.File != "":
				list = append(list, candidate{File, m.mountFile})
			case o.NoFile != "":
				reasons = append(reasons, fmt.Errorf("file: %s", o.NoFile))
			}
			list = append(list, candidate{EROFS, m.mountErofs})
		}
	}
	if o.Backend != EROFS {
		list = append(list, candidate{FUSE, m.mountTree})
	}
	for _, a := range list {
		err := a.mount(ctx, img)
		if err == nil {
			m.backend = a.backend
			if len(reasons) > 0 {
				m.reason = join(reasons)
			}
			return m, nil
		}
		reasons = append(reasons, fmt.Errorf("%s: %w", a.backend, err))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		// Another backend would read the same image.
		var image *ImageError
		if errors.As(err, &image) {
			return nil, err
		}
	}
	return nil, &UnavailableError{reasons}
}

// Resume takes over a mount of a process that has died. The options are those of the
// mount, and backend is its backend. f and state are the arguments of the last
// call of Keep; the mount owns f from now on. The backend File needs neither.
func Resume(img Image, backend Backend, reason string, f *os.File, state []byte, o Options) (*Mount, error) {
	m := &Mount{o: o, backend: backend, reason: reason, bdi: o.BDI}
	if backend == File {
		return m, nil
	}
	s, err := fuse.Resume(f, state, img, m.fuseOptions())
	if err != nil {
		return nil, err
	}
	m.server = s
	// The process may have died just before it ended Options.Profiled.
	if m.bdi != "" {
		writeReadAhead(m.bdi, m.readAheadErofs())
	}
	return m, nil
}

// NewFiles mounts a file system that is not in an image. Options.Backend is FUSE.
func NewFiles(f fuse.Files, o Options) (*Mount, error) {
	m := &Mount{o: o, backend: FUSE}
	if o.At == "" {
		if err := makeMountPoint(m.Path()); err != nil {
			return nil, err
		}
	}
	s, err := fuse.MountFiles(m.Path(), f, m.fuseOptions())
	if err != nil {
		return nil, &UnavailableError{[]error{err}}
	}
	if o.Keep != nil {
		o.Keep(s.File(), s.State())
	}
	m.server = s
	return m, nil
}

// ResumeFiles is Resume for a mount of NewFiles.
func ResumeFiles(files fuse.Files, f *os.File, state []byte, o Options) (*Mount, error) {
	s, err := fuse.ResumeFiles(f, state, files, (&Mount{o: o}).fuseOptions())
	if err != nil {
		return nil, err
	}
	return &Mount{o: o, backend: FUSE, server: s}, nil
}

// Path returns the directory where the tree is mounted.
func (m *Mount) Path() string {
	if m.o.At != "" {
		return m.o.At
	}
	return treePath(m.o.Dir)
}

// ImagePath returns the file that this process shows for mounting EROFS, or "" for the
// other backends.
func (m *Mount) ImagePath() string {
	if m.backend != EROFS {
		return ""
	}
	return filepath.Join(imagePath(m.o.Dir), fuse.ImageName)
}

// Backend returns the backend in use.
func (m *Mount) Backend() Backend { return m.backend }

// Reason returns why it is not a better one; "" if it is the best.
func (m *Mount) Reason() string { return m.reason }

// BDI returns the directory of the kernel's settings of an EROFS, for a later Resume;
// "" if it is unknown, or if the mount is not an EROFS.
func (m *Mount) BDI() string { return m.bdi }

// File returns the descriptor that was passed to Keep, nil for the backend File.
func (m *Mount) File() *os.File {
	if m.server == nil {
		return nil
	}
	return m.server.File()
}

// ShownPath returns the file in a private directory in which the owner of an image
// records the metadata that the kernel has seen.
func ShownPath(dir string) string { return filepath.Join(dir, "shown") }

// CatalogsPath returns the file in a private directory in which the owner of a file
// system of NewFiles keeps the numbers of its nodes.
func CatalogsPath(dir string) string { return filepath.Join(dir, "catalogs") }

func treePath(dir string) string  { return filepath.Join(dir, "tree") }
func imagePath(dir string) string { return filepath.Join(dir, "image") }

func (m *Mount) readAhead() int {
	switch {
	case m.o.Record:
		return readAheadRecord
	case m.o.Profiled:
		return readAheadProfiled
	}
	return readAhead
}

// readAheadErofs returns the readahead of an EROFS on an image of this process.
func (m *Mount) readAheadErofs() int {
	if m.o.Profiled && !m.o.Record {
		return readAheadGuided
	}
	return m.readAhead()
}

// ReadFar ends Options.Profiled: files opened from now on get the usual readahead.
// Files that are already open keep theirs.
func (m *Mount) ReadFar() {
	if m.o.Record || !m.o.Profiled {
		return
	}
	bdi := m.bdi
	if m.backend == FUSE {
		// This does not request anything from this process, which serves the mount.
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, m.Path(), unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO, &st); err != nil {
			return
		}
		bdi = fmt.Sprintf("/sys/class/bdi/%d:%d", st.Dev_major, st.Dev_minor)
	}
	if bdi != "" {
		writeReadAhead(bdi, readAhead)
	}
}

func (m *Mount) fuseOptions() fuse.Options {
	return fuse.Options{Name: m.o.Name, ReadAhead: m.readAhead(), Own: m.o.Own, Log: m.o.Log}
}

// mountFile mounts EROFS on the cached file.
func (m *Mount) mountFile(context.Context, Image) error {
	return m.erofs(m.o.File, "")
}

// mountErofs mounts EROFS on a file that this process serves.
func (m *Mount) mountErofs(ctx context.Context, img Image) error {
	dir := imagePath(m.o.Dir)
	if err := makeMountPoint(dir); err != nil {
		return err
	}
	fo := m.fuseOptions()
	fo.Private = true
	s, err := fuse.MountImage(dir, img, fo)
	if err != nil {
		return err
	}
	if m.o.Keep != nil {
		m.o.Keep(s.File(), s.State())
	}
	// Fetch the parts that mount(2) will read before it, since mounts are made one at a
	// time.
	if err := fuse.Check(ctx, img); err != nil {
		return errors.Join(&ImageError{err}, s.Close())
	}
	if err := m.erofsOnFUSE(filepath.Join(dir, fuse.ImageName)); err != nil {
		return errors.Join(err, s.Close())
	}
	m.server = s
	return nil
}

// erofsOnFUSE mounts EROFS on the image file that this process serves. With directio
// (Linux 6.15) EROFS reads past the page cache of that file, which would cache every
// byte a second time. It is not used when reads are recorded: EROFS's own requests are
// larger than the reads of the users.
func (m *Mount) erofsOnFUSE(source string) error {
	if m.o.Record {
		return m.erofs(source, "")
	}
	err := m.erofs(source, "directio")
	if errors.Is(err, unix.EINVAL) {
		err = m.erofs(source, "")
	}
	return err
}

// mounting is held while an EROFS is mounted. The directory of its settings is found by
// its appearance, so only one may appear at a time.
var mounting sync.Mutex

// erofs mounts the image file at source.
func (m *Mount) erofs(source, options string) error {
	path := treePath(m.o.Dir)
	if err := makeMountPoint(path); err != nil {
		return err
	}
	// Trees may come from untrusted sources: their set-user-ID files and device nodes
	// are visible, but have no effect.
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME
	mounting.Lock()
	defer mounting.Unlock()
	before := erofsDevices()
	if err := m.o.Kernel.Mount(source, path, "erofs", flags, options); err != nil {
		return err
	}
	for _, dir := range erofsDevices() {
		if !slices.Contains(before, dir) {
			m.bdi = dir
			writeReadAhead(dir, m.readAheadErofs())
		}
	}
	return nil
}

// mountTree lets this process serve the tree itself.
func (m *Mount) mountTree(ctx context.Context, img Image) error {
	if err := fuse.Check(ctx, img); err != nil {
		return &ImageError{err}
	}
	path := m.Path()
	if m.o.At == "" {
		if err := makeMountPoint(path); err != nil {
			return err
		}
	}
	s, err := fuse.MountTree(path, img, m.fuseOptions())
	if err != nil {
		return err
	}
	if m.o.Keep != nil {
		m.o.Keep(s.File(), s.State())
	}
	m.server = s
	return nil
}

func makeMountPoint(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// erofsDevices lists the kernel's directories of settings of EROFS mounts on files.
// Their names are numbers that the kernel increments and does not report.
func erofsDevices() []string {
	list, _ := filepath.Glob("/sys/class/bdi/erofs-*") // the pattern is valid
	return list
}

// writeReadAhead sets the kernel's readahead. If another process has mounted an EROFS
// at the same moment, its readahead is set too; if it cannot be set, reading is slower.
// Neither is an error.
func writeReadAhead(bdi string, kib int) {
	_ = os.WriteFile(bdi+"/read_ahead_kb", []byte(strconv.Itoa(kib)), 0)
}

// Close unmounts. Without lazy it returns EBUSY if the mount is in use, and the mount
// stays. With lazy the mount disappears at once, and is served until its last use ends:
// [Mount.Wait] waits for that. A mount at Options.At is always unmounted lazily, the
// only safe way that fusermount3 has.
func (m *Mount) Close(lazy bool) error {
	if m.o.At != "" {
		return errors.Join(m.server.Close(), Remove(m.o.Dir))
	}
	flags := 0
	if lazy {
		flags = unix.MNT_DETACH
	}
	if err := m.unmount(treePath(m.o.Dir), flags); err != nil {
		return err
	}
	if m.server != nil {
		// The file that serves the image goes last: unmounting may read. An EROFS that
		// was detached and is in use keeps it.
		if err := m.unmount(imagePath(m.o.Dir), unix.MNT_DETACH); err != nil {
			return err
		}
		if err := m.server.Close(); err != nil {
			return err
		}
	}
	return Remove(m.o.Dir)
}

// unmount unmounts path. It is not an error if nothing is mounted there.
func (m *Mount) unmount(path string, flags int) error {
	err := m.o.Kernel.Unmount(path, flags|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Wait waits until no reads come to this process any more. The error is nil if the
// mount was unmounted.
func (m *Mount) Wait() error {
	if m.server == nil {
		return nil
	}
	return m.server.Wait()
}

// DetachByHelper unmounts, lazily, a mount of an unprivileged user.
func DetachByHelper(dir string) error {
	program, err := exec.LookPath("fusermount3")
	if err != nil {
		return err
	}
	if out, err := exec.Command(program, "-u", "-z", "-q", "--", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("fusermount3: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Remove removes a private directory in which nothing is mounted.
func Remove(dir string) error {
	var errs []error
	for _, path := range []string{treePath(dir), imagePath(dir), ShownPath(dir), CatalogsPath(dir), dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
