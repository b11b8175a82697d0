package hotstart

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// cgroupsHere makes a cgroup in each of several hierarchies of version 1 or 2.
func cgroupsHere(t *testing.T) []string {
	t.Helper()
	var dirs []string
	for _, mount := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(mount, processFile)); err != nil {
			continue // not a hierarchy
		}
		dir := filepath.Join(mount, fmt.Sprintf("premix-test-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("no permission to make cgroups: %v", err)
		}
		t.Cleanup(func() {
			eventually(t, dir+" can be removed", func() bool { return os.Remove(dir) == nil })
		})
		dirs = append(dirs, dir)
	}
	if len(dirs) == 0 {
		t.Skip("no cgroup hierarchy is mounted at a usual place")
	}
	return dirs
}

// TestCgroups checks that a task, and no other process of premix, is in its cgroups after each kind
// of start.
func TestCgroups(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			dirs := cgroupsHere(t)
			b := newBench(t, newSpec("-m", "2", "input"), kind)
			b.mustPrepare(probeCommands)
			p, err := b.starter.Start(context.Background(), Task{
				Dir: b.task(), Inputs: map[string]string{"input": b.input("hang\n")}, Cgroups: dirs})
			if err != nil {
				t.Fatal(err)
			}
			for _, dir := range dirs {
				inside := strings.Fields(read(t, filepath.Join(dir, processFile)))
				if len(inside) != 1 {
					t.Errorf("%s holds the processes %v, want one", dir, inside)
					continue
				}
				pid, err := strconv.Atoi(inside[0])
				if err != nil {
					t.Fatal(err)
				}
				if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != tool {
					t.Errorf("%s holds %s, %v; want %s", dir, exe, err, tool)
				}
			}
			if err := p.Signal(unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Wait(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
