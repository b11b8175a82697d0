package collect

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"premix/internal/watch"
)

// aThread writes the files of a process with one thread.
func aThread(b *bench, pid int, state, wchan string, ran, waited int64) {
	stat := fmt.Sprintf("%d (work) %s 1 %d 1 0 -1 0 0 0 0 0 30 10 5 5 20 0 1 0 100 0 2000 0 0", pid, state, pid)
	b.write(fmt.Sprintf("proc/%d/stat", pid), stat)
	b.write(fmt.Sprintf("proc/%d/task/%d/stat", pid, pid), stat)
	b.write(fmt.Sprintf("proc/%d/task/%d/schedstat", pid, pid), fmt.Sprintf("%d %d 3\n", ran, waited))
	b.write(fmt.Sprintf("proc/%d/task/%d/wchan", pid, pid), wchan)
}

// lostFiles writes the files of one task, and returns its process id.
func lostFiles(b *bench) int {
	const pid = 4242
	b.write("sys/fs/cgroup/pids/premix-7.1.1/slot-0/cgroup.procs", fmt.Sprint(pid))
	aThread(b, pid, "D", "jbd2_log_wait_commit", 1e9, 1e9)
	b.write(fmt.Sprintf("proc/%d/cgroup", pid), "9:pids:/premix-7.1.1/slot-0\n4:memory:/x/premix-7.1.1\n1:cpu:/box\n")
	b.write(fmt.Sprintf("proc/%d/cmdline", pid), "sort\x00--buffer=/scratch/in.txt\x00")
	b.write(fmt.Sprintf("proc/%d/io", pid), "rchar: 1\nread_bytes: 4096\nwrite_bytes: 8192\n")
	return pid
}

