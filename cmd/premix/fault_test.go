package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
	"premix/internal/kit/unmount"
	"premix/internal/record"
)

// scene is a recipe whose tool is a shell script, with samples and a run directory. Every process
// of its tasks has the mark in its environment.
type scene struct {
	dir  string
	mark string
}

func newScene(t *testing.T, script, more string, samples int) *scene {
	t.Helper()
	s := &scene{dir: t.TempDir()}
	s.mark = "PREMIX_TEST_MARK=" + s.dir
	s.write(t, "tool.sh", script)
	s.write(t, "r.yaml", fmt.Sprintf("name: tool\ncommand: sh ${data.tool} ${r1}\ndata: {tool: tool.sh}\ninputs: [r1]\noutputs: {stdout: '${sample}.txt'}\nenv: {PREMIX_TEST_MARK: '%s'}\n%s", s.dir, more))
	sheet := "sample,r1\n"
	for i := range samples {
		name := fmt.Sprintf("s%d", i)
		s.write(t, name+".in", name+"\n")
		sheet += name + "," + name + ".in\n"
	}
	s.write(t, "s.csv", sheet)
	t.Cleanup(func() { s.gone(t) })
	return s
}

func (s *scene) path(name string) string { return filepath.Join(s.dir, name) }

func (s *scene) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// premix returns a premix run of the scene, in its own process group.
func (s *scene) premix(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, append([]string{"run", s.path("r.yaml"), s.path("s.csv"), "--out", s.path("out")}, args...)...)
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+s.path("home"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// run runs premix to its end and returns its status and its output.
func (s *scene) run(t *testing.T, args ...string) (status int, out string) {
	t.Helper()
	text, err := s.premix(args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		return exit.ExitCode(), string(text)
	}
	return 0, string(text)
}

// gone checks that no process of a task is left. It gives the kernel time to end processes after a
// kill -9.
func (s *scene) gone(t *testing.T) {
	t.Helper()
	var left []int
	comes(func() bool {
		left = processes(func(_, environ string) bool { return strings.Contains(environ, s.mark) })
		return len(left) == 0
	})
	for _, pid := range left {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		t.Errorf("process %d is left: %q %v", pid, bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '}), err)
	}
}

// await waits until a file exists.
func (s *scene) await(t *testing.T, name string) {
	t.Helper()
	if !comes(func() bool { _, err := os.Stat(s.path(name)); return err == nil }) {
		t.Fatalf("%s did not come", name)
	}
}

func (s *scene) records(t *testing.T) []record.Task {
	t.Helper()
	var list []record.Task
	for rec, err := range queue.Records(s.path("out")) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, *rec)
	}
	return list
}

// soak is whether the tests run the long versions.
var soak = os.Getenv("PREMIX_SOAK") != ""

// premix is killed with SIGKILL at random moments and resumed until the run is done. Outputs are
// complete at any time and correct in the end. A task that was recorded as done does not run again,
// and no process is left.
func TestKilledAtRandomMoments(t *testing.T) {
	for _, start := range []string{"cold", "auto"} {
		t.Run(start, func(t *testing.T) {
			tasks, kills := 24, 6
			if soak {
				tasks, kills = 400, 100
			}
			s := newScene(t, "cat \"$1\"; sleep 0.0$(($$ % 6)); echo end\n", "pipe: cat; echo ${sample} >&2; echo piped\n", tasks)
			args := []string{"--resume", "--start", start, "-j", "3"}
			for range kills {
				cmd := s.premix(args...)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(rand.IntN(600)) * time.Millisecond)
				if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
					t.Fatal(err)
				}
				var exit *exec.ExitError
				if err := cmd.Wait(); err != nil && (!errors.As(err, &exit) || exit.ExitCode() > 0) {
					t.Fatalf("%v\n%s", err, &out)
				}
				s.gone(t)
				s.whole(t, tasks)
			}
			if status, out := s.run(t, args...); status != 0 {
				t.Fatalf("status %d\n%s", status, out)
			}
			if n := s.whole(t, tasks); n != tasks {
				t.Errorf("%d of %d outputs", n, tasks)
			}
			done := map[int]int{}
			for _, r := range s.records(t) {
				if r.OK() {
					done[r.Task]++
				} else {
					t.Errorf("task %d failed: %s", r.Task, r.Error)
				}
			}
			for task, n := range done {
				if n != 1 {
					t.Errorf("task %d was done %d times", task, n)
				}
			}
			if len(done) != tasks {
				t.Errorf("%d of %d tasks are recorded", len(done), tasks)
			}
		})
	}
}

