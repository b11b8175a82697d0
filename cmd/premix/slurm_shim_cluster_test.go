package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
	"premix/internal/testkit/slurmtest"
)

// clusterShim is a shim directory for a Slurm cluster.
type clusterShim struct {
	*slurmScene
	bin string
}

func newClusterShim(t *testing.T, o slurmtest.Options, options ...string) *clusterShim {
	t.Helper()
	s := &clusterShim{slurmScene: newSlurmScene(t, o)}
	args := []string{"slurm-shim", "--dir", "out", "--idle", "2s", "--engine", "slurm", "--engine-opt", "jobs=4"}
	if len(options) == 0 {
		options = []string{"poll=300ms"}
	}
	for _, o := range options {
		args = append(args, "--engine-opt", o)
	}
	s.bin = strings.TrimSpace(s.ends(t, int(exit.OK), "", args...))
	return s
}

func (s *clusterShim) front(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	// The shim programs come first on PATH, as users are advised.
	cmd.Env = append(s.box.Env(), s.mark, "PATH="+s.bin+":"+os.Getenv("PATH"))
	return cmd
}

// ask runs a shim program that must succeed.
func (s *clusterShim) ask(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := s.front(name, args...).Output()
	if err != nil {
		var finished *exec.ExitError
		if errors.As(err, &finished) {
			out = append(out, finished.Stderr...)
		}
		s.show(t, s.path("out/.premix/slurm/worker.log"))
		s.explain(t, "out")
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// Jobs that are submitted through the shim programs run in few jobs of a real Slurm, on its nodes
// and in the requested partition. They fail, are cancelled and depend on each other as jobs of
// Slurm do. A worker that is killed does not end any of them.
func TestShimBeforeSlurm(t *testing.T) {
	s := newClusterShim(t, slurmtest.Options{Nodes: 2, Config: "PartitionName=other Nodes=n1,n2 MaxTime=60\n"})
	const script = "echo $SLURM_JOB_ID ${SLURM_ARRAY_TASK_ID-none} $SLURMD_NODENAME $SLURM_JOB_PARTITION"
	s.ask(t, "sbatch", "-o", "plain.txt", "--wrap", script)
	s.ask(t, "sbatch", "--array=5-44", "-o", "array.%a.txt", "-p", "other", "-t", "60", "--wrap", script)
	s.ask(t, "sbatch", "--no-requeue", "-J", "bad", "-o", "/dev/null", "--wrap", "exit 3")
	s.ask(t, "sbatch", "-d", "afterok:1:2", "-o", "last.txt", "--wait", "--wrap", "cat array.*.txt | wc -l; "+script)
	read := func(name string) []string {
		text, err := os.ReadFile(s.path(name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(text))
	}
	nodes := []string{"n1", "n2"}
	if f := read("plain.txt"); len(f) != 4 || f[0] != "1" || f[1] != "none" || !slices.Contains(nodes, f[2]) || f[3] != "main" {
		t.Errorf("the first job says %q", f)
	}
	if f := read("array.5.txt"); len(f) != 4 || f[0] != "2" || f[1] != "5" || !slices.Contains(nodes, f[2]) || f[3] != "other" {
		t.Errorf("the first of the array says %q", f)
	}
	if f := read("last.txt"); len(f) != 5 || f[0] != "40" {
		t.Errorf("the last job says %q", f)
	}
	if !comes(func() bool { return s.ask(t, "squeue", "-h") == "" }) {
		t.Errorf("jobs are left: %s", s.ask(t, "squeue"))
	}
	if got := s.ask(t, "sacct", "-n", "-X", "-P", "-S", "now-1day", "--name", "bad", "-o", "state,exitcode"); got != "FAILED|3:0\n" {
		t.Errorf("the one that fails: %q", got)
	}
	all, err := s.box.Run("squeue", "-h", "-r", "-t", "all", "-o", "%j")
	if n := strings.Count(all, "\n"); err != nil || n == 0 || n > 16 {
		t.Errorf("%v, %d jobs of Slurm:\n%s", err, n, all)
	}
	// sinfo prints the nodes and partitions of Slurm, and requests for resources that Slurm does
	// not have fail.
	if got := s.ask(t, "sinfo", "-h", "-o", "%P"); !strings.Contains(got, "other") {
		t.Errorf("sinfo: %q", got)
	}
	for _, args := range [][]string{{"-p", "none"}, {"-c", "999"}, {"--exclusive"}, {"--mem=0"}} {
		out, err := s.front("sbatch", append(args, "--wrap", "true")...).CombinedOutput()
		if err == nil {
			t.Errorf("sbatch %q is taken: %s", args, out)
		}
	}

	// Cancel one running job. Another one outlives the worker.
	s.ask(t, "sbatch", "--no-requeue", "-J", "long", "-o", "/dev/null", "--wrap", "echo >>long; while [ ! -e go ]; do sleep 0.1; done")
	s.ask(t, "sbatch", "-J", "doomed", "-o", "/dev/null", "--wrap", "touch doomed; sleep 1000")
	s.await(t, "long")
	s.await(t, "doomed")
	if !comes(func() bool { return strings.Count(s.ask(t, "squeue", "-h", "-t", "R"), "\n") == 2 }) {
		t.Errorf("two should run:\n%s", s.ask(t, "squeue"))
	}
	s.ask(t, "scancel", "-n", "doomed")
	pid := (&shimScene{taskScene: s.taskScene}).worker()
	if pid == 0 {
		t.Fatal("there is no worker")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.ask(t, "squeue") // starts another worker
	s.write(t, "go", "")
	if !comes(func() bool { return s.ask(t, "squeue", "-h") == "" }) {
		t.Errorf("jobs are left: %s", s.ask(t, "squeue"))
	}
	for name, want := range map[string]string{"long": "COMPLETED\n", "doomed": "CANCELLED\n"} {
		if got := s.ask(t, "sacct", "-n", "-X", "-P", "-S", "now-1day", "--name", name, "-o", "state"); got != want && !strings.HasPrefix(got, strings.TrimSpace(want)) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if f := fmt.Sprintf("%q", read("long")); f != "[]" { // one empty line: it ran once
		t.Errorf("it wrote %s", f)
	}
	if text, err := os.ReadFile(s.path("long")); err != nil || string(text) != "\n" {
		t.Errorf("it ran %d times", len(text))
	}
}

// Slurm gets the requests for GPUs and other resources of jobs. A job has exclusive GPUs, and only
// jobs with the same request share a job of Slurm.
func TestGPUsBeforeSlurm(t *testing.T) {
	s := newClusterShim(t, slurmtest.Options{Nodes: 2, GPUs: 2, Space: "100G"})
	s.write(t, "gpu.sh", `#!/bin/sh
ids=$(echo $CUDA_VISIBLE_DEVICES | tr , ' ')
for id in $ids; do mkdir held.$SLURMD_NODENAME.$id || touch twice; done
sleep 0.1
echo $1 $(echo $ids | wc -w) "$PREMIX_RESOURCE_GPU" = "$CUDA_VISIBLE_DEVICES" >>gpus.log
for id in $ids; do rmdir held.$SLURMD_NODENAME.$id; done
`)
	s.ask(t, "sbatch", "-a", "1-20", "-o", "/dev/null", "--gres=gpu:1", "gpu.sh", "1")
	s.ask(t, "sbatch", "-a", "1-3", "-o", "/dev/null", "--gpus=a100:2", "gpu.sh", "2")
	s.ask(t, "sbatch", "-n", "2", "-o", "/dev/null", "--tres-per-task=cpu:1,gres/gpu:1", "gpu.sh", "2")
	s.ask(t, "sbatch", "-o", "space.txt", "--gres=tmpspace:10G", "--wrap", "echo [$CUDA_VISIBLE_DEVICES] $SLURM_JOB_GPUS")
	s.ask(t, "sbatch", "-d", "afterany:1:21:24:25", "--wait", "-o", "/dev/null", "--wrap", "true")
	text, err := os.ReadFile(s.path("gpus.log"))
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 5 || f[0] != f[1] || f[2] != f[4] {
			t.Errorf("a job has %q", line)
			continue
		}
		counts[f[0]]++
	}
	if counts["1"] != 20 || counts["2"] != 4 || len(counts) != 2 {
		t.Errorf("jobs by GPUs: %v", counts)
	}
	if _, err := os.Stat(s.path("twice")); err == nil {
		t.Error("two jobs had a GPU at a time")
	}
	out, err := s.box.Run("squeue", "-h", "-r", "-t", "all", "-O", "tres-per-node:60")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(map[string]int)
	for line := range strings.Lines(out) {
		asked[strings.TrimSpace(line)]++
	}
	for _, want := range []string{"gres:gpu:1", "gres:gpu:a100:2", "gres:gpu:2", "gres:tmpspace:10G", "N/A"} {
		if asked[want] == 0 {
			t.Errorf("no job of Slurm asks for %s: %v", want, asked)
		}
	}
	if n := asked["gres:gpu:1"]; n > 4 {
		t.Errorf("%d jobs of Slurm for 20 jobs with a GPU", n)
	}
	// Slurm refuses resources that it does not have.
	for option, want := range map[string]string{"--gres=gpu:3": "Requested node configuration is not available", "--gres=fpga:1": "Invalid generic resource", "--gpus=v100:1": "Requested node configuration is not available", "--gpus-per-socket=1": "--gpus-per-socket"} {
		out, err := s.front("sbatch", option, "--wrap", "true").CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("sbatch %s: %v\n%s", option, err, out)
		}
	}
	// The same holds for tasks without the shim programs.
	s.ends(t, int(exit.OK), `{"command":"echo $CUDA_VISIBLE_DEVICES | tr , \"\\n\" | wc -l","resources":{"gpu":2}}`+"\n", "task", "run", "--out", "tasks", "--engine", "slurm", "--engine-opt", "poll=300ms", "--format", "jsonl", "-")
	if got := s.ends(t, int(exit.OK), "", "task", "tail", "tasks", "1"); strings.TrimSpace(got) != "2" {
		t.Errorf("a task with two GPUs sees %q", got)
	}
}

// A worker without work takes almost no processor time, whether jobs wait for their begin time or
// run on a node.
func TestIdleWorkerBeforeSlurm(t *testing.T) {
	s := newClusterShim(t, slurmtest.Options{Nodes: 1}, "poll=5s") // each poll starts a squeue
	s.ask(t, "sbatch", "--begin=now+1hour", "-o", "/dev/null", "--wrap", "true")
	pid := (&shimScene{taskScene: s.taskScene}).worker()
	if pid == 0 {
		t.Fatal("there is no worker")
	}
	const window = 4 * time.Second
	measure := func(state string, most time.Duration) {
		time.Sleep(2 * time.Second) // wait until it is idle
		before := cpuTime(t, pid)
		time.Sleep(window)
		used := cpuTime(t, pid) - before
		t.Logf("%s: %v of CPU in %v", state, used, window)
		if used > most {
			t.Errorf("%s: the worker takes %v of CPU in %v", state, used, window)
		}
	}
	measure("jobs wait for their time", window/200)
	s.ask(t, "sbatch", "-o", "/dev/null", "--wrap", "touch on; until [ -e go ]; do sleep 0.1; done")
	s.await(t, "on")
	measure("a job runs", window/100)
	s.write(t, "go", "")
}

// cpuTime returns the processor time that the threads of a process have taken.
func cpuTime(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("process %d: %v", pid, err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(ns)
	}
	return sum
}

// The tables of the shim programs have the same columns as those of Slurm.
func TestShimHeaders(t *testing.T) {
	real := newSlurmScene(t, slurmtest.Options{Nodes: 1, Accounting: true, Config: "PriorityType=priority/multifactor\n"})
	s := newShimScene(t)
	header := func(out string) string {
		var lines []string
		for line := range strings.Lines(out) {
			line = strings.TrimRight(line, " \n")
			if _, err := time.Parse(time.ANSIC, line); err == nil {
				line = "DATE"
			}
			lines = append(lines, line)
		}
		until := min(len(lines), 1)
		if until > 0 && lines[0] == "DATE" {
			until = min(len(lines), 2)
		}
		return strings.Join(lines[:until], "\n")
	}
	for _, args := range [][]string{
		{"sinfo"}, {"sinfo", "-s"}, {"sinfo", "-l"}, {"sinfo", "-N"}, {"sinfo", "-N", "-l"}, {"sinfo", "-R"}, {"sinfo", "-R", "-l"}, {"sinfo", "-T"}, {"sinfo", "-d"},
		{"squeue"}, {"squeue", "-l"}, {"squeue", "--start"}, {"squeue", "--steps"},
		{"sacct"}, {"sacct", "-b"}, {"sacct", "-l"}, {"sacct", "-X", "-P"}, {"sacct", "-p"}, {"sacct", "-o", "jobn,acc,sta,tresusageinmaxn"},
		{"sacctmgr", "show", "user"}, {"sacctmgr", "show", "assoc"}, {"sacctmgr", "show", "cluster"}, {"sacctmgr", "show", "account"}, {"sacctmgr", "show", "tres"}, {"sacctmgr", "show", "qos"}, {"sacctmgr", "show", "events"}, {"sacctmgr", "show", "wckeys"},
		{"sacctmgr", "show", "user", "-P"}, {"sacctmgr", "show", "assoc", "-P"}, {"sacctmgr", "show", "qos", "-P"}, {"sacctmgr", "show", "events", "-P"}, {"sacctmgr", "show", "wckeys", "-P"},
		{"sshare"}, {"sshare", "-l"}, {"sprio"}, {"sprio", "-l"},
	} {
		want, err := real.box.Run(args[0], args[1:]...)
		if err != nil {
			t.Errorf("%q: %v\n%s", args, err, want)
			continue
		}
		if got := header(s.ask(t, args[0], args[1:]...)); got != header(want) {
			t.Errorf("%q:\n%s\nand of Slurm:\n%s", args, got, header(want))
		}
	}
}
