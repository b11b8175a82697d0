package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/image"
	"premix/internal/kit/mountinfo"
	"premix/internal/kit/owner"
)

// A Bundle is a directory for one container, held by the premix process that made it.
type Bundle struct {
	Dir  string
	ID   string // for the container, and its cgroup's name
	lock *os.File
}

// New makes a bundle in dir, which it makes if necessary. It removes the bundles of
// dead premix processes first.
func New(dir string) (*Bundle, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	b, lock, err := begin(dir)
	if err != nil {
		return nil, err
	}
	return &Bundle{Dir: b, ID: "premix-" + strconv.Itoa(os.Getpid()) + "." + filepath.Base(b), lock: lock}, nil
}

// Close removes the bundle, whose processes must be dead, and the container's cgroup.
func (b *Bundle) Close() error {
	return errors.Join(clear(b.Dir), b.lock.Close())
}

// Join moves the calling thread, or the whole process, into cgroups. leave moves the
// other threads of the process back.
type Join func() (leave func(), err error)

// A Container was made by runc and waits, with its namespaces and mounts, until a
// process is put into it: by runc itself (Exec), or by a process that enters it with
// Enter. Its processes have ids of the caller's PID namespace and are, or become, its
// children.
type Container struct {
	Upper   string   // directory of files that its processes have written in the root
	Cgroups []string // directories of the cgroups that runc made for it
	Init    int      // runc's own process, which holds the namespaces; 0 after Release
	UID     uint32   // of its processes
	GID     uint32

	id, dir, runc string
	process       []byte // for runc exec
}

// Make makes a container named id in the bundle dir. The caller is PID 1 of a PID
// namespace, alone in its mount namespace, and the container ends with it. seed fills
// the root's upper layer, an empty directory; it may be nil. The container is placed in
// the cgroups of join.
//
// The container has no PID namespace of its own: its process would be PID 1 there,
// which ignores signals without a handler, and it could not be a child of the caller.
func Make(dir, id string, r Request, seed func(upper string) error, join Join) (*Container, error) {
	runc, err := runtimePath()
	if err != nil {
		return nil, err
	}
	if a := r.Image.Architecture; a != "" && a != runtime.GOARCH {
		return nil, &image.Error{Kind: image.Unavailable, Reason: fmt.Sprintf("the image is for %s, and this machine is %s", a, runtime.GOARCH), HintText: "premix image add --platform linux/" + runtime.GOARCH + " adds the image for this machine"}
	}
	c := &Container{id: id, dir: dir, runc: runc}
	root := filepath.Join(dir, "root")
	o := &order{Request: r}
	if c.Upper, err = o.mountRoot(dir, root, seed); err != nil {
		return nil, err
	}
	r.sharePID = true
	s, err := r.spec(root, c.id)
	if err != nil {
		return nil, err
	}
	c.UID, c.GID = s.Process.User.UID, s.Process.User.GID
	if c.process, err = json.Marshal(s.Process); err != nil {
		return nil, err
	}
	if err := writeJSON(filepath.Join(dir, "config.json"), s); err != nil {
		return nil, err
	}
	if err := c.run(join, nil, "create", "--bundle", dir, c.id); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(dir, "runc", c.id, "state.json"))
	if err != nil {
		return nil, err
	}
	var state struct {
		Init  int               `json:"init_process_pid"`
		Paths map[string]string `json:"cgroup_paths"`
	}
	if err := json.Unmarshal(content, &state); err != nil {
		return nil, fmt.Errorf("runc's state: %w", err)
	}
	c.Init = state.Init
	for _, p := range state.Paths {
		c.Cgroups = append(c.Cgroups, p)
	}
	return c, nil
}

// Path returns the path of a file of the container from outside, in the container's own
// mounts: a file opened by it belongs to no other mount namespace.
func (c *Container) Path(file string) string {
	return filepath.Join("/proc", strconv.Itoa(c.Init), "root", file)
}

// Exec executes argv through runc as the container's process, with files as its
// descriptors from 0 on, at least three, and returns its id. The process becomes a
// child of the caller.
func (c *Container) Exec(argv []string, files []*os.File, join Join) (int, error) {
	var p map[string]any
	if err := json.Unmarshal(c.process, &p); err != nil {
		return 0, err
	}
	p["args"] = argv
	process, pidFile := filepath.Join(c.dir, "process.json"), filepath.Join(c.dir, "pid")
	if err := writeJSON(process, p); err != nil {
		return 0, err
	}
	args := []string{"exec", "--detach", "--process", process, "--pid-file", pidFile}
	if n := len(files) - 3; n > 0 {
		args = append(args, "--preserve-fds", strconv.Itoa(n))
	}
	err := c.run(join, files, append(args, c.id)...)
	if err != nil {
		return 0, err
	}
	content, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}

// Release ends runc's own process. The container lasts as long as other processes run
// in it.
func (c *Container) Release() {
	if c.Init > 0 {
		_ = unix.Kill(c.Init, unix.SIGKILL) // an unreaped child: this cannot fail
		c.Init = 0
	}
}

// apart calls f on a separate thread, which ends afterwards, in the cgroups of join.
func apart(join Join, f func() error) error {
	done := make(chan error)
	leave := func() {}
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread must not be reused
		var err error
		if leave, err = join(); err == nil {
			err = f()
		} else {
			leave = func() {}
		}
		done <- err
	}()
	err := <-done
	leave()
	return err
}

// run runs runc. It hides all hierarchies of cgroups (version 1) from runc except
// devices, so that runc makes no cgroups in the others: there the container stays in
// the cgroups of join, which the caller measures and limits as a whole. It also saves
// the milliseconds that the kernel takes for each hierarchy that runc joins.
func (c *Container) run(join Join, files []*os.File, args ...string) error {
	cmd := exec.Command(c.runc, append([]string{"--root", filepath.Join(c.dir, "runc"), "--log", filepath.Join(c.dir, "log"), "--log-format", "json"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.Env = owner.Environ()
	var stderr *os.File
	if files == nil {
		// A file: a pipe would not end, since the container's process keeps it open.
		var err error
		if stderr, err = os.CreateTemp(c.dir, "said-"); err != nil {
			return err
		}
		defer stderr.Close()
		cmd.Stderr = stderr
	} else {
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = files[0], files[1], files[2], files[3:]
	}
	err := apart(join, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := hideCgroups(); err != nil {
			return err
		}
		return cmd.Run()
	})
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &image.Error{Kind: image.Unavailable, Reason: "runc " + args[0] + ": " + c.logged(exit), HintText: "`premix exec` of the same image shows whether runc works on this machine", Err: err}
	}
	return err
}

// logged returns the last message in runc's log.
func (c *Container) logged(exit error) string {
	content, err := os.ReadFile(filepath.Join(c.dir, "log"))
	if err != nil {
		return exit.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	for i := len(lines) - 1; i >= 0; i-- {
		var l struct{ Level, Msg string }
		if json.Unmarshal(lines[i], &l) == nil && l.Level == "error" {
			return l.Msg
		}
	}
	return exit.Error()
}

// hideCgroups unmounts the hierarchies that runc must not see.
func hideCgroups() error {
	mounts, err := mountinfo.Read()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Type != "cgroup" || slices.Contains(m.Options, "devices") {
			continue
		}
		err := unix.Unmount(m.Path, unix.MNT_DETACH)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", m.Path, err)
		}
	}
	return nil
}
