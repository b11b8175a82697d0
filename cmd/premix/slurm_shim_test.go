package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
	"premix/internal/kit/lock"
)

// shimScene is a shim directory. Its worker ends soon after its last job.
type shimScene struct {
	*taskScene
	bin string
}

func newShimScene(t *testing.T, args ...string) *shimScene {
	t.Helper()
	s := &shimScene{taskScene: newTaskScene(t)}
	// The worker has no mark and writes until it ends. The test finds it by its lock.
	t.Cleanup(func() {
		if !comes(s.alone) {
			t.Error("the worker does not end")
		}
	})
	out, err := exec.Command(binary, append([]string{"slurm-shim", "--dir", s.path("out"), "--idle", "2s"}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	s.bin = strings.TrimSpace(string(out))
	return s
}

func (s *shimScene) front(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.mark)
	return cmd
}

// ask runs a shim program that must succeed.
func (s *shimScene) ask(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := s.front(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s %q: %v\n%s%s", name, args, err, out, &stderr)
	}
	return string(out)
}

// worker returns the process of the worker, or 0 if there is none.
func (s *shimScene) worker() int {
	text, err := os.ReadFile(s.path("out/.premix/queue/work-0.lock"))
	if err != nil {
		return 0
	}
	m := regexp.MustCompile(`^process (\d+) `).FindSubmatch(text)
	if m == nil {
		return 0
	}
	pid, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return 0
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != binary {
		return 0
	}
	return pid
}

// alone reports whether there is no worker: a worker holds the lock as long as it lives.
func (s *shimScene) alone() bool {
	f, err := os.Open(s.path("out/.premix/slurm/lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return lock.Try(f, lock.Exclusive) == nil
}

// All bytes that an argument, a variable or a script can contain are passed unchanged.
func TestShimOddBytes(t *testing.T) {
	s := newShimScene(t)
	var odd []byte
	for c := 1; c < 256; c++ {
		odd = append(odd, byte(c))
	}
	script := "#!/bin/bash\nprintf %s \"$1\" >argument\nprintf %s \"$ODD\" >variable\nprintf %s " + queue.Quote(string(odd)) + " >text\n"
	s.write(t, "odd.sh", script)
	cmd := s.front("sbatch", "--wait", "odd.sh", string(odd))
	cmd.Env = append(cmd.Env, "ODD="+string(odd))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.ask(t, "sbatch", "--wait", "--wrap", "printf %s "+queue.Quote(string(odd))+" >wrapped")
	for _, name := range []string{"argument", "variable", "text", "wrapped"} {
		got, err := os.ReadFile(s.path(name))
		if err != nil || string(got) != string(odd) {
			t.Errorf("%s: %v %q", name, err, got)
		}
	}
}

// Many clients submit at the same time while the worker is killed repeatedly. Each submission makes
// one job with a unique number, and each job succeeds once. With very many jobs an answer still
// takes milliseconds.
func TestShimManySubmissions(t *testing.T) {
	submissions, kills := 200, 3
	if soak {
		submissions, kills = 10000, 50
	}
	s := newShimScene(t)
	numbers := make(chan int, submissions)
	work := make(chan int)
	var submitters sync.WaitGroup
	for range 4 {
		submitters.Go(func() {
			for i := range work {
				text := s.ask(t, "sbatch", "--parsable", "-o", "/dev/null", "-J", "many", "--wrap", fmt.Sprintf("echo %d >>ran; sleep 0.0%d", i, i%5))
				n, err := strconv.Atoi(strings.TrimSpace(text))
				if err != nil {
					t.Errorf("submission %d: %q", i, text)
				}
				numbers <- n
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 1))
	for i := range submissions {
		if i > 0 && i%(submissions/(kills+1)) == 0 {
			time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
			if pid := s.worker(); pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		work <- i
	}
	close(work)
	submitters.Wait()
	close(numbers)
	var list []int
	for n := range numbers {
		list = append(list, n)
	}
	slices.Sort(list)
	for i, n := range list {
		if n != i+1 {
			t.Fatalf("job %d has the number %d", i+1, n)
		}
	}
	if !comes(func() bool { return s.ask(t, "squeue", "-h") == "" }) {
		t.Fatalf("jobs are left: %s", s.ask(t, "squeue"))
	}
	s.once(t, submissions)
	ran, err := os.ReadFile(s.path("ran"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(map[string]bool)
	for line := range strings.Lines(string(ran)) {
		done[line] = true
	}
	if len(done) != submissions {
		t.Errorf("%d of %d submissions ran", len(done), submissions)
	}

	s.ask(t, "sbatch", "-H", "--array=1-10000", "--wrap", "true")
	var took []time.Duration
	for range 15 {
		started := time.Now()
		if n := strings.Count(s.ask(t, "squeue", "-h", "-r", "-t", "all", "-o", "%i %t"), "\n"); n < 10000 {
			t.Errorf("squeue tells of %d jobs", n)
		}
		took = append(took, time.Since(started))
	}
	slices.Sort(took)
	t.Logf("squeue of %d jobs: median %v", 10000+submissions, took[len(took)/2])
	if took[len(took)/2] > 10*time.Second {
		t.Errorf("squeue takes %v", took)
	}
	s.ask(t, "scancel", fmt.Sprint(submissions+1))
}

// An array takes little state until its elements run, and does not delay other jobs.
func TestShimArrayState(t *testing.T) {
	s := newShimScene(t, "--cores", "1")
	s.ask(t, "sbatch", "-o", "/dev/null", "--wrap", "until [ -e go ]; do sleep 0.05; done")
	s.ask(t, "sbatch", "-a", "1-100000", "-o", "/dev/null", "--wrap", "echo >>ran")
	s.ask(t, "sbatch", "-H", "-o", "/dev/null", "--wrap", "true")
	var size int64
	if err := filepath.WalkDir(s.path("out"), func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if size > 1_000_000 {
		t.Errorf("an array of 100,000 elements takes %d bytes", size)
	}
	s.ask(t, "scancel", "2_[5-99990]")
	if got := s.ask(t, "squeue", "-h", "-o", "%i", "-j", "2"); got != "2_[1-4,99991-100000]\n" {
		t.Errorf("%q", got)
	}
	// The worker is killed while elements run, and the next worker runs the remaining ones.
	s.write(t, "go", "")
	s.await(t, "ran")
	_ = unix.Kill(s.worker(), unix.SIGKILL)
	if !comes(func() bool { return s.ask(t, "squeue", "-h", "-t", "PD,R", "-j", "2") == "" }) {
		t.Fatalf("elements are left: %s", s.ask(t, "squeue"))
	}
	if got := strings.Count(s.ask(t, "sacct", "-n", "-X", "-P", "-j", "2", "-s", "CD", "-S", "now-1day", "-o", "jobid"), "\n"); got != 14 {
		t.Errorf("%d elements have succeeded", got)
	}
	s.ask(t, "scancel", "3")
}

// A job with --no-requeue fails when its worker is killed. Any other job runs again, after its
// first processes have ended.
func TestShimWorkerKilled(t *testing.T) {
	s := newShimScene(t, "--cores", "2")
	for _, option := range []string{"--requeue", "--no-requeue"} {
		s.ask(t, "sbatch", option, "-J", option[2:], "-o", "/dev/null", "--wrap", "echo >>begun"+option+"; while [ ! -e go ]; do sleep 0.01; done")
	}
	s.await(t, "begun--requeue")
	s.await(t, "begun--no-requeue")
	if !comes(func() bool {
		text, err := os.ReadFile(s.path("out/.premix/slurm/begun"))
		return err == nil && string(text) == "2\n"
	}) {
		t.Fatal("it is not noted which job has begun")
	}
	pid := s.worker()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := s.ask(t, "sacct", "-n", "-X", "-P", "-S", "now-1day", "--name", "no-requeue", "-o", "jobidraw,state"); got != "2|NODE_FAIL\n" {
		t.Errorf("%q", got)
	}
	s.write(t, "go", "")
	s.ask(t, "sbatch", "--wait", "-o", "/dev/null", "-d", "afterok:1", "--wrap", "true")
	if got := s.ask(t, "sacct", "-n", "-X", "-P", "-j", "1", "-o", "state"); got != "COMPLETED\n" {
		t.Errorf("%q", got)
	}
	for name, times := range map[string]int{"begun--requeue": 2, "begun--no-requeue": 1} {
		text, err := os.ReadFile(s.path(name))
		if err != nil || len(text) != times {
			t.Errorf("%s: %d times, %v", name, len(text), err)
		}
	}
}

// Shim programs get an answer while a worker ends or starts.
func TestShimIdle(t *testing.T) {
	s := newShimScene(t, "--idle", "1s")
	for i := range 4 {
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() { s.ask(t, "sbatch", "-o", "/dev/null", "--wrap", "true") })
		}
		all.Wait()
		if i%2 == 0 {
			time.Sleep(time.Second)
		} else if !comes(s.alone) {
			t.Fatal("the worker does not end")
		}
	}
	if !comes(func() bool { return s.ask(t, "squeue", "-h") == "" }) {
		t.Fatal("jobs are left")
	}
	s.once(t, 24)
	// A worker that cannot start reports the reason.
	if err := os.WriteFile(s.path("out/.premix/slurm/config.json"), []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	if !comes(s.alone) {
		t.Fatal("the worker does not end")
	}
	out, err := s.front("squeue").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "has a bad configuration") {
		t.Errorf("%v %s", err, out)
	}
}
