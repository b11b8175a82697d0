package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/hotstart"
)

// driftScene makes a run of testdata/drift.c. A hot start of it writes wrong outputs for deep
// samples, which are the last ones.
func driftScene(t *testing.T, samples int) *scene {
	t.Helper()
	if hot, err := canHot(); err != nil || !hot {
		t.Skipf("a hot start is not possible here: %v", err)
	}
	s := newScene(t, "", "trust: true\n", samples)
	if out, err := exec.Command("gcc", "-O1", "-o", s.path("drift"), "testdata/drift.c").CombinedOutput(); err != nil {
		t.Fatalf("the tests need a C compiler: %v\n%s", err, out)
	}
	recipe := strings.ReplaceAll(readFile(t, s.path("r.yaml")), "sh ${data.tool} ${r1}\ndata: {tool: tool.sh}", "./drift ${r1}")
	s.write(t, "r.yaml", strings.ReplaceAll(recipe, "PREMIX_TEST_MARK:", fmt.Sprintf("DRIFT: '%s', PREMIX_TEST_MARK:", s.dir)))
	for i := samples / 2; i < samples; i++ {
		s.write(t, fmt.Sprintf("s%d.in", i), "deep\n")
	}
	return s
}

// right checks that the outputs are the same as after cold starts, except for those that unchecked
// names, and returns their number.
func (s *scene) right(t *testing.T, samples int) int {
	t.Helper()
	n := 0
	for i := range samples {
		want := fmt.Sprintf("drift\ns%d\n", i)
		if i >= samples/2 {
			want = "drift\nright\n"
		}
		text, err := os.ReadFile(s.path(fmt.Sprintf("out/s%d.txt", i)))
		if err != nil {
			continue
		}
		n++
		if string(text) != want {
			t.Errorf("output %d is %q, want %q", i, text, want)
		}
	}
	return n
}

// premix is killed after a task has differed from a cold start and before other tasks of the same
// snapshot have run again. The resumed run still uses this result, even if premix was killed before
// it quarantined the snapshot.
func TestKilledAtDifference(t *testing.T) {
	for _, quarantined := range []bool{true, false} {
		t.Run(fmt.Sprint("quarantined ", quarantined), func(t *testing.T) {
			const samples = 8
			s := driftScene(t, samples)
			args := []string{"--start", "hot", "-j", "1"}
			if status, out := s.run(t, append(args, "--verify", "none")...); status != 0 {
				t.Fatalf("status %d\n%s", status, out)
			}
			if err := os.RemoveAll(s.path("out")); err != nil {
				t.Fatal(err)
			}
			store := s.path("home/snapshots")
			list, err := hotstart.List(store)
			if err != nil || len(list) != 1 {
				t.Fatalf("%d snapshots, %v", len(list), err)
			}
			id := list[0].ID
			if out, err := exec.Command("cp", "-a", filepath.Join(store, id), s.path("copy")).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			s.write(t, "hold", "")
			cmd := s.premix(args...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			s.await(t, "held")
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // it was killed
			if err := os.Remove(s.path("hold")); err != nil {
				t.Fatal(err)
			}
			s.gone(t)
			if n := s.right(t, samples); n == samples {
				t.Error("premix was killed too late")
			}
			if !quarantined {
				if err := os.RemoveAll(filepath.Join(store, id)); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(s.path("copy"), filepath.Join(store, id)); err != nil {
					t.Fatal(err)
				}
			}
			// The earlier result counts even if tasks are not verified now.
			status, out := s.run(t, "--resume", "-j", "1", "--verify", "none")
			if status != 0 || !strings.Contains(out, "snapshot "+id+" is in quarantine: sample s7: ") {
				t.Errorf("status %d\n%s", status, out)
			}
			if n := s.right(t, samples); n != samples {
				t.Errorf("%d outputs", n)
			}
			if hotstart.QuarantinedAs(store, id) == nil {
				t.Error("the snapshot is not in quarantine")
			}
			last := map[int]string{}
			for _, r := range s.records(t) {
				last[r.Task] = r.Start + r.Cause
			}
			for task := 1; task <= samples; task++ {
				if last[task] != "cold" {
					t.Errorf("task %d: %s", task, last[task])
				}
			}
		})
	}
}

// premix is killed at random moments around a difference. After a run has succeeded, it contains no
// results of hot starts that are known to be wrong.
func TestKilledAroundDifference(t *testing.T) {
	kills := 8
	if soak {
		kills = 100
	}
	const samples = 12
	s := driftScene(t, samples)
	args := []string{"--start", "auto", "-j", "2", "--resume", "--verify", "10%"}
	prepare := exec.Command(binary, "prepare", s.path("r.yaml"), "--start", "hot", "--probe", s.path("s.csv"))
	prepare.Env = append(os.Environ(), "PREMIX_HOME="+s.path("home"))
	if out, err := prepare.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for range kills {
		cmd := s.premix(args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		s.gone(t)
	}
	if status, out := s.run(t, args...); status != 0 {
		t.Fatalf("status %d\n%s", status, out)
	}
	if n := s.right(t, samples); n != samples {
		t.Errorf("%d outputs", n)
	}
}
