package collect

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRecognise(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for _, c := range []struct{ path, manager, task string }{
		{"/premix-123.456.4026531836/7.2", "premix", "7.2"},
		{"/user.slice/run-r1.scope/premix-123.456.4026531836/7.2", "premix", "7.2"},
		{"/premix-123.456.4026531836", "", ""},
		{"/premix-123.456.4026531836/premix", "", ""},
		{"/slurm/uid_1000/job_77/step_0", "slurm", "77.0"},
		{"/slurm_n1/uid_1000/job_77/step_batch", "slurm", "77.batch"},
		{"/slurm/uid_1000/job_77", "", ""},
		{"/system.slice/slurmstepd.scope/job_5/step_extern", "slurm", "5.extern"},
		{"/system.slice/n1_slurmstepd.scope/job_5/step_2", "slurm", "5.2"},
		{"/kubepods/burstable/pod0a5c3ee6-4b45-4a3b-9e6e-0a5c3ee64b45/" + id, "kubernetes", "0a5c3ee6-4b45-4a3b-9e6e-0a5c3ee64b45/0123456789ab"},
		{"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0a5c3ee6_4b45_4a3b_9e6e_0a5c3ee64b45.slice/cri-containerd-" + id + ".scope", "kubernetes", "0a5c3ee6-4b45-4a3b-9e6e-0a5c3ee64b45/0123456789ab"},
		{"/system.slice/docker-" + id + ".scope", "docker", "0123456789ab"},
		{"/docker/" + id, "docker", "0123456789ab"},
		{"/machine.slice/libpod-" + id + ".scope", "podman", "0123456789ab"},
		{"/system.slice/ssh.service", "", ""},
	} {
		_, n, ok := recognise(taskPatterns(), c.path)
		if ok != (c.manager != "") || n.manager != c.manager || n.task != c.task {
			t.Errorf("%s: %v %+v", c.path, ok, n)
		}
	}
}

// fakeGroups writes the files of a machine with both versions of cgroups.
func fakeGroups(b *bench) {
	b.write("proc/self/mountinfo", mustRead(b, "proc/self/mountinfo"))
	for name, text := range map[string]string{
		"cpuacct/premix-7.1.1/3.1/cpuacct.usage":                            "5000000000\n",
		"cpu/premix-7.1.1/3.1/cpu.stat":                                     "nr_periods 10\nnr_throttled 5\nthrottled_time 77\n",
		"memory/x/premix-7.1.1/3.1/memory.usage_in_bytes":                   "4096\n",
		"memory/x/premix-7.1.1/3.1/memory.oom_control":                      "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
		"pids/premix-7.1.1/3.1/pids.current":                                "3\n",
		"unified/premix-7.1.1/3.1/io.pressure":                              "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
		"blkio/premix-7.1.1/3.1/blkio.throttle.io_service_bytes_recursive":  "8:0 Read 4096\n8:0 Write 100\n8:0 Total 4196\n8:16 Read 4\nTotal 4200\n",
		"unified/system.slice/slurmstepd.scope/job_5/step_2/cpu.stat":       "usage_usec 1000000\nuser_usec 1\nnr_periods 0\nnr_throttled 0\n",
		"unified/system.slice/slurmstepd.scope/job_5/step_2/memory.current": "8192\n",
		"unified/system.slice/slurmstepd.scope/job_5/step_2/memory.events":  "low 0\nhigh 0\nmax 9\noom 1\noom_kill 0\n",
		"unified/system.slice/slurmstepd.scope/job_5/step_2/io.stat":        "8:16 rbytes=1000 wbytes=2000 rios=1 wios=2 dbytes=0 dios=0\n8:0 rbytes=1 wbytes=0 rios=1\n",
		"unified/system.slice/slurmstepd.scope/job_5/step_2/pids.current":   "9\n",
		"unified/system.slice/slurmstepd.scope/job_5/step_2/io.pressure":    "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
	} {
		b.write("sys/fs/cgroup/"+name, text)
	}
}

