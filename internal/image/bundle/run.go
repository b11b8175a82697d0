package bundle

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"premix/internal/image"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
)

// SupervisorArg is the first argument of a supervisor.
const SupervisorArg = "__exec"

// Networks of a command.
const (
	NetworkHost = "host"
	NetworkNone = "none"
)

// Bind is a directory or file of the host that is mounted for a command.
type Bind struct {
	Source   string // absolute
	Target   string // absolute, in the image
	ReadOnly bool
}

// Request describes a command to run.
type Request struct {
	Image   *image.Image
	Root    string   // mount point of the image's root
	Command []string // none: the command of the image
	Env     []string // NAME=VALUE, besides the image's
	User    string   // "": the image's
	Workdir string   // "": the image's
	Binds   []Bind
	Network string // one of the above
	// Scratch is a directory on a disk for the command's writes in the root; "" means
	// memory.
	Scratch string

	// NoNewPrivileges prevents setuid programs from raising the command's privileges.
	NoNewPrivileges bool

	Terminal bool // set by Run
	sharePID bool // set by Make
}

// order is the content of supervisor.json.
type order struct {
	Request Request
	Runc    string
	ID      string // of the container, and the name of its cgroup
	Scratch string // made for this bundle, "" for a tmpfs
}

// Run runs a command in the foreground and returns its exit status, or 128 and the
// number of the signal that ended it. The command has premix's standard input, output
// and error. Bundles lie in dir, which Run makes if necessary. An error means that the
// command was not started.
func Run(dir string, r Request) (status int, err error) {
	runc, err := runtimePath()
	if err != nil {
		return 0, err
	}
	if a := r.Image.Architecture; a != "" && a != runtime.GOARCH {
		return 0, &image.Error{Kind: image.Unavailable, Reason: fmt.Sprintf("the image is for %s, and this machine is %s", a, runtime.GOARCH), HintText: "premix image add --platform linux/" + runtime.GOARCH + " adds the image for this machine"}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	// Files of earlier bundles name the directories that are removed below.
	if err := owner.Private(dir); err != nil {
		return 0, err
	}
	b, lock, err := begin(dir)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	o := &order{Request: r, Runc: runc, ID: "premix-" + strconv.Itoa(os.Getpid()) + "." + filepath.Base(b)}
	o.Request.Terminal = term.IsTerminal(0) && term.IsTerminal(1)
	if r.Scratch != "" {
		if o.Scratch, err = filepath.Abs(filepath.Join(r.Scratch, o.ID)); err != nil {
			return 0, err
		}
	}
	defer func() { err = errors.Join(err, clear(b)) }()
	if err := writeJSON(filepath.Join(b, "stage.json"), o); err != nil {
		return 0, err
	}
	if o.Scratch != "" {
		// After supervisor.json, from which a later premix learns that it has to be removed.
		if err := os.Mkdir(o.Scratch, 0o700); err != nil {
			return 0, &image.Error{Kind: image.Usage, Reason: err.Error(), HintText: "give an existing directory with --scratch", Err: err}
		}
	}
	return start(b, lock)
}

// Possible returns the reason why a command cannot be run here, before anything is
// mounted.
func Possible() error {
	_, err := runtimePath()
	return err
}

func runtimePath() (string, error) {
	if os.Geteuid() != 0 {
		if err := canBeRoot(); err != nil {
			return "", err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return "", &image.Error{Kind: image.Unavailable, Reason: "runc is not on PATH", HintText: "sudo apt-get install -y --no-install-recommends runc", Err: err}
	}
	return runc, nil
}

// start starts the supervisor and waits for it.
func start(b string, lock *os.File) (int, error) {
	report, reporter, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer report.Close()
	tty := term.IsTerminal(0)
	supervisor := exec.Command("/proc/self/exe", SupervisorArg, b)
	supervisor.Args[0] = os.Args[0]
	supervisor.Stdin, supervisor.Stdout, supervisor.Stderr = os.Stdin, os.Stdout, os.Stderr
	supervisor.ExtraFiles = []*os.File{reporter, lock}
	supervisor.SysProcAttr = Namespaces()
	// Ctrl-C reaches the whole foreground process group, and would be delivered twice. A
	// process outside of the foreground cannot read from a terminal.
	supervisor.SysProcAttr.Setpgid = !tty
	// PR_SET_PDEATHSIG refers to the parent thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	err = supervisor.Start()
	reporter.Close()
	if err != nil {
		return 0, fmt.Errorf("start a supervisor in new namespaces: %w", err)
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case s := <-signals:
				if tty && (s == unix.SIGINT || s == unix.SIGQUIT) {
					continue // from the terminal: the supervisor gets it too
				}
				_ = supervisor.Process.Signal(s) // it may have ended
			case <-done:
				return
			}
		}
	}()
	failure, err := io.ReadAll(report)
	if err != nil {
		return 0, err
	}
	werr := supervisor.Wait()
	if len(failure) > 0 {
		var e image.Error
		if err := json.Unmarshal(failure, &e); err != nil {
			return 0, fmt.Errorf("supervisor: %s", failure)
		}
		return 0, &e
	}
	var exit *exec.ExitError
	if werr != nil && !errors.As(werr, &exit) {
		return 0, werr
	}
	state, ok := supervisor.ProcessState.Sys().(syscall.WaitStatus)
	if ok && state.Signaled() {
		return 128 + int(state.Signal()), nil
	}
	return supervisor.ProcessState.ExitCode(), nil
}

