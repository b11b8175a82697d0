package hotstart

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/procstate"
	"premix/internal/hotstart/tracer"
	"premix/internal/image"
	"premix/internal/image/bundle"
)

// How a tool runs in a container of an image.
//
// For each task and template the supervisor makes a container with runc. The container has the
// task's directory, its inputs, the data, and its own upper layer over the image's root
// (bundle.Make). For a cold start, runc executes the tool in it. For a hot start, runc
// executes a stub of two system calls, which stops itself, and executes the tool's program
// when the supervisor holds it. A snapshot has only paths in the container, and the container
// of each start is made in the same way, from the same configuration.
//
// The stub lets the supervisor hold the process before the tool's first instruction: premix
// does not trace a process that runc starts. The supervisor and the container have a PID
// namespace, so that the end of the supervisor ends every process in it. The tool is not PID 1
// there: a PID 1 ignores signals for which it has no handler, such as SIGTERM at a
// timeout, and its exit status would be runc's. Both kinds of start have no new
// privileges, since the filter of the guard needs that.

// Image is an OCI image that a tool runs in.
type Image struct {
	Ref     string       // as the recipe names it; part of a snapshot's key
	Digest  string       // of its record; part of the fingerprint
	Image   *image.Image // its configuration
	Root    string       // where its root is mounted
	Bundles string       // directory for containers' bundles; nothing of it lies where tasks are
	bundle.Account
}

// OpenImage describes an image whose root is mounted. digest is the digest of the
// image's record.
func OpenImage(digest string, im *image.Image, root, bundles string) (*Image, error) {
	account, err := bundle.AccountOf(im, root)
	if err != nil {
		return nil, err
	}
	if err := account.Mapped(); err != nil {
		return nil, noContainers(err)
	}
	return &Image{Digest: digest, Image: im, Root: root, Bundles: bundles, Account: account}, nil
}

// NoContainers returns nil if tools can run in containers on this machine, and an
// *Unavailable with the reason if they cannot.
func NoContainers() error {
	if err := bundle.Possible(); err != nil {
		return noContainers(err)
	}
	return nil
}

func noContainers(err error) error {
	u := &Unavailable{Kind: Cold, Reason: "the recipe names an image: " + err.Error()}
	var known *image.Error
	if errors.As(err, &known) {
		u.HintText = known.HintText
	}
	return u
}

// request returns the properties of the containers of this Spec. Only the task's
// directory is missing.
func (spec Spec) request() bundle.Request {
	r := bundle.Request{
		Image: spec.Image.Image, Root: spec.Image.Root, Env: spec.Env,
		Workdir: FixedDir, Network: bundle.NetworkHost, NoNewPrivileges: true,
	}
	for _, path := range spec.Data {
		r.Binds = append(r.Binds, bundle.Bind{Source: path, Target: path, ReadOnly: true})
	}
	return r
}

// Find returns an error if the image does not have a program.
func (im *Image) Find(name string, env []string) error {
	_, err := bundle.Find(im.Root, name, env)
	return err
}

// prepareContainer makes the bundle of a container.
func (c *containerConfig) prepareContainer(spec Spec) (*bundle.Bundle, error) {
	b, err := bundle.New(spec.Image.Bundles)
	if err != nil {
		return nil, err
	}
	c.Bundle, c.ID = b.Dir, b.ID
	return b, nil
}

// give makes the image's user the owner of a task's directory and of all files in it.
func (spec Spec) give(dir string) error {
	if spec.Image == nil || os.Geteuid() != 0 { // an ordinary user is the image's user
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(spec.Image.UID), int(spec.Image.GID))
	})
}

// makeContainer makes the supervisor's own container.
func (s *supervisor) makeContainer() error {
	c := s.cfg.Container
	c.Request.Binds = append(c.Request.Binds, bundle.Bind{Source: FixedDir, Target: FixedDir})
	stub := filepath.Join(c.Bundle, tracer.StubName)
	if err := os.WriteFile(stub, tracer.Stub, 0o755); err != nil {
		return err
	}
	c.Request.Binds = append(c.Request.Binds, bundle.Bind{Source: stub, Target: stubPath, ReadOnly: true})
	var err error
	s.container, err = c.make(s.cfg.Task.Cgroups)
	return err
}

func (c *containerConfig) make(cgroups []string) (*bundle.Container, error) {
	var seed func(string) error
	if c.Upper != "" {
		seed = func(upper string) error { return copyUpper(c.Upper, upper) }
	}
	return bundle.Make(c.Bundle, c.ID, c.Request, seed, joiner(cgroups...))
}

// joiner is joinCgroups for package bundle.
func joiner(dirs ...string) bundle.Join {
	return func() (func(), error) {
		leave, err := joinCgroups(dirs)
		return func() { _ = leave() }, err // its supervisor has one task
	}
}

func (s *supervisor) execInContainer() (int, error) {
	// Opened in the container's own mounts: the paths of a frozen process are those
	// of its container.
	files, err := openStreams(s.container.Path(os.DevNull), s.container.Path(FixedDir))
	defer closeAll(files)
	if err != nil {
		return 0, err
	}
	if s.cfg.Role != roleLoad && !s.cfg.Watch {
		return s.container.Exec(s.cfg.Argv, files, joiner(s.cfg.Task.Cgroups...))
	}
	exe := s.cfg.Exe
	if exe == "" {
		if exe, err = bundle.Find(s.container.Path("/"), s.cfg.Argv[0], s.cfg.Env); err != nil {
			return 0, err
		}
	}
	join := joiner(s.cfg.Task.Cgroups...)
	pid, err := s.container.Exec(append([]string{stubPath, exe}, s.cfg.Argv...), files, func() (func(), error) {
		if s.cfg.Role == roleLoad {
			_, _, _ = procstate.FixAddresses() // the thread that starts runc ends with it
		}
		return join()
	})
	if err != nil {
		return 0, err
	}
	p, err := tracer.Enter(pid)
	if err != nil {
		return pid, err
	}
	return pid, s.begin(p)
}

