package hotstart

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// probeCommands check state that a start must preserve.
const probeCommands = "sum\nids\nthread\nenv MARK\nenv PWD\numask\nnofile\nmask\nindex\n"

// TestEqual compares every kind of start with a cold one, on samples that were not used in the
// proof.
func TestEqual(t *testing.T) {
	index := filepath.Join(t.TempDir(), "index")
	if err := os.WriteFile(index, []byte("chr1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	samples := []string{probeCommands, "sum\nwrite\nsum\ngrow\nsum\ncwd\n", ""}
	for _, stream := range []bool{false, true} {
		spec := newSpec("-m", "40", "-p", "header", "-i", index, "-b", "input")
		spec.Stream = stream
		spec.Data = []string{index}
		var want []string
		for _, kind := range kinds {
			t.Run(fmt.Sprintf("%s/stream=%v", kind, stream), func(t *testing.T) {
				b := newBench(t, spec, kind)
				b.mustPrepare(probeCommands)
				if got, why := b.starter.Decision(); got != kind {
					t.Fatalf("decided on %s (%s)", got, why)
				}
				for i, sample := range samples {
					r := b.run(sample)
					if !r.exit.OK() || r.proc.Kind != kind {
						t.Fatalf("sample %d: %s start, exit %+v, stderr %q", i, r.proc.Kind, r.exit, r.err)
					}
					if r.err != "loaded 40 MiB\n" {
						t.Errorf("sample %d: stderr %q", i, r.err)
					}
					got := strings.ReplaceAll(r.out, r.dir, "DIR") // visible only without namespaces
					if kind == Cold {
						want = append(want, got)
						if !strings.HasPrefix(got, "header\n") || strings.Contains(got, "wrong") {
							t.Fatalf("cold: %q", got)
						}
					} else if got != want[i] {
						t.Errorf("sample %d:\ngot  %q\nwant %q", i, got, want[i])
					}
				}
			})
		}
	}
}

// TestSurvives checks the state that the tool had set up before the stop.
func TestSurvives(t *testing.T) {
	old := unix.Umask(0o027)
	defer unix.Umask(old)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			b := newBench(t, newSpec("-m", "2", "-b", "input"), kind)
			b.mustPrepare(probeCommands)
			r := b.run("mask\numask\nnofile\nids\nenv MARK\n")
			want := fmt.Sprintf("SIGUSR2 blocked\numask 027\nnofile %d\nids right leader 1\nenv MARK=frozen\n", limit.Cur)
			if r.out != want {
				t.Errorf("got  %q\nwant %q", r.out, want)
			}
		})
	}
}

// TestOutputs uses a tool that opens a file, and a file in a directory, before the stop.
func TestOutputs(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			spec := newSpec("-m", "2", "-l", "out/log", "input")
			spec.Dirs = []string{"out"}
			b := newBench(t, spec, kind)
			b.mustPrepare("log probe\nmake out/new\n")
			p1, d1 := b.start("log one\nmake out/new\n")
			p2, d2 := b.start("log two\n")
			b.finish(p1, d1)
			b.finish(p2, d2)
			if got := read(t, filepath.Join(d1, "out/log")); got != "before\nafter one\n" {
				t.Errorf("first task's log: %q", got)
			}
			if got := read(t, filepath.Join(d2, "out/log")); got != "before\nafter two\n" {
				t.Errorf("second task's log: %q", got)
			}
			if got := read(t, filepath.Join(d1, "out/new")); got != "made\n" {
				t.Errorf("new file: %q", got)
			}
			if _, err := os.Stat(filepath.Join(d2, "out/new")); err == nil {
				t.Error("one task's file appeared in the other's directory")
			}
		})
	}
}

