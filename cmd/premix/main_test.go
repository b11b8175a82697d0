package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"premix/internal/hotstart"
	"premix/internal/kit/exit"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// binary is the path of a premix that is built once for all tests.
var binary string

// buildFlags holds additional flags of go build for binary.
var buildFlags []string

func TestMain(m *testing.M) {
	os.Exit(withBinary(m))
}

func withBinary(m *testing.M) int {
	// A test in a separate process uses the binary that its parent built.
	if binary = os.Getenv("PREMIX_TEST_BINARY"); binary != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "premix-cmd-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// Tests that run as another user execute it too.
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// All files of these tests are below dir, where leftovers looks for mounts.
	if err := os.Setenv("TMPDIR", dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	binary = filepath.Join(dir, "premix")
	build := exec.Command("go", append(append([]string{"build"}, buildFlags...), "-ldflags", "-E premix_entry -X main.version=v0.0.0-test", "-o", binary, ".")...)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build premix:", err)
		return 1
	}
	// A shim looks for premix in its own directory.
	build = exec.Command("go", "build", "-ldflags", "-E premix_entry", "-o", filepath.Join(dir, "premix-shim"), "../premix-shim")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build premix-shim:", err)
		return 1
	}
	build = exec.Command("go", "build", "-o", filepath.Join(dir, "premix-demo"), "../premix-demo")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build premix-demo:", err)
		return 1
	}
	code := m.Run()
	for _, err := range leftovers() {
		fmt.Fprintln(os.Stderr, "left behind:", err)
		code = 1
	}
	return code
}

// patience is the longest time to wait for an event that must happen. The machine may be slow or
// busy.
const patience = 2 * time.Minute

// comes waits until is returns true and reports whether it did.
func comes(is func() bool) bool {
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// leftovers reports processes, mounts and cgroups that this test's premix has left behind. It gives
// the processes of a killed premix time to end.
func leftovers() []error {
	var errs []error
	comes(func() bool {
		errs = nil
		for _, p := range processes(func(exe, _ string) bool { return exe == binary }) {
			errs = append(errs, fmt.Errorf("process %d of premix", p))
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			errs = append(errs, err)
		}
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, filepath.Dir(binary)) {
				errs = append(errs, fmt.Errorf("mount %s", line))
			}
		}
		if dirs := cgroups(); len(dirs) > 0 {
			for _, dir := range dirs {
				errs = append(errs, fmt.Errorf("cgroup %s", dir))
			}
			_, _ = canStart("cold") // the next premix removes the files that killed ones left behind
		}
		return len(errs) == 0
	})
	return errs
}

// processes returns the processes for which f returns true for their executable and environment.
func processes(f func(exe, environ string) bool) []int {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	found := make(chan int, len(dirs))
	var all sync.WaitGroup
	for _, dir := range dirs {
		all.Go(func() {
			exe, environ := program(dir)
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err == nil && pid != os.Getpid() && f(strings.TrimSuffix(exe, " (deleted)"), environ) {
				found <- pid
			}
		})
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second): // one process of another program hangs in the kernel
	}
	var list []int
	for len(found) > 0 {
		list = append(list, <-found)
	}
	return list
}

