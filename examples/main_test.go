package examples

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
)

// runLimit is how long one run may take before it counts as hanging.
const runLimit = 15 * time.Minute

// soak selects long runs.
var soak = os.Getenv("PREMIX_SOAK") != ""

// binary is the path of the real premix, which is built once in its own directory.
var binary string

func TestMain(m *testing.M) { os.Exit(withBinary(m)) }

func withBinary(m *testing.M) int {
	dir, err := os.MkdirTemp("", "premix-examples-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "premix")
	build := exec.Command("go", "build", "-o", binary, "premix/cmd/premix")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build premix:", err)
		return 1
	}
	// A shim expects premix in its own directory.
	build = exec.Command("go", "build", "-o", filepath.Join(dir, "premix-shim"), "premix/cmd/premix-shim")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build premix-shim:", err)
		return 1
	}
	code := m.Run()
	if left := processes(); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left behind:", left)
		code = 1
	}
	return code
}

// comes waits until is returns true, and reports whether it did.
func comes(is func() bool) bool {
	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// processes returns the processes of this test's premix that still run, after it has given
// them time to end.
func processes() (list []string) {
	comes(func() bool {
		list = nil
		dirs, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return true
		}
		for _, dir := range dirs {
			if exe, err := os.Readlink(filepath.Join(dir, "exe")); err == nil && exe == binary {
				list = append(list, filepath.Base(dir))
			}
		}
		return len(list) == 0
	})
	return list
}

// scene is a directory in which a test runs an example.
type scene struct {
	t    *testing.T
	dir  string
	bin  []string // directories in front of PATH
	mark string   // part of the environment of every started process
	user bool     // whether its commands run as an ordinary user
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, dir: t.TempDir(), bin: []string{filepath.Dir(binary)}}
	s.mark = "PREMIX_TEST_MARK=" + s.dir
	return s
}

// newUserScene returns a scene whose commands run as an ordinary user without privileges, who
// owns the directory. The workflow managers are in root's home: the user can enter it in a
// mount namespace, and reads in it what root lets others read.
func newUserScene(t *testing.T) *scene {
	t.Helper()
	s := newScene(t)
	if os.Geteuid() != 0 {
		return s // this user has no privileges
	}
	s.user = true
	if err := errors.Join(os.Chown(s.dir, 65534, 65534), os.Chmod(filepath.Dir(s.dir), 0o755), os.Chmod(filepath.Dir(binary), 0o755)); err != nil {
		t.Fatal(err)
	}
	return s
}

// asUser runs a command as an ordinary user. The arguments are root's home, the working
// directory and the command.
const asUser = `set -e
mount --make-rprivate /
mount --bind "$1" /mnt
mount -t tmpfs -o mode=755 tmpfs "$1"
for d in $(ls -A /mnt); do
	[ -d "/mnt/$d" ] && mkdir "$1/$d" && mount --bind "/mnt/$d" "$1/$d"
done
umount /mnt
cd "$2"
shift 2
exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs "$@"`

func (s *scene) path(name string) string { return filepath.Join(s.dir, name) }

func (s *scene) write(name, text string) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.path(name)), 0o777); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.path(name), []byte(text), 0o666); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) read(name string) string {
	s.t.Helper()
	text, err := os.ReadFile(s.path(name))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// command returns a command that runs in the directory, in its own process group with all
// of its children.
func (s *scene) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	path := strings.Join(append(s.bin, os.Getenv("PATH")), ":")
	// env looks up the name in the PATH of the command.
	line := append([]string{"env", "PATH=" + path, name}, args...)
	if s.user {
		line = append([]string{"unshare", "-m", "sh", "-c", asUser, "sh", os.Getenv("HOME"), s.dir}, line...)
	}
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), s.mark, "PREMIX_HOME="+s.path("home"), "PREMIX_HOT_WORTH=1ms", "NXF_HOME="+s.path("nxf"), "XDG_CACHE_HOME="+s.path("cache"), "PYTHONDONTWRITEBYTECODE=")
	if s.user {
		cmd.Env = append(cmd.Env, "HOME="+s.path("user"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// run runs a command and returns its output.
func (s *scene) run(name string, args ...string) (string, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runLimit)
	defer cancel()
	var out bytes.Buffer
	cmd := s.command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// must runs a command that has to succeed, and returns its output.
func (s *scene) must(name string, args ...string) string {
	s.t.Helper()
	out, err := s.run(name, args...)
	if err != nil {
		s.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return out
}

// shim puts the programs of a shim directory in front of PATH. The worker of the shim
// writes there until it ends.
func (s *scene) shim() {
	s.t.Helper()
	s.t.Cleanup(func() {
		var left []string
		if !comes(func() bool { left = s.marked(); return len(left) == 0 }) {
			s.t.Errorf("processes are left: %q", left)
		}
	})
	s.bin = append([]string{strings.TrimSpace(s.must("premix", "slurm-shim", "--dir", s.path("shim"), "--idle", "2s"))}, s.bin...)
}

// marked returns the processes of the scene that still run.
func (s *scene) marked() (list []string) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, dir := range dirs {
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !bytes.Contains(environ, []byte(s.mark)) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may have ended
		list = append(list, strings.ReplaceAll(string(line), "\x00", " "))
	}
	return list
}

// ecosystem puts a workflow manager that scripts/setup.sh has installed in front of PATH,
// or skips the test.
func (s *scene) ecosystem(name string) {
	s.t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		s.t.Skip(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "premix", name, "*"))
	for _, dir := range found {
		for _, bin := range []string{dir, filepath.Join(dir, "bin")} {
			if _, err := os.Stat(filepath.Join(bin, name)); err == nil {
				s.bin = append(s.bin, bin)
				return
			} else if !errors.Is(err, fs.ErrNotExist) {
				s.t.Fatal(err)
			}
		}
	}
	s.t.Skipf("%s is not here (%v): scripts/setup.sh ecosystem installs it", name, err)
}

// interrupt sends SIGINT to a workflow once its first task has created the file begun and
// ready returns true. The workflow must fail and leave no process behind.
func (s *scene) interrupt(t *testing.T, ready func() bool, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runLimit)
	defer cancel()
	cmd := s.command(ctx, "sh", args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !comes(func() bool { _, err := os.Stat(s.path("begun")); return err == nil && ready() }) {
		t.Error("no task begins")
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("an interrupted workflow ends as if it were done")
	}
	var left []string
	if !comes(func() bool { left = s.marked(); return len(left) == 0 }) {
		t.Errorf("processes are left: %q", left)
	}
}

// sheet writes a sample sheet.
func (s *scene) sheet(samples [][3]string) string {
	text := "sample,r1,r2\n"
	for _, x := range samples {
		text += strings.Join(x[:], ",") + "\n"
	}
	s.write("sheet.csv", text)
	return s.path("sheet.csv")
}
