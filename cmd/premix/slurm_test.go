package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
	"premix/internal/kit/exit"
	"premix/internal/testkit/shortdir"
	"premix/internal/testkit/slurmtest"
)

// slurmScene is a task scene with a Slurm cluster.
type slurmScene struct {
	*taskScene
	box *slurmtest.Box
}

// newSlurmScene starts a separate Slurm for a test.
func newSlurmScene(t *testing.T, o slurmtest.Options) *slurmScene {
	t.Helper()
	if list := slurmtest.Missing(o.Accounting); len(list) > 0 {
		t.Skipf("there is no %s: scripts/setup.sh test installs it", strings.Join(list, ", "))
	}
	s := &slurmScene{taskScene: newTaskScene(t)}
	dir := shortdir.New(t)
	var err error
	if s.box, err = slurmtest.Start(dir, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.box.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, name := range append([]string{"slurmctld"}, s.box.Nodes()...) {
				s.show(t, filepath.Join(dir, "log", name+".log"))
			}
		}
	})
	return s
}

// show logs the end of a file of a failed test, if the file exists.
func (s *slurmScene) show(t *testing.T, path string) {
	t.Helper()
	if text, err := os.ReadFile(path); err == nil {
		t.Logf("%s:\n%s", filepath.Base(path), text[max(0, len(text)-8<<10):])
	}
}

// explain logs the state of the dispatcher of a directory and of Slurm for a failed test.
func (s *slurmScene) explain(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"ledger.jsonl", "slurm.log"} {
		s.show(t, s.path(filepath.Join(dir, ".premix/queue", name)))
	}
	for _, args := range [][]string{
		{"squeue", "--states=all", "--array", "--Format=JobID:10,ArrayJobID:12,ArrayTaskID:12,Name:20,StateCompact:6,Reason:30,RestartCnt:12,EligibleTime:22,NodeList"},
		{"sinfo", "--Node", "--format=%N %T %H %E"},
	} {
		out, err := s.box.Run(args[0], args[1:]...)
		t.Logf("%s: %v\n%s", args[0], err, out)
	}
}