func TestCgroups(t *testing.T) {
	b := newBench(t)
	fakeGroups(b)
	c := newCgroups(b.machine, nil, func(pid string) string { return "/runs/" + pid })
	t.Cleanup(c.Close)
	b.look(c)
	premix, slurm := `{manager="premix",run="/runs/7",task="3.1"}`, `{manager="slurm",task="5.2"}`
	b.sink.want(t, map[string]float64{"task.memory" + premix: 4096, "task.processes" + premix: 3, "task.oom_kills" + premix: 0, "task.cpu" + premix: -1,
		"task.memory" + slurm: 8192, "task.processes" + slurm: 9})
	v1, v2 := "sys/fs/cgroup/", "sys/fs/cgroup/unified/system.slice/slurmstepd.scope/job_5/step_2/"
	b.write(v1+"cpuacct/premix-7.1.1/3.1/cpuacct.usage", "8000000000\n")
	b.write(v1+"cpu/premix-7.1.1/3.1/cpu.stat", "nr_periods 20\nnr_throttled 9\nthrottled_time 77\n")
	b.write(v1+"memory/x/premix-7.1.1/3.1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
	b.write(v1+"blkio/premix-7.1.1/3.1/blkio.throttle.io_service_bytes_recursive", "8:0 Read 5096\n8:0 Write 300\n8:16 Read 4\n")
	b.write(v2+"cpu.stat", "usage_usec 2000000\nnr_periods 4\nnr_throttled 1\n")
	b.write(v2+"io.stat", "8:16 rbytes=3000 wbytes=2000 rios=1 wios=2\n8:0 rbytes=1 wbytes=0 rios=1\n")
	b.write(v2+"io.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1001000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
	b.write(v2+"memory.events", "oom_kill 2\n")
	b.look(c)
	b.sink.want(t, map[string]float64{"task.cpu" + premix: 1.5, "task.throttled" + premix: 0.4, "task.oom_kills" + premix: 1,
		"task.read_bytes" + premix: 500, "task.written_bytes" + premix: 100,
		"task.cpu" + slurm: 0.5, "task.throttled" + slurm: 0.25, "task.read_bytes" + slurm: 1000, "task.written_bytes" + slurm: 0,
		`task.pressure{kind="some",manager="slurm",resource="io",task="5.2"}`: 0.5, `task.pressure{kind="full",manager="slurm",resource="io",task="5.2"}`: 0})
	if got := b.sink.kinds(); got != "oom_kill oom_kill" {
		t.Errorf("events: %s", got)
	}
	again := newCgroups(b.machine, nil, nil) // a watcher that starts later has no new events
	t.Cleanup(again.Close)
	b.look(again)
	if got := b.sink.kinds(); got != "oom_kill oom_kill" {
		t.Errorf("events: %s", got)
	}
	// One task ends, and another one begins.
	b.write(v1+"memory/x/premix-7.1.1/4.1/memory.usage_in_bytes", "1\n")
	if err := os.RemoveAll(b.path(v2)); err != nil {
		t.Fatal(err)
	}
	b.sink = &recorder{}
	b.look(c)
	b.look(c)
	b.sink.want(t, map[string]float64{`task.memory{manager="premix",run="/runs/7",task="4.1"}`: 1, "task.memory" + slurm: -1, "task.memory" + premix: 4096})
	if len(c.tasks) != 2 || len(c.tree.found) != 2 {
		t.Errorf("%d tasks, %d cgroups", len(c.tasks), len(c.tree.found))
	}
}

// If there are more tasks than the collector reads in a turn, all of them have their turn.
func TestCgroupsTakeTurns(t *testing.T) {
	b := newBench(t)
	const many = quickMost + 50
	for i := range many {
		b.write(fmt.Sprintf("sys/fs/cgroup/memory/premix-7.1.1/%d.1/memory.usage_in_bytes", i), "1\n")
	}
	c := newCgroups(b.machine, nil, nil)
	t.Cleanup(c.Close)
	count := func() int {
		seen := make(map[string]bool)
		for _, s := range b.sink.samples {
			if s.ID.Name == "task.memory" {
				seen[s.ID.Label("task")] = true
			}
		}
		return len(seen)
	}
	b.look(c)
	if n := count(); n != quickMost {
		t.Errorf("%d tasks in the first turn", n)
	}
	b.look(c)
	if n := count(); n != many {
		t.Errorf("%d tasks in two turns", n)
	}
}

// If tasks take turns, idle tasks skip some of theirs. No processor time is lost when an
// idle task becomes active.
func TestCgroupsRest(t *testing.T) {
	b := newBench(t)
	const many, turns = quickMost + 1, 21
	usage := func(task, ns int) {
		b.write(fmt.Sprintf("sys/fs/cgroup/cpuacct/premix-7.1.1/%d.1/cpuacct.usage", task), strconv.Itoa(ns)+"\n")
	}
	for i := range many {
		usage(i, 1e9)
		b.write(fmt.Sprintf("sys/fs/cgroup/memory/premix-7.1.1/%d.1/memory.usage_in_bytes", i), "1\n")
	}
	c := newCgroups(b.machine, nil, nil)
	t.Cleanup(c.Close)
	used := 1e9
	for turn := range turns {
		usage(3, 1e9+turn*1e9) // active in every turn
		if turn == 9 {
			used = 5e9
			usage(5, int(used)) // active once
		}
		b.look(c)
	}
	looks, seconds := make(map[string]int), 0.0
	var before, last time.Time // times of the last two reads of the task that is active once
	for _, s := range b.sink.samples {
		switch task := s.ID.Label("task"); {
		case s.ID.Name == "task.memory":
			looks[task]++
			if task == "5.1" {
				before, last = last, s.Time
			}
		case s.ID.Name == "task.cpu" && task == "5.1":
			seconds += s.Value * last.Sub(before).Seconds()
		}
	}
	for i := range many {
		n := looks[fmt.Sprintf("%d.1", i)]
		least, greatest := 5, 8 // two reads until the task counts as idle, then every fourth turn
		if i == 3 {
			least, greatest = turns-1, turns
		}
		if n < least || n > greatest {
			t.Errorf("task %d was looked at in %d of %d turns", i, n, turns)
		}
	}
	if want := (used - 1e9) / 1e9; math.Abs(seconds-want) > 1e-5 {
		t.Errorf("%g s of processor time, want %g", seconds, want)
	}
}

// TestRealCgroups reads the real cgroups of this machine, whatever their version is.
func TestRealCgroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups are made by root")
	}
	b := newBench(t)
	b.machine.root = ""
	c := newCgroups(b.machine, nil, nil)
	t.Cleanup(c.Close)
	b.look(c)
	if len(c.tree.mounts) == 0 {
		t.Skip("no cgroup hierarchy is mounted")
	}
	name := fmt.Sprintf("premix-%d.1.1", os.Getpid())
	var dirs []string
	t.Cleanup(func() {
		for _, d := range dirs {
			// The kernel removes the process from the cgroup some time after its end.
			answers(t, func() bool { err := os.Remove(d); return err == nil || os.IsNotExist(err) })
			answers(t, func() bool { err := os.Remove(filepath.Dir(d)); return err == nil || os.IsNotExist(err) })
		}
	})
	busy := exec.Command("/bin/sh", "-c", "while :; do :; done")
	busy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	})
	for _, h := range c.tree.mounts {
		d := filepath.Join(h.point, name, "1.1")
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Skipf("cgroups cannot be made: %v", err)
		}
		dirs = append(dirs, d)
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(busy.Process.Pid)), 0o644); err != nil {
			t.Logf("%s: %v", d, err)
		}
	}
	id := `{manager="premix",task="1.1"}`
	answers(t, func() bool {
		b.look(c)
		v, ok := b.sink.last("task.cpu" + id)
		return ok && v > 0
	})
}
