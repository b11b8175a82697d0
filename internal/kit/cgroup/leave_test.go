package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/kit/mountinfo"
)

// leave moves a process out of the cgroups of tasks, to the cgroup of the outermost premix.
func TestLeave(t *testing.T) {
	root := t.TempDir()
	mounts := []mountinfo.Mount{
		{Root: "/", Path: root + "/pids", Type: "cgroup", Options: []string{"rw", "pids"}},
		{Root: "/", Path: root + "/cpu", Type: "cgroup", Options: []string{"rw", "cpu", "cpuacct"}},
		{Root: "/", Path: root + "/memory", Type: "cgroup", Options: []string{"rw", "memory"}},
		{Root: "/box", Path: root + "/v2", Type: "cgroup2"},
	}
	for _, dir := range []string{"pids", "cpu/user", "memory/job/premix-x", "v2/me"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, dir, "cgroup.procs"), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	const cgroups = "9:name=systemd:/premix-1.2.3/slot-0\n8:pids:/premix-1.2.3/slot-0\n3:cpu,cpuacct:/user/premix-1.2.3/slot-0/premix-4.5.6/7.1\n" +
		"4:memory:/job/premix-x\n0::/box/me/premix-1.2.3\n"
	if err := leave(77, cgroups, mounts); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"pids": "77", "cpu/user": "77", "memory/job/premix-x": "", "v2/me": "77"} {
		if got, err := os.ReadFile(filepath.Join(root, dir, "cgroup.procs")); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", dir, got, err)
		}
	}
}

// A real process leaves a real cgroup.
func TestLeaveOnThisKernel(t *testing.T) {
	mounts, err := mountinfo.Read()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(mounts, func(m mountinfo.Mount) bool { return m.Type == "cgroup" && slices.Contains(m.Options, "pids") })
	if at < 0 {
		at = slices.IndexFunc(mounts, func(m mountinfo.Mount) bool { return m.Type == "cgroup2" })
	}
	if at < 0 {
		t.Skip("no cgroups are mounted")
	}
	outer := filepath.Join(mounts[at].Path, "cgroup-test-"+strconv.Itoa(os.Getpid()))
	task := filepath.Join(outer, "premix-1.2.3", "slot-0")
	if err := os.MkdirAll(task, 0o755); err != nil {
		t.Skipf("no right to make a cgroup: %v", err)
	}
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for _, dir := range []string{task, filepath.Dir(task), outer} {
			if err := unix.Rmdir(dir); err != nil {
				t.Errorf("%s: %v", dir, err)
			}
		}
	})
	if err := write(task, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to leave
		if err := Leave(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		for dir, want := range map[string]string{task: "", outer: strconv.Itoa(cmd.Process.Pid)} {
			if got, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("%s: %q, %v", dir, got, err)
			}
		}
	}
}