// TestReady stops a tool at its first read, and at a line of its output.
func TestReady(t *testing.T) {
	for _, c := range []struct {
		name  string
		ready Ready
		args  []string
	}{
		{"read", Ready{Kind: ReadyRead}, []string{"-m", "20", "-r", "input"}},
		{"line on stderr", Ready{Kind: ReadyLine, Line: regexp.MustCompile(`^loaded \d+ MiB$`)}, []string{"-m", "20", "input"}},
	} {
		for _, kind := range kinds {
			t.Run(c.name+"/"+string(kind), func(t *testing.T) {
				spec := newSpec(c.args...)
				spec.Ready = c.ready
				b := newBench(t, spec, kind)
				b.mustPrepare("sum\nids\n")
				r := b.run("sum\nids\nsay done\n")
				if !strings.HasSuffix(r.out, "ids right leader 1\nsay done\n") && !strings.HasSuffix(r.out, "ids right leader 1\ndone\n") {
					t.Errorf("got %q, stderr %q", r.out, r.err)
				}
			})
		}
	}
}

// TestExit checks that the exit status of a tool is reported correctly.
func TestExit(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			b := newBench(t, newSpec("-m", "2", "input"), kind)
			b.mustPrepare("sum\n")
			if r := b.run("exit 7\n"); r.exit.Code != 7 || r.exit.Signal != 0 {
				t.Errorf("exit 7: got %+v", r.exit)
			}
			if r := b.run("crash\n"); r.exit.Signal != syscall.SIGABRT || r.exit.Code != -1 {
				t.Errorf("crash: got %+v", r.exit)
			}
			p, dir := b.start("say here\nhang\n")
			eventually(t, "the tool hangs", func() bool { return read(t, filepath.Join(dir, StdoutName)) == "here\n" })
			if err := p.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if r := b.finish(p, dir); r.exit.Signal != syscall.SIGTERM {
				t.Errorf("terminated: got %+v", r.exit)
			}
			if r := b.run("sum\n"); !r.exit.OK() {
				t.Errorf("a task after a crash: %+v", r.exit)
			}
		})
	}
}

// TestLeavesNothing uses tools that leave processes behind, and counts the processes.
func TestLeavesNothing(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			spec := newSpec("-m", "2", "input")
			mark := fmt.Sprintf("PREMIX_TEST_MARK=%s-%d", kind, os.Getpid())
			spec.Env = append(spec.Env, mark)
			b := newBench(t, spec, kind)
			before := mounts(t, b.dir)
			b.mustPrepare("sum\n")
			if r := b.run("fork\nsum\n"); !r.exit.OK() {
				t.Fatalf("exit %+v", r.exit)
			}
			eventually(t, "the background process has ended", func() bool { return len(processesWith(t, mark)) == 0 })
			p, _ := b.start("hang\n")
			b.starter.Close()
			p.Signal(syscall.SIGKILL)
			p.Wait()
			eventually(t, "no process is left", func() bool { return len(processesWith(t, mark)) == 0 })
			if after := mounts(t, b.dir); after != before {
				t.Errorf("mounts changed:\n%s", after)
			}
		})
	}
}

// TestConcurrent restores one snapshot many times at once.
func TestConcurrent(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			b := newBench(t, newSpec("-m", "64", "input"), kind)
			b.mustPrepare("sum\n")
			want := b.run("sum\nwrite\nsum\n").out
			const n = 8
			var wg sync.WaitGroup
			procs := make([]*Process, n)
			dirs := make([]string, n)
			for i := range n {
				dirs[i] = b.task()
			}
			in := b.input("sum\nwrite\nsum\n")
			for i := range n {
				wg.Add(1)
				go func() {
					defer wg.Done()
					p, err := b.starter.Start(t.Context(), Task{Dir: dirs[i], Inputs: map[string]string{"input": in}})
					if err != nil {
						t.Errorf("task %d: %v", i, err)
						return
					}
					procs[i] = p
				}()
			}
			wg.Wait()
			for i, p := range procs {
				if p == nil {
					continue
				}
				if r := b.finish(p, dirs[i]); !r.exit.OK() || r.out != want {
					t.Errorf("task %d: exit %+v, got %q, want %q", i, r.exit, r.out, want)
				}
			}
		})
	}
}

