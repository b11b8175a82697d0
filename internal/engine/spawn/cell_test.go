package spawn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/spawn"
	"premix/internal/kit/mountinfo"
)

// newCell makes a cgroup of a version for a slot and removes it at the end. With version 2 it has
// no limit of processes.
func newCell(t *testing.T, v2 bool) spawn.TaskCgroup {
	t.Helper()
	mounts, err := mountinfo.Read()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if v2 && m.Type != "cgroup2" || !v2 && (m.Type != "cgroup" || !slices.Contains(m.Options, "pids")) {
			continue
		}
		dir := filepath.Join(m.Path, fmt.Sprintf("premix-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("no right to make a cgroup: %v", err)
		}
		t.Cleanup(func() {
			until(t, "the end of "+dir, func() bool {
				spawn.Kill(dir)
				return unix.Rmdir(dir) == nil
			})
		})
		if !v2 {
			if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte("32"), 0); err != nil {
				t.Fatal(err)
			}
		}
		return spawn.TaskCgroup{Dir: dir, V2: v2}
	}
	t.Skip("no such cgroup hierarchy is mounted")
	panic("not reached")
}

// lives reports whether a process exists and is not a zombie.
func lives(pid string) bool {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.HasPrefix(string(text[strings.LastIndexByte(string(text), ')')+1:]), " Z")
}

// All processes of a task in a cell end before its result arrives, and their number is limited. The
// next task in the slot is unaffected.
func TestCells(t *testing.T) {
	for _, v2 := range []bool{false, true} {
		t.Run(map[bool]string{false: "version 1", true: "version 2"}[v2], func(t *testing.T) {
			c := newCell(t, v2)
			b := newBench(t, 1, c)
			n := 0
			run := func(command string) (spawn.Result, string) {
				t.Helper()
				n++
				b.start(spawn.Task{ID: uint64(n), Shell: command})
				r := b.await(n)[uint64(n)]
				return r, b.text(0, false, r.Out)
			}
			for range 3 {
				r, out := run("for i in 1 2 3; do setsid sleep 600 & echo $!; done; (setsid sh -c 'sleep 600 & sleep 600' &); exit 3")
				if r.Status.ExitStatus() != 3 || r.Refused {
					t.Errorf("%+v", r)
				}
				for _, pid := range strings.Fields(out) {
					if lives(pid) {
						t.Errorf("process %s outlived its task", pid)
					}
				}
				text, err := os.ReadFile(filepath.Join(c.Dir, "cgroup.procs"))
				if want := map[bool]string{false: strconv.Itoa(b.s.PID()) + "\n"}[v2]; err != nil || string(text) != want {
					t.Errorf("in the cell is %q, %v", text, err)
				}
			}
			if v2 {
				return // version 2 has no limit of processes here
			}
			bomb := "b() { b & b; }; b 2>/dev/null"
			if r, _ := run(bomb); !r.Refused {
				t.Errorf("the bomb: %+v", r)
			}
			// Run a bomb in the background, while the shell waits for it without forking.
			wait := fmt.Sprintf("f=%s/pids.events; read k a <$f; v=$a; (%s) & while [ $v = $a ]; do read k v <$f; done", c.Dir, bomb)
			if r, _ := run(wait); !r.Refused || r.Status != 0 {
				t.Errorf("the bomb beside: %+v", r)
			}
			if r, out := run("echo fine | cat"); r.Status != 0 || r.Refused || out != "fine\n" {
				t.Errorf("after it: %+v, %q", r, out)
			}
		})
	}
}

// Linux 6.14 and later kills new processes of a cgroup on which cgroup.kill was used. Tasks then
// join the cgroup after they have started.
func TestCellThatKills(t *testing.T) {
	c := newCell(t, true)
	if err := os.WriteFile(filepath.Join(c.Dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		t.Skip(err)
	}
	b := newBench(t, 1, c)
	b.start(spawn.Task{ID: 1, Shell: "cat /proc/self/cgroup; setsid sleep 600 &"}, spawn.Task{ID: 2, Argv: []string{"cat", "/proc/self/cgroup"}})
	for id, r := range b.await(2) {
		if out := b.text(0, false, r.Out); r.Errno != 0 || r.Status != 0 || !strings.Contains(out, filepath.Base(c.Dir)) {
			t.Errorf("task %d: %+v, %q", id, r, out)
		}
	}
	if text, err := os.ReadFile(filepath.Join(c.Dir, "cgroup.procs")); err != nil || len(text) > 0 {
		t.Errorf("in the cell is %q, %v", text, err)
	}
}

// When the client or the spawner ends, the spawner first ends all processes of the cells, as far as
// it can.
func TestCellsOfALostClient(t *testing.T) {
	c := newCell(t, false)
	b := newBench(t, 1, c)
	b.start(spawn.Task{ID: 1, Shell: "setsid sleep 600 & echo $!; wait"})
	pid := ""
	until(t, "the task", func() bool {
		text, err := os.ReadFile(b.setup.Logs[0])
		pid = strings.TrimSpace(string(text))
		return err == nil && strings.HasSuffix(string(text), "\n")
	})
	if !lives(pid) {
		t.Fatal("the daemon has ended already")
	}
	if err := b.s.Close(); err != nil {
		t.Fatal(err)
	}
	if lives(pid) {
		t.Error("the daemon outlived the spawner")
	}
}
