package spawn

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/kit/proc"
)

// A spawner that has ended counts as ended, even before its parent waits for it.
func TestZombieIsNotAlive(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	b := &StatusFile{Session: pid, place: PIDScope(), start: proc.StartTime(pid)}
	if !b.Alive() {
		t.Error("it is not alive")
	}
	in.Close()
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if b.Alive() {
		t.Error("its zombie is alive")
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// A slot does not wait for the goroutine that sends batches, even if it fills several batches.
func TestSlotsDoNotWaitForTheFlusher(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	read := make(chan int)
	go func() {
		n := 0
		for frame, err := readFrame(in, nil); err == nil; frame, err = readFrame(in, frame) {
			for r := (&reader{b: frame[1:]}); len(r.b) > 0; n++ {
				var res Result
				if err := res.get(r); err != nil {
					t.Error(err)
				}
			}
		}
		read <- n
	}()
	// No goroutine reads arm.
	s := &server{conn: out, arm: make(chan struct{}, 1), queue: make([]Task, 1)}
	slot := &slot{server: s}
	const batches = 5
	for range batches*batchMost + 1 {
		slot.finished(&Result{ID: 1})
	}
	if !s.armed || len(s.arm) != 1 {
		t.Error("the last result would never be sent")
	}
	s.flush()
	out.Close()
	if n := <-read; n != batches*batchMost+1 {
		t.Errorf("%d results were sent, not %d", n, batches*batchMost+1)
	}
}