// whole checks the outputs that exist and returns their number.
func (s *scene) whole(t *testing.T, tasks int) int {
	t.Helper()
	n := 0
	for i := range tasks {
		name := fmt.Sprintf("s%d", i)
		text, err := os.ReadFile(s.path("out/" + name + ".txt"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if want := name + "\nend\npiped\n"; err != nil || string(text) != want {
			t.Errorf("output %s is %q, %v", name, text, err)
		}
		n++
	}
	return n
}

// SIGINT, SIGTERM and SIGHUP stop a run. The signal reaches only premix here, not its tasks as a
// Ctrl-C in a terminal would. No process is left, and the run can be resumed.
func TestInterrupted(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		status int
		start  string
	}{
		{unix.SIGINT, 130, "cold"},
		{unix.SIGTERM, 143, "cold"},
		{unix.SIGHUP, 129, "cold"},
		{unix.SIGINT, 130, "auto"},
	} {
		t.Run(fmt.Sprint(c.signal, " ", c.start), func(t *testing.T) {
			s := newScene(t, ">\"$0.$(cat \"$1\")\"\n[ -e \"$0.go\" ] || sleep 600\ncat \"$1\"\n", "", 4)
			// The probe of an auto start must finish.
			if c.start == "auto" {
				s.write(t, "tool.sh.go", "")
				s.write(t, "r.yaml", strings.ReplaceAll(readFile(t, s.path("r.yaml")), "outputs:", "probe: {r1: s3.in}\noutputs:"))
				prepare := exec.Command(binary, "prepare", s.path("r.yaml"))
				prepare.Env = append(os.Environ(), "PREMIX_HOME="+s.path("home"))
				if out, err := prepare.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				if err := errors.Join(os.Remove(s.path("tool.sh.go")), os.Remove(s.path("tool.sh.s3"))); err != nil {
					t.Fatal(err)
				}
			}
			cmd := s.premix("--start", c.start, "-j", "2")
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			s.await(t, "tool.sh.s0")
			s.await(t, "tool.sh.s1")
			started := time.Now()
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != c.status {
				t.Fatalf("%v, want status %d\n%s", err, c.status, &out)
			}
			if took := time.Since(started); took > 5*time.Minute { // the tool takes ten
				t.Errorf("took %v", took)
			}
			if !strings.Contains(out.String(), "error: interrupted (") || !strings.Contains(out.String(), "hint: run the same command again to continue") {
				t.Errorf("wrote %s", &out)
			}
			s.gone(t)
			s.write(t, "tool.sh.go", "")
			if status, out := s.run(t, "--resume", "--start", c.start); status != 0 {
				t.Errorf("resumed: status %d\n%s", status, out)
			}
		})
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A second Ctrl-C kills tasks that do not end on the first.
func TestInterruptedTwice(t *testing.T) {
	s := newScene(t, "trap '' TERM INT\n>\"$0.$(cat \"$1\")\"\nwhile :; do sleep 0.1; done\n", "", 1)
	cmd := s.premix("--start", "cold")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.await(t, "tool.sh.s0")
	for range 2 {
		if err := cmd.Process.Signal(unix.SIGINT); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("%v\n%s", err, &out)
	}
	s.gone(t)
}

// On a full disk tasks fail with a message about the disk, and no more tasks start. The run
// continues where it stopped once there is room.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	for _, c := range []struct{ name, script, more string }{
		{"the tool meets it", "cat \"$1\"; head -c 400k /dev/zero\n", ""},
		{"the pipe meets it", "cat \"$1\"; head -c 400k /dev/zero\n", "pipe: cat\n"},
		{"the tool does not notice", "cat \"$1\"; head -c 400k /dev/zero; exit 0\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			const tasks = 8
			s := newScene(t, c.script, c.more, tasks)
			out := s.path("out")
			if err := os.Mkdir(out, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", out, "tmpfs", 0, "size=2m"); err != nil {
				t.Skipf("a tmpfs cannot be mounted: %v", err)
			}
			t.Cleanup(func() {
				if err := unmount.Dir(out); err != nil {
					t.Error(err)
				}
			})
			status, text := s.run(t, "--start", "cold", "-j", "1")
			if status != 1 || !strings.Contains(text, "the disk of the run directory is full") || !strings.Contains(text, "hint: make room in ") ||
				!strings.Contains(text, "no more tasks are started") {
				t.Fatalf("status %d\n%s", status, text)
			}
			good := 0
			for _, r := range s.records(t) {
				switch {
				case r.OK():
					good++
					if info, err := os.Stat(filepath.Join(out, r.Outputs[0])); err != nil || info.Size() < 400<<10 {
						t.Errorf("output of %s: %v, %v", r.Sample, info, err)
					}
				case r.Cause != record.CauseDisk:
					t.Errorf("%s: cause %s: %s", r.Sample, r.Cause, r.Error)
				}
			}
			if good == 0 || good == tasks {
				t.Errorf("%d tasks succeeded", good)
			}
			if err := unix.Mount("tmpfs", out, "tmpfs", unix.MS_REMOUNT, "size=16m"); err != nil {
				t.Fatal(err)
			}
			if status, text := s.run(t, "--start", "cold", "--resume"); status != 0 || !strings.Contains(text, fmt.Sprintf("(%d were done before)", good)) {
				t.Errorf("resumed: status %d\n%s", status, text)
			}
		})
	}
}

