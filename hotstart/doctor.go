package hotstart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/hotstart/criu"
	"premix/image"
	"premix/image/bundle"
)

// Check is one thing that this machine can or cannot do.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"` // what to do where it is not OK
}

// Doctor finds out which kinds of start this machine and user can have, and
// what is in the way of the others. It changes nothing.
func Doctor(ctx context.Context) []Check {
	var checks []Check
	add := func(name string, ok bool, detail, hint string) bool {
		if ok {
			hint = ""
		}
		checks = append(checks, Check{name, ok, detail, hint})
		return ok
	}
	var u unix.Utsname
	unix.Uname(&u)
	release := unix.ByteSliceToString(u.Release[:])
	add("system", runtime.GOOS == "linux" && runtime.GOARCH == "amd64",
		fmt.Sprintf("%s/%s, kernel %s", runtime.GOOS, runtime.GOARCH, release),
		"hot and fork starts need Linux on x86-64; elsewhere every start is cold")
	add("user", true, whoAmI(), "")

	trace := canTrace()
	add("ptrace", trace == nil, detail(trace, "a process may trace its own children"),
		"allow it: sysctl kernel.yama.ptrace_scope=1, or --cap-add SYS_PTRACE for a container")
	lease := canLease()
	add("file leases", lease == nil, detail(lease, "in "+os.TempDir()),
		"use a local file system (ext4, xfs, tmpfs) for the run directory")
	add("fork start", trace == nil && lease == nil, "needs ptrace and file leases, no privileges", "")

	h := probeHost()
	add("namespaces", h.namespaces, "PID and mount namespaces for each task (CAP_SYS_ADMIN)",
		"run premix as root, or "+sudoRule())
	path, err := criu.Find()
	if add("criu", err == nil, detail(err, path), "run `make setup` in premix's source, or install CRIU 4.1 or later") {
		version := criuVersion(ctx, path)
		err := fmt.Errorf("needs CAP_SYS_ADMIN and CAP_CHECKPOINT_RESTORE to find out")
		if h.namespaces {
			err = criu.Check(ctx, path)
		}
		add("criu check", err == nil, detail(err, version+" works with this kernel"),
			"as root: `make setup` builds a CRIU that fits the kernel; as an ordinary user "+sudoRule())
		add("hot start", h.namespaces && err == nil, "needs namespaces and criu", "")
		add("copy start", h.namespaces && err == nil, "needs namespaces and criu", "")
	} else {
		add("hot start", false, "needs namespaces and criu", "")
		add("copy start", false, "needs namespaces and criu", "")
	}
	runc := bundle.Possible()
	add("containers", runc == nil, detail(runc, "runc, for recipes that name an image"), howToContain(runc))
	store, err := DefaultStore()
	detailStore := store
	if err == nil {
		detailStore, err = storeRoom(store)
	}
	add("snapshot store", err == nil, detail(err, detailStore), "set PREMIX_HOME to a directory of your own on a local disk")
	return checks
}

// howToContain is the way out where there are no containers.
func howToContain(err error) string {
	var known *image.Error
	if errors.As(err, &known) && os.Geteuid() == 0 {
		return known.Way
	}
	return "run premix as root or through sudo, and install runc: sudo apt-get install -y --no-install-recommends runc"
}

func detail(err error, ok string) string {
	if err != nil {
		return err.Error()
	}
	return ok
}

func whoAmI() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return fmt.Sprintf("uid %d, an ordinary user: fork and cold starts", os.Geteuid())
}

// sudoRule is what an administrator can grant so that hot and copy starts work
// for somebody who is not root.
func sudoRule() string {
	self, err := os.Executable()
	if err != nil {
		self = "/usr/local/bin/premix"
	}
	return fmt.Sprintf("have the administrator grant it by sudo: `%%premix ALL=(root) NOPASSWD: %s` in sudoers(5)", self)
}

// canTrace tries what a fork start does: attach to a child and stop it.
func canTrace() error {
	cmd := exec.Command("sleep", "10")
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(cmd.Process.Pid), 0, 0, 0, 0)
	if e != 0 {
		return fmt.Errorf("ptrace: %w", e)
	}
	return nil
}

func canLease() error {
	f, err := os.CreateTemp("", "premix-lease-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return fmt.Errorf("lease on a file in %s: %w", os.TempDir(), err)
	}
	return nil
}

func criuVersion(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "criu"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return "criu " + strings.TrimPrefix(line, "Version: ")
}

// storeRoom checks that the store can be written, or made, and says how much
// room there is.
func storeRoom(store string) (string, error) {
	dir := store
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return "", fmt.Errorf("%s cannot be made: %w", store, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, %d GB free", store, int64(fs.Bavail)*fs.Bsize/1e9), nil
}
