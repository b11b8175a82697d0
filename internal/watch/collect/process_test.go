package collect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
	"premix/internal/watch"
)

// told returns the message of the kernel about a thread.
func told(s unix.Taskstats) []byte {
	attribute := func(kind uint16, value []byte) []byte {
		b := make([]byte, 4, 4+len(value)+3)
		binary.NativeEndian.PutUint16(b, uint16(4+len(value)))
		binary.NativeEndian.PutUint16(b[2:], kind)
		for b = append(b, value...); len(b)%4 != 0; {
			b = append(b, 0)
		}
		return b
	}
	pid := make([]byte, 4)
	binary.NativeEndian.PutUint32(pid, s.Ac_pid)
	stats := unsafe.Slice((*byte)(unsafe.Pointer(&s)), unsafe.Sizeof(s))
	inner := append(attribute(unix.TASKSTATS_TYPE_PID, pid), attribute(unix.TASKSTATS_TYPE_STATS, stats)...)
	return attribute(unix.TASKSTATS_TYPE_AGGR_PID|unix.NLA_F_NESTED, inner)
}

func stats(pid, tgid uint32, last bool) unix.Taskstats {
	s := unix.Taskstats{Version: leastTaskstats, Ac_pid: pid, Ac_tgid: tgid, Ac_ppid: 1, Ac_uid: 4294967294, Ac_utime: 250_000, Ac_stime: 250_000,
		Hiwater_rss: uint64(pid), Read_bytes: 10, Write_bytes: 20, Ac_etime: 1, Ac_tgetime: 5_000}
	for i, c := range "bwa" {
		s.Ac_comm[i] = int8(c)
	}
	if last {
		s.Ac_flag = flagLast
	}
	return s
}

// The threads of a process are one task, which is reported when the last of them ends.
func TestThreadsAreSummedUp(t *testing.T) {
	b := newBench(t)
	c := newProcesses(b.machine)
	now := time.Date(2026, 11, 17, 12, 0, 0, 0, time.UTC)
	var tasks []watch.Task
	leader := stats(1<<22, 1<<22, false)
	leader.Ac_exitcode = 3 << 8
	killed := stats(1<<22+9, 1<<22+9, true)
	killed.Ac_exitcode = uint32(unix.SIGKILL)
	kernel := stats(1<<22+10, 1<<22+10, true)
	kernel.Ac_ppid = kthreadd
	own := stats(1<<22+11, 1<<22+11, true)
	for i, r := range "premix" {
		own.Ac_comm[i] = int8(r)
	}
	for _, s := range []unix.Taskstats{leader, killed, kernel, own, stats(1<<22+1, 1<<22, false), stats(1<<22+2, 1<<22, true)} {
		read, err := parseTaskstats(told(s))
		if err != nil {
			t.Fatal(err)
		}
		if o, ok := c.thread(read, now); ok {
			tasks = append(tasks, o.task)
		}
	}
	if len(tasks) != 2 || len(c.open) != 0 {
		t.Fatalf("%+v, %d are open", tasks, len(c.open))
	}
	if k := tasks[0]; k.Exit != 137 || k.OK || k.Reason != "killed by signal 9" {
		t.Errorf("%+v", k)
	}
	began := now.Add(-5 * time.Millisecond)
	want := watch.Task{Key: fmt.Sprintf("n1:%d@%d", 1<<22, began.UnixMicro()), Name: "bwa", Step: "bwa", User: "4294967294", Node: "n1", Engine: "process", Began: began, End: now,
		Exit: 3, CPU: 1.5, MaxRSS: (1<<22 + 2) << 10, Read: 30, Written: 60}
	if tasks[1] != want {
		t.Errorf("got  %+v\nwant %+v", tasks[1], want)
	}
}

// A thread that ran between two clock ticks has used processor time.
func TestProcessorTimeOfShortThreads(t *testing.T) {
	s := stats(7, 7, true)
	s.Ac_utime, s.Ac_stime = 0, 0
	if got := processorTime(&s); got != 0 {
		t.Errorf("nothing is measured: %v s", got)
	}
	s.Cpu_run_virtual_total = 1_500_000
	if got := processorTime(&s); got != 0.0015 {
		t.Errorf("the scheduler has measured 1.5 ms: %v s", got)
	}
	s.Ac_utime = 4_000
	if got := processorTime(&s); got != 0.0015 {
		t.Errorf("and there was a tick: %v s", got)
	}
}

