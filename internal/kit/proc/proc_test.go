package proc

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

func TestFields(t *testing.T) {
	for stat, want := range map[string][]string{
		"7 (cat) S 1 7 7 0":   {"S", "1", "7", "7", "0"},
		"7 (a) R) Z 1 2\n":    {"Z", "1", "2"},
		"7 (a (b) c\n) D 3":   {"D", "3"},
		"7 () x":              {"x"},
		"":                    nil,
		"7 (cut":              {"7", "(cut"},
		"7 (cut)":             nil,
		"7 (\xff\x00) t 1 2 ": {"t", "1", "2"},
	} {
		if got := Fields(stat); !slices.Equal(got, want) {
			t.Errorf("%q: %q", stat, got)
		}
	}
}

// TestProcess observes a real process in each of its states.
func TestProcess(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended
		_ = cmd.Wait()
	})
	f, err := Stat(pid)
	if err != nil || f[Parent] != strconv.Itoa(os.Getpid()) || f[Session] != strconv.Itoa(pid) {
		t.Errorf("%q, %v", f, err)
	}
	if own, its := StartTime(os.Getpid()), StartTime(pid); own == 0 || its < own {
		t.Errorf("started at %d, and its child at %d", own, its)
	}
	if !slices.Contains(All(), pid) || !slices.Equal(Threads(pid), []int{pid}) {
		t.Errorf("threads %v", Threads(pid))
	}
	if argv, err := Strings(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || !slices.Equal(argv, []string{"sleep", "100"}) {
		t.Errorf("%q, %v", argv, err)
	}
	become := func(want string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if got := State(pid); slices.Contains([]byte(want), got) {
				return
			} else if time.Now().After(end) {
				t.Fatalf("state %q, want one of %q", got, want)
			}
		}
	}
	become("SRD")
	for _, next := range []struct {
		sig   syscall.Signal
		state string
	}{{syscall.SIGSTOP, "T"}, {syscall.SIGKILL, "Z"}} {
		if err := cmd.Process.Signal(next.sig); err != nil {
			t.Fatal(err)
		}
		become(next.state)
	}
	if start := StartTime(pid); start != 0 {
		t.Errorf("a zombie started at %d", start)
	}
	_ = cmd.Wait() // it was killed
	if f, err := Stat(pid); err == nil || len(f) > 0 || State(pid) != 0 || StartTime(pid) != 0 || len(Threads(pid)) > 0 {
		t.Errorf("a process that is gone: %q, %v", f, err)
	}
}

// Watch resumes a stopped process, kills it at the third stop, and notices that it is dead.
func TestWatch(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	did := make(chan string, 100)
	ended, over := make(chan struct{}), make(chan struct{})
	send := func(sig syscall.Signal) {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
	}
	go func() {
		defer close(over)
		Watch(pid, ended, func() {
			send(syscall.SIGCONT)
			did <- "resume"
		}, func() {
			send(syscall.SIGKILL)
			did <- "kill"
		}, func() {
			select {
			case did <- "dead":
			default: // enough reports are in the channel
			}
		})
	}()
	for _, want := range []string{"resume", "resume", "kill", "dead"} {
		if want != "dead" {
			send(syscall.SIGSTOP)
		}
		select {
		case got := <-did:
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s did not come", want)
		}
	}
	_ = cmd.Wait() // it was killed
	close(ended)
	<-over
}

// The processor time of a process grows while it computes.
func TestTimes(t *testing.T) {
	own := os.Getpid()
	before := Used(own)
	for end := time.Now().Add(time.Minute); Used(own) == before && time.Now().Before(end); {
	}
	if after := Used(own); after <= before || after > before+time.Minute {
		t.Errorf("%v, and %v before", after, before)
	}
	if got := Used(1 << 30); got != 0 {
		t.Errorf("a process that does not exist has used %v", got)
	}
	if queued, got := Queued(own), Queued(1<<30); queued < 0 || queued > time.Hour || got != 0 {
		t.Errorf("this process was queued for %v, and a process that does not exist for %v", queued, got)
	}
}