// TestIsolated checks that a task cannot see the files of another one.
func TestIsolated(t *testing.T) {
	needNamespaces(t)
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			b := newBench(t, newSpec("-m", "2", "input"), kind)
			b.mustPrepare("sum\n")
			p, dir := b.start("make secret\nflush\nhang\n")
			secret := filepath.Join(dir, "secret")
			eventually(t, "the secret is there", func() bool { _, err := os.Stat(secret); return err == nil })
			r := b.run("exists " + secret + "\nexists secret\ncwd\n")
			if want := "exists 0\nexists 0\ncwd " + FixedDir + "\n"; r.out != want {
				t.Errorf("got %q, want %q", r.out, want)
			}
			p.Signal(syscall.SIGKILL)
			b.finish(p, dir)
		})
	}
}

// TestRefused checks that the error describes a state that cannot be restored, and that an auto
// start is cold.
func TestRefused(t *testing.T) {
	spec := newSpec("-m", "2", "-c", "input")
	b := newBench(t, spec, Hot)
	wantUnavailable(t, b.prepare("sum\n"), Hot, "2 processes at its input")
	auto := newBench(t, spec, Auto)
	auto.mustPrepare("sum\n")
	if kind, why := auto.starter.Decision(); kind != Cold || !strings.Contains(why, "2 processes at its input") {
		t.Errorf("auto decided on %s because %q", kind, why)
	}
	b = newBench(t, newSpec("-m", "2", "-s", "input"), Hot)
	wantUnavailable(t, b.prepare("sum\n"), Hot, "seccomp filter")
	// A later run knows the reason without loading the tool.
	all, err := List(b.store)
	if err != nil || len(all) != 1 || all[0].Whole() || all[0].Proof == nil || all[0].Proof.Equal {
		t.Fatalf("the reason was not kept: %+v, %v", all, err)
	}
	again := benchIn(t, newSpec("-m", "2", "-s", "input"), Hot, b.dir, b.store)
	wantUnavailable(t, again.prepare("sum\n"), Hot, "seccomp filter")
	if later, err := List(b.store); err != nil || len(later) != 1 || later[0].ID != all[0].ID || len(again.notices) > 0 {
		t.Errorf("it was tried once more: %+v, %v, notices %q", later, err, again.notices)
	}
}

// TestAccessTime uses a tool that keeps the last access time of its index, which its first
// preparation changes.
func TestAccessTime(t *testing.T) {
	index := filepath.Join(t.TempDir(), "index")
	if err := os.WriteFile(index, []byte("the index\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	longAgo := time.Now().Add(-100 * time.Hour)
	if err := os.Chtimes(index, longAgo.Add(-time.Hour), longAgo); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, newSpec("-m", "2", "-a", "-i", index, "input"), Hot)
	b.mustPrepare("sum\n")
	if r := b.run("sum\n"); !r.exit.OK() {
		t.Errorf("exit %v: %s", r.exit, r.out)
	}
}

// TestWrapper starts the tool through a script that only waits for it, and through one with further
// commands.
func TestWrapper(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	waits := script("waits", "CHOSEN=avx2 "+tool+" \"$@\"\n")
	works := script("works", tool+" \"$@\"\necho more\n")
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			spec := newSpec("-m", "20", "input")
			spec.Argv[0] = waits
			b := newBench(t, spec, kind)
			b.mustPrepare("sum\nenv CHOSEN\n")
			r := b.run("sum\nenv CHOSEN\n")
			if !r.exit.OK() || !strings.HasSuffix(r.out, "env CHOSEN=avx2\n") {
				t.Errorf("exit %v, got %q", r.exit, r.out)
			}
			spec.Argv[0] = works
			b = newBench(t, spec, kind)
			err := b.prepare("say hello\n")
			if kind == Hot {
				wantUnavailable(t, err, Hot, "stdout differs in line 2|only one of the two")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r := b.run("say hello\n"); r.out != "hello\nmore\n" || r.proc.Kind != kind {
				t.Errorf("%s start gave %q", r.proc.Kind, r.out)
			}
		})
	}
}

// TestInputs passes gzip data to a tool that needs plain text.
func TestInputs(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			spec := newSpec("-m", "2", "input")
			spec.Plain = []string{"input"}
			b := newBench(t, spec, kind)
			b.mustPrepare(gzipped(t, "say probe\n"))
			if r := b.run(gzipped(t, "say one\n") + gzipped(t, "say two\n")); r.out != "one\ntwo\n" {
				t.Errorf("got %q, stderr %q", r.out, r.err)
			}
			if r := b.run("say plain\n"); r.out != "plain\n" {
				t.Errorf("got %q", r.out)
			}
		})
	}
}

