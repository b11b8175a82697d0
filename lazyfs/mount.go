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

	"premix/lazyfs/fuse"
)

// Image is the bytes of a tree's image; reading fetches what is missing.
type Image = fuse.Image

// Backend is how the kernel reads an image.
type Backend string

// The backends, in the order in which Auto prefers them.
const (
	File  Backend = "file"  // EROFS on the complete image in the cache
	EROFS Backend = "erofs" // EROFS on an image that lazyfs/fuse shows
	FUSE  Backend = "fuse"  // lazyfs/fuse shows the tree
	// Auto is a wish, never a result. As a wish, EROFS stands for File too, where
	// that is possible.
	Auto Backend = "auto"
)

// Set makes a Backend of what a user wrote, for a flag.
func (b *Backend) Set(s string) error {
	switch Backend(s) {
	case Auto, EROFS, FUSE:
		*b = Backend(s)
		return nil
	}
	return errors.New("it is one of auto, erofs and fuse")
}

// Type is what the help of a flag calls it.
func (b *Backend) Type() string { return "backend" }

func (b *Backend) String() string { return string(*b) }

// The kernel reads ahead as far, in KiB, which is also how much it reads around a page
// of a program that is missing. That is the mean of a chunk: what lies beyond is a matter
// of the image behind, which knows files and sees who reads in order. With 1024 starts
// of programs fetched a sixth more and were no sooner.
const (
	readAhead         = 256
	readAheadProfiled = 16 // what was recorded, and not more, is being fetched
	readAheadRecord   = 16 // what is recorded should be what was asked for

	// Where EROFS reads what was recorded, somebody has it read before it is asked for,
	// while it arrives. Who comes first to a page finds some of its neighbours there,
	// so that a window begins elsewhere than when it was recorded, and would reach
	// beyond that.
	readAheadGuided = 4
)

// Options of a mount.
type Options struct {
	// Dir is the private directory, absolute and existing.
	Dir string
	// Name is what the kernel's table of mounts shows as the source, where it is free.
	Name string
	// Backend is the wish; "" stands for Auto.
	Backend Backend
	// File is the path of the complete and verified image, which stays where it is
	// as long as the mount; "" where there is none.
	File string
	// NoFile says why there is none, for Mount.Reason.
	NoFile string
	// Record is for a mount whose touches are recorded: it reads ahead little, and
	// everything comes from the Image.
	Record bool
	// Profiled is for a mount whose first reader is known to want certain chunks, which
	// are being fetched: it reads ahead little until [Mount.ReadFar].
	Profiled bool
	// At is a directory at which the FUSE file system of the tree is mounted instead
	// of below Dir, for users who cannot make bind mounts of it. Only FUSE can.
	At string
	// Kernel makes the calls that could wait for this process.
	Kernel Kernel
	// BDI is what the mount that Resume goes on with had for [Mount.BDI].
	BDI string
	// Keep is told of a /dev/fuse descriptor before anything waits for its answers,
	// with what Resume wants beside it. The descriptor is the mount's.
	Keep func(f *os.File, state []byte)
	// Log is told of what is wrong with the connection to the kernel, if not nil.
	Log func(msg string)
}

// Mount is one image, seen at one directory.
type Mount struct {
	o       Options
	backend Backend
	reason  string
	server  *fuse.Server // nil for File
	bdi     string       // where the kernel keeps the settings of an EROFS; "" where that isn't known
}

// UnavailableError says that no backend works here.
type UnavailableError struct {
	Reasons []error // of each backend that was tried, best first
}

func (e *UnavailableError) Error() string {
	return "this machine cannot mount trees: " + join(e.Reasons)
}

// Unwrap gives the reasons.
func (e *UnavailableError) Unwrap() []error { return e.Reasons }

// Hint names the way out.
func (e *UnavailableError) Hint() string {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return "/dev/fuse is missing: modprobe fuse; in a container, hand the device in (--device /dev/fuse)"
	}
	if unix.Access("/dev/fuse", unix.R_OK|unix.W_OK) != nil {
		return "this user may not open /dev/fuse: chmod 666 /dev/fuse, as distributions do"
	}
	if os.Geteuid() != 0 {
		return "an ordinary user needs fusermount3: install the package fuse3"
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

// New mounts an image, with the best backend that works and the wish allows. The
// error is an [UnavailableError], or the image's own.
func New(ctx context.Context, img Image, o Options) (*Mount, error) {
	type attempt struct {
		backend Backend
		mount   func(context.Context, Image) error
	}
	m := &Mount{o: o}
	var list []attempt
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
				list = append(list, attempt{File, m.mountFile})
			case o.NoFile != "":
				reasons = append(reasons, fmt.Errorf("file: %s", o.NoFile))
			}
			list = append(list, attempt{EROFS, m.mountErofs})
		}
	}
	if o.Backend != EROFS {
		list = append(list, attempt{FUSE, m.mountTree})
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
	}
	return nil, &UnavailableError{reasons}
}

// Resume goes on with a mount of a process that has died. The options are those of
// the mount, and backend is what it had. f and state are what Keep was told last;
// f is the mount's from now on. A mount of the backend File needs neither.
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
	// The process that died may have been about to end Options.Profiled.
	if m.bdi != "" {
		writeReadAhead(m.bdi, m.readAheadErofs())
	}
	return m, nil
}

