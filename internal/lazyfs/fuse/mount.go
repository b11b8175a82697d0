package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/store/erofs"
)

const device = "/dev/fuse"

// MountImage shows img as the file "image", mode 0400, in dir, which becomes the root
// of the mount. Resolving dir must not need this process: a relative dir is made
// absolute first.
func MountImage(dir string, img Image, opts Options) (*Server, error) {
	return mount(dir, img, opts, state{Kind: kindImage})
}

// MountTree shows the tree in img at dir. It does not mount an invalid image, or one
// whose beginning cannot be read.
func MountTree(dir string, img Image, opts Options) (*Server, error) {
	ctx, cancel := context.Background(), func() {}
	if d := opts.withDefaults(); d.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, d.Timeout)
	}
	defer cancel()
	if err := Check(ctx, img); err != nil {
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	}
	return mount(dir, img, opts, state{Kind: kindTree})
}

// Check reads the superblock and the root of an image, which mounting reads too. It
// returns an error if the image is not a valid EROFS, or the error of reading it.
func Check(ctx context.Context, img Image) error {
	_, err := erofs.Open(openingReader{ctx, img}, img.Size())
	return err
}

// openingReader reads an image for a caller that mounts it, and returns the cause of an
// error; compare contextReader.
type openingReader struct {
	ctx context.Context
	img Image
}

func (r openingReader) ReadAt(p []byte, off int64) (int, error) { return r.img.ReadAt(r.ctx, p, off) }

func mount(dir string, img Image, opts Options, st state) (*Server, error) {
	fs, err := newFileSystem(st, img, opts)
	if err != nil {
		return nil, err
	}
	st.Size = img.Size()
	return mountAs(dir, opts, st, fs)
}

func mountAs(dir string, opts Options, st state, fs fileSystem) (*Server, error) {
	opts = opts.withDefaults()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, &MountError{"mount", dir, err, ""}
	}
	st.Version, st.Dir = stateVersion, dir
	dev, err := mountDirectly(dir, opts)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) && os.Geteuid() != 0 {
		dev, err = mountByHelper(dir, opts)
		st.Helper = true
	}
	if err != nil {
		return nil, err
	}
	s := newServer(fs, dev, st, opts)
	s.start()
	select {
	case <-s.ready:
	case <-s.finished:
		err := s.err
		if err == nil {
			err = ErrGone
		}
		_ = unmount(dir, st.Helper)
		return nil, &MountError{"mount", dir, err, ""}
	}
	s.setReadAhead()
	return s, nil
}

// mountOptions returns options that both the kernel and fusermount3 know.
func mountOptions(opts Options) []string {
	// The kernel compares modes, owners and ACLs itself.
	return []string{"default_permissions", fmt.Sprintf("max_read=%d", maxRead)}
}

// mountDirectly mounts as root, or as root of a user namespace.
func mountDirectly(dir string, opts Options) (*os.File, error) {
	fail := func(err error, way string) (*os.File, error) {
		return nil, &MountError{"mount", dir, err, way}
	}
	var root unix.Stat_t
	if err := unix.Stat(dir, &root); err != nil {
		return fail(err, "")
	}
	if root.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fail(unix.ENOTDIR, "")
	}
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(&os.PathError{Op: "open", Path: device, Err: err}, "load the kernel module, if it is missing: sudo modprobe fuse")
	}
	options := append(mountOptions(opts), fmt.Sprintf("fd=%d", fd), fmt.Sprintf("rootmode=%o", root.Mode&unix.S_IFMT),
		fmt.Sprintf("user_id=%d", os.Geteuid()), fmt.Sprintf("group_id=%d", os.Getegid()))
	if !opts.Private {
		options = append(options, "allow_other")
	}
	flags := uintptr(unix.MS_RDONLY)
	if !opts.Suid {
		flags |= unix.MS_NOSUID
	}
	if !opts.Dev {
		flags |= unix.MS_NODEV
	}
	if err := unix.Mount(opts.Name, dir, "fuse.premix", flags, strings.Join(options, ",")); err != nil {
		_ = unix.Close(fd)
		return fail(err, "")
	}
	return os.NewFile(uintptr(fd), device), nil
}