// TestMapsHuge checks that the memory of a hot tool is mapped from the page file with entries of 2
// MiB if the file system has large folios.
func TestMapsHuge(t *testing.T) {
	needNamespaces(t)
	b := newBench(t, newSpec("-m", "64", "input"), Hot)
	b.mustPrepare("sum\n")
	p, dir := b.start("sum\nflush\nhang\n")
	defer func() {
		p.Signal(syscall.SIGKILL)
		b.finish(p, dir)
	}()
	eventually(t, "the memory was read", func() bool { return strings.HasPrefix(read(t, filepath.Join(dir, StdoutName)), "sum") })
	pid := p.supervisor.cmd.Process.Pid
	pids, err := tree(pid)
	if err != nil || len(pids) < 2 {
		t.Fatalf("processes of the supervisor: %v, %v", pids, err)
	}
	anon, rss := smapsSum(t, pids[1], "Anonymous"), smapsSum(t, pids[1], "Rss")
	if anon > 8<<20 || rss < 60<<20 {
		t.Errorf("%d MiB of %d MiB are private copies, want next to none", anon>>20, rss>>20)
	}
	t.Logf("rss %d MiB, mapped by 2 MiB entries %d MiB", rss>>20, smapsSum(t, pids[1], "FilePmdMapped")>>20)
}

// TestCounters uses a template that keeps a file with counters, as a Java virtual machine does. The
// file is removed with the template.
func TestCounters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hsperfdata_user")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	spec := newSpec("-m", "2", "-P", dir, "input")
	spec.Trust = true // the tool keeps its process ID in a name
	b := newBench(t, spec, Hot)
	b.mustPrepare("") // a hot start would remove the file of its template by its old name
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the directory of counters: %v, %v", left, err)
	}
	if r := b.run("sum\n"); !r.exit.OK() || r.proc.Kind != Hot {
		t.Errorf("a %s start ended with %v", r.proc.Kind, r.exit)
	}
}

// TestOrdinaryUser, if run by root, repeats the tests that need no privileges as an ordinary user.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this user has no privileges: the other tests are this test")
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "premix-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(filepath.Join(dir, "testdata"), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{self: "self", "testdata/tool.c": "testdata/tool.c", "testdata/keeps.c": "testdata/keeps.c"} {
		if err := copyFile(from, filepath.Join(dir, to), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Chown(p, nobody, nobody))
	}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "self"), "-test.v", "-test.timeout=40m", // with PREMIX_SOAK
		"-test.run=^(TestEqual|TestSurvives|TestOutputs|TestReady|TestExit|TestLeavesNothing|TestConcurrent|TestRefused|TestWrapper|TestInputs|TestBadTools|TestKilledTool|TestKilledPremix|TestMismatch|TestSupervisorKilledBetweenTasks|TestSignalTooLate|TestManyStarts|TestKilledParts|TestEarlyLooks|TestUndeclared|TestKeepsFacts|TestKeepsStatus|TestKeepsWorkingDirectory|TestEveryKindInAContainer|TestKilledContainers|TestContainerThatCannotBe)$")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir, "PREMIX_HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	}
	// In a chroot an ordinary user has no containers.
	n := strings.Count(string(out), "\n--- PASS:")
	for _, name := range []string{"TestEveryKindInAContainer", "TestKilledContainers", "TestContainerThatCannotBe"} {
		n += strings.Count(string(out), "\n--- SKIP: "+name)
	}
	if n != 26 {
		t.Errorf("%d of 26 tests passed as an ordinary user:\n%s", n, out)
	}
}

// TestDiffersFromItself uses a tool that prints the time or its addresses: the error must say that
// two cold starts differ too.
func TestDiffersFromItself(t *testing.T) {
	for _, command := range []string{"time\n", "address\n"} {
		b := newBench(t, newSpec("-m", "2", "input"), Hot)
		wantUnavailable(t, b.prepare(command), Hot, `outputs differ .*\(two cold starts differ from each other, too: stdout differs in line 1; name the differing lines under .varies.`)
	}
}
