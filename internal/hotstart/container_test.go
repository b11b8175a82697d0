package hotstart

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"golang.org/x/sys/unix"

	"premix/internal/image"
	"premix/internal/image/bundle"
)

// needContainers skips a test where this user cannot make namespaces. Otherwise runc must be
// installed.
func needContainers(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		needNamespaces(t)
	}
	if err := bundle.Possible(); err != nil {
		if strings.Contains(err.Error(), "user namespace") {
			t.Skip(err)
		}
		t.Fatalf("no containers: %v (`make setup` installs runc)", err)
	}
}

// addToRoot copies a program and its libraries into a root directory.
func addToRoot(t *testing.T, root, program, as string) {
	t.Helper()
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		t.Fatalf("ldd %s: %v", program, err)
	}
	files := map[string]string{as: program}
	for _, lib := range regexp.MustCompile(`/[^ \n]+`).FindAllString(string(out), -1) {
		files[lib] = lib
	}
	for to, from := range files {
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := copyFile(from, to, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// newImage makes the root directory of an image with the tool, without a store.
func newImage(t *testing.T, user string) *Image {
	t.Helper()
	root := t.TempDir()
	addToRoot(t, root, tool, "/opt/tool")
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nbio:x:1000:1001::/home/bio:/bin/sh\n",
		"etc/group":  "root:x:0:\nbio:x:1001:\nlab:x:2000:bio\n",
		"etc/mark":   "image\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"tmp", "home/bio"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(root, dir), 0o1777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(root, 0o755); err != nil { // the mode of "/" in the container
		t.Fatal(err)
	}
	im := &Image{Ref: "tools/tool:1", Digest: strings.Repeat("1", 64), Root: root, Bundles: filepath.Join(t.TempDir(), "bundles"),
		Image: &image.Image{Settings: v1.Config{Env: []string{"PATH=/opt:/bin", "MARK=image"}, User: user, WorkingDir: "/home"}}}
	var err error
	if im.Account, err = bundle.AccountOf(im.Image, root); err != nil {
		t.Fatal(err)
	}
	return im
}

func imageSpec(im *Image, args ...string) Spec {
	spec := newSpec(args...)
	spec.Argv[0] = "tool"
	spec.Env = im.Env
	spec.Image = im
	return spec
}

// nothingLeft checks that containers have left no files or processes behind.
func (b *bench) nothingLeft(im *Image) {
	b.t.Helper()
	b.starter.Close()
	if left, _ := filepath.Glob(filepath.Join(im.Bundles, "*")); len(left) > 0 {
		b.t.Errorf("bundles are left: %q", left)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/premix-%d.*", os.Getpid())); len(left) > 0 {
		b.t.Errorf("cgroups are left: %q", left)
	}
}

// containerCommands are the commands for a tool in a container.
const containerCommands = "sum\nenv MARK\nenv HOME\nenv PATH\ncwd\numask\nfile /etc/mark\nstatus\nmake made\nwrite\nsum\ngrow\ndontneed\nthread\nput /etc/mark\n"

// TestEveryKindInAContainer checks that the tool has the files, user and environment of the image
// after each kind of start, with the same rights and filters and the same output.
func TestEveryKindInAContainer(t *testing.T) {
	needContainers(t)
	all := kinds
	for name, c := range map[string]struct {
		user     string
		args     []string
		edit     func(*Spec)
		commands string
		kinds    []Kind
	}{
		"root":    {"", []string{"-m", "16", "-l", "log", "-i", "DATA"}, nil, containerCommands + "index\nlog x\n", kinds},
		"a user":  {"bio", []string{"-m", "16"}, nil, containerCommands, all},
		"read":    {"", []string{"-m", "8", "-r"}, func(s *Spec) { s.Ready.Kind = ReadyRead }, "sum\nstatus\n", all},
		"stream":  {"", []string{"-m", "8", "-p", "header"}, func(s *Spec) { s.Stream = true }, "sum\n", all},
		"threads": {"", []string{"-m", "16", "-t", "2"}, nil, "sum\nstatus\nwrite\ndontneed\nfree\nsum\n", []Kind{Cold, Hot}},
		// The log is in the root, and both must be in the state of the stop.
		"root's files": {"", []string{"-m", "8", "-l", "/tmp/log"}, nil, "log one\nsum\nfile /tmp/log\n", []Kind{Cold, Hot}},
	} {
		t.Run(name, func(t *testing.T) {
			im := newImage(t, c.user)
			if err := im.Mapped(); err != nil {
				t.Skip(err)
			}
			spec := imageSpec(im, append(c.args, "input")...)
			if i := slices.Index(spec.Argv, "DATA"); i > 0 {
				spec.Argv[i] = filepath.Join(t.TempDir(), "index")
				if err := os.WriteFile(spec.Argv[i], []byte("indexed\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				spec.Data = []string{spec.Argv[i]}
			}
			if c.edit != nil {
				c.edit(&spec)
			}
			want := ""
			store := filepath.Join(t.TempDir(), "store") // a fork uses the snapshot of the hot start
			for _, kind := range c.kinds {
				b := benchIn(t, spec, kind, t.TempDir(), store)
				err := b.prepare("sum\n")
				if err != nil {
					t.Fatalf("prepare: %v", err)
				}
				tasks := 1
				if kind == Hot {
					tasks = 2 // the second task sees no files of the first
				}
				for range tasks {
					r := b.run(c.commands)
					if !r.exit.OK() || r.proc.Kind != kind {
						t.Fatalf("%s start was %s: %s, stderr %q", kind, r.proc.Kind, r.exit, r.err)
					}
					if want == "" {
						want = r.out
					} else if r.out != want {
						t.Errorf("%s start:\n%s\nthe first cold one:\n%s", kind, r.out, want)
					}
					if strings.Contains(c.commands, "make made") && read(t, filepath.Join(r.dir, "made")) != "made\n" {
						t.Errorf("%s: the tool could not write", kind)
					}
				}
				b.nothingLeft(im)
			}
			if strings.HasPrefix(c.commands, containerCommands) {
				for _, line := range []string{"cwd " + FixedDir, "env MARK=image", "env PATH=/opt:/bin", "env HOME=" + map[string]string{"": "/root", "bio": "/home/bio"}[c.user],
					"file image", "NoNewPrivs:\t1", "Seccomp:\t2", fmt.Sprintf("Uid:\t%d", im.UID)} {
					if !strings.Contains(want, line+"\n") && !strings.Contains(want, line+"\t") {
						t.Errorf("a cold start has no %q:\n%s", line, want)
					}
				}
			}
			if mark := read(t, filepath.Join(im.Root, "etc/mark")); mark != "image\n" {
				t.Errorf("a tool has written into the image: %q", mark)
			}
		})
	}
}

// TestContainerThatCannotBe checks that an error of runc is reported.
func TestContainerThatCannotBe(t *testing.T) {
	needContainers(t)
	im := newImage(t, "")
	spec := imageSpec(im, "input")
	spec.Data = []string{"/nonexistent/data"}
	b := newBench(t, spec, Cold)
	b.mustPrepare("")
	_, err := b.starter.Start(t.Context(), Task{Dir: b.task(), Inputs: map[string]string{"input": b.input("sum\n")}})
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/data") {
		t.Errorf("got %v", err)
	}
	b.nothingLeft(im)
	spec.Argv[0] = "nosuch"
	var known *image.Error
	if _, err := New(spec, Options{Store: b.store}); !errors.As(err, &known) || known.Kind != image.Usage {
		t.Errorf("a program that is not in the image: %v", err)
	}
}

// TestChangedImage checks that a snapshot of another image is not used, and that this is reported.
func TestChangedImage(t *testing.T) {
	needContainers(t)
	im := newImage(t, "")
	spec := imageSpec(im, "-m", "4", "input")
	b := newBench(t, spec, Hot)
	b.mustPrepare("sum\n")
	b.starter.Close()
	other := *im
	other.Digest = strings.Repeat("2", 64)
	// The image's environment comes from the image, not from the recipe.
	other.Env = append(slices.Clone(im.Env), "NEW=1")
	spec.Image, spec.Env = &other, other.Env
	next := benchIn(t, spec, Hot, b.dir, b.store)
	next.mustPrepare("sum\n")
	if !slices.ContainsFunc(next.notices, func(n string) bool {
		return strings.HasSuffix(n, "prepared again: the image is 222222222222 instead of 111111111111")
	}) {
		t.Errorf("notices %q", next.notices)
	}
	if r := next.run("env NEW\n"); r.proc.Kind != Hot || r.out != "env NEW=1\n" {
		t.Errorf("%s start, %q", r.proc.Kind, r.out)
	}
	next.nothingLeft(im)
	// A preparation for one task would cost more than it saves, so the run continues cold.
	spec.Image = im
	last, err := New(spec, Options{Store: b.store, Start: Auto, Tasks: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	if err := last.Prepare(t.Context(), nil, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if kind, reason := last.Decision(); kind != Cold {
		t.Errorf("%s: %s", kind, reason)
	}
}

// TestContainersCgroupsAndSignals checks that only the tool is in the cgroups of the task, and that
// a signal without a handler ends it.
func TestContainersCgroupsAndSignals(t *testing.T) {
	needContainers(t)
	im := newImage(t, "")
	spec := imageSpec(im, "-m", "2", "input")
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			dirs := cgroupsHere(t)
			b := newBench(t, spec, kind)
			b.mustPrepare("sum\n")
			dir := b.task()
			p, err := b.starter.Start(t.Context(), Task{Dir: dir, Inputs: map[string]string{"input": b.input("say hello\nflush\nhang\n")}, Cgroups: dirs})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the tool hangs", func() bool { return read(t, filepath.Join(dir, StdoutName)) == "hello\n" })
			for _, group := range dirs {
				eventually(t, group+" holds one process", func() bool {
					return len(strings.Fields(read(t, filepath.Join(group, processFile)))) == 1
				})
			}
			if err := p.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if exit, err := p.Wait(); err != nil || exit.Signal != unix.SIGTERM {
				t.Errorf("ended with %v, %v", exit, err)
			}
			b.nothingLeft(im)
		})
	}
}

// TestKilledContainers checks that premix removes the remains of a killed supervisor, and the next
// premix the remains of a killed premix.
func TestKilledContainers(t *testing.T) {
	needContainers(t)
	im := newImage(t, "")
	b := newBench(t, imageSpec(im, "-m", "2", "input"), Cold)
	b.mustPrepare("")
	p, dir := b.start("say hello\nflush\nhang\n")
	eventually(t, "the tool hangs", func() bool { return read(t, filepath.Join(dir, StdoutName)) == "hello\n" })
	if err := p.supervisor.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(); err == nil {
		t.Errorf("a task whose supervisor was killed ended with %v", exit)
	}
	b.nothingLeft(im)

	victim := exec.Command("/proc/self/exe")
	victim.Env = append(os.Environ(), "PREMIX_TEST_CONTAINER="+im.Root, "PREMIX_TEST_DIR="+b.dir)
	victim.Stderr = os.Stderr
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err := errors.Join(err, victim.Process.Kill()); err != nil {
		t.Fatalf("%v, it said %q", err, line)
	}
	_ = victim.Wait() // it was killed, so the result is known
	eventually(t, "the tool is gone", func() bool { return len(processesWith(t, "VICTIM="+b.dir)) == 0 })
	left := filepath.Join(b.dir, "bundles")
	if found, _ := filepath.Glob(filepath.Join(left, "*")); len(found) != 1 {
		t.Errorf("a killed premix left %q", found)
	}
	eventually(t, "the next one has cleared away", func() bool {
		room, err := bundle.New(left)
		if err != nil {
			t.Fatal(err)
		}
		if err := room.Close(); err != nil {
			t.Fatal(err)
		}
		found, _ := filepath.Glob(filepath.Join(left, "*"))
		groups, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/premix-%d.*", victim.Process.Pid))
		return len(found)+len(groups) == 0
	})
}

// containerVictim starts a task in a container, prints a line, and waits to be killed.
func containerVictim(root, dir string) int {
	im := &Image{Ref: "tools/tool:1", Digest: strings.Repeat("1", 64), Root: root, Bundles: filepath.Join(dir, "bundles"),
		Image: &image.Image{Settings: v1.Config{Env: []string{"PATH=/opt", "VICTIM=" + dir}}}}
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var err error
	if im.Account, err = bundle.AccountOf(im.Image, root); err != nil {
		return fail(err)
	}
	input, task := filepath.Join(dir, "victim.in"), filepath.Join(dir, "victim", "task")
	if err := errors.Join(os.WriteFile(input, []byte("hang\n"), 0o644), os.MkdirAll(task, 0o755)); err != nil {
		return fail(err)
	}
	starter, err := New(imageSpec(im, "-m", "2", "input"), Options{Store: filepath.Join(dir, "victims"), Start: Cold})
	if err != nil {
		return fail(err)
	}
	if _, err := starter.Start(context.Background(), Task{Dir: task, Inputs: map[string]string{"input": input}}); err != nil {
		return fail(err)
	}
	fmt.Println("started")
	select {}
}

// TestFixedDir shows FixedDir where its parent does not have it, with all else in /run. It does
// so in a process with a mount namespace of its own.
func TestFixedDir(t *testing.T) {
	const inside = "PREMIX_TEST_FIXED_DIR"
	needNamespaces(t)
	scratch := os.Getenv(inside)
	if scratch == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestFixedDir$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestFixedDir") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	check(unix.Mount("test", "/run", "tmpfs", 0, ""))
	check(os.MkdirAll("/run/premix/other", 0o755))
	check(os.Mkdir("/run/dir", 0o755))
	check(os.WriteFile("/run/dir/file", []byte("text"), 0o644))
	check(os.WriteFile("/run/pid", []byte("1"), 0o644))
	check(os.Symlink("dir/file", "/run/link"))
	check(showFixedDir(scratch))
	check(os.WriteFile(filepath.Join(FixedDir, "new"), nil, 0o644))
	_, err := os.Stat("/run/premix/other")
	check(err)
	if link, pid := read(t, "/run/link"), read(t, "/run/pid"); link != "text" || pid != "1" {
		t.Errorf("/run has %q and %q", link, pid)
	}
}