// premix returns a premix command that finds the Slurm.
func (s *slurmScene) premix(stdin string, args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Dir = s.dir
	cmd.Env = append(s.box.Env(), s.mark, "PREMIX_HOME="+s.path("home"))
	cmd.Stdin = strings.NewReader(stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// ends runs a command that must end with a status.
func (s *slurmScene) ends(t *testing.T, status int, stdin string, args ...string) string {
	t.Helper()
	return s.endsWithin(t, 2*patience, status, stdin, args...)
}

// endsWithin is like ends for a command that may take longer.
func (s *slurmScene) endsWithin(t *testing.T, most time.Duration, status int, stdin string, args ...string) string {
	t.Helper()
	cmd := s.premix(stdin, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(most, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
	defer stop.Stop()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != status {
		if i := slices.Index(args, "--out"); i >= 0 && i+1 < len(args) {
			s.explain(t, args[i+1])
		}
		t.Fatalf("premix %v: %v, want status %d\n%s", args, err, status, &out)
	}
	return out.String()
}

// onSlurm returns the arguments of a run on Slurm that polls often.
func onSlurm(more ...string) []string {
	args := []string{"task", "run", "--out", "out", "--engine", "slurm", "--engine-opt", "poll=300ms"}
	for _, m := range more {
		args = append(args, "--engine-opt", m)
	}
	return args
}

// Tasks run on several nodes in few jobs. Groups run in order. Failures, output and records are the
// same as for local tasks. Another engine does not touch these tasks.
func TestSlurm(t *testing.T) {
	s := newSlurmScene(t, slurmtest.Options{})
	var text strings.Builder
	// No task ends before two nodes have started one: otherwise Slurm may give the place of a quick
	// first task to the next one.
	for i := range 60 {
		fmt.Fprintf(&text, "{\"command\":\"echo out %d; echo $SLURMD_NODENAME >&2; touch on.$SLURMD_NODENAME; until set -- on.* && [ $# -gt 1 ]; do sleep 0.05; done\"}\n", i+1)
	}
	text.WriteString("{\"command\":\"cat none; exit 3\",\"retries\":1}\n")
	text.WriteString("{\"command\":\"echo all\",\"group\":\"gather\",\"after\":[\"tasks\"]}\n")
	s.ends(t, int(exit.Failed), text.String(), append(onSlurm("jobs=4", "cores=2"), "--format", "jsonl", "-")...)
	why := s.ends(t, int(exit.OK), "", "task", "why", "out", "61")
	if !strings.Contains(why, "it failed 2 times: the command ended with status 3") || !strings.Contains(why, "No such file") {
		t.Errorf("why: %s", why)
	}
	nodes := make(map[string]bool)
	for i := 1; i <= 60; i++ {
		if got := s.ends(t, int(exit.OK), "", "task", "tail", "out", strconv.Itoa(i)); got != fmt.Sprintf("out %d\n", i) {
			t.Errorf("task %d wrote %q", i, got)
		}
		nodes[s.ends(t, int(exit.OK), "", "task", "tail", "--stderr", "out", strconv.Itoa(i))] = true
	}
	if len(nodes) < 2 {
		t.Errorf("they ran on %v", nodes)
	}
	s.ends(t, int(exit.Failed), "", onSlurm()...) // the later group waits
	if why := s.ends(t, int(exit.OK), "", "task", "why", "out", "62"); !strings.Contains(why, "it waits for group tasks, of which 1 tasks failed") {
		t.Errorf("why: %s", why)
	}
	s.write(t, "none", "")
	s.ends(t, int(exit.OK), "", "task", "cancel", "out", "61")
	jobs, err := s.box.Run("squeue", "-h", "-r", "-t", "all")
	if err != nil || strings.Count(jobs, "\n") > 12 {
		t.Errorf("%v, jobs:\n%s", err, jobs)
	}
}

// An error of Slurm is reported in Slurm's words, and the reason why a job waits in plain words.
func TestSlurmRefusesAndWaits(t *testing.T) {
	s := newSlurmScene(t, slurmtest.Options{Nodes: 1})
	out := s.ends(t, int(exit.Unavailable), "true\n", append(onSlurm("partition=none"), "-")...)
	if !strings.Contains(out, "error: slurm refuses the jobs: ") || !strings.Contains(out, "nvalid partition") {
		t.Errorf("%s", out)
	}
	s.ends(t, int(exit.Usage), "", onSlurm("array=3")...)
	s.ends(t, int(exit.Usage), "", onSlurm("jobs")...)
	s.ends(t, int(exit.Usage), "", append(onSlurm(), "-j", "2")...)
	s.ends(t, int(exit.OK), "sleep 100\n", "task", "submit", "--out", "held", "--engine", "slurm", "--engine-opt", "hold=", "-")
	why := ""
	if !comes(func() bool {
		why = s.ends(t, int(exit.OK), "", "task", "why", "held", "1")
		return strings.Contains(why, "its user holds it")
	}) {
		t.Errorf("why: %s", why)
	}
	out = s.ends(t, int(exit.Directory), "", "task", "run", "--out", "held")
	if !strings.Contains(out, "given to 1 jobs of slurm") {
		t.Errorf("%s", out)
	}
	// Ctrl-C cancels the jobs that another premix has submitted, and the tasks are free again.
	cmd := s.premix("", "task", "run", "--out", "held", "--engine", "slurm", "--engine-opt", "poll=300ms")
	stderr, err := os.Create(s.path("said"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	text := func() string {
		text, err := os.ReadFile(s.path("said"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if !comes(func() bool { return strings.Contains(text(), "continuing with 1 jobs of slurm") }) {
		t.Errorf("it says %q", text())
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != int(exit.Signal(syscall.SIGINT)) {
		t.Errorf("status %d\n%s", code, text())
	}
	if left, err := s.box.Run("squeue", "-h"); err != nil || left != "" {
		t.Errorf("%v, left in the queue:\n%s", err, left)
	}
}

// A job that reaches its time limit returns its tasks. The task that exceeds the limit fails in the
// end, and all others succeed. Slurm counts time limits in minutes and checks them every half
// minute; the test takes three jobs.
func TestSlurmTimeLimit(t *testing.T) {
	if !soak {
		t.Skip("it takes minutes: PREMIX_SOAK=1 has it run")
	}
	s := newSlurmScene(t, slurmtest.Options{Nodes: 2})
	text := strings.Repeat("true\n", 20) + "sleep 1000\n" + strings.Repeat("echo a\n", 20)
	s.endsWithin(t, 5*patience, int(exit.Failed), text, append(onSlurm("jobs=2", "time=1"), "-")...)
	if why := s.ends(t, int(exit.OK), "", "task", "why", "out", "21"); !strings.Contains(why, "its job of slurm ended 2 times before it: it reached its time limit") {
		t.Errorf("why: %s", why)
	}
	q, err := queue.Open(s.path("out"), "v1", false)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if c := q.Counts(); c[queue.Succeeded] != 40 || c[queue.Failed] != 1 {
		t.Errorf("%v", c)
	}
}

// premix, a worker, slurmctld or a slurmd is killed at random moments, or a job is requeued or
// cancelled from outside. Each task succeeds once, and none is lost.
func TestSlurmKilledAtRandomMoments(t *testing.T) {
	tasks, rounds := 90, 3
	if soak {
		tasks, rounds = 600, 50
	}
	s := newSlurmScene(t, slurmtest.Options{})
	random := rand.New(rand.NewPCG(5, 3))
	for _, victim := range []string{"premix", "worker", "slurmctld", "slurmd", "requeue", "scancel"} {
		t.Run(victim, func(t *testing.T) {
			n := rounds
			if !soak && (victim == "requeue" || victim == "scancel") {
				n = 1
			}
			for round := range n {
				s.killed(t, victim, fmt.Sprintf("out-%s-%d", victim, round), tasks, random)
				if t.Failed() {
					return
				}
			}
		})
	}
}

func (s *slurmScene) killed(t *testing.T, victim, dir string, tasks int, random *rand.Rand) {
	t.Helper()
	var text strings.Builder
	for i := range tasks {
		fmt.Fprintf(&text, "echo %d >>%s/ran.%d; sleep 0.0%d\n", i, s.dir, i%7, random.IntN(6))
	}
	args := append(onSlurm("jobs=3"), "-")
	args[3] = dir
	var out bytes.Buffer
	cmd := s.premix(text.String(), args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	finished := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(finished)
	}()
	time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
	switch victim {
	case "premix":
		_ = cmd.Process.Kill() // it may have ended
	case "worker":
		for _, pid := range processes(func(exe, environ string) bool {
			return exe == binary && strings.Contains(environ, s.mark) && strings.Contains(environ, "SLURM_ARRAY_TASK_ID=")
		}) {
			if random.IntN(2) == 0 && !beginning(pid) {
				_ = unix.Kill(pid, unix.SIGKILL) // perhaps one of its spawners
			}
		}
	case "slurmctld":
		s.box.Kill("slurmctld")
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		if err := s.box.StartDaemon("slurmctld"); err != nil {
			t.Fatal(err)
		}
	case "slurmd":
		node := s.box.Nodes()[random.IntN(4)]
		s.box.Kill(node)
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		if err := s.box.StartDaemon(node); err != nil {
			t.Fatal(err)
		}
	case "requeue", "scancel":
		list, err := s.box.Run("squeue", "-h", "-r", "-o", "%F_%K")
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range strings.Fields(list) {
			if victim == "requeue" {
				_, _ = s.box.Run("scontrol", "requeue", id) // it may have ended
			} else {
				_, _ = s.box.Run("scancel", id)
			}
		}
	}
	late := time.After(2 * patience)
	look := time.NewTicker(time.Second)
	defer look.Stop()
wait:
	for {
		select {
		case <-finished:
			break wait
		case <-look.C:
			s.resume(t)
			if victim == "slurmctld" {
				s.endOthers(t, dir)
			}
		case <-late:
			s.explain(t, dir)
			_ = cmd.Process.Signal(syscall.SIGQUIT)
			<-finished
			t.Fatalf("%s came to no end\n%s", dir, &out)
		}
	}
	if victim == "premix" || cmd.ProcessState.ExitCode() != 0 {
		if victim != "premix" {
			s.explain(t, dir)
			t.Fatalf("%v\n%s", cmd.ProcessState, &out)
		}
		s.ends(t, int(exit.OK), text.String(), args...)
	}
	s.onceIn(t, dir, tasks)
	if victim == "slurmctld" {
		s.tidy(t)
	}
}

// beginning reports whether a process is a task that has not executed its command yet. Until then
// it looks like its spawner, and killing it kills the task.
func beginning(pid int) bool {
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return true // it has ended
	}
	of, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", parentOf(pid)))
	return err == nil && bytes.Equal(own, of)
}

// resume acts as an administrator: it puts nodes that Slurm has drained back into service. A
// slurmctld that was restarted from an older state sends a job to a node on which it still runs,
// and therefore drains the node.
func (s *slurmScene) resume(t *testing.T) {
	t.Helper()
	list, err := s.box.Run("sinfo", "--noheader", "--Node", "--states=drain", "--format=%N")
	if err != nil {
		return // slurmctld is down: a later call does it
	}
	for _, node := range strings.Fields(list) {
		if _, err := s.box.Run("scontrol", "update", "NodeName="+node, "State=resume"); err != nil {
			t.Log(err) // it may be in service again
		}
	}
}

// endOthers ends jobs that do not belong to a directory. A killed slurmctld is restarted from an
// older state, in which jobs of earlier directories still run. Until it notices their end, after
// some minutes, they occupy its nodes.
func (s *slurmScene) endOthers(t *testing.T, dir string) {
	t.Helper()
	ledger, err := os.ReadFile(s.path(filepath.Join(dir, ".premix/queue/ledger.jsonl")))
	if err != nil {
		return // no job was submitted yet
	}
	list, err := s.box.Run("squeue", "--noheader", "--array", "--format=%F_%K %j")
	if err != nil {
		return // slurmctld is down: a later call does it
	}
	for line := range strings.Lines(list) {
		id, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		token := strings.TrimPrefix(name, "premix-")
		if token == name || bytes.Contains(ledger, []byte(token)) {
			continue
		}
		if _, err := s.box.Run("scancel", "--quiet", "--name="+name, id); err != nil {
			t.Log(err) // it may have ended
		}
	}
}

// tidy waits until Slurm is idle. Before, it ends jobs whose end a killed slurmctld has missed.
func (s *slurmScene) tidy(t *testing.T) {
	t.Helper()
	list, err := s.box.Run("squeue", "--noheader", "--array", "--format=%F_%K")
	if err == nil && list != "" {
		_, err = s.box.Run("scancel", append([]string{"--quiet"}, strings.Fields(list)...)...)
	}
	if err != nil {
		t.Log(err) // they may have ended
	}
	s.resume(t)
	if err := s.box.AwaitIdle(); err != nil {
		s.explain(t, ".")
		t.Error(err)
	}
}

// onceIn checks that each task has one success in the records and no record after it.
func (s *slurmScene) onceIn(t *testing.T, dir string, tasks int) {
	t.Helper()
	succeeded := make([]int, tasks+1)
	for rec, err := range queue.Records(s.path(dir)) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.OK() {
			succeeded[rec.Task]++
		}
	}
	for task, n := range succeeded[1:] {
		if n != 1 {
			t.Errorf("%s: task %d succeeded %d times", dir, task+1, n)
		}
	}
}

// A run with a recipe starts hot on the nodes, and survives a kill.
func TestSlurmRun(t *testing.T) {
	s := newSlurmScene(t, slurmtest.Options{Accounting: true})
	s.write(t, "cat.yaml", "name: cat\ncommand: sed -n p ${r1}\ninputs: [r1]\noutputs: {stdout: \"${sample}.txt\"}\n")
	sheet := "sample,r1\n"
	const samples = 40
	for i := range samples {
		name := fmt.Sprintf("in%d", i)
		s.write(t, name, strings.Repeat(name+"\n", 1000))
		sheet += fmt.Sprintf("s%d,%s\n", i, name)
	}
	s.write(t, "sheet.csv", sheet)
	args := []string{"run", "cat.yaml", "sheet.csv", "--out", "run", "--start", "hot", "--engine", "slurm", "--engine-opt", "jobs=3", "--engine-opt", "poll=300ms"}
	cmd := s.premix("", args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	_ = cmd.Process.Kill() // it may have ended
	_ = cmd.Wait()
	out := s.ends(t, int(exit.OK), "", append(args, "--resume")...)
	hot, err := canHot()
	if err != nil {
		t.Error(err)
	}
	if hot && !strings.Contains(out, "hot") && !strings.Contains(out, "nothing to do") {
		t.Errorf("%s", out)
	}
	for i := range samples {
		text, err := os.ReadFile(s.path(fmt.Sprintf("run/s%d.txt", i)))
		if err != nil || string(text) != strings.Repeat(fmt.Sprintf("in%d\n", i), 1000) {
			t.Errorf("sample %d: %v, %d bytes", i, err, len(text))
		}
	}
	succeeded := make(map[int]int)
	for rec, err := range queue.Records(s.path("run")) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.OK() {
			succeeded[rec.Task]++
		}
		if hot && rec.OK() && rec.Start != "hot" {
			t.Errorf("task %d started %s: %s", rec.Task, rec.Start, rec.Reason)
		}
	}
	for i := 1; i <= samples; i++ {
		if succeeded[i] != 1 {
			t.Errorf("task %d succeeded %d times", i, succeeded[i])
		}
	}
	if out := s.ends(t, int(exit.OK), "", "report", "run"); !strings.Contains(out, "40") {
		t.Errorf("report: %s", out)
	}
	// The status and the standard error of a failed task are reported.
	s.write(t, "bad.yaml", "name: bad\ncommand: sh -c 'cat $0; echo sorry >&2; exit 4' ${r1}\ninputs: [r1]\noutputs: {stdout: \"${sample}.txt\"}\n")
	cmd = s.premix("", "run", "bad.yaml", "sheet.csv", "--out", "bad", "--engine", "slurm", "--engine-opt", "jobs=2")
	text, err := cmd.CombinedOutput()
	var finished *exec.ExitError
	if !errors.As(err, &finished) || finished.ExitCode() != int(exit.Failed) || !strings.Contains(string(text), "sorry") || !strings.Contains(string(text), "40 failed") {
		t.Errorf("%v\n%s", err, text)
	}
}

// Workers get the trees of a recipe from --origin, through the node of the machine on which they
// run. The node here is stopped before they start, so that no tree is mounted.
func TestSlurmRunWithTrees(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a tree in a fixed place needs root")
	}
	s := newSlurmScene(t, slurmtest.Options{Nodes: 1})
	if err := os.Mkdir(s.path("words"), 0o777); err != nil {
		t.Fatal(err)
	}
	s.write(t, "words/list", "a b c\n")
	s.ends(t, int(exit.OK), "", "store", "init", "store")
	s.ends(t, int(exit.OK), "", "store", "publish", "--store", "store", "words", "refs/words:1")
	s.write(t, "cat.yaml", "name: cat\ncommand: cat ${data.words}/list ${r1}\ndata: {words: \"tree:refs/words:1\"}\ninputs: [r1]\noutputs: {stdout: \"${sample}.txt\"}\n")
	s.write(t, "in", "sample\n")
	s.write(t, "sheet.csv", "sample,r1\ns1,in\ns2,in\n")
	t.Cleanup(func() { s.ends(t, int(exit.OK), "", "node", "stop") })
	var out bytes.Buffer
	cmd := s.premix("", "run", "cat.yaml", "sheet.csv", "--out", "run", "--start", "cold", "--origin", "store", "--engine", "slurm", "--engine-opt", "poll=300ms", "--engine-opt", "hold=")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var jobs string
	if !comes(func() bool {
		jobs, _ = s.box.Run("squeue", "--noheader", "--states=PENDING", "--format=%F") // the job may appear later
		return jobs != ""
	}) {
		t.Error("nothing is submitted")
	}
	s.ends(t, int(exit.OK), "", "node", "stop")
	if list, err := filepath.Glob(s.path("home/run/at/*/list")); err != nil || len(list) > 0 {
		t.Errorf("it is still mounted: %v %v", list, err)
	}
	if _, err := s.box.Run("scontrol", "release", strings.Fields(jobs)[0]); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		s.show(t, s.path("run/.premix/slurm.log"))
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, name := range []string{"s1", "s2"} {
		if text, err := os.ReadFile(s.path("run/" + name + ".txt")); err != nil || string(text) != "a b c\nsample\n" {
			t.Errorf("%s: %v %q", name, err, text)
		}
	}
}
