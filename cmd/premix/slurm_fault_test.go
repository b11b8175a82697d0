package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"premix/internal/engine/pilot"
	"premix/internal/kit/exit"
	"premix/internal/testkit/slurmtest"
)

// Slurm requeues a job that makes room for a job of a higher partition. Its remaining tasks run
// later, and no task runs twice.
func TestSlurmPreempted(t *testing.T) {
	s := newSlurmScene(t, slurmtest.Options{Nodes: 1, Config: "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n" +
		"PartitionName=low Nodes=n1 PriorityTier=1 PreemptMode=REQUEUE\nPartitionName=high Nodes=n1 PriorityTier=10 PreemptMode=OFF\n"})
	const tasks = 6
	text := strings.Repeat("touch begun; while [ ! -e go ]; do sleep 0.05; done\n", tasks)
	var out bytes.Buffer
	cmd := s.premix(text, append(onSlurm("jobs=1", "cores=2", "partition=low"), "-")...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.await(t, "begun")
	high, err := s.box.Run("sbatch", "--parsable", "--partition=high", "--cpus-per-task=2", "--output=/dev/null", "--wrap", "while [ ! -e "+s.path("go")+" ]; do sleep 0.05; done")
	if err != nil {
		t.Fatal(err)
	}
	if !comes(func() bool {
		state, err := s.box.Run("squeue", "--noheader", "--jobs="+strings.TrimSpace(high), "--format=%T")
		return err == nil && strings.TrimSpace(state) == "RUNNING"
	}) {
		s.explain(t, "out")
		t.Error("the job of the higher partition does not start")
	}
	s.write(t, "go", "")
	if err := cmd.Wait(); err != nil {
		s.explain(t, "out")
		t.Fatalf("%v\n%s", err, &out)
	}
	s.onceIn(t, "out", tasks)
	list, err := s.box.Run("squeue", "--noheader", "--states=all", "--Format=Name:20,RestartCnt:5")
	if err != nil || !regexp.MustCompile(`(?m)^premix-\S+ +[1-9]`).MatchString(list) {
		t.Errorf("no job was requeued: %v\n%s", err, list)
	}
}

// premix asks slurmdbd how a job ended that slurmctld has forgotten. Without an answer of slurmdbd
// other workers get the tasks of the job too.
func TestSlurmForgotten(t *testing.T) {
	for _, accounting := range []bool{true, false} {
		t.Run("accounting "+strconv.FormatBool(accounting), func(t *testing.T) {
			s := newSlurmScene(t, slurmtest.Options{Nodes: 1, Accounting: accounting})
			s.ends(t, int(exit.OK), "[ -e go ] || { touch begun; sleep 1000; }\ntrue\n", "task", "submit", "--out", "out", "--engine", "slurm", "--engine-opt", "jobs=1", "-")
			s.await(t, "begun")
			list, err := s.box.Run("squeue", "--noheader", "--format=%F")
			if err != nil || list == "" {
				t.Fatalf("%v %q", err, list)
			}
			id := strings.Fields(list)[0]
			stderr := func(word string) {
				// slurmctld reports jobs that have started to slurmdbd every five seconds.
				if accounting && !comes(func() bool {
					state, err := s.box.Run("sacct", "--noheader", "--allocations", "--jobs="+id+"_0", "--format=State%20")
					return err == nil && strings.Contains(state, word)
				}) {
					t.Errorf("sacct does not say %s", word)
				}
			}
			stderr("RUNNING")
			if _, err := s.box.Run("scancel", id); err != nil {
				t.Fatal(err)
			}
			s.write(t, "go", "")
			stderr("CANCELLED")
			// A slurmctld without its state has no jobs.
			s.box.Kill("slurmctld")
			old, err := filepath.Glob(filepath.Join(s.box.Dir, "state/job_state*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range old {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			// slurmctld would number jobs from 1 again, and a slurmd that still has a job of the
			// same number removes itself from service.
			conf, err := os.OpenFile(s.box.Conf(), os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conf.WriteString("FirstJobId=1000\n"); err != nil {
				t.Fatal(err)
			}
			if err := conf.Close(); err != nil {
				t.Fatal(err)
			}
			if err := s.box.StartDaemon("slurmctld"); err != nil {
				t.Fatal(err)
			}
			if err := s.box.AwaitIdle(); err != nil {
				t.Fatal(err)
			}
			s.ends(t, int(exit.OK), "", onSlurm()...)
			s.onceIn(t, "out", 2)
			want := "Slurm knows it no more"
			if accounting {
				want = "it was cancelled"
			}
			if got := s.reasons(t, "out"); len(got) == 0 || got[0] != want {
				t.Errorf("workers were closed for %q, the first not for %q", got, want)
			}
		})
	}
}

// reasons returns why the workers of a directory were closed.
func (s *slurmScene) reasons(t *testing.T, dir string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(s.path(filepath.Join(dir, ".premix/queue/ledger.jsonl")))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e pilot.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		if e.Reason != "" {
			list = append(list, e.Reason)
		}
	}
	return list
}

// Tasks that an ordinary user submits run on the nodes as that user.
func TestSlurmAsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the other tests run as an ordinary user already")
	}
	const nobody = 65534
	s := newSlurmScene(t, slurmtest.Options{Nodes: 1})
	dir, err := os.MkdirTemp("", "user")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(filepath.Dir(binary), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, s.box.Dir} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, append(onSlurm("jobs=2"), "-")...)
	cmd.Dir = dir
	cmd.Env = append(s.box.Env(), s.mark, "HOME="+dir, "PREMIX_HOME="+filepath.Join(dir, "home"))
	cmd.Stdin = strings.NewReader(strings.Repeat("id -u >>who\n", 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil {
		s.explain(t, "out")
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "who"))
	if err != nil || string(text) != strings.Repeat(strconv.Itoa(nobody)+"\n", 10) {
		t.Errorf("%v %q", err, text)
	}
	s.onceIn(t, filepath.Join("..", "..", filepath.Base(dir), "out"), 10)
}
