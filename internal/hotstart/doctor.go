package hotstart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/procstate"
	"premix/internal/hotstart/tracer"
	"premix/internal/image"
	"premix/internal/image/bundle"
	"premix/internal/kit/units"
)

// Check is one thing that this machine can or cannot do.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"` // what to do where it is not OK
}

// Doctor checks which kinds of start are possible on this machine for this user, and
// why the others are not. It changes nothing.
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
	supported := tracer.Supported()
	add("system", supported == nil,
		fmt.Sprintf("%s/%s, kernel %s", runtime.GOOS, runtime.GOARCH, release),
		"hot starts need Linux on x86-64; elsewhere every start is cold")
	add("user", true, whoAmI(), "")

	ptrace := checkPtrace(supported, canTrace)
	checks = append(checks, ptrace)
	add("hot start", supported == nil && ptrace.OK, detail(supported, "needs ptrace and seccomp, but no privileges"), "see the lines above")
	h := probeHost()
	add("namespaces", true, isolation(h), "")
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

// checkPtrace checks whether this machine permits tracing. Where hot starts are not supported
// premix does not trace, and no setting is to be changed.
func checkPtrace(supported error, try func() (hint string, err error)) Check {
	const name = "ptrace"
	if supported != nil {
		return Check{Name: name, OK: true, Detail: "not used on this processor"}
	}
	hint, err := try()
	if err != nil {
		return Check{name, false, err.Error(), hint}
	}
	return Check{Name: name, OK: true, Detail: "a process may trace its own children"}
}

// howToContain returns the hint for a machine without containers.
func howToContain(err error) string {
	var known *image.Error
	if errors.As(err, &known) {
		return known.HintText
	}
	return "install runc: sudo apt-get install -y --no-install-recommends runc"
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
	return fmt.Sprintf("uid %d", os.Geteuid())
}

// tracingHint is the hint for a machine that forbids tracing.
const tracingHint = "allow it: sysctl kernel.yama.ptrace_scope=1, or --cap-add SYS_PTRACE for a container"

// isolation describes how tasks are isolated on this machine.
func isolation(h host) string {
	switch {
	case h.namespaces:
		return "each task has mounts of its own, and sees its directory at " + FixedDir
	case os.Geteuid() == 0:
		return "tasks share the machine's mounts: mount namespaces need CAP_SYS_ADMIN and a root directory that is a mount point"
	}
	return "tasks share the machine's mounts: mount namespaces need root"
}

// canTrace holds a child at its first instruction and gives it a filter, as a hot start
// does. An error comes with a hint.
func canTrace() (hint string, err error) {
	const self = "/proc/self/exe"
	if _, err := os.Stat(self); err != nil {
		return "mount it: mount -t proc proc /proc", errors.New("/proc is not mounted")
	}
	if err := procstate.CanFixAddresses(); err != nil {
		return (*procstate.AddressError)(nil).Hint(), err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return "the root directory needs /dev/null", err
	}
	defer null.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, _, err := tracer.Spawn(self, []string{"premix"}, &os.ProcAttr{Files: []*os.File{null, null, null},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}})
	if err != nil {
		return tracingHint, fmt.Errorf("ptrace: %w", err)
	}
	defer func() {
		p.Kill()
		unix.Wait4(p.Pid, nil, unix.WALL, nil)
	}()
	if err := tracer.NewWatch().Install(p); err != nil {
		return "allow it: seccomp(2) must be permitted", fmt.Errorf("seccomp: %w", err)
	}
	return "", nil
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
	return fmt.Sprintf("%s, %s free", store, units.Size(int64(fs.Bavail)*fs.Bsize)), nil
}
