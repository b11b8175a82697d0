package hotstart

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"premix/hotstart/criu"
	"premix/hotstart/tracer"
	"premix/image/bundle"
)

// moving are the capabilities by which a template's child goes into another
// container: to join its namespaces, and to give these back.
var moving = []int{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SYS_PTRACE, unix.CAP_SETPCAP}

// movable makes, in the stage's own mounts, of the images that it restores such
// with the capabilities for moving, and returns their directory.
func (s *stage) movable() (string, error) {
	images, changed := filepath.Join(logDir, "images"), filepath.Join(logDir, "movable")
	for _, dir := range []string{images, changed} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return "", err
		}
	}
	if err := unix.Mount(s.cfg.Images, images, "", unix.MS_BIND, ""); err != nil {
		return "", &os.PathError{Op: "bind", Path: s.cfg.Images, Err: err}
	}
	var more uint64
	for _, c := range moving {
		more |= 1 << c
	}
	names, was, err := criu.Empower(s.cfg.Images, changed, more)
	if err != nil {
		return "", err
	}
	s.rights = was
	for _, name := range names {
		if err := unix.Mount(filepath.Join(changed, name), filepath.Join(images, name), "", unix.MS_BIND, ""); err != nil {
			return "", &os.PathError{Op: "bind", Path: name, Err: err}
		}
	}
	return images, nil
}

// makeFor makes the container of a task that is forked.
func (c *containerConfig) makeFor(t Task, inputs []string) (*bundle.Container, error) {
	c.Request.Binds = append(c.Request.Binds, bundle.Bind{Source: t.Dir, Target: FixedDir})
	for _, name := range inputs {
		if real := t.Inputs[name]; real != "" {
			c.Request.Binds = append(c.Request.Binds, bundle.Bind{Source: real, Target: filepath.Join(FixedDir, name)})
		}
	}
	return c.make(t.Cgroups)
}

// move puts a forked child, still held, into the task's container, with the rights
// of a process there and a session of its own.
func (s *stage) move(child *tracer.Proc, to *bundle.Container, r request, fds []descriptor) error {
	for _, dir := range slices.Concat(r.Task.Cgroups, to.Cgroups) {
		name := threadFile(dir) // of the one thread
		if name == "" {
			name = processFile
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strconv.Itoa(child.Pid)), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	if err := child.SuspendSeccomp(); err != nil {
		return err
	}
	in := newInjector(child)
	in.call("setsid", unix.SYS_SETSID)
	pidfd := in.call("pidfd_open", unix.SYS_PIDFD_OPEN, uint64(to.Init), 0)
	namespaces := uint64(unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP | unix.CLONE_NEWNS)
	in.call("enter the container", unix.SYS_SETNS, pidfd, namespaces)
	in.call("close", unix.SYS_CLOSE, pidfd)
	in.call("chdir", unix.SYS_CHDIR, in.str(FixedDir))
	s.reopenAll(in, fds)
	for _, c := range moving {
		if s.rights.Bounding&(1<<c) == 0 {
			in.call("give up a capability", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uint64(c))
		}
	}
	in.call("capset", unix.SYS_CAPSET, in.bytes(capHeader()), in.bytes(capData(s.rights)))
	in.call("prctl", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uint64(unix.SIGKILL))
	return in.done()
}

// capHeader and capData are the arguments of capset(2) for the calling thread.
func capHeader() []byte {
	b := make([]byte, 8) // with a process id of 0
	binary.NativeEndian.PutUint32(b, unix.LINUX_CAPABILITY_VERSION_3)
	return b
}

func capData(c criu.Capabilities) []byte {
	var b []byte
	for shift := 0; shift < 64; shift += 32 {
		for _, set := range []uint64{c.Effective, c.Permitted, c.Inheritable} {
			b = binary.NativeEndian.AppendUint32(b, uint32(set>>shift))
		}
	}
	return b
}
