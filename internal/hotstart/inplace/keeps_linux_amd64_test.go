package inplace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
)

// keeper compiles the test program of package hotstart that keeps a property from before its input
// is opened.
func keeper(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "keeps")
	if b, err := exec.Command("cc", "-O2", "-pthread", "-o", out, "../testdata/keeps.c").CombinedOutput(); err != nil {
		t.Fatalf("the tests need a C compiler: %v\n%s", err, b)
	}
	return out
}

// keeps describes a call of the keeper. The file is in the place's directory.
func keeps(program, what string) invocation {
	return invocation{exe: program, args: []string{what, "file", "{input:SRR5204809_1.fq}"}}
}

// TestKeepsRefused uses programs that change state, or keep a property, in ways that a hot start
// could not reproduce.
func TestKeepsRefused(t *testing.T) {
	program, differs := keeper(t), "its memory differs"
	for what, reason := range map[string]string{
		"rename": "it writes to", "link": "it writes to", "mode": "it fails on", "touch": "it fails on",
		"shm": "it has used System V shared memory", "sem": "it has used System V semaphores", "msg": "it has used System V message queues",
		"uring": "it has used io_uring", "key": "it has used keyrings", "personality": "it has used another personality",
		"mdwe": "it has used memory that it cannot make executable", "privileges": "it has used no_new_privs or seccomp", "mounts": "it has used the table of mounts", "cgroup": "it reads cgroup before", "mountinfo": "it reads mountinfo before", "network": "it makes a socket",
		"writable": differs, "executable": differs, "links": "its output differs from one cold start to the next", "system": differs, "nice": differs,
		"first": differs, "inputattribute": "it asks for the extended attributes of",
	} {
		t.Run(what, func(t *testing.T) {
			if what == "writable" && os.Geteuid() == 0 {
				t.Skip("root may write to every file")
			}
			p := newPlace(t)
			p.write("file", "content")
			v := keeps(program, what)
			v.args[1] = filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(v.args[1], []byte("content"), 0o600); err != nil {
				t.Fatal(err)
			}
			p.wantUnfit(v, reason)
		})
	}
}

// TestKeepsRemoved uses a program that removes a file before it opens its input. The file does not
// exist at the time of the snapshot, but at a later call.
func TestKeepsRemoved(t *testing.T) {
	program, p := keeper(t), newPlace(t)
	p.mustPrepare(keeps(program, "remove"))
	p.wantHot(keeps(program, "remove"))
	p.write("file", "content")
	p.wantCold(keeps(program, "remove"), `is "file" instead of "missing"`)
}

// TestKeepsInput uses programs that keep properties of their input that differ between calls. They
// must get the properties of their own input.
func TestKeepsInput(t *testing.T) {
	program := keeper(t)
	other, err := os.MkdirTemp("/dev/shm", "premix-test-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(other)
	for _, what := range []string{"device", "owner", "blocks", "permissions", "status", "statx"} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			p.write("file", "content")
			err := p.prepare(keeps(program, what))
			var u *Unfit
			if errors.As(err, &u) && !u.Passing && strings.Contains(u.Reason, "its memory differs") {
				t.Log(err)
				return // the results are exact too, only slower
			}
			if err != nil {
				t.Fatal(err)
			}
			p.wantHot(keeps(program, what))
			path := filepath.Join(p.dir, "SRR5204809_1.fq")
			elsewhere := filepath.Join(other, what)
			if err := os.WriteFile(elsewhere, []byte(strings.Repeat(reads(1, 300), 100)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Remove(path), os.Symlink(elsewhere, path)); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(elsewhere, 0o755); err != nil {
				t.Fatal(err)
			}
			if os.Geteuid() == 0 {
				if err := os.Chown(elsewhere, 4711, 4712); err != nil {
					t.Fatal(err)
				}
			}
			p.wantHot(keeps(program, what))
		})
	}
}

// TestKeepsCPUs uses a program that keeps its set of allowed processors, or their number.
func TestKeepsCPUs(t *testing.T) {
	program, taskset := keeper(t), program(t, "taskset")
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	if all.Count() < 2 {
		t.Skip("one processor has no other set")
	}
	for _, what := range []string{"processors", "cpuset"} {
		p := newPlace(t)
		p.write("file", "content")
		v := keeps(program, what)
		hot := 0
		for n := range 1024 {
			if !all.IsSet(n) || hot == 2 {
				continue
			}
			v.front = func(cmd *exec.Cmd) {
				path, err := filepath.EvalSymlinks(cmd.Path)
				if err != nil {
					t.Fatal(err)
				}
				cmd.Path, cmd.Args = taskset, append([]string{"taskset", "-c", fmt.Sprint(n), path}, cmd.Args[1:]...)
			}
			if hot == 0 {
				one.Zero()
				one.Set(n)
				err := func() error {
					c := p.call(v)
					a := p.inherited(v)
					a.CPUs = 1
					c.Inherited = &a
					// The preparation runs on this processor too.
					setCPUs(t, &one)
					defer setCPUs(t, &all)
					snap, err := Prepare(t.Context(), p.store, c, PrepareOptions{Scratch: t.TempDir(), Log: t.Logf, Enough: 1})
					if err == nil {
						snap.Close()
					}
					return err
				}()
				if err != nil {
					t.Fatal(what, err)
				}
			}
			p.wantHot(v)
			hot++
		}
	}
}