// Path is where the tree is seen.
func (m *Mount) Path() string {
	if m.o.At != "" {
		return m.o.At
	}
	return treePath(m.o.Dir)
}

// ImagePath is the file that this process shows for EROFS to be mounted from, "" for
// the other backends.
func (m *Mount) ImagePath() string {
	if m.backend != EROFS {
		return ""
	}
	return filepath.Join(imagePath(m.o.Dir), fuse.ImageName)
}

// Backend is the one in use.
func (m *Mount) Backend() Backend { return m.backend }

// Reason says why it is not a better one; "" where it is the best.
func (m *Mount) Reason() string { return m.reason }

// BDI is where the kernel keeps the settings of an EROFS, for who goes on with the
// mount; "" where that isn't known, or it is none.
func (m *Mount) BDI() string { return m.bdi }

// File is the descriptor that Keep was told of, nil for the backend File.
func (m *Mount) File() *os.File {
	if m.server == nil {
		return nil
	}
	return m.server.File()
}

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

// readAheadErofs is that of an EROFS on an image of ours.
func (m *Mount) readAheadErofs() int {
	if m.o.Profiled && !m.o.Record {
		return readAheadGuided
	}
	return m.readAhead()
}

// ReadFar ends Options.Profiled: files that are opened from now on are read ahead
// as usual. The kernel goes on with those that are open as before.
func (m *Mount) ReadFar() {
	if m.o.Record || !m.o.Profiled {
		return
	}
	bdi := m.bdi
	if m.backend == FUSE {
		// Nothing is asked of this process, which serves the answer.
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
	return fuse.Options{Name: m.o.Name, ReadAhead: m.readAhead(), Log: m.o.Log}
}

// mountFile has EROFS read the cached file.
func (m *Mount) mountFile(context.Context, Image) error {
	return m.erofs(m.o.File, "")
}

// mountErofs has EROFS read a file that this process serves.
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
	// What mount(2) will read is fetched first: it is made one at a time.
	if err := fuse.Check(ctx, img); err != nil {
		return errors.Join(err, s.Close())
	}
	if err := m.erofsOnFUSE(filepath.Join(dir, fuse.ImageName)); err != nil {
		return errors.Join(err, s.Close())
	}
	m.server = s
	return nil
}

// erofsOnFUSE mounts the image file that this process serves. With directio
// (Linux 6.15) EROFS reads past the page cache of that file, in which every byte
// would be a second time. It doesn't where touches are recorded: requests of
// EROFS itself are larger than what was asked for.
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

// mounting is held while an EROFS is mounted, whose settings the kernel keeps where only
// their appearance tells: the mounts of a process are told apart.
var mounting sync.Mutex

// erofs mounts the image file at source.
func (m *Mount) erofs(source, options string) error {
	path := treePath(m.o.Dir)
	if err := makeMountPoint(path); err != nil {
		return err
	}
	// Trees come from elsewhere: their set-user-ID files and device nodes are shown
	// and have no effect.
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

// mountTree has this process serve the tree itself.
func (m *Mount) mountTree(_ context.Context, img Image) error {
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

// erofsDevices lists where the kernel keeps the settings of EROFS mounts that are
// on files. Their names are numbers that it counts up and tells nowhere.
func erofsDevices() []string {
	list, _ := filepath.Glob("/sys/class/bdi/erofs-*") // the pattern is right
	return list
}

// writeReadAhead sets how far the kernel reads ahead. Should somebody have mounted
// another EROFS at the same moment as this one, it reads ahead as far; where nothing
// can be set, reading is slower: neither is an error.
func writeReadAhead(bdi string, kib int) {
	_ = os.WriteFile(bdi+"/read_ahead_kb", []byte(strconv.Itoa(kib)), 0)
}

// Close unmounts. Without lazy it gives EBUSY where somebody uses the mount, and
// the mount goes on; with lazy it goes from sight, and is served until nobody uses
// it any more: [Mount.Wait] tells when. A mount at Options.At is always unmounted
// as with lazy: fusermount3 knows no other way that is safe to wait for.
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
		// What serves the image goes last: unmounting may read. EROFS that was
		// detached, and is in use, holds it.
		if err := m.unmount(imagePath(m.o.Dir), unix.MNT_DETACH); err != nil {
			return err
		}
		if err := m.server.Close(); err != nil {
			return err
		}
	}
	return Remove(m.o.Dir)
}

// unmount takes away what is mounted at path; that nothing is is no error.
func (m *Mount) unmount(path string, flags int) error {
	err := m.o.Kernel.Unmount(path, flags|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Wait returns when nobody reads the image through this process any more. The
// error is nil if the mount was unmounted.
func (m *Mount) Wait() error {
	if m.server == nil {
		return nil
	}
	return m.server.Wait()
}

// DetachByHelper takes a mount of an ordinary user's away.
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

// Remove removes a private directory in which nothing is mounted any more.
func Remove(dir string) error {
	var errs []error
	for _, path := range []string{treePath(dir), imagePath(dir), dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