// A message of the kernel in an unknown form is refused.
func TestTaskstatsOfOtherKernels(t *testing.T) {
	old := stats(7, 7, true)
	old.Version = leastTaskstats - 1
	moved := told(stats(7, 7, true))
	binary.NativeEndian.PutUint32(moved[8:], 8) // the size that stands beside the struct
	for name, b := range map[string][]byte{"old": told(old), "moved": moved, "nothing": nil, "torn": told(old)[:20]} {
		if _, err := parseTaskstats(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// FuzzTaskstats checks that arbitrary messages cause no panic.
func FuzzTaskstats(f *testing.F) {
	f.Add(told(stats(7, 7, true)))
	f.Fuzz(func(_ *testing.T, b []byte) {
		messages(b, func(_ uint16, body []byte) { _, _ = parseTaskstats(body) })
		_, _ = parseTaskstats(b)
	})
}

// If the parent of a process has ended, the collector waits for the kernel's message about
// the parent before it records the process.
func TestParentsThatEnd(t *testing.T) {
	b := newBench(t)
	c := newProcesses(b.machine)
	child := func(pid, parent uint32) orphan {
		s := stats(pid, pid, true)
		s.Ac_ppid = parent
		o, _ := c.thread(&s, b.wall())
		return o
	}
	const pid = 1 << 23 // no process has a number this high
	c.wait[0] = []orphan{child(pid, pid+1), child(pid+2, pid+3), child(pid+4, pid+5)}
	if c.wait[0] = c.judge(c.wait[0], b.sink); len(c.wait[0]) != 3 {
		t.Fatalf("%d wait", len(c.wait[0]))
	}
	own := stats(pid+1, pid+1, true)
	for i, r := range premixName {
		own.Ac_comm[i] = int8(r)
	}
	c.thread(&own, b.wall())
	child(pid+3, 1)
	if c.wait[0] = c.judge(c.wait[0], b.sink); len(c.wait[0]) != 1 || len(b.sink.tasks) != 1 {
		t.Fatalf("%d wait, %d are recorded", len(c.wait[0]), len(b.sink.tasks))
	}
	b.look(c)
	b.look(c)
	if len(b.sink.tasks) != 2 || len(c.wait[0])+len(c.wait[1]) != 0 {
		t.Errorf("%d are recorded", len(b.sink.tasks))
	}
}

// Every process is recorded, even a short one, except for processes that premix has
// started.
func TestProcessesAreRecorded(t *testing.T) {
	b := newBench(t)
	c, err := openProcesses(b.machine)
	var refused *exit.Error
	if errors.As(err, &refused) && (os.Geteuid() != 0 || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOENT)) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		c.Follow(ctx, b.sink)
	}()
	defer func() { cancel(); <-finished }()

	dir := t.TempDir()
	link := func(name, to string) string {
		path := filepath.Join(dir, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("w%d", os.Getpid())
	short, threads, ours, premix := link(name+"s", shell), link(name+"t", self), link(name+"p", shell), link(premixName, shell)
	const many = 200
	for range many {
		if err := exec.Command(short, "-c", "exit 3").Run(); err == nil {
			t.Fatal("it succeeded")
		}
	}
	if err := exec.Command(premix, "-c", ours+" -c true; "+ours+" -c '"+ours+" -c true; true'; true").Run(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := exec.Command(threads, "-test.run=^$").Run(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	of := func(name string) (list []watch.Task) {
		for _, task := range b.tasks() {
			if task.Name == name {
				list = append(list, task)
			}
		}
		return list
	}
	answers(t, func() bool { return len(of(name+"t")) == 1 && len(of(name+"s")) == many })
	for _, task := range of(name + "s") {
		if task.Exit != 3 || task.OK || task.User != userName(os.Getuid()) || task.End.Before(task.Began) || task.MaxRSS == 0 {
			t.Fatalf("%+v", task)
		}
	}
	one := of(name + "t")[0]
	if !one.OK || one.CPU == 0 || one.End.Sub(one.Began) > took+time.Second {
		t.Errorf("%+v in %v", one, took)
	}
	if n := len(of(name+"p")) + len(of(premixName)); n != 0 {
		t.Errorf("%d processes of premix", n)
	}
	b.look(c)
	b.look(c)
	if _, ok := b.sink.last("node.exits"); !ok {
		t.Error("they are not counted")
	}
}