// mountByHelper mounts for an unprivileged user by means of fusermount3, which is
// set-user-ID root. fusermount3 sends the open device over the socket whose number is
// in _FUSE_COMMFD (fusermount3(1)).
func mountByHelper(dir string, opts Options) (*os.File, error) {
	fail := func(err error, way string) (*os.File, error) {
		return nil, &MountError{"mount", dir, err, way}
	}
	program, err := exec.LookPath("fusermount3")
	if err != nil {
		return fail(ErrNoHelper, "install the package fuse3, or mount as root")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(os.NewSyscallError("socketpair", err), "")
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	defer ours.Close()
	options := append(mountOptions(opts), "ro", "nosuid", "nodev", "subtype=premix", "fsname="+strings.ReplaceAll(opts.Name, ",", "_"))
	cmd := exec.Command(program, "-o", strings.Join(options, ","), "--", dir)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = []*os.File{theirs}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = cmd.Run()
	_ = theirs.Close()
	if err != nil {
		way := ""
		if unix.Access(device, unix.R_OK|unix.W_OK) != nil {
			way = "this user may not open " + device + "; run sudo chmod 666 " + device
		}
		return fail(helperError(err, stderr.String()), way)
	}
	space := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), space, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return fail(os.NewSyscallError("recvmsg", err), "")
	}
	messages, err := unix.ParseSocketControlMessage(space[:n])
	if err != nil || len(messages) != 1 {
		return fail(errors.New("fusermount3 sent no descriptor"), "")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return fail(errors.New("fusermount3 sent no descriptor"), "")
	}
	return os.NewFile(uintptr(fds[0]), device), nil
}

// helperError returns the output of fusermount3 on one line, or else its exit status.
func helperError(err error, stderr string) error {
	if stderr = strings.TrimSpace(stderr); stderr != "" {
		return errors.New(strings.ReplaceAll(stderr, "\n", "; "))
	}
	return fmt.Errorf("fusermount3: %w", err)
}

// Close unmounts. If the mount is in use, by an open file or by a copy of it in another
// mount namespace, it disappears from this namespace at once, and is served until its
// last use ends; Wait waits for that. It is not an error if the mount does not exist
// any more.
func (s *Server) Close() error {
	select {
	case <-s.finished:
		return nil
	default:
	}
	if err := unmount(s.state.Dir, s.state.Helper); err != nil {
		return err
	}
	// If the mount was unused, the readers are about to see that it is gone.
	select {
	case <-s.finished:
	case <-time.After(closeGrace):
	}
	return nil
}

const closeGrace = time.Second

// unmount unmounts, lazily if the mount is in use.
func unmount(dir string, helper bool) error {
	if helper {
		return unmountByHelper(dir)
	}
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if err == unix.EBUSY {
		err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	switch err {
	case nil, unix.EINVAL, unix.ENOENT: // the latter two: not a mount point, or not a directory
		return nil
	}
	return &MountError{"unmount", dir, err, ""}
}

func unmountByHelper(dir string) error {
	program, err := exec.LookPath("fusermount3")
	if err != nil {
		return &MountError{"unmount", dir, ErrNoHelper, "install the package fuse3"}
	}
	var stderr bytes.Buffer
	cmd := exec.Command(program, "-u", "-z", "-q", "--", dir)
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return &MountError{"unmount", dir, helperError(err, stderr.String()), ""}
	}
	return nil
}

// setReadAhead sets the kernel's readahead. INIT can only reduce it below the 128 KiB
// of every FUSE mount. Without root it stays at these.
func (s *Server) setReadAhead() {
	// The kernel knows the device's number, so that this does not request anything from
	// this process, which would wait for itself and could not be killed.
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, s.state.Dir, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO, &st)
	if err == nil {
		name := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", st.Dev_major, st.Dev_minor)
		err = os.WriteFile(name, fmt.Appendln(nil, s.opts.ReadAhead), 0)
	}
	if err != nil && os.Geteuid() == 0 {
		s.log("readahead of %s: %v", s.state.Dir, err)
	}
}
