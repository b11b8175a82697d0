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

	"premix/image"
	"premix/internal/mountinfo"
	"premix/internal/owner"
)

// A Bundle is a directory for one container, kept by the premix that made it.
type Bundle struct {
	Dir  string
	ID   string // for the container, and its cgroup's name
	lock *os.File
}

// New makes a bundle in dir, which is made if it is missing, after it has cleared
// away those of premix that were killed.
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

// Close removes the bundle, whose processes are dead, and the container's cgroup.
func (b *Bundle) Close() error {
	return errors.Join(clear(b.Dir), b.lock.Close())
}

// Join moves the calling thread, or all of the process, into cgroups. leave brings
// back whatever else of the process has been moved.
type Join func() (leave func(), err error)

// A Container is one that runc has made and that waits, with its namespaces and
// mounts, for somebody to put a process into it: runc itself (Exec), or whoever
// goes there with Enter. Its processes have the ids of the caller's PID namespace
// and are its children, or become so.
type Container struct {
	Upper   string   // directory of what its processes have written in the root
	Cgroups []string // directories of what runc has made for it
	Init    int      // runc's own process, which holds the namespaces; 0 after Release
	UID     uint32   // of its processes
	GID     uint32

	id, dir, runc string
	process       []byte // for runc exec
}

// Make makes a container in the bundle dir, and calls it id. The caller is PID 1 of a PID namespace,
// alone in its mount namespace, and its end ends the container. seed is what the
// root's upper layer begins with, as a call that fills an empty directory; nil is
// nothing. The container is where join leads.
//
// The container has no PID namespace of its own: processes would be as PID 1 in it,
// to which signals do not come that it has no handler for, and their parent could
// not be the caller.
func Make(dir, id string, r Request, seed func(upper string) error, join Join) (*Container, error) {
	runc, err := runtimePath()
	if err != nil {
		return nil, err
	}
	if a := r.Image.Architecture; a != "" && a != runtime.GOARCH {
		return nil, &image.Error{Kind: image.Unavailable, Reason: fmt.Sprintf("the image is one for %s, and this machine is %s", a, runtime.GOARCH), Way: "premix image add --platform linux/" + runtime.GOARCH + " adds the one for it"}
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

// Path is where a file of the container is seen from outside, in the container's
// own mounts: what is opened there belongs to no other mount namespace.
func (c *Container) Path(file string) string {
	return filepath.Join("/proc", strconv.Itoa(c.Init), "root", file)
}

// Exec executes argv by runc, as the container's process and with files as its
// descriptors from 0 on, at least three, and returns its id. It becomes a child of
// the caller.
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

// Release ends runc's own process. The container lasts as long as other processes
// are in it.
func (c *Container) Release() {
	if c.Init > 0 {
		_ = unix.Kill(c.Init, unix.SIGKILL) // our child, not yet reaped: there is no other error
		c.Init = 0
	}
}

// apart calls f on a thread of its own, which ends with it, in the cgroups of join.
func apart(join Join, f func() error) error {
	done := make(chan error)
	leave := func() {}
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is of no use to others
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

// run runs runc. It sees no hierarchy of cgroups (version 1) but that of devices,
// and so makes none in the others: there the container is where join has led, and
// what the caller measures and limits is the whole of it. For each hierarchy that
// runc joins, the kernel waits some milliseconds, too.
func (c *Container) run(join Join, files []*os.File, args ...string) error {
	cmd := exec.Command(c.runc, append([]string{"--root", filepath.Join(c.dir, "runc"), "--log", filepath.Join(c.dir, "log"), "--log-format", "json"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.Env = owner.Environ()
	var said *os.File
	if files == nil {
		// A file: the container's process keeps it open, and a pipe would not end.
		var err error
		if said, err = os.CreateTemp(c.dir, "said-"); err != nil {
			return err
		}
		defer said.Close()
		cmd.Stderr = said
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
		return &image.Error{Kind: image.Unavailable, Reason: "runc " + args[0] + ": " + c.logged(exit), Way: "`premix exec` of the same image tells whether runc works here at all", Err: err}
	}
	return err
}

// logged is the last thing that runc has written to its log.
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

// hideCgroups unmounts what runc is not to see.
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
