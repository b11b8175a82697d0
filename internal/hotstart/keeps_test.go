package hotstart

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// keeper compiles testdata/keeps.c.
func keeper(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "keeps")
	if b, err := exec.Command("cc", "-O2", "-pthread", "-o", out, "testdata/keeps.c").CombinedOutput(); err != nil {
		t.Fatalf("the tests need a C compiler: %v\n%s", err, b)
	}
	return out
}

func keeps(program, what, file string) Spec {
	spec := newSpec()
	spec.Argv = []string{program, what, file, "input"}
	return spec
}

// outputOf runs one task with the given kind of start, from the snapshots in a store.
func outputOf(t *testing.T, spec Spec, kind Kind, dir, store, sample string) (out string, notices []string) {
	t.Helper()
	b := benchIn(t, spec, kind, dir, store)
	b.mustPrepare(sample)
	defer b.starter.Close()
	r := b.run(sample)
	if r.proc.Kind != kind || !r.exit.OK() {
		t.Fatalf("%s start: %v, %s", r.proc.Kind, r.exit, r.err)
	}
	return r.out, b.notices
}

// TestKeepsTimes uses programs that keep times, a deadline and their process ID, and starts them
// when the snapshot is older than the time for which they wait.
func TestKeepsTimes(t *testing.T) {
	program, dir, store := keeper(t), t.TempDir(), filepath.Join(t.TempDir(), "store")
	kept := map[string]string{"times": "0 0 0 0 0\n", "deadline": "0\n", "pipe": "3 abc\n", "alarm": "0 1\n"}
	for what := range kept {
		b := benchIn(t, keeps(program, what, "/"), Hot, dir, store)
		b.mustPrepare("line\n")
		b.starter.Close()
	}
	time.Sleep(5 * time.Second)
	for what, want := range kept {
		if out, notices := outputOf(t, keeps(program, what, "/"), Hot, dir, store, "line\n"); out != want || len(notices) > 0 {
			t.Errorf("%s: a hot start printed %q, want %q; notices %q", what, out, want, notices)
		}
	}
}

// TestKeepsFacts changes the machine and the process after the snapshot.
func TestKeepsFacts(t *testing.T) {
	program := keeper(t)
	file := filepath.Join(t.TempDir(), "file")
	attribute := func(value string) error { return unix.Setxattr(file, "user.premix", []byte(value), 0) }
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := attribute("one"); err != nil {
		t.Skipf("the file system of %s has no extended attributes: %v", file, err)
	}
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		change, restore func() error
		notice          string
	}{
		"attribute": {func() error { return attribute("two") }, func() error { return nil }, "file has changed"},
		"core": {func() error {
			less := core
			less.Cur = min(core.Cur, 1<<20) / 2
			if less == core {
				less.Cur = min(4096, core.Max)
			}
			return unix.Setrlimit(unix.RLIMIT_CORE, &less)
		}, func() error { return unix.Setrlimit(unix.RLIMIT_CORE, &core) }, "resource limit 4 has changed"},
		"umask": {func() error { syscall.Umask(0o027); return nil }, func() error { syscall.Umask(0o022); return nil }, "the umask is 027 instead of 022"},
	} {
		t.Run(what, func(t *testing.T) {
			if core.Max == 0 && what == "core" {
				t.Skip("the limit on the size of core dumps is 0")
			}
			dir, store := t.TempDir(), filepath.Join(t.TempDir(), "store")
			before := syscall.Umask(0o022)
			defer syscall.Umask(before)
			outputOf(t, keeps(program, what, file), Hot, dir, store, "line\n")
			if err := c.change(); err != nil {
				t.Fatal(err)
			}
			defer c.restore()
			hot, notices := outputOf(t, keeps(program, what, file), Hot, dir, store, "line\n")
			cold, _ := outputOf(t, keeps(program, what, file), Cold, dir, store, "line\n")
			if hot != cold || !strings.Contains(strings.Join(notices, "\n"), c.notice) {
				t.Errorf("hot %q, cold %q, notices %q", hot, cold, notices)
			}
		})
	}
}