// TestDates uses a program that keeps the time as text and as numbers, and writes it before and
// after it reads its input. After a hot start all of them must be the time of the call.
func TestDates(t *testing.T) {
	program := filepath.Join(t.TempDir(), "dates")
	if b, err := exec.Command("cc", "-O1", "-o", program, "testdata/dates.c").CombinedOutput(); err != nil {
		t.Fatalf("the tests need a C compiler: %v\n%s", err, b)
	}
	for _, env := range [][]string{nil, {"TZ=America/New_York"}, {"TZ=Asia/Kolkata"}, {"TZ=UTC"}} {
		t.Run(strings.Join(env, " "), func(t *testing.T) {
			p := newPlace(t)
			p.dated = true
			v := func(name string) invocation {
				return invocation{exe: program, env: env, args: []string{"index", "{input:" + name + "_1.fq}", "{output:" + name + ".log}"}}
			}
			p.mustPrepare(v("SRR5204809"))
			time.Sleep(3 * time.Second)
			p.wantHot(v("SRR5204809"))
			p.shell("rm *.log")
			p.wantHot(v("SRR5204810"))
		})
	}
}

// setCPUs sets the processors of every thread of the test, because a goroutine moves between
// threads, and a new thread inherits the set of the thread that starts it.
func setCPUs(t *testing.T, set *unix.CPUSet) {
	t.Helper()
	for changed := true; changed; {
		changed = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			tid, err := strconv.Atoi(thread.Name())
			if err != nil {
				t.Fatal(err)
			}
			var was unix.CPUSet
			if err := unix.SchedGetaffinity(tid, &was); err != nil || was == *set {
				continue // it has ended, or has the set already
			}
			if err := unix.SchedSetaffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) {
				t.Fatal(err)
			}
			changed = true
		}
	}
}

// TestKeepsFacts changes the machine after the snapshot, and uses a snapshot as if it came from
// another machine.
func TestKeepsFacts(t *testing.T) {
	program := keeper(t)
	for what, fact := range map[string]string{"boot": "/proc/sys/kernel/random/boot_id", "memory": "the size of the memory", "name": "the name of the machine", "attribute": "file"} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			elsewhere := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := unix.Setxattr(elsewhere, "user.premix", []byte("one"), 0); err != nil {
				t.Skipf("the file system of %s has no extended attributes: %v", elsewhere, err)
			}
			time.Sleep(50 * time.Millisecond) // the kernel's times of changes are coarse
			v := keeps(program, what)
			v.args[1] = elsewhere
			p.mustPrepare(v)
			p.wantHot(v)
			if what == "attribute" {
				if err := unix.Setxattr(elsewhere, "user.premix", []byte("two"), 0); err != nil {
					t.Fatal(err)
				}
				p.wantCold(v, "file has changed")
				return
			}
			all, err := List(p.store)
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			s, err := read(all[0].Dir, true)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(s.Fingerprint.Files, func(f hotstart.Stamp) bool { return f.Aspect == hotstart.AspectFact && f.Path == fact })
			if i < 0 {
				t.Fatalf("the fingerprint does not have %s", fact)
			}
			s.Fingerprint.Files[i].Digest = strings.Repeat("0", 64)
			if err := s.save(); err != nil {
				t.Fatal(err)
			}
			p.wantCold(v, fact+" has changed")
		})
	}
}

// TestChangedMeanwhile changes a file that the tool has read, during the preparation.
func TestChangedMeanwhile(t *testing.T) {
	p := newPlace(t)
	v := invocation{args: []string{"index", "{input:SRR5204809_1.fq}"}}
	index := filepath.Join(p.dir, "index")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if err := os.Chmod(index, 0o644); err != nil { // the content stays the same, and the ctime changes
				t.Error(err)
			}
		}
	}()
	err := p.prepare(v)
	close(stop)
	<-done
	var u *Unfit
	if !errors.As(err, &u) || !u.Passing || !strings.Contains(u.Reason, "index changed while the tool was loaded") {
		t.Errorf("prepared: %v", err)
	}
	p.mustPrepare(v)
	p.wantHot(v)
}