// releaseContainer ends runc's own process once the tool is in its container.
func (s *supervisor) releaseContainer() {
	if s.container != nil {
		s.container.Release()
	}
}

// stubPath is where a container has the stub.
const stubPath = "/run/premix/" + tracer.StubName

// spawnInContainer makes runc execute the program of a frozen process, and holds it
// at its first instruction.
func (s *supervisor) spawnInContainer(im *frozen.Image, pages *os.File) (*tracer.Proc, error) {
	null, err := os.OpenFile(s.container.Path(os.DevNull), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	pid, err := s.container.Exec(append([]string{stubPath, im.Exe}, im.Argv...), []*os.File{null, null, null, pages}, joiner(s.cfg.Task.Cgroups...))
	if err != nil {
		return nil, err
	}
	return tracer.Enter(pid)
}

// give makes the image's user the owner of a file of the task's directory.
func (s *supervisor) give(path string) error {
	if s.container == nil {
		return nil
	}
	return os.Lchown(path, int(s.container.UID), int(s.container.GID))
}

// sharedDir is the only directory of a container, besides the task's and the root,
// in which a tool could leave files.
const sharedDir = "/dev/shm"

// checkShared sees whether a template has left files in sharedDir: they would be
// missing where it is restored.
func (s *supervisor) checkShared() error {
	if s.container == nil {
		return nil
	}
	entries, err := os.ReadDir(s.container.Path(sharedDir))
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("the tool keeps files in %s (%s)", sharedDir, entries[0].Name())
	}
	return nil
}

// upperName is the directory of a snapshot with the files that the tool had written to
// the root of its container.
const upperName = "upper"

// showFixedDir makes FixedDir in this mount namespace, for a user who may not make it in the
// machine's. It replaces /run by a directory in memory, in which the entries are bind mounts.
// scratch is an empty directory.
func showFixedDir(scratch string) error {
	if err := unix.Mount("premix", scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	const run, parent = "/run", "/run/premix" // of FixedDir
	inside := filepath.Join(scratch, "premix")
	if err := errors.Join(bindEntries(run, scratch, parent), os.Mkdir(inside, 0o755), bindEntries(parent, inside, FixedDir), os.Mkdir(filepath.Join(inside, filepath.Base(FixedDir)), 0o755)); err != nil {
		return err
	}
	if err := unix.Mount(scratch, run, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return &os.PathError{Op: "bind", Path: run, Err: err}
	}
	return nil
}

// bindEntries binds the entries of a directory, if it exists, into another one, but for one path.
func bindEntries(from, to, but string) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if src == but {
			continue
		}
		if e.Type() == fs.ModeSymlink {
			target, err := os.Readlink(src)
			if err == nil {
				err = os.Symlink(target, dst)
			}
			if err != nil {
				return err
			}
			continue
		}
		if e.IsDir() {
			err = os.Mkdir(dst, 0o755)
		} else {
			err = os.WriteFile(dst, nil, 0o600)
		}
		if err != nil {
			return err
		}
		if err := unix.Mount(src, dst, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return &os.PathError{Op: "bind", Path: src, Err: err}
		}
	}
	return nil
}

// copyUpper copies the upper layer of an overlay: owners, attributes and whiteouts
// included (docs.kernel.org/filesystems/overlayfs.html).
func copyUpper(from, to string) error {
	return filepath.WalkDir(from, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		dst := filepath.Join(to, rel)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			err = os.Mkdir(dst, 0o700)
			if rel == "." && errors.Is(err, fs.ErrExist) {
				err = nil
			}
		case unix.S_IFREG:
			err = copyFile(path, dst, 0o600)
		case unix.S_IFLNK:
			var target string
			if target, err = os.Readlink(path); err == nil {
				err = os.Symlink(target, dst)
			}
		case unix.S_IFCHR, unix.S_IFBLK, unix.S_IFIFO:
			err = unix.Mknod(dst, st.Mode, int(st.Rdev))
		case unix.S_IFSOCK:
			return nil // a restored socket has no listener
		}
		if err != nil {
			return err
		}
		return copyMeta(path, dst, &st)
	})
}

// copyMeta gives dst the owner, attributes, permissions and times of a file.
func copyMeta(path, dst string, st *unix.Stat_t) error {
	if err := os.Lchown(dst, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	names := make([]byte, 64<<10) // the kernel's limit of a list (xattr(7))
	n, err := unix.Llistxattr(path, names)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return &os.PathError{Op: "listxattr", Path: path, Err: err}
	}
	for name := range strings.SplitSeq(string(names[:max(n, 0)]), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 64<<10) // and of a value
		n, err := unix.Lgetxattr(path, name, value)
		if err == nil {
			err = unix.Lsetxattr(dst, name, value[:n], 0)
		}
		if err != nil {
			return &os.PathError{Op: "copy attribute " + name + " of", Path: path, Err: err}
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(dst, st.Mode&0o7777); err != nil {
			return &os.PathError{Op: "chmod", Path: dst, Err: err}
		}
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, dst, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "set times of", Path: dst, Err: err}
	}
	return nil
}