// Without cgroups and namespaces, as for an ordinary user, premix reports it once and continues.
// Ctrl-C and kill -9 leave no process there either.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	const nobody = 65534
	s := newScene(t, "cat \"$1\"\nid -u\n", "pipe: cat; id -u\n", 3)
	if err := os.Chmod(s.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	// The parent directory that the package testing makes is accessible to its own user only.
	if err := os.Chmod(filepath.Dir(s.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	as := func(cmd *exec.Cmd) *exec.Cmd {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		cmd.Env = append(cmd.Env, "HOME="+s.dir)
		return cmd
	}
	out, err := as(s.premix("--start", "cold", "-j", "2")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "note: no limit on "); n != 1 {
		t.Errorf("%d notes\n%s", n, out)
	}
	if got := readFile(t, s.path("out/s1.txt")); got != "s1\n65534\n65534\n" {
		t.Errorf("output %q", got)
	}
	// A refused start leaves no run behind, even if its page was requested.
	premix := func(status int, args ...string) string {
		t.Helper()
		cmd := exec.Command(binary, args...)
		cmd.Env, cmd.SysProcAttr = append(os.Environ(), "PREMIX_HOME="+s.path("home")), &syscall.SysProcAttr{}
		out, err := as(cmd).CombinedOutput()
		if cmd.ProcessState.ExitCode() != status {
			t.Errorf("premix %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run := []string{"run", s.path("r.yaml"), s.path("s.csv"), "--out"}
	refused := append(run[:4:4], s.path("refused"))
	premix(3, append(refused[:5:5], "--start", "hot")...)
	if out := premix(0, "report", s.path("refused")); !strings.HasPrefix(out, "tool: 0 of 3 tasks succeeded, 3 not run\n\npage: ") {
		t.Errorf("report %s", out)
	}
	premix(0, append(refused[:5:5], "--start", "cold")...)
	// Other users own everything there, so neither a run directory nor a page can be made.
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o755); err != nil {
		t.Fatal(err)
	}
	if out := premix(4, append(run[:4:4], filepath.Join(closed, "out"))...); !strings.Contains(out, "out cannot be used: mkdir ") || !strings.Contains(out, "permission denied\nhint: give a directory in which you may write\n") {
		t.Errorf("wrote %s", out)
	}
	if out := premix(4, append(run[:4:4], closed)...); !strings.Contains(out, "permission denied\nhint: ") {
		t.Errorf("wrote %s", out)
	}
	if out := premix(0, "doctor"); !strings.Contains(out, "\nok  hot start ") || !strings.Contains(out, "mount namespaces need root") {
		t.Errorf("wrote %s", out)
	}
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGKILL} {
		s.write(t, "tool.sh", ">\"$0.$(cat \"$1\")\"; exec sleep 600\n")
		if err := errors.Join(os.RemoveAll(s.path("out")), os.RemoveAll(s.path("tool.sh.s0"))); err != nil {
			t.Fatal(err)
		}
		cmd := as(s.premix("--start", "cold", "-j", "1", "--quiet"))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s.await(t, "tool.sh.s0")
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("premix ended with status 0")
		}
		s.gone(t)
	}
}

// In a run of thousands of tasks every task has its record, and a resumed run has nothing to do.
func TestManyTasks(t *testing.T) {
	tasks := 300
	if soak {
		tasks = 4_000
	}
	s := newScene(t, "", "", 1)
	s.write(t, "r.yaml", "name: cat\ncommand: cat ${r1}\ninputs: [r1]\noutputs: {stdout: '${sample}.txt'}\n")
	var sheet strings.Builder
	sheet.WriteString("sample,r1\n")
	for i := range tasks {
		fmt.Fprintf(&sheet, "t%d,s0.in\n", i)
	}
	s.write(t, "s.csv", sheet.String())
	if status, out := s.run(t, "-j", "4"); status != 0 {
		t.Fatalf("status %d\n%s", status, out)
	}
	if n := len(s.records(t)); n != tasks {
		t.Errorf("%d records", n)
	}
	if status, out := s.run(t, "--resume"); status != 0 || !strings.Contains(out, "nothing to do") {
		t.Errorf("status %d\n%s", status, out)
	}
	report := exec.Command(binary, "report", s.path("out"), "--json")
	text, err := report.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Tasks []struct{ Sample, Start, Reason string }
	}
	if err := json.Unmarshal(text, &r); err != nil || len(r.Tasks) != tasks || r.Tasks[0].Start == "" || r.Tasks[0].Reason == "" {
		t.Errorf("%d tasks in the report, %v", len(r.Tasks), err)
	}
}

// The binary starts fast regardless of what it links. The test counts only its own processor time.
// It allows more where all programs are slow, as the go command shows.
func TestStartsAtOnce(t *testing.T) {
	const limit, times = 30 * time.Millisecond, 8
	takes := func(name string) time.Duration {
		cmd := exec.Command(name, "version")
		cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local")
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	best, usual := time.Hour, time.Hour
	for range 100 {
		if best = min(best, takes(binary)); best <= limit {
			return
		}
		usual = min(usual, takes("go"))
	}
	if most := max(limit, times*usual); best > most {
		t.Errorf("premix version takes %v of a CPU, want at most %v", best, most)
	}
}