// TestKeepsStatus has a program keep the status of its input, and print it at the end.
func TestKeepsStatus(t *testing.T) {
	spec := keeps(keeper(t), "kept status", "/")
	dir, store := t.TempDir(), filepath.Join(t.TempDir(), "store")
	for _, sample := range []string{"line\n", "another line\nand one more\n"} {
		hot, _ := outputOf(t, spec, Hot, dir, store, sample)
		cold, _ := outputOf(t, spec, Cold, dir, store, sample)
		size := func(out string) string { size, _, _ := strings.Cut(out, " "); return size }
		// The input is another file in each start.
		if size(hot) != size(cold) || size(hot) != strconv.Itoa(len(sample)) || !strings.HasSuffix(hot, " same\n") || !strings.HasSuffix(cold, " same\n") {
			t.Errorf("hot %q, cold %q, of %d bytes", hot, cold, len(sample))
		}
	}
}

// TestKeepsSizes has a program keep the sizes of two inputs, which a start must not exchange.
func TestKeepsSizes(t *testing.T) {
	spec := keeps(keeper(t), "sizes", "/")
	spec.Inputs = []string{"input", "second"}
	b := newBench(t, spec, Hot)
	scratch := filepath.Join(b.dir, "scratch")
	if err := os.Mkdir(scratch, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := b.starter.Prepare(t.Context(), map[string]string{"input": b.input("line\n"), "second": b.input("another line\n")}, scratch); err != nil {
		t.Fatal(err)
	}
	for _, texts := range [][2]string{{"a line\n", "b\n"}, {"c\n", "another line\n"}} {
		dir := b.task()
		p, err := b.starter.Start(t.Context(), Task{Dir: dir, Inputs: map[string]string{"input": b.input(texts[0]), "second": b.input(texts[1])}})
		if err != nil {
			t.Fatal(err)
		}
		if r, want := b.finish(p, dir), fmt.Sprintf("%d %d\n", len(texts[0]), len(texts[1])); r.out != want || r.proc.Kind != Hot {
			t.Errorf("%s start: sizes %q, want %q", r.proc.Kind, r.out, want)
		}
	}
}

// TestKeepsWorkingDirectory has a wrapper pass the path of the working directory on in PWD, where the
// directories of tasks differ. A task with a longer path than the preparation is refused.
func TestKeepsWorkingDirectory(t *testing.T) {
	program, top := keeper(t), t.TempDir()
	wrapper := filepath.Join(top, "wrapper")
	if err := os.WriteFile(wrapper, []byte("#!/bin/sh\nexport PWD\nexec \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	spec := keeps(program, "environment", "/")
	spec.Argv = append([]string{wrapper}, spec.Argv...)
	store := filepath.Join(top, "store")
	for i, name := range []string{"a", "directory", strings.Repeat("d", 20), strings.Repeat("d", 200)} {
		dir := filepath.Join(top, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		b := benchIn(t, spec, Hot, dir, store)
		b.starter.host.namespaces = false // as of an ordinary user
		b.mustPrepare("line\n")
		if i == 3 {
			_, err := b.starter.Start(t.Context(), Task{Dir: b.task(), Inputs: map[string]string{"input": b.input("line\n")}})
			wantUnavailable(t, err, Hot, "the path of the working directory is longer than")
			continue
		}
		if r := b.run("line\n"); r.out != "same\n" || r.proc.Kind != Hot {
			t.Errorf("%s start: the tool has the directory %q, and is in %q", r.proc.Kind, r.out, r.dir)
		}
	}
}

// TestKeepsMachine uses snapshots as if they came from another machine: their fingerprints have
// other values for the facts that the program has queried.
func TestKeepsMachine(t *testing.T) {
	program := keeper(t)
	for what, fact := range map[string]string{
		"name": "the name of the machine", "processors": "the set of processors that it may run on", "nice": "the nice value",
		"io": "the priority for input and output", "policy": "the scheduling policy", "slack": "a property that it has inherited (prctl(2))",
		"files": "resource limit 7", "boot": "/proc/sys/kernel/random/boot_id",
	} {
		t.Run(what, func(t *testing.T) {
			dir, store := t.TempDir(), filepath.Join(t.TempDir(), "store")
			spec := keeps(program, what, "/")
			outputOf(t, spec, Hot, dir, store, "line\n")
			all, err := List(store)
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			found := false
			for i, s := range all[0].Fingerprint.Files {
				if s.Aspect == AspectFact && s.Path == fact {
					found = true
					all[0].Fingerprint.Files[i].Digest = strings.Repeat("0", 64)
				}
			}
			if !found {
				t.Fatalf("the fingerprint does not have %s", fact)
			}
			if _, notices := outputOf(t, spec, Hot, dir, store, "line\n"); len(notices) > 0 {
				t.Errorf("the same machine: notices %q", notices)
			}
			if err := all[0].save(); err != nil {
				t.Fatal(err)
			}
			if _, notices := outputOf(t, spec, Hot, dir, store, "line\n"); len(notices) != 1 || !strings.Contains(notices[0], fact+" has changed") {
				t.Errorf("another machine: notices %q", notices)
			}
		})
	}
}

// TestKeepsRefused uses programs that change state, or keep a property of their input, in ways that
// a hot start could not reproduce.
func TestKeepsRefused(t *testing.T) {
	program := keeper(t)
	columns := "1,2,3\n4,5,6\n7,8,9\n"
	for what, reason := range map[string]string{
		"rename": "the tool changes .*file before it opens its input", "link": "the tool changes .*file before", "mode": "the tool changes .*file before",
		"touch": "the tool changes .*file before", "shm": "it has used System V shared memory", "sem": "it has used System V semaphores",
		"msg": "it has used System V message queues", "uring": "it has used io_uring", "key": "it has used keyrings",
		"personality": "it has used another personality", "mdwe": "it has used memory that it cannot make executable", "privileges": "it has used no_new_privs or seccomp", "mounts": "it has used the table of mounts", "network": "it has used a network",
		"permissions": "its memory depends on a value that differs between starts", "links": "its memory depends on a value that differs between starts",
		"seed": "outputs differ from the outputs of a cold start", "inode seed": "its memory depends on a value that differs between starts", "scratch": "it writes to a file outside of its directory",
		"system": "the tool asks for the file system", "columns": "the tool reads its input input before it loads its data.* this is text",
	} {
		t.Run(what, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, make([]byte, 2*dataSize), 0o600); err != nil {
				t.Fatal(err)
			}
			b := newBench(t, keeps(program, what, file), Hot)
			wantUnavailable(t, b.prepare(columns), Hot, reason)
		})
	}
}

// TestKeepsRemoved uses a program that removes a file before it opens its input. The file does not
// exist at the time of the snapshot, but at a later start.
func TestKeepsRemoved(t *testing.T) {
	program, dir, store := keeper(t), t.TempDir(), filepath.Join(t.TempDir(), "store")
	file := filepath.Join(t.TempDir(), "file")
	spec := keeps(program, "remove", file)
	if out, _ := outputOf(t, spec, Hot, dir, store, "line\n"); out != "-1\n" {
		t.Errorf("it printed %q", out)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, notices := outputOf(t, spec, Hot, dir, store, "line\n"); out != "-1\n" || !strings.Contains(strings.Join(notices, "\n"), "file is new") {
		t.Errorf("it printed %q; notices %q", out, notices)
	}
}

// TestKeepsMapped replaces a file that a program has mapped, during a run.
func TestKeepsMapped(t *testing.T) {
	program := keeper(t)
	for _, kind := range []Kind{Hot, Auto} {
		file := filepath.Join(t.TempDir(), "file")
		write := func(letter string) {
			if err := os.WriteFile(file+".new", []byte(strings.Repeat(letter, 1<<20)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		}
		write("a")
		b := newBench(t, keeps(program, "map", file), kind)
		b.mustPrepare("line\n")
		if r := b.run("line\n"); r.out != "a a\n" || r.proc.Kind != Hot {
			t.Fatalf("%s start: %q", r.proc.Kind, r.out)
		}
		write("b")
		if kind == Auto {
			if r := b.run("line\n"); r.out != "b b\n" || r.proc.Kind != Cold || !strings.Contains(r.proc.Reason, "file has changed since the run began") {
				t.Errorf("%s start, %s: %q", r.proc.Kind, r.proc.Reason, r.out)
			}
			continue
		}
		_, err := b.starter.Start(context.Background(), Task{Dir: b.task(), Inputs: map[string]string{"input": b.input("line\n")}})
		wantUnavailable(t, err, Hot, "file has changed since the run began")
	}
}

// TestKeepsShared changes a file in /dev/shm, where users put data.
func TestKeepsShared(t *testing.T) {
	f, err := os.CreateTemp("/dev/shm", "premix-test-")
	if err != nil {
		t.Skip(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	program, dir, store := keeper(t), t.TempDir(), filepath.Join(t.TempDir(), "store")
	for i, letter := range []string{"a", "b"} {
		if _, err := f.WriteAt([]byte(letter), 0); err != nil {
			t.Fatal(err)
		}
		out, notices := outputOf(t, keeps(program, "read", f.Name()), Hot, dir, store, "line\n")
		if out != letter+" 0\n" || len(notices) != i {
			t.Errorf("it printed %q, want %s; notices %q", out, letter, notices)
		}
	}
}

// TestKeepsOwn checks that concurrent tasks have separate shared memory, and separate copies of an
// unlinked file that was open at the stop.
func TestKeepsOwn(t *testing.T) {
	program := keeper(t)
	for what, want := range map[string]string{"shared": "3 2\n", "shared page": "3 2\n", "unlinked": "4\n"} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t, keeps(program, what, filepath.Join(t.TempDir(), "file")), Hot)
			b.mustPrepare("line\n")
			var procs [3]*Process
			var dirs [3]string
			for i := range procs {
				procs[i], dirs[i] = b.start("line\n")
			}
			for i := range procs {
				if r := b.finish(procs[i], dirs[i]); r.out != want || r.proc.Kind != Hot {
					t.Errorf("task %d: a %s start printed %q, want %q", i, r.proc.Kind, r.out, want)
				}
			}
			if r := b.run("line\n"); r.out != want || r.proc.Kind != Hot {
				t.Errorf("afterwards a %s start printed %q, want %q", r.proc.Kind, r.out, want)
			}
		})
	}
}

// TestPythonModule edits a module that a Python program has imported. The recipe does not declare
// it, and its size and modification time stay the same.
func TestPythonModule(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	dir, store, code := t.TempDir(), filepath.Join(t.TempDir(), "store"), t.TempDir()
	program, module := filepath.Join(code, "program.py"), filepath.Join(code, "helper.py")
	const text = "import sys, helper\nfor line in open(sys.argv[1]):\n    print(helper.word, line.strip())\n"
	if err := os.WriteFile(program, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := newSpec()
	spec.Argv = []string{python, program, "input"}
	spec.Env = append(spec.Env, "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1")
	then := time.Now().Add(-time.Hour)
	for i, word := range []string{"one", "one", "two"} {
		if err := os.WriteFile(module, []byte("word = '"+word+"'\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(module, then, then); err != nil {
			t.Fatal(err)
		}
		out, notices := outputOf(t, spec, Hot, dir, store, "line\n")
		if changed := strings.Contains(strings.Join(notices, "\n"), "helper.py has changed"); out != word+" line\n" || changed != (i == 2) {
			t.Errorf("with %q it printed %q; notices %q", word, out, notices)
		}
	}
}

// TestKeepsUser uses a snapshot as if another user had made it.
func TestKeepsUser(t *testing.T) {
	program, dir, store := keeper(t), t.TempDir(), filepath.Join(t.TempDir(), "store")
	spec := keeps(program, "none", "/")
	outputOf(t, spec, Hot, dir, store, "line\n")
	all, err := List(store)
	if err != nil || len(all) != 1 || !strings.Contains(all[0].Fingerprint.User, "Groups") {
		t.Fatal(all, err)
	}
	all[0].Fingerprint.User += ",77"
	if err := all[0].save(); err != nil {
		t.Fatal(err)
	}
	if _, notices := outputOf(t, spec, Hot, dir, store, "line\n"); len(notices) != 1 || !strings.Contains(notices[0], "the user has other groups or capabilities") {
		t.Errorf("notices %q", notices)
	}
}

// TestKeepsDirectory uses a program that makes a directory before it opens its input, and sets its
// permissions, as a Java program does with its directory for temporary files.
func TestKeepsDirectory(t *testing.T) {
	program, dir, store := keeper(t), t.TempDir(), filepath.Join(t.TempDir(), "store")
	file := filepath.Join(t.TempDir(), "file")
	spec := keeps(program, "directory", file)
	for i, change := range []func() error{
		func() error { return nil },
		func() error { return nil },
		func() error { return os.Chmod(file+".d", 0o700) },
		func() error { return os.Remove(file + ".d") },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if out, notices := outputOf(t, spec, Hot, dir, store, "line\n"); out != "750\n" || (len(notices) > 0) != (i > 1) {
			t.Errorf("run %d printed %q; notices %q", i, out, notices)
		}
	}
}
