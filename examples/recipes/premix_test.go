package recipes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"premix/internal/hotstart"
)

// runLimit is how long one run may take before it counts as hanging.
const runLimit = 10 * time.Minute

// user is a user of premix with their own snapshots and run directories.
type user struct {
	dir  string   // contains home/, the directory of the snapshots, and run directories
	argv []string // a prefix of the command that switches to the user
}

// newUser returns a user with the rights of the test process.
func newUser(t *testing.T) *user {
	t.Helper()
	dir, err := os.MkdirTemp(root, "user-")
	if err != nil {
		t.Fatal(err)
	}
	return &user{dir: dir}
}

// ordinary returns a user without root, capabilities or a home directory, who owns a
// directory and nothing else.
func ordinary(t *testing.T) *user {
	t.Helper()
	u := newUser(t)
	if os.Geteuid() != 0 {
		return u
	}
	const nobody = 65534
	if err := os.Chown(u.dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Fatal(missing("setpriv", err))
	}
	id := fmt.Sprint(nobody)
	u.argv = []string{setpriv, "--reuid", id, "--regid", id, "--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"}
	return u
}

func (u *user) home() string { return filepath.Join(u.dir, "home") }

// environment returns the environment of premix. Tools and their children get only PATH and
// HOME from it, and supervisors only PATH. PATH therefore contains the mark by which
// leftover processes are found.
func (u *user) environment() []string {
	return []string{"PATH=" + os.Getenv("PATH") + ":" + filepath.Join(u.dir, "bin"), "HOME=/nonexistent", "PREMIX_HOME=" + u.home()}
}

type finished struct {
	code           int
	stdout, stderr string
}

func (e finished) String() string {
	return fmt.Sprintf("exit code %d\nstdout:\n%sstderr:\n%s", e.code, e.stdout, e.stderr)
}

// premix runs premix to its end, and then checks that it has left nothing behind.
func (u *user) premix(t *testing.T, args ...string) finished {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runLimit)
	defer cancel()
	argv := append(append(append([]string{}, u.argv...), binary), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	cmd.Dir, cmd.Env = u.dir, u.environment()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("premix %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	for _, what := range u.leftovers(cmd.Process.Pid) {
		t.Errorf("premix %s left behind: %s", strings.Join(args, " "), what)
	}
	return finished{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// leftovers returns the processes, mounts and cgroups that a finished premix has left. It
// gives killed processes time to disappear.
func (u *user) leftovers(pid int) []string {
	var list []string
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if list = u.seen(pid); len(list) == 0 {
			return nil
		}
	}
	return list
}

// seen returns the processes, mounts and cgroups that exist now.
func (u *user) seen(pid int) []string {
	return append(processes(u.dir), append(mounts(), cgroups(pid)...)...)
}

// processes returns the processes with the mark in their environment.
func processes(mark string) []string {
	var list []string
	// The pattern is valid, and Glob has no other error.
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environ, []byte(mark)) {
			continue // a process of another user, or a process that has just ended
		}
		cmdline, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err == nil {
			list = append(list, fmt.Sprintf("process %s: %s", filepath.Base(filepath.Dir(path)), bytes.ReplaceAll(cmdline, []byte{0}, []byte(" "))))
		}
	}
	return list
}

// mounts returns the mounts of tasks that are visible here, although they belong in the
// tasks' own namespace. A node that runs on this machine may have other mounts below
// /run/premix.
func mounts() []string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	var list []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, root) || strings.Contains(line, " "+hotstart.FixedDir) || strings.Contains(line, " /run/premix/log") {
			list = append(list, "mount "+strings.TrimSpace(line))
		}
	}
	return list
}

// cgroups returns the cgroups whose names contain the process id of premix.
func cgroups(pid int) []string {
	var list []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV):
			return nil // another cgroup, which was just removed
		case err != nil:
			return err
		case e.IsDir() && strings.HasPrefix(e.Name(), fmt.Sprintf("premix-%d.", pid)):
			list = append(list, "cgroup "+path)
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		list = append(list, err.Error())
	}
	return list
}

// The search must find leftovers, because otherwise all tests here would pass.
func TestLeftoversAreSeen(t *testing.T) {
	u := newUser(t)
	sleep := exec.Command("sleep", "60")
	sleep.Env = u.environment()
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	found := u.seen(sleep.Process.Pid)
	if err := errors.Join(sleep.Process.Kill(), ignoreKilled(sleep.Wait())); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || !strings.Contains(found[0], "sleep 60") {
		t.Errorf("found %q, want the process", found)
	}
	if found := u.leftovers(sleep.Process.Pid); len(found) > 0 {
		t.Errorf("found %q after its end", found)
	}
}

func ignoreKilled(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// checkPrivate checks that only one user can read the snapshots. Files in work/ of a
// snapshot keep the permissions of the tool, but lie below a private directory.
func checkPrivate(t *testing.T, home string) {
	t.Helper()
	store := filepath.Join(home, "snapshots")
	found := false
	err := filepath.WalkDir(store, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if e.IsDir() {
			want = 0o700
		} else {
			found = true
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
		if e.IsDir() && e.Name() == "work" {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	} else if !found {
		t.Errorf("%s holds nothing", store)
	}
}