// forwarded lists the signals that premix passes on to a command.
var forwarded = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT, unix.SIGALRM}

func takeLock(b string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(b, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock.Try(f, lock.Exclusive); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// begin makes a bundle and takes its lock. It removes the bundles of dead premix
// processes first. While the directory's own lock is held, a bundle whose lock is free
// is a dead one.
func begin(dir string) (b string, held *os.File, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	defer d.Close()
	if err := lock.Await(context.Background(), d, lock.Exclusive); err != nil {
		return "", nil, err
	}
	list, err := d.ReadDir(-1)
	if err != nil {
		return "", nil, err
	}
	for _, e := range list {
		old := filepath.Join(dir, e.Name())
		if held, err := takeLock(old); err == nil {
			// On failure the next call tries again.
			_ = clear(old)
			held.Close()
		}
	}
	b = filepath.Join(dir, rand.Text())
	if err := os.Mkdir(b, 0o700); err != nil {
		return "", nil, err
	}
	held, err = takeLock(b)
	return b, held, err
}

// clear removes a bundle whose processes are dead.
func clear(b string) error {
	err := errors.Join(clearCgroups(b), clearScratch(b))
	if err != nil {
		return err
	}
	return os.RemoveAll(b)
}

func clearScratch(b string) error {
	content, err := os.ReadFile(filepath.Join(b, "stage.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(content, &o); err != nil || o.Scratch == "" {
		return nil // an unfinished bundle: there is no scratch directory yet
	}
	return os.RemoveAll(o.Scratch)
}

// clearCgroups removes the cgroups in runc's state. If runc has ended normally, it has
// removed both.
func clearCgroups(b string) error {
	states, err := filepath.Glob(filepath.Join(b, "runc", "*", "state.json"))
	if err != nil {
		return err
	}
	for _, file := range states {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var state struct {
			Paths map[string]string `json:"cgroup_paths"`
		}
		if err := json.Unmarshal(content, &state); err != nil {
			continue
		}
		for _, dir := range state.Paths {
			if !strings.HasPrefix(filepath.Base(dir), "premix-") {
				continue
			}
			if err := removeCgroup(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeCgroup removes a cgroup and those below it. The last processes of a killed
// namespace may take a moment to end.
func removeCgroup(dir string) error {
	var err error
	for range 100 {
		subs, globErr := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		if globErr != nil {
			return globErr
		}
		for _, s := range subs {
			_ = os.Remove(filepath.Dir(s))
		}
		if err = os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

func writeJSON(path string, v any) error {
	content, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}
