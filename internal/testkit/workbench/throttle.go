package workbench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Throttle limits the rate, in bytes per second, at which this process and its children
// read from the device of dir, until undo is called. It needs root and the blkio
// controller of cgroup v1.
func Throttle(dir string, rate int64) (undo func() error, err error) {
	const root = "/sys/fs/cgroup/blkio"
	device, err := disk(dir)
	if err != nil {
		return nil, err
	}
	group := filepath.Join(root, "premix-bench")
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("no blkio cgroup: %w", err)
	}
	self := []byte(strconv.Itoa(os.Getpid()))
	before, err := controllerGroup("blkio")
	if err != nil {
		return nil, err
	}
	undo = func() error {
		if err := os.WriteFile(filepath.Join(root, before, "cgroup.procs"), self, 0); err != nil {
			return err
		}
		return os.Remove(group)
	}
	limit := fmt.Sprintf("%s %d", device, rate)
	if err := os.WriteFile(filepath.Join(group, "blkio.throttle.read_bps_device"), []byte(limit), 0); err != nil {
		return nil, errors.Join(err, os.Remove(group))
	}
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), self, 0); err != nil {
		return nil, errors.Join(err, os.Remove(group))
	}
	return undo, nil
}

// controllerGroup returns this process's group of a cgroup v1 controller, relative to
// the controller's root (cgroups(7), /proc/PID/cgroup).
func controllerGroup(controller string) (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && f[1] == controller {
			return f[2], nil
		}
	}
	return "", fmt.Errorf("no cgroup v1 controller %s", controller)
}

// disk returns the device number, MAJOR:MINOR, of the whole disk that holds dir.
func disk(dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	sys := "/sys/dev/block/" + number
	if _, err := os.Stat(sys + "/partition"); err == nil {
		sys += "/.."
	}
	text, err := os.ReadFile(sys + "/dev")
	if err != nil {
		return "", fmt.Errorf("%s is not on a disk of its own: %w", dir, err)
	}
	return strings.TrimSpace(string(text)), nil
}