// program returns the executable and the environment of a process from its directory in /proc. It
// returns empty strings for processes of other users and for processes that just ended. While a
// process executes a program its environment is empty for a moment: program then reads it again.
func program(dir string) (exe, environ string) {
	for empty := 0; ; time.Sleep(time.Millisecond) {
		exe, _ = os.Readlink(filepath.Join(dir, "exe"))
		environ, err := environment(dir)
		if exe == "" || err != nil || environ != "" {
			return exe, environ
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		// These are fields 50 and 51; f begins with field 3 (proc_pid_stat(5)).
		if err != nil || len(f) < 49 || f[0] == "Z" {
			return exe, ""
		}
		if f[47] == f[48] && f[47] != "0" {
			if empty++; empty == 20 {
				return exe, "" // it was started with an empty environment
			}
		}
	}
}

// environment reads the environment of a process in a single read. If the process executed another
// program between two reads, the second would return nothing.
func environment(dir string) (string, error) {
	f, err := os.Open(filepath.Join(dir, "environ"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	for size := 64 << 10; ; size *= 4 {
		text := make([]byte, size)
		n, err := f.ReadAt(text, 0)
		if n < size {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return string(text[:n]), err
		}
	}
}

// processes always finds a process that executes one program after another.
func TestProcessesThatExecute(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "again")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec \"$0\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script)
	cmd.Env = append(os.Environ(), "AGAIN="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprintf("/proc/%d", cmd.Process.Pid)
	for i := range 2000 {
		if exe, environ := program(own); exe == "" || !strings.Contains(environ, "AGAIN="+dir) {
			t.Errorf("look %d: %q, %d bytes of environment", i, exe, len(environ))
			break
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if exe, environ := program(own); exe != "" || environ != "" {
		t.Errorf("a process that has ended: %q, %q", exe, environ)
	}
}

// parent matches the name of the cgroup of a premix. The first part is the process ID.
var parent = regexp.MustCompile(`^premix-(\d+)\.\d+\.\d+$`)

// cgroups returns the cgroups of premix processes that are dead, wherever the cgroups are. Tests
// that run at the same time kill their own premix too, and the next premix that removes such
// cgroups may start much later.
func cgroups() []string {
	var list []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // it was removed since it was listed
		}
		m := parent.FindStringSubmatch(e.Name())
		if m == nil || !e.IsDir() {
			return nil
		}
		if _, err := os.Stat("/proc/" + m[1]); errors.Is(err, fs.ErrNotExist) {
			list = append(list, path)
		}
		return fs.SkipDir
	})
	if err != nil {
		return []string{err.Error()}
	}
	return list
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", filepath.Dir(binary)+":"+os.Getenv("PATH"))
			env.Setenv("PREMIX_HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("PREMIX_TESTDATA", os.Getenv("PREMIX_TESTDATA"))
			source, err := filepath.Abs("../..")
			if err != nil {
				return err
			}
			env.Setenv("SOURCE", source)
			// Each script has its own directory in memory, which is removed at its end.
			ram, err := os.MkdirTemp("/dev/shm", "premix-test-")
			if err != nil {
				return err
			}
			env.Setenv("PREMIX_BLAST_RAM", filepath.Join(ram, "blast"))
			env.Defer(func() { os.RemoveAll(ram) })
			// A failed script has not stopped the node that it started.
			env.Defer(func() {
				stop := exec.Command(binary, "node", "stop", "--lazy")
				stop.Env = env.Vars
				_ = stop.Run() // there may be no node
			})
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "lines": lines, "sleepless": sleepless, "forge": forge, "cvmfs": cvmfsCommand(), "registry": registryCommand()},
		Condition: func(name string) (bool, error) {
			switch name {
			case "hot":
				return canHot()
			case "trace":
				_, err := hotstart.CanTrace()
				return err == nil, nil
			case "root":
				return os.Geteuid() == 0, nil
			case "runc", "podman", "apptainer":
				_, err := exec.LookPath(name)
				return err == nil, nil
			case "soak":
				return os.Getenv("PREMIX_SOAK") != "", nil
			case "busybox":
				_, err := os.Stat(filepath.Join(os.Getenv("PREMIX_TESTDATA"), "oci/latest/glibc/amd64/rootfs.tar.gz"))
				return os.Getenv("PREMIX_TESTDATA") != "" && err == nil, nil
			case "diamond":
				_, err := exec.LookPath("diamond")
				return err == nil, nil
			case "blast":
				_, err := exec.LookPath("makeblastdb")
				return err == nil, nil
			case "fuse":
				_, err := os.Stat("/dev/fuse")
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
	})
}

// exits runs a command that must end with a given status, as in: exits 2 premix run.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND...")
	}
	err := ts.Exec(args[1], args[2:]...)
	status := 0
	var finished *exec.ExitError
	switch {
	case errors.As(err, &finished):
		status = finished.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(status) != args[0] {
		ts.Fatalf("status %d, want %s\nstderr: %s", status, args[0], ts.ReadFile("stderr"))
	}
}

// lines checks the number of lines of a file.
func lines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: lines NUMBER FILE")
	}
	if n := strings.Count(ts.ReadFile(args[1]), "\n"); strconv.Itoa(n) != args[0] {
		ts.Fatalf("%s has %d lines, want %s:\n%s", args[1], n, args[0], ts.ReadFile(args[1]))
	}
}

// sleepless waits until a file exists.
func sleepless(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: sleepless FILE")
	}
	if !comes(func() bool { _, err := os.Stat(ts.MkAbs(args[0])); return err == nil }) {
		ts.Fatalf("%s did not come", args[0])
	}
}

var canHot = sync.OnceValues(func() (bool, error) { return canStart("hot") })

// canStart tries a kind of start and reports whether it is possible on this machine. It returns an
// error if the try fails for another reason.
func canStart(kind string) (bool, error) {
	dir, err := os.MkdirTemp("", "premix-can-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{
		"r.yaml": "name: cat\ncommand: cat ${r1}\ninputs: [r1]\noutputs: {stdout: '${sample}.txt'}\ntrust: true\n",
		"s.csv":  "sample,r1\na,a.in\n",
		"a.in":   "a\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			return false, err
		}
	}
	out, err := exec.Command(binary, "run", filepath.Join(dir, "r.yaml"), filepath.Join(dir, "s.csv"), "--out", filepath.Join(dir, "out"), "--start", kind, "--store", filepath.Join(dir, "store")).CombinedOutput()
	var finished *exec.ExitError
	if errors.As(err, &finished) && finished.ExitCode() == int(exit.Unavailable) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("a %s start: %w\n%s", kind, err, out)
	}
	return true, nil
}
