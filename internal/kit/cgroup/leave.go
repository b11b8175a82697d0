package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/kit/mountinfo"
	"premix/internal/kit/regex"
)

// services is the cgroup for services where the kernel permits no processes in the parent
// of the tasks' cgroups.
const services = "premix-services"

// ofPremix matches, in a path, the cgroup of a premix process that runs tasks.
var ofPremix = regex.Lazy(`/premix-\d+\.\d+\.\d+(/|$)`)

// Leave moves a process out of all cgroups of tasks, into the cgroup of the outermost
// premix that runs tasks. It does not move other processes.
func Leave(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the kernel has no cgroups, or the process has ended
	}
	if err != nil {
		return err
	}
	mounts, err := mountinfo.Read()
	if err != nil {
		return err
	}
	return leave(pid, string(text), mounts)
}

func leave(pid int, cgroups string, mounts []mountinfo.Mount) error {
	var errs []error
	for line := range strings.Lines(cgroups) {
		// hierarchy-ID:controller-list:cgroup-path
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		at := ofPremix().FindStringIndex(f[2])
		if at == nil {
			continue
		}
		for _, m := range mounts {
			if f[1] == "" && m.Type == "cgroup2" || f[1] != "" && m.Type == "cgroup" && slices.Contains(m.Options, strings.Split(f[1], ",")[0]) {
				errs = append(errs, join(m.Shows(f[2][:at[0]]), pid))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// join moves a process into a cgroup, or into a child of it for services: in version 2 a
// cgroup whose children have controllers may hold no processes (cgroups(7)).
func join(dir string, pid int) error {
	err := write(dir, pid)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	dir = filepath.Join(dir, services)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return write(dir, pid)
}

func write(dir string, pid int) error {
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(pid))
	return errors.Join(err, f.Close())
}