// lostMounts adds a disk at /scratch and a server at /far to the mounts of the machine.
func lostMounts(b *bench) {
	b.write("proc/self/mountinfo", mustRead(b, "proc/self/mountinfo")+"90 1 8:17 / /scratch rw - ext4 /dev/sdb1 rw\n91 1 0:77 / /far rw - fuse.sshfs far:/ rw\n")
	if err := os.MkdirAll(filepath.Join(b.root, "sys/dev/block"), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Symlink("../../devices/sda/sdb1", filepath.Join(b.root, "sys/dev/block/8:17")); err != nil {
		b.t.Fatal(err)
	}
}

// A look at a task finds the cause for which it does not proceed.
func TestLost(t *testing.T) {
	const second = 1e9
	for name, c := range map[string]struct {
		before, now func(b *bench, pid int)
		want        map[string]float64
	}{
		"a disk": {want: map[string]float64{`task.lost{cause="disk",device="sdb1",thing="/scratch"}`: 1}},
		"a timer": {
			now:  func(b *bench, pid int) { aThread(b, pid, "S", "hrtimer_nanosleep", second, second) },
			want: map[string]float64{},
		},
		"a child that was forked by vfork": {
			now:  func(b *bench, pid int) { aThread(b, pid, "D", "kernel_clone", second, second) },
			want: map[string]float64{},
		},
		"a socket": {
			now:  func(b *bench, pid int) { aThread(b, pid, "S", "wait_woken", second, second) },
			want: map[string]float64{`task.lost{cause="network"}`: 1},
		},
		"a server": {
			now: func(b *bench, pid int) {
				aThread(b, pid, "S", "request_wait_answer", second, second)
				b.write(fmt.Sprintf("proc/%d/cmdline", pid), "cat\x00/far/x\x00/scratch/y\x00")
			},
			want: map[string]float64{`task.lost{cause="filesystem",thing="/far"}`: 1},
		},
		"reclaim": {
			now:  func(b *bench, pid int) { aThread(b, pid, "D", "reclaim_throttle", second, second) },
			want: map[string]float64{`task.lost{cause="memory"}`: 1},
		},
		"it became ready and waits still": {
			before: func(b *bench, pid int) { aThread(b, pid, "S", "hrtimer_nanosleep", second, second) },
			now:    func(b *bench, pid int) { aThread(b, pid, "R", "0", second, second) },
			want:   map[string]float64{`task.lost{cause="processor"}`: 1},
		},
		"it became ready and waited for a third": {
			before: func(b *bench, pid int) { aThread(b, pid, "S", "hrtimer_nanosleep", second, second) },
			now:    func(b *bench, pid int) { aThread(b, pid, "R", "0", 1.02*second, 1.01*second) },
			want:   map[string]float64{`task.lost{cause="processor"}`: 1. / 3},
		},
		"ready all the time, it ran for a quarter": {
			before: func(b *bench, pid int) { aThread(b, pid, "R", "0", second, second) },
			now:    func(b *bench, pid int) { aThread(b, pid, "R", "0", 1.025*second, second) },
			want:   map[string]float64{`task.lost{cause="processor"}`: 0.75},
		},
		"two threads, of which one rests": {
			now: func(b *bench, pid int) {
				b.write("sys/fs/cgroup/pids/premix-7.1.1/slot-0/cgroup.procs", fmt.Sprintf("%d\n%d\n", pid, pid+1))
				aThread(b, pid+1, "S", "do_wait", second, second)
			},
			want: map[string]float64{`task.lost{cause="disk",device="sdb1",thing="/scratch"}`: 1},
		},
		"two threads, of which one runs": {
			now: func(b *bench, pid int) {
				b.write("sys/fs/cgroup/pids/premix-7.1.1/slot-0/cgroup.procs", fmt.Sprintf("%d\n%d\n", pid, pid+1))
				aThread(b, pid+1, "R", "0", second, 0)
			},
			want: map[string]float64{`task.lost{cause="disk",device="sdb1",thing="/scratch"}`: 0.5},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			lostMounts(b)
			pid := lostFiles(b)
			lost := newLost(b.machine, nil, nil)
			defer lost.tree.close()
			if c.before != nil {
				c.before(b, pid)
			}
			if err := lost.look(); err != nil {
				t.Fatal(err)
			}
			lost.looks = 0
			clear(lost.sums)
			clear(lost.observed)
			b.clock.advance(lookEvery)
			if c.now != nil {
				c.now(b, pid)
			}
			if err := lost.look(); err != nil {
				t.Fatal(err)
			}
			if err := lost.Collect(context.Background(), b.wall(), b.sink); err != nil {
				t.Fatal(err)
			}
			c.want["task.observed"] = 1
			got := make(map[string]float64)
			for _, s := range b.sink.samples {
				got[plain(s.ID)] = s.Value
			}
			for id, want := range c.want {
				if v, ok := got[id]; !ok || math.Abs(v-want) > 1e-3 {
					t.Errorf("%s is %v and not %v: %v", id, v, want, got)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("%v and not %v", got, c.want)
			}
		})
	}
}

// A task below a quota loses the time for which its cgroup, or one above, was throttled. A
// task that reads pages again that were taken away from it loses that time to memory.
func TestLostShares(t *testing.T) {
	b := newBench(t)
	lostMounts(b)
	pid := lostFiles(b)
	lost := newLost(b.machine, nil, nil)
	defer lost.tree.close()
	b.write("sys/fs/cgroup/cpu/box/cpu.stat", "nr_periods 1\nnr_throttled 1\nthrottled_time 1000000000\n")
	b.write("sys/fs/cgroup/memory/x/premix-7.1.1/memory.stat", "cache 5\nworkingset_refault_file 1000\n")
	aThread(b, pid, "R", "0", 0, 0)
	turn := func() map[string]float64 {
		b.clock.advance(mountsEvery)
		if err := lost.look(); err != nil {
			t.Fatal(err)
		}
		b.sink.samples = nil
		if err := lost.Collect(context.Background(), b.wall(), b.sink); err != nil {
			t.Fatal(err)
		}
		got := make(map[string]float64)
		for _, s := range b.sink.samples {
			got[plain(s.ID)] = s.Value
		}
		return got
	}
	turn()
	turn()
	b.write("sys/fs/cgroup/cpu/box/cpu.stat", "nr_periods 1\nnr_throttled 1\nthrottled_time 2500000000\n") // 1.5 of 2 s
	got := turn()
	quota := fmt.Sprintf(`task.lost{cause="quota",thing=%q}`, filepath.Join(b.root, "sys/fs/cgroup/cpu/box"))
	if q, p := got[quota], got[`task.lost{cause="processor"}`]; math.Abs(q-0.75) > 1e-3 || math.Abs(p-0.25) > 1e-3 {
		t.Errorf("throttled for three quarters: %v", got)
	}
	aThread(b, pid, "D", "folio_wait_bit_common", 0, 0)
	turn()
	turn()
	b.write("sys/fs/cgroup/memory/x/premix-7.1.1/memory.stat", "cache 5\nworkingset_refault_file 1256\n") // 128 a second
	got = turn()
	memory := fmt.Sprintf(`task.lost{cause="memory",thing=%q}`, filepath.Join(b.root, "sys/fs/cgroup/memory/x/premix-7.1.1"))
	if m, d := got[memory], got[`task.lost{cause="disk",device="sdb1",thing="/scratch"}`]; math.Abs(m-0.5) > 1e-3 || math.Abs(d-0.5) > 1e-3 {
		t.Errorf("refaults at half the rate: %v", got)
	}
}

// The time of processes that end between two turns is known from the whole.
func TestTakers(t *testing.T) {
	b := newBench(t)
	pid := lostFiles(b)
	c := newTakers(b.machine, func() map[int]bool { return nil }, func(int) string { return "sdb1" })
	b.write("proc/stat", "cpu 1000 0 0 5 0 0 0 0\n")
	b.look(c)
	b.look(c)
	stat := "%d (work) S 1 1 1 0 -1 0 0 0 0 0 130 10 105 5 20 0 1 0 100 0 20000 0 0"
	b.write(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf(stat, pid))
	b.write(fmt.Sprintf("proc/%d/io", pid), "rchar: 1\nread_bytes: 4096\nwrite_bytes: 2008192\n")
	b.write("proc/stat", "cpu 1150 0 0 5 0 0 0 0\n")
	b.sink.samples = nil
	b.look(c) // 1.5 s of all, of which 1 s of this process, in 2 s
	got := make(map[string]float64)
	for _, s := range b.sink.samples {
		got[plain(s.ID)] = s.Value
	}
	for id, want := range map[string]float64{
		`node.ended_cpu`: 0.25,
		`node.program_cpu{cgroup="/premix-7.1.1/slot-0",program="work"}`:                 0.5,
		`node.program_forked_cpu{cgroup="/premix-7.1.1/slot-0",program="work"}`:          0.5,
		`node.program_bytes{cgroup="/premix-7.1.1/slot-0",device="sdb1",program="work"}`: 1e6,
		`node.program_memory{cgroup="/premix-7.1.1/slot-0",program="work"}`:              20000 * float64(os.Getpagesize()),
	} {
		if math.Abs(got[id]-want) > 1e-3*want {
			t.Errorf("%s is %v and not %v: %v", id, got[id], want, got)
		}
	}
}

// plain returns an ID without the label of the machine.
func plain(id watch.ID) string {
	id.Labels = slices.DeleteFunc(slices.Clone(id.Labels), func(l watch.Label) bool { return l.Key == "node" })
	return id.String()
}
